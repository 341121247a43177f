from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnlab.config import TaskConfig, TaskTraits, resolve
from attnlab.corpora import Corpus
from attnlab.errors import ConfigError, DataError
from attnlab.lm import perplexity, stages, train
from attnlab.lm.batches import IGNORED, collate, make_rows
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.stages import preview
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.runs import Run
from attnlab.tasks import Example, TaskData, make_task, show_example

LINES = ("The dog sees the cat.", "A cat sees a dog, and the dog runs.", "The dog runs.", "The cat runs to the dog.")
WORDS = Tokenizer.train("word", LINES, 0)
TINY: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 64},
    "tokenizer": {"min_count": 2},
    "train": {"epochs": 2.0, "rows_per_batch": 2, "checkpoint_every": 2},
}


def examples(seed: int = 0, block: int = 64, **options: Any) -> list[Example]:
    task = make_task(TaskConfig("words", options), TaskData(WORDS, block, Corpus("test", LINES)))
    return task.examples(np.random.default_rng(seed))


def test_every_sentence_once_from_start_to_stop() -> None:
    found = examples()
    assert [WORDS.decode(example.ids) for example in found] == [
        "<START> The dog sees the cat . <STOP>",
        "<START> A cat sees a dog , and the dog runs . <STOP>",
        "<START> The dog runs . <STOP>",
        "<START> The cat runs to the dog . <STOP>",
    ]
    assert all(example.start == 1 and example.end == len(example.ids) for example in found)
    assert show_example(found[2], WORDS) == ("<START>", "The dog runs . <STOP>")


def test_long_sentences_are_cut() -> None:
    assert [len(example.ids) for example in examples(longest=8)] == [8, 8, 6, 8]
    assert [len(example.ids) for example in examples(block=9)] == [8, 9, 6, 9]


def test_padding_fills_and_is_not_learned() -> None:
    plain, padded = examples(longest=20), examples(longest=20, padded=True)
    assert all(len(example.ids) == 20 for example in padded)
    assert [example.ids[: example.end] for example in padded] == [example.ids for example in plain]
    ids, targets = collate(padded, WORDS.pad)
    assert ids.shape == targets.shape == (4, 19)
    assert (targets != IGNORED).sum() == sum(len(example.ids) - 1 for example in plain)
    assert targets[2].tolist() == [*plain[2].ids[1:], *([IGNORED] * 14)]


@pytest.mark.parametrize(("mechanism", "same"), [("dot", True), ("zero_mask", False)])
def test_padding_takes_part_only_where_attention_is_wrong(mechanism: str, same: bool) -> None:
    torch.manual_seed(0)
    model = {**TINY["model"], "mechanism": mechanism, "vocab_size": WORDS.size, "dropout": 0.0}
    loss = train.SummedLoss(LanguageModel(resolve("nano-words", given={"model": model}).model))
    for parameter in loss.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    plain, padded = (loss(*collate(examples(longest=30, padded=one)[:1], WORDS.pad)) for one in (False, True))
    assert torch.allclose(plain, padded, rtol=1e-4) == same


def test_draws_with_replacement() -> None:
    drawn = [[WORDS.decode(one.ids) for one in examples(seed, replacement=True)] for seed in range(30)]
    assert all(len(epoch) == 4 for epoch in drawn)
    assert drawn[0] == [WORDS.decode(one.ids) for one in examples(0, replacement=True)]
    assert {len(set(epoch)) for epoch in drawn} > {2, 3}
    assert len({text for epoch in drawn for text in epoch}) == 4


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="do not fit the block of 64: set --task.options.longest=64"):
        examples(padded=True)
    with pytest.raises(ConfigError, match="longest must be at least 2"):
        examples(longest=1)
    with pytest.raises(DataError, match="give --corpus"):
        make_task(TaskConfig("words"), TaskData(WORDS, 64))


@pytest.mark.parametrize("name", ["spans", "recall"])
def test_tasks_that_ask_refuse_words(name: str, tmp_path: Path) -> None:
    config = resolve("nano-words", given={**TINY, "task": {"name": name}})
    with pytest.raises(ConfigError, match="a word tokenizer has no ⁇"):
        stages.pretrain(config, "people:60", None, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_are_drawn_whatever_their_length() -> None:
    batches = make_rows(11, 3, np.random.default_rng(0))
    assert [len(batch) for batch in batches] == [3, 3, 3, 2]
    assert len({index for batch in batches for index in batch}) == 11
    assert make_rows(11, 3, np.random.default_rng(1)) != batches
    assert [len(batch) for batch in make_rows(2, 3, np.random.default_rng(0))] == [2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("words")
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in LINES))
    return stages.pretrain(resolve("nano-words", given=TINY), str(folder / "text.txt"), None, folder / "run")


def test_a_run_stores_the_size_that_its_corpus_has(trained: Run) -> None:
    model, tokenizer = load_model(trained.model)
    assert model.config.vocab_size == tokenizer.size == stages.stored_config(trained).model.vocab_size == 11
    assert trained.result.steps == 4
    assert trained.record.task == TaskTraits("sentences", "sentences", 100, False)
    assert perplexity.count_seen_lines(trained, (LINES[1], "Never seen."), tokenizer) == 1


def test_a_run_of_words_goes_on_where_it_stopped(trained: Run, tmp_path: Path) -> None:
    import shutil

    copy = Run(tmp_path / "copy")
    shutil.copytree(trained.path, copy.path)
    for path in ("result.json", "model", "checkpoints/step-000004"):
        shutil.rmtree(copy.path / path) if (copy.path / path).is_dir() else (copy.path / path).unlink()
    stages.resume(copy)
    assert [row.loss for row in copy.metrics()] == [row.loss for row in trained.metrics()]
    assert copy.record == trained.record


def test_options_as_the_command_line_gives_them_reach_the_evaluation(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in LINES))
    given = {**TINY, "task": {"options": {"longest": "12", "padded": "true"}}}
    run = stages.pretrain(resolve("nano-words", given=given), str(tmp_path / "text.txt"), None, tmp_path / "run")
    assert run.record.task == TaskTraits("sentences", "sentences", 12, True)
    measured = perplexity.sentence_losses(*load_model(run.model), LINES, 12, True)
    assert measured.tokens == (7, 11, 5, 8)
    assert run.result.tokens == 2 * sum(measured.tokens)


def test_preview_counts_words_and_lengths() -> None:
    shown = preview(resolve("nano-words", given={"model": {"block_size": 128}}), "prose:50", None, 2)
    words = shown.words
    assert words is not None
    assert words.sentences == sum(bar.sentences for bar in words.lengths) == 50
    assert shown.tokens_per_epoch == words.tokens + 2 * 50
    assert 0 < words.unknown_share < 1


def test_the_preset_is_the_reports_model() -> None:
    from attnlab.lm.model import count_parameters, meta_model

    parts = count_parameters(meta_model(resolve("nano-words").model))
    assert sum(parts.values()) - parts["head"] == 26_604 * 48 + 1024 * 48 + 3 * (12 * 48**2 + 13 * 48) + 2 * 48
    with pytest.raises(ConfigError, match="needs a corpus to learn the vocabulary from"):
        meta_model(resolve("nano-words", given={"model": {"vocab_size": 0}}).model)
