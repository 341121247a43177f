"""The claims of the course reports beside what attnlab finds, as docs/course.md.

    ATTNLAB_DATA=path/to/data python benchmarks/course.py RUNS

RUNS is a folder with finished studies, by the names that STUDIES gives them. Their rows are kept in docs/course.json, so that
studies can be added and repeated one at a time; claims of studies that were never run are "not run". Part A, parameters and
the figures of the corpora are computed here.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

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
from attnlab.report.words import count, duration, figure, percent, sized, span
from attnlab.store.folders import is_written, read_json
from attnlab.store.records import convert
from attnlab.studies.ready import PUBLISHED

Verdict = Literal["reproduces", "exceeds", "contradicts", "not shown", "not comparable", "not run"]
Better = Literal["higher", "lower", "neither"]
Result = Mapping[str, Any]
Part = Callable[[Result], Iterable["Row"]]

ROOT = Path(__file__).parents[1]
SHEETS = ROOT / "examples/sheets"
PAGE, STORE = ROOT / "docs/course.md", ROOT / "docs/course.json"
ABSENT = "not run for this table; see [results.md](results.md)"
RARELY = 0.05  # share of noisy samples in which a statement about them may fail
MOSTLY = 0.9  # what "almost always" means
FEATURES = 64  # at which Performer's features are compared
PROBES = {"dot": (9.459, 6.742, 8.199, 6.355), "additive": (9.114, 6.478, 7.895, 6.327)}
PROBES["zero_mask"] = (8.430, 5.466, 6.271, 4.995)

_NEWS = "--corpus news/train.tokens --dev news/dev.tokens --seeds 3"
_REVIEWS = "attnlab classify train.tsv dev.tsv --labels 1=positive,0=negative --model minilm"
# Code, command without --out, and what is claimed, which is shown if the study was not run.
STUDIES = {
    "reports": (
        "B2, B3, B5, B6, B8",
        "attnlab run reports --corpus wiki.txt --facts facts.tsv --exam exam.tsv",
        "fine-tuned alone 0.6, 1.2, 2.0 %; always London 5.0 %; pretrained 18.8, 21.0, 23.0 %; perceiver 16.6 %",
    ),
    "linformer-error": (
        "C1",
        "attnlab mechanisms show linformer --error --run RUNS/prose-linformer --draws 8",
        "attention is nearly low rank; Linformer needs a rank of the order of 1/error²",
    ),
    "reach": ("C2", "attnlab bench dot bigbird --reach 1GB", "BigBird: 8 times longer texts in the same memory"),
    "performer-error": (
        "C3",
        "attnlab mechanisms show performer --error",
        "trigonometric features are unstable; orthogonal directions reduce the error",
    ),
    "efficient": ("C4", "attnlab run efficient", "perceiver and synthesizer"),
    "additive-vs-dot": (
        "D1",
        f"attnlab run additive-vs-dot {_NEWS}",
        "additive attention takes 5.7 times the time; dev perplexity of sentences 386.0, dot 380.8",
    ),
    "additive-time": (
        "D1",
        "attnlab bench dot additive --lengths 100 --batch 32 --n-head 3 --n-embd 48",
        "(the reason: scores of additive attention, written out)",
    ),
    "shared-projections": ("D2", f"attnlab run shared-projections {_NEWS}", "no difference found"),
    "masking": ("D3", f"attnlab run masking {_NEWS}", "dev perplexity of sentences 186.5, dot 380.8; a leak"),
    "curve": ("E", f"{_REVIEWS} --epochs 10", "curves over 10 epochs, the best epoch"),
    "optimizers": (
        "E",
        f"{_REVIEWS} --optimizers adamw,sgd,adagrad --seeds 3 --epochs 3",
        "at least two other optimizers",
    ),
    "search": (
        "E",
        f"{_REVIEWS} --test test.tsv --search --trials 12 --epochs 4",
        "a search on validation; one test accuracy: 93.2 to 94.8 % (RoBERTa-base)",
    ),
    "bag": (
        "E",
        "attnlab classify train.tsv dev.tsv --labels 1=positive,0=negative --model bag-of-words",
        "(bag of words)",
    ),
}


@dataclass(frozen=True)
class Row:
    """A claim of the reports, what attnlab finds, and the command that shows it."""

    code: str
    said: str
    found: str
    verdict: Verdict
    command: str

    def line(self) -> str:
        """The row of a Markdown table."""
        said, found = (text.replace("|", "\\|") for text in (self.said, self.found))
        return f"| {self.code} | {said} | {found} | {self.verdict} | `{self.command}` |"


# The rule


def judge(
    reported: Sequence[float],
    found: float,
    low: float | None = None,
    high: float | None = None,
    *,
    better: Better = "neither",
    cut: bool = False,
    same_data: bool = True,
) -> Verdict:
    """A measured number beside reported ones; without an interval it must be equal.

    A training that was cut exceeds the reports if it is better all the same, and otherwise shows nothing about them.
    """
    if not same_data:
        return "not comparable"
    low, high = (found if low is None else low), (found if high is None else high)
    if (better == "higher" and low > max(reported)) or (better == "lower" and high < min(reported)):
        return "exceeds"
    if cut:
        return "not comparable"
    return "reproduces" if low <= max(reported) and high >= min(reported) else "contradicts"


def claim(holds: bool, *, new: bool = False) -> Verdict:
    """A statement that can be decided; `new` if the reports do not have it."""
    if not holds:
        return "contradicts"
    return "exceeds" if new else "reproduces"


def done(complete: bool) -> Verdict:
    """A task without a number in the reports."""
    return "reproduces" if complete else "not comparable"


def above_zero(low: float, high: float) -> Verdict:
    """The statement that a difference with this interval is above 0."""
    return "reproduces" if low > 0 else "contradicts" if high < 0 else "not shown"


def around(kind: str, value: float, low: float | None = None, high: float | None = None) -> str:
    """A number with its interval."""
    between = span(low, high, kind)
    return figure(value, kind) + (f" ({between})" if between else "")


def triple(one: Result, key: str = "mean") -> tuple[float, float | None, float | None]:
    """A number of a result with the ends of its interval."""
    return one[key], one["low"], one["high"]


def share(one: Result) -> str:
    """The share of right answers or labels."""
    return f"{around('share', *triple(one, 'accuracy'))} of {one.get('questions') or one['texts']:,}"


# A: design

# Code, claim, sheet, answers (a file beside the sheet, or its text) and task. Claims in brackets are not in the reports.
ASKED = (
    ("A1", "k_j·q far above every other k_i·q copies v_j", "a1", "a1-right", "copy"),
    ("A1", "(a key between others cannot be copied)", "a1", "a1-right", "middle"),
    ("A2", "Q = 1e5·K copies every value", "a12", "a12-right", "identity"),
    ("A2", "the same for keys with k_i·k_j > k_i·k_i", "a2", "a2-wrong", "identity"),
    ("A2", "(other queries copy these too)", "a2", "a2-right", "identity"),
    ("A3", "q = C(k_a + k_b), C large, averages two", "a3", "a3-right", "average"),
    ("A3", "q = (k_a + k_b)/2, not scaled", "a12", "a12-wrong", "average two"),
    ("A4", "the mean of the keys averages all", "a12", "a12-wrong", "average all"),
    ("A4", "the same for longer keys", "a4", 'mean = "(K[0] + K[1] + K[2])/3"', "mean"),
    ("A4", "(q = 0 averages all, whatever the keys)", "a4", "a4-right", "mean"),
    ("A5", "M = A Aᵀ extracts v_a from v_a + v_b", "a5", "a5-right", "orthonormal"),
    ("A5", "M = A", "a5", 'orthonormal = "A"', "orthonormal"),
    ("A5", "(an oblique projector for independent subspaces)", "a5", "a5-right", "oblique"),
    ("A5", "(no matrix for subspaces that meet)", "a5", "a5-right", "meeting"),
    ("A6", "q = C(mu_a + mu_b) averages two under small noise", "a6", "a6-right", "one head"),
    ("A7", "(one head that holds: q = -C times the other keys)", "a7", "a7-right", "one head"),
    ("A8", "q_1 = C mu_a, q_2 = C mu_b", "a8", "a8-right", "two heads"),
    ("A8", "q_1 = q_2", "a8", "a8-wrong", "two heads"),
    ("A9", "c_2 ≈ u_a", "a9", "a9-right", "c2"),
    ("A9", "adding u_c to x_2 cannot give u_b", "a9", "a9-right", "add u_c"),
    ("A9", "adding u_d to x_2 cannot give u_b", "a9", "a9-right", "add u_d"),
    ("A10", "V = (u_b u_bᵀ - u_c u_cᵀ)/beta², K = I, Q = u_d u_aᵀ + u_c u_dᵀ", "a10", "a10-right", "layer"),
    ("A10", "(equal tokens cannot have different outputs)", "a10", "a10-right", "equal tokens"),
    ("A11", "(a key of norm 1 that returns v_2: asked, not answered)", "a11", "a11-right", "its own value"),
    ("A11", "(the same for a query a tenth as long is impossible)", "a11", "a11-right", "weak query"),
    ("A12", "select v_0: q = 10 k_0", "a12", "a12-right", "select"),
    ("A12", "identity: Q = 1e5·K", "a12", "a12-right", "identity"),
    ("A12", "average v_0 and v_1: q = 10 (k_0 + k_1)/2", "a12", "a12-right", "average two"),
    ("A12", "average v_0 and v_1: q = (k_0 + k_1)/2", "a12", "a12-wrong", "average two"),
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


def marking_row(code: str, said: str, sheet: str, answers: str, task: str) -> Row:
    """A claim that a sheet decides."""
    asked, given = (SHEETS / f"{name}.toml" for name in (sheet, answers))
    text = given.read_text(encoding="utf-8") if given.exists() else answers
    outcome = marked(asked.read_text(encoding="utf-8"), text)[task]
    check = f"attnlab check examples/sheets/{asked.name}"
    command = f"{check} examples/sheets/{given.name}" if given.exists() else f"echo '{text}' > a.toml; {check} a.toml"
    return Row(code, said, outcome_words(outcome), claim(outcome.passed, new=said.startswith("(")), command)


def noise_rows() -> Iterator[Row]:
    """A7 and A8: shares of samples, C = 10 and n = 10."""
    samples = 200_000
    command = f"attnlab design noise --samples {samples}"
    one, equal, split = noise(samples=samples).designs
    law = 0.5 * math.erfc(math.log(9) / 10)  # P(1/(1 + exp((1 - e)C)) >= 0.9) for e ~ N(1, 1/2), C = 10
    near, error = one.simulated.near_one, 1.96 * one.standard_error.near_one
    said = f"c swings: a_a = 1/(1 + exp((1 - e)C)), so that {percent(law)} are at 0.9 or more"
    found = f"{percent(near)}, and {percent(one.simulated.near_zero)} at 0.1 or less"
    yield Row("A7", said, found, judge([law], near, near - error, near + error), command)
    for words, heads in (("two equal heads", equal), ("two split heads", split)):
        found = f"standard deviation of the weight on v_a {heads.simulated.sd:.3f}; of one head {one.simulated.sd:.3f}"
        yield Row("A8", f"{words} swing less", found, claim(heads.simulated.sd < one.simulated.sd), command)
    loud = noise(samples=samples, strength=1000.0).designs[2].simulated.failures
    failed = split.simulated.failures
    found = f"it is outside [1/4, 3/4] in {percent(failed)} of samples, {percent(loud)} at C = 1,000"
    said = "with two split heads the weight on v_a stays near 1/2"
    yield Row("A8", said, found, claim(failed <= RARELY), command)
    values, text = "values = [[0,1,0,0],[0,0,1,0],[0,0,0,1],[1,0,0,0]]", '"two heads" = ["15*V[0]", "15*V[1]"]'
    sheet = re.sub("^values.*$", values, (SHEETS / "a8.toml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    outcome = marked(sheet, text)["two heads"]
    command = f"sed 's/^values.*/{values}/' examples/sheets/a8.toml > s.toml; echo '{text}' > a.toml; "
    command += "attnlab check s.toml a.toml"
    yield Row(
        "A8",
        "queries made of values, here others than the keys",
        outcome_words(outcome),
        claim(outcome.passed),
        command,
    )


def design_rows() -> list[Row]:
    """Part A, all computed here."""
    rows = [*(marking_row(*one) for one in ASKED), *noise_rows()]
    return sorted(rows, key=lambda row: int(row.code[1:]))


# Studies


def read(runs: Path, name: str) -> Result | None:
    """The result of a finished study, if it is there."""
    for file in ("result.json", "error.json", "reach.json", "bench.json"):
        if is_written(runs / name / file):
            return read_json(runs / name / file)
    return None


@dataclass(frozen=True)
class Kept:
    """The rows of a study, the seconds that it took, and those that it would take if nothing had been cut."""

    rows: tuple[Row, ...]
    seconds: float | None = None
    whole: float | None = None


Store = dict[str, Kept]


def read_store() -> Store:
    """The studies of earlier calls."""
    if not STORE.exists():
        return {}
    stored = json.loads(STORE.read_text(encoding="utf-8"))
    return {name: Kept(tuple(Row(*row) for row in one.pop("rows")), **one) for name, one in stored.items()}


def write_store(kept: Store) -> None:
    """Keep the studies for later calls."""
    plain = {
        name: {**asdict(one), "rows": [list(asdict(row).values()) for row in one.rows]} for name, one in kept.items()
    }
    STORE.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def found_in(runs: Path) -> Store:
    """The finished studies in a folder."""
    kept = {}
    for name, part in PARTS_OF.items():
        if result := read(runs, name):
            rows = part({"command": _command(name), **result})
            kept[name] = Kept(tuple(rows), result.get("seconds"), uncut_seconds(result))
    return kept


def _command(name: str) -> str:
    return f"{STUDIES[name][1]} --out RUNS/{name}"


def rows_of(kept: Store, *names: str) -> Iterator[Row]:
    """The rows of some studies; the claims alone of those that are missing."""
    for name in names:
        code, _, said = STUDIES[name]
        yield from kept[name].rows if name in kept else [Row(code, said, ABSENT, "not run", _command(name))]


def exact(code: str, command: str, numbers: Iterable[tuple[str, float, float]]) -> Iterator[Row]:
    """Numbers that must be equal: what, reported, found."""
    for said, reported, found in numbers:
        yield Row(code, f"{said}: {count(reported)}", count(found), judge([reported], found), command)


# B: recall


def recall_rows(kept: Store, data: Path) -> Iterator[Row]:
    """Parameters, the corpus and the sentence of the exam, computed here; then accuracies."""
    for code, preset, reported in (("B1", "mingpt", 3_323_392), ("B6", "mingpt-perceiver", 3_339_776)):
        total = sum(count_parameters(meta_model(resolve(preset).model)).values())
        yield from exact(code, f"attnlab params {preset}", [(f"parameters of {preset}", reported, total)])
    if (text := data / "birthplaces/wiki.txt").exists():
        seen = preview(resolve("mingpt"), str(text), None, 0)
        numbers = [("characters", 418_352, seen.characters), ("lines", 2_937, seen.documents)]
        numbers.append(("symbols with mask and padding", 256, seen.symbols))
        yield from exact("B4", "attnlab corpus show --corpus wiki.txt --preset mingpt", numbers)
    exam = tuple(Question("", "yes" if at < 115 else "no") for at in range(500))
    sentence, wanted = Examination(exam, ("yes",) * 500).score().sentence(), "Correct: 115 out of 500: 23.0%"
    yield Row("B7", f"prints {wanted!r}", repr(sentence), claim(sentence.startswith(wanted)), "attnlab score EXAM FILE")
    yield from rows_of(kept, "reports")


def reported_recall(result: Result) -> Iterator[Row]:
    """B2, B3, B5, B6 and B8."""
    codes = {"fine-tuned alone": "B2", "pretrained": "B5", "pretrained, perceiver": "B6", "London": "B3"}
    command, full, asked = result["command"], result["full"], result["data"]["training_questions"]
    rows = [row for row in result["rows"] if row["model"] in codes]
    for row in rows:
        cut = row["epochs"] not in (0, full)
        same = result["as_reported"]
        said = f"{row['model']}, {full} epochs" if cut else row["name"]
        said += f": {', '.join(f'{100 * one:.1f}' for one in row['reported'])} %"
        found = share(row)
        if row["seconds"]:
            found += f"; {asked:,} training questions, {duration(row['seconds'])}"
        found = f"{row['epochs']} epochs: {found}" if cut else found
        verdict = judge(row["reported"], *triple(row, "accuracy"), better="higher", cut=cut, same_data=same)
        yield Row(codes[row["model"]], said, found, verdict, command)
    alone, *others = (row for row in rows if row["kind"] == "model")
    two = sum(one["share"] for one in alone["commonest"][:2])
    said = "fine-tuned alone, it almost always answers one of two places"
    yield Row("B2", said, commonest(alone), claim(two >= MOSTLY), command)
    best = max(others, key=lambda row: row["accuracy"])
    found = f"{best['name']}: {share(best)}; {alone['name']}: {share(alone)}; {commonest(best)}"
    verdict = above_zero(best["low"] - alone["high"], best["high"] - alone["low"])
    if verdict != "reproduces" and best["epochs"] < full:  # a cut schedule cannot refute the whole one
        verdict = "not comparable"
    yield Row("B8", "pretraining helps", found, verdict, command)


def commonest(row: Result) -> str:
    """The most common answers of a model."""
    named = (f"{one['prediction']} {percent(one['share'])}" for one in row["commonest"])
    return f"its commonest answers: {', '.join(named)}"


# C: efficient attention


def low_rank(result: Result) -> Iterator[Row]:
    """C1."""
    command, measured = result["command"], convert(Approximation, result)
    listed = "; ".join(
        f"{one.sample} {', '.join(str(one.rank_for(level)) for level in (0.5, 0.2, 0.1))}" for one in measured.spectrum
    )
    found = f"rank for an error of 50, 20 and 10 %, of {len(measured.spectrum[0].cumulative)} tokens: {listed}"
    yield Row("C1", "attention is nearly low rank", found, "not comparable", command)
    for sample in measured.samples:
        by_rank = {row.value: row for row in measured.curve(sample, PROJECTED)}
        few, many = by_rank[8], by_rank[32]
        ratio = many.mean / few.mean
        half = ratio * half_width(*(row.std / row.mean for row in (few, many)), draws=measured.draws)
        said = f"rank of the order of 1/error²: at rank 32 half the error of rank 8, projected at random ({sample})"
        found = around("ratio", ratio, ratio - half, ratio + half)
        yield Row("C1", said, found, judge([0.5], ratio, ratio - half, ratio + half), command)


def half_width(*deviations: float, draws: int, tests: int = 1) -> float:
    """Half of the 95 % interval of a difference of means; intervals of several tests hold together."""
    return float(t.ppf(1 - 0.025 / tests, draws - 1)) * math.hypot(*deviations) / math.sqrt(draws)


def reach(result: Result) -> Iterator[Row]:
    """C2."""
    within = convert(ReachResult, result)
    tokens = {row.label: row.tokens for row in within.reached}
    guessed = {row.label: " (extrapolated)" for row in within.reached if not row.measured}
    for other, words in (("naive", "with all weights in memory"), ("SDPA", "fused")):
        ratio = tokens["bigbird"] / tokens[other]
        said = f"BigBird: 8 times longer texts than exact attention, {words}, in the same memory"
        lengths = (f"{name} {tokens[name]:,}{guessed.get(name, '')}" for name in ("bigbird", other))
        found = f"{ratio:.3g} times; tokens in {sized(within.budget)}: {', '.join(lengths)}"
        yield Row("C2", said, found, judge([8], ratio, better="higher"), result["command"])


def features(result: Result) -> Iterator[Row]:
    """C3."""
    measured = convert(Approximation, result)
    rows = {(row.sample, row.form): row for row in measured.rows if row.value == FEATURES}
    kinds, samples = ("trigonometric", "positive"), measured.samples
    errors = [[rows[sample, f"{kind} orthogonal"].median for kind in kinds] for sample in samples]
    listed = "; ".join(
        f"{sample}: error {trig:.3g}, positive {positive:.3g}"
        for sample, (trig, positive) in zip(samples, errors, strict=True)
    )
    said = "trigonometric features are unstable where weights are small, which they are for the largest std"
    yield Row("C3", said, listed, claim(errors[-1][0] > errors[-1][1]), result["command"])
    for kind in kinds:
        for sample in samples:
            own, other = (rows[sample, f"{kind} {directions}"] for directions in ("orthogonal", "iid"))
            half = half_width(own.std, other.std, draws=measured.draws, tests=len(kinds) * len(samples))
            gain = other.mean - own.mean
            found = (
                f"mean error {own.mean:.3g}, independent {other.mean:.3g}, difference {number(gain)} ± {number(half)}"
            )
            said = f"orthogonal directions reduce the error of {kind} features ({sample})"
            yield Row("C3", said, found, above_zero(gain - half, gain + half), result["command"])


def remembered(result: Result) -> Iterator[Row]:
    """C4."""
    right = {one["name"]: one["values"]["accuracy"] for one in result["variants"]}
    pairs = {name: one for one in result["comparisons"] for name in (one["a"], one["b"])}
    for name, said in (("perceiver", "less accurate"), ("synthesizer", "attention without products (no number)")):
        found = f"{around('share', *triple(right[name]))}, dot {around('share', *triple(right['dot']))}; {pairs[name]['words']}"
        yield Row("C4", f"{name}, {said}", found, "not comparable", result["command"])


# D: word-level models


def words_rows(kept: Store, data: Path) -> Iterator[Row]:
    """The corpus and the parameters, computed here; then comparisons."""
    if (text := data / "news/train.tokens").exists():
        seen = preview(resolve("nano-words"), str(text), None, 0)
        assert seen.words is not None
        numbers = [("sentences", 61_530, seen.words.sentences), ("tokens", 1_561_375, seen.words.tokens)]
        numbers += [("distinct words", 80_659, seen.words.distinct), ("entries", 26_604, seen.symbols)]
        numbers.append(("full batches of 32 in an epoch", 1_922, seen.examples_per_epoch // 32))
        yield from exact("D", "attnlab corpus show --corpus news/train.tokens --task words", numbers)
    parts = count_parameters(meta_model(resolve("nano-words").model))
    size = sum(parts.values()) - parts["head"]
    verdict = judge([1.41], round(size / 1e6, 2))
    yield Row("D", "parameters without the head: 1.41 M", count(size), verdict, "attnlab params nano-words")
    yield from rows_of(kept, "additive-vs-dot", "additive-time", "shared-projections", "masking")


def further_run(each: Sequence[float], kind: str) -> tuple[float, float | None, float | None]:
    """The mean over seeds, and the 95 % interval for one further run, which is what the reports have."""
    logs = kind in ("perplexity", "ratio")  # positive, and compared by factors
    found = stats.mean_interval([math.log(one) for one in each] if logs else each)
    if found.high is None:
        return math.exp(found.mean) if logs else found.mean, None, None
    half = (found.high - found.mean) * math.sqrt(found.n + 1)
    low, high = found.mean - half, found.mean + half
    return (math.exp(found.mean), math.exp(low), math.exp(high)) if logs else (found.mean, low, high)


def published(code: str, other: str, result: Result) -> Iterator[Row]:
    """D1 and D3: a mechanism beside dot, with the figures of the reports."""
    variants = {one["name"]: one for one in result["variants"]}
    # The reports' figures are part of results on their sentences with their settings.
    same = bool(result.get("published")) and len(result["seeds"]) > 1

    def row(said: str, reported: float, each: Sequence[float], kind: str, better: Better = "neither") -> Row:
        found = further_run(each, kind)
        verdict = judge([reported], *found, better=better, same_data=same)
        return Row(code, said, around(kind, *found), verdict, result["command"])

    named = {"final_loss": "final loss", "train_sentence_perplexity": "training perplexity of sentences"}
    named["dev_sentence_perplexity"] = "dev perplexity of sentences"
    for name in ("dot", other):
        one, reports = variants[name], PUBLISHED[name]
        better: Better = "neither" if one["leaks"] else "lower"
        for key, words in named.items():
            kind = "loss" if key == "final_loss" else "perplexity"
            yield row(f"{name}, {words}: {reports[key]:g}", reports[key], one["values"][key]["each"], kind, better)
        for number_of, (loss, probe) in enumerate(
            zip(PROBES[name], one["texts"]["spaced_probes"], strict=True), start=1
        ):
            yield row(f"{name}, loss of probe sentence {number_of}: {loss:.3f}", loss, probe["losses"], "loss")

    def pairs(key: str) -> list[tuple[float, float]]:
        return list(zip(*(variants[name]["values"][key]["each"] for name in (other, "dot")), strict=True))

    reported = PUBLISHED[other]["dev_sentence_perplexity"] - PUBLISHED["dot"]["dev_sentence_perplexity"]
    gaps = [own - dot for own, dot in pairs("dev_sentence_perplexity")]
    gap = row(f"dev perplexity of sentences, {other} minus dot: {reported:.1f}", reported, gaps, "loss")
    yield replace(gap, found=f"{gap.found}. Tested over all runs: {result['comparisons'][0]['words']}")
    reported = PUBLISHED[other]["seconds"] / PUBLISHED["dot"]["seconds"]
    ratios = [own / dot for own, dot in pairs("seconds")]
    taken = row(f"{other} takes {reported:.1f} times the time of dot", reported, ratios, "ratio", "lower")
    _, low, high = further_run(ratios, "ratio")
    vague = taken.verdict == "reproduces" and (low or 0.0) <= 1 <= (high or math.inf)  # equal times are possible too
    yield replace(taken, verdict="not shown") if vague else taken
    if other == "zero_mask":
        yield leak(variants[other], result["command"])


def additive_time(result: Result) -> Iterator[Row]:
    """D1: where the time of additive attention goes."""
    ratios = {row["name"]: row["points"][0]["ratio"] for row in result["rows"]}
    listed = (f"{name.replace('reference', 'written out')} {ratio:.3g}" for name, ratio in ratios.items())
    slower = ratios["additive, reference"] > 2 * ratios["dot, reference"]
    found = f"attention alone, times torch's fused attention: {'; '.join(listed)}"
    yield Row("D1", STUDIES["additive-time"][2], found, claim(slower, new=True), result["command"])


def leak(variant: Result, command: str) -> Row:
    """Zero masking read whole and word by word."""
    twice = variant["word_by_word"]
    found = f"token perplexity {twice['whole']:,.0f} whole, {twice['word_by_word']:,.0f} word by word"
    holds = variant["leaks"] and twice["word_by_word"] > twice["whole"]
    return Row("D3", "the gain is a leak of the future", found, claim(holds), command)


def shared(result: Result) -> Iterator[Row]:
    """D2."""
    for one in result["comparisons"]:
        said = f"{one['a']} and {one['b']}: no difference found"
        yield Row("D2", said, one["words"], claim(not one["shown"]), result["command"])


# E: Hugging Face


def sentiment_rows(kept: Store, data: Path) -> Iterator[Row]:
    """The tables, read here; then fine-tuning."""
    if (tables := data / "sentiment").exists():
        table = read_tables(str(tables / "train.tsv"), str(tables / "dev.tsv"), None, None, {})
        numbers = [("training sentences", 6_920, len(table.train.rows)), ("for validation", 872, len(table.dev.rows))]
        yield from exact("E", "attnlab classify train.tsv dev.tsv --model minilm --explain-batch", numbers)
    yield from rows_of(kept, "curve", "optimizers", "search", "bag")


def ten_epochs(result: Result) -> str:
    """The first and the last accuracy, and the best epoch."""
    first, *_, last = result["epochs"]
    found = ", ".join(
        f"{words} {percent(first[key])} to {percent(last[key])}"
        for words, key in (("training", "train_accuracy"), ("validation", "dev_accuracy"))
    )
    texts = result["tables"]["data"]["train"]["texts"]
    return f"{texts:,} sentences: {found}; best epoch {result['best_epoch']}, {share(result['dev'])}"


def curve(result: Result) -> Iterator[Row]:
    """Ten epochs, and the trap."""
    verdict = done(len(result["epochs"]) == 10)
    yield Row("E", "curves over 10 epochs, the best epoch", ten_epochs(result), verdict, result["command"])
    shown = ", ".join(f"{len(texts)} {label}" for label, texts in result["tables"]["examples"].items())
    found = f"that copy is not at hand; shown before training: {shown} sentences"
    yield Row("E", "one public copy has its labels reversed", found, "not run", result["command"])


def bag(result: Result) -> Iterator[Row]:
    """What words alone tell."""
    found = f"{result['tables']['data']['train']['texts']:,} sentences, validation: {share(result['dev'])}"
    yield Row("E", STUDIES["bag"][2], found, "not comparable", result["command"])


def optimizers(result: Result) -> Iterator[Row]:
    """Three optimizers."""
    listed = [f"{one['name']} {around('share', *triple(one, 'accuracy'))}" for one in result["optimizers"]]
    found = f"validation: {', '.join(listed)}. {result['verdict'][0]}"
    yield Row("E", "at least two other optimizers", found, done(len(listed) >= 3), result["command"])


def search(result: Result) -> Iterator[Row]:
    """A search, and the test."""
    trials, best = result["trials"], result["trials"][result["best"] - 1]
    found = f"{len(trials)} trials, {sum(one['pruned'] for one in trials)} ended early; batch {best['batch_size']},"
    found += f" rate {best['lr']:.2g}, {best['epochs']} epochs: {share(result['dev'])} on validation"
    yield Row("E", "a search on validation", found, done(len(trials) > 1), result["command"])
    test = result["test"]
    verdict = judge([0.932, 0.948], *triple(test, "accuracy"), better="higher", cut=True)
    said = "one test accuracy: 93.2 to 94.8 % (RoBERTa-base)"
    yield Row("E", said, f"MiniLM: {share(test)}", verdict, result["command"])


PARTS_OF: dict[str, Part] = {
    "reports": reported_recall,
    "linformer-error": low_rank,
    "reach": reach,
    "performer-error": features,
    "efficient": remembered,
    "additive-vs-dot": lambda result: published("D1", "additive", result),
    "additive-time": additive_time,
    "shared-projections": shared,
    "masking": lambda result: published("D3", "zero_mask", result),
    "curve": curve,
    "optimizers": optimizers,
    "search": search,
    "bag": bag,
}


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
        return result["seconds"] * 6_920 / result["tables"]["data"]["train"]["texts"]
    return None


# The page

INTRO = """Every claim of the five course reports beside what attnlab finds, with the command that shows it.
`benchmarks/course.py` writes this page from finished studies in the folder RUNS, and keeps their rows in course.json. A
number *reproduces* the reports if they are equal, or if our 95 % interval overlaps what they report. It *exceeds* them if
the whole interval is better, and otherwise *contradicts* them. A statement holds or does not hold; a difference may also be
*not shown*. Statements in brackets are not in the reports, and exceed them if they hold. *Not comparable*: trained for less
time or on less data than in the reports and not better, trained on other data, or without a number in the reports.
Intervals of a single run cover new questions or texts, not new seeds. Commands are shown as they were typed; names of
files stand for those of the course."""

# What was cut, and how to read the rows.
PARTS = {
    "A. What can attention compute?": """Computed when this page is
written. *Off by*: the largest error of any coordinate; in A6 to A8, the root mean square error. `design noise` uses C = 10
and ten keys, the sheets their own values. A statement about noise holds if it fails in at most 5 % of samples.""",
    "B. What does a small language model know?": """The answers to the course's exam are not available, so some of the 2,000
training questions are held out as the exam (shuffled by seed 0, the last 500: `split_questions` of
benchmarks/birthplaces.py), and the models learn from the others. Fine-tuning alone runs for all 75 epochs.
Pretraining is shortened: the reports' schedule is compressed into 30 epochs, chosen to take about an hour; on a busy
machine they took two. For 4 and 12 epochs see results.md. *Almost always*: at least 90 % of the answers. Results of
attnlab's own recipe: [results.md](results.md).""",
    "C. Efficient attention": """Errors of the output, relative to the size of the output of exact attention. C1 reads a
model trained with `attnlab pretrain --corpus prose --preset text --mechanism linformer --model.n_layer 2 --model.n_head 4
--model.n_embd 64 --model.block_size 128 --train.epochs 3 --out RUNS/prose-linformer`. C3: 64 features of random queries and
keys, with the standard deviation in brackets; the intervals of its six differences hold jointly. The first version tested
only one difference and found none; it was widened to six after that. C4: the mechanism `perceiver` and built-in people; the
reports' perceiver, a stack of blocks on latents, is B6.""",
    "D. Mini-GPT: which choice matters?": """Trained as in the reports, nothing shortened: sentences padded to 100 tokens,
32 at a time, drawn with replacement, one epoch. One extra batch has the remaining sentences. Probe sentences are split at
spaces. The reports have one run each, so the intervals are for one further run with another seed; with few seeds they are
wide, and *reproduces* means only compatible. This rule was chosen after the results of D1 were known. Under the first rule,
which used the interval of the mean, the dev perplexity of additive attention exceeded the reports, and its difference from
dot and its probe sentences contradicted them. D2 quotes our test for new seeds and sentences instead, and contradicts the
reports where it shows a difference that their single runs did not. Times are from several runs at once on a busy machine;
intervals of their ratios are by factors, except that of D1, which is older than that rule.""",
    "E. Hugging Face": """Reduced: MiniLM instead of RoBERTa-base, and only part of the training sentences. The
course's test set is not available; the test sentences are held out from the training table. Tasks without a number are
either done or not.""",
}

TIMES = """Wall time as recorded by the studies, on two cores that other jobs kept busy most of the time; for part A, as
measured when this page was written. Comparisons (C and D) add up the times of their runs, measuring included, of which two
may run at once. Measurements without training (C1 to C3) are not recorded. The times of D1 and most of E are known to the
minute, that of the optimizers as what remains of the sum. The whole is extrapolated in proportion to epochs or
sentences."""


TIMED = {
    "B": ("reports",),
    "C": ("efficient",),
    "D": ("additive-vs-dot", "shared-projections", "masking"),
    "E": ("curve", "optimizers", "search", "bag"),
}


def times(kept: Store, design: float) -> Iterator[str]:
    """The time to redo each report, and what the whole would take where it was cut."""
    yield f"| A | {duration(design)} | |"
    for code, names in TIMED.items():
        found = {name: kept[name].seconds or 0.0 for name in names if name in kept}
        missing = [name for name in names if name not in kept]
        run = [f"{duration(sum(found.values()))} ({', '.join(found)})"] if found else []
        run += [f"not run: {', '.join(missing)}"] if missing else []
        cut = any(kept[name].whole for name in found)
        whole = duration(sum(kept[name].whole or seconds for name, seconds in found.items())) if cut else ""
        yield f"| {code} | {'; '.join(run)} | {whole} |"


def page(kept: Store, data: Path) -> Iterator[str]:
    """The lines of docs/course.md."""

    def prose(text: str) -> str:
        return textwrap.fill(" ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False)

    began = time.perf_counter()
    design = design_rows()
    seconds = time.perf_counter() - began
    efficient = rows_of(kept, "linformer-error", "reach", "performer-error", "efficient")
    parts = (design, recall_rows(kept, data), efficient, words_rows(kept, data), sentiment_rows(kept, data))
    yield f"# The course reports, redone\n\n{prose(INTRO)}"
    yield "```bash\nATTNLAB_DATA=... python benchmarks/course.py RUNS\n```"
    for (title, text), rows in zip(PARTS.items(), parts, strict=True):
        yield f"\n## {title}\n{prose(text)}\n"
        yield "| code | what the reports say | attnlab | verdict | command |\n|---|---|---|---|---|"
        yield from (row.line() for row in rows)
    yield f"\n## Time to redo each report\n{prose(TIMES)}\n\n| report | time | the whole |\n|---|---|---|"
    yield from times(kept, seconds)


def main() -> None:
    """Add the studies in a folder to those that are kept, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of finished studies")
    runs = parser.parse_args().runs
    if "ATTNLAB_DATA" not in os.environ:
        sys.exit("set ATTNLAB_DATA to the folder that holds birthplaces, news and sentiment")
    found = found_in(runs)
    kept = {**read_store(), **found}
    write_store(kept)
    PAGE.write_text("\n".join(page(kept, Path(os.environ["ATTNLAB_DATA"]))) + "\n", encoding="utf-8")
    print(f"{PAGE}: {len(found)} studies from {runs}, {len(kept) - len(found)} from earlier")


if __name__ == "__main__":
    main()
