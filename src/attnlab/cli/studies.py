"""`attnlab run`: every study is a command whose options are the fields of its class.

Studies are listed without being imported, because they need torch. The command of a study is made when it is asked for, as
the attribute of this module that has its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from attnlab import registry
from attnlab.cli.common import TRAIN, app, console
from attnlab.config import absolute_names
from attnlab.errors import UserError, unknown
from attnlab.store.usercode import is_code
from attnlab.studies import options as opt
from attnlab.studies.options import (
    NONE,
    SETTINGS_HINT,
    about,
    collect,
    default,
    read_numbers,
    read_seeds,
    typed_command,
)
from attnlab.studies.ready import READY

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
    trains = "given" in {field.name for field in fields(cls)}
    stem = cls.name

    def run(
        *,
        plan: Study[Any] | None = None,
        out: Path | None = None,
        mechanism: str | None = None,
        seed: int | None = None,
        given: Any = NONE,
    ) -> None:
        from attnlab.machine import require_single_process
        from attnlab.store.runs import unused_path

        require_single_process("a study")
        plan = replace(plan or cls(), command=typed_command())
        if trains:
            plan = replace(plan, given=collect(given, mechanism, seed))  # type: ignore[call-arg]
        plan.begin(out or unused_path(stem), console)

    options: dict[str, tuple[Any, Any]] = {
        "plan": (Annotated[cls, Parameter(name="*")], cls()),
        "out": (Annotated[opt.Out | None, default(f"runs/{stem}-N")], None),
    }
    if trains:
        options["mechanism"] = opt.Mechanism | None, None
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
        run_app.command(f"{__name__}:{_name}", name=_name, help=_listing.summary)


# Studies that are not classes yet


@Parameter(name="*")
@dataclass(frozen=True)
class _SeveralModels:
    """Options of the studies of several models and seeds."""

    quick: opt.Quick = False
    out: Annotated[opt.Out | None, default("runs/STUDY-N")] = None
    preset: Annotated[opt.Preset | None, default("that of the study")] = None
    config: opt.Config | None = None
    seeds: Annotated[opt.Seeds | None, default("as planned")] = None
    workers: opt.Workers = "0"
    given: opt.Settings = NONE

    def options(self, mechanism: str | None = None) -> dict[str, Any]:
        """The arguments that plans take beside their data."""
        return {
            "preset": self.preset,
            "config": self.config,
            "seeds": read_seeds(self.seeds),
            "workers": self.workers,
            "given": collect(self.given, mechanism),
            "quick": self.quick,
            "command": typed_command(),
        }


_SEVERAL = _SeveralModels()


@run_app.command
def why(
    *,
    corpus: Annotated[opt.Corpus | None, about("Built-in people, such as people:300.")] = None,
    forms: Annotated[str | None, about("Numbers of sentence forms per person."), default("1,2,4,8")] = None,
    exposures: Annotated[str | None, about("Numbers of times that each person is read."), default("8,24,48")] = None,
    mechanism: opt.Mechanism | None = None,
    models: _SeveralModels = _SEVERAL,
) -> None:
    """Test why reading helps: accuracy by number of exposures and sentence forms."""
    from attnlab.studies import why

    plan = why.make_plan(
        world=corpus,
        forms=read_numbers(forms, "forms"),
        exposures=read_numbers(exposures, "exposures"),
        **models.options(mechanism),
    )
    why.STUDY.begin(plan, _target("why", models.out), console)


def _add_comparison(name: str, text: str) -> None:
    """Register a ready comparison on sentences."""

    def compare_on_sentences(
        *, corpus: opt.Corpus | None = None, dev: opt.Dev | None = None, models: _SeveralModels = _SEVERAL
    ) -> None:
        _compare(name, (corpus, dev, None, None), models)

    run_app.command(compare_on_sentences, name=name, help=text)


for _name, _ready in READY.items():
    if not _ready.world:
        _add_comparison(_name, _ready.help)


@run_app.command(name="efficient", help=READY["efficient"].help)
def _efficient(
    *,
    corpus: opt.Corpus | None = None,
    facts: opt.Facts | None = None,
    exam: opt.Exam | None = None,
    models: _SeveralModels = _SEVERAL,
) -> None:
    _compare("efficient", (corpus, None, facts, exam), models)


def _target(study: str, out: Path | None) -> Path:
    from attnlab import machine
    from attnlab.store import runs

    machine.require_single_process("a study")
    return out or runs.unused_path(study)


def _compare(study: str, data: tuple[str | None, ...], models: _SeveralModels) -> None:
    from attnlab.studies import compare
    from attnlab.studies.ready import ready_plan

    folder = _target(study, models.out)
    compare.STUDY.begin(ready_plan(study, compare.Data(*data), **models.options()), folder, console)
