"""The command line: commands of a few lines each, no logic. Heavy libraries are imported inside the commands.

One module per group of commands; `options` declares what they share.
"""

from attnlab.cli import compare, course, data, examine, huggingface, measure, serve, studies, train  # noqa: F401  (they register commands)
from attnlab.cli.common import DESIGN, app, main
from attnlab.design.commands import design

design.group = (DESIGN,)
app.command(design)

__all__ = ["app", "main"]
