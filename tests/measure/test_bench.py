"""Speed and memory: what is timed, what is said about it, and that memory is seen. No test asserts a time."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab import registry
from attnlab.errors import ConfigError, UserError
from attnlab.measure import bench
from attnlab.measure.bench import (
    NAIVE,
    SDPA,
    BenchResult,
    Conditions,
    Longest,
    Point,
    ReachResult,
    Row,
    timing,
    with_ratios,
)
from attnlab.measure.bench import cases as bench_cases
from attnlab.measure.bench.cases import Case, Inputs, choose_cases, prepare
from attnlab.measure.bench.timing import Limits, Trials, measurable, watch
from attnlab.report.document import Table
from attnlab.report.text import as_markdown
from attnlab.store import records
from verbs import call

linux = pytest.mark.skipif(not measurable(), reason="peak memory is measured on Linux only")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = Case("dot", n_head=2, n_embd=16)
LIMITS = Limits(memory=2e9, rounds=2)

USERS = """
import torch
from torch import nn

class Mean(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.out = nn.Linear(n_embd, n_embd)

    def forward(self, x, padding=None, cache=None):
        print("a user's word")
        return self.out(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])

class Broken(Mean):
    def forward(self, x, padding=None, cache=None):
        raise KeyError("nothing here")
"""

STEPS = """
import os
import sys
import torch
from attnlab.measure.bench.cases import EXTERNAL, Inputs, Work

x = torch.zeros(1, requires_grad=True)
seen = []

def note(tokens):
    fresh = {*sys.modules} - {*(seen or sys.modules)}
    seen[:] = seen or sys.modules  # before the limit is set
    print(*fresh, file=open(os.environ["ATTNLAB_TEST_LOADED"], "a"))

def one(tokens):
    return torch.ones(tokens, 250_000)  # a megabyte a token

def after_each_other(tokens):
    one(tokens); one(tokens); one(tokens)

def both(tokens):
    return one(tokens), one(tokens)

def broken(tokens):
    raise ValueError("no such thing")

def step(allocate, case):
    def forward(x):
        held = allocate(case.tokens)
        return x * 1
    return Work(forward, (x,), torch.ones(1))

kinds = {"one": one, "after": after_each_other, "both": both, "broken": broken, "dead": lambda _: os.abort(), "note": note}
for name, kind in kinds.items():
    EXTERNAL[name] = lambda case, inputs, kind=kind: step(kind, case)
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(USERS)
    return path


# Growth and crossing


@given(st.floats(1e-6, 1e3), st.floats(1.0, 3.0), st.integers(16, 512), st.floats(1.5, 8), st.floats(1, 64))
def test_a_power_law_is_extrapolated_both_ways(scale: float, power: float, n: int, step: float, far: float) -> None:
    lengths = [n, int(n * step) + 1]
    points = [(m, scale * m**power) for m in lengths]
    tokens = int(lengths[-1] * far)
    expected = scale * tokens**power
    assert bench.forecast(points, tokens) == pytest.approx(expected, rel=1e-6)
    assert bench.affordable(points, expected * 1.000001) == pytest.approx(tokens, abs=1, rel=1e-5)


def test_nothing_is_forecast_from_one_length() -> None:
    assert bench.forecast([(512, 1.0)], 1024) is None
    assert bench.affordable([(512, 1.0), (1024, 0.0)], 8.0) is None


def test_constant_costs_are_assumed_to_grow_in_proportion() -> None:
    assert bench.forecast([(100, 5.0), (200, 5.0)], 400) == pytest.approx(10.0)


@given(st.floats(-3.0, -0.05), st.integers(600, 15_000))
def test_the_crossover_of_a_power_law_is_found(power: float, truth: int) -> None:
    level = 1 - bench.NOISE
    pairs = [(n, level * (n / truth) ** power) for n in (512, 1024, 2048, 4096, 8192, 16384)]
    assert bench.crossover(dict(pairs)) == pytest.approx(truth, rel=1e-6)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_after_the_crossover_it_stays_faster(values: list[float]) -> None:
    pairs = [(2**at * 64, value) for at, value in enumerate(values)]
    found, level = bench.crossover(dict(pairs)), 1 - bench.NOISE
    assert (found is None) == (values[-1] >= level)
    if found is not None:
        assert pairs[0][0] <= found <= pairs[-1][0]
        assert all(ratio < level for n, ratio in pairs if n > found)
        slow = [n for n, ratio in pairs if ratio >= level]
        assert found >= max(slow, default=0)


def test_the_crossover_in_words() -> None:
    assert bench.crossover_text({512: 1.3, 1024: 0.99}) == "never up to 1,024"  # a hundredth is noise
    assert bench.crossover_text({512: 0.5, 1024: 0.2}) == "512 or less"
    assert bench.crossover_text({512: 1.9, 2048: 0.475}) == "1,024"
    assert bench.crossover_text({}) == "not measured"


# Tables


def made_up() -> BenchResult:
    bar = Row(SDPA, SDPA, (Point(512, 0.01, 3_000_000, 7), Point(1024, 0.04, 6_000_000, 7)))
    fast = Row("swift", SDPA, (Point(512, 0.02, 5_000_000, 7), Point(1024, 0.01, 10_000_000, 7)))
    slow = Row("naive", SDPA, (Point(512, 0.03, 30_000_000, 7), Point(1024, skipped="would need 12 GB")))
    setting = Conditions(1, 8, 256, True, seconds=15, memory=1e9, rounds=7, threads=1, memory_measured=True)
    return BenchResult(
        bench.compared((bar, fast, slow)),
        setting,
        {"processor": "a machine", "torch": "2"},
        {"other": "cannot be causal"},
    )


def texts(table: Table) -> list[list[str]]:
    rows = [[row.name.text, *(cell.text for cell in row.cells)] for row in table.rows]
    return [[column.title for column in table.columns], *rows]


def test_ratios_are_to_the_baseline_where_both_were_measured() -> None:
    result = made_up()
    assert result.rows[1].ratios == {512: 2.0, 1024: 0.25}
    assert result.rows[2].ratios == {512: 3.0}


def test_the_tables_say_what_was_measured_and_what_was_not() -> None:
    times, sizes = map(texts, made_up().document().tables())
    assert times[0] == ["time", "512", "1,024", "faster from"]
    assert times[1] == [SDPA, "10.0 ms", "40.0 ms", ""]
    assert times[2][:3] == ["swift", "2.00x", "0.25x"]
    assert 512 < int(times[2][3]) < 1024
    assert times[3] == ["naive", "3.00x", "skipped", "never up to 512"]
    assert sizes[1:] == [[SDPA, "3.0", "6.0"], ["swift", "5.0", "10"], ["naive", "30", "skipped"]]
    written = as_markdown(made_up().document())
    assert "- naive: skipped from 1,024 on: would need 12 GB\n" in written
    assert "- other: left out: cannot be causal\n" in written
    assert "| swift | 2.00x | 0.25x |" in written
    unmeasured = replace(made_up(), setting=replace(made_up().setting, memory_measured=False))
    assert "memory is not measured" in as_markdown(unmeasured.document())


def test_without_a_baseline_the_time_itself_is_shown() -> None:
    result = made_up()
    bar = replace(result.rows[0], points=(result.rows[0].points[0], Point(1024, skipped="would take 16 s")))
    times = texts(replace(result, rows=bench.compared((bar, *result.rows[1:]))).document().tables()[0])
    assert times[1][1:3] == ["10.0 ms", "skipped"]
    assert times[2][1:] == ["2.00x", "10.0 ms", "never up to 512"]


def test_the_json_has_times_ratios_memory_and_reasons() -> None:
    content = records.encode(made_up())
    assert records.decode(BenchResult, content, Path("bench.json")) == made_up()
    bar, swift, naive = json.loads(content)["rows"]
    assert (bar["crossover"], bar["ratios"]) == (None, {"512": 1.0, "1024": 1.0})
    assert (swift["baseline"], swift["ratios"]) == (SDPA, {"512": 2.0, "1024": 0.25})
    assert 512 < swift["crossover"] < 1024
    assert naive["points"][1] == {
        "tokens": 1024,
        "seconds": None,
        "bytes": None,
        "runs": 0,
        "skipped": "would need 12 GB",
    }


def test_time_and_memory_are_drawn_over_the_length() -> None:
    time, memory = made_up().charts()
    assert [list(line.y) for line in time.series] == [[10.0, 40.0], [20.0, 10.0], [30.0]]
    assert [list(line.y) for line in memory.series] == [[3.0, 6.0], [5.0, 10.0], [30.0]]


def test_a_cell_of_what_was_not_measured() -> None:
    row = Row(SDPA, SDPA, (Point(1, skipped="would take 16 s"), Point(2)))
    times, sizes = map(texts, replace(made_up(), rows=(row,)).document().tables())
    assert times[1][1:-1] == sizes[1][1:] == ["skipped", "–"]


# Who runs, and what


@pytest.mark.parametrize("name", registry.names("mechanism"))
@pytest.mark.parametrize("whole", [False, True])
def test_every_mechanism_can_be_timed(name: str, whole: bool) -> None:
    cases, _ = choose_cases([name], replace(SMALL, whole=whole, tokens=24))
    mine = [case for case in cases if case.name == name]
    assert mine
    for case in mine:
        gradients = prepare(case)()
        assert isinstance(gradients, tuple)
        assert any(one is not None and one.abs().sum() > 0 for one in gradients)
        assert all(one is None or one.isfinite().all() for one in gradients)


@pytest.mark.parametrize("causal", [True, False])
def test_all_forms_of_dot_do_the_same_work(causal: bool) -> None:
    inputs, like = Inputs(), replace(SMALL, causal=causal, tokens=20)
    forms = [replace(like, name=SDPA), replace(like, name=NAIVE), like, replace(like, path="reference")]
    first, *others = [prepare(case, inputs)() for case in forms]
    assert isinstance(first, tuple)
    assert [one.shape for one in first] == [(1, 2, 20, 8)] * 3
    for other in others:
        assert isinstance(other, tuple)
        for mine, its in zip(first, other, strict=True):
            assert torch.allclose(mine, its, atol=1e-5)


def test_the_whole_module_learns_its_projections_too() -> None:
    gradients = prepare(replace(SMALL, whole=True, tokens=6))()
    assert isinstance(gradients, tuple)
    assert [tuple(one.shape) for one in gradients] == [(1, 6, 16)] + [(16, 16)] * 4


def test_baselines_come_first_and_references_where_there_are_two_paths() -> None:
    cases, refused = choose_cases(["dot", "zero_mask"], SMALL)
    assert [case.label for case in cases] == [SDPA, NAIVE, "dot", "dot, reference", "zero_mask"]
    assert not refused
    assert [bench_cases.forms_pattern(case) for case in cases] == [False, True, False, True, True]
    cases, _ = choose_cases(["dot"], SMALL, references=False)
    assert [case.label for case in cases] == [SDPA, NAIVE, "dot"]
    everybody, _ = choose_cases([], SMALL, references=False)
    assert {case.name for case in everybody} >= set(registry.names("mechanism"))


def test_a_users_class_is_timed_whole_beside_a_whole_dot(users: Path) -> None:
    cases, _ = choose_cases([f"{users}:Mean", "dot"], SMALL, references=False)
    labels = [case.label for case in cases]
    assert labels == [SDPA, NAIVE, "dot, whole module", f"{users}:Mean, whole module", "dot"]
    assert cases[3].baseline == cases[2]
    assert cases[4].baseline == cases[0]


def test_options_follow_the_name() -> None:
    assert bench_cases.split_options("sliding:window=128,other=a") == ("sliding", {"window": "128", "other": "a"})
    assert bench_cases.split_options("mine.py:Mine") == ("mine.py:Mine", {})
    assert bench_cases.split_options("mine.py:Mine:width=2") == ("mine.py:Mine", {"width": "2"})
    module = bench_cases.build(replace(SMALL, name="gqa:groups=1"))
    assert module.heads.kv_heads == 1  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="unknown option of mechanism gqa 'group': did you mean groups"):
        choose_cases(["gqa:group=1"], SMALL)


def test_mechanisms_that_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unknown mechanism 'dott': did you mean dot"):
        choose_cases(["dott"], SMALL)
    monkeypatch.setitem(
        registry._entries, ("mechanism", "dot"), replace(registry.find("mechanism", "dot"), causal=False)
    )
    with pytest.raises(ConfigError, match="dot cannot be causal: use --bidirectional"):
        choose_cases(["dot"], SMALL)
    cases, refused = choose_cases([], SMALL, references=False)
    assert "dot" in refused
    assert "dot" not in {case.name for case in cases}
    assert choose_cases(["dot"], replace(SMALL, causal=False))[0]


# Turns and limits


def test_cases_take_turns() -> None:
    order: list[str] = []
    times = timing.take_turns({name: lambda name=name: order.append(name) for name in "abc"}, 3, 1)  # type: ignore[misc]
    assert "".join(order) == "abccbaabc"
    assert {name: len(taken) for name, taken in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_slow_cases_run_less_often() -> None:
    assert timing.runs_wanted([], 7) == 7
    assert timing.runs_wanted([0.001], 7) == 7
    assert timing.runs_wanted([1.1, 1.0], 7) == 3
    assert timing.runs_wanted([60.0], 7) == 1


def test_cases_too_big_or_too_slow_are_skipped_with_the_forecast() -> None:
    trials = Trials(Limits(seconds=10.0, memory=1e9))
    big, slow, linear = (replace(SMALL, name=name) for name in ("big", "slow", "linear"))
    trials.seen[big] = {512: Point(512, 0.01, 10_000_000), 1024: Point(1024, 0.04, 40_000_000)}
    trials.seen[slow] = {512: Point(512, 1.0, 1_000_000), 1024: Point(1024, 4.0, 2_000_000)}
    trials.seen[linear] = {512: Point(512, 0.1, 1_000_000), 1024: Point(1024, 0.2, 2_000_000)}
    assert trials.objection(big, 4096) == ""
    assert trials.objection(big, 8192) == "would need 2.6 GB"
    assert trials.objection(slow, 2048) == "would take 16 s"
    assert trials.objection(linear, 16384) == ""
    assert trials.admit(slow, 2048) == Point(2048, skipped="would take 16 s")


def test_a_pattern_that_cannot_fit_is_never_tried() -> None:
    trials = Trials(Limits(memory=1e9))
    naive = Case(NAIVE)
    assert trials.objection(naive, 2048) == ""
    assert trials.objection(naive, 16384) == "would need 25.8 GB"
    assert trials.objection(replace(naive, name=SDPA), 16384) == ""


def test_lengths_are_read_strictly() -> None:
    assert timing.read_lengths("2048,512,512") == [512, 2048]
    for wrong in ("", "a", "512,", "0", "1.5"):
        with pytest.raises(UserError, match="--lengths"):
            timing.read_lengths(wrong)


# Memory


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "steps_of_tests.py").write_text(STEPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("ATTNLAB_TEST_LOADED", str(folder / "loaded"))
        with Trials(Limits(memory=300e6), ("steps_of_tests",)) as trials:
            yield trials


@pytest.mark.processes
@linux
def test_naive_attention_holds_its_pattern_and_the_fused_one_does_not(trials: Trials) -> None:
    tokens = 1024
    pattern = 4 * 8 * tokens**2
    naive, fused = trials.run(Case(NAIVE), tokens), trials.run(Case(SDPA), tokens)
    assert naive.bytes is not None
    assert fused.bytes is not None
    assert 2 * pattern < naive.bytes < 5 * pattern
    # The averages and three gradients, and little besides.
    assert 4 * tokens * 256 * 4 * 0.9 < fused.bytes < pattern / 3
    assert naive.seconds is not None
    assert naive.seconds > 0


@linux
def test_the_memory_of_a_step_is_what_it_holds_at_once(trials: Trials) -> None:
    def megabytes(name: str, tokens: int) -> float:
        point = trials.run(Case(name), tokens)
        assert point.bytes is not None, point
        return point.bytes / 1e6

    assert megabytes("one", 100) == pytest.approx(100, abs=5)
    assert megabytes("after", 100) == pytest.approx(100, abs=5)
    assert megabytes("both", 100) == pytest.approx(200, abs=5)


@pytest.mark.processes
@linux
def test_nothing_is_loaded_between_the_steps_of_a_child(trials: Trials) -> None:
    for _ in range(2):
        trials.run(Case("note"), 1)
    loaded = Path(os.environ["ATTNLAB_TEST_LOADED"]).read_text().splitlines()
    assert len(loaded) == 4  # each time a short step and the measured one
    assert not any("attnlab" in line for line in loaded)


@linux
def test_a_step_that_fails_or_exceeds_its_limit_is_reported_and_the_next_one_runs(trials: Trials) -> None:
    assert trials.run(Case("one"), 400).skipped == "needs more than 300.0 MB"
    assert trials.run(Case("broken"), 1).skipped == "ValueError: no such thing"
    assert "SIGABRT" in trials.run(Case("dead"), 1).skipped
    assert not trials.run(Case("one"), 1).skipped


# How far


class Lawful(Trials):
    """Trials whose costs obey laws, so that the right answer is known."""

    def __init__(self, bytes_power: float, seconds_power: float, limits: Limits) -> None:
        super().__init__(limits)
        self.powers = bytes_power, seconds_power

    def run(self, case: Case, tokens: int) -> Point:
        point = Point(tokens, 1e-6 * tokens ** self.powers[1], int(100 * tokens ** self.powers[0]))
        self.seen[case][tokens] = point
        return point


@given(st.floats(1.0, 2.0), st.floats(7.5, 9.0))
def test_the_longest_text_in_a_memory(power: float, digits: float) -> None:
    memory = 10**digits
    truth = (memory / 100) ** (1 / power)
    longest = timing.longest(Lawful(power, 1.0, Limits(seconds=1e9, memory=1e12)), SMALL, memory)
    assert longest.measured
    assert min(truth, timing.LONGEST) / 1.05 <= longest.tokens <= truth + 1


def test_a_short_text_that_takes_no_memory_fits() -> None:
    class Frugal(Lawful):
        def run(self, case: Case, tokens: int) -> Point:
            point = super().run(case, tokens)
            self.seen[case][tokens] = replace(point, bytes=0 if tokens <= 512 else point.bytes)
            return self.seen[case][tokens]

    longest = timing.longest(Frugal(1.0, 1.0, Limits(seconds=1e9, memory=1e12)), SMALL, 1e6)
    assert 9_000 < longest.tokens <= 10_000


def test_lengths_beyond_the_time_limit_are_extrapolated_and_marked() -> None:
    trials = Lawful(1.0, 2.0, Limits(seconds=60.0, memory=2e9))
    longest = timing.longest(trials, SMALL, 1e7)
    assert not longest.measured
    assert longest.tokens == pytest.approx(1e5, rel=1e-3)
    assert max(trials.seen[SMALL]) <= 60_000_000**0.5
    assert longest.length == "about 100,000 (extrapolated)"


def test_amounts_of_memory_are_read() -> None:
    assert [timing.read_memory(text) for text in ("1GB", " 500 mb", "1.5Gb", ".5GB")] == [1e9, 5e8, 1.5e9, 5e8]
    for wrong in ("", "1", "GB", "1 parsec", "1.2.3GB", "0MB", "10s", "1GB,2GB"):
        with pytest.raises(UserError, match="--reach"):
            timing.read_memory(wrong)


def test_lengths_are_compared_with_that_of_naive_attention() -> None:
    reached = (Longest(SDPA, 8000, False), Longest(NAIVE, 1000, True), Longest("swift", 9000, True))
    conditions, machine = made_up().setting, made_up().environment
    result = ReachResult(1e9, *with_ratios(reached), {SDPA: (Point(512, 2.0, 5),)}, conditions, machine)
    assert records.decode(ReachResult, records.encode(result), Path("reach.json")) == result
    assert [[line.name for line in chart.series] for chart in result.charts()] == [[SDPA, "budget"]]
    assert texts(result.document().tables()[0]) == [
        ["within 1.0 GB", "tokens", "times naive"],
        [SDPA, "about 8,000 (extrapolated)", "8.0x"],
        [NAIVE, "1,000", "1.0x"],
        ["swift", "9,000", "9.0x"],
    ]
    assert with_ratios([Longest("whole", 500, True), Longest("other", 1000, True)])[1][1].ratio == 2
    assert with_ratios([Longest(NAIVE, 0, True)])[1][0].ratio is None


# The command


def test_bench_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("bench", "--help") == 0
    assert "--bidirectional" in capsys.readouterr().out


@pytest.mark.processes
def test_bench_measures_and_writes(tmp_path: Path, users: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    size = ["--n_head", "2", "--n_embd", "16", "--rounds", "2", "--memory_limit", "2"]
    names = ["dot", f"{users}:Mean", f"{users}:Broken"]
    assert call("bench", *names, "--lengths", "64,128", *size, "--json", "--out", out) == 0
    told = json.loads(capsys.readouterr().out.replace("a user's word\n", ""))
    rows = {row["label"]: row for row in told["rows"]}
    assert list(rows)[:2] == [SDPA, NAIVE]
    assert {"dot", "dot, reference", "dot, whole module", f"{users}:Mean, whole module"} < set(rows)
    for name, row in rows.items():
        for point, its in zip(row["points"], rows[row["baseline"]]["points"], strict=True):
            if "Broken" in name:
                assert point["skipped"].startswith("KeyError")
                continue
            assert row["ratios"][str(point["tokens"])] == pytest.approx(point["seconds"] / its["seconds"])
            assert point["runs"] == 2
            assert (point["bytes"] is not None) == measurable()
    assert [point["tokens"] for point in rows["dot"]["points"]] == [64, 128]
    assert told["setting"]["causal"] is True
    assert {path.name for path in out.iterdir()} == {
        "bench.json",
        "bench.md",
        "bench.html",
        "manifest.json",
    }
    assert call("bench", "dot", "--out", out) == 2


@linux
def test_a_step_that_allocates_nothing_still_has_a_cost() -> None:
    """A cost of zero would mean "not measured", and the case would reach no tokens at all."""
    cost, _ = watch(lambda: None)
    assert 0 < cost < 100_000


@pytest.mark.processes
@linux
def test_reach_goes_as_far_as_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    size = ["--n_head", "2", "--n_embd", "16"]
    assert call("bench", "dot", "--reach", "6MB", "--seconds", "0.05", *size, "--json", "--out", out) == 0
    result = json.loads(capsys.readouterr().out)
    reached = {row["label"]: row for row in result["reached"]}
    assert result["baseline"] == NAIVE
    assert reached[NAIVE]["measured"]
    most = max(run["bytes"] for run in result["runs"][NAIVE] if run["tokens"] <= reached[NAIVE]["tokens"])
    assert 3e6 < most <= 6e6
    assert 256 < reached[NAIVE]["tokens"] < math.sqrt(6e6 / (4 * 2 * 2))
    assert reached["dot"]["ratio"] > 3  # the fused kernel's memory is linear
    assert {path.name for path in out.iterdir()} == {"reach.json", "reach.md", "reach.html", "manifest.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dott"], "did you mean dot?"),
        (["no_such.py:Mine"], "no_such.py: no such file"),
        (["--lengths", "long"], "--lengths takes whole numbers"),
        (["--n_embd", "100"], "--n_embd must be a multiple of the 8 heads"),
        (["--batch", "0"], "--batch must be at least 1"),
        (["--rounds", "0"], "--rounds must be more than 0"),
        (["--memory_limit", "0"], "--memory_limit must be more than 0"),
        (["--reach", "10s"], "--reach takes an amount of memory"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("bench", *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


# The contest with other libraries


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    guests = dict(bench_cases.EXTERNAL)
    yield importlib.import_module("contest")
    bench_cases.EXTERNAL.clear()
    bench_cases.EXTERNAL.update(guests)


def test_our_cases_can_be_built(contest: Any) -> None:
    ours = {name for group in contest.GROUPS for name in group.cores + group.wholes if name not in contest.PEERS}
    there = [name for name in ours if bench_cases.split_options(name)[0] in registry.names("mechanism")]
    assert there
    for name in there:
        assert bench_cases.build(replace(Case(name), tokens=512)) is not None


def test_verdicts_follow_from_the_numbers(contest: Any) -> None:
    targets = [
        contest.Target("swift", SDPA, 0.3, 1024),
        contest.Target("swift", SDPA, 0.2, 1024),
        contest.Target("swift", "naive", 1.0),
        contest.Target("swift", SDPA, 1.0),
        contest.Target("swift", SDPA, 1.0, 4096),
        contest.Target("nobody", SDPA, 1.0),
    ]
    verdicts = list(contest.judge_times(made_up(), targets))
    assert [one.met for one in verdicts] == [True, False, True, False, None, None]
    assert verdicts[0].found == "0.250x"
    long = tuple(Point(n, 1.0, 1000 * n**2) for n in (2048, 4096))
    grown = BenchResult((Row("square", SDPA, long), Row("other", SDPA, long)), {}, {}, {})
    assert [one.met for one in contest.judge_memory(grown, ["square"])] == [False]


def test_a_leak_is_seen(contest: Any) -> None:
    like = Case("dot", n_head=2, n_embd=16)
    sound, leaking = contest.judge_leaks([like, replace(like, name="zero_mask")])
    assert (sound.met, leaking.met) == (True, False)
    assert contest.leak(replace(like, whole=True)) < 1e-6
    states = contest.judge_leaks([replace(like, name=name) for name in contest.STATES])
    assert [verdict.met for verdict in states] == [True] * len(contest.STATES)
