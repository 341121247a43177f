"""The command line: verbs of a few lines each, no logic. Heavy libraries are imported inside the verbs that need them."""

from attnlab.cli import asking, bench, catalogue, look, training
from attnlab.cli.common import app, main
from attnlab.design.commands import check, design

app.command(design)
app.command(check)

__all__ = ["app", "asking", "bench", "catalogue", "look", "main", "training"]
