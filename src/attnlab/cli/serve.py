"""The command that serves the page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from attnlab.cli.common import HELP, app, say
from attnlab.errors import UserError
from attnlab.store.folders import refuse_existing, write_folder
from attnlab.studies import options as opt
from attnlab.studies.options import about


@app.command(group=HELP)
def page(
    folder: Annotated[Path, about("New folder for the files.")],
    /,
    *runs: Annotated[str, about("Runs or studies whose reports to include: folders, or names in ./runs.")],
) -> None:
    """Write the page as plain files, which need no server.

    They hold the views Design and Mechanisms and the reports of the runs and studies named.
    Put the folder on any web server, such as GitHub Pages, or try it with `python -m http.server`.
    """
    from attnlab.serve.site import site_files

    refuse_existing(folder)
    write_folder(folder, "page", site_files(runs), about="the page as plain files")
    say(f"page: {folder / 'index.html'}; view it with `python -m http.server --directory {shlex.quote(str(folder))}`")


@app.command(group=HELP)
def serve(
    root: Annotated[Path, about("Folder of runs.")] = Path("runs"),
    /,
    *,
    host: Annotated[str, about("Address to bind to.")] = "127.0.0.1",
    port: Annotated[opt.Whole, about("Port; 0 takes a free one.")] = 8642,
    browser: Annotated[bool, about("Open the page in the browser.")] = False,
    trust_code: opt.TrustCode = False,
    allow_code: Annotated[bool, about("Allow the page to run pasted code, in a sandbox.")] = False,
) -> None:
    """Serve a web page to design attention, ask models and compare runs.

    Prints a link with a token; whoever has it may use the page with your permissions. Press Ctrl-C
    to stop. Needs Starlette and uvicorn: pip install 'attnlab[serve]'.
    """
    try:
        from attnlab.serve.server import run
    except ModuleNotFoundError as error:
        raise UserError(f"the page needs {error.name}: pip install 'attnlab[serve]'") from None
    from attnlab.serve.routes import Options

    run(Options(root, trust_code, allow_code, warm_up=True), host, port, say, browser=browser)
