from __future__ import annotations

import json
import logging
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab import corpora
from attnlab.config import RunConfig, TaskConfig, resolve
from attnlab.corpora import Question
from attnlab.errors import AttnlabError, CheckpointError, DataError, Diverged, Interrupted, OutputExists, StorageError
from attnlab.lm import progress, stages, train
from attnlab.lm.batches import DevSet, collate, make_batches, split_by_length
from attnlab.lm.model import LanguageModel, load_model, read_tensors, to_bytes
from attnlab.lm.processes import ALONE, Ranks
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.folders import write_folder
from attnlab.store.runs import DataSource, Run, RunRecord
from attnlab.tasks import Example
from verbs import call, reseal

TINY: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300},
    "train": {"epochs": 2.0, "tokens_per_batch": 512, "checkpoint_every": 4},
}
WORLD, FACTS = "people:60", "people:60:train"


def weights_of(folder: Path) -> Path:
    return folder / "model.safetensors"


def losses(path: Path) -> list[float]:
    return [row.loss for row in Run.open(path).metrics()]


@given(st.lists(st.integers(2, 60), min_size=1, max_size=200), st.integers(60, 600))
def test_batches_hold_every_example_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = make_batches(lengths, budget, np.random.default_rng(0))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[i] for i in batch) <= budget for batch in batches)


def test_batches_waste_little_and_come_in_random_order() -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 2000).tolist()
    batches = make_batches(lengths, 1024, np.random.default_rng(1))
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert padded < 1.05 * sum(lengths)
    tops = [max(lengths[i] for i in batch) for batch in batches]
    assert tops != sorted(tops)


def of_lengths(lengths: list[int]) -> list[Example]:
    """Examples with a target for every token but the first."""
    drawn = np.random.default_rng(0)
    return [Example(drawn.integers(0, 50, length + 1).tolist(), 1) for length in lengths]


def cost(parts: list[list[Example]], overhead: float) -> float:
    return sum(overhead + len(part) * max(len(one.ids) - 1 for one in part) for part in parts)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(1, 7), st.floats(0.5, 40))
def test_no_way_to_split_a_batch_by_length_costs_less(lengths: list[int], most: int, overhead: float) -> None:
    batch = of_lengths(lengths)
    parts = split_by_length(batch, most, overhead)
    assert sorted(map(id, chain(*parts))) == sorted(map(id, batch))
    assert max(map(len, parts)) <= most
    ordered = sorted(batch, key=lambda one: len(one.ids))
    ways = (
        [ordered[begin:end] for begin, end in pairwise((0, *cuts, len(batch)))]
        for count in range(len(batch))
        for cuts in combinations(range(1, len(batch)), count)
    )
    assert cost(parts, overhead) == pytest.approx(
        min(cost(way, overhead) for way in ways if max(map(len, way)) <= most)
    )


def test_a_batch_has_as_many_parts_as_pay() -> None:
    lengths = np.random.default_rng(0).integers(6, 114, 128).tolist()  # as in the preset mingpt
    parts = split_by_length(of_lengths(lengths), 128)
    assert 6 <= len(parts) <= 10
    assert cost(parts, 0) < 1.15 * sum(lengths) < 0.65 * 128 * max(lengths)
    assert max(map(len, split_by_length(of_lengths(lengths), 8))) == 8
    assert len(split_by_length(of_lengths([3, 9, 5]), 3)) == 1  # too few tokens to save any
    equal = of_lengths([30] * 40)
    assert split_by_length(equal, 40) == [equal]


def trainer_of(monkeypatch: pytest.MonkeyPatch, mechanism: str, **settings: Any) -> train.Trainer:
    """A trainer in float64 without dropout or clipping that leaves weights and gradients as they are after a step."""
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 64, "vocab_size": 50, "dropout": 0.0}
    training = {"precision": "float64", "clip": 0.0, **settings}
    config = resolve("mingpt", given={"model": {**size, "mechanism": mechanism}, "train": training})
    model, tokenizer = LanguageModel(config.model).double(), Tokenizer.train("char", ["abc"], 50)
    trainer = train.Trainer(cast(Any, None), model, tokenizer, cast(Any, None), config, ALONE)
    monkeypatch.setattr(trainer, "optimizers", {})
    return trainer


@pytest.mark.parametrize("accumulate", [1, 5])
@pytest.mark.parametrize("mechanism", ["dot", "linformer", "perceiver"])
def test_parts_by_length_have_the_gradient_of_one_padded_batch(
    monkeypatch: pytest.MonkeyPatch, mechanism: str, accumulate: int
) -> None:
    lengths = np.random.default_rng(1).integers(4, 64, 40).tolist()
    batch = [replace(one, starts=(2, 3) if at % 3 == 0 else ()) for at, one in enumerate(of_lengths(lengths))]
    parts, whole = (
        trainer_of(monkeypatch, mechanism, rows_per_batch=rows, accumulate=count)
        for rows, count in ((40, accumulate), (0, 1))
    )
    assert len(parts._parts(batch)) >= max(2, accumulate)
    assert len(whole._parts(batch)) == 1
    assert parts.train_step(batch, 1.0) == pytest.approx(whole.train_step(batch, 1.0), rel=1e-10)
    for one, other in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            assert (one.grad - other.grad).norm() <= 1e-10 * other.grad.norm() + 1e-15  # 0 for the bias of keys


def test_a_step_counts_the_tokens_it_reads_and_synchronizes_its_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(train, "no_sync", lambda _, last: (seen.append(last), nullcontext())[1])
    trainer, begun = trainer_of(monkeypatch, "dot", rows_per_batch=0, accumulate=3), list[int]()
    monkeypatch.setattr(trainer.model, "begin_step", lambda: begun.append(trainer.at.tokens))
    trainer.train_step([*of_lengths([4, 9, 5]), Example([1, 2, 3, 0, 0], 1, padding=2)], 1.0)
    assert trainer.at.tokens == 4 + 9 + 5 + 2  # neither the last token of a text nor padding is read
    assert seen == [False, True]  # two rows each
    assert begun == [0]  # once for both


@pytest.mark.parametrize(
    ("settings", "epochs", "progress"),
    [
        ({"epochs": 1.5}, [0, 0.25, 0.5, 0.75, 1, 1.25], [(step + 0.5) / 6 for step in range(6)]),
        ({"epochs": 1.0}, [0, 0.25, 0.5, 0.75], [(step + 0.5) / 4 for step in range(4)]),
        ({"epochs": 0.3}, [0, 0.25], [0.125 / 0.3, 0.275 / 0.3]),  # the last step is cut short
        ({"steps": 5, "epochs": 0.1}, [0, 0.25, 0.5, 0.75, 1], [0.1, 0.3, 0.5, 0.7, 0.9]),
    ],
)
def test_batches_know_where_in_the_run_they_are(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], epochs: list[float], progress: list[float]
) -> None:
    """Four batches an epoch, taken in the order of the epoch."""
    trainer = trainer_of(monkeypatch, "dot", **{"steps": 0, **settings})
    examples, made = of_lengths([2, 3, 4, 5]), list[int]()
    monkeypatch.setattr(
        train, "make_epoch", lambda *given: (made.append(given[-1]), (examples, [[3], [2], [1], [0]]))[1]
    )
    found = []
    for batch in trainer._batches():
        trainer.at.step += 1
        found.append(batch)
        assert trainer.make_epoch()[0] is examples
    assert [batch.epoch for batch in found] == epochs
    assert [batch.progress for batch in found] == pytest.approx(progress)
    assert [batch.examples for batch in found] == [[examples[3 - at % 4]] for at in range(len(found))]
    assert [batch.ends_epoch for batch in found] == [at % 4 == 3 for at in range(len(found))]
    assert [batch.final for batch in found] == [False] * (len(found) - 1) + [True]
    assert made == list(range(math.ceil(len(found) / 4)))  # every epoch is made once


def test_validation_is_due_after_epochs_and_every_thousand_steps_if_it_costs_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = trainer_of(monkeypatch, "dot", validate_every=0)
    within = train._Batch([], 0.5, 0.5, 0.5, ends_epoch=False, final=False)
    ending, final = replace(within, ends_epoch=True), replace(within, final=True)
    assert not trainer._is_due(final)  # there is nothing to validate on
    trainer.dev = DevSet([Example([0] * 10, 1)])
    cost = 20 * trainer.dev.cost
    for step, tokens, batch, due in (
        (7, 0, final, True),
        (7, cost, ending, True),
        (7, cost - 1, ending, False),
        (7, cost, within, False),
        (2000, cost, within, True),
        (2000, cost - 1, within, False),
    ):
        trainer.at.step, trainer.at.tokens, trainer.at.validated_at = step, 500 + tokens, 500
        assert trainer._is_due(batch) == due
    often = trainer_of(monkeypatch, "dot", validate_every=3)
    often.dev = trainer.dev
    for step, due in ((3, True), (4, False), (6, True)):
        often.at.step = step
        assert often._is_due(within) == due


def test_only_processes_of_several_draw_dropout_from_seeds_of_their_own() -> None:
    config = resolve("mingpt", given={"model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "dropout": 0.1}, "seed": 3})
    model, tokenizer = LanguageModel(config.model), Tokenizer.train("char", ["abc"], 50)

    def drawn(rank: int, world: int, config: RunConfig) -> float:
        torch.manual_seed(5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "distribute", lambda module, _: module)
            train.Trainer(cast(Any, None), model, tokenizer, cast(Any, None), config, Ranks(rank, world))
        return torch.rand(()).item()

    first = {seed: torch.rand((), generator=torch.Generator().manual_seed(seed)).item() for seed in (3, 5, 1003)}
    without = replace(config, model=replace(config.model, dropout=0.0))
    assert drawn(0, 1, config) == first[5]
    assert [drawn(rank, 2, config) for rank in (0, 1)] == [first[3], first[1003]]
    assert drawn(1, 2, without) == first[5]
    of_attention = replace(without, model=replace(without.model, attention_dropout=0.1))
    assert drawn(1, 2, of_attention) == first[1003]


def test_the_first_signal_is_noted_and_the_second_ends_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with train._stop_requests() as received:
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before

    def without_signals() -> list[int]:
        with train._stop_requests() as received:
            return received

    with ThreadPoolExecutor(1) as pool:  # only the main thread may handle signals
        assert pool.submit(without_signals).result() == []


def test_collate_shifts_and_counts_from_the_start() -> None:
    ids, targets = collate([Example([5, 6, 7, 8], 2), Example([9, 4], 1)], pad=0)
    assert ids.tolist() == [[5, 6, 7], [9, 0, 0]]
    assert targets.tolist() == [[-100, 7, 8], [4, -100, -100]]


def test_same_seed_same_numbers_other_seed_others(tmp_path: Path, tiny: RunConfig) -> None:
    for name, config in (("a", tiny), ("b", tiny), ("c", replace(tiny, seed=1))):
        stages.pretrain(config, WORLD, FACTS, tmp_path / name)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


def test_it_learns_and_records(tmp_path: Path, tiny: RunConfig) -> None:
    config = replace(tiny, train=replace(tiny.train, epochs=8.0))
    run = stages.pretrain(config, WORLD, FACTS, tmp_path / "run")
    rows = run.metrics()
    assert np.mean([row.loss for row in rows[-5:]]) < 0.7 * rows[0].loss
    assert [row.step for row in rows] == list(range(1, len(rows) + 1))
    assert run.complete
    assert run.result.steps == len(rows)
    assert run.result.tokens == rows[-1].tokens > 0
    assert run.result.epochs == 8.0
    assert len(rows) >= 40  # the final loss is the mean of the last twentieth
    last = rows[-(len(rows) // 20) :]
    assert run.result.final_loss == pytest.approx(np.mean([row.loss for row in last]))
    assert run.result.parameters == sum(weight.numel() for weight in read_tensors(weights_of(run.model)).values())
    assert run.result.tokens_per_second == pytest.approx(run.result.tokens / run.result.seconds, rel=0.1)
    assert (run.result.processes, run.result.best_step, run.result.validation_seconds) == (1, None, None)
    assert not run.result.stopped_early
    assert json.loads((run.path / "env.json").read_text())["torch"]
    assert run.record.facts == DataSource(FACTS, stages.checksum(corpora.load_questions(FACTS)))


class Stop(Exception):
    """Stands for a kill: nothing may be saved after it."""


@pytest.mark.parametrize("preset", ["small", "mingpt"])
def test_a_stopped_run_goes_on_with_identical_losses(tmp_path: Path, tiny: RunConfig, preset: str) -> None:
    """Also with dropout, in batches that are split by length."""
    model = {**tiny.to_dict()["model"], "dropout": 0.1} if preset == "mingpt" else tiny.to_dict()["model"]
    length = {"steps": 11, "rows_per_batch": 48} if preset == "mingpt" else {"epochs": 3.0, "tokens_per_batch": 1024}
    settings = {**length, "checkpoint_every": 3}
    base = resolve(preset, given={"model": model, "train": settings, "tokenizer": {"kind": "bpe"}})
    facts = None if preset == "mingpt" else FACTS
    split: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        real = train.Trainer._parts
        patch.setattr(train.Trainer, "_parts", lambda *given: (parts := real(*given), split.append(len(parts)))[0])
        whole = stages.pretrain(base, WORLD, facts, tmp_path / "whole")
    assert (max(split) > 1) == (preset == "mingpt")

    def stop_at_eight(step: train.Step) -> None:
        if step.step == 8:
            raise Stop

    with pytest.raises(Stop):
        stages.pretrain(base, WORLD, facts, tmp_path / "broken", progress.Show(step=stop_at_eight))
    broken = Run.open(tmp_path / "broken")
    assert not broken.complete
    assert [path.name for path in broken.checkpoints()] == ["step-000003", "step-000006"]
    with (broken.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 9, "lo')  # a line that the kill cut off
    stages.resume(broken)
    assert losses(broken.path) == losses(whole.path)
    first, _ = load_model(whole.model)
    second, _ = load_model(broken.model)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


SMALL = {"model.n_layer": 2, "model.n_head": 2, "model.n_embd": 32, "model.vocab_size": 300}
ARGUMENTS = [
    "pretrain",
    *(f"--{name}={value}" for name, value in {**SMALL, "train.tokens_per_batch": 512}.items()),
    *("--train.checkpoint_every=10", "--corpus", WORLD, "--facts", FACTS),
]


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "attnlab", *ARGUMENTS, "--out", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for_steps(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if folder.exists() and len(Run.open(folder).metrics()) >= count:
            return
        time.sleep(0.02)
    pytest.fail("the run did not get under way")


@pytest.fixture
def background() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.processes
def test_killed_with_nine_and_resumed_is_as_if_nothing_had_happened(
    tmp_path: Path, background: list[subprocess.Popen[str]]
) -> None:
    process = start(tmp_path / "killed", "--train.epochs=12")
    background.append(process)
    wait_for_steps(tmp_path / "killed", 25)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    killed = Run.open(tmp_path / "killed")
    assert not killed.complete
    assert call("resume", killed.path) == 0
    assert call(*ARGUMENTS, "--out", tmp_path / "whole", "--train.epochs=12", "--train.threads=1") == 0
    assert losses(killed.path) == losses(tmp_path / "whole")


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals, background: list[subprocess.Popen[str]]
) -> None:
    process = start(tmp_path / "run", "--train.epochs=500")
    background.append(process)
    wait_for_steps(tmp_path / "run", 5)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"attnlab resume {tmp_path / 'run'}" in error
    assert len(error.strip().split("\n")) == 1
    run = Run.open(tmp_path / "run")
    saved = json.loads((run.checkpoints()[-1] / "state.json").read_text())
    assert saved["place"]["step"] == run.metrics()[-1].step


def test_interrupted_is_raised_in_python_too(tmp_path: Path, tiny: RunConfig) -> None:
    def interrupt(step: train.Step) -> None:
        if step.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match=r"stopped by Ctrl-C at step 3; .* attnlab resume"):
        stages.pretrain(tiny, WORLD, FACTS, tmp_path / "run", progress.Show(step=interrupt))
    assert [path.name for path in Run.open(tmp_path / "run").checkpoints()] == ["step-000003"]
    resumed = stages.resume(Run.open(tmp_path / "run"))
    assert resumed.complete


def test_finetuning_starts_from_the_base_and_from_scratch(tmp_path: Path, tiny: RunConfig) -> None:
    base = stages.pretrain(tiny, WORLD, FACTS, tmp_path / "base")
    config = resolve("small", "finetune", given={"train": {"epochs": 1.0, "tokens_per_batch": 512}})
    tuned = stages.finetune(config, base, FACTS, out=tmp_path / "tuned")
    scratch = stages.finetune(replace(tiny, task=config.task), None, FACTS, WORLD, tmp_path / "scratch")
    assert tuned.metrics()[0].loss < scratch.metrics()[0].loss
    assert tuned.record.base == "../base"
    assert tuned.record.settings["model"] == base.record.settings["model"]
    assert tuned.record.settings["train"]["threads"] == 1
    assert load_model(tuned.model)[0].config == load_model(base.model)[0].config


def test_an_existing_folder_is_refused_and_untouched(tmp_path: Path, tiny: RunConfig) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep me")
    with pytest.raises(OutputExists, match="choose another name"):
        stages.pretrain(tiny, WORLD, FACTS, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_a_mistake_leaves_no_folder_behind(tmp_path: Path, tiny: RunConfig) -> None:
    facts = tmp_path / "facts.tsv"
    facts.write_text("Where?\tRome\n" + "Where was " + "".join(map(chr, range(0x4E00, 0x4E60))) + " born?\tRome\n")
    with pytest.raises(DataError, match=r"question 2 .* takes"):
        stages.pretrain(tiny, WORLD, str(facts), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_changed_data_are_noticed_on_resume(tmp_path: Path, tiny: RunConfig) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("Ann Smith. Ann was born in Rome .\nBob Jones. Bob was born in Oslo .\n" * 40)

    def stop(step: train.Step) -> None:
        if step.step == 1:
            raise Stop

    with pytest.raises(Stop):
        stages.pretrain(tiny, str(corpus), None, tmp_path / "run", progress.Show(step=stop))
    corpus.write_text("Ann Smith. Ann was born in Paris .\n")
    with pytest.raises(DataError, match="has changed since the run began"):
        stages.resume(Run.open(tmp_path / "run"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its checkpoint of step 8."""

    def stop(step: train.Step) -> None:
        if step.step == 9:
            raise Stop

    path = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(Stop):
        stages.pretrain(resolve("small", given=TINY), WORLD, FACTS, path, progress.Show(step=stop))
    return path


def tensors_changed(name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / f"checkpoints/step-000008/{name}.safetensors"
        tensors = read_tensors(path)
        change(tensors)
        path.write_bytes(to_bytes(tensors))

    return damage


def text_changed(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return damage


def cut(folder: Path) -> None:
    path = folder / "checkpoints/step-000008/optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:100])


STATE = "checkpoints/step-000008/state.json"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "truncated or damaged"),
        (tensors_changed("optimizer", lambda t: t.pop("muon/0/momentum")), "do not fit the model"),
        (tensors_changed("optimizer", lambda t: t.update({"odd": torch.zeros(1)})), "do not fit the model"),
        (
            tensors_changed("optimizer", lambda t: t.update({"muon/0/momentum": torch.zeros(3, 3)})),
            "do not fit the model",
        ),
        (tensors_changed("optimizer", lambda t: t["muon/0/momentum"].fill_(torch.nan)), "hold NaN"),
        (tensors_changed("rng", lambda t: t.clear()), "no generator state"),
        (tensors_changed("rng", lambda t: t.update({"0": torch.zeros(7, dtype=torch.uint8)})), "no generator state"),
        (tensors_changed("model", lambda t: t.update({"head.weight": t["head.weight"].long()})), "do not fit"),
        (
            text_changed(STATE, '"step": 8', '"step": "eight"'),
            r"state\.json is damaged.*Expected `int`, got `str` - at `\$\.place\.step`",
        ),
        (text_changed(STATE, '"format": 1', '"format": 7'), "format 7"),
        (text_changed("config.json", '"n_layer"', '"n_layers"'), "damaged or of another version"),
        (text_changed("config.json", '"settings"', '"zettings"'), "damaged or of another version"),
        (text_changed("config.json", '"format": 1', '"format": 2'), "format 2"),
    ],
)
def test_a_damaged_checkpoint_is_refused_on_resume(
    stopped: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-000004", ignore_errors=True)
    damage(tmp_path / "run")
    reseal(tmp_path / "run")  # damage that was there when the checksums were made
    with pytest.raises(CheckpointError, match=message) as error:
        stages.resume(Run.open(tmp_path / "run"))
    assert "\n" not in str(error.value)


def test_runs_that_were_moved_go_on(tmp_path: Path, tiny: RunConfig) -> None:
    base = stages.pretrain(tiny, WORLD, FACTS, tmp_path / "here/base")
    config = resolve(
        "small", "finetune", given={"train": {"epochs": 4.0, "tokens_per_batch": 256, "checkpoint_every": 1}}
    )

    def stop(step: train.Step) -> None:
        if step.step == 3:
            raise Stop

    with pytest.raises(Stop):
        stages.finetune(config, base, FACTS, out=tmp_path / "here/tuned", show=progress.Show(step=stop))
    (tmp_path / "here").rename(tmp_path / "there")
    assert stages.resume(Run.open(tmp_path / "there/tuned")).complete


def test_questions_for_a_task_that_reads_none_are_refused(tmp_path: Path, tiny: RunConfig) -> None:
    spans = replace(tiny, task=TaskConfig("spans"))
    with pytest.raises(DataError, match="uses no questions"):
        stages.pretrain(spans, WORLD, FACTS, tmp_path / "run")
    nothing = replace(tiny, task=TaskConfig("recall", {"views": 0, "lines": 0.0, "questions": 0.0}))
    with pytest.raises(DataError, match="makes no examples"):
        stages.pretrain(nothing, WORLD, FACTS, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_one_line(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(StorageError, match="disk is full") as error:
        calls = iter(range(1000))
        real = os.fsync
        patched.setattr(os, "fsync", lambda descriptor: full(descriptor) if next(calls) >= 4 else real(descriptor))
        stages.pretrain(tiny, WORLD, FACTS, tmp_path / "run")
    assert error.value.exit_code == 1
    run = Run.open(tmp_path / "run")
    assert run.checkpoints() == []
    assert stages.resume(run).complete


def test_a_loss_that_explodes_stops_the_run(tmp_path: Path, tiny: RunConfig) -> None:
    wild = replace(tiny, train=replace(tiny.train, lr=1e30, muon_lr=1e30, clip=0.0, warmup=0.0))
    with pytest.raises(AttnlabError, match="lower --train.lr"):
        stages.pretrain(wild, WORLD, FACTS, tmp_path / "run")


@pytest.mark.parametrize("weights", ["infinite", "huge"])  # those that are huge have a loss that is not finite
def test_a_last_step_that_explodes_is_not_a_complete_run(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    one_step = replace(tiny, train=replace(tiny.train, warmup=0.0, steps=1))
    if weights == "infinite":
        one_step = replace(one_step, train=replace(one_step.train, lr=1e38, muon_lr=1e38))
    else:
        plain_step = train.Trainer.train_step

        def step(self: train.Trainer, *given: Any) -> tuple[float, float]:
            taken = plain_step(self, *given)
            self.model.head.weight.data.sign_().mul_(3e38)
            return taken

        monkeypatch.setattr(train.Trainer, "train_step", step)
    with pytest.raises(Diverged, match="not finite after step 1: .*lower --train.lr"):
        stages.pretrain(one_step, WORLD, FACTS, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert not run.complete
    assert not (run.path / "model").exists()


def test_threads_follow_the_size_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    small, tiny = resolve("small").model, resolve("small", given={"model": {"n_embd": 64}}).model
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert train.choose_threads(small, 0) == 8
    assert train.choose_threads(small, 3) == 3
    assert train.choose_threads(tiny, 0) == 1
    assert [
        train.choose_threads(replace(tiny, n_head=1, n_embd=width, positions="learned"), 0) for width in (95, 96)
    ] == [1, 8]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert train.choose_threads(small, 0) == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    assert train.choose_threads(small, 0) == 1
    for number in (0, 1, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(number))
        assert train.choose_threads(small, 0) == max(1, number)


_FRAGMENTS = """
import numpy as np
from attnlab.machine import memory_held, release_freed_memory, retain_freed_memory

retain_freed_memory()
blocks = [np.ones(2**20) for _ in range(32)]
del blocks[:-1]
retained = memory_held("VmRSS")
release_freed_memory()
print(retained - memory_held("VmRSS"))
"""


@pytest.mark.processes
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc retains memory")
def test_freed_memory_is_returned() -> None:
    ran = subprocess.run([sys.executable, "-c", _FRAGMENTS], capture_output=True, text=True, check=True)
    assert int(ran.stdout) > 30 * 2**23


def test_a_checkpoint_is_written_every_so_many_minutes(tmp_path: Path, tiny: RunConfig) -> None:
    """On a clock that shows ten minutes more at every look, steps take at least ten minutes."""
    clock = iter(range(0, 10**6, 600))
    saved: dict[float, int] = {}
    for minutes in (9.9, 10.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train.time, "monotonic", lambda: next(clock))
            times: list[int] = []
            patch.setattr(Run, "save_checkpoint", lambda _, step, files, times=times: times.append(step))
            settings = replace(tiny.train, steps=6, checkpoint_every=1000, checkpoint_minutes=minutes)
            stages.pretrain(replace(tiny, train=settings), WORLD, FACTS, tmp_path / str(minutes))
        saved[minutes] = len(times)
    assert saved == {9.9: 6, 10.0: 3}


def test_a_process_without_questions_adds_no_right_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(monkeypatch, "dot")
    trainer.ranks = Ranks(1, 2)
    monkeypatch.setattr(Ranks, "total", lambda _, *values: [float(value) for value in values])
    assert trainer._dev_accuracy(DevSet([], corpora.load_questions(FACTS)[:1])) == 0


def test_every_checkpoint_returns_memory(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[bool] = []
    monkeypatch.setattr(train, "release_freed_memory", lambda: released.append(True))
    steps = stages.pretrain(tiny, WORLD, FACTS, str(tmp_path / "run")).result.steps
    assert len(released) >= steps // tiny.train.checkpoint_every > 0


# The parts of a trainer, by themselves


def share_of(trainer: train.Trainer, rank: int, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trainer compute the share of one process of several; nothing is summed over them."""
    monkeypatch.setattr(Ranks, "total", lambda self, *values: list(values))
    trainer.ranks = Ranks(rank, world)


@pytest.mark.parametrize(("rows", "accumulate"), [(0, 1), (0, 2), (7, 1)])
def test_the_shares_of_processes_add_up_to_the_whole(
    monkeypatch: pytest.MonkeyPatch, rows: int, accumulate: int
) -> None:
    """Seven texts for three processes: some parts have no text for one of them."""
    batch = of_lengths([4, 9, 5, 30, 31, 7, 12])
    settings = {"rows_per_batch": rows, "accumulate": accumulate}
    whole = trainer_of(monkeypatch, "dot", **settings)
    loss, _ = whole.train_step(batch, 1.0)
    total, gradients = 0.0, [torch.zeros_like(weight) for weight in whole.model.parameters()]
    for rank in range(3):
        trainer = trainer_of(monkeypatch, "dot", **settings)
        share_of(trainer, rank, 3, monkeypatch)
        total += trainer.train_step(batch, 1.0)[0]
        assert trainer.at.tokens == whole.at.tokens  # of all processes
        for gradient, weight in zip(gradients, trainer.model.parameters(), strict=True):
            gradient += 0 if weight.grad is None else weight.grad / 3  # as DistributedDataParallel does
    assert total == pytest.approx(loss)
    for gradient, weight in zip(gradients, whole.model.parameters(), strict=True):
        assert weight.grad is None or torch.allclose(gradient, weight.grad, rtol=1e-9, atol=1e-15)


def test_a_step_has_the_loss_and_the_gradient_of_the_mean_over_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = of_lengths([4, 9, 5])
    trainer, plain = (trainer_of(monkeypatch, "dot", rows_per_batch=0, accumulate=2) for _ in range(2))
    loss, norm = trainer.train_step(batch, 1.0)
    hidden = [plain.model(torch.tensor([example.ids[:-1]]))[0] for example in batch]
    aims = torch.tensor([token for example in batch for token in example.ids[1:]])
    expected = torch.nn.functional.cross_entropy(torch.cat(hidden), aims)
    expected.backward()
    assert loss == pytest.approx(expected.item())
    gradients = [(one.grad, other.grad) for one, other in zip(*map(weights_in, (trainer, plain)), strict=True)]
    assert all(torch.allclose(one, other, rtol=1e-8, atol=1e-14) for one, other in gradients if one is not None)
    assert norm == pytest.approx(
        math.sqrt(sum(other.square().sum().item() for _, other in gradients if other is not None))
    )


def weights_in(trainer: train.Trainer) -> list[Any]:
    return list(trainer.model.parameters())


def test_the_average_takes_the_place_of_the_weights_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(monkeypatch, "dot", ema=0.5)
    assert trainer.average is not None
    before = [weight.detach().clone() for weight in weights_in(trainer)]
    for tensor in trainer.average.tensors.values():
        tensor.fill_(0.25)
    with pytest.raises(ValueError, match="stop"), trainer._averaged():
        assert all((weight == 0.25).all() for weight in weights_in(trainer))
        raise ValueError("stop")
    assert all(torch.equal(weight, old) for weight, old in zip(weights_in(trainer), before, strict=True))


def test_a_batch_is_computed_in_parts_that_all_processes_share(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = of_lengths([3] * 11)
    for world, accumulate, sizes in ((1, 1, [11]), (1, 2, [6, 5]), (2, 2, [6, 5]), (3, 2, [6, 5]), (2, 3, [4, 4, 3])):
        trainer = trainer_of(monkeypatch, "dot", rows_per_batch=0, accumulate=accumulate)
        share_of(trainer, 0, world, monkeypatch)
        assert [len(part) for part in trainer._parts(batch)] == sizes
    given: list[Any] = []
    monkeypatch.setattr(train, "split_by_length", lambda *values: (given.append(values), [batch])[1])
    trainer = trainer_of(monkeypatch, "dot", rows_per_batch=11, accumulate=2)
    share_of(trainer, 0, 3, monkeypatch)
    trainer._parts(batch)
    assert given == [(batch, 6, 3 * train.COST_OF_A_PART)]


def held_out() -> DevSet:
    asked = tuple(Question(f"What is {name}?", name) for name in "abc")
    return DevSet(of_lengths([4, 9, 5, 30, 31]), asked)


@torch.no_grad()
def test_processes_validate_on_shares_of_the_held_out_data(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(monkeypatch, "dot", tokens_per_batch=64)
    dev = held_out()
    whole = trainer._dev_loss(dev)
    expected = sum(float(trainer._loss(trainer.loss, [example])) for example in dev.examples) / (4 + 9 + 5 + 30 + 31)
    assert whole == pytest.approx(expected)
    asked: list[str] = []

    def exam(model: Any, tokenizer: Any, questions: list[Question]) -> Any:
        asked.extend(one.answer for one in questions)
        return SimpleNamespace(right=[one.answer != "b" for one in questions])

    monkeypatch.setattr(train, "examine", exam)
    assert trainer._dev_accuracy(dev) == pytest.approx(2 / 3)
    assert trainer._dev_accuracy(DevSet(dev.examples)) is None
    asked.clear()
    loss = accuracy = 0.0
    for rank in range(2):
        share_of(trainer, rank, 2, monkeypatch)
        loss += trainer._dev_loss(dev)
        accuracy += trainer._dev_accuracy(dev) or 0.0
    assert loss == pytest.approx(whole)
    assert accuracy == pytest.approx(2 / 3)
    assert sorted(asked) == ["a", "b", "c"]


def test_samples_go_through_the_held_out_data(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(monkeypatch, "dot")
    dev, told = held_out(), list[Any]()
    monkeypatch.setattr(train, "answer_all", lambda model, tokenizer, questions: [questions[0][-2]])
    monkeypatch.setattr(train, "sample", lambda model, tokenizer, *given, seed: [(*given, seed), "another"])
    monkeypatch.setattr(trainer, "task", SimpleNamespace(prompt=lambda example, _, most: (len(example.ids) - 1, most)))
    for trainer.at.validations in (1, 2, 3, 4):
        told.append(trainer._sample(dev))
    assert told == ["What is b? b", "What is c? c", "What is a? a", "What is b? b"]
    told.clear()
    for trainer.at.validations in (1, 4, 5, 6):
        told.append(trainer._sample(DevSet(dev.examples)))
    assert told == [((9, 8), 1, 1), ((31, 8), 1, 4), ((4, 8), 1, 5), ((9, 8), 1, 6)]  # 8 tokens of an example, one text
    trainer.model.config = replace(trainer.model.config, block_size=12)
    assert trainer._sample(DevSet(dev.examples)) == ((9, 3), 1, 6)
    share_of(trainer, 1, 2, monkeypatch)
    assert trainer._sample(dev) is None  # the first process shows one


def test_numbers_of_the_result(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are rounded to tenths of a second, epochs to hundredths."""
    real = train.Trainer._finish

    def finish(self: train.Trainer, *given: Any) -> None:
        (self.run.path / "checkpoints" / ".step-000001.tmp").mkdir(parents=True)  # what a killed process left behind
        self.at.seconds, self.at.validating, self.at.tokens, self.at.validations = 12.345, 1.26, 1000, 1
        real(self, *given)

    monkeypatch.setattr(train.Trainer, "_finish", finish)
    config = replace(tiny, train=replace(tiny.train, steps=7))
    run = stages.pretrain(config, WORLD, FACTS, tmp_path / "run")
    result, rows = run.result, run.metrics()
    assert (result.seconds, result.validation_seconds, result.tokens_per_second) == (12.3, 1.3, 81)
    assert abs(result.epochs - rows[-1].epoch) <= 0.005
    assert round(result.epochs, 1) != result.epochs == round(result.epochs, 2)
    assert result.final_loss == rows[-1].loss  # the last twentieth, at least one step
    assert all(row.seconds == round(row.seconds, 3) for row in rows)
    assert len({row.seconds for row in rows}) == len(rows)
    assert (result.steps, result.threads, result.device) == (7, torch.get_num_threads(), "cpu")
    assert not list((run.path / "checkpoints").glob(".step*"))


def test_only_the_first_process_writes(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = stages.Sources.read(WORLD, FACTS)
    config = replace(tiny, train=replace(tiny.train, steps=4, checkpoint_every=2, threads=1, validate_every=2))
    shown: list[Any] = []
    for rank in (1, 0):
        run = Run.create(tmp_path / str(rank), RunRecord())
        trainer = stages._prepare(run, config, sources, None, ALONE, progress.QUIET)
        trainer.dev = held_out()
        monkeypatch.setattr(trainer, "_dev_accuracy", lambda dev: 0.0)
        share_of(trainer, rank, 1, monkeypatch)  # of all texts
        before = sorted(path.name for path in run.path.iterdir())
        trainer.fit(shown.append)
        assert not trainer.model.training
        made = {path.name for path in run.path.iterdir()} - {*before}
        assert made == (set() if rank else {"metrics.jsonl", "checkpoints", "best", "model", "result.json"})
        assert [row.step for row in shown] == ([] if rank else [1, 2, 3, 4])


def test_a_compiled_module_is_tried_without_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(monkeypatch, "dot", compile=True)
    trainer.model.register_buffer("calls", torch.zeros(1))
    trainer.model.eval()
    shapes: list[tuple[int, ...]] = []

    def compile(module: Any, dynamic: bool) -> Callable[..., torch.Tensor]:
        assert dynamic

        def compiled(*given: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(given[0].shape))
            assert trainer.model.training
            warnings.warn_explicit(
                "odd", UserWarning, "eval_frame.py", 1, module="torch._dynamo.eval_frame"
            )  # not shown
            cast(Any, trainer.model.calls).add_(torch.rand(()))
            loss: torch.Tensor = module(*given)
            return loss

        return compiled

    synchronized: list[bool] = []
    monkeypatch.setattr(train, "no_sync", lambda _, last: (synchronized.append(last), nullcontext())[1])
    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(logging.getLogger("torch._dynamo"), "level", logging.WARNING)
    state, notes = torch.get_rng_state(), list[str]()
    trainer._compile(notes.append)
    assert shapes == [(2, 8)]
    assert synchronized == [False]
    assert trainer.forward is not trainer.module
    assert torch.equal(torch.get_rng_state(), state)
    assert cast(Any, trainer.model.calls).item() == 0
    assert all(weight.grad is None for weight in trainer.model.parameters())
    assert not notes
    assert logging.getLogger("torch._dynamo").level == logging.ERROR  # what it cannot compile is no concern of users
    monkeypatch.setattr(Ranks, "total", lambda self, *values: [1.0])
    trainer.forward = trainer.module
    trainer._compile(notes.append)
    assert trainer.forward is trainer.module
    assert notes == ["note: torch.compile failed, training goes on without it: it failed in another process"]


def test_who_stopped_a_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(monkeypatch, "dot")
    saved: list[int] = []
    monkeypatch.setattr(trainer, "checkpoint", lambda: saved.append(trainer.at.step))
    trainer.run, trainer.at.step = Run(tmp_path / "my run"), 7
    for received, who in (([signal.SIGINT], "Ctrl-C"), ([signal.SIGTERM], "SIGTERM"), ([], "a signal")):
        with pytest.raises(Interrupted) as stop:
            trainer._stop([*map(int, received)])
        command = f"attnlab resume '{tmp_path / 'my run'}'"
        assert str(stop.value) == f"stopped by {who} at step 7; all is saved. Resume with: {command}"
    assert saved == [7, 7, 7]


def test_generators_of_all_processes_are_saved_and_each_restores_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(monkeypatch, "dot")

    def gather(every: list[torch.Tensor], state: torch.Tensor) -> None:
        for rank, place in enumerate(every):
            place.copy_(torch.Generator().manual_seed(rank).get_state())

    monkeypatch.setattr("torch.distributed.all_gather", gather)
    torch.manual_seed(9)
    alone = trainer._generator_states()
    assert list(alone) == ["0"]
    assert torch.equal(alone["0"], torch.get_rng_state())
    share_of(trainer, 1, 2, monkeypatch)
    states = trainer._generator_states()
    assert list(states) == ["0", "1"]
    write_folder(tmp_path / "saved", "checkpoint", {"rng.safetensors": to_bytes(states)})
    for rank, seed in ((0, 0), (1, 1), (2, 9)):  # the third did not exist before and keeps its own
        torch.manual_seed(9)
        share_of(trainer, rank, 3, monkeypatch)
        trainer._restore_generators(tmp_path / "saved" / "rng.safetensors")
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(seed).get_state())


def test_large_vocabularies_have_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(monkeypatch, "dot")
    examples = of_lengths([4, 9])
    plain = trainer._loss(trainer.loss, examples).item()
    called: list[int] = []
    real = train.vocabulary.summed_losses
    monkeypatch.setattr(train.vocabulary, "summed_losses", lambda *given: (called.append(1), real(*given))[1])
    for large, calls in ((51, 0), (50, 1)):
        monkeypatch.setattr(train.vocabulary, "LARGE", large)
        assert trainer._loss(trainer.loss, examples).item() == pytest.approx(plain, rel=1e-5)
        assert len(called) == calls


def test_a_step_without_a_finite_norm_is_recorded_without_it(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = iter([1.5, math.inf, math.nan, 2.5])
    real = train.Trainer.train_step
    monkeypatch.setattr(train.Trainer, "train_step", lambda *given: (real(*given)[0], next(norms)))
    run = stages.pretrain(replace(tiny, train=replace(tiny.train, steps=4)), WORLD, FACTS, tmp_path / "run")
    assert [row.norm for row in run.metrics()] == [1.5, None, None, 2.5]
