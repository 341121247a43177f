"""A small RoBERTa from text alone: learned byte-pair pieces, texts packed into blocks, masked tokens; and what it fills in.

Texts come from files, labelled tables and built-in corpora, one at a time. Which are held out follows from their checksums, so
that copies of a text are never on both sides. A text becomes `<s> ... </s>`, as in fine-tuning; texts in random order are
concatenated and cut into blocks without padding. Special pieces written out in a text have no effect.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnlab import corpora as built_in
from attnlab.config import ModelConfig
from attnlab.corpora.labelled import cell_of, text_column
from attnlab.corpora.sources import licences_of, lines_of, public_name
from attnlab.errors import DataError, Interrupted, UserError
from attnlab.hf.loading import load, load_weights, locate, need_extra, quietly, render_card, require_reachable
from attnlab.hf.settings import EncoderConfig
from attnlab.lm.stages import QUIET, Show
from attnlab.lm.tokenizers import split_long_text
from attnlab.lm.train import choose_threads
from attnlab.machine import environment, require_single_process, retain_freed_memory
from attnlab.store.folders import folders_above, refuse_existing, to_json, write_folder

if TYPE_CHECKING:
    from transformers import RobertaForMaskedLM, RobertaTokenizer

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_TEXTS_AT_ONCE = 1000  # encoded together
_LINES_LOOKED_AT = 1000  # to recognise a table
_MOST_VALIDATED = 65536  # tokens

Ids = NDArray[np.int32]


# What result.json holds


class Score(TypedDict):
    """Mean loss of masked tokens, and the share that is predicted."""

    loss: float
    accuracy: float


class Point(Score):
    """A validation."""

    epoch: float
    step: int
    seconds: float


class Pretrained(TypedDict):
    """The whole result."""

    config: dict[str, int | float | str]
    parameters: int
    steps: int
    tokens: int
    seconds: float
    tokens_per_second: int
    threads: int
    validation_targets: int
    history: list[Point]
    vocab_size: int
    corpus: list[dict[str, str | int | None]]
    unigram: Score  # of guessing by frequency alone
    environment: dict[str, str | int]


def pretrain(
    corpora: Sequence[str] = ("prose",),
    out: str | Path = "encoder",
    config: EncoderConfig | None = None,
    show: Show = QUIET,
) -> Pretrained:
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


def _pretrain(names: Sequence[str], out: Path, work: Path, config: EncoderConfig, show: Show) -> Pretrained:
    torch.set_num_threads(choose_threads(ModelConfig(n_embd=config.n_embd, n_head=config.n_head), 0))
    torch.manual_seed(config.seed)
    retain_freed_memory()
    material = _prepare(names, config, show)
    from attnlab.hf import masked

    model, trainer = masked.train(material, work, config, show)
    tokens, seconds = trainer.clock.tokens, trainer.clock.seconds()
    result: Pretrained = {
        "config": asdict(config),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "steps": trainer.state.global_step,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "threads": torch.get_num_threads(),
        "validation_targets": trainer.targets,
        "history": trainer.history,
        "vocab_size": len(material.tokenizer),
        "corpus": [
            {**asdict(source), "texts": count} for source, count in zip(material.sources, material.texts, strict=True)
        ],
        "unigram": trainer.guess,
        "environment": environment(),
    }
    licences = licences_of(str(one["name"]) for one in result["corpus"])
    card = render_card("encoder", **result, licences=licences, public_name=public_name)
    documents = {"README.md": card.encode(), "result.json": to_json(result)}
    write_folder(out, "encoder", {**_model_files(model, material.tokenizer, work / "saved", config), **documents})
    return result


def _model_files(
    model: RobertaForMaskedLM, tokenizer: RobertaTokenizer, saved: Path, config: EncoderConfig
) -> dict[str, bytes]:
    """The files that transformers loads an encoder from, by name."""
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = config.dropout
    with quietly():
        model.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
    return {path.name: path.read_bytes() for path in sorted(saved.iterdir()) if path.is_file()}


# Text into blocks


@dataclass(frozen=True)
class _Source:
    """One corpus as the user named it; of a labelled table only the column of the texts is read."""

    name: str
    sha256: str
    column: int | None = None

    def texts(self) -> Iterator[str]:
        """Its texts, one at a time."""
        for line in lines_of(self.name):
            text = line if self.column is None else cell_of(line, self.column)
            if text.strip():
                yield text.strip()

    def description(self) -> str:
        """How it is read."""
        if self.column is None:
            return f"{self.name}: one text per line"
        return f"{self.name}: a labelled table, its column {self.column + 1} is the text"


def open_source(name: str) -> _Source:
    """A corpus by its name, with its checksum."""
    if built_in.is_built_in(name):
        return _Source(name, built_in.load_corpus(name).sha256)
    column = text_column(list(islice(lines_of(name), _LINES_LOOKED_AT)))
    with Path(name).open("rb") as stream:
        return _Source(name, hashlib.file_digest(stream, "sha256").hexdigest(), column)


def is_held_out(text: str, share: float) -> bool:
    """Whether a text belongs to validation."""
    return zlib.crc32(text.encode()) < share * 2**32


def select_texts(sources: Iterable[_Source], share: float, held_out: bool) -> Iterator[str]:
    """The texts of all sources that are held out, or those that are not."""
    return (text for source in sources for text in source.texts() if is_held_out(text, share) == held_out)


def learn_pieces(texts: Iterable[str], vocab_size: int, longest: int) -> RobertaTokenizer:
    """RoBERTa's tokenizer with byte-pair pieces learned from texts; a first word has the same pieces as one inside."""
    from transformers import RobertaTokenizer

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SYMBOLS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator((part for text in texts for part in split_long_text(text)), trainer)
    learned = json.loads(learner.to_str())["model"]
    merges: Any = [tuple(pair) for pair in learned["merges"]]
    return RobertaTokenizer(vocab=learned["vocab"], merges=merges, add_prefix_space=True, model_max_length=longest)


def encode_texts(texts: Iterable[str], tokenizer: RobertaTokenizer) -> Iterator[Ids]:
    """The ids of every text from its `<s>` to its `</s>`, a thousand texts in memory at a time."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True  # a text that contains <mask> masks nothing
    left = iter(texts)
    while some := list(islice(left, _TEXTS_AT_ONCE)):
        for one in backend.encode_batch_fast(some):
            yield np.asarray(one.ids, dtype=np.int32)


def pack_blocks(texts: Iterable[Ids], size: int, rng: np.random.Generator) -> Ids:
    """Encoded texts in random order, concatenated, in blocks of `size` tokens; the remainder is dropped."""
    every = list(texts)
    order = rng.permutation(len(every))
    flat = np.concatenate([every[at] for at in order]) if every else np.empty(0, np.int32)
    return flat[: len(flat) // size * size].reshape(-1, size)


@dataclass(frozen=True)
class Material:
    """The data of a run: corpora, tokenizer and blocks."""

    sources: tuple[_Source, ...]
    texts: tuple[int, ...]  # per source, those to train on
    tokenizer: RobertaTokenizer
    train: Ids
    validation: Ids


def _prepare(names: Sequence[str], config: EncoderConfig, show: Show) -> Material:
    """Read the corpora twice: to learn the pieces, and to encode the texts."""
    sources = tuple(open_source(name) for name in names)
    for source in sources:
        show.line(source.description())
    tokenizer = learn_pieces(select_texts(sources, config.held_out, False), config.vocab_size, config.block_size)
    rng = np.random.default_rng(config.seed)
    every: list[Ids] = []
    counts = []
    for source in sources:
        before = len(every)
        every += encode_texts(select_texts([source], config.held_out, False), tokenizer)
        counts.append(len(every) - before)
    held_out = encode_texts(select_texts(sources, config.held_out, True), tokenizer)
    train, validation = (pack_blocks(texts, config.block_size, rng) for texts in (every, held_out))
    validation = validation[: max(1, _MOST_VALIDATED // config.block_size)]
    for blocks, what in ((train, "train on"), (validation, "validate with")):
        if not len(blocks):
            raise DataError(
                f"the corpus is too small to {what}: not one block of {config.block_size} tokens; give more text,"
                " a smaller --block-size, or a larger --held-out"
            )
    show.line(
        f"{sum(counts):,} texts, {train.size:,} tokens of {len(tokenizer):,} pieces; {validation.size:,} tokens held out"
    )
    return Material(sources, tuple(counts), tokenizer, train, validation)


# What it fills in


@dataclass(frozen=True)
class Filling:
    """One piece for a mask, its probability, and the text with it."""

    place: int  # which of the masks, from 0
    piece: str
    probability: float
    text: str


def fill(name: str, text: str, top: int = 5) -> list[Filling]:
    """The likeliest pieces for every `<mask>` of a text, while the others stay masked."""
    need_extra()
    place = require_reachable(locate(name))
    tokenizer = load("AutoTokenizer", place)
    model, missing = load_weights("AutoModelForMaskedLM", place)
    if missing:  # transformers would make them up
        raise UserError(f"{name} has no head for masked words: name a masked language model, such as one of your own")
    mask = tokenizer.mask_token
    if mask is None:
        raise UserError(f"{name} cannot fill in words (its tokenizer has no mask): name an encoder such as RoBERTa")
    asked = text.replace("<mask>", mask)
    if mask not in asked:
        raise UserError("nothing is masked: put <mask> in place of a word, such as 'The film is <mask> .'")
    batch = tokenizer(asked, return_tensors="pt", truncation=True)
    with torch.no_grad():
        shares = model.eval()(**batch).logits[0].softmax(dim=-1)
    places = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    found = []
    parts = asked.split(mask)
    for number, at in enumerate(places):
        best = shares[at].topk(min(top, shares.shape[-1]))
        for share, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            piece = tokenizer.decode([token]).strip()
            filled = mask.join(parts[: number + 1]) + piece + mask.join(parts[number + 1 :])
            found.append(Filling(number, piece, share, filled))
    return found
