"""The routes of the view "ask": pick a run, ask it or continue a text with it, look inside, and change what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from attnlab.errors import UserError
from attnlab.serve import interventions, models
from attnlab.serve.documents import readable
from attnlab.serve.lab import TheLab, as_lines, connected
from attnlab.store.listing import Entry, arrange, read_all, run_folder
from attnlab.store.runs import Run

router = APIRouter(prefix="/ask", tags=["ask"])

_LONG = 300.0  # seconds: a large model, its index, or influences of many layers
_Run = Annotated[str, Field(min_length=1, max_length=500)]
_Text = Annotated[str, Field(max_length=4000)]


class Choice(BaseModel):
    """A run that has a model."""

    name: str  # its path below the folder of runs
    what: str
    mechanism: str | None
    task: str | None
    asks: bool  # whether it can be asked questions; if not, it continues texts
    code: bool  # whether it carries code of its own


class Choices(BaseModel):
    """The folder of runs, and those that have a model."""

    root: str
    runs: list[Choice]


class Named(BaseModel):
    """A run."""

    run: _Run


class LayerInfo(BaseModel):
    """The mechanism of a layer, and the activations that can be replaced."""

    mechanism: str
    taps: list[str]


class RunInfo(BaseModel):
    """An opened run, with examples of what to ask."""

    asks: bool
    layers: list[LayerInfo]
    heads: int
    parameters: int
    block: int
    calibrated: bool
    questions: list[str]
    texts: list[str]


class Asked(Named):
    """A question, or the beginning of a text."""

    text: _Text
    mode: Literal["ask", "continue"] = "ask"

    @property
    def asking(self) -> bool:
        """Whether the text is a question."""
        return self.mode == "ask"


class ToWrite(Asked):
    """What to answer or continue, and the most tokens to write."""

    limit: Annotated[int, Field(ge=1, le=200)] = 40


class Intervention(BaseModel):
    """A change inside the model; layers, heads and tokens count from 0, and None means all."""

    layer: Annotated[int, Field(ge=0, le=1000)]
    tap: Literal["z", "attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post"] = "z"
    head: Annotated[int, Field(ge=0, le=1000)] | None = None
    position: Annotated[int, Field(ge=0, le=100_000)] | None = None
    by: Literal["zero", "mean", "text"] = "zero"
    other: _Text = ""


class Changed(Asked):
    """A text, and the changes to make while the model reads it."""

    changes: Annotated[list[Intervention], Field(min_length=1, max_length=64)]


class Row(BaseModel):
    """An answer or next token with its probability without and with the changes; None if it was not among the likeliest."""

    answer: str
    before: float | None
    after: float | None


class Compared(BaseModel):
    """What the model says without and with the changes."""

    answer: str  # the likeliest without them
    before: float
    after: float | None
    then: str  # the likeliest with them
    written_before: str
    written_after: str
    rows: list[Row]


@router.get("/runs")
def runs(lab: TheLab) -> Choices:
    """The runs that have a model, the newest first; a study stands for its fine-tuned model."""
    root = lab.options.root
    entries = arrange(read_all(root), reverse=True) if root.is_dir() else []
    return Choices(root=readable(str(root)), runs=[choice for entry in entries for choice in _choices(root, entry)])


@router.post("/open")
async def open_run(asked: Named, lab: TheLab, request: Request) -> RunInfo:
    """Open a run: what it is, and what it can be asked."""
    folder = str(lab.folder(asked.run))
    return RunInfo(**await connected(request, lab.models, models.about, folder, lab.options.trust_code, timeout=_LONG))


@router.post("/answer", response_class=StreamingResponse)
async def answer(asked: ToWrite, lab: TheLab, request: Request) -> StreamingResponse:
    """Lines of JSON: the tokens of the text, each written token, the answer with its verdicts, the attention."""
    arguments = (*_arguments(asked, lab), asked.limit)
    return await as_lines(request, lab.models.stream(models.answer, *arguments, timeout=_LONG))


@router.post("/intervene")
async def intervene(asked: Changed, lab: TheLab, request: Request) -> Compared:
    """What the model says without and with some changes inside it."""
    changes = [one.model_dump() for one in asked.changes]
    arguments: tuple[Any, ...] = (*_arguments(asked, lab), changes)
    return Compared(**await connected(request, lab.models, interventions.intervene, *arguments, timeout=_LONG))


@router.post("/heads", response_class=StreamingResponse)
async def heads(asked: Asked, lab: TheLab, request: Request) -> StreamingResponse:
    """Lines of JSON: how likely the model's answer is, unchanged, then with each head switched off."""
    values = lab.models.stream(interventions.each_head_off, *_arguments(asked, lab), timeout=_LONG)
    return await as_lines(request, values)


def _arguments(asked: Asked, lab: TheLab) -> tuple[str, bool, str, bool]:
    return str(lab.folder(asked.run)), lab.options.trust_code, asked.text, asked.asking


def _choices(root: Path, entry: Entry) -> list[Choice]:
    """A run, or a study and the runs inside it."""
    if entry.kind != "study":
        return _choice(root, entry, entry.path)
    try:
        main = run_folder(entry.path)
    except UserError:  # a comparison, or not finished
        main = None
    inside = [one for one in entry.runs if one.path != main]
    chosen = next((one for one in entry.runs if one.path == main), None)
    found = _choice(root, chosen, entry.path) if chosen else []
    return found + [choice for one in inside for choice in _choice(root, one, one.path)]


def _choice(root: Path, run: Entry, shown: Path) -> list[Choice]:
    """A run, under the name of the folder that stands for it; none if it has no model or no printable name."""
    name = shown.relative_to(root).as_posix()
    if run.kind != "run" or not (run.path / "model").is_dir() or not name.isprintable():
        return []
    asks = Run(run.path).record.task.tested == "answers" and run.settings.get("tokenizer.kind") != "word"
    code = (run.path / "code").is_dir() or (run.path / "model" / "code").is_dir()
    return [Choice(name=name, what=run.what, mechanism=run.mechanism, task=run.task, asks=asks, code=code)]
