"""Does a model know what it does not know? It is asked about people whose lines it never read, too.

Since training takes minutes, it can be repeated without the lines of 200 people. The model is trained on the rest and
calibrated on held-out questions. Its confidence is then measured on known names, on withheld ones, and on invented ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from rich.console import Console

from attnlab import registry, stats
from attnlab.config import RunConfig, Stage
from attnlab.corpora import Corpus, Question, as_table
from attnlab.corpora.library import headings_in, normal
from attnlab.errors import DataError, UserError
from attnlab.report import parts
from attnlab.report.document import Axis, Cell, Chart, Column, Document, Row, Section, Series, Table, Text, section
from attnlab.report.words import NOTHING, capital, count, percent, plural
from attnlab.store.folders import verify
from attnlab.store.runs import Run
from attnlab.studies import options as opt
from attnlab.studies.study import study
from attnlab.studies.training import Share, Training, TrainingResult, auroc_cell, calibration_facts, read_run, share_of
from attnlab.tasks.recall import Strangers
from attnlab.trust import VERDICTS, CalibrationSummary, Oracle, calibrate

_GROUPS = {
    "known": "their lines were read, and they were never asked about",
    "withheld": "real names whose lines were not read",
    "invented": "a given name and a surname of the corpus that nobody has together",
}
_STAGES: tuple[Stage, ...] = ("pretrain", "finetune")
_STRANGERS = 0.3  # invented names per document in an epoch of training
_FEWEST = 60  # minimum number of names with questions
_SHARE = 6  # at most one in so many names is withheld
_HELD_OUT = 0.2  # share of the names set aside for calibration, and for the exam, if there are no other questions
_ATTEMPTS = 50  # draws per invented name
_SHOWN = 4  # examples in the report
_LIMITS = (
    "The guarantee comes from the calibration questions alone, with 95 % confidence over all draws of them, not only those"
    " that certify a threshold. It holds for questions drawn like them: about names that were read, in the same forms and of"
    " the same kinds, answered by this model. It is a statement about all answers together, not about a single one.",
    "It does not cover names that were never seen. Those stay unanswered because the model is less sure of them, which is"
    " measured here but not guaranteed, and because the lookup finds no line about them.",
    "An answer counts as right when it matches exactly. A line that contains the answer supports it, whatever the line says.",
)


@dataclass(frozen=True)
class Asked:
    """A question with the model's answer and confidence, and the verdict after looking up the name."""

    question: str
    answer: str | None  # the right one; None for an invented name
    prediction: str
    confidence: float
    answered: bool  # by the confidence alone
    verdict: str
    abstains: bool

    @property
    def right(self) -> bool:
        """Whether the answer is correct."""
        return self.prediction == (self.answer or "").strip()


@dataclass(frozen=True)
class Group:
    """How the questions about known, withheld or invented names are answered."""

    name: str
    answers: list[Asked]
    right: Share  # if every question is answered
    answered: Share  # by the confidence alone
    wrong: Share  # of those answered
    answered_after_lookup: Share
    auroc: stats.Auroc | None  # of the confidence, known names against these


@dataclass(frozen=True, kw_only=True)
class TrustResult(TrainingResult):
    """The result of the study."""

    sizes: dict[str, int]
    groups: list[Group]  # known names first
    fallback: list[Section]  # what it answers for withheld names
    calibration: CalibrationSummary  # its first rule is for the risk that was asked for


@study("trust")
class Trust(Training[TrustResult]):
    """Test whether a model knows what it does not know.

    Some documents are withheld from it, and it is asked about invented names. Without --exam, two
    fifths of the questions in --facts are set aside to calibrate and to test.
    """

    preset: Annotated[opt.Preset, opt.default("recall")] = ""
    max_risk: opt.MaxRisk = 0.1
    calibration: opt.Hidden[str] = ""  # questions for it; none: a part of the facts
    spare: opt.Hidden[str] = ""  # questions that are not asked, about names that may be withheld
    withheld: opt.Hidden[int] = 200

    sources = (*Training.sources, "calibration", "spare")

    def completed(self) -> Self:
        """Fill in the built-in people where no files are named."""
        if bool(self.corpus) != bool(self.facts) or (self.exam and not self.corpus):
            raise UserError("--corpus and --facts go together: give both, or none for the built-in people")
        plan = replace(self, preset=self.preset or ("quick" if self.quick else "recall"))
        if self.corpus:
            return plan
        people, withheld = ("people:600", 60) if self.quick else ("people", self.withheld)
        facts, exam, calibration, spare = (f"{people}:{part}" for part in ("train", "test", "calibration", "dev"))
        return replace(
            plan, corpus=people, facts=facts, exam=exam, calibration=calibration, spare=spare, withheld=withheld
        )

    def settings(self, stage: Stage) -> RunConfig:
        """Return the settings of a stage; a task that can gets invented names among its examples, unless the user set them."""
        settings = super().settings(stage)
        options = settings.task.options
        if "strangers" in options or "strangers" not in registry.find("task", settings.task.name).options:
            return settings
        return replace(settings, task=replace(settings.task, options={**options, "strangers": _STRANGERS}))

    @cached_property
    def world(self) -> World:
        """Who is known, withheld and invented."""
        facts, known, calibration, spare = (
            self.data.answered(name) if name else () for name in (self.facts, self.exam, self.calibration, self.spare)
        )
        corpus, seed = self.data.corpus(self.corpus), self.settings("pretrain").seed
        return make_world(corpus, facts, self.withheld, seed, calibration=calibration, known=known, spare=spare)

    def check(self) -> None:
        """Find errors before training: settings, data, questions that are too long or have no answers."""
        stats.checks.check_level(self.max_risk, "--max-risk")
        world = self.world
        if not world.known or not world.calibration:
            raise DataError("no questions are left for calibration or for the exam: give more")
        sources = self.data.in_memory(Corpus(self.corpus, world.lines), world.facts)
        asked = (*world.calibration, *world.known, *world.withheld, *world.invented)
        self.check_stages(_STAGES, sources, asked)

    def files(self) -> dict[str, bytes]:
        """Return the data as files in the user's formats."""
        texts = {f"{name}.tsv": as_table(part) for name, part in vars(self.world).items() if name != "lines"}
        texts["corpus.txt"] = self.world.lines
        return {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in texts.items()}

    def train(self, folder: Path, console: Console) -> None:
        """Start or resume the model that has not read the withheld lines."""
        verify(folder)
        console.print(", ".join(f"{count(size)} {name}" for name, size in self.world.sizes().items()))
        sources = str(folder / "corpus.txt"), str(folder / "facts.tsv")
        run: Run | None = None
        for stage in _STAGES:
            run = self.train_stage(folder / stage, self.settings(stage), stage, sources, console, run)

    def judge(self, folder: Path, console: Console) -> TrustResult:
        """Calibrate the trained model, and ask all groups."""
        pretrained, run = (Run.open(folder / stage) for stage in _STAGES)
        risks = dict.fromkeys((self.max_risk, 0.05, 0.1, 0.2))
        calibration = calibrate(run, self.world.calibration).summary(tuple(risks))
        oracle, rule = Oracle(run), calibration.rules[0]
        known, withheld, invented = (
            ask_all(oracle, part, rule) for part in (self.world.known, self.world.withheld, self.world.invented)
        )
        asked = zip(_GROUPS, (known, withheld, invented), strict=True)
        groups = [describe(name, answers, known) for name, answers in asked if answers]
        surest = sorted(known, key=lambda item: -item.confidence)
        example, risk = oracle.suggest([Question(item.question, item.answer) for item in surest])
        return TrustResult(
            title="Does it know what it does not know?",
            sizes=self.world.sizes(),
            groups=groups,
            fallback=fall_back(oracle, withheld, known),
            calibration=calibration,
            runs={"pretrain": read_run(pretrained), "finetune": read_run(run)},
            verdict=outcome(groups, rule),
            example=example,
            example_risk=risk,
        )

    def document(self, result: TrustResult) -> Document:
        """Return the whole report."""
        groups, rules = result.groups, result.calibration.rules
        sizes = [(capital(name), count(size)) for name, size in result.sizes.items()]
        sections = [
            *section("Results", _summary_table(groups, rules[0])),
            *section(
                "When it answers",
                _risk_chart(groups[0], rules[0]),
                Text([rule.words for rule in rules], "list"),
                calibration_facts(result.calibration),
            ),
            *section("Verdicts", _verdict_table(groups)),
            *result.fallback,
            *section("What the guarantee covers, and what it does not", Text(_LIMITS, "list")),
        ]
        return self.report(result, sections, [("Corpus", Path(self.corpus).name), *sizes])


# Who is known, withheld and invented

_Questions = tuple[Question, ...]


@dataclass(frozen=True)
class World:
    """The training data, and the questions by use."""

    lines: tuple[str, ...]
    facts: _Questions
    calibration: _Questions
    known: _Questions
    withheld: _Questions
    invented: _Questions

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all parts, by their names in reports."""
        names = ("documents", "training questions", "calibration questions", *(f"{name} names" for name in _GROUPS))
        return dict(zip(names, map(len, vars(self).values()), strict=True))


def make_world(
    corpus: Corpus,
    facts: _Questions,
    most: int,
    seed: int,
    calibration: _Questions = (),
    known: _Questions = (),
    spare: _Questions = (),
) -> World:
    """Withhold at most so many names and invent as many; questions that are not given are split off the facts."""
    rng = np.random.default_rng([seed, 6])
    place = {name: number for number, name in enumerate(corpus.shelf)}
    everything = (*facts, *calibration, *spare, *known)
    names = {item: headings_in(item.question, corpus.shelf, corpus.longest_title) for item in everything}

    def about(questions: _Questions, people: Collection[str]) -> _Questions:
        """The questions that name some of these people and nobody else."""
        return tuple(item for item in questions if names[item] and set(names[item]) <= set(people))

    def not_about(questions: _Questions, people: Collection[str]) -> _Questions:
        return tuple(item for item in questions if set(people).isdisjoint(names[item]))

    # In the order of the corpus, so that who is withheld does not depend on which of these questions calibrate.
    between = sorted((*calibration, *spare), key=lambda item: [place[name] for name in names[item]])
    named = [item for item in (*facts, *between, *known) if names[item]]
    people = list(dict.fromkeys(names[item][0] for item in named if len(names[item]) == 1))
    if len(people) < _FEWEST:
        raise DataError(
            f"{len(people):,} names of the corpus have questions with answers, and it takes {_FEWEST} to withhold some and"
            " examine others: give more --facts about names that are headings of lines"
        )
    gone = {people[number] for number in rng.permutation(len(people))[: min(most, len(people) // _SHARE)]}
    facts = not_about(facts, gone)
    asked = list(dict.fromkeys(names[item][0] for item in facts if names[item]))
    order, size = [asked[number] for number in rng.permutation(len(asked))], round(_HELD_OUT * len(asked))
    if not calibration:
        facts, calibration = not_about(facts, order[:size]), about(facts, order[:size])
    if not known:
        facts, known = not_about(facts, order[size : 2 * size]), about(facts, order[size : 2 * size])
    kept = corpus.shelf.keys() - gone
    calibration = about(calibration, kept.difference(*(names[item] for item in facts)))
    known = about(known, kept.difference(*(names[item] for item in (*facts, *calibration))))
    # A shorter name inside a withheld one would make it known after all.
    withheld = {
        names[item][0]: item
        for item in named
        if names[item][0] in gone and not headings_in(item.question, kept, corpus.longest_title)
    }
    titled = zip(corpus.lines, corpus.titles, strict=True)
    lines = tuple(line for line, title in titled if not title or normal(title) not in gone)
    forms = [(normal(item.question), names[item][0]) for item in known]
    invented = _invent(corpus, lines, forms, len(withheld), rng)
    return World(lines, facts, calibration, known, tuple(withheld.values()), invented)


def _invent(
    corpus: Corpus, lines: tuple[str, ...], forms: Sequence[tuple[str, str]], most: int, rng: np.random.Generator
) -> tuple[Question, ...]:
    """Ask about new combinations of the given names and surnames that were read; a form is a question and the name in it."""
    invented: dict[str, Question] = {}
    for name in Strangers(Corpus("", lines)).draw(_ATTEMPTS * most / max(1, len(lines)), rng) if forms else ():
        if len(invented) == most:
            break
        form, known = forms[int(rng.integers(len(forms)))]
        question = form.replace(known, name)
        strange = any(sign.isdigit() or sign == "(" for sign in name)
        if not strange and not headings_in(question, corpus.shelf, corpus.longest_title):
            invented[name] = Question(question, None)
    return tuple(invented.values())


# Measuring


def ask_all(oracle: Oracle, questions: Sequence[Question], rule: stats.SelectiveRule) -> list[Asked]:
    """Ask a calibrated model the questions of a group."""
    answers = []
    best = oracle.distribution([item.question for item in questions]).best() if questions else []
    for item, (prediction, confidence) in zip(questions, best, strict=True):
        judged = oracle.judge(item.question, prediction, confidence, rule.max_risk, None)
        answered = rule.threshold is not None and confidence >= rule.threshold
        outcome = prediction, confidence, answered, judged.verdict, judged.abstains
        answers.append(Asked(item.question, item.answer, *outcome))
    return answers


def describe(name: str, answers: list[Asked], known: list[Asked]) -> Group:
    """Count how a group is answered, and measure how well the confidence tells known names from it."""
    confidences = ([item.confidence for item in group] for group in (known, answers))
    return Group(
        name,
        answers,
        right=share_of([item.right for item in answers]),
        answered=share_of([item.answered for item in answers]),
        wrong=share_of([not item.right for item in answers if item.answered]),
        answered_after_lookup=share_of([not item.abstains for item in answers]),
        auroc=None if answers is known else stats.auroc(*confidences),
    )


def fall_back(oracle: Oracle, withheld: Sequence[Asked], known: Sequence[Asked]) -> list[Section]:
    """Compare the answers for withheld names with those for the most similar known names, and for any known name."""
    hits, chances, examples = [], [], []
    for asked in withheld:
        for similar in oracle.neighbours(asked.question, oracle.look(asked.question, asked.prediction))[:1]:
            hits.append(similar.answer == asked.prediction)
            chances.append(np.mean([item.prediction == asked.prediction for item in known]))
            if hits[-1]:
                words = f"“{asked.question}” – {asked.prediction}, as for {similar.name}"
                examples.append((-similar.similarity, words))
    if not hits:
        return []
    words = (
        f"For {share_of(hits)} of the withheld names the model gives the answer that it gives for the known name most like"
        f" it; for a known name drawn at random, the two would agree in {percent(float(np.mean(chances)))}."
    )
    shown = Text([words for _, words in sorted(examples)[:_SHOWN]], "list") if examples else None
    return section("What it falls back on", Text([words]), shown)


# The report


def outcome(groups: Sequence[Group], rule: stats.SelectiveRule) -> list[str]:
    """The main results in sentences."""
    (known, *others), risk = groups, f"{100 * rule.max_risk:.3g} %"
    asked = f"{plural(known.right.of, 'question')} about names that it read about"
    first = (
        f"Allowed to be wrong in {risk} of its answers, the model answers {known.answered} of {asked}, and {known.wrong} of"
        f" these answers are wrong; answering every question, it would be right in {known.right}."
        if rule.met
        else f"The model is right in {known.right} of {asked}, but a risk of {risk} could not be certified, so that it answers"
        " none."
    )
    sentences = [first]
    for group in others:
        area, size = auroc_cell(group.auroc), plural(group.right.of, "such name")
        also = f" By its confidence alone it also answers {group.answered} of {size}." if rule.met else ""
        sentences.append(
            f"Its confidence tells known from {group.name} names with an area under the ROC curve (AUROC) of"
            f" {area.text}{f' ({area.under})' if area.under else ''}, where 0.5 is chance.{also}"
        )
    return sentences


def _summary_table(groups: Sequence[Group], rule: stats.SelectiveRule) -> Table:
    right = Column("Right", note="of all questions, answered or not")
    answered = Column("Answered", note="by the confidence alone")
    auroc = Column("AUROC", note="the probability that a known name has more confidence than one of these")
    after_lookup = Column("Answered after lookup", note="of the name in the lines that were read")
    caption = (
        f"At an allowed risk of {100 * rule.max_risk:.3g} %: answered by the confidence alone, and after looking up whether"
        " any line is about the name. Intervals: 95 % (of shares, Wilson). Right answers about withheld names are guesses."
    )
    return parts.table_of(
        "Results",
        caption,
        groups,
        [
            ("Names", lambda group: Cell(group.name, group.name, _GROUPS[group.name])),
            ("Questions", lambda group: parts.cell(len(group.answers), "count")),
            (right, lambda group: group.right.cell() if group.name != "invented" else Cell(NOTHING)),
            (answered, lambda group: group.answered.cell()),
            ("Wrong of these", lambda group: group.wrong.cell() if group.name == "known" else Cell(NOTHING)),
            (auroc, lambda group: auroc_cell(group.auroc)),
            (after_lookup, lambda group: group.answered_after_lookup.cell()),
        ],
        brief=True,
    )


def _verdict_table(groups: Sequence[Group]) -> Table:
    rows = []
    for verdict in VERDICTS:
        right = [share_of([item.right for item in group.answers if item.verdict == verdict]) for group in groups]
        if any(share.of for share in right):
            under = f"{right[0].cell().text} right" if right[0].of else ""
            cells = [Cell(count(share.of), share.of, "" if place else under) for place, share in enumerate(right)]
            rows.append(Row(Cell(verdict), cells))
    caption = "The verdict of attnlab ask on each question, after the lookup."
    return Table("Verdicts", caption, parts.columns("Verdict", *(group.name for group in groups)), rows)


def _risk_chart(known: Group, rule: stats.SelectiveRule) -> Chart:
    """Risk against coverage, with the certified threshold as a point and the allowed risk as a line."""
    curve = stats.risk_coverage(*zip(*((item.confidence, item.right) for item in known.answers), strict=True))
    points = parts.thin([(100 * x, 100 * y) for x, y in zip(curve.coverage, curve.risk, strict=True)])
    wrong = Series("wrong among the answers given", [x for x, _ in points], [y for _, y in points])
    answered, errors = known.answered.accuracy, known.wrong.accuracy
    if answered is not None and errors is not None:
        wrong = replace(wrong, dots=[(100 * answered, 100 * errors)], dots_name="at the certified threshold")
    label = f"Risk against coverage: {percent(curve.risk_of_all)} wrong if every question is answered"
    axes = Axis("questions answered, the most confident first", "%", 0, 100), Axis("wrong answers", "%", low=0)
    series = [wrong, Series("allowed", [0.0, 100.0], [100 * rule.max_risk] * 2)]
    return Chart("lines", "Risk against coverage, known names", label, *axes, series, height=320)
