"""A small RoBERTa from text alone: pieces learned, texts packed into blocks, hidden tokens guessed; and what it fills in.

Texts come from files, labelled tables and built-in corpora, one at a time. Which are held out follows from their checksums, so
that copies of a text are never on both sides. A text becomes `<s> ... </s>`, as fine-tuning reads it; texts in random order are
laid end to end and cut into blocks without padding. Special pieces written out in a text stand for nothing.
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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnlab import corpora as built_in
from attnlab.config import ModelConfig
from attnlab.corpora.labelled import cell_of, text_column
from attnlab.corpora.sources import lines_of
from attnlab.errors import DataError, Interrupted, UserError
from attnlab.folders import folders_above, refuse_existing, to_json, write_folder
from attnlab.hf.card import encoder_card
from attnlab.hf.loading import load, load_weights, locate, need_extra, quietly, reached
from attnlab.hf.settings import EncoderConfig
from attnlab.machine import environment, require_single_process
from attnlab.stages import QUIET, Show
from attnlab.tokenizers import split_long_text
from attnlab.train import choose_threads, retain_freed_memory

if TYPE_CHECKING:
    from transformers import RobertaForMaskedLM, RobertaTokenizer

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
AT_ONCE = 1000  # texts that are encoded together
LOOKED_AT = 1000  # lines by which a table is recognised
MOST_VALIDATED = 65536  # tokens

Ids = NDArray[np.int32]


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
    material = _prepare(names, config, show)
    from attnlab.hf import masked

    model = masked.new_model(config, len(material.tokenizer))
    trainer, guess = masked.make_trainer(model, material, work, config, show)
    trainer.train()
    trainer.evaluate()
    result = {
        **masked.outcome(trainer, config),
        "vocab_size": len(material.tokenizer),
        "corpus": [
            {**asdict(source), "texts": count} for source, count in zip(material.sources, material.texts, strict=True)
        ],
        "unigram": guess,
        "environment": environment(),
    }
    papers = {"README.md": encoder_card(result).encode(), "result.json": to_json(result)}
    write_folder(out, "encoder", {**_files_of(model, material.tokenizer, work, config), **papers})
    return result


def _files_of(
    model: RobertaForMaskedLM, tokenizer: RobertaTokenizer, work: Path, config: EncoderConfig
) -> dict[str, bytes]:
    """The files that transformers loads an encoder from, by name."""
    saved = work / "saved"
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

    def told(self) -> str:
        """How it is read, for people."""
        how = (
            "one text a line" if self.column is None else f"a labelled table, its column {self.column + 1} is the text"
        )
        return f"{self.name}: {how}"


def open_source(name: str) -> _Source:
    """A corpus by its name, looked at and with its checksum."""
    if built_in.is_built_in(name):
        return _Source(name, built_in.load_corpus(name).sha256)
    column = text_column(list(islice(lines_of(name), LOOKED_AT)))
    with Path(name).open("rb") as stream:
        return _Source(name, hashlib.file_digest(stream, "sha256").hexdigest(), column)


def is_held_out(text: str, share: float) -> bool:
    """Whether a text belongs to the part that validates."""
    return zlib.crc32(text.encode()) < share * 2**32


def part(sources: Iterable[_Source], share: float, held_out: bool) -> Iterator[str]:
    """The texts of all sources that are held out, or those that are not."""
    return (text for source in sources for text in source.texts() if is_held_out(text, share) == held_out)


def learn_pieces(texts: Iterable[str], vocab_size: int, longest: int) -> RobertaTokenizer:
    """RoBERTa's tokenizer with byte-pair pieces learned from texts; a word at the start is spelled like one inside."""
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


def encoded(texts: Iterable[str], tokenizer: RobertaTokenizer) -> Iterator[Ids]:
    """The ids of every text from its `<s>` to its `</s>`, some texts in memory at a time."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True  # a text that says <mask> hides nothing
    left = iter(texts)
    while some := list(islice(left, AT_ONCE)):
        for one in backend.encode_batch_fast(some):
            yield np.asarray(one.ids, dtype=np.int32)


def blocks_of(texts: Iterable[Ids], size: int, rng: np.random.Generator) -> Ids:
    """Encoded texts in random order, end to end, in blocks of `size` tokens; what is left over at the end is dropped."""
    every = list(texts)
    order = rng.permutation(len(every))
    flat = np.concatenate([every[at] for at in order]) if every else np.empty(0, np.int32)
    return flat[: len(flat) // size * size].reshape(-1, size)


@dataclass(frozen=True)
class Material:
    """What a run is made from: corpora, tokenizer and blocks."""

    sources: tuple[_Source, ...]
    texts: tuple[int, ...]  # of every source, those that are trained on
    tokenizer: RobertaTokenizer
    train: Ids
    validation: Ids


def _prepare(names: Sequence[str], config: EncoderConfig, show: Show) -> Material:
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


# What it fills in


@dataclass(frozen=True)
class Filling:
    """One piece for a hidden place, how likely it is, and the text with it."""

    place: int  # which of the hidden places, from 0
    piece: str
    probability: float
    text: str


def fill(name: str, text: str, top: int = 5) -> list[Filling]:
    """The likeliest pieces for every `<mask>` of a text, each place with the others still hidden."""
    need_extra()
    place = reached(locate(name))
    tokenizer = load("AutoTokenizer", place)
    model, missing = load_weights("AutoModelForMaskedLM", place)
    if missing:  # transformers would make them up
        raise UserError(f"{name} has no head for hidden words: name a masked language model, such as one of your own")
    mask = tokenizer.mask_token
    if mask is None:
        raise UserError(f"{name} hides nothing (its tokenizer has no mask): name an encoder such as RoBERTa")
    asked = text.replace("<mask>", mask)
    if mask not in asked:
        raise UserError("nothing is hidden: put <mask> where a word is to be found, such as 'The film is <mask> .'")
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
