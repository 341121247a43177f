"""Why does reading help? How much of what a model has read it can be asked for, by how often and in how many forms it read it.

A model reads about everybody, is fine-tuned on questions about some people, and is examined on questions about the others:
what it answers there it can know from reading only. Every person is described in one sentence form or in several, and
whatever the number of forms, models with equal exposures have seen each person equally often. They are compared with a
model that has read nothing, and with models that read one form in short views with questions among them (the task `recall`).

Every cell of the grid is a variant with several seeds, trained and measured like those of a comparison.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, Self

import torch
from rich.console import Console
from torch.nn.utils.rnn import pad_sequence

from attnlab import corpora, stats
from attnlab.config import Settings, absolute_given, flatten, merge
from attnlab.corpora import Corpus, Question
from attnlab.errors import UserError
from attnlab.inside.taps import eval_mode
from attnlab.lm.exams import Scored
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.report import parts
from attnlab.report.document import Axis, Cell, Column, Document, Facts, Notice, Table, Text, section
from attnlab.report.words import NOTHING, capital, count, plural
from attnlab.store.runs import lineage
from attnlab.studies import options as opt
from attnlab.studies.compare.plan import Grid
from attnlab.studies.compare.runs import Record, notes_on, read_records, refuse_failed, try_all, whole_result
from attnlab.studies.compare.variants import Variant
from attnlab.studies.study import study
from attnlab.studies.training import Share, accuracy_curves, share_of
from attnlab.studies.workers import read_workers

READ_LINES = {"task": {"name": "recall", "options": {"views": 0, "lines": 1.0, "questions": 0.0}}}
MARGIN = 0.05  # shares of places known by heart and when asked that differ by less count as the same
_REASON = (
    "A model that reads learns to predict every word from those before it. If a person is described in one way only, the"
    " place of birth can be learned as the end of that one sentence, from all the words before it; a question has other"
    " words. In several forms the name is what all sentences have in common, and the place becomes tied to the name, which"
    " is what a question begins with. Allen-Zhu and Li (arXiv:2309.14316) found about 10 % with one form and about 96 % with"
    " several, on larger models and invented people."
)
_LIMITS = (
    "“8 forms 48 times” is the model that saw each person 48 times, described in 8 sentence forms. An exposure is one line"
    " read whole, or one view: given the name, alone or with some of the line, the model must produce one of its names or"
    " places, with training questions among the views. Each number of forms has a tokenizer learned from its own text. One"
    " size of model and one kind of fact; the settings were tried on questions about other people (the dev part) only."
)


@dataclass(frozen=True)
class Reading:
    """How a model has read: nothing, whole lines or views; in how many forms; how often it saw each person."""

    way: Literal["nothing", "lines", "views"]
    forms: int = 1
    exposures: int = 0

    @property
    def curve(self) -> str:
        """The way and the forms in words."""
        forms = plural(self.forms, "form")
        return {"nothing": "nothing read", "lines": forms, "views": f"{forms} in views"}[self.way]

    @property
    def name(self) -> str:
        """The name of the cell."""
        return f"{self.curve} {plural(self.exposures, 'time')}" if self.exposures else self.curve

    def variant(self, people: str, base: Variant) -> Variant:
        """Return the cell as settings, text and stages: an epoch of F forms shows each person F times."""
        if self.way == "nothing":
            return replace(base, name=self.name, corpus=people, steps=("scratch",))
        epochs = {"train": {"epochs": self.exposures / self.forms}}
        settings = merge(base.given, merge(READ_LINES if self.way == "lines" else {}, epochs))
        corpus = f"{people}:x{self.forms}" if self.forms > 1 else people
        return replace(base, name=self.name, given=settings, corpus=corpus, steps=("pretrain", "finetune"))


@dataclass(frozen=True, kw_only=True)
class Row(Scored):
    """A cell over its seeds; the most common answers are those of the first seed."""

    reading: Reading
    right: Share
    by_heart: Share | None  # before fine-tuning; None if nothing was read
    tokens: float | None


@dataclass(frozen=True, kw_only=True)
class WhyResult(parts.StudyResult):
    """The result of the study."""

    people: int
    training_questions: int
    rows: list[Row]
    findings: dict[str, stats.Contrast]  # by question
    settings: dict[str, Settings]
    verdict: list[str]


@study("why")
class Why(Grid[WhyResult]):
    """Test why reading helps: accuracy by number of exposures and sentence forms."""

    seeds: Annotated[opt.SeedNumbers, opt.default("3; with --quick 1")] = ()
    corpus: Annotated[opt.Corpus | None, opt.about("Built-in people, such as people:300.")] = None
    facts: opt.Hidden[str | None] = None
    exam: opt.Hidden[str | None] = None
    preset: Annotated[opt.Preset | None, opt.default("reader")] = None
    forms: Annotated[opt.Numbers, opt.about("Numbers of sentence forms per person."), opt.default("1,2,4,8")] = ()
    exposures: Annotated[
        opt.Numbers, opt.about("Numbers of times that each person is read."), opt.default("8,24,48")
    ] = ()

    @property
    def grid(self) -> list[Reading]:
        """All cells: nothing read, then lines and views, from few exposures to many."""
        grid = [Reading("nothing")]
        for times in sorted(self.exposures):
            grid += [*(Reading("lines", number, times) for number in sorted(self.forms)), Reading("views", 1, times)]
        return grid

    def completed(self) -> Self:
        """Fill in the usual people, forms, exposures and seeds, and resolve the grid to variants."""
        if self.quick and (self.corpus or self.forms or self.exposures):
            raise UserError("--quick chooses its own --corpus, --forms and --exposures: leave them out")
        people = self.corpus or ("people:200" if self.quick else "people:300")
        plan = replace(
            self,
            corpus=people,
            facts=f"{people}:train",
            exam=f"{people}:test",
            # Exposures are multiples of the forms, so that each line is read equally often.
            forms=self.forms or ((1, 8) if self.quick else (1, 2, 4, 8)),
            exposures=self.exposures or ((48,) if self.quick else (8, 24, 48)),
            seeds=self.seeds or ((0,) if self.quick else (0, 1, 2)),
        )
        plan._refuse_mistakes(people)
        file, preset = str(self.config.resolve()) if self.config else None, self.preset or "reader"
        base = Variant("", preset, file, absolute_given(self.given)).with_default("train", "threads", 1)
        variants = tuple(reading.variant(people, base) for reading in plan.grid)
        threads = variants[0].settings(0).train.threads or 1
        workers = read_workers(self.workers, threads, len(variants) * len(plan.seeds))
        return replace(plan, variants=variants, workers=str(workers), given={}, config=None)

    def _refuse_mistakes(self, people: str) -> None:
        """Refuse a grid that cannot be made, and settings that the study itself chooses."""
        opt.require_distinct("forms", self.forms)
        opt.require_distinct("exposures", self.exposures)
        if 1 not in self.forms:
            raise UserError("--forms must hold 1, with which several forms are compared, such as --forms 1,4")
        if not re.fullmatch("people(:[0-9]+)?", people):
            raise UserError(f"--corpus must be built-in people, such as people:300, not {people}: others have one form")
        corpora.is_built_in(f"{people}:x{max(self.forms)}")  # refuses too many forms
        own = re.compile(r"(seed|train\.epochs|task\.(name|options))\b")
        for setting in filter(None, (own.match(name) for name, _ in flatten(self.given))):
            raise UserError(
                f"`run why` sets {setting[0]} itself: leave it out, and use --seeds, --forms or --exposures"
            )

    def train(self, folder: Path, console: Console) -> None:
        """Train and measure every run."""
        refuse_failed(try_all(self, folder, console), self, folder)

    def judge(self, folder: Path, console: Console) -> WhyResult:
        """Measure what is known by heart, and test the questions of the study."""
        self.refuse_other_runs(folder)
        records, grid = read_records(self, folder), self.grid
        corpus = self.data.corpus(self.corpus or "")
        begun = beginnings(corpus, self.questions)
        hearts = {}
        for name in (reading.name for reading in grid[1:]):
            models = [load_model(lineage(record.run)[-1].model) for record in records[name]]
            hearts[name] = [by_heart(*model, list(begun.values())) for model in models]
        right = {name: [record.answers() for record in rows] for name, rows in records.items()}
        findings = compare_cells(grid, right, hearts, list(begun))
        runs = [record.run for rows in records.values() for record in rows]
        return WhyResult(
            title="Why does reading help?",
            seconds=round(sum(whole_result(run).seconds for run in runs), 1),
            people=len(corpus.lines),
            training_questions=len(self.data.questions(self.facts or "")),
            rows=[describe(reading, records[reading.name], hearts.get(reading.name)) for reading in grid],
            findings=findings,
            settings={
                f"{reading.name}, {run.record.stage}": run.record.settings
                for reading in (grid[0], *grid[-2:])
                for run in lineage(records[reading.name][0].run)
            },
            verdict=[
                *(f"{question} {capital(test.words)}." for question, test in findings.items()),
                *notes_on(records),
            ],
        )

    def document(self, result: WhyResult) -> Document:
        """Return the whole report."""
        quick = Notice("A quick run.", "Few people and forms, one seed: the same study with wide intervals.")
        facts = [
            ("People read about", count(result.people)),
            ("Training questions", count(result.training_questions)),
            ("Exam", f"{self.exam}, {plural(result.rows[0].questions, 'question')} about other people"),
            ("Seeds", ", ".join(map(str, self.seeds))),
        ]
        axis = Axis("times that each person was seen", low=0.0)
        first, *others = result.rows
        points = [(row.reading.curve, row.reading.exposures, row.right) for row in others]
        chart = accuracy_curves("Right answers against exposures", axis, first.right, points)
        sections = [
            *section("Results", chart, _results_table(result.rows)),
            *section("What it means", Text([_REASON, _LIMITS])),
            *section("Answers", parts.commonest_table(result.rows, "the first seed of each")),
            parts.reproduce(result, Facts("Data", facts), result.settings),
        ]
        notices = [quick] if self.quick else []
        return parts.report_of(self.name, result, result.verdict, sections, notices, "all runs together took")


# Measuring


def beginnings(corpus: Corpus, exam: Sequence[Question]) -> dict[int, tuple[str, str]]:
    """For every question of the exam whose line names the answer: the line up to the answer, and the answer."""
    begun = {}
    for number, item in enumerate(exam):
        for document in corpora.documents_about(corpus, item.question)[:1]:
            line, title = corpus.lines[document], corpus.titles[document]
            place = line.find(item.answer or "", len(title))
            if item.answer and place > 0:
                begun[number] = (line[:place].rstrip(), item.answer)
    return begun


@torch.inference_mode()
def by_heart(model: LanguageModel, tokenizer: Tokenizer, begun: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether a model that is given a line up to the answer would continue with it, token by token.

    The answer is read along, which is equivalent: if an earlier token was not the most likely, it is wrong already.
    """
    rows = [(tokenizer.encode(beginning), tokenizer.encode(answer)) for beginning, answer in begun]
    texts = [torch.tensor([*beginning, *wanted]) for beginning, wanted in rows]
    ids = pad_sequence(texts, batch_first=True, padding_value=tokenizer.pad)[:, : model.config.block_size]
    with eval_mode(model):
        guessed = model.head(model.hidden(ids.to(model.device))).argmax(dim=-1).tolist()
    return [
        guess[len(beginning) - 1 : len(beginning) + len(wanted) - 1] == wanted
        for guess, (beginning, wanted) in zip(guessed, rows, strict=True)
    ]


def describe(reading: Reading, rows: Sequence[Record], hearts: stats.Answers | None) -> Row:
    """Describe a cell over its seeds."""
    right, score = share_of(*(record.answers() for record in rows)), rows[0].measured.answers
    figures = {"correct": None, "accuracy": right.accuracy, "low": right.low, "high": right.high}
    return Row(
        **{**vars(score), **figures},
        name=reading.name,
        kind="model" if hearts else "baseline",
        seconds=fmean(whole_result(record.run).seconds for record in rows),
        reading=reading,
        right=right,
        by_heart=share_of(*hearts) if hearts else None,
        tokens=fmean(lineage(record.run)[-1].result.tokens for record in rows) if hearts else None,
    )


def compare_cells(
    grid: Sequence[Reading],
    right: Mapping[str, stats.Answers],
    hearts: Mapping[str, stats.Answers],
    begun: Sequence[int],
) -> dict[str, stats.Contrast]:
    """Test the pairs of cells, and by heart against asked of the same people, with Holm's correction over all tests."""
    forms, times = max(reading.forms for reading in grid), sorted({reading.exposures for reading in grid[1:]})
    nothing, views = grid[0].name, Reading("views", 1, times[-1]).name
    least, single, most = (
        Reading("lines", *cell).name for cell in ((forms, times[0]), (1, times[-1]), (forms, times[-1]))
    )
    questions = (
        ("Does reading help?", most, nothing),
        ("Do several forms help?", most, single),
        ("Do views help?", views, single),
        ("Does reading more often help?", most, least),
        ("Do several forms help more than views?", most, views),
    )
    pairs: dict[frozenset[str], tuple[str, stats.Sides]] = {}
    for question, a, b in questions:
        if a != b:  # with a single form, two of the questions are the same
            pairs.setdefault(frozenset((a, b)), (question, (a, b, right[a], right[b], None)))
    for name in (single, most):
        asked = [[row[number] for number in begun] for row in right[name]]
        question = f"Can what “{name}” knows by heart be asked for?"
        pairs[frozenset((name,))] = (question, ("by heart", "asked", hearts[name], asked, MARGIN))
    tests = stats.contrasts([sides for _, sides in pairs.values()])
    return {question: test for (question, _), test in zip(pairs.values(), tests, strict=True)}


def _results_table(rows: Sequence[Row]) -> Table:
    heart = Column("By heart", note="before fine-tuning, continues the line of a person with the place of birth")
    time = Column("Time", note="training a model, fine-tuning included, beside the other runs")
    return parts.table_of(
        "Results",
        "Means over seeds, with 95 % intervals below. Nothing read: the same model trained on the questions alone.",
        rows,
        [
            ("Model", lambda row: Cell(row.name)),
            (Column("Right answers", largest_first=True), lambda row: row.right.cell()),
            (heart, lambda row: row.by_heart.cell() if row.by_heart else Cell(NOTHING)),
            ("Tokens read", lambda row: parts.cell(row.tokens, "count")),
            (time, lambda row: parts.cell(row.seconds, "seconds")),
        ],
        tone=parts.tone_of,
        brief=True,
    )
