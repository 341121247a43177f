from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from attnlab.lm.progress import LINES, Meter, clock, display
from attnlab.lm.train import Step
from attnlab.store.listing import SMOOTHING, last_step, share_done


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def step(number: int, progress: float, loss: float, tokens: int, seconds: float) -> Step:
    return Step(step=number, progress=progress, epoch=4 * progress, loss=loss, rate=1.0, tokens=tokens, seconds=seconds)


def steps(count: int, first: int = 1) -> list[Step]:
    """A steady run of `count` steps, from number `first` on: 500 tokens and half a second each."""
    return [step(n, (n - 1) / count, 3.0, 500 * n, 0.5 * n) for n in range(first, count + 1)]


def after(given: Iterable[Step]) -> Meter:
    meter = Meter()
    for one in given:
        meter.update(one)
    return meter


def plain_console() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=False, width=100), stream


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (6.9, "0:06"), (65, "1:05"), (3600, "60:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_the_meter_smooths_the_loss() -> None:
    assert after([step(1, 0.0, 4.0, 100, 1.0)]).loss == 4.0
    meter = after([step(1, 0.0, 4.0, 100, 1.0), step(2, 0.25, 2.0, 600, 3.0), step(3, 0.5, 1.0, 1100, 5.0)])
    assert SMOOTHING == 0.95
    assert meter.loss == pytest.approx((0.95**2 * 4.0 + 0.95 * 2.0 + 1.0) / (0.95**2 + 0.95 + 1))


def test_the_list_of_runs_has_the_same_loss(tmp_path: Path) -> None:
    given = [step(n, n / 400, 4.0 / n + n % 7, 100 * n, float(n)) for n in range(1, 400)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(one.row())}\n" for one in given) + '{"step": 4')
    found = last_step(tmp_path / "metrics.jsonl")
    assert found is not None
    assert (found.step, found.progress) == (399, given[-1].progress)
    assert found.loss == pytest.approx(after(given).loss, rel=1e-3)
    assert share_done(0.999) == "99 %"


def test_the_first_loss_weighs_no_more_than_the_others() -> None:
    fallen = [step(1, 0.0, 10.0, 100, 1.0), *(step(n, n / 30, 2.0, 100 * n, float(n)) for n in range(2, 21))]
    assert 2.0 < after(fallen).loss < 2.4  # of 8 above, 0.95^19 / (1 + 0.95 + ... + 0.95^19) is left


def test_the_meter_tells_rate_and_time_left() -> None:
    meter = after([step(1, 0.0, 4.0, 100, 1.0), step(2, 0.25, 2.0, 600, 3.0)])
    assert meter.tokens_per_second == pytest.approx(500 / 2)
    assert meter.left == pytest.approx(2 * 0.75 / 0.25)
    assert str(meter) == "0:06 left  loss 2.974  250 tokens/s"
    meter.update(step(3, 0.5, 2.0, 2_100, 5.0))
    assert meter.tokens_per_second == pytest.approx(2_000 / 4)
    assert meter.left == pytest.approx(4 * 0.5 / 0.5)


def test_the_meter_counts_from_where_it_came_in() -> None:
    """A resumed run brings the seconds and tokens of its past: they are no part of this sitting's rate."""
    meter = after([step(501, 0.5, 2.0, 1_000_000, 9_000.0), step(502, 0.6, 2.0, 1_000_600, 9_002.0)])
    assert meter.tokens_per_second == pytest.approx(300)
    assert meter.left == pytest.approx(2 * 0.4 / 0.1)


def test_the_meter_bears_a_clock_that_stands_still() -> None:
    meter = after([step(1, 0.0, 4.0, 100, 0.0), step(2, 0.0, 4.0, 100, 0.0)])
    assert meter.tokens_per_second == 0
    assert str(meter) == "loss 4.000"


@pytest.mark.parametrize("count", [2, 3, 7, 100, 1001])
def test_without_a_terminal_a_stage_is_a_few_whole_lines(count: int) -> None:
    console, stream = plain_console()
    with display("pretrain", console) as show:
        show.line("run folder: somewhere")
        for one in steps(count):
            show.step(one)
    first, *rest = stream.getvalue().splitlines()
    assert first == "pretrain: run folder: somewhere"
    assert min(count - 1, LINES) <= len(rest) <= LINES + 1
    shape = re.compile(r"pretrain: +(\d+) %  (\d+):(\d\d) left  loss 3\.000  1,000 tokens/s")
    found = [shape.fullmatch(line) for line in rest]
    assert all(found), rest
    shares = [int(match[1]) for match in found if match]
    assert shares == sorted(set(shares))
    left = [60 * int(match[2]) + int(match[3]) for match in found if match]
    for share, seconds in zip(shares, left, strict=True):
        assert seconds == pytest.approx(0.5 * count * (1 - share / 100), abs=1 + 0.01 * count)


def test_without_a_terminal_a_resumed_stage_is_a_few_lines_too() -> None:
    console, stream = plain_console()
    with display("finetune", console) as show:
        for one in steps(100, first=51):
            show.step(one)
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= LINES + 1
    assert re.fullmatch(r"finetune:  80 %  0:(09|10|11) left  loss 3\.000  1,000 tokens/s", lines[-1])


def test_every_stage_has_lines_of_its_own() -> None:
    console, stream = plain_console()
    for label in ("pretrain", "finetune"):
        with display(label, console) as show:
            for one in steps(50):
                show.step(one)
    labels = [line.split(":")[0] for line in stream.getvalue().splitlines()]
    assert labels == ["pretrain"] * (len(labels) // 2) + ["finetune"] * (len(labels) // 2)


@pytest.mark.parametrize("width", [80, 60])
def test_a_terminal_shows_a_bar_then_percent_and_time_left(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system=None)
    with display("no-pretraining", console) as show:
        show.line("run folder: somewhere")
        for one in steps(30):
            show.step(replace(one, dev_loss=2.5, dev_accuracy=0.5))
    shown = stream.getvalue()
    assert "no-pretraining: run folder: somewhere" in shown
    last = [line for line in re.split(r"[\r\n]+", shown) if "no-pretraining " in line][-1]
    assert "━━━" in last
    assert re.search(r"━ +96 %  0:\d\d left  loss 3\.", last)
    assert len(last.removeprefix("\x1b[2K")) <= width
    assert last.rstrip().endswith("…")  # the end is cut, on one line


def test_a_bar_without_steps_and_one_that_is_stopped_leave_the_terminal_whole() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    with display("pretrain", console):
        pass
    with pytest.raises(KeyboardInterrupt), display("finetune", console):
        raise KeyboardInterrupt
    assert "pretrain" in stream.getvalue()
    assert stream.getvalue().count("\x1b[?25h") == stream.getvalue().count("\x1b[?25l")  # the cursor is back


@pytest.mark.parametrize("terminal", [False, True])
def test_only_the_first_of_several_processes_speaks(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    said = {}
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=100)
        with display("pretrain", console) as show:
            show.line("run folder: somewhere")
            for one in steps(10):
                show.step(one)
        said[rank] = stream.getvalue()
    assert "somewhere" in said["0"]
    assert said["1"] == ""


def test_a_users_path_is_printed_as_it_is() -> None:
    console, written = plain_console()
    with display("pretrain", console) as show:
        show.line("run folder: /data/[/x]/[old]/" + "x" * 200)
    assert "run folder: /data/[/x]/[old]/" + "x" * 200 in written.getvalue()


def test_a_resumed_stage_says_nothing_of_a_pace_it_does_not_know() -> None:
    console, written = plain_console()
    with display("pretrain", console) as show:
        show.step(step(500, 0.5, 3.0, 100_000, 50.0))
        assert "tokens/s" not in written.getvalue()
        show.step(step(501, 0.51, 3.0, 101_000, 51.0))
    assert "1,000 tokens/s" in written.getvalue()
