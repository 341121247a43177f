"""The routes of the view "design": the solver, the noise experiment, and answer sheets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from attnlab.serve import design_tasks as tasks
from attnlab.serve.lab import TheLab, connected

router = APIRouter(prefix="/design", tags=["design"])
_TIME = 60.0  # seconds of any request

Number = Annotated[FiniteFloat, Field(ge=-1e12, le=1e12)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=16)]
Rows = Annotated[list[Vector], Field(min_length=1, max_length=64)]
Index = Annotated[int, Field(ge=0, le=63)]


class _Strict(BaseModel):
    """A request whose misspelt fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Wanted(_Strict):
    """What a query should do: copy value `index`, mix the values `indices`, or reach `target`."""

    task: Literal["select", "average", "reach"]
    keys: Rows
    values: Rows
    index: Index = 0
    indices: Annotated[list[Index], Field(min_length=1, max_length=64)] | None = None
    weights: Annotated[list[Number], Field(min_length=1, max_length=64)] | None = None
    target: Vector | None = None
    tolerance: Annotated[FiniteFloat, Field(ge=1e-9, le=1e6, title="the tolerance")] = 0.01
    scale: Literal["none", "sqrt"] = "none"
    seconds: Annotated[FiniteFloat, Field(ge=0, le=5)] = 5.0


class Fact(BaseModel):
    """A number with its name, for reading."""

    name: str
    value: str


class Verdict(BaseModel):
    """The verdict of the solver, and the command that repeats it."""

    task: str
    status: Literal["solved", "impossible", "undecided"]
    statement: str
    query: list[float]
    weights: list[float]
    output: list[float]
    target: list[float]
    bound: float
    lower_bound: float
    tolerance: float
    certificate: dict[str, Any] | None
    facts: list[Fact]
    command: str


@router.post("/solve")
async def solve(request: Request, lab: TheLab, wanted: Wanted) -> Verdict:
    """A query with a guaranteed error, or a proof that there is none."""
    found = await connected(request, lab.solver, tasks.solve, wanted.model_dump(), timeout=_TIME)
    return Verdict.model_validate(found)


class NoiseSettings(_Strict):
    """Orthonormal keys with noise: alpha in every direction, `varying` along the first key."""

    n: Annotated[int, Field(ge=2, le=32, title="the number of keys")] = 10
    strength: Annotated[FiniteFloat, Field(ge=0.01, le=1000, title="the strength C of the queries")] = 10.0
    alpha: Annotated[FiniteFloat, Field(ge=0, le=10, title="the noise α in every direction")] = 1e-6
    varying: Annotated[FiniteFloat, Field(ge=0, le=10, title="the variance of key 0 along itself")] = 0.5
    seed: Annotated[int, Field(ge=0, le=10**6)] = 0


class Moments(BaseModel):
    """Mean and standard deviation of the weight on v_0, and the share of failures."""

    mean: float
    sd: float
    failures: float


class HeadDesign(BaseModel):
    """One choice of queries: the law of the weight on v_0 in closed form and simulated, and samples of it."""

    name: str
    closed_form: Moments
    simulated: Moments
    law: list[float]
    samples: list[float]


class NoiseFound(BaseModel):
    """One head, equal heads and split heads under the same noise."""

    statement: str
    agreement: str
    low: float
    high: float
    designs: list[HeadDesign]
    simulated_samples: int
    command: str


@router.post("/noise")
async def noise(request: Request, lab: TheLab, settings: NoiseSettings) -> NoiseFound:
    """The noise experiment: closed form, simulation, and a few samples to look at."""
    found = await connected(request, lab.solver, tasks.noise, settings.model_dump(), timeout=_TIME)
    return NoiseFound.model_validate(found)


SheetText = Annotated[str, Field(min_length=1, max_length=100_000)]


class SheetContent(_Strict):
    """A sheet of `attnlab check`: the text of its TOML file."""

    text: SheetText


class SheetTask(BaseModel):
    """A task of a sheet; `why_not` says why it cannot be answered here. Planes show `keys` and `values`."""

    name: str
    ask: str
    text: str
    points: float
    why_not: str
    tolerance: float | None = None
    scale: Literal["none", "sqrt"] = "none"
    keys: list[list[float]] | None = None
    values: list[list[float]] | None = None
    target: list[float] | None = None
    hint: str = ""


class SheetRead(BaseModel):
    """A sheet that has been read."""

    title: str
    points: float
    tasks: list[SheetTask]


class Example(BaseModel):
    """A sheet that the package carries."""

    name: str
    title: str
    text: str


@router.get("/sheets")
async def examples(request: Request, lab: TheLab) -> list[Example]:
    """The sheets that the package carries."""
    found = await connected(request, lab.solver, tasks.examples, timeout=_TIME)
    return [Example.model_validate(one) for one in found]


@router.post("/sheet")
async def sheet(request: Request, lab: TheLab, content: SheetContent) -> SheetRead:
    """The tasks of a sheet."""
    found = await connected(request, lab.solver, tasks.read_sheet, content.text, timeout=_TIME)
    return SheetRead.model_validate(found)


class SheetAnswers(_Strict):
    """Answers by the name of the task, as typed: numbers, an expression, or the word impossible."""

    text: SheetText
    answers: Annotated[
        dict[Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=5000)]], Field(max_length=100)
    ]


class Mark(BaseModel):
    """The outcome of one task."""

    name: str
    answered: bool
    passed: bool
    earned: float
    points: float
    message: str


class SheetMarks(BaseModel):
    """The marks of the tasks that can be answered here."""

    earned: float
    points: float
    notes: list[str]
    tasks: list[Mark]


@router.post("/mark")
async def mark(request: Request, lab: TheLab, given: SheetAnswers) -> SheetMarks:
    """Mark answers as `attnlab check` does."""
    found = await connected(request, lab.solver, tasks.mark, given.text, given.answers, timeout=_TIME)
    return SheetMarks.model_validate(found)
