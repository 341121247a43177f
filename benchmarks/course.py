"""What the course reports claim beside what attnlab finds, as docs/course.md.

    ATTNLAB_DATA=path/to/data python benchmarks/course.py RUNS [--long B5=FOLDER]

RUNS is a folder with finished studies, by the names that STUDIES gives them. Their figures are kept in docs/course.json, so
that studies can be added and repeated one at a time. FOLDER is that of a pretraining of 650 epochs: `pretrain`, and
`exam-N` for every number of epochs N that was examined. Part A and numbers of parameters are computed here; so are counts of
file contents, if ATTNLAB_DATA is set. Verdicts are computed from the figures whenever the page is written.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from scipy.stats import t

from attnlab import stats
from attnlab.config import resolve
from attnlab.corpora import Question
from attnlab.corpora.labelled import read_tables
from attnlab.course import mark
from attnlab.design import noise
from attnlab.design.check import Outcome
from attnlab.design.results import number
from attnlab.lm.exams import Examination
from attnlab.lm.model import count_parameters, meta_model
from attnlab.lm.stages import preview
from attnlab.measure.approximation import PROJECTED, Approximation
from attnlab.measure.bench import ReachResult
from attnlab.report.words import count, duration, figure, listed, percent, plural, sized
from attnlab.store.folders import is_written, read_json
from attnlab.store.records import convert
from attnlab.studies.ready import PUBLISHED

Verdict = Literal["same number", "compatible", "differs", "better", "cannot tell", "added", "done"]
Better = Literal["higher", "lower", "neither"]
Result = Mapping[str, Any]

ROOT = Path(__file__).parents[1]
SHEETS = ROOT / "examples/sheets"
PAGE, STORE = ROOT / "docs/course.md", ROOT / "docs/course.json"
RARELY = 0.05  # share of noisy samples in which a statement about them may fail
MOSTLY = 0.9  # what "almost always" means
FEATURES = 64  # at which Performer's features are compared
FULL = 650  # epochs of pretraining in the reports
SENTENCES = 6_920  # of the table of film reviews
PROBES = {
    "dot": (9.459, 6.742, 8.199, 6.355),
    "additive": (9.114, 6.478, 7.895, 6.327),
    "zero_mask": (8.430, 5.466, 6.271, 4.995),
}
TRAINED = ("final loss", "training perplexity of sentences", "dev perplexity of sentences")
SAMPLES = 200_000  # of noise


# Figures and verdicts


@dataclass(frozen=True)
class Kind:
    """A kind of figure: how wide an interval may be for "compatible"; without a width it must exclude `null`."""

    words: str
    unit: str  # as attnlab.report.words knows it
    width: float | None
    by_factor: bool = False  # the width is the upper end divided by the lower
    null: float = 0.0

    @property
    def rule(self) -> str:
        """The width in words."""
        if self.width is None:
            return f"does not contain {self.null:g}"
        if self.by_factor:
            return f"upper end below {self.width:g} times the lower"
        if self.unit == "share":
            return f"narrower than {100 * self.width:g} point{'' if self.width == 0.01 else 's'}"
        return f"narrower than {self.width:g}"

    def narrow(self, low: float, high: float, part: float = 1.0) -> bool:
        """Whether an interval is narrow enough, or narrower than a part of the width."""
        if self.width is None:
            return not low <= self.null <= high
        if self.by_factor:
            return math.log(high / low) < part * math.log(self.width)
        return high - low < part * self.width


# Fixed before any verdict was assigned.
KINDS = {
    "share": Kind("share of right answers or labels", "share", 0.05),
    "samples": Kind("share of simulated samples", "share", 0.01),
    "loss": Kind("loss", "loss", 0.2),
    "perplexity": Kind("perplexity", "perplexity", 1.2, by_factor=True),
    "gap": Kind("difference of two perplexities", "loss", 5.0),
    "change": Kind("change of a perplexity in per cent", "share", 0.02),
    "points": Kind("difference of two shares", "share", 0.05),
    "ratio": Kind("ratio of two times, lengths or errors", "ratio", 1.5, by_factor=True),
    "difference": Kind("direction: a difference is above 0", "loss", None),
    "factor": Kind("direction: a ratio is above or below 1", "ratio", None, null=1.0),
}


@dataclass(frozen=True)
class Figure:
    """A measured number with its 95 % interval."""

    kind: str
    value: float | None
    low: float | None = None
    high: float | None = None

    def narrow(self, part: float = 1.0) -> bool:
        """Whether it has an interval that is narrow enough for its kind."""
        return self.low is not None and self.high is not None and KINDS[self.kind].narrow(self.low, self.high, part)

    def __str__(self) -> str:
        """The number with its interval."""
        unit = KINDS[self.kind].unit
        low, high = (figure(end, unit).removesuffix(" %") for end in (self.low, self.high))
        ends = f"{low} to {high}" + (" %" if unit == "share" else "")
        if self.value is None:
            return f"interval {ends}"
        return figure(self.value, unit) + (f" ({ends})" if self.low is not None else "")


def share(right: int, asked: int) -> Figure:
    """A share of right answers, with its interval for new questions."""
    return Figure("share", right / asked, *stats.proportion_interval(right, asked))


def judge(reported: Sequence[float], *found: Figure, better: Better = "neither") -> Verdict:
    """Measured numbers beside reported ones; only those with intervals can be judged.

    A wide interval is never compatible, but one that lies wholly beyond all reported numbers decides. Of several reported
    numbers a compatible interval contains at least one.
    """
    verdicts = []
    for one in found:
        if one.low is None or one.high is None:
            verdicts.append("cannot tell")
        elif (better == "higher" and one.low > max(reported)) or (better == "lower" and one.high < min(reported)):
            verdicts.append("better")
        elif one.low > max(reported) or one.high < min(reported):
            verdicts.append("differs")
        else:
            holds = any(one.low <= number <= one.high for number in reported)
            verdicts.append("compatible" if holds and one.narrow() else "cannot tell")
    (verdict,) = set(verdicts) if len(set(verdicts)) == 1 else {"cannot tell"}
    return verdict  # type: ignore[return-value]


def beside(reported: Sequence[float], found: Figure) -> str:
    """Which of several reported shares an interval contains, and on which side of the others it lies."""
    assert found.low is not None
    assert found.high is not None
    places = {
        "contains": [number for number in reported if found.low <= number <= found.high],
        "lies above": [number for number in reported if number < found.low],
        "lies below": [number for number in reported if number > found.high],
    }
    words = (f"{verb} their {listed(map(percent, numbers))}" for verb, numbers in places.items() if numbers)
    return f"the interval {' and '.join(words)}"


def shown(found: Figure, *, above: bool = True) -> Verdict:
    """The statement that a difference or a factor is above (or below) what no difference would give."""
    if not found.narrow():
        return "cannot tell"
    null = KINDS[found.kind].null
    return "compatible" if ((found.low or 0.0) > null) == above else "differs"


def equal(reported: float, found: float, digits: int = 0) -> Verdict:
    """Numbers that are counted, not estimated."""
    return "same number" if round(found, digits) == reported else "differs"


@dataclass(frozen=True)
class Row:
    """A claim of the reports, what attnlab finds, and the verdict, with the figures that it rests on."""

    code: str
    said: str
    found: str
    verdict: Verdict
    figures: tuple[Figure, ...] = ()
    key: str = ""  # by which the summary names it
    short: str = ""  # for the summary, where `found` is long

    def line(self) -> str:
        """The row of a Markdown table."""
        said, found = (text.replace("|", "\\|") for text in (self.said, self.found))
        return f"| {self.code} | {said} | {found} | {self.verdict} |"


# A: design


@dataclass(frozen=True)
class Check:
    """An answer to a task of a sheet: a file beside the sheet, or its text; and whether it passes."""

    sheet: str
    answers: str
    task: str
    words: str = ""
    passes: bool = True


@dataclass(frozen=True)
class Asked:
    """A claim that sheets decide."""

    code: str
    said: str
    checks: tuple[Check, ...]
    verdict: Literal["answer", "added", "done"] = "answer"
    key: str = ""


ASKED = (
    Asked("A1", "k_j·q far above every other k_i·q copies v_j", (Check("a1", "a1-right", "copy"),)),
    Asked("A1", "(a key between others cannot be copied)", (Check("a1", "a1-right", "middle"),), "added"),
    Asked("A2", "Q = 1e5·K copies every value", (Check("a12", "a12-right", "identity", "their keys: "),)),
    Asked(
        "A2",
        "(this Q fails where k_i·k_j > k_i·k_i; other queries copy those values too)",
        (
            Check("a2", "a2-wrong", "identity", "this Q: ", passes=False),
            Check("a2", "a2-right", "identity", "other queries: "),
        ),
        "added",
    ),
    Asked("A3", "q = C(k_a + k_b), C large, averages two values", (Check("a3", "a3-right", "average"),)),
    Asked(
        "A3",
        "one report: q = (k_a + k_b)/2, not scaled",
        (Check("a12", "a12-wrong", "average two", passes=False),),
        key="unscaled",
    ),
    Asked(
        "A4",
        "the mean of the keys averages all values",
        (Check("a12", "a12-wrong", "average all", "their keys: "),),
        key="mean",
    ),
    Asked(
        "A4",
        "(q = 0 averages all values for any keys; the mean of the keys does not)",
        (
            Check("a4", "a4-right", "mean", "q = 0: "),
            Check("a4", 'mean = "(K[0] + K[1] + K[2])/3"', "mean", "mean of longer keys: ", passes=False),
        ),
        "added",
        key="zero",
    ),
    Asked("A5", "M = A Aᵀ extracts v_a from v_a + v_b", (Check("a5", "a5-right", "orthonormal"),)),
    Asked("A5", "one report: M = A", (Check("a5", 'orthonormal = "A"', "orthonormal", passes=False),), key="shape"),
    Asked(
        "A5",
        "(independent subspaces need an oblique projector; subspaces that meet have none)",
        (Check("a5", "a5-right", "oblique", "oblique: "), Check("a5", "a5-right", "meeting", "meeting: ")),
        "added",
    ),
    Asked("A6", "q = C(mu_a + mu_b) averages two under small noise", (Check("a6", "a6-right", "one head"),)),
    Asked("A7", "(one head that holds: q = -C times the other keys)", (Check("a7", "a7-right", "one head"),), "added"),
    Asked("A8", "two heads: q_1 = C mu_a, q_2 = C mu_b", (Check("a8", "a8-right", "two heads"),), key="split"),
    Asked("A8", "one report: q_1 = q_2 helps", (Check("a8", "a8-wrong", "two heads", passes=False),), key="same heads"),
    Asked("A9", "c_2 ≈ u_a", (Check("a9", "a9-right", "c2"),)),
    Asked(
        "A9",
        "adding u_c or u_d to x_2 cannot give u_b",
        (Check("a9", "a9-right", "add u_c", "u_c: "), Check("a9", "a9-right", "add u_d", "u_d: ")),
    ),
    Asked(
        "A10",
        "V = (u_b u_bᵀ - u_c u_cᵀ)/beta², K = I, Q = u_d u_aᵀ + u_c u_dᵀ",
        (Check("a10", "a10-right", "layer"),),
    ),
    Asked("A10", "(equal tokens cannot have different outputs)", (Check("a10", "a10-right", "equal tokens"),), "added"),
    Asked(
        "A11",
        "asked by one course, not answered: a key of norm 1 that returns v_2",
        (
            Check("a11", "a11-right", "its own value"),
            Check("a11", "a11-right", "weak query", "for a query a tenth as long: "),
        ),
        "done",
    ),
    Asked(
        "A12",
        "worked numbers: 10 k_0 selects v_0; 10 (k_0 + k_1)/2 averages v_0 and v_1",
        (Check("a12", "a12-right", "select"), Check("a12", "a12-right", "average two")),
    ),
)


@cache
def marked(sheet: str, answers: str) -> dict[str, Outcome]:
    """Every task of a sheet with the outcome of these answers, both given as text."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("sheet.toml", "answers.toml")]
        for path, text in zip(paths, (sheet, answers), strict=True):
            path.write_text(text, encoding="utf-8")
        return {one.name: one for one in mark(*paths).students[0].outcomes}


def outcome_words(outcome: Outcome) -> str:
    """What became of an answer: its error, or the reason."""
    if outcome.error is None:
        return "proved impossible" if outcome.passed else outcome.message
    return f"off by {outcome.error:.3g} ({'within' if outcome.passed else 'above'} {number(outcome.tolerance or 0.0)})"


def sheet_text(name: str) -> str:
    """A sheet, or answers to one; answers may be given as their text."""
    path = SHEETS / f"{name}.toml"
    return path.read_text(encoding="utf-8") if path.exists() else name


def asked_row(asked: Asked) -> Row:
    """A claim with the outcomes of its checks."""
    outcomes = [marked(sheet_text(one.sheet), sheet_text(one.answers))[one.task] for one in asked.checks]
    as_known = all(outcome.passed == one.passes for outcome, one in zip(outcomes, asked.checks, strict=True))
    assert as_known, f"{asked.code}, {asked.said}: an answer is not marked as before"
    found = "; ".join(one.words + outcome_words(outcome) for outcome, one in zip(outcomes, asked.checks, strict=True))
    right = all(outcome.passed for outcome in outcomes)
    verdict = ("same number" if right else "differs") if asked.verdict == "answer" else asked.verdict
    return Row(asked.code, asked.said, found, verdict, key=asked.key)


def noise_rows() -> Iterator[Row]:
    """A7 and A8: shares of samples, C = 10 and n = 10."""
    one, equal_heads, split = noise(samples=SAMPLES).designs
    spreads = [design.simulated.sd for design in (one, equal_heads, split)]
    assert math.isclose(spreads[0], spreads[1], rel_tol=0.01), "the summary says that equal heads swing as much as one"
    assert spreads[2] < spreads[0], "the summary says that two heads swing less than one"
    law = 0.5 * math.erfc(math.log(9) / 10)  # P(1/(1 + exp((1 - e)C)) >= 0.9) for e ~ N(1, 1/2), C = 10
    near, half = one.simulated.near_one, 1.96 * one.standard_error.near_one
    found = Figure("samples", near, near - half, near + half)
    said = f"c swings: a_a = 1/(1 + exp((1 - e)C)), by which {percent(law)} of samples are at 0.9 or more"
    yield Row("A7", said, f"{found} at 0.9 or more", judge([law], found), (found,))
    loud = noise(samples=SAMPLES, strength=1000.0).designs[2].simulated.failures
    failed = split.simulated.failures
    yield Row(
        "A8",
        "with two such heads the weight on v_a stays near 1/2",
        f"outside [1/4, 3/4] in {percent(failed)} of samples; {percent(loud)} at C = 1,000. Standard deviation"
        f" {split.simulated.sd:.3f}; one head {one.simulated.sd:.3f}, two equal heads {equal_heads.simulated.sd:.3f}",
        "same number" if failed <= RARELY else "differs",
        key="swing",
        short=f"not near it in {percent(failed)} of samples",
    )
    values, text = "values = [[0,1,0,0],[0,0,1,0],[0,0,0,1],[1,0,0,0]]", '"two heads" = ["15*V[0]", "15*V[1]"]'
    sheet = re.sub("^values.*$", values, sheet_text("a8"), flags=re.MULTILINE)
    outcome = marked(sheet, text)["two heads"]
    said = "one report: queries made of values (here values that are not the keys)"
    yield Row("A8", said, outcome_words(outcome), "same number" if outcome.passed else "differs")


@cache
def design_rows() -> tuple[Row, ...]:
    """Part A, all computed here."""
    rows = [*map(asked_row, ASKED), *noise_rows()]
    return tuple(sorted(rows, key=lambda row: int(row.code[1:])))


# Studies, and what is kept of them


@dataclass(frozen=True)
class Kept:
    """The figures of a study, its command and seconds, and those that it would take if nothing had been cut."""

    command: str
    figures: dict[str, Figure] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    whole: float | None = None

    def __getitem__(self, name: str) -> Any:
        """A figure, or another fact."""
        return self.figures[name] if name in self.figures else self.facts[name]


Store = dict[str, Kept]


def read_store() -> Store:
    """The studies of earlier calls."""
    stored = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    return {
        name: Kept(**{**one, "figures": {key: Figure(*values) for key, values in one.get("figures", {}).items()}})
        for name, one in stored.items()
    }


def write_store(kept: Store) -> None:
    """Keep the studies for later calls: one line for every figure and fact."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    blocks = []
    for name, one in kept.items():
        parts = [f'  "command": {line(one.command)}']
        for key, values in (
            ("figures", {key: [*vars(found).values()] for key, found in one.figures.items()}),
            ("facts", one.facts),
        ):
            if values:
                rows = ",\n".join(f"   {line(label)}: {line(value)}" for label, value in values.items())
                parts.append(f'  "{key}": {{\n{rows}\n  }}')
        parts += [f'  "{key}": {line(getattr(one, key))}' for key in ("seconds", "whole") if getattr(one, key)]
        inside = ",\n".join(parts)
        blocks.append(f" {line(name)}: {{\n{inside}\n }}")
    STORE.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


# Counts and parameters


def counted(data: Path) -> Kept:
    """Figures of the course's files, for those that are there."""
    facts: dict[str, int] = {}
    if (text := data / "birthplaces/wiki.txt").exists():
        seen = preview(resolve("mingpt"), str(text), None, 0)
        facts |= {"characters": seen.characters, "lines": seen.documents, "symbols": seen.symbols}
    if (text := data / "news/train.tokens").exists():
        seen = preview(resolve("nano-words"), str(text), None, 0)
        assert seen.words is not None
        facts |= {"sentences": seen.words.sentences, "tokens": seen.words.tokens, "words": seen.words.distinct}
        facts |= {"entries": seen.symbols, "batches": seen.examples_per_epoch // 32}
    if (tables := data / "sentiment").exists():
        table = read_tables(str(tables / "train.tsv"), str(tables / "dev.tsv"), None, None, {})
        facts |= {"reviews": len(table.train.rows), "validation": len(table.dev.rows)}
    return Kept("", facts=facts)


COUNTED = (
    ("B4", "characters of the biographies", 418_352, "characters"),
    ("B4", "lines of the biographies", 2_937, "lines"),
    ("B4", "symbols with mask and padding", 256, "symbols"),
    ("D", "sentences of the news", 61_530, "sentences"),
    ("D", "tokens of the news", 1_561_375, "tokens"),
    ("D", "distinct words of the news", 80_659, "words"),
    ("D", "entries of the vocabulary", 26_604, "entries"),
    ("D", "full batches of 32 in an epoch", 1_922, "batches"),
    ("E", "film reviews for training", SENTENCES, "reviews"),
    ("E", "film reviews for validation", 872, "validation"),
)


def count_rows(kept: Store) -> Iterator[Row]:
    """Parameters and the sentence of the exam, computed here, and counts of files."""
    for code, name, preset, reported, given in (
        ("B1", "mingpt", "mingpt", 3_323_392, {}),
        ("B6", "mingpt-perceiver", "mingpt-perceiver", 3_339_776, {}),
        ("B9", "mingpt with rotary positions", "mingpt", 3_290_624, {"model": {"positions": "rotary"}}),
    ):
        total = sum(count_parameters(meta_model(resolve(preset, given=given).model)).values())
        verdict = equal(reported, total)
        yield Row(code, f"parameters of {name}: {count(reported)}", count(total), verdict, key=f"parameters {code}")
    parts = count_parameters(meta_model(resolve("nano-words").model))
    size = sum(parts.values()) - parts["head"]
    yield Row("D", "parameters without the head: 1.41 M", count(size), equal(1.41, size / 1e6, 2))
    facts = kept["counts"].facts if "counts" in kept else {}
    for code, words, reported, key in COUNTED:
        if key in facts:
            yield Row(code, f"{words}: {count(reported)}", count(facts[key]), equal(reported, facts[key]))
    exam = tuple(Question("", "yes" if at < 115 else "no") for at in range(500))
    sentence, wanted = Examination(exam, ("yes",) * 500).score().sentence(), "Correct: 115 out of 500: 23.0%"
    verdict = "done" if sentence.startswith(wanted) else "differs"
    yield Row("B7", f"evaluation prints {wanted!r}", repr(sentence), verdict)


# B: recall


def read_reports(result: Result) -> Kept:
    """B2, B3, B5, B6 and B8: the longest pretraining of the study."""
    longest = max(row["epochs"] for row in result["rows"])
    named = {row["model"]: row for row in result["rows"] if row["model"] and row["epochs"] in (0, longest)}
    figures = {name: Figure("share", row["accuracy"], row["low"], row["high"]) for name, row in named.items()}
    figures["always London"] = figures.pop("London")
    common = {
        name: [[one["prediction"], one["share"]] for one in row["commonest"]]
        for name, row in named.items()
        if row["kind"] == "model"
    }
    facts = {
        "training_questions": result["data"]["training_questions"],
        "questions": next(iter(named.values()))["questions"],
        "epochs": longest,
        "as_reported": result["as_reported"],
        "commonest": common,
    }
    return Kept("", figures, facts)


def commonest(answers: Iterable[tuple[str, float]]) -> str:
    """The most common answers of a model."""
    return listed(f"{name} {percent(part)}" for name, part in answers)


def reports_rows(one: Kept) -> Iterator[Row]:
    """B2, B3 and B8."""
    alone, pretrained, asked = one["fine-tuned alone"], one["pretrained"], one["questions"]
    same = one["as_reported"]
    said = "fine-tuned alone: 0.6, 1.2 and 2.0 % of the exam's 500 people"
    reported = (0.006, 0.012, 0.020)
    found = (
        f"{alone} of {asked} other people: {beside(reported, alone)}; {one['training_questions']:,} training questions"
    )
    found += " instead of 2,000"
    verdict = judge(reported, alone) if same else "cannot tell"
    yield Row("B2", said, found, verdict, (alone,), key="alone", short=f"{alone}: {beside(reported, alone)}")
    answers = one["commonest"]["fine-tuned alone"]
    two = sum(part for _, part in answers[:2])
    verdict = "cannot tell" if not same else "same number" if two >= MOSTLY else "differs"
    said = "fine-tuned alone, it almost always answers one of two places"
    yield Row(
        "B2",
        said,
        f"the two most common answers are {percent(two)}: {commonest(answers[:2])}",
        verdict,
        key="two",
        short=f"two places are {percent(two)} of the answers",
    )
    found = f"{one['always London']} of {asked} other people: not comparable"
    yield Row("B3", "always London: 5.0 % of the exam's 500 people", found, "cannot tell")
    said = "pretraining helps: 23.0 % instead of 2.0 %"
    assert one["epochs"] < FULL, "the row says that the pretraining is compressed"
    found = (
        f"after {one['epochs']} compressed epochs {pretrained}, without pretraining {alone}. The most common answers"
    )
    found += f" are {commonest(one['commonest']['pretrained'][:3])}. This says nothing about {FULL} epochs"
    yield Row("B8", said, found, "cannot tell")


# Reported shares, and how the pretraining is begun and continued.
PROSE = (
    "attnlab pretrain --corpus prose --preset text --mechanism linformer --model.n_layer 2 --model.n_head 4"
    " --model.n_embd 64 --model.block_size 128 --train.epochs 3 --out RUNS/prose-linformer"
)
_KEEP = "--corpus wiki.txt --train.checkpoint_every 230 --train.checkpoint_minutes 4"
LONG = {
    "B5": (
        "pretrained: 18.8, 21.0 and 23.0 %",
        (0.188, 0.210, 0.230),
        f"attnlab pretrain --preset mingpt {_KEEP} --out runs/b5/pretrain",
    ),
    "B6": (
        "pretrained, perceiver: 16.6 %",
        (0.166,),
        f"attnlab pretrain --preset mingpt-perceiver {_KEEP} --out runs/b6/pretrain",
    ),
    "B9": (
        "pretrained, rotary positions: 33.2 and 40.4 %",
        (0.332, 0.404),
        f"attnlab pretrain --preset mingpt --model.positions rotary {_KEEP} --out runs/b9/pretrain",
    ),
}


def read_long(code: str, folder: Path) -> Kept:
    """How far a pretraining is, and the milestones that were examined."""
    *_, last = (folder / "pretrain/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    epochs = round(json.loads(last)["progress"] * FULL)
    examined = {int(path.parent.name.split("-")[1]): read_json(path) for path in folder.glob("exam-*/result.json")}
    figures = {
        str(at): Figure("share", one["accuracy"], one["low"], one["high"]) for at, one in sorted(examined.items())
    }
    return Kept(LONG[code][2], figures, {"epochs": epochs})


def long_row(kept: Store, code: str) -> Row:
    """A pretraining of 650 epochs; open until it is complete."""
    said, reported, command = LONG[code]
    one = kept.get(code, Kept(command, facts={"epochs": 0}))
    after = "; ".join(f"after {at} epochs {found}" for at, found in one.figures.items())
    complete = one.figures.get(str(FULL))
    if complete is not None:
        found = f"{after} of 500 other people: {beside(reported, complete)}"
        return Row(code, said, found, judge(reported, complete), (complete,), key=code)
    found = f"open: {one['epochs']} of {FULL} epochs reached" + (f"; {after} of 500 other people" if after else "")
    folder = command.rpartition(" ")[2]
    if one.facts.get("lost"):
        found += "; the run was lost with its machine, [begin anew](#commands)"
    else:
        found += f"; continue with `attnlab resume {folder}`" if one["epochs"] else "; [begin](#commands)"
    return Row(code, said, found, "cannot tell", key=code)


def recipe_rows(one: Kept) -> Iterator[Row]:
    """Attnlab's own recipe on the same corpus."""
    every, fewer = one["further people, 2,000 questions"], one["further people, 1,800 questions"]
    found = f"attnlab's own recipe: {every} of 500 people who are in no training question; with 1,800 of the 2,000"
    found += f" training questions {fewer}. Scored outside this repository, the second and the first run on these 500"
    said = "the best published results: 23.0 % in the reports, 40.4 % with rotary positions"
    yield Row(
        "B5",
        said,
        found,
        judge([0.230, 0.404], every, better="higher"),
        (every,),
        key="recipe",
        short=f"{every} with attnlab's own recipe",
    )


# C: efficient attention


def read_low_rank(result: Result) -> Kept:
    """C1: random projections of exact weights, and the mechanism itself, untrained."""
    measured = convert(Approximation, result)
    figures = {}
    for name, form in (("rank 32 against 8", PROJECTED), ("Linformer", measured.forms[0])):
        for sample in measured.samples:
            by_rank = {row.value: row for row in measured.curve(sample, form)}
            few, many = by_rank[8], by_rank[32]
            ratio = many.mean / few.mean
            half = ratio * half_width(*(row.std / row.mean for row in (few, many)), draws=measured.draws)
            figures[f"{name}, {sample}"] = Figure("ratio", ratio, ratio - half, ratio + half)
    ranks = {one.sample: [one.rank_for(level) for level in (0.5, 0.2, 0.1)] for one in measured.spectrum}
    return Kept("", figures, {"tokens": len(measured.spectrum[0].cumulative), "ranks": ranks})


def low_rank_rows(one: Kept) -> Iterator[Row]:
    """C1."""
    ranks = "; ".join(f"{sample} {listed(map(str, each))}" for sample, each in one["ranks"].items())
    found = f"rank for errors of 50, 20 and 10 % in a short run of {one['tokens']} tokens: {ranks}"
    yield Row("C1", "attention is nearly low rank", found, "cannot tell", key="low rank")

    def ratios(prefix: str) -> tuple[str, tuple[Figure, ...]]:
        chosen = {name.partition(", ")[2]: each for name, each in one.figures.items() if name.startswith(prefix)}
        return "; ".join(f"{sample} {each}" for sample, each in chosen.items()), tuple(chosen.values())

    said = "the rank grows as 1/error²: at rank 32 half the error of rank 8 (random projections of exact weights)"
    found, figures = ratios("rank 32")
    short = f"one step, from rank 8 to 32: the error times {figures[0]}, where 0.5 is expected"
    found = f"error at rank 32, times that at rank 8: {found}"
    yield Row("C1", said, found, judge([0.5], *figures), figures, key="rank", short=short)
    found, figures = ratios("Linformer")
    against = ", so it does not follow the rule" if all((each.low or 0.0) > 0.5 for each in figures) else ""
    said, short = (
        "(untrained Linformer itself: the same ratio)",
        f"untrained Linformer itself: times {figures[0]}{against}",
    )
    found += against
    yield Row("C1", said, found, "added", figures, key="linformer", short=short)


def half_width(*deviations: float, draws: int, tests: int = 1) -> float:
    """Half of the 95 % interval of a difference of means; intervals of several tests hold together."""
    return float(t.ppf(1 - 0.025 / tests, draws - 1)) * math.hypot(*deviations) / math.sqrt(draws)


def read_reach(result: Result) -> Kept:
    """C2."""
    within = convert(ReachResult, result)
    reached = [row for row in within.reached if row.label in ("bigbird", "naive", "SDPA")]
    facts = {"budget": within.budget, "tokens": {row.label: row.tokens for row in reached}}
    return Kept("", facts={**facts, "extrapolated": [row.label for row in reached if not row.measured]})


def reach_rows(small: Kept, large: Kept) -> Iterator[Row]:
    """C2: by the memory that there is."""

    def lengths(other: str) -> str:
        return "; ".join(
            f"in {sized(one['budget'])} {one['tokens']['bigbird'] / one['tokens'][other]:.3g} times"
            f" ({one['tokens']['bigbird']:,} and {one['tokens'][other]:,} tokens)"
            for one in (small, large)
        )

    said = "BigBird reads 8 times longer texts than exact attention in the same memory (no memory stated)"
    ratios = [one["tokens"]["bigbird"] / one["tokens"]["naive"] for one in (small, large)]
    assert ratios[0] < ratios[1], "the page says that the ratio grows with the memory"
    found = f"exact attention with all weights in memory: {lengths('naive')}. The ratio grows with the memory"
    each = (f"{ratio:.3g} times in {sized(one['budget'])}" for ratio, one in zip(ratios, (small, large), strict=True))
    yield Row("C2", said, found, "cannot tell", key="bigbird", short=listed(each))
    assert all(one["tokens"]["SDPA"] > one["tokens"]["bigbird"] for one in (small, large)), (
        "the row says that it is longer"
    )
    assert all("SDPA" in one["extrapolated"] for one in (small, large)), "the row says that it is extrapolated"
    found = f"BigBird, {lengths('SDPA')}; the second lengths are extrapolated"
    yield Row("C2", "(fused exact attention reads longer texts than BigBird in the same memory)", found, "added")


def read_features(result: Result) -> Kept:
    """C3."""
    measured = convert(Approximation, result)
    rows = {(row.sample, row.form): row for row in measured.rows if row.value == FEATURES}
    kinds, samples = ("trigonometric", "positive"), measured.samples
    figures, means = {}, {}

    def compare(name: str, ours: str, other: str, sample: str, tests: int) -> None:
        own, than = rows[sample, ours], rows[sample, other]
        half = half_width(own.std, than.std, draws=measured.draws, tests=tests)
        figures[name] = Figure(
            "difference", than.mean - own.mean, than.mean - own.mean - half, than.mean - own.mean + half
        )
        means[name] = [own.mean, than.mean]

    last = samples[-1]
    compare(f"positive instead of trigonometric, {last}", "positive orthogonal", "trigonometric orthogonal", last, 1)
    for kind in kinds:
        for sample in samples:
            tests = len(kinds) * len(samples)
            compare(f"orthogonal, {kind}, {sample}", f"{kind} orthogonal", f"{kind} iid", sample, tests)
    return Kept("", figures, {"means": means})


def features_rows(one: Kept) -> Iterator[Row]:
    """C3."""
    first, *others = one.figures

    def words(name: str) -> str:
        (own, than), found = one["means"][name], one[name]
        ends = f"{number(found.low)} to {number(found.high)}"
        return f"mean error {own:.3g} instead of {than:.3g}, difference {number(found.value)} ({ends})"

    said = "trigonometric features are unstable where weights are small"
    found = f"{words(first)} with positive features, {first.rpartition(', ')[2]}"
    yield Row(
        "C3",
        said,
        found,
        shown(one[first]),
        (one[first],),
        key="trigonometric",
        short=f"positive features: {words(first)}",
    )
    for verdict in ("compatible", "differs", "cannot tell"):
        names = [name for name in others if shown(one[name]) == verdict]
        if not names:
            continue
        cases = listed(name.removeprefix("orthogonal, ").replace(",", "") for name in names)
        said = f"orthogonal directions reduce the error: {cases}"
        none = verdict == "cannot tell" and len(names) > 1
        found = f"each interval contains 0 ({plural(len(names), 'case')} of {len(others)})"
        found = found if none else "; ".join(map(words, names))
        figures = tuple(one[name] for name in names)
        yield Row("C3", said, found, verdict, figures, key=f"orthogonal {verdict}")


def read_remembered(result: Result) -> Kept:
    """C4."""
    figures, p = {}, {}
    for one in result["variants"]:
        right = one["values"]["accuracy"]
        if one["name"] in ("dot", "perceiver", "synthesizer"):
            figures[one["name"]] = Figure("share", right["mean"], right["low"], right["high"])
    for one in result["comparisons"]:
        if one["a"] in figures and one["b"] == "dot":
            effect = one["effect"]
            figures[f"{one['a']} minus dot"] = Figure("points", effect["value"], effect["low"], effect["high"])
            p[one["a"]] = one["effect"]["p"] if one["adjusted"] is None else one["adjusted"]
    level, tests = result["comparisons"][0]["level"], len(result["comparisons"])
    return Kept("", figures, {"p": p, "level": level, "comparisons": tests})


def p_words(one: Kept, name: str = "") -> str:
    """The p of a comparison, and what it says; how it was tested, if the command would now give another p."""
    p = one["p"][name] if name else one["p"]
    earlier = (
        ", with the pair's own variance of seeds (the command now shares it)" if one.facts.get("own_variance") else ""
    )
    return f"p = {p:.2g}{earlier}: {'a difference' if p < 0.05 else 'no difference shown'}"


def remembered_rows(one: Kept) -> Iterator[Row]:
    """C4: built-in people."""
    verdict: Verdict
    for name, said, verdict in (
        ("perceiver", "perceiver: less accurate (16.6 %; the plain model 18.8 to 23.0 %)", "cannot tell"),
        ("synthesizer", "(what synthesizer, attention without products, remembers)", "added"),
    ):
        gap = one[f"{name} minus dot"]
        found = f"built-in people: {percent(one[name].value)}, dot {percent(one['dot'].value)}; {p_words(one, name)};"
        found += f" interval of the difference {100 * gap.low:.1f} to {100 * gap.high:.1f} points"
        yield Row("C4", said, found, verdict, (gap,))


# D: word-level models


def further_run(each: Sequence[float], kind: str) -> Figure:
    """The mean over seeds, and the 95 % interval for one further run, which is what the reports have."""
    logs = KINDS[kind].by_factor  # positive, and compared by factors
    found = stats.mean_interval([math.log(one) for one in each] if logs else each)
    back = math.exp if logs else float
    if found.high is None:
        return Figure(kind, back(found.mean))
    half = (found.high - found.mean) * math.sqrt(found.n + 1)
    return Figure(kind, back(found.mean), back(found.mean - half), back(found.mean + half))


def read_published(result: Result) -> Kept:
    """D1 and D3: a mechanism beside dot."""
    variants = {one["name"]: one for one in result["variants"]}
    keys = dict(zip(TRAINED, ("final_loss", "train_sentence_perplexity", "dev_sentence_perplexity"), strict=True))
    (other,) = variants.keys() - {"dot"}
    figures = {}

    def each(name: str, key: str) -> list[float]:
        return list(variants[name]["values"][key]["each"])

    for name in ("dot", other):
        for words, key in keys.items():
            kind = "loss" if key == "final_loss" else "perplexity"
            figures[f"{name}, {words}"] = further_run(each(name, key), kind)
        for at, probe in enumerate(variants[name]["texts"]["spaced_probes"], start=1):
            figures[f"{name}, probe {at}"] = further_run(probe["losses"], "loss")
    paired = {key: list(zip(each(other, key), each("dot", key), strict=True)) for key in (keys[TRAINED[2]], "seconds")}
    gaps = [own - dot for own, dot in paired[keys[TRAINED[2]]]]
    figures[f"{TRAINED[2]}, minus dot"] = further_run(gaps, "gap")
    figures["time, times dot"] = further_run([own / dot for own, dot in paired["seconds"]], "ratio")
    (pair,) = result["comparisons"]
    effect, leaks = pair["effect"], variants[other]["leaks"]
    ends = [effect[key] for key in ("value", "low", "high")]
    figures["token perplexity, times dot"] = (
        Figure("factor", *ends) if leaks else Figure("change", *(end - 1 for end in ends))
    )
    read = effect["perplexities"]
    facts = {"token_perplexity": [read["a"], read["b"]], "p": effect["p"], "sentences": read["sentences"]}
    facts |= {"seeds": read["seeds"], "as_reported": bool(result["published"]) and read["seeds"] > 1}
    if leaks:
        twice = variants[other]["word_by_word"]
        facts |= {"whole": twice["whole"], "word_by_word": twice["word_by_word"], "leaks": True}
        if gain := variants[other]["gain"]:
            slow = gain["word_by_word"]
            figures["word by word, times dot"] = Figure("factor", slow["value"], slow["low"], slow["high"])
    return Kept("", figures, facts)


def trained_rows(code: str, name: str, one: Kept) -> Iterator[Row]:
    """Loss and perplexities of a mechanism beside those of the reports."""
    for words, reported in zip(TRAINED, PUBLISHED[name].values(), strict=False):
        found = one[f"{name}, {words}"]
        verdict = judge([reported], found) if one["as_reported"] else "cannot tell"
        yield Row(code, f"{name}, {words}: {reported:g}", str(found), verdict, (found,), key=f"{name}, {words}")


def additive_rows(one: Kept) -> Iterator[Row]:
    """D1."""
    yield from trained_rows("D1", "dot", one)
    yield from trained_rows("D1", "additive", one)
    gap = one[f"{TRAINED[2]}, minus dot"]
    reported = PUBLISHED["additive"]["dev_sentence_perplexity"] - PUBLISHED["dot"]["dev_sentence_perplexity"]
    said = f"additive is worse: dev perplexity of sentences higher by {reported:.1f}"
    yield Row(
        "D1",
        said,
        f"higher by {gap}",
        judge([reported], gap) if one["as_reported"] else "cannot tell",
        (gap,),
        key="additive",
        short=f"dev perplexity higher by {gap}",
    )
    own, dot = one["token_perplexity"]
    found = f"token perplexity {own:.1f} and {dot:.1f} on {one['sentences']:,} sentences x {one['seeds']} seeds,"
    found += f" {p_words(one)}; change of the perplexity, {one['token perplexity, times dot']}"
    yield Row("D1", "(a test of additive against dot for new seeds and sentences)", found, "added", key="additive test")
    ratio, times = one["time, times dot"], PUBLISHED["additive"]["seconds"] / PUBLISHED["dot"]["seconds"]
    verdict = judge([times], ratio, better="lower")
    said = f"additive takes {times:.1f} times the time of dot"
    found = f"{ratio} times the time" + (", with fused code" if verdict == "better" else "")
    yield Row("D1", said, found, verdict, (ratio,), key="additive time")


def read_additive_time(result: Result) -> Kept:
    """D1: where the time of additive attention goes."""
    ratios = {row["name"].replace("reference", "written out"): row["points"][0]["ratio"] for row in result["rows"]}
    return Kept("", facts={"ratios": ratios})


def additive_time_rows(one: Kept) -> Iterator[Row]:
    """D1: a likely reason."""
    ratios = one["ratios"]
    names = ("dot", "additive", "dot, written out", "additive, written out")
    found = "attention alone, times torch's fused attention: " + "; ".join(
        f"{name} {ratios[name]:.3g}" for name in names
    )
    yield Row("D1", "(a likely reason for their 5.7: attention that is written out, not fused)", found, "added")


def read_shared(result: Result) -> Kept:
    """D2."""
    figures, p = {}, {}
    perplexity = {one["name"]: one["values"]["dev_token_perplexity"]["mean"] for one in result["variants"]}
    for one in result["comparisons"]:
        effect = one["effect"]
        figures[f"{one['a']}, times dot"] = Figure("change", *(effect[key] - 1 for key in ("value", "low", "high")))
        p[one["a"]] = effect["p"] if one["adjusted"] is None else one["adjusted"]
    read = result["comparisons"][0]["effect"]["perplexities"]
    facts = {"token_perplexity": perplexity, "p": p, "sentences": read["sentences"], "seeds": read["seeds"]}
    return Kept("", figures, facts)


def shared_rows(one: Kept) -> Iterator[Row]:
    """D2: a difference that single runs cannot see contradicts nothing."""
    for name, words in (("shared_qk", "Q = K"), ("shared_qkv", "Q = K = V")):
        found = one[f"{name}, times dot"]
        text = (
            f"{words}: token perplexity {one['token_perplexity'][name]:.1f}, dot {one['token_perplexity']['dot']:.1f};"
        )
        text += f" change: {found}; {p_words(one, name)}"
        text += ", which their single runs could not see" if one["p"][name] < 0.05 else ""
        said = f"projections {words} shared: no difference found"
        yield Row(
            "D2",
            said,
            text,
            "cannot tell",
            (found,),
            key=name,
            short=f"{words}: change of the perplexity {found}",
        )


def masking_rows(one: Kept) -> Iterator[Row]:
    """D3."""
    yield from trained_rows("D3", "zero_mask", one)
    own, dot = one["token_perplexity"]
    ratio = one["token perplexity, times dot"]
    found = f"token perplexity {ratio} times that of dot ({own:.1f} and {dot:.1f}), p = {one['p']:.2g};"
    found += " **invalid: zero_mask sees the future**"
    yield Row(
        "D3",
        "zeros after the softmax look better",
        found,
        shown(ratio, above=False),
        (ratio,),
        key="mask",
        short=f"{ratio} times the perplexity of dot, **invalid: it sees the future**",
    )
    slow = one["word by word, times dot"]
    found = f"word by word, where there is no future, {slow} times that of dot: {one['word_by_word']:,.0f}, whole texts"
    found += f" {one['whole']:,.0f}"
    yield Row(
        "D3",
        "the gain is a leak of the future",
        found,
        shown(slow),
        (slow,),
        key="leak",
        short=f"word by word {slow} times",
    )
    taken, times = one["time, times dot"], PUBLISHED["zero_mask"]["seconds"] / PUBLISHED["dot"]["seconds"]
    yield Row("D3", f"zero_mask takes {times:.1f} times the time of dot", str(taken), judge([times], taken), (taken,))


def probe_figures(kept: Store) -> dict[str, list[Figure]]:
    """The losses of the probe sentences, by mechanism."""
    studies = {"dot": "additive-vs-dot", "additive": "additive-vs-dot", "zero_mask": "masking"}
    return {
        name: [kept[study][f"{name}, probe {at}"] for at in range(1, 5)]
        for name, study in studies.items()
        if study in kept
    }


def probe_rows(kept: Store) -> Iterator[Row]:
    """Their tokenization is not published, so that nothing compares."""
    figures = [found for each in probe_figures(kept).values() for found in each]
    if figures:
        widest = max(math.exp((found.high or 0.0) - (found.low or 0.0)) for found in figures)
        found = (
            f"in the table below; intervals span up to a factor of {widest:.0f} in perplexity, and their tokenization"
        )
        found += " is not published"
        yield Row("D", "losses of four probe sentences", found, "cannot tell", tuple(figures))


# E: Hugging Face


def sentences_of(result: Result) -> int:
    """The sentences that a classifier was trained on."""
    return int(result["tables"]["data"]["train"]["texts"])


def measured_share(one: Result) -> Figure:
    """The share of right labels."""
    return Figure("share", one["accuracy"], one["low"], one["high"])


def read_curve(result: Result) -> Kept:
    """Ten epochs."""
    first, *_, last = result["epochs"]
    facts = {"sentences": sentences_of(result), "epochs": len(result["epochs"]), "best_epoch": result["best_epoch"]}
    for name, key in (("training", "train_accuracy"), ("validation", "dev_accuracy")):
        facts[f"{name}, first and last"] = [first[key], last[key]]
    return Kept("", {"best": measured_share(result["dev"])}, facts)


def curve_rows(one: Kept) -> Iterator[Row]:
    """Ten epochs, and the trap."""
    ends = {name: [percent(end) for end in one[f"{name}, first and last"]] for name in ("training", "validation")}
    found = f"{one['sentences']:,} sentences: " + ", ".join(
        f"{name} {' to '.join(pair)}" for name, pair in ends.items()
    )
    found += f"; best epoch {one['best_epoch']}, {one['best']}"
    yield Row("E", "curves over 10 epochs, the best epoch", found, "done" if one["epochs"] == 10 else "cannot tell")
    found = "that copy is not available here; `attnlab classify` shows sentences with their labels before training"
    yield Row("E", "one public copy has its labels reversed", found, "cannot tell")


def read_optimizers(result: Result) -> Kept:
    """Three optimizers."""
    figures = {one["name"]: measured_share(one) for one in result["optimizers"]}
    for one in result["comparisons"]:
        effect = one["effect"]
        name = f"{one['a']} minus {one['b']}"
        figures[name] = Figure("points", effect["value"], effect["low"], effect["high"])
    return Kept("", figures)


def optimizers_rows(one: Kept) -> Iterator[Row]:
    """Three optimizers, judged on the data that chose the epoch."""
    names = [name for name in one.figures if " minus " not in name]
    gap = one["adagrad minus adamw"]
    found = (
        f"{', '.join(f'{name} {one[name]}' for name in names)}, on the data that chose the epoch; adagrad minus adamw"
    )
    found += f" {100 * gap.value:.1f} points, joint interval {100 * gap.low:.1f} to {100 * gap.high:.1f}"
    found += ": not settled" if gap.low <= 0 <= gap.high else ""
    yield Row("E", "at least two other optimizers", found, "done" if len(names) >= 3 else "cannot tell")


def read_search(result: Result) -> Kept:
    """A search, and the test."""
    trials, best = result["trials"], result["trials"][result["best"] - 1]
    facts = {"trials": len(trials), "ended_early": sum(one["pruned"] for one in trials), "batch": best["batch_size"]}
    facts |= {"lr": best["lr"], "epochs": best["epochs"], "sentences": sentences_of(result)}
    facts["test_texts"] = result["test"].get("questions") or result["test"]["texts"]
    return Kept("", {"validation": measured_share(result["dev"]), "test": measured_share(result["test"])}, facts)


def search_rows(one: Kept) -> Iterator[Row]:
    """A search, and the test."""
    found = f"{one['trials']} trials, {one['ended_early']} ended early; batch {one['batch']}, rate {one['lr']:.2g},"
    found += f" {one['epochs']} epochs: {one['validation']} on validation"
    yield Row("E", "a small search on validation", found, "done" if one["trials"] > 1 else "cannot tell")
    found = f"RoBERTa-base was not trained here. MiniLM on {one['sentences']} of the {SENTENCES:,} sentences:"
    found += f" {one['test']} of {one['test_texts']} held-out sentences"
    yield Row(
        "E",
        "test accuracy 93.2 to 94.8 % (RoBERTa-base)",
        found,
        "cannot tell",
        (one["test"],),
        key="test",
        short=f"MiniLM on {one['sentences']} sentences: {one['test']}",
    )


def read_bag(result: Result) -> Kept:
    """What words alone tell."""
    return Kept("", {"validation": measured_share(result["dev"])}, {"sentences": sentences_of(result)})


def bag_rows(one: Kept) -> Iterator[Row]:
    """What words alone tell."""
    yield Row("E", "(a bag of words)", f"{one['sentences']:,} sentences: {one['validation']} on validation", "added")


# F: newer courses


def read_changes(result: Result) -> Kept:
    """Changes of a model, each tested against the variant below it, with the trials of tuning."""
    figures, p = {}, {}
    for one in result["comparisons"]:
        effect = one["effect"]
        figures[one["a"]] = Figure("change", *(effect[key] - 1 for key in ("value", "low", "high")))
        p[one["a"]] = effect["p"] if one["adjusted"] is None else one["adjusted"]
    read = result["comparisons"][0]["effect"]["perplexities"]
    facts = {
        "token_perplexity": {one["name"]: one["values"]["dev_token_perplexity"]["mean"] for one in result["variants"]},
        "p": p,
        "stories": read["sentences"],
        "seeds": read["seeds"],
    }
    if tuning := result["tuning"]:
        trials: dict[str, dict[str, float]] = {name: {} for name in tuning["chosen"]}
        for one in tuning["trials"]:
            trials[one["variant"]]["; ".join(map(str, one["values"].values()))] = one["figure"]
        facts |= {"tuned_on": tuning["items"], "trials": trials}
    return Kept("", figures, facts)


def change_words(one: Kept, name: str) -> str:
    """What a change did to the perplexity."""
    shown = "" if one["p"][name] < 0.05 else ", no difference shown"
    return f"`{name}` {one['token_perplexity'][name]:.1f}: {one[name]}{shown}"


def changes_found(one: Kept, prefix: str) -> str:
    """What changes of one setting did to the perplexity of the baseline."""
    changes = "; ".join(change_words(one, name) for name in one["p"] if name.startswith(prefix))
    measured = f"{one['stories']} stories x {one['seeds']} seeds"
    return f"baseline {one['token_perplexity']['baseline']:.1f}; {changes} ({measured})"


def rates_found(one: Kept) -> str:
    """The perplexities of the trials, by learning rate, and which rates are best."""
    trials = one["trials"]
    rates = list(trials["baseline"])
    best = {name: min(rates, key=each.__getitem__) for name, each in trials.items()}
    figures = listed(f"{rate}: {trials['baseline'][rate]:.1f}" for rate in rates)
    found = f"baseline, token perplexity on {one['tuned_on']} stories by learning rate, one seed: {figures}. Best: "
    found += "; ".join(
        f"{rate} for {listed(name for name in best if best[name] == rate)}" for rate in rates if rate in best.values()
    )
    edges = [name for name, rate in best.items() if rate in (rates[0], rates[-1])]
    return found + (f". At the edge of what was tried, so perhaps not its best: {listed(edges)}" if edges else "")


def cumulative_found(one: Kept) -> str:
    """Each change on top of those before it."""
    return changes_found(one, "+ ") + ". What a change contributes depends on its place in the list"


def read_heads(result: Result) -> Kept:
    """Every head of a model switched off in turn."""
    heads = {f"layer {one['layer']}, head {one['head']}": one for one in result["heads"]}
    figures = {name: Figure("points", one["change"], one["low"], one["high"]) for name, one in heads.items()}
    shares = {name: one["value"] for name, one in heads.items()}
    return Kept("", figures, {"all": result["value"], "items": result["items"], "without": shares})


def heads_found(one: Kept) -> str:
    """The heads that matter most and least."""
    (most, right), *_, (least, still) = sorted(one["without"].items(), key=lambda pair: pair[1])
    needed = sum((found.high or 0.0) < 0 for found in one.figures.values())
    return (
        f"{percent(one['all'])} of {one['items']:,} held-out sums right; without {most} {percent(right)}, without {least}"
        f" {percent(still)}; {needed} of the {len(one.figures)} heads are needed (joint intervals, for new sums and this one"
        " run)"
    )


def read_trained(result: Result) -> Kept:
    """A run of the built-in stories."""
    return Kept("", facts={key: result[key] for key in ("parameters", "steps", "best_dev_loss")})


def trained_found(one: Kept) -> str:
    """How well a model predicts held-out stories."""
    found = f"stories from a grammar, as many as asked for, with known facts; {one['parameters']:,} parameters after"
    return found + f" {one['steps']} steps: loss {one['best_dev_loss']:.3f} per piece of 200 held-out stories, one seed"


def written(one: Kept) -> str:
    """A finding that is kept as a sentence."""
    return str(one["found"])


@cache
def sizes_found() -> str:
    """Parameters of two presets, and of one without an MLP or with a tied head."""

    def total(**given: Any) -> int:
        return sum(count_parameters(meta_model(resolve("small", given={"model": given}).model)).values())

    found = f"`small` {total():,} parameters; tied {total(tied_head=True):,}, with the same FLOPs;"
    return (
        found
        + f" without MLP {total(mlp_ratio=0):,}; swiglu {total(activation='swiglu'):,}: three matrices of 2/3 the width"
    )


@dataclass(frozen=True)
class Item:
    """A topic of the newer courses: the commands that show it, what they show, and the file that tests it.

    Where a study is named, its figures or its sentence are what is found; and its command, if there is none here.
    """

    topic: str
    test: str
    commands: tuple[str, ...] = ()
    found: str | Callable[[], str] = ""
    study: str = ""
    read: Callable[[Kept], str] = written

    def typed(self, kept: Store) -> Sequence[str]:
        """The commands."""
        return self.commands or kept[self.study].command.split("\n")

    def line(self, kept: Store, commands: str) -> str:
        """The row of a Markdown table."""
        one = kept.get(self.study)
        found = self.read(one) if one else self.found if isinstance(self.found, str) else self.found()
        return f"| {self.topic} | {commands} | {found} | [test](../{self.test}) |"


_STORIES = (
    "attnlab pretrain --preset stories --corpus stories:2000:train --dev stories:2000:dev --model.n_layer 2"
    " --model.n_embd 64 --train.steps 200"
)
_SAMPLED = "runs/stories --n 8 --temperature 1"
ITEMS = (
    Item(
        "small stories to train on, as TinyStories (CS224N, CS336)",
        "tests/corpora/test_stories.py",
        (
            "attnlab corpus show --corpus stories --preset stories",
            f"{_STORIES} --out runs/stories",
        ),
        study="stories",
        read=trained_found,
    ),
    Item(
        "is attention equivariant to permutations? (CS224N)",
        "tests/lm/test_derived_facts.py",
        ("attnlab design derive permutation",),
        "without mask and positions: yes, proved. With a causal mask: no, by a counterexample; such a model can even count"
        " its tokens",
    ),
    Item(
        "sinusoidal positions (CS224N)",
        "tests/lm/test_derived_facts.py",
        ("attnlab design derive sinusoidal",),
        "a shift is a rotation that does not depend on the position, proved. One pair of frequency 1 already gives every"
        " integer a code of its own; frequencies that are all multiples of 2 pi/N do not",
    ),
    Item(
        "rotary positions (CS224N, CS336)",
        "tests/lm/test_derived_facts.py",
        ("attnlab design derive rotary",),
        "scores depend on m - n only, proved; interleaved and half-split pairs differ by a permutation of the weights",
    ),
    Item(
        "positions: none or sinusoidal instead of rotary (CS336)",
        "tests/studies/compare/test_ablations.py",
        study="ablations",
        read=lambda one: changes_found(one, "model.positions="),
    ),
    Item(
        "norms: none, or after the sums (CS336)",
        "tests/studies/compare/test_ablations.py",
        study="ablations",
        read=lambda one: changes_found(one, "model.norm"),
    ),
    Item(
        "SwiGLU, with equally many parameters (CS336)",
        "tests/studies/compare/test_ablations.py",
        study="ablations",
        read=lambda one: changes_found(one, "model.activation="),
    ),
    Item(
        "learning rates (CS336)",
        "tests/studies/compare/test_tuning.py",
        study="ablations",
        read=rates_found,
    ),
    Item(
        "from GPT-2 to a block of today, in steps (speedrun)",
        "tests/studies/compare/test_ablations.py",
        study="ablations-cumulative",
        read=cumulative_found,
    ),
    Item(
        "tied head, no MLP, gated MLP: parameters (CS336)",
        "tests/lm/test_model.py",
        (
            "attnlab params small",
            "attnlab params small --model.tied_head true",
            "attnlab params small --model.mlp_ratio 0",
            "attnlab params small --model.activation swiglu",
        ),
        sizes_found,
    ),
    Item(
        "FLOPs and memory by hand (CS336)",
        "tests/lm/test_derived_facts.py",
        ("attnlab design derive flops", "attnlab params stories --length 128"),
        "12 L d² + 2 V d parameters, 24 L d² + 4 L T d + 2 V d FLOPs per token forward, three times that in training, 16 bytes"
        " per parameter; `params` counts the products of a run, and a test finds the formula's number",
    ),
    Item(
        "decoding: temperature, top-k, top-p, beam search (CS336)",
        "tests/lm/test_decoding.py",
        (
            f"attnlab generate {_SAMPLED}",
            f"attnlab generate {_SAMPLED} --top-k 10",
            f"attnlab generate {_SAMPLED} --top-p 0.9",
            "attnlab generate runs/stories --n 8 --beams 8 --length-penalty 1",
        ),
        study="decoding",
    ),
    Item(
        "sums of three digits, and which heads they need",
        "tests/inside/test_ablation.py",
        (
            "attnlab pretrain --preset addition --corpus addition:train --out runs/sums",
            "attnlab look runs/sums --ablate --exam addition:dev --out runs/heads",
        ),
        study="heads",
        read=heads_found,
    ),
    Item("texts longer than in training, by positions", "tests/studies/compare/test_comparing.py", study="lengths"),
    Item(
        "attention as courses write it, such as `__init__(self, config)`",
        "tests/mechanisms/test_conventions.py",
        tuple(f"attnlab audit tests/mechanisms/classes_of_others.py:{name}" for name in ("MinGPT", "NanoGPT", "Llama")),
        "recognised by the names of their parameters and audited; a test does this with 13 classes, and with a leak put into"
        " each, which the audit finds",
    ),
    Item(
        "a transformer from scratch, marked part by part (CS224N)",
        "tests/course/test_modules.py",
        ("attnlab check examples/sheets/f2.toml examples/sheets/f2-right.toml --trust-code",),
        "MLP, attention, model, loss and greedy generation equal the reference to 1e-5; a test makes slips in every"
        " part, and each is named in one line",
    ),
    Item(
        "sheets without their solutions",
        "tests/course/test_handout.py",
        ("attnlab course sheet examples/sheets/f2.toml runs/f2-students.toml",),
        "no number, exam, reference or name that only solutions use is written",
    ),
    Item("checkpoints of other code", "tests/hf/test_checkpoints.py", study="import"),
)


@dataclass(frozen=True)
class Parity:
    """An option of the model beside other code with the same weights: the largest difference that its test allows."""

    option: str
    other: str
    most: str
    test: str  # file::function


PARITIES = (
    Parity(
        "`positions=rotary`, `rotary_layout=interleaved`, whole heads and half of each",
        "transformers, attention of GPT-J",
        "1e-6",
        "tests/hf/test_block_parity.py::test_interleaved_rotary_attention_is_that_of_gptj",
    ),
    Parity(
        "the same rotation alone",
        "transformers, GPT-J",
        "1e-6",
        "tests/hf/test_block_parity.py::test_the_interleaved_rotation_is_that_of_gptj",
    ),
    Parity(
        "`rotary_layout=half`, `rotary_fraction` 1, 0.5 and 0.25, two bases",
        "transformers, GPT-NeoX; with its angles in float32, and in float64",
        "1e-5, 1e-6",
        "tests/hf/test_block_parity.py::test_the_half_split_rotation_is_that_of_neox",
    ),
    Parity(
        "`norm=rms`, `activation=swiglu`, rotary, `tied_head`: logits",
        "transformers, a whole Llama; with its angles in float32, and in float64",
        "1e-5, 1e-6",
        "tests/hf/test_block_parity.py::test_a_model_with_rms_swiglu_and_rotary_is_a_llama",
    ),
    Parity(
        "weights converted between the two layouts: logits",
        "attnlab with the other layout",
        "1e-9",
        "tests/hf/test_block_parity.py::test_converted_weights_give_the_same_scores_in_the_other_layout",
    ),
    Parity(
        "`positions=sinusoidal`",
        "the formula, in float64",
        "1e-6",
        "tests/hf/test_block_parity.py::test_sinusoids_follow_the_formula",
    ),
    Parity(
        "`norm_place=post`, `norm=layer`, `activation` gelu and silu",
        "torch, `nn.TransformerEncoder` with a causal mask",
        "1e-6",
        "tests/hf/test_block_parity.py::test_norms_after_the_sums_are_those_of_torch",
    ),
    Parity(
        "`activation` gelu, gelu_tanh and silu, learned positions, `tied_head`: logits",
        "transformers, GPT-2 from `attnlab export`",
        "1e-5",
        "tests/hf/test_exporting.py::test_scores_and_texts_are_equal",
    ),
    Parity(
        "every option of the block: logits",
        "a reference in loops, without tensors",
        "1e-5",
        "tests/lm/test_reference_block.py::test_the_logits_are_those_computed_by_hand",
    ),
    Parity(
        "`--temperature`, `--top-k`, `--top-p`: which tokens stay",
        "transformers, `LogitsWarper`s",
        "equal",
        "tests/hf/test_decoding_parity.py::test_the_same_tokens_stay",
    ),
    Parity(
        "`--beams`: texts, and scores per token",
        "transformers, `generate`",
        "equal, 1e-4",
        "tests/hf/test_decoding_parity.py::test_the_same_beams_are_found",
    ),
)


def items(kept: Store) -> list[Item]:
    """The topics whose studies are kept."""
    return [item for item in ITEMS if not item.study or item.study in kept]


def newer_lines(kept: Store) -> Iterator[str]:
    """Part F: what newer courses ask, without verdicts, and options beside those of other code."""
    yield table("topic", "command", "finding", "tested in")
    above: Sequence[str] = ()
    for item in items(kept):
        commands = item.typed(kept)
        yield item.line(kept, "as above" if commands == above else "<br>".join(f"`{each}`" for each in commands))
        above = commands
    yield "\nOptions of the model and of decoding beside other code, with the same weights:\n"
    yield table("option", "beside", "at most apart", "test")
    for one in PARITIES:
        file, _, name = one.test.partition("::")
        yield f"| {one.option} | {one.other} | {one.most} | [{name}](../{file}) |"


# The page


@dataclass(frozen=True)
class Study:
    """A part of the page: codes, command without --out, and how a result becomes figures."""

    codes: str
    command: str
    read: Callable[[Result], Kept]


_NEWS = "--corpus news/train.tokens --dev news/dev.tokens --seeds 3"
_REVIEWS = "attnlab classify train.tsv dev.tsv --labels 1=positive,0=negative --model minilm"
_RECALL = "attnlab run reports --corpus wiki.txt --facts facts.tsv --exam exam.tsv"
STUDIES = {
    "reports": Study("B2, B3, B8", _RECALL, read_reports),
    "linformer-error": Study(
        "C1", "attnlab mechanisms show linformer --error --run RUNS/prose-linformer --draws 8", read_low_rank
    ),
    "reach-200": Study("C2", "attnlab bench dot bigbird --reach 200MB", read_reach),
    "reach": Study("C2", "attnlab bench dot bigbird --reach 1GB", read_reach),
    "performer-error": Study("C3", "attnlab mechanisms show performer --error", read_features),
    "efficient": Study("C4", "attnlab run efficient", read_remembered),
    "additive-vs-dot": Study("D1", f"attnlab run additive-vs-dot {_NEWS}", read_published),
    "additive-time": Study(
        "D1", "attnlab bench dot additive --lengths 100 --batch 32 --n-head 3 --n-embd 48", read_additive_time
    ),
    "shared-projections": Study("D2", f"attnlab run shared-projections {_NEWS}", read_shared),
    "masking": Study("D3", f"attnlab run masking {_NEWS}", read_published),
    "curve": Study("E", f"{_REVIEWS} --epochs 10", read_curve),
    "optimizers": Study("E", f"{_REVIEWS} --optimizers adamw,sgd,adagrad --seeds 3 --epochs 3", read_optimizers),
    "search": Study("E", f"{_REVIEWS} --test test.tsv --search --trials 12 --epochs 4", read_search),
    "bag": Study(
        "E", "attnlab classify train.tsv dev.tsv --labels 1=positive,0=negative --model bag-of-words", read_bag
    ),
    "stories": Study("F", _STORIES, read_trained),
    "ablations": Study("F", "attnlab run ablations --tune train.muon_lr=0.01,0.03", read_changes),
    "ablations-cumulative": Study("F", "attnlab run ablations --cumulative", read_changes),
    "heads": Study("F", "attnlab look runs/sums --ablate --exam addition:dev", read_heads),
}


def found_in(runs: Path) -> Store:
    """The finished studies in a folder."""
    kept = {}
    for name, study in STUDIES.items():
        paths = [runs / name / file for file in ("result.json", "error.json", "reach.json", "bench.json")]
        for path in filter(is_written, paths):
            result = read_json(path)
            one = study.read(result)
            command = result.get("command") or f"{study.command} --out RUNS/{name}"
            kept[name] = Kept(command, one.figures, one.facts, result.get("seconds"), uncut_seconds(result))
    return kept


def uncut_seconds(result: Result) -> float | None:
    """The time that a study would take at full length, in proportion to epochs or sentences; None if nothing was cut."""
    if "full" in result:
        longest = max(row["epochs"] for row in result["rows"])
        whole = 0.0
        for name, run in result["runs"].items():
            if run["stage"] == "scratch" or f"-{longest}-" in name:
                scale = result["full"] / longest if run["stage"] == "pretrain" else 1  # nothing else is cut
                whole += run["seconds"] * scale
        return whole
    if "tables" in result:
        return float(result["seconds"] * SENTENCES / sentences_of(result))
    return None


def parts(kept: Store) -> dict[str, list[Row]]:
    """The rows of every part, as far as their studies are kept; counts under "appendix"."""

    def rows(make: Callable[..., Iterable[Row]], *names: str) -> Iterable[Row]:
        return make(*(kept[name] for name in names)) if kept.keys() >= set(names) else ()

    return {
        "A": list(design_rows()),
        "B": [
            *rows(reports_rows, "reports"),
            *(long_row(kept, code) for code in LONG),
            *rows(recipe_rows, "recall"),
        ],
        "C": [
            *rows(low_rank_rows, "linformer-error"),
            *rows(reach_rows, "reach-200", "reach"),
            *rows(features_rows, "performer-error"),
            *rows(remembered_rows, "efficient"),
        ],
        "D": [
            *rows(additive_rows, "additive-vs-dot"),
            *rows(additive_time_rows, "additive-time"),
            *rows(shared_rows, "shared-projections"),
            *rows(masking_rows, "masking"),
            *probe_rows(kept),
        ],
        "E": [
            *rows(curve_rows, "curve"),
            *rows(optimizers_rows, "optimizers"),
            *rows(search_rows, "search"),
            *rows(bag_rows, "bag"),
        ],
        "appendix": list(count_rows(kept)),
    }


# What they said, the rows that answer it, and what follows from their verdicts: other verdicts need other words.
SUMMARY: tuple[tuple[str, tuple[str, ...], dict[tuple[Verdict, ...], str]], ...] = (
    (
        "Attention averages two values with q = (k_a + k_b)/2.",
        ("unscaled",),
        {("differs",): "Scale it: ten times that query passes."},
    ),
    (
        "The mean of the keys averages all values.",
        ("mean", "zero"),
        {("same number", "added"): "Use q = 0, which is exact for any keys."},
    ),
    ("Two heads with the same query resist noise.", ("same heads",), {("differs",): "They swing as much as one head."}),
    (
        "Two heads, one for each key, stay near the average.",
        ("swing",),
        {("differs",): "They swing less than one head, but still fail often."},
    ),
    (
        "The models have 3,323,392, 3,339,776 (perceiver) and 3,290,624 (rotary) parameters.",
        ("parameters B1", "parameters B6", "parameters B9"),
        {("same number",) * 3: "The models are theirs."},
    ),
    (
        "Fine-tuned alone, the model answers 0.6 to 2.0 %, nearly always one of two places.",
        ("alone", "two"),
        {("compatible", "differs"): "About as inaccurate as they say, but its answers vary."},
    ),
    (
        "Pretrained for 650 epochs, it answers 18.8 to 23.0 %.",
        ("B5",),
        {
            ("cannot tell",): "Not settled. Fewer, compressed epochs say nothing about it.",
            ("compatible",): "It holds here, for other people and with 1,500 training questions.",
            ("differs",): "Not so here, for other people and with 1,500 training questions.",
        },
    ),
    (
        "The best published result is 40.4 %.",
        ("recipe",),
        {("better",): "Another recipe remembers far more. It says nothing about theirs."},
    ),
    (
        "Linformer needs a rank of the order of 1/error².",
        ("rank", "linformer"),
        {("compatible", "added"): "It holds for random projections of exact weights."},
    ),
    (
        "BigBird reads 8 times longer texts in the same memory.",
        ("bigbird",),
        {("cannot tell",): "The factor depends on the memory, which they do not state."},
    ),
    (
        "Trigonometric features are unstable.",
        ("trigonometric",),
        {("compatible",): "Use positive features where weights are small."},
    ),
    (
        "Additive attention is slower (5.7 times) and worse (386.0, dot 380.8).",
        ("additive time", "additive"),
        {("better", "cannot tell"): "The time depends on the code. Single runs cannot show so small a difference."},
    ),
    (
        "Sharing projections makes no difference.",
        ("shared_qkv", "shared_qk"),
        {("cannot tell", "cannot tell"): "If there is a loss, it is too small for their single runs."},
    ),
    (
        "Zeros after the softmax halve the perplexity, by a leak.",
        ("mask", "leak"),
        {("compatible", "compatible"): "They are right: the gain is the leak."},
    ),
    (
        "RoBERTa-base labels 93.2 to 94.8 % of the test sentences correctly.",
        ("test",),
        {("cannot tell",): "Not repeated here."},
    ),
)


def summary_lines(rows: Iterable[Row]) -> Iterator[str]:
    """The claims that a reader asks about first; those whose studies are not kept are left out."""
    by_key = {row.key: row for row in rows if row.key}
    yield "| they said | we get | so |\n|---|---|---|"
    for said, keys, follows in SUMMARY:
        if by_key.keys() >= set(keys):
            chosen = [by_key[key] for key in keys]
            found = tuple(row.verdict for row in chosen)
            assert found in follows, f"{said} No conclusion is written for: {listed(found)}"
            verdicts = "; ".join(dict.fromkeys(f"**{verdict}**" for verdict in found))
            yield f"| {said} | {'; '.join(row.short or row.found for row in chosen)} | {verdicts}. {follows[found]} |"


VERDICTS = {
    "same number": "equal in every digit that they print; in part A, their answer passes the check",
    "compatible": "our interval contains what they report (of several numbers at least one: the row says which), or shows the"
    " direction that they state, and is narrow enough",
    "differs": "our interval excludes what they report, or their answer fails the check",
    "better": "our whole interval is better than what they report",
    "cannot tell": "our interval is too wide or lies between their numbers, the measurement is another one, the run is not"
    " finished, or their single runs could not see what we find",
    "added": "in brackets: not in the reports; counts neither for nor against them",
    "done": "a task without a number, which is done",
}

INTRO = """Five course reports on attention and pretraining make claims. This page says which of them hold. First come the
claims that readers ask about most, then all of them by part, then an appendix with commands, counts and times. Intervals
are 95 %. Those of a single run are for new questions or texts, not for new seeds. *Same number* and
*compatible*: what they say holds here. *Differs*: it does not. *Better*: ours is better. *Cannot
tell*: this page does not decide it. *Added*: they do not say it. The
[exact meanings](#how-it-is-judged) are below the table. Part F is about [newer courses](#f-newer-courses), and counts
nowhere."""

WIDTHS = """An interval that is wider than the width of its kind cannot make a row *compatible*, even if it contains what
they report; one that lies wholly beyond what they report still decides. The widths were fixed before the verdicts were
assigned and were not changed afterwards. The intervals had been measured earlier, though, and were known when the widths were
chosen. With widths half as large, {lost} of the {all} compatible rows would be *cannot tell*."""

PARTS = {
    "A": (
        "What can attention compute?",
        """Computed when this page is written. *Off by*: the largest error of any coordinate; in A6 to A8, the root mean
        square error. A7 and the weights of A8 are simulated with C = 10 and ten keys; the sheets have their own values. A
        statement about noise holds if it fails in at most 5 % of samples.""",
    ),
    "B": (
        "What does a small language model know?",
        """Three groups of 500 people occur here. *The exam's*: those of the reports, whose answers this repository does not
        have. *Other people*: the last 500 of the course's 2,000 training questions, shuffled by seed 0 and not trained on.
        *People who are in no training question*: 500 further ones, scored outside this repository. Fine-tuning alone has all
        of its 75 epochs. B5, B6 and B9 need 650 epochs of pretraining; the commands are in the
        [appendix](#commands). More on attnlab's own recipe: [results.md](results.md).""",
    ),
    "C": (
        "Efficient attention",
        """Errors of the output, relative to the output of exact attention. C1: two layers, three epochs of prose; random
        projections of the exact weights, and Linformer's own, both untrained. C2: forward
        and backward, 8 heads of width 32, batch 1, memory beyond the inputs. C3: 64 features, random queries and keys with the
        standard deviation (std) given, 32 draws; the six intervals for orthogonal directions hold jointly. The first version
        tested one of these and found nothing; it was widened to six after that. C4: 75 questions about built-in people, three
        seeds, with the mechanism `perceiver`; the reports' perceiver is B6. Its intervals hold jointly for 13 comparisons.""",
    ),
    "D": (
        "Mini-GPT: which choice matters?",
        """Trained as in the reports, nothing shortened, three seeds: sentences padded to 100 tokens, 32 at a time, drawn with
        replacement, one epoch. The reports have one run each, so intervals of losses, sentence perplexities and times are for
        one further run with another seed. This rule was chosen after the results of D1 were known; with the narrower interval
        of the mean, additive attention's dev perplexity would be better than theirs, and its difference from dot would differ.
        Tests of token perplexity are for new seeds and new sentences; the two of D2 hold jointly. Times are from a busy
        machine.""",
    ),
    "E": (
        "Hugging Face",
        """Reduced: MiniLM instead of RoBERTa-base, and part of the training sentences. The test sentences are held out from the
        training table. Three seeds for the optimizers, one run otherwise.""",
    ),
}

NEWER = """What CS224N asks since 2024 and CS336, and what students bring from nanoGPT and minGPT. These courses publish no
numbers to compare with: there are no verdicts, and none of these rows counts above. The commands run in this order from the
folder of the repository."""

ABLATIONS = """Ablations: two layers of width 64, 100 steps of 2,048 tokens, that is the beginning of training;
token perplexity of held-out stories with the 95 % interval of the change for new seeds and stories,
which hold jointly, and p after Holm. The learning rate of every variant is the best of those tried
with another seed on a third of the held-out stories; figures are from the other two thirds. Nothing
else is tuned, so nothing is shown for larger models, longer training or other text."""

TIMES = """Wall time on two cores that other jobs kept busy most of the time. Comparisons (C and D) add up the times of their
runs. Measurements without training are not recorded. The times of D1 and most of E are known to the minute. The whole is
extrapolated in proportion to epochs or sentences."""

TIMED = {
    "B": ("reports",),
    "C": ("efficient",),
    "D": ("additive-vs-dot", "shared-projections", "masking"),
    "E": ("curve", "optimizers", "search", "bag"),
}


def times(kept: Store) -> Iterator[str]:
    """The time to redo each report, and what the whole would take where it was cut."""
    for code, names in TIMED.items():
        found = {name: kept[name].seconds or 0.0 for name in names if name in kept}
        missing = [name for name in names if name not in kept]
        run = [f"{duration(sum(found.values()))} ({', '.join(found)})"] if found else []
        run += [f"not run: {', '.join(missing)}"] if missing else []
        cut = any(kept[name].whole for name in found)
        whole = duration(sum(kept[name].whole or seconds for name, seconds in found.items())) if cut else ""
        yield f"| {code} | {'; '.join(run)} | {whole} |"


def table(*columns: str) -> str:
    """The head of a Markdown table."""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def probe_lines(kept: Store) -> Iterator[str]:
    """The probe sentences, theirs and ours."""
    figures = probe_figures(kept)
    yield table("probe sentence, loss: theirs; ours", *figures)
    for at in range(4):
        cells = (f"{PROBES[name][at]:.3f}; {each[at]}" for name, each in figures.items())
        yield f"| {at + 1} | {' | '.join(cells)} |"


def command_lines(kept: Store) -> Iterator[str]:
    """How every number is made."""
    yield "Part A: the sheet and answers of A1, and so on to A12. Mistakes are in files that end in `-wrong`."
    yield "A2 to A4 also use sheet a12, and A7 and A8 the second command."
    yield "```bash\nattnlab check examples/sheets/a1.toml examples/sheets/a1-right.toml"
    yield f"attnlab design noise --samples {SAMPLES}"
    yield "```\nParameters and counts:\n```bash"
    yield "attnlab params mingpt   # or mingpt-perceiver, nano-words, mingpt --model.positions rotary"
    yield "attnlab corpus show --corpus wiki.txt --preset mingpt"
    yield "attnlab corpus show --corpus news/train.tokens --task words"
    yield "attnlab classify train.tsv dev.tsv --model minilm --explain-batch\n```"
    yield "Studies, as they were typed; names of files stand for those of the course. C1 reads the model of the"
    yield f"first command.\n```bash\n{PROSE}"
    shown = {*LONG, *(item.study for item in ITEMS)}
    yield from (one.command for name, one in kept.items() if one.command and name not in shown)
    yield "```\nB5, 650 epochs: the second command continues after every stop. After 50 epochs, keep a folder"
    yield "`at-50` with config.json, env.json and manifest.json of the run, and its checkpoint as `model`;"
    yield "after 100, 200 and 400 epochs in the same way.\n```bash"
    yield f"{LONG['B5'][2]}\nattnlab resume runs/b5/pretrain"
    for base, at in (("at-50", 50), ("pretrain", FULL)):
        yield f"attnlab finetune runs/b5/{base} --facts facts.tsv --out runs/b5/tuned-{at}"
        yield f"attnlab evaluate runs/b5/tuned-{at} --exam exam.tsv --out runs/b5/exam-{at}"
    yield "python benchmarks/course.py runs --long B5=runs/b5"
    yield f"```\nB6 and B9 in the same way, beginning with\n```bash\n{LONG['B6'][2]}\n{LONG['B9'][2]}\n```"


def page(kept: Store) -> str:
    """The text of docs/course.md."""

    def prose(text: str) -> str:
        return textwrap.fill(" ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False)

    sections = parts(kept)
    rows = [row for each in sections.values() for row in each]
    counts = Counter(row.verdict for row in rows)
    lines = [f"# The course reports: what is true?\n\n{prose(INTRO)}\n", *summary_lines(rows)]
    lines += ["\n## How it is judged\n", table("verdict", "meaning", "rows")]
    lines += [f"| **{verdict}** | {VERDICTS[verdict]} | {counts[verdict]} |" for verdict in get_args(Verdict)]
    compatible = [row for row in rows if row.verdict == "compatible"]
    lost = sum(not all(found.narrow(0.5) for found in row.figures) for row in compatible)
    lines += [f"\n{prose(WIDTHS.format(lost=lost, all=len(compatible)))}\n", table("kind of figure", "the interval")]
    lines += [f"| {kind.words} | {kind.rule} |" for kind in KINDS.values()]
    for code, (title, text) in PARTS.items():
        lines += [f"\n## {code}. {title}\n{prose(text)}\n", table("code", "they said", "we get", "verdict")]
        lines += [row.line() for row in sections[code]]
        if code == "D" and probe_figures(kept):
            lines += ["", *probe_lines(kept)]
    newer = f"{NEWER} {ABLATIONS}" if "ablations" in kept else NEWER
    lines += [f"\n## F. Newer courses\n{prose(newer)}\n", *newer_lines(kept)]
    counted_rows = sections["appendix"]
    lines += ["\n## Appendix: parameters and counts"]
    for verdict in dict.fromkeys(row.verdict for row in counted_rows):
        each = (
            f"{row.said} ({row.code})" + (f", here {row.found}" if verdict == "differs" else "")
            for row in counted_rows
            if row.verdict == verdict
        )
        lines.append(prose(f"**{verdict}**: {'; '.join(each)}.") + "\n")
    lines += ["## Commands\n`benchmarks/course.py` writes this page from figures that are kept in course.json.\n"]
    lines += ["```bash\nATTNLAB_DATA=... python benchmarks/course.py RUNS\n```", *command_lines(kept)]
    lines += [f"\n## Times\n{prose(TIMES)}\n", table("report", "time", "the whole"), *times(kept)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Add the studies in a folder to those that are kept, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of finished studies")
    parser.add_argument(
        "--long", action="append", default=[], metavar="CODE=FOLDER", help="a pretraining of 650 epochs"
    )
    arguments = parser.parse_args()
    found = found_in(arguments.runs)
    for given in arguments.long:
        code, _, folder = given.partition("=")
        found[code] = read_long(code, Path(folder))
    if data := os.environ.get("ATTNLAB_DATA"):
        found["counts"] = counted(Path(data))
    kept = {**read_store(), **found}
    write_store(kept)
    PAGE.write_text(page(kept), encoding="utf-8")
    print(f"{PAGE}: {len(found)} studies read now, {len(kept) - len(found)} from earlier")


if __name__ == "__main__":
    main()
