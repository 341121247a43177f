"""The command line: verbs of a few lines each, no logic. Heavy libraries are imported inside the verbs that need them.

A file in this folder is a group of verbs; all are found, none is named here.
"""

import importlib
import pkgutil

from attnlab.cli.common import app, main
from attnlab.design.commands import check, design

for _verbs in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_verbs.name}")
app.command(design)
app.command(check)

__all__ = ["app", "main"]
