"""A small RoBERTa from text alone: pieces learned, texts packed, hidden tokens guessed, a folder written whole."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnlab.config import ModelConfig
from attnlab.errors import DataError, Interrupted
from attnlab.hf.encoder_card import model_card
from attnlab.hf.encoder_settings import EncoderConfig
from attnlab.hf.loading import quietly
from attnlab.hf.pieces import SYMBOLS, Ids, blocks_of, encoded, learn_pieces
from attnlab.hf.places import need_extra
from attnlab.hf.texts import Source, open_source, part
from attnlab.runs import environment, folders_above, refuse_existing, require_single_process, to_json, write_folder
from attnlab.stages import QUIET, Show
from attnlab.train import choose_threads, retain_freed_memory

if TYPE_CHECKING:
    from transformers import RobertaForMaskedLM, RobertaTokenizer

    from attnlab.hf.training import MaskedTrainer

MOST_VALIDATED = 65536  # tokens


@dataclass(frozen=True)
class Material:
    """What a run is made from: corpora, tokenizer and blocks."""

    sources: tuple[Source, ...]
    texts: tuple[int, ...]  # of every source, those that are trained on
    tokenizer: RobertaTokenizer
    train: Ids
    validation: Ids


def pretrain(
    corpora: Sequence[str] = ("prose",),
    out: str | Path = "encoder",
    config: EncoderConfig | None = None,
    show: Show = QUIET,
) -> dict[str, Any]:
    """Train a small RoBERTa on corpora and write it to a folder that transformers loads; the result is also in result.json."""
    need_extra()
    require_single_process("encoder pretrain")
    config, folder = config or EncoderConfig(), Path(out)
    refuse_existing(folder)
    try:
        with (
            folders_above(folder),
            tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as work,
        ):
            return _pretrain(corpora, folder, Path(work), config, show)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; nothing was written to {folder}") from None


def _pretrain(names: Sequence[str], out: Path, work: Path, config: EncoderConfig, show: Show) -> dict[str, Any]:
    torch.set_num_threads(choose_threads(ModelConfig(n_embd=config.n_embd, n_head=config.n_head), 0))
    torch.manual_seed(config.seed)
    retain_freed_memory()
    material = prepare(names, config, show)
    model = new_model(config, len(material.tokenizer))
    trainer, guess = make_trainer(model, material, work, config, show)
    trainer.train()
    trainer.evaluate()
    result = {
        **outcome(trainer, config),
        "vocab_size": len(material.tokenizer),
        "corpus": [
            {**asdict(source), "texts": count} for source, count in zip(material.sources, material.texts, strict=True)
        ],
        "unigram": guess,
        "environment": environment(),
    }
    write_folder(out, "encoder", {**files_of(model, material.tokenizer, work, config), **papers(result)})
    return result


def prepare(names: Sequence[str], config: EncoderConfig, show: Show) -> Material:
    """Read the corpora twice: once to learn the pieces, once to write the texts in them."""
    sources = tuple(open_source(name) for name in names)
    for source in sources:
        show.line(source.told())
    tokenizer = learn_pieces(part(sources, config.held_out, False), config.vocab_size, config.block_size)
    rng = np.random.default_rng(config.seed)
    every: list[Ids] = []
    texts = []
    for source in sources:
        before = len(every)
        every += encoded(part([source], config.held_out, False), tokenizer)
        texts.append(len(every) - before)
    train = blocks_of(every, config.block_size, rng)
    validation = blocks_of(encoded(part(sources, config.held_out, True), tokenizer), config.block_size, rng)
    validation = validation[: max(1, MOST_VALIDATED // config.block_size)]
    for blocks, what in ((train, "train on"), (validation, "validate with")):
        if not len(blocks):
            raise DataError(
                f"the corpus is too small to {what}: not one block of {config.block_size} tokens; give more text,"
                " a smaller --block_size, or a larger --held_out"
            )
    show.line(
        f"{sum(texts):,} texts, {train.size:,} tokens of {len(tokenizer):,} pieces; {validation.size:,} tokens held out"
    )
    return Material(sources, tuple(texts), tokenizer, train, validation)


def new_model(config: EncoderConfig, vocab_size: int) -> RobertaForMaskedLM:
    """A fresh RoBERTa; dropout, which costs time and helps nobody who sees every text a few times, is left out for now."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    numbers = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=vocab_size,
            hidden_size=config.n_embd,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            intermediate_size=4 * config.n_embd,
            max_position_embeddings=config.block_size + numbers["<pad>"] + 1,  # RoBERTa counts places from there
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            bos_token_id=numbers["<s>"],
            pad_token_id=numbers["<pad>"],
            eos_token_id=numbers["</s>"],
        )
    )


def make_trainer(
    model: RobertaForMaskedLM, material: Material, work: Path, config: EncoderConfig, show: Show
) -> tuple[MaskedTrainer, dict[str, float]]:
    """Everything put together, and what who knows only frequencies would reach in validation."""
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import DataCollatorForLanguageModeling, TrainingArguments

    from attnlab.hf.masked import VALIDATION_HIDES, Blocks, begin_at, frequencies, hidden_once, unigram
    from attnlab.hf.training import MaskedTrainer, Pace, Watch, make_optimizer

    hide, hide_fewer = (
        DataCollatorForLanguageModeling(material.tokenizer, mlm_probability=share)
        for share in (config.hidden, VALIDATION_HIDES)
    )
    validation = hidden_once(material.validation, hide_fewer, config.seed)
    shares = frequencies(material.train, len(material.tokenizer))
    if not (validation["labels"] >= 0).any():
        raise DataError("the corpus is too small to validate with: not one held-out token is hidden; give more text")
    guess = unigram(shares, validation["labels"])
    begin_at(model, shares)
    steps = math.ceil(math.ceil(len(material.train) / config.blocks_per_batch) * config.epochs)
    optimizer = make_optimizer(model, config)
    pace = Pace(steps, 60 * config.minutes, config.warmup)
    given = TrainingArguments(
        output_dir=str(work / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=config.blocks_per_batch,
        per_device_eval_batch_size=config.blocks_per_batch,
        max_grad_norm=1.0,
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=config.seed,
    )

    def told(point: dict[str, float]) -> None:
        show.line(
            f"epoch {point['epoch']:.2f}: loss of hidden tokens {point['loss']:.3f}, {point['accuracy']:.1%} found"
            f" (by frequency alone {guess['loss']:.3f}, {guess['accuracy']:.1%})"
        )

    trainer = MaskedTrainer(
        watch=Watch(pace, show.step),
        validation=validation,
        told=told,
        model=model,
        args=given,
        data_collator=hide,
        train_dataset=Blocks(material.train),
        eval_dataset=Blocks(material.validation),
        optimizers=(optimizer, LambdaLR(optimizer, pace.rate)),
    )
    return trainer, guess


def outcome(trainer: MaskedTrainer, config: EncoderConfig) -> dict[str, Any]:
    """What a run came to."""
    seconds, steps = trainer.watch.pace.elapsed(), trainer.state.global_step
    tokens = trainer.watch.tokens
    assert trainer.model is not None
    return {
        "config": asdict(config),
        "parameters": sum(weight.numel() for weight in trainer.model.parameters()),
        "steps": steps,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "threads": torch.get_num_threads(),
        "validation_targets": int((trainer.validation["labels"] >= 0).sum()),
        "history": trainer.history,
    }


def files_of(
    model: RobertaForMaskedLM, tokenizer: RobertaTokenizer, work: Path, config: EncoderConfig
) -> dict[str, bytes]:
    """The files that transformers loads an encoder from, by name."""
    saved = work / "saved"
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = config.dropout
    with quietly():
        model.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
    return {path.name: path.read_bytes() for path in sorted(saved.iterdir()) if path.is_file()}


def papers(result: dict[str, Any]) -> dict[str, bytes]:
    """The result for programs, and for people."""
    return {"README.md": model_card(result).encode(), "result.json": to_json(result)}
