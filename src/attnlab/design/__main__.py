"""`python -m attnlab.design ...`: the sub-commands of `attnlab design`, and `check`, without the rest of the
program.
"""

from __future__ import annotations

import sys

from cyclopts import App, CycloptsError

from attnlab.design.commands import check, design
from attnlab.errors import AttnlabError


def main(arguments: list[str] | None = None) -> int:
    """One line for a mistake, exit code 2; 1 for a failure."""
    given = sys.argv[1:] if arguments is None else arguments
    app = design
    if given[:1] == ["check"]:
        app = App(name="attnlab")
        app.command(check)
    try:
        app(given, exit_on_error=False, print_error=False, result_action="return_value")
    except AttnlabError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except CycloptsError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
