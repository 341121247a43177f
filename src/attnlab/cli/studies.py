"""`attnlab run`: every study is a command whose options are the fields of its class.

Studies are listed without being imported, because they need torch. The command of a study is made when it is asked for, as
the attribute of this module that has its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from attnlab import registry
from attnlab.cli.common import TRAIN, app, console, output_folder
from attnlab.config import absolute_names
from attnlab.errors import UserError, unknown
from attnlab.store.usercode import is_code
from attnlab.studies import options as opt
from attnlab.studies.options import NONE, SETTINGS_HINT, collect, default, typed_command

if TYPE_CHECKING:
    from attnlab.studies.study import Study

_USUAL = "recall"  # the study of `attnlab run`

run_app = App(
    name="run",
    help=f"""Run a whole study and write its report; without a name, {_USUAL}.

`attnlab run NAME --help` shows the options of a study.
A study of your own is run with attnlab run FILE.py:CLASS.""",
    group=TRAIN,
    help_epilogue=SETTINGS_HINT,
)
app.command(run_app)


def with_study(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the name of the usual study where none is given; a study in a user's file gets a command."""
    if list(arguments[:1]) != ["run"]:
        return list(arguments)
    rest = list(arguments[1:])
    if not rest or (rest[0].startswith("-") and rest[0] not in ("--help", "-h")):
        return ["run", _USUAL, *rest]
    if is_code(rest[0]):
        rest[0] = absolute_names(rest[0])
        if rest[0] not in run_app:
            run_app.command(command_of(_find(rest[0])), name=rest[0])
    elif rest[0] not in run_app:
        raise UserError(unknown("study", rest[0], [name for name in run_app if not name.startswith("-")]))
    return ["run", *rest]


def _find(name: str) -> type[Study[Any]]:
    from attnlab.studies.study import find

    return find(name)


def command_of(cls: type[Study[Any]]) -> Callable[..., None]:
    """Make the command of a study: its fields are options, and so are settings, if it trains models."""
    names = {field.name for field in fields(cls)}
    trains = "given" in names
    stem = cls.name

    def run(
        *,
        plan: Study[Any] | None = None,
        out: Path | None = None,
        mechanism: str | None = None,
        seed: int | None = None,
        given: Any = NONE,
    ) -> None:
        folder = output_folder(out, stem, "a study")
        plan = replace(plan or cls(), command=typed_command())
        if trains:
            plan = replace(plan, given=collect(given, mechanism, seed))  # type: ignore[call-arg]
        plan.begin(folder, console)

    options: dict[str, tuple[Any, Any]] = {
        "plan": (Annotated[cls, Parameter(name="*")], cls()),
        "out": (Annotated[opt.Out | None, default(f"runs/{stem}-N")], None),
    }
    if trains:
        if "names" not in names:
            options["mechanism"] = opt.Mechanism | None, None
        if "seeds" not in names:
            options["seed"] = opt.Seed | None, None
        options["given"] = opt.Settings, NONE
    run.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual, annotation=kind)
            for name, (kind, usual) in options.items()
        ]
    )
    run.__doc__ = cls.__doc__
    return run


def __getattr__(name: str) -> Callable[..., None]:
    if name not in registry.listings("study"):
        raise AttributeError(name)
    return command_of(_find(name))


for _name, _listing in registry.listings("study").items():
    if "own_command" not in _listing.keywords:
        run_app.command(f"{__name__}:{_name}", name=_name, help=_listing.card)
