"""Weights and tokenizers in the formats of transformers and back: exact both ways, or refused.

GPT-2 stores the three projections of attention side by side and its matrices transposed. What attnlab's model has no setting
for goes into weights: a head tied to the embedding becomes a copy of it, another scale of the scores goes into the queries,
absent biases become zeros.

What attnlab does to a text before its tokenizer sees it is written into tokenizer.json: the special symbols are read as
question marks, pieces begin with a space. Words are split by rules that tokenizer.json cannot express (`split_words`): they
need a class of their own, AttnlabWordTokenizer. GPT-2 has neither □ nor ⁇, and adding a row would change its scores. Its end
of text becomes □, which fills and ends; ⁇ takes the place of a byte that no text contains (0xFF and others never occur in
UTF-8), so that every text keeps its ids.

Tensors and bytes in and out; knows nothing about folders.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
import torch
from torch import Tensor
from transformers import GPT2Config, PreTrainedTokenizerFast

from attnlab.config import ModelConfig
from attnlab.errors import UserError
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import FILL, MASK, PAD, START, STOP, UNKNOWN, WORD_SYMBOLS, Tokenizer, split_words
from attnlab.store.folders import to_json

_Json = dict[str, Any]  # tokenizer.json, whose format belongs to the package tokenizers

_EPSILON = 1e-5  # of torch's LayerNorm, which attnlab uses unchanged
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu2": "relu2"}
_OUR_ACTIVATIONS = {**{name: ours for ours, name in _ACTIVATIONS.items()}, "gelu_pytorch_tanh": "gelu_tanh"}
# attnlab's names of weights, and GPT-2's: of the whole model, and of the parts of a block.
_OUTER = {
    "tokens.weight": "transformer.wte.weight",
    "positions.weight": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
}
_PARTS = {"norm1": "ln_1", "norm2": "ln_2", "attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.out": "mlp.c_proj"}
_PROJECTIONS = ("query", "key", "value")
_KIND = "attnlab_kind"  # in tokenizer_config.json: the kind of tokenizer in attnlab
_NEVER = (*range(0xFF, 0xF4, -1), 0xC1, 0xC0)  # bytes that do not occur in UTF-8
_PROBES = (
    "The quick brown fox, 12345 of them; don't!",
    "  two  spaces\tand\n\nlines ",
    "naïve Ærøskøbing 東京 🙂 a\u0301",
    "x",
)


# Weights


def is_gpt2(config: ModelConfig) -> bool:
    """Whether a model is a GPT-2 in everything but its names."""
    plain = not config.qk_norm and not config.bottleneck and config.activation in _ACTIVATIONS
    return set(config.mechanisms) == {"dot"} and config.positions == "learned" and config.norm == "layer" and plain


def to_gpt2(model: LanguageModel, **symbols: Any) -> tuple[GPT2Config, dict[str, Tensor]]:
    """The config, with the ids of the special symbols, and the weights of a model as a GPT-2."""
    config = model.config
    assert is_gpt2(config)
    gpt2_config = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.block_size,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_inner=config.mlp_ratio * config.n_embd,
        activation_function=_ACTIVATIONS[config.activation],
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout_of_attention,
        layer_norm_epsilon=_EPSILON,
        tie_word_embeddings=False,
        architectures=["GPT2LMHeadModel"],
        dtype="float32",
        **symbols,
    )
    ours = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors = {other: ours[name] for name, other in _OUTER.items()}
    for layer in range(config.n_layer):
        block, theirs_block = f"blocks.{layer}", f"transformer.h.{layer}"
        names = [f"{block}.attn.heads.{part}" for part in _PROJECTIONS]
        tensors[f"{theirs_block}.attn.c_attn.weight"] = torch.cat([ours[f"{name}.weight"] for name in names]).T
        tensors[f"{theirs_block}.attn.c_attn.bias"] = torch.cat([_bias(ours, name) for name in names])
        for part, other in _PARTS.items():
            tensors[f"{theirs_block}.{other}.weight"] = _transposed(ours[f"{block}.{part}.weight"])
            tensors[f"{theirs_block}.{other}.bias"] = _bias(ours, f"{block}.{part}")
    return gpt2_config, {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def _transposed(weight: Tensor) -> Tensor:
    return weight.T if weight.ndim == 2 else weight


def _bias(tensors: dict[str, Tensor], name: str) -> Tensor:
    """The bias of a linear map; zeros if it has none."""
    bias = tensors.get(f"{name}.bias")
    return tensors[f"{name}.weight"].new_zeros(len(tensors[f"{name}.weight"])) if bias is None else bias


def model_config_of(config: Any) -> ModelConfig:
    """The settings of attnlab's model that equals a GPT-2; what has no equal is refused."""
    inner = config.n_inner or 4 * config.n_embd
    if config.activation_function not in _OUR_ACTIVATIONS:
        raise UserError(
            f"this GPT-2 has the activation '{config.activation_function}', and attnlab only {', '.join(_OUR_ACTIVATIONS)}"
        )
    if config.layer_norm_epsilon != _EPSILON:
        raise UserError(
            f"this GPT-2 has layer_norm_epsilon {config.layer_norm_epsilon:g}, and attnlab only {_EPSILON:g}"
        )
    if inner % config.n_embd:
        raise UserError(f"this GPT-2 has n_inner {inner}, and attnlab only multiples of n_embd ({config.n_embd})")
    if config.add_cross_attention:
        raise UserError("this GPT-2 reads a second text (add_cross_attention), and an attnlab model reads one")
    if config.resid_pdrop != config.embd_pdrop:
        raise UserError(
            f"this GPT-2 has dropout {config.resid_pdrop} in the stream and {config.embd_pdrop} in the embedding, and attnlab"
            " one number for both: set them equal in its config.json, which changes training only"
        )
    return ModelConfig(
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        block_size=config.n_positions,
        vocab_size=config.vocab_size,
        mechanism="dot",
        positions="learned",
        norm="layer",
        qk_norm=False,
        activation=_OUR_ACTIVATIONS[config.activation_function],  # type: ignore[arg-type]
        mlp_ratio=inner // config.n_embd,
        bias=True,
        zero_init=False,
        dropout=float(config.resid_pdrop),
        attention_dropout=-1.0 if config.attn_pdrop == config.resid_pdrop else float(config.attn_pdrop),
    )


def from_gpt2(config: Any, tensors: dict[str, Tensor]) -> LanguageModel:
    """attnlab's model with the weights of a GPT-2."""
    model = LanguageModel(model_config_of(config))
    weights_by_name = {name: tensors[other] for name, other in _OUTER.items()}
    for layer in range(config.n_layer):
        block, other_block = f"blocks.{layer}", f"transformer.h.{layer}"
        weights = tensors[f"{other_block}.attn.c_attn.weight"].T.chunk(3)
        biases = tensors[f"{other_block}.attn.c_attn.bias"].chunk(3)
        for name, weight, bias in zip(_PROJECTIONS, weights, biases, strict=True):
            scale = _query_scale(config, layer) if name == "query" else 1.0
            weights_by_name[f"{block}.attn.heads.{name}.weight"] = weight * scale
            weights_by_name[f"{block}.attn.heads.{name}.bias"] = bias * scale
        for part, other in _PARTS.items():
            weights_by_name[f"{block}.{part}.weight"] = _transposed(tensors[f"{other_block}.{other}.weight"])
            weights_by_name[f"{block}.{part}.bias"] = tensors[f"{other_block}.{other}.bias"]
    model.load_state_dict({name: tensor.detach().float() for name, tensor in weights_by_name.items()})
    return model.eval()


def _query_scale(config: Any, layer: int) -> float:
    """The factor by which its scores exceed attnlab's, which are always divided by the root of the head width."""
    scale = 1.0 if config.scale_attn_weights else float((config.n_embd // config.n_head) ** 0.5)
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


# Tokenizers, out


class AttnlabWordTokenizer(PreTrainedTokenizerFast):
    """attnlab's tokenizer of words: text is cut by attnlab's rules of English before it is looked up."""

    def _encode_plus(  # type: ignore[override]
        self, text: Any, text_pair: Any = None, **settings: Any
    ) -> Any:
        return super()._encode_plus(_split_words(text), _split_words(text_pair), **settings)


def _split_words(text: Any) -> Any:
    """A text, or several, with its words apart; special ones stand for nothing."""
    if text is None:
        return None
    if isinstance(text, str):
        return " ".join(UNKNOWN if word in WORD_SYMBOLS else word for word in split_words(text))
    return [_split_words(item) for item in text]


def tokenizer_files(tokenizer: Tokenizer, longest: int) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json."""
    stored = json.loads(tokenizer.backend.to_str())
    settings: _Json = {
        "tokenizer_class": "AttnlabWordTokenizer" if tokenizer.words else "PreTrainedTokenizerFast",
        _KIND: tokenizer.kind,
        "model_max_length": longest,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if tokenizer.words:
        settings |= {"bos_token": START, "eos_token": STOP, "unk_token": UNKNOWN, "pad_token": FILL}
        stored["post_processor"] = _start_with(START, tokenizer.start)
    else:
        settings |= {"eos_token": PAD, "pad_token": PAD, "mask_token": MASK}
        stored["normalizer"] = _normalizer(tokenizer.space, stored["normalizer"])
        if tokenizer.characters:
            settings["unk_token"] = MASK
        if tokenizer.space:
            strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
            stored["decoder"] = {"type": "Sequence", "decoders": [stored["decoder"], strip]}
    return {"tokenizer.json": to_json(stored), "tokenizer_config.json": to_json(settings)}


def _normalizer(space: str, further: _Json | None) -> _Json:
    """The normalizer that does to a text what attnlab's `encode` does, before the tokenizer's own."""
    steps: list[_Json] = [{"type": "Replace", "pattern": {"String": symbol}, "content": "?"} for symbol in (PAD, MASK)]
    steps += [{"type": "Prepend", "prepend": space}] if space else []
    return {"type": "Sequence", "normalizers": steps + ([further] if further else [])}


def _start_with(symbol: str, number: int | None) -> _Json:
    """The post-processor that puts a symbol before a text, unless special tokens are declined."""
    text = [{"SpecialToken": {"id": symbol, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    both = [*text, {"Sequence": {"id": "B", "type_id": 0}}]
    special = {symbol: {"id": symbol, "ids": [number], "tokens": [symbol]}}
    return {"type": "TemplateProcessing", "single": text, "pair": both, "special_tokens": special}


# Tokenizers, in


def tokenizer_from(published: Any, rows: int) -> Tokenizer:
    """attnlab's form of a tokenizer of transformers, for a model with this many rows; the ids stay."""
    backend = getattr(published, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            "this model's tokenizer is not a fast one, and attnlab reads tokenizer.json: save it with use_fast"
        )
    stored = json.loads(backend.to_str())
    kind = published.init_kwargs.get(_KIND)
    if kind is not None:
        tokenizer, probe = _rebuild(_without_additions(stored, kind), published, (*_PROBES, f"{PAD} and {MASK}"))
        if probe is not None:
            raise UserError(
                f"this folder's tokenizer reads {probe!r} differently from attnlab, which exported it: its tokenizer.json was"
                " changed; export the model again"
            )
        return tokenizer
    if stored["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(stored["pre_tokenizer"]):
        raise UserError(
            f"this model's tokenizer is {stored['model']['type']} and not GPT-2's byte-level BPE, which is what attnlab reads"
        )
    stored["post_processor"] = stored["truncation"] = stored["padding"] = None
    _assign_id(stored, PAD, published.eos_token, rows)
    _assign_id(stored, MASK, None, rows)
    tokenizer, probe = _rebuild(stored, published, _PROBES)
    if probe is not None:
        raise UserError(
            f"this model's tokenizer reads {probe!r} in a way that attnlab cannot represent: it is not GPT-2's"
        )
    return tokenizer


def _rebuild(stored: _Json, published: Any, probes: Sequence[str]) -> tuple[Tokenizer, str | None]:
    """The tokenizer, and the first text, if any, to which it gives other ids."""
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(stored)))
    wrong = (text for text in probes if tokenizer.encode(text) != published.encode(text, add_special_tokens=False))
    return tokenizer, next(wrong, None)


def _without_additions(stored: _Json, kind: str) -> _Json:
    """tokenizer.json without what `tokenizer_files` added."""
    decoder, normalizer = stored["decoder"], None
    if kind != "word":
        steps = (stored["normalizer"] or {}).get("normalizers", [])
        further = [step for step in steps[2:] if step["type"] != "Prepend"]
        normalizer = further[0] if further else None
    if decoder is not None and decoder["type"] == "Sequence" and decoder["decoders"][-1]["type"] == "Strip":
        decoder = decoder["decoders"][0]
    added = stored["added_tokens"] if kind in ("byte", "bpe") else []
    return {**stored, "normalizer": normalizer, "post_processor": None, "decoder": decoder, "added_tokens": added}


def _assign_id(stored: _Json, symbol: str, like: str | None, rows: int) -> None:
    """Give one of attnlab's symbols an id: that of the token it is `like`, of a byte that never occurs, or of an unused row."""
    vocabulary = stored["model"]["vocab"]
    added = {entry["content"]: entry for entry in stored["added_tokens"]}
    if symbol in vocabulary or symbol in added:
        return
    old = like if like is not None and (like in added or like in vocabulary) else _spare_byte(vocabulary)
    if old is not None:
        number = added[old]["id"] if old in added else vocabulary[old]
        vocabulary.pop(old, None)
        stored["added_tokens"] = [entry for entry in stored["added_tokens"] if entry["content"] != old]
    else:
        number = 1 + max([*vocabulary.values(), *(entry["id"] for entry in added.values())])
        if number >= rows:
            raise UserError(
                f"this GPT-2 has no token to spare for {symbol}: its tokenizer lacks the bytes that no text contains; train"
                " it with the whole byte-level alphabet, or give the model one more row"
            )
    vocabulary[symbol] = number
    special = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    stored["added_tokens"].append({"id": number, "content": symbol, **special})
    stored["added_tokens"].sort(key=lambda entry: entry["id"])


def _spare_byte(vocabulary: dict[str, int]) -> str | None:
    """The token of a byte that no text contains and no other piece is made of.

    Byte-level tokenizers write these bytes as the letters of the same number.
    """
    for letter in map(chr, _NEVER):
        if letter in vocabulary and not any(letter in piece and piece != letter for piece in vocabulary):
            return letter
    return None
