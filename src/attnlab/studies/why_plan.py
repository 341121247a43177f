"""The grid of the study why: cells, what a user may ask for, and the plan that is trained. Nothing is trained here.

Every cell is a specimen of a comparison, so that its runs are trained, stopped and gone on with as those are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnlab import corpora
from attnlab.config import Settings, absolute_given, merge
from attnlab.errors import UserError
from attnlab.machine import cores
from attnlab.studies.compare.plan import Plan, seed_numbers
from attnlab.studies.compare.specimens import Specimen

Way = Literal["nothing", "lines", "views"]

TITLE = "Why does reading help?"
QUESTION = (
    "How many questions about people that it was never asked about does a model answer, by how often it read of them and in"
    " how many sentence forms?"
)
PRESET = "reader"
# Exposures are multiples of the forms, so that every line of a person is read equally often.
WORLD, FORMS, EXPOSURES = "people:300", (1, 2, 4, 8), (8, 24, 48)
QUICK_WORLD, QUICK_FORMS, QUICK_EXPOSURES, QUICK_SEEDS = "people:200", (1, 8), (48,), 1
READ_LINES = {"task": {"name": "recall", "options": {"views": 0, "lines": 1.0, "questions": 0.0}}}
CHOSEN = {"train": ("epochs",), "task": ("name", "options")}  # settings that are the study's own


@dataclass(frozen=True)
class Cell:
    """How a model has read: nothing, whole lines or views; in how many forms; how often it met every person."""

    way: Way
    forms: int = 1
    exposures: int = 0

    @property
    def name(self) -> str:
        """What its runs are called."""
        return self.way if self.way == "nothing" else f"{self.way}-x{self.forms}-{self.exposures}"

    @classmethod
    def named(cls, name: str) -> Cell:
        """The cell of a name."""
        match = re.fullmatch(r"(lines|views)-x(\d+)-(\d+)", name)
        assert match or name == "nothing", "the study names its runs itself"
        return cls(match[1], int(match[2]), int(match[3])) if match else cls("nothing")  # type: ignore[arg-type]

    def specimen(self, world: str, base: Specimen) -> Specimen:
        """The cell as settings, text and stages: an epoch of F forms meets everybody F times."""
        if self.way == "nothing":
            return Specimen(self.name, base.preset, base.file, base.given, world, ("scratch",))
        reading = READ_LINES if self.way == "lines" else {}
        given = merge(base.given, merge(reading, {"train": {"epochs": self.exposures / self.forms}}))
        corpus = f"{world}:x{self.forms}" if self.forms > 1 else world
        return Specimen(self.name, base.preset, base.file, given, corpus, ("pretrain", "finetune"))


def grid(forms: Sequence[int], exposures: Sequence[int]) -> tuple[Cell, ...]:
    """All cells: nothing read, then lines and views, from few exposures to many."""
    cells = [Cell("nothing")]
    for times in exposures:
        cells += [Cell("lines", number, times) for number in forms]
        cells.append(Cell("views", 1, times))
    return tuple(cells)


def make_plan(
    *,
    world: str | None = None,
    forms: Sequence[int] | None = None,
    exposures: Sequence[int] | None = None,
    seeds: int | Sequence[int] | None = None,
    preset: str | None = None,
    config: Path | None = None,
    given: Settings | None = None,
    jobs: int = 0,
    quick: bool = False,
    command: str = "attnlab run why",
) -> Plan:
    """The study from what a user says; nothing is trained."""
    if quick and (world or forms or exposures):
        raise UserError(
            "--quick chooses its own people, forms and exposures: leave --corpus, --forms and --exposures out"
        )
    forms = counted("forms", forms or (QUICK_FORMS if quick else FORMS))
    exposures = counted("exposures", exposures or (QUICK_EXPOSURES if quick else EXPOSURES))
    world = checked_world(world or (QUICK_WORLD if quick else WORLD), max(forms))
    if 1 not in forms:
        raise UserError("--forms must hold 1: what several forms are held against, such as --forms 1,4")
    if jobs < 0:
        raise UserError(f"--jobs must be at least 1, or 0 for one a core, not {jobs}")
    refuse_chosen(given or {})
    file = str(config.resolve()) if config else None
    base = Specimen("", preset or PRESET, file, absolute_given(given or {})).unless_said("train", "threads", 1)
    specimens = tuple(cell.specimen(world, base) for cell in grid(forms, exposures))
    numbers = seed_numbers(QUICK_SEEDS if quick and seeds is None else seeds)
    threads = specimens[0].settings(0).train.threads or 1
    return Plan(
        specimens,
        "forms and exposures",
        numbers,
        corpus=world,
        facts=f"{world}:train",
        exam=f"{world}:test",
        jobs=jobs or max(1, min(cores() // threads, len(specimens) * len(numbers))),
        study="why",
        title=TITLE,
        question=QUESTION,
        command=command,
        quick=quick,
    )


def counted(name: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Different numbers from 1 on, in order."""
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise UserError(f"--{name} takes different numbers of at least 1, such as 1,2,4, not {numbers}")
    return tuple(sorted(numbers))


def checked_world(world: str, forms: int) -> str:
    """The people that the study is about: built in, since nobody else can be told in another form."""
    if not re.fullmatch("people(:[0-9]+)?", world):
        raise UserError(
            f"study why tells the built-in people in several forms: --corpus people, or people:300 for fewer, not {world}"
        )
    corpora.is_built_in(f"{world}:x{forms}")  # names a number of forms that nobody can be told in
    return world


def refuse_chosen(given: Settings) -> None:
    """Refuse settings that the study sets itself."""
    if "seed" in given:
        raise UserError("study why needs several seeds: --seeds 3, or --seeds 7,8,9")
    for table, names in CHOSEN.items():
        if found := [name for name in names if name in given.get(table, {})]:
            raise UserError(
                f"study why chooses {table}.{found[0]} itself, from exposures and forms: leave it out, or set --exposures"
            )


def cells_of(plan: Plan) -> tuple[Cell, ...]:
    """The cells of a plan, in its order."""
    return tuple(Cell.named(one.name) for one in plan.specimens)
