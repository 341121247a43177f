"""Why does reading help? How much of what a model has read it can be asked for, by how often and in how many forms it read it.

A model reads about everybody, is fine-tuned on questions about some people, and is examined on questions about the others:
what it answers there it can know from reading only. Every person is described in one sentence form or in several, and whatever
the number of forms, models with equal exposures have met every person equally often. They are compared with a model that
has read nothing, and with models that read one form in short views with questions among them (the task `recall`).

Each question of the study is a pair of cells, tested on the same questions and seeds, with Holm's correction. What is known
by heart and what can be asked for are compared person by person, by a test of a difference and one of equivalence.

Every cell of the grid is a variant of a comparison: its runs are trained, stopped and resumed in the same way.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import torch
from rich.console import Console

from attnlab import corpora, stats
from attnlab.config import Settings, Stage, absolute_given, diff, merge
from attnlab.corpora import Corpus, Question
from attnlab.errors import UserError
from attnlab.inside.taps import eval_mode
from attnlab.lm import stages
from attnlab.lm.evaluate import encode_questions
from attnlab.lm.exams import Score, majority
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.report.document import Document, strict
from attnlab.report.parts import StudyResult
from attnlab.report.why import document
from attnlab.report.words import capital, count, interval, percent, plural, signed, span
from attnlab.store.records import flat, optional, plain
from attnlab.store.runs import lineage
from attnlab.studies import options as opt
from attnlab.studies.compare.jobs import train_all
from attnlab.studies.compare.judge import Testing, compare_answers, settings_of
from attnlab.studies.compare.plan import Grid, try_once
from attnlab.studies.compare.records import Record, Records, notes_on, read_records, whole_result
from attnlab.studies.compare.variants import Variant
from attnlab.studies.options import seed_numbers
from attnlab.studies.study import study
from attnlab.studies.workers import read_workers

_Way = Literal["nothing", "lines", "views"]
_Table = Sequence[Sequence[bool]]  # seeds x people

_TITLE = "Why does reading help?"
_QUESTION = (
    "How many questions about people that it was never asked about does a model answer, by how often it read of them and in"
    " how many sentence forms?"
)
_PRESET = "reader"
# Exposures are multiples of the forms, so that every line of a person is read equally often.
_WORLD, _FORMS, _EXPOSURES = "people:300", (1, 2, 4, 8), (8, 24, 48)
_SEEDS = 3
_QUICK_WORLD, _QUICK_FORMS, _QUICK_EXPOSURES, _QUICK_SEEDS = "people:200", (1, 8), (48,), 1
READ_LINES = {"task": {"name": "recall", "options": {"views": 0, "lines": 1.0, "questions": 0.0}}}
_CHOSEN = {"train": ("epochs",), "task": ("name", "options")}  # settings that the study itself chooses
_ALPHA = 0.05  # chance of any false claim among tests that are made together
MARGIN = 0.05  # shares of places known by heart and when asked that differ by less count as the same


# The plan


@dataclass(frozen=True)
class Cell:
    """How a model has read: nothing, whole lines or views; in how many forms; how often it met every person."""

    way: _Way
    forms: int = 1
    exposures: int = 0

    @property
    def name(self) -> str:
        """The name of its runs."""
        return self.way if self.way == "nothing" else f"{self.way}-x{self.forms}-{self.exposures}"

    @classmethod
    def named(cls, name: str) -> Cell:
        """The cell with this name."""
        match = re.fullmatch(r"(lines|views)-x(\d+)-(\d+)", name)
        assert match or name == "nothing", "the study names its runs itself"
        return cls(match[1], int(match[2]), int(match[3])) if match else cls("nothing")  # type: ignore[arg-type]

    def variant(self, world: str, base: Variant) -> Variant:
        """The cell as settings, text and stages: an epoch of F forms meets everybody F times."""
        if self.way == "nothing":
            return Variant(self.name, base.preset, base.file, base.given, world, steps=("scratch",))
        reading = READ_LINES if self.way == "lines" else {}
        given = merge(base.given, merge(reading, {"train": {"epochs": self.exposures / self.forms}}))
        corpus = f"{world}:x{self.forms}" if self.forms > 1 else world
        return Variant(self.name, base.preset, base.file, given, corpus, steps=("pretrain", "finetune"))

    def __str__(self) -> str:
        """How a model has read, in words."""
        if self.way == "nothing":
            return "that read nothing"
        how = "one form" if self.forms == 1 else f"{self.forms} forms"
        way = "in short views of" if self.way == "views" else "in"
        return f"that met everybody {plural(self.exposures, 'time')} {way} {how}"


def grid(forms: Sequence[int], exposures: Sequence[int]) -> tuple[Cell, ...]:
    """All cells: nothing read, then lines and views, from few exposures to many."""
    cells = [Cell("nothing")]
    for times in exposures:
        cells += [Cell("lines", number, times) for number in forms]
        cells.append(Cell("views", 1, times))
    return tuple(cells)


def _distinct_numbers(name: str, numbers: Sequence[int]) -> tuple[int, ...]:
    if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise UserError(f"--{name} takes different numbers of at least 1, such as 1,2,4, not {numbers}")
    return tuple(sorted(numbers))


def _checked_world(world: str, forms: int) -> str:
    """The people that the study is about: built in, since only they can be described in several forms."""
    if not re.fullmatch("people(:[0-9]+)?", world):
        raise UserError(
            f"study why describes the built-in people in several forms: --corpus people, or people:300 for fewer, not {world}"
        )
    corpora.is_built_in(f"{world}:x{forms}")  # refuses too many forms
    return world


def _refuse_chosen(given: Settings) -> None:
    """Refuse settings that the study itself chooses."""
    if "seed" in given:
        raise UserError("study why needs several seeds: --seeds 3, or --seeds 7,8,9")
    for table, names in _CHOSEN.items():
        if found := [name for name in names if name in given.get(table, {})]:
            raise UserError(
                f"study why chooses {table}.{found[0]} itself, from exposures and forms: leave it out, or set --exposures"
            )


def cells_of(plan: Grid[Any]) -> tuple[Cell, ...]:
    """The cells of a plan, in order."""
    return tuple(Cell.named(one.name) for one in plan.variants)


def check(plan: Grid[Any]) -> None:
    """Find errors before training; cells with the same text differ in epochs only, so one of them is checked."""
    assert plan.exam is not None
    exam, cells = [item.question for item in plan.data.questions(plan.exam)], cells_of(plan)
    most = max(cell.exposures for cell in cells)
    for variant, cell in zip(plan.variants, cells, strict=True):
        if cell.exposures != most and cell.way != "nothing":
            continue
        settings = variant.settings(plan.seeds[0])
        sources = plan.data.sources(variant.corpus, plan.facts)
        tokenizer = stages.learn_tokenizer(settings, sources)
        for stage in variant.steps:
            stages.check_settings(variant.settings(plan.seeds[0], stage), sources, tokenizer)
        encode_questions(tokenizer, exam, settings.model.block_size)
    try_once(plan.variants[0], plan.seeds[0])


# From finished runs to a result


@dataclass(frozen=True)
class Share:
    """A share of right answers with its 95 % interval, and that of each seed."""

    accuracy: float
    low: float
    high: float
    each: list[float]

    def __str__(self) -> str:
        """The share in words."""
        return f"{percent(self.accuracy)} ({interval(self.low, self.high)})"


@dataclass(frozen=True)
class Reading:
    """What was read: tokens, final loss, and the share of places known by heart."""

    tokens: int
    loss: float
    by_heart: Share | None


@dataclass(frozen=True)
class CellResult:
    """One cell over its seeds; the cell that read nothing has no reading."""

    name: str
    cell: Cell = flat()
    right: Share = flat()
    seconds: float = 0.0
    exam: Score | None = optional()  # of the first seed
    reading: Reading | None = flat(None)


@dataclass(frozen=True)
class Effect:
    """A tested difference of two shares; the interval is adjusted for the number of tests, as p is by Holm."""

    difference: float
    low: float | None
    high: float | None
    p: float | None
    test: str
    tests: int = 1
    level: float = 1 - _ALPHA  # of the interval
    adjusted: float | None = None
    shown: bool = False

    @property
    def sign(self) -> int:
        """1 or -1 if a difference is shown, by its direction; 0 if none is shown."""
        return int(self.shown) * (1 if self.difference > 0 else -1)

    def __str__(self) -> str:
        """The difference in words."""
        ends = span(self.low, self.high, "share", sign=True)
        between = f"{100 * self.level:.3g} % interval {ends}" if ends else "no interval, for lack of spread"
        if self.low is not None and self.high is not None and self.shown and self.low <= 0 <= self.high:
            between += ", which touches zero"
        p = "no test possible" if self.adjusted is None else stats.p_in_words(self.adjusted, _ALPHA)
        if self.adjusted is not None and self.tests > 1:
            p += f" after Holm over {self.tests} tests"
        return f"the difference is {signed(self.difference, 'share')} ({between}; {p})"


@dataclass(frozen=True)
class CellComparison:
    """The answer to one question of the study: a tested pair of cells."""

    asked: str
    a: str
    b: str
    effect: Effect = flat()


@dataclass(frozen=True)
class StoredComparison:
    """Places known by heart minus places known when asked, of the same people and seeds, in one cell."""

    name: str
    people: int
    seeds: int
    effect: Effect = flat()
    equivalence: stats.Equivalence | None = None


@dataclass(frozen=True)
class WorldSummary:
    """The data in numbers."""

    people: int
    training_questions: int
    exam: str
    exam_questions: int


@dataclass(frozen=True, kw_only=True)
class WhyResult(StudyResult):
    """The result of the study."""

    kind: str = "why"
    study: str = "why"
    question: str
    quick: bool
    seeds: tuple[int, ...]
    jobs: int
    world: WorldSummary
    majority: Score
    cells: list[CellResult]
    comparisons: list[CellComparison]
    stored: list[StoredComparison]
    notes: list[str]
    settings: dict[str, dict[str, Any]]
    verdict: list[str]
    explanation: list[str]


def judge(plan: Grid[Any], folder: Path) -> WhyResult:
    """Judge the finished runs of the study."""
    assert plan.corpus is not None
    assert plan.facts is not None
    assert plan.exam is not None
    records = read_records(plan, folder)
    _refuse_other_runs(plan, records)
    corpus, facts, exam = plan.data.corpus(plan.corpus), plan.data.questions(plan.facts), plan.data.questions(plan.exam)
    begun = beginnings(corpus, exam)
    hearts = {cell.name: _hearts(records[cell.name], begun) for cell in cells_of(plan) if cell.way != "nothing"}
    cells = {cell.name: _describe(cell, records[cell.name], hearts.get(cell.name)) for cell in cells_of(plan)}
    every = [record for rows in records.values() for record in rows]
    world = WorldSummary(len(corpus.lines), len(facts), plan.exam, len(exam))
    comparisons = compare_all(cells_of(plan), records)
    told = _explained(roles(cells_of(plan))) if begun else []
    stored = compare_stored({name: (hearts[name], _asked(records[name], begun)) for name in told})
    return WhyResult(
        title=_TITLE,
        question=_QUESTION,
        command=plan.command,
        seconds=round(sum(one.values["seconds"] + one.measured.measuring for one in every), 1),
        quick=plan.quick,
        seeds=plan.seeds,
        jobs=plan.at_a_time,
        world=world,
        majority=majority(facts, exam).score(),
        cells=list(cells.values()),
        comparisons=comparisons,
        stored=stored,
        notes=notes_on(records),
        settings=_settings(plan, records),
        verdict=verdict(cells, comparisons, world, len(plan.seeds)),
        explanation=explain(cells, comparisons, stored, world),
    )


def _refuse_other_runs(plan: Grid[Any], records: Records) -> None:
    """Refuse runs whose settings are not those of their cell and seed, since they were moved or changed."""
    for name, rows in records.items():
        variant = plan.find(name)
        for record in rows:
            for run in lineage(record.run):
                wanted = variant.settings(record.seed, cast(Stage, run.record.stage))
                # The vocabulary may follow from the text.
                if found := sorted(set(diff(stages.stored_config(run), wanted)) - {"model.vocab_size"}):
                    raise UserError(
                        f"{run.path} is not the run of {name} with seed {record.seed}: it differs in {', '.join(found)};"
                        " remove it and resume"
                    )


def _hearts(rows: Sequence[Record], begun: Mapping[int, tuple[str, str]]) -> _Table:
    """What the models of a cell know by heart before they are fine-tuned: seeds x people."""
    return [by_heart(*load_model(lineage(row.run)[-1].model), list(begun.values())) if begun else [] for row in rows]


def _asked(rows: Sequence[Record], begun: Mapping[int, tuple[str, str]]) -> _Table:
    """What they know when asked, of the same people."""
    return [[right for at, right in enumerate(row.answers()) if at in begun] for row in rows]


def _describe(cell: Cell, rows: Sequence[Record], hearts: _Table | None) -> CellResult:
    reading = None
    if hearts is not None:
        read = [lineage(record.run)[-1] for record in rows]
        reading = Reading(
            tokens=round(statistics.fmean(run.result.tokens for run in read)),
            loss=statistics.fmean(run.result.final_loss or math.nan for run in read),
            by_heart=share(hearts) if hearts[0] else None,
        )
    return CellResult(
        cell.name,
        cell,
        share([record.answers() for record in rows]),
        seconds=statistics.fmean(whole_result(record.run).seconds for record in rows),
        exam=rows[0].measured.answers,
        reading=reading,
    )


def share(right: Sequence[Sequence[bool]]) -> Share:
    """The share of right answers in seeds x questions, with its interval for new seeds and questions.

    With one seed, or without any variation, it is Wilson's interval over the questions.
    """
    each = [sum(row) / len(row) for row in right]
    found = stats.crossed(right)
    low, high = found.low, found.high
    if len(right) == 1 or low is None or high is None:
        low, high = stats.proportion_interval(round(found.mean * found.items), found.items)
    return Share(found.mean, max(0.0, low), min(1.0, high), each)


def beginnings(corpus: Corpus, exam: Sequence[Question]) -> dict[int, tuple[str, str]]:
    """For every question of the exam whose line names the answer: the line up to the answer, and the answer."""
    found = {}
    for at, item in enumerate(exam):
        for number in corpora.documents_about(corpus, item.question)[:1]:
            line, title = corpus.lines[number], corpus.titles[number]
            place = line.find(item.answer or "", len(title))
            if item.answer and place > 0:
                found[at] = (line[:place].rstrip(), item.answer)
    return found


@torch.inference_mode()
def by_heart(model: LanguageModel, tokenizer: Tokenizer, begun: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether a model that is given a line up to the answer would continue with it, token by token.

    The answer is read along, which is equivalent: if an earlier token was not the most likely, it is wrong already.
    """
    rows = [(tokenizer.encode(beginning), tokenizer.encode(answer)) for beginning, answer in begun]
    ids = torch.full((len(rows), max(len(given) + len(wanted) for given, wanted in rows)), tokenizer.pad)
    for place, (given, wanted) in enumerate(rows):
        ids[place, : len(given) + len(wanted)] = torch.tensor(given + wanted)
    ids = ids[:, : model.config.block_size]
    with eval_mode(model):
        guessed = model.head(model.hidden(ids.to(model.device))).argmax(dim=-1).tolist()
    return [
        guess[len(given) - 1 : len(given) + len(wanted) - 1] == wanted
        for guess, (given, wanted) in zip(guessed, rows, strict=True)
    ]


PAIRS = {
    "reading": ("most", "nothing"),
    "forms": ("most", "one"),
    "views": ("views", "one"),
    "exposures": ("most", "least"),
    "wordings": ("most", "views"),
}


def roles(cells: Sequence[Cell]) -> dict[str, str]:
    """The cells that sentences are about: most forms and exposures, one form, views, few exposures, nothing read."""
    forms, times = max(one.forms for one in cells), max(one.exposures for one in cells)
    least = min(one.exposures for one in cells if one.way != "nothing")
    return {
        "most": Cell("lines", forms, times).name,
        "one": Cell("lines", 1, times).name,
        "views": Cell("views", 1, times).name,
        "least": Cell("lines", forms, least).name,
        "nothing": Cell("nothing").name,
    }


def _explained(names: Mapping[str, str]) -> list[str]:
    """The cells of which it is told what they have stored: one form, and most forms if there are several."""
    return list(dict.fromkeys((names["one"], names["most"])))


def compare_all(cells: Sequence[Cell], records: Records) -> list[CellComparison]:
    """Test the questions of the study, each as a pair of cells, with Holm's correction over all of them."""
    names = roles(cells)
    pairs = {asked: (names[a], names[b]) for asked, (a, b) in PAIRS.items() if names[a] != names[b]}
    if names["most"] == names["one"]:
        del pairs["wordings"]  # there are no other wordings: it is the question of views
    how = Testing(alpha=_ALPHA / len(pairs))
    tested = [compare_answers(records[a], records[b], how) for a, b in pairs.values()]
    effects = _together([Effect(one.value or 0.0, one.low, one.high, one.p, f"for {one.scope}") for one in tested])
    return [CellComparison(asked, *pair, one) for (asked, pair), one in zip(pairs.items(), effects, strict=True)]


def compare_stored(tables: Mapping[str, tuple[_Table, _Table]]) -> list[StoredComparison]:
    """Test cells for a difference between what is known by heart and when asked, and for equivalence within MARGIN.

    Tables are seeds x people. The two claims about a cell share its alpha: where one is false, the other is true, or is made
    even less often.
    """
    tested = [_test_stored(*both, _ALPHA / len(tables)) for both in tables.values()]
    effects = _together([effect for effect, _ in tested])
    return [
        StoredComparison(name, len(hearts[0]), len(hearts), effect, same)
        for (name, (hearts, _)), effect, (_, same) in zip(tables.items(), effects, tested, strict=True)
    ]


def _test_stored(hearts: _Table, asked: _Table, alpha: float) -> tuple[Effect, stats.Equivalence | None]:
    """Both tests of one cell, on a table with two people more, who differ in opposite directions.

    Without them (Bonett and Price 2012) intervals are too narrow where few people differ, as in every test of equivalence.
    """
    rows = [[int(a) - int(b) for a, b in zip(*pair, strict=True)] for pair in zip(hearts, asked, strict=True)]
    found = stats.crossed([[1, -1, *row] for row in rows], alpha)
    test = "for new people, with this one seed" if len(rows) == 1 else "for new seeds and new people"
    difference = statistics.fmean(statistics.fmean(row) for row in rows)
    return Effect(difference, found.low, found.high, found.p, test), found.within(MARGIN, alpha)


def _together(effects: Sequence[Effect]) -> list[Effect]:
    """Effects whose intervals have been adjusted for their number, with p after Holm; one without p counts as a test."""
    number, adjusted = len(effects), stats.holm([1.0 if one.p is None else one.p for one in effects])
    return [
        replace(
            one,
            tests=number,
            level=1 - _ALPHA / number,
            adjusted=None if one.p is None else p,
            shown=one.p is not None and p < _ALPHA,
        )
        for one, p in zip(effects, adjusted, strict=True)
    ]


def _settings(plan: Grid[Any], records: Records) -> dict[str, dict[str, Any]]:
    """The settings of representative runs: cells differ in epochs, text and, for views, the task."""
    names = roles(cells_of(plan))
    return {
        f"{names[role]}, {run.record.stage}": settings_of(run)
        for role in ("most", "views", "nothing")
        for run in lineage(records[names[role]][0].run)
    }


# In words

_Cells = Mapping[str, CellResult]
_PAPER = "Allen-Zhu and Li (arXiv:2309.14316)"
# For every question: how the sentence begins if the answer is yes, unknown, no.
_OPENINGS = {
    "reading": ("Reading helps", "Whether reading helps is not shown", "Reading hurts here"),
    "forms": ("Several forms help", "Whether several forms help is not shown", "Several forms hurt here"),
    "views": ("Views help", "Whether views help is not shown", "Views hurt here"),
    "exposures": (
        "Reading more often helps",
        "Whether reading more often helps is not shown",
        "Reading more often hurts here",
    ),
}


def _sentence(comparison: CellComparison, cells: _Cells) -> str:
    """The answer to one question of the study."""
    yes, unknown, no = _OPENINGS[comparison.asked]
    opening = {1: yes, 0: unknown, -1: no}[comparison.effect.sign]
    a, b = cells[comparison.a], cells[comparison.b]
    words = f"{opening}: a model {a.cell} answers {a.right} of the questions correctly, one {b.cell} {b.right}"
    return f"{words}; {comparison.effect}."


def verdict(cells: _Cells, comparisons: Sequence[CellComparison], world: WorldSummary, seeds: int) -> list[str]:
    """The answers to the questions of the study; the last sentence says who was asked what."""
    intro = (
        f"{plural(world.exam_questions, 'question')} about people that the model had read about but was never asked"
        f" about; {plural(seeds, 'model')} of each kind; intervals and tests are for new"
        f" {'questions, with these models' if seeds == 1 else 'models and questions'}, intervals of shares at 95 %."
    )
    return [*(_sentence(one, cells) for one in comparisons if one.asked in _OPENINGS), intro]


def explain(
    cells: _Cells, comparisons: Sequence[CellComparison], stored: Sequence[StoredComparison], world: WorldSummary
) -> list[str]:
    """What the results mean, as paragraphs."""
    pairs = {one.asked: one for one in comparisons}
    limits = (
        f"One size of model, {count(world.people)} people and one kind of fact. An exposure is one line read"
        " whole, or one view; forms are drawn anew for every person, and each number of forms has a tokenizer learned from"
        " its own text. The settings of the preset were tried on questions about other people (the dev part) only."
    )
    return [*(_stored(cells[one.name], one) for one in stored), _why(pairs), *_for_your_corpus(cells, pairs), limits]


def _stored(one: CellResult, tested: StoredComparison) -> str:
    """What is known by heart, compared with what can be asked for."""
    heart, effect = one.reading.by_heart if one.reading else None, tested.effect
    assert heart is not None
    words = (
        f"A model {one.cell} knows {heart} of the places by heart: given the line of a person in the exam up to the"
        f" place, it continues with the place. Asked, it knows {one.right}."
    )
    same, proof = tested.equivalence, ""
    if same is not None and same.shown:
        proof = (
            f"the two shares differ by less than {signed(same.margin, 'share').lstrip('+')} (two one-sided tests:"
            f" {100 - 200 * same.alpha:.3g} % interval {span(same.low, same.high, 'share', sign=True)};"
            f" {stats.p_in_words(same.p, same.alpha)}, at level {same.alpha:.2g})"
        )
    if effect.sign:
        claim = (
            "So it has stored more than a question reaches" if effect.sign > 0 else "Asked, it knows more than by heart"
        )
        words += f" {claim}: {effect}." + (f" But {proof}." if proof else "")
    elif proof:
        # Two small shares are the same too, but then hardly anything is stored.
        words += f" What is stored can be asked for: {proof}." if heart.low > MARGIN else f" {capital(proof)}."
    else:
        words += f" Neither a difference nor equivalence within {100 * MARGIN:.0f} points is shown: {effect}."
    return f"{words} These tests hold for this one model." if tested.seeds == 1 else words


def _why(pairs: Mapping[str, CellComparison]) -> str:
    """Why forms should matter, and whether they do here."""
    reason = (
        "A model that reads learns to predict every word from those before it. If a person is described in one way only, the"
        " place of birth can be learned as the end of that one sentence, from all the words before it; a question"
        " has other words. In several forms the name is what all sentences have in common, and the place becomes tied to"
        " the name, which is what a question begins with."
    )
    if "forms" not in pairs:
        return reason
    theirs = (
        f"{_PAPER} found about 10 % with one form and about 96 % with several, on larger models and invented people"
    )
    effect = pairs["forms"].effect
    here = {
        1: "the direction is the same here",
        0: f"here no difference is shown: {effect}",
        -1: "here it is the other way round",
    }
    return f"{reason} {theirs}; {here[effect.sign]}."


def _for_your_corpus(cells: _Cells, pairs: Mapping[str, CellComparison]) -> list[str]:
    """What follows for a text that states every fact once."""
    pair = pairs["views"]
    views, lines = cells[pair.a], cells[pair.b]
    if pair.effect.sign != 1:
        return []
    assert views.reading is not None
    assert lines.reading is not None
    tokens, others = views.reading.tokens, lines.reading.tokens
    words = (
        "Most texts state a fact once. Views avoid this: given the title of a document, alone or with some of its text,"
        " the model must produce one of its names or places. Training questions are among the views from the start. They"
        f" took {percent(tokens / others)} of the tokens that whole lines took ({count(tokens)} against {count(others)})."
    )
    if "wordings" in pairs:
        other = pairs["wordings"]
        opening = {
            1: "Other wordings help still more, if you have them",
            0: "Whether other wordings help still more is not shown",
            -1: f"They do more than whole lines in {cells[other.a].cell.forms} forms",
        }[other.effect.sign]
        words += f" {opening}: {other.effect}."
    return [words]


@study("why")
class Why(Grid[WhyResult]):
    """Test why reading helps: accuracy by number of exposures and sentence forms."""

    seeds: Annotated[opt.SeedNumbers, opt.default("3; with --quick 1")] = ()
    corpus: Annotated[opt.Corpus | None, opt.about("Built-in people, such as people:300.")] = None
    facts: opt.Hidden[str | None] = None
    exam: opt.Hidden[str | None] = None
    forms: Annotated[opt.Numbers, opt.about("Numbers of sentence forms per person."), opt.default("1,2,4,8")] = ()
    exposures: Annotated[
        opt.Numbers, opt.about("Numbers of times that each person is read."), opt.default("8,24,48")
    ] = ()

    def completed(self) -> Self:
        """Resolve the grid to variants, and fill in the usual people, forms, exposures and seeds."""
        if self.variants:
            return self
        quick, asked = self.quick, (self.corpus, self.forms, self.exposures)
        if quick and any(asked):
            raise UserError(
                "--quick chooses its own people, forms and exposures: leave --corpus, --forms and --exposures out"
            )
        forms = _distinct_numbers("forms", self.forms or (_QUICK_FORMS if quick else _FORMS))
        exposures = _distinct_numbers("exposures", self.exposures or (_QUICK_EXPOSURES if quick else _EXPOSURES))
        world = _checked_world(self.corpus or (_QUICK_WORLD if quick else _WORLD), max(forms))
        if 1 not in forms:
            raise UserError("--forms must hold 1, with which several forms are compared, such as --forms 1,4")
        _refuse_chosen(self.given)
        file = str(self.config.resolve()) if self.config else None
        base = Variant("", self.preset or _PRESET, file, absolute_given(self.given)).with_default("train", "threads", 1)
        variants = tuple(cell.variant(world, base) for cell in grid(forms, exposures))
        seeds = self.seeds or seed_numbers(_QUICK_SEEDS if quick else _SEEDS)
        threads = variants[0].settings(0).train.threads or 1
        workers = read_workers(self.workers, threads, len(variants) * len(seeds))
        return replace(
            self,
            variants=variants,
            seeds=seeds,
            workers=str(workers),
            config=None,
            given={},
            corpus=world,
            facts=f"{world}:train",
            exam=f"{world}:test",
        )

    def check(self) -> None:
        """Find errors before training."""
        check(self)

    def train(self, folder: Path, console: Console) -> None:
        """Train and measure every run."""
        train_all(self, folder, console)

    def judge(self, folder: Path, console: Console) -> WhyResult:
        """Judge the finished runs."""
        return judge(self, folder)

    def document(self, result: WhyResult) -> Document:
        """Return the report."""
        return document(strict(plain(result)))
