"""What a run does beside its steps: validation, the best model, averages, schedules, trackers, precision."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from attnlab.config import RunConfig, TrainConfig, resolve
from attnlab.corpora import load_questions
from attnlab.errors import AttnlabWarning, ConfigError, UserError
from attnlab.lm import batches, devices, optim, progress, stages, train
from attnlab.lm.decoding import sample
from attnlab.lm.evaluate import examine
from attnlab.lm.model import load_model, read_tensors
from attnlab.lm.processes import ALONE
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.runs import Run
from attnlab.tasks import TaskData
from attnlab.tasks.guess import guess_settings
from attnlab.trust.training_data import TrainingData
from verbs import call

WORLD, FACTS, DEV = "people:60", "people:60:train", "people:60:dev"


def with_train(config: RunConfig, **settings: Any) -> RunConfig:
    return replace(config, train=replace(config.train, **settings))


def pretrained(config: RunConfig, out: Path, dev: str | None = DEV, show: progress.Show = progress.QUIET) -> Run:
    return stages.pretrain(config, WORLD, FACTS, out, show, dev=dev)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory, tiny: RunConfig) -> Run:
    config = with_train(tiny, validate_every=3, sample_every=3)
    return pretrained(config, tmp_path_factory.mktemp("runs") / "validated")


def test_validation_leaves_training_as_it_is(tmp_path: Path, tiny: RunConfig, validated: Run) -> None:
    plain = pretrained(tiny, tmp_path / "plain", dev=None)
    assert [row.loss for row in plain.metrics()] == [row.loss for row in validated.metrics()]
    assert same(weights(plain.model), weights(validated.model))
    assert validated.result.validation_seconds is not None
    assert 0 <= validated.result.validation_seconds <= validated.result.seconds
    assert not (plain.path / "best").exists()
    assert plain.result.best_dev_loss is None


def test_the_dev_loss_is_that_of_the_best_model_on_the_questions(validated: Run) -> None:
    rows = [row for row in validated.metrics() if row.dev_loss is not None]
    last = validated.metrics()[-1].step
    assert [row.step for row in rows] == [*range(3, last, 3), last]
    best = min(rows, key=lambda row: row.dev_loss)
    assert (validated.result.best_step, validated.result.best_dev_loss) == (best.step, best.dev_loss)
    model, tokenizer = load_model(validated.path / "best")
    questions = load_questions(DEV)
    total = targets = 0.0
    for example in TaskData(tokenizer, 64, questions=questions).answered:  # one at a time, without padding
        ids = torch.tensor([example.ids])
        logits = model(ids[:, :-1]).detach()[0, example.start - 1 :]
        total += float(F.cross_entropy(logits, ids[0, example.start :], reduction="sum"))
        targets += len(example.ids) - example.start
    assert total / targets == pytest.approx(best.dev_loss, rel=1e-5)
    accuracy = sum(examine(model, tokenizer, questions).right) / len(questions)
    assert best.dev_accuracy == pytest.approx(accuracy)


def test_samples_are_shown_every_so_often(validated: Run) -> None:
    sampled = [row.step for row in validated.metrics() if row.sample is not None]
    every = [row.step for row in validated.metrics() if row.dev_loss is not None]
    assert sampled == [*every[2::3], every[-1]]
    assert len(every) % 3  # so that the last has one only because it is the last


def test_early_stopping_keeps_the_best_model(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([3.0, 2.0, 2.5, 2.0, 1.0])
    monkeypatch.setattr(train.Trainer, "_dev_loss", lambda *_: next(found))
    notes: list[str] = []
    run = pretrained(
        with_train(tiny, validate_every=1, patience=2), tmp_path / "run", show=progress.Show(line=notes.append)
    )
    assert run.metrics()[-1].step == 4
    assert run.result.best_step == 2
    assert run.result.stopped_early is True
    assert notes[-1] == "stopped early: 2 validations without improvement since step 2"
    assert same(weights(run.model), weights(run.path / "best"))


def test_a_validation_loss_of_text_that_rose_leaves_the_best_model(
    tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("Ann was born in Rome.\nBob was born in Oslo.\n", encoding="utf-8")
    config = with_train(tiny, validate_every=1)
    last = weights(pretrained(config, tmp_path / "last", dev=None).model)
    for name, step, dev, best in (
        ("rose", 0.1, str(held_out), True),
        ("fell", -0.1, str(held_out), False),
        ("questions", 0.1, DEV, False),  # answers may still get better
    ):
        losses = itertools.chain([3.0], itertools.count(2.0, step))
        monkeypatch.setattr(train.Trainer, "_dev_loss", lambda *_, losses=losses: next(losses))
        run = pretrained(config, tmp_path / name, dev=dev)
        assert run.result.best_step == (run.result.steps if name == "fell" else 2)
        assert same(weights(run.model), weights(run.path / "best") if best else last)
        assert same(weights(run.path / "best"), last) == (name == "fell")


class Stop(Exception):
    pass


def test_a_run_with_validation_and_averages_resumes_exactly(tmp_path: Path, tiny: RunConfig) -> None:
    config = with_train(tiny, validate_every=2, ema=0.8, accumulate=2, checkpoint_every=3)
    whole = pretrained(config, tmp_path / "whole")

    def stop(step: train.Step) -> None:
        if step.step == 5:
            raise Stop

    with pytest.raises(Stop):
        pretrained(config, tmp_path / "broken", show=progress.Show(step=stop))
    broken = stages.resume(Run.open(tmp_path / "broken"))
    kept = [replace(row, seconds=0.0) for row in broken.metrics()]
    assert kept == [replace(row, seconds=0.0) for row in whole.metrics()]
    assert same(weights(broken.model), weights(whole.model))


def test_the_average_is_exponential_and_becomes_the_model(tmp_path: Path, tiny: RunConfig) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    original = optim.Average.update

    def update(self: optim.Average, step: int) -> None:
        original(self, step)
        seen.append({name: weight.detach().clone() for name, weight in self.weights.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optim.Average, "update", update)
        run = pretrained(with_train(tiny, ema=0.4), tmp_path / "run", dev=None)
    first = stages.pretrain(with_train(tiny, epochs=0.001, lr=1e-30, muon_lr=1e-30), WORLD, FACTS, tmp_path / "first")
    expected = weights(first.model)  # the weights before the first step
    for number, step in enumerate(seen, start=1):
        decay = min(0.4, (1 + number) / (10 + number))  # 2/11, 3/12, ..., 0.4
        expected = {name: decay * expected[name] + (1 - decay) * step[name] for name in step}
    model = weights(run.model)
    assert all(torch.allclose(model[name], expected[name], atol=1e-6) for name in expected)
    assert not torch.allclose(model["head.weight"], seen[-1]["head.weight"], atol=1e-4)


def test_parts_of_a_batch_give_the_losses_of_the_whole(tmp_path: Path, tiny: RunConfig) -> None:
    config = with_train(tiny, precision="float64")
    whole, parts = (
        pretrained(with_train(config, accumulate=number), tmp_path / str(number), dev=None) for number in (1, 3)
    )
    pairs = zip(whole.metrics(), parts.metrics(), strict=True)
    assert all(a.loss == pytest.approx(b.loss, abs=1e-9) for a, b in pairs)
    assert weights(whole.model)["head.weight"].dtype == torch.float64


def test_schedules_by_name() -> None:
    def rates(**settings: Any) -> list[float]:
        config = TrainConfig(**{"warmup": 0.1, "decay": 0.5, **settings})
        return [round(optim.rate_at(at, config), 6) for at in (0.05, 0.1, 0.4, 0.75, 1.0)]

    assert rates(schedule="linear") == [0.5, 1, 1, 0.5, 0]
    assert rates(schedule="sqrt") == [0.5, 1, 1, round(1 - 0.5**0.5, 6), 0]
    assert rates(schedule="constant") == [0.5, 1, 1, 1, 1]
    assert rates(schedule="inverse_sqrt") == [0.5, 1, 0.5, round((0.1 / 0.75) ** 0.5, 6), round(0.1**0.5, 6)]
    with pytest.raises(ConfigError, match="warmup above 0"):
        TrainConfig(schedule="inverse_sqrt", warmup=0)


def test_the_gradient_norm_is_recorded(validated: Run, tmp_path: Path, tiny: RunConfig) -> None:
    norms = [row.norm for row in validated.metrics()]
    assert all(norm > 0 for norm in norms)
    free = pretrained(with_train(tiny, clip=0.0), tmp_path / "free", dev=None)
    assert free.metrics()[0].norm == pytest.approx(norms[0])


def test_a_share_of_the_held_out_tokens_is_spread_evenly() -> None:
    from attnlab.tasks import Example

    examples = [Example([number] * 10, 1) for number in range(20)]
    dev = batches.DevSet(examples, load_questions(DEV)[:20])
    part = dev.spread(50)
    assert [example.ids[0] for example in part.examples] == [0, 4, 8, 12, 16]
    assert part.questions == dev.questions[::4][:5]
    assert dev.spread(0).examples == examples


# Trackers


def test_tensorboard_has_the_curves(tmp_path: Path, tiny: RunConfig) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = pretrained(with_train(tiny, log="tensorboard", validate_every=5), tmp_path / "run")
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    rows = {row.step: row for row in run.metrics()}
    found = {one.step: one.value for one in events.Scalars("dev/loss")}
    assert found == pytest.approx({step: row.dev_loss for step, row in rows.items() if row.dev_loss is not None})
    assert {one.step for one in events.Scalars("train/norm")} == {*found, *(step for step in rows if step % 10 == 0)}


@pytest.mark.processes
def test_wandb_and_trackio_log_offline(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run = pretrained(with_train(tiny, log="wandb,trackio", epochs=1.0), tmp_path / "run")
    assert list((run.path / "wandb").glob("offline-run-*/*.wandb"))
    assert list((tmp_path / "trackio").glob("*.db"))


def test_a_tracker_that_fails_is_switched_off(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", fail)
    with pytest.warns(AttnlabWarning, match="tensorboard failed and is switched off: no route"):
        run = pretrained(with_train(tiny, log="tensorboard"), tmp_path / "run")
    assert run.complete


def test_unknown_trackers_and_devices_are_refused(tmp_path: Path, tiny: RunConfig) -> None:
    with pytest.raises(ConfigError, match="unknown train.log 'tensorbord': did you mean tensorboard"):
        TrainConfig(log="tensorbord")
    for device in ("gpu", "cuda:99", "cpu:1"):
        with pytest.raises(UserError, match="choose"):
            pretrained(with_train(tiny, device=device), tmp_path / "run")
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        pretrained(with_train(tiny, device="cpu", precision="fp16"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_service_that_is_not_there_is_left_out(tmp_path: Path, tiny: RunConfig, monkeypatch: Any) -> None:
    import wandb

    wandb.teardown()  # it remembers the mode of an earlier run
    monkeypatch.setenv("WANDB_API_KEY", "x")  # of the wrong length
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.warns(AttnlabWarning, match="wandb cannot be used: .*; log in with `wandb login`"):
        assert pretrained(with_train(tiny, log="wandb", epochs=0.1), tmp_path / "run", dev=None).complete


def test_patience_without_held_out_data_is_refused(tmp_path: Path, tiny: RunConfig) -> None:
    with pytest.raises(UserError, match="needs held-out data to stop by: give --dev"):
        pretrained(with_train(tiny, patience=2), tmp_path / "run", dev=None)


def test_validation_counts_every_question_whatever_the_batches(tmp_path: Path, tiny: RunConfig, validated: Run) -> None:
    rows = pretrained(with_train(tiny, rows_per_batch=7, epochs=0.01, lr=1e-30, muon_lr=1e-30), tmp_path / "rows")
    tokens = pretrained(with_train(tiny, epochs=0.01, lr=1e-30, muon_lr=1e-30), tmp_path / "tokens")
    assert rows.result.best_dev_loss == pytest.approx(tokens.result.best_dev_loss, rel=1e-6)


# Precision and compilation


@pytest.mark.parametrize("overflowing", ["head.weight", "blocks.0.mlp.up.weight"])
def test_a_step_that_overflows_is_left_out_as_a_whole(tmp_path: Path, tiny: RunConfig, overflowing: str) -> None:
    """Whether the weight belongs to Muon or to AdamW, neither of them steps, and the average does not either."""
    config = with_train(tiny, ema=0.5)
    sources = stages.Sources.read(WORLD, FACTS)
    trainer = stages._prepare(
        Run(tmp_path / "run"), with_train(config, threads=1), sources, None, ALONE, progress.QUIET
    )
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    weight = dict(trainer.model.named_parameters())[overflowing]
    hook = weight.register_hook(lambda gradient: gradient * float("inf"))
    batch = next(trainer._batches()).examples
    _, norm = trainer.train_step(batch, 1.0)
    assert not np.isfinite(norm)
    assert same(before, dict(trainer.model.named_parameters()))
    assert trainer.average is not None
    assert same(before, trainer.average.tensors)
    assert trainer.scaler.get_scale() == 512
    hook.remove()
    trainer.train_step(batch, 1.0)
    after = dict(trainer.model.named_parameters())
    assert not torch.equal(after["head.weight"], before["head.weight"])
    assert not torch.equal(after["blocks.0.mlp.out.weight"], before["blocks.0.mlp.out.weight"])


def test_mixed_precision_keeps_float32_weights(tmp_path: Path, tiny: RunConfig) -> None:
    try:
        devices.check_precision(torch.device("cpu"), "bf16")
    except UserError:
        pytest.skip("this processor has no bf16")
    mixed = pretrained(with_train(tiny, device="cpu", precision="bf16"), tmp_path / "mixed", dev=None)
    plain = pretrained(with_train(tiny, device="cpu"), tmp_path / "plain", dev=None)
    assert all(tensor.dtype == torch.float32 for tensor in weights(mixed.model).values())
    differences = [abs(a.loss - b.loss) for a, b in zip(mixed.metrics(), plain.metrics(), strict=True)]
    assert 0 < max(differences) < 0.1


def test_training_goes_on_without_a_compiler(tmp_path: Path, tiny: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    notes: list[str] = []
    run = pretrained(with_train(tiny, compile=True), tmp_path / "run", dev=None, show=progress.Show(line=notes.append))
    assert run.complete
    assert "note: torch.compile failed, training goes on without it: RuntimeError: no compiler" in notes


# Running text


def test_a_text_file_is_all_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs"]
    lines = [" ".join(words[pick] for pick in rng.integers(0, 10, 9)) for _ in range(300)]
    (tmp_path / "my.txt").write_text(
        "\n".join(line + ("\n" if number % 7 == 0 else "") for number, line in enumerate(lines))
    )
    size = ("--model.n_embd", "32", "--model.n_head", "2", "--model.vocab_size", "300", "--model.block_size", "32")
    size = (*size, "--train.epochs", "2", "--train.tokens_per_batch", "256")
    assert call("pretrain", tmp_path / "my.txt", *size, "--out", tmp_path / "run") == 0
    told = capsys.readouterr().out
    guessed = (
        "task text: running text, one document per file; the last 5 % are held out (--task.name, --dev change this)"
    )
    assert guessed in " ".join(told.split())
    run = Run.open(tmp_path / "run")
    assert f"sample after step {run.result.steps}: " in told
    assert run.result.best_dev_loss < 5
    model, tokenizer = load_model(run.model)
    first, second = sample(model, tokenizer, "", 2, limit=20)
    assert first != second
    config = json.loads((run.path / "config.json").read_text())["settings"]
    assert config["task"] == {"name": "text", "options": {"documents": "file", "held_out": 0.05}}
    before = [row.loss for row in run.metrics()]
    call("pretrain", tmp_path / "my.txt", *size, "--out", tmp_path / "again", "--dev", "0")
    assert Run.open(tmp_path / "again").result.best_dev_loss is None
    assert before[0] != pytest.approx(before[-1], abs=0.5)
    capsys.readouterr()
    (run.path / "result.json").unlink()
    assert call("resume", run.path) == 0
    assert f"loss {run.result.final_loss:.3f}, best validation loss" in capsys.readouterr().out


def test_running_text_is_measured_as_in_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    lines = [f"{number} {''.join(rng.choice(list('abcd '), 30))}." for number in range(100)]
    (tmp_path / "my.txt").write_text("\n".join(lines))
    (tmp_path / "tail.txt").write_text("\n".join(lines[-9:]))
    (tmp_path / "mixed.txt").write_text("\n".join([*lines[:5], "\u00e9 is new", *lines[-9:]]))
    size = ("--model.n_embd", "32", "--model.n_head", "2", "--model.block_size", "32", "--train.epochs", "1")
    text = (tmp_path / "my.txt", *size, "--tokenizer.kind", "char", "--task.options.documents=lines")
    assert call("pretrain", *text, "--dev", tmp_path / "tail.txt", "--out", tmp_path / "other") == 0
    assert call("pretrain", *text, "--dev", "0.1", "--out", tmp_path / "run") == 0
    model, tokenizer = load_model(tmp_path / "run")
    assert model.config.vocab_size == tokenizer.size == 19

    def measured(run: str, name: str, *more: str) -> dict[str, Any]:
        capsys.readouterr()
        out = ("--json", "--out", tmp_path / name[:1])
        assert call("evaluate", tmp_path / run, "--corpus", tmp_path / name, *more, *out) == 0
        shutil.rmtree(tmp_path / name[:1])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    last = Run.open(tmp_path / "other").metrics()[-1].dev_loss
    assert measured("other", "tail.txt")["loss"] == pytest.approx(last, rel=1e-5)
    assert measured("other", "tail.txt")["seen"] == 9  # it was trained on the whole text
    assert measured("run", "tail.txt")["seen"] == 0
    found = measured("run", "mixed.txt")
    assert (found["seen"], found["windows"]) == (5, found["tokens"] // 32)
    assert found["unknown_share"] == 6 / found["tokens"]
    longer = measured("run", "mixed.txt", "--length", "64")  # twice the block: half as many windows
    assert (longer["seen"], longer["windows"]) == (5, longer["tokens"] // 64)
    for wanted, command in (
        ("--length must be at least 2", ("evaluate", "--corpus", tmp_path / "mixed.txt", "--length", "1")),
        ("--length is that of the text of --corpus", ("evaluate", "--length", "64")),
        ("not on questions: measure it with --corpus FILE", ("evaluate",)),
        ("not on questions: continue a text with `attnlab generate", ("ask", "Where was Hank Aaron born?")),
    ):
        assert call(command[0], tmp_path / "run", *command[1:]) == 2
        assert wanted in capsys.readouterr().err


def test_questions_after_running_text_have_nothing_to_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    size = {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300}
    given = {"model": size, "train": {"steps": 1, "tokens_per_batch": 256}}
    base = stages.pretrain(resolve("text", given=given), "prose:100", None, tmp_path / "base")
    (tmp_path / "facts.tsv").write_text("Where was Ann Lee born?\tBath\n")
    config = resolve("text", "finetune", given={"train": {"steps": 1}, "task": {"name": "questions"}})
    tuned = stages.finetune(config, base, str(tmp_path / "facts.tsv"), None, tmp_path / "tuned")
    assert TrainingData(tuned).look_up().note == "it read running text, which has no lines to look up"


def test_only_the_vocabulary_of_running_text_follows_its_characters() -> None:
    tokenizer = Tokenizer.train("char", ["abc"], 0)
    given = {"tokenizer": {"kind": "char"}}
    assert stages.fit_vocabulary(resolve("text", given=given), tokenizer).vocab_size == tokenizer.size == 6
    assert stages.fit_vocabulary(resolve("mingpt"), tokenizer).vocab_size == 256


def test_a_file_to_validate_on_is_read_whole_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    seen: list[batches.DevSet] = []
    monkeypatch.setattr(train.Trainer, "fit", lambda self, *_: seen.append(self.dev))
    (tmp_path / "text.txt").write_text("abcdefgh " * 500)
    (tmp_path / "dev.txt").write_text("hgfedcba" * 3)
    size = {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 8, "vocab_size": 0}
    options = {"task": {"options": {"held_out": 0.05}}, "model": size, "tokenizer": {"kind": "char"}}
    config = resolve("text", given=options)
    notes: list[str] = []
    for name in ("dev", "text"):
        show, dev = progress.Show(line=notes.append), str(tmp_path / f"{name}.txt")
        stages.pretrain(config, str(tmp_path / "text.txt"), None, tmp_path / name, show, dev=dev)
    letters = {letter: 4 + number for number, letter in enumerate("abcdefgh")}
    wanted = [0, *(letters[letter] for letter in "hgfedcba" * 3)]
    assert [[*example.ids] for example in seen[0].examples] == [wanted[at : at + 9] for at in (0, 8, 16)]
    assert notes.count("note: the held-out text is the training text") == 1


def test_a_guess_is_one_sentence(tmp_path: Path) -> None:
    story, name = "It was a cold morning, and he went out to see whether the boat was there.\n", "stories.txt"
    (tmp_path / name).write_text(story * 30)
    said = guess_settings(str(tmp_path / name), {})[2]
    changed = "--task.name, --task.options.documents, --dev change this"
    assert said == f"task text: a complete text per line, each a document; the last 5 % are held out ({changed})"
    given = {"task": {"options": {"documents": "blank", "held_out": 0.2}}}
    preset, settings, said = guess_settings(str(tmp_path / name), given)
    assert (preset, settings) == ("text", given)
    assert said == "task text: a complete text per line (--task.name changes this)"
    assert guess_settings("people:60", {}) == (
        "small",
        {},
        "task recall: each line is a document with a title (--task.name changes this)",
    )


def test_of_a_short_text_nothing_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "short.txt").write_text("To be, or not to be.")
    size = ("--model.n_embd", "32", "--model.n_head", "2", "--model.vocab_size", "300", "--train.epochs", "1")
    assert call("pretrain", tmp_path / "short.txt", *size, "--out", tmp_path / "run") == 0
    assert "; it is short, so nothing is held out (" in " ".join(capsys.readouterr().out.split())


def test_a_share_is_held_out_of_running_text_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("pretrain", "--corpus", "people:60", "--dev", "0.1", "--out", tmp_path / "run") == 2
    assert "a share can be held out of running text only" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
