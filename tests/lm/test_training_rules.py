"""What the settings promise of a run: its rates, clipping, seeds and optimizer; and whose answers a study shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from attnlab.config import RunConfig
from attnlab.corpora import Corpus, Question
from attnlab.lm import optim, progress, stages, train
from attnlab.lm.exams import Examination
from attnlab.store.runs import Run
from attnlab.studies import recall

WORLD, FACTS = "people:60", "people:60:train"


@dataclass
class Seen:
    """What the optimizers were given at one step: rates and gradients by class name, weights before the step."""

    rates: dict[str, set[float]] = field(default_factory=dict)
    gradients: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)

    @property
    def norm(self) -> float:
        return math.sqrt(sum(gradient.double().square().sum().item() for gradient in self.gradients))


@contextmanager
def watched() -> Iterator[list[Seen]]:
    """Every step of every optimizer, seen from inside torch, one entry a step of the run."""
    steps: list[Seen] = []

    def look(optimizer: torch.optim.Optimizer, _arguments: Any, _options: Any) -> None:
        name = type(optimizer).__name__
        if not steps or name in steps[-1].rates:
            steps.append(Seen())
        steps[-1].rates[name] = {group["lr"] for group in optimizer.param_groups}
        for group in optimizer.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            steps[-1].gradients += [p.grad.clone() for p in given]
            steps[-1].weights += [p.detach().clone() for p in given]

    handle = register_optimizer_step_pre_hook(look)
    try:
        yield steps
    finally:
        handle.remove()


class Stop(Exception):
    """Enough seen."""


def stop_at(number: int) -> progress.Show:
    def stop(step: train.Step) -> None:
        if step.step == number:
            raise Stop

    return progress.Show(step=stop)


def with_train(config: RunConfig, **changes: Any) -> RunConfig:
    return replace(config, train=replace(config.train, **changes))


# The rate --------------------------------------------------------------------------------------------------------


def linear_by_hand(progress: float) -> float:
    """Up over the first fifth, level, down to zero over the second half."""
    return min(progress / 0.2, 1.0, (1 - progress) / 0.5)


def cosine_by_hand(progress: float) -> float:
    return min(progress / 0.2, 1.0) * max(0.1, 0.5 + 0.5 * math.cos(math.pi * max(0.0, progress - 0.5) / 0.5))


@pytest.mark.parametrize(("schedule", "by_hand"), [("linear", linear_by_hand), ("cosine", cosine_by_hand)])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_rate_follows_the_schedule(
    tmp_path: Path, tiny: RunConfig, optimizer: Any, schedule: Any, by_hand: Callable[[float], float]
) -> None:
    config = with_train(tiny, optimizer=optimizer, schedule=schedule, warmup=0.2, decay=0.5, lr=4e-3, muon_lr=0.03)
    rows: list[train.Step] = []
    with watched() as seen:
        stages.pretrain(config, WORLD, FACTS, tmp_path / "run", progress.Show(step=rows.append))
    assert len(rows) == len(seen) >= 8
    peaks = {"Muon": 0.03, "AdamW": 4e-3} if optimizer == "muon" else {"AdamW": 4e-3}
    for row, step in zip(rows, seen, strict=True):
        assert row.rate == pytest.approx(by_hand(row.progress), abs=1e-12)
        assert row.rate == optim.rate_at(row.progress, config.train)
        assert step.rates.keys() == peaks.keys()
        for name, peak in peaks.items():
            assert list(step.rates[name]) == pytest.approx([peak * by_hand(row.progress)], abs=1e-12)
    assert [row.progress for row in rows] == sorted({row.progress for row in rows})
    assert rows[0].progress < 0.1
    assert 0.9 < rows[-1].progress < 1
    assert all(abs(row.progress - row.epoch / config.train.epochs) < 1.5 / len(rows) for row in rows)


def test_steps_take_the_place_of_epochs(tmp_path: Path, tiny: RunConfig) -> None:
    """The same batches in the same order as epochs, to the last step asked for, with a schedule of that length."""
    by_epochs, by_steps = (
        stages.pretrain(with_train(tiny, epochs=3.0, lr=1e-30, muon_lr=1e-30, **given), WORLD, FACTS, tmp_path / name)
        for name, given in (("epochs", {}), ("steps", {"steps": 13}))
    )
    rows = by_steps.metrics()
    assert by_epochs.result.steps != 13
    assert [row.loss for row in rows] == [row.loss for row in by_epochs.metrics()][:13]
    assert [row.progress for row in rows] == pytest.approx([(step + 0.5) / 13 for step in range(13)])
    assert by_steps.result.epochs == round(rows[-1].epoch, 2)


def test_every_step_learns(tmp_path: Path, tiny: RunConfig) -> None:
    """No step, the first and the last included, is wasted on a rate of zero."""
    rows: list[train.Step] = []
    with watched() as seen:
        config = with_train(tiny, epochs=1.0, warmup=0.5, decay=0.5)
        stages.pretrain(config, WORLD, FACTS, tmp_path / "run", progress.Show(step=rows.append))
    assert all(0 < row.rate <= 1 for row in rows)
    for before, after in pairwise(seen):
        assert any(not torch.equal(a, b) for a, b in zip(before.weights, after.weights, strict=True))


# The gradient ----------------------------------------------------------------------------------------------------


def first_gradients(folder: Path, config: RunConfig, clip: float) -> list[Seen]:
    with watched() as seen, pytest.raises(Stop):
        stages.pretrain(with_train(config, clip=clip, warmup=0.0), WORLD, FACTS, folder, stop_at(3))
    return seen


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_gradient_is_clipped_as_a_whole(tmp_path: Path, tiny: RunConfig, optimizer: Any) -> None:
    config = with_train(tiny, optimizer=optimizer)
    free = first_gradients(tmp_path / "free", config, 0.0)
    loose = first_gradients(tmp_path / "loose", config, 1e6)
    tight = first_gradients(tmp_path / "tight", config, 1e-3)
    assert all(step.norm > 0.1 for step in free)
    assert all(step.norm == pytest.approx(1e-3, rel=1e-3) for step in tight)
    assert all(step.norm <= 1e-3 * (1 + 1e-6) for step in tight)
    for a, b, c in zip(free[0].gradients, loose[0].gradients, tight[0].gradients, strict=True):
        assert torch.equal(a, b)  # what is short enough is left alone
        assert torch.allclose(c, a * (1e-3 / free[0].norm), rtol=1e-3, atol=1e-9)  # and the direction stays


# The seed --------------------------------------------------------------------------------------------------------


def first_weights(folder: Path, config: RunConfig) -> list[Tensor]:
    with watched() as seen, pytest.raises(Stop):
        stages.pretrain(config, WORLD, FACTS, folder, stop_at(1))
    return seen[0].weights


def test_the_seed_draws_the_weights(tmp_path: Path, tiny: RunConfig) -> None:
    drawn = [first_weights(tmp_path / str(number), replace(tiny, seed=seed)) for number, seed in enumerate((0, 0, 1))]
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
    random = [(a, c) for a, c in zip(drawn[0], drawn[2], strict=True) if a.any()]
    assert len(random) >= 10  # the projections that start at zero are the same for every seed
    assert not any(torch.equal(a, c) for a, c in random)


Batch = list[tuple[tuple[int, ...], int]]


class Epochs:
    """The batches of two epochs, and the weights that they began with."""

    def __init__(self, batches: list[Batch], weights: list[Tensor], per_epoch: list[int]) -> None:
        self.batches, self.weights = batches, weights
        self.first, self.second = batches[: per_epoch[0]], batches[per_epoch[0] :]


@pytest.fixture
def epochs_of(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Epochs]:
    """Fine-tuning always starts from the same weights: only what is read, and when, may follow the seed."""
    base = stages.pretrain(with_train(tiny, epochs=0.1), WORLD, FACTS, tmp_path / "base")
    seen: list[Batch] = []
    real = train.collate

    def collate(examples: Any, pad: int) -> tuple[Tensor, Tensor]:
        seen.append([(tuple(example.ids), example.start) for example in examples])
        return real(examples, pad)

    monkeypatch.setattr(train, "collate", collate)

    def epochs(task: str, seed: int) -> Epochs:
        seen.clear()
        rows: list[train.Step] = []
        config = replace(tiny, seed=seed, task=replace(tiny.task, name=task))
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        with watched() as steps:
            stages.finetune(config, base, FACTS, WORLD, folder, progress.Show(step=rows.append))
        in_first = sum(row.epoch < 1 for row in rows)
        assert seen.pop() == seen[-1]  # the finished model must have a finite loss on the last batch
        assert len(rows) == len(seen) == len(steps)
        return Epochs(list(seen), steps[0].weights, [in_first, len(rows) - in_first])

    return epochs


def content(batches: list[Batch]) -> list[tuple[tuple[int, ...], int]]:
    return sorted(example for batch in batches for example in batch)


@pytest.mark.parametrize("task", ["questions", "recall"])
def test_the_seed_alone_decides_order_and_views(epochs_of: Callable[[str, int], Epochs], task: str) -> None:
    one, again, other = epochs_of(task, 0), epochs_of(task, 0), epochs_of(task, 1)
    for left, right in zip(one.weights, other.weights, strict=True):
        assert torch.equal(left, right)
    assert one.batches == again.batches
    assert one.first != other.first
    assert one.second != other.second
    assert one.first != one.second  # and every epoch has an order of its own
    if task == "questions":  # the same questions, each once an epoch
        assert content(one.first) == content(other.first) == content(one.second) == content(other.second)
    else:  # the views themselves are drawn anew, not only their order
        drawn = [content(batches) for batches in (one.first, other.first, one.second, other.second)]
        assert all(a != b for index, a in enumerate(drawn) for b in drawn[:index])


# Muon ------------------------------------------------------------------------------------------------------------


def orthogonal_by_hand(matrix: Tensor) -> Tensor:
    """Five plain rounds of X <- aX + bXX'X + cXX'XX'X, on the wide side up."""
    rows, columns = matrix.shape
    x = matrix.T if rows > columns else matrix
    x = x / x.square().sum().sqrt()
    for _ in range(5):
        cubic = x @ x.T @ x
        x = 3.4445 * x - 4.7750 * cubic + 2.0315 * x @ x.T @ cubic
    return x.T if rows > columns else x


def muon_by_hand(start: Tensor, gradients: list[Tensor], rates: list[float], decay: float) -> list[Tensor]:
    weight, average = start.double(), torch.zeros_like(start, dtype=torch.float64)
    rows, columns = start.shape
    path = []
    for gradient, rate in zip((g.double() for g in gradients), rates, strict=True):
        average = 0.95 * average + 0.05 * gradient
        ahead = 0.05 * gradient + 0.95 * average  # Nesterov
        change = orthogonal_by_hand(ahead) * math.sqrt(max(1.0, rows / columns))
        weight = weight * (1 - rate * decay) - rate * change
        path.append(weight)
    return path


SHAPES = [(8, 8), (6, 20), (8, 12), (20, 6), (12, 8), (6, 20), (8, 8)]  # equal ones go through the rounds together


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_muon_steps_as_by_hand(decay: float) -> None:
    draw = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=draw) for shape in SHAPES]
    gradients = [[torch.randn(shape, generator=draw) for _ in range(3)] for shape in SHAPES]
    rates = [0.1, 0.1, 0.04]  # the last one after the schedule has lowered it
    weights = [torch.nn.Parameter(start.clone()) for start in starts]
    idle = torch.nn.Parameter(torch.ones(8, 8))
    muon = optim.Muon([*weights, idle], lr=rates[0], weight_decay=decay)
    expected = [muon_by_hand(*given, rates, decay) for given in zip(starts, gradients, strict=True)]
    for number, rate in enumerate(rates):
        muon.param_groups[0]["lr"] = rate
        for weight, given in zip(weights, gradients, strict=True):
            weight.grad = given[number].clone()
        muon.step()
        for weight, path in zip(weights, expected, strict=True):
            assert torch.allclose(weight.double(), path[number], rtol=0, atol=2e-5)
    assert (idle == 1).all()  # what has no gradient stays as it is


# The study -------------------------------------------------------------------------------------------------------

OWN_RUN = {
    "pretrained + fine-tuned": "finetune",
    "pretrained, not fine-tuned": "pretrain",
    "no pretraining": "no-pretraining",
}
BOOK = Corpus("book", ("Ann Lee. Lee was born in Zork and lived in York .", "Bob Ray. Ray was born in Hull ."))
TRAINING = (Question("Where was Cy Orr born?", "York"), Question("Where was Di Poe born?", "York"))
EXAM = (Question("Where was Ann Lee born?", "Zork"), Question("Where was Bob Ray born?", "Hull"))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Run]:
    """Three runs, each of which answers every question with its own name."""

    def answer_with_name(folder: Path, _tokenizer: object, questions: tuple[Question, ...]) -> Examination:
        return Examination(tuple(questions), (folder.parent.name,) * len(questions))

    monkeypatch.setattr(recall, "load_model", lambda folder: (folder, None))
    monkeypatch.setattr(recall, "examine", answer_with_name)
    for name in OWN_RUN.values():
        (tmp_path / name / "model").mkdir(parents=True)
    return {name: Run(tmp_path / name) for name in OWN_RUN.values()}


def test_every_row_shows_the_answers_of_its_own_run(runs: dict[str, Run]) -> None:
    found = recall.examine_all(runs, BOOK, TRAINING, EXAM)
    assert set(found) == {*OWN_RUN, "majority answer", "crude open book"}
    assert {name: set(found[name].predictions) for name in OWN_RUN} == {name: {own} for name, own in OWN_RUN.items()}
    assert all(examination.questions == EXAM for examination in found.values())


def test_every_row_tells_the_time_of_its_own_run() -> None:
    spent: Any = {
        name: SimpleNamespace(seconds=seconds)
        for name, seconds in (("pretrain", 100.0), ("finetune", 20.0), ("no-pretraining", 3.0))
    }
    examination = Examination(EXAM, ("York", "York"))
    rows = [recall.describe(examination, entry, spent, False) for entry in recall._ROWS]
    assert {row.name: row.seconds for row in rows} == {
        "pretrained + fine-tuned": 120.0,  # it had to be pretrained first
        "pretrained, not fine-tuned": 100.0,
        "no pretraining": 3.0,
        "majority answer": None,
        "crude open book": None,
        "own reader, open book": None,
    }


def test_the_row_of_the_pretrained_model_says_whether_it_has_read_the_questions() -> None:
    spent: Any = dict.fromkeys(OWN_RUN.values(), SimpleNamespace(seconds=1.0))
    examination = Examination(EXAM, ("York", "York"))
    names = {
        mixed: [recall.describe(examination, entry, spent, mixed).name for entry in recall._ROWS]
        for mixed in (False, True)
    }
    assert names[True][1] == "pretrained with the questions mixed in, not fine-tuned"
    assert names[False][1] == "pretrained, not fine-tuned"
    assert names[True][2:] == names[False][2:]


def test_the_baselines_know_the_training_answers_only(runs: dict[str, Run]) -> None:
    """Zork and Hull stand first in their lines, but only the exam knows that they are places."""
    found = recall.examine_all(runs, BOOK, TRAINING, EXAM)
    assert found["crude open book"].predictions == ("York", "")
    assert found["majority answer"].predictions == ("York", "York")
    taught = (*TRAINING, Question("Where was Ed Sly born?", "Hull"))
    assert recall.examine_all(runs, BOOK, taught, EXAM)["crude open book"].predictions == ("York", "Hull")


@pytest.mark.parametrize("epochs", [0.1, 1.25, 2.5])
def test_a_run_that_ends_within_an_epoch_learns_to_its_last_step(
    tmp_path: Path, tiny: RunConfig, epochs: float
) -> None:
    config = replace(tiny, train=replace(tiny.train, epochs=epochs, warmup=0.0))
    rows = stages.pretrain(config, WORLD, FACTS, tmp_path / "run").metrics()
    assert all(0 < row.rate <= 1 for row in rows)
    assert all(0 < row.progress < 1 for row in rows)
