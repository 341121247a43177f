"""The contestants of benchmarks/words.py: the same model on the same sentences. No test asserts a time."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnlab.kernels import vocabulary
from attnlab.lm.batches import collate

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL: dict[str, Any] = {"model": {"n_layer": 2, "block_size": 128}, "train": {"tokens_per_batch": 400}}


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(vocabulary, "LARGE", 1)  # also few words by the loss that is measured
    return importlib.import_module("words")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sentences of 3 to 40 of 200 words."""
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{number}" for number in rng.integers(0, 200, rng.integers(3, 41))) for _ in range(300)]
    path = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def world(words: Any, corpus: str) -> Any:
    return words.World.read(corpus, SMALL)


@pytest.fixture
def batch(words: Any, world: Any) -> list[Any]:
    return [example for part in words.rounds_of_batches(world, 1, 3, seed=0)[0] for example in part]


def without_dropout(words: Any, corpus: str, lr: float = 5e-4) -> Any:
    return words.World.read(corpus, {"model": {**SMALL["model"], "dropout": 0.0}, "train": {"lr": lr}})


@pytest.mark.parametrize("longest", [0, 100])
def test_both_manners_are_the_same_model(words: Any, corpus: str, batch: list[Any], longest: int) -> None:
    world = without_dropout(words, corpus)
    assert len({len(example.ids) for example in batch}) > 1  # so that there is padding to go wrong
    ours, theirs = world.trainer(), world.eager()
    with torch.no_grad():  # weights as drawn say nearly nothing: larger ones tell mistakes
        for parameter in ours.model.parameters():
            parameter.mul_(4).add_(0.05 * torch.randn_like(parameter))
    importlib.import_module("eager").copy_weights(ours.model, theirs.model)
    loss = words.SummedLoss(ours.model)
    dense = words.DenseLoss(ours.model)
    for _ in range(3):  # the optimizers agree too
        ids, targets = collate(batch, world.tokenizer.pad)
        count = words.real_tokens(batch)
        expected = loss(ids, targets).item() / count
        assert dense(ids, targets).item() / count == pytest.approx(expected, abs=1e-4)
        assert theirs.update(batch, longest) == pytest.approx(expected, abs=1e-4)
        assert words.stepper(ours)(batch) == pytest.approx(expected, abs=1e-4)


def test_adamw_by_a_loop_is_the_same_adamw(words: Any, corpus: str, batch: list[Any]) -> None:
    world = without_dropout(words, corpus)
    fused, looped = (words.stepper(one) for one in (world.trainer(), words.by_a_loop(world.trainer())))
    for _ in range(3):
        assert looped(batch) == pytest.approx(fused(batch), abs=1e-4)


def test_dropout_is_on_while_they_train(words: Any, corpus: str, batch: list[Any]) -> None:
    still = {"lr": 1e-20}  # steps that move nothing, so that only dropout can change a loss
    with_dropout = words.World.read(corpus, {**SMALL, "train": still})
    for world, differ in ((with_dropout, True), (without_dropout(words, corpus, **still), False)):
        for name, contestant in words.contestants(world).items():
            losses = [contestant.step(batch) for _ in range(2)]
            assert (losses[0] != losses[1]) == differ, name


def test_rows_hold_the_sentences_of_the_round(words: Any, world: Any) -> None:
    (batches,) = words.rounds_of_batches(world, 1, 6, seed=0)
    sentences = sorted(tuple(example.ids) for one in batches for example in one)
    rows = words.in_rows(batches, np.random.default_rng(0))
    assert {len(row) for row in rows} == {words.ROWS}
    found = sorted(tuple(example.ids) for row in rows for example in row)
    assert len(sentences) - len(found) < words.ROWS
    assert not set(found) - set(sentences)


def test_the_benchmark_runs_and_writes(
    words: Any, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    words.main(["--corpus", corpus, "--rounds", "2", "--steps", "2", "--json", str(path)], SMALL)
    out = capsys.readouterr().out
    told = json.loads(path.read_text(encoding="utf-8"))
    names = [row["name"] for row in told["contestants"]]
    assert len(names) == 9
    assert all(name in out for name in names)
    assert out.count("asked:") == 2
    for row in told["contestants"]:
        assert len(told["costs"][row["name"]]) == 2
        for ratio in (row["against_mingpt"], row["against_ours"]):
            assert 0 < ratio["least"] <= ratio["median"] <= ratio["most"]


def test_ratios_are_of_rounds(words: Any) -> None:
    assert words.Ratio.of([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == words.Ratio(2.0, 1.0, 3.0)
