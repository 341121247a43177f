from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab import corpora
from attnlab.config import RunConfig, TaskConfig, resolve
from attnlab.errors import AttnlabError, CheckpointError, DataError, Diverged, Interrupted, OutputExists, StorageError
from attnlab.lm import progress, stages, train
from attnlab.lm.batches import collate, make_batches, split_by_length
from attnlab.lm.model import LanguageModel, load_model, read_tensors, to_bytes
from attnlab.lm.processes import ALONE
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.runs import DataSource, Run
from attnlab.tasks import Example
from verbs import call, reseal

TINY: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300},
    "train": {"epochs": 2.0, "tokens_per_batch": 512, "checkpoint_every": 4},
}
WORLD, FACTS = "people:60", "people:60:train"


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

    with pytest.raises(Interrupted, match="attnlab resume"):
        stages.pretrain(tiny, WORLD, FACTS, tmp_path / "run", progress.Show(step=interrupt))
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
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert train.choose_threads(small, 0) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert train.choose_threads(small, 0) == 3


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


def test_every_checkpoint_returns_memory(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[bool] = []
    monkeypatch.setattr(train, "release_freed_memory", lambda: released.append(True))
    steps = stages.pretrain(tiny, WORLD, FACTS, str(tmp_path / "run")).result.steps
    assert len(released) >= steps // tiny.train.checkpoint_every > 0
