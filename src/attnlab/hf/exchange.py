"""Exchange with transformers: models out and in, and attnlab's mechanisms inside other people's models.

    import attnlab.exchange                                     # registers everything below

    AutoModelForCausalLM.from_pretrained(folder)                # of `attnlab export`; or trust_remote_code=True, no import
    AutoModel.from_pretrained(..., attn_implementation="attnlab:performer")

A finished model becomes a folder in GPT-2's layout if it is a GPT-2, else with attnlab's own class; folders of GPT-2, and
those that `attnlab export` wrote, become runs. Both ways are exact, or refused.

GPT-2 stores the three projections of attention side by side and its matrices transposed. What attnlab's model has no setting
for goes into weights: another scale of the scores goes into the queries, absent biases become zeros.

What attnlab does to a text before its tokenizer sees it is written into tokenizer.json: the special symbols are read as
question marks, pieces begin with a space. Words are split by rules that tokenizer.json cannot express (`split_words`): they
need a class of their own, AttnlabWordTokenizer. GPT-2 has neither □ nor ⁇, and adding a row would change its scores. Its end
of text becomes □, which fills and ends; ⁇ takes the place of a byte that no text contains (0xFF and others never occur in
UTF-8), so that every text keeps its ids.

Importing this module imports transformers, which takes seconds. Models and mechanisms are not implemented here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypedDict

import tokenizers
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from safetensors.torch import save as save_tensors
from torch import Tensor

from attnlab import __version__
from attnlab.config import ModelConfig, flatten
from attnlab.corpora.sources import licences_of, public_name
from attnlab.errors import DataError, UserError, refuse
from attnlab.store import usercode

try:
    import transformers
except ImportError:
    raise UserError("transformers is not installed, and exchange needs it: pip install 'attnlab[hf]'") from None

from attnlab.hf.attention import equip, register, register_all
from attnlab.hf.checkpoints import PROJECTIONS, from_gpt2, gpt2_names, projections_apart, write_run
from attnlab.hf.loading import load, load_weights, refuse_pickled
from attnlab.hf.modeling import CODE, MODULE, AttnlabConfig, AttnlabForCausalLM
from attnlab.inside.look import attentions_of
from attnlab.lm.model import LanguageModel, count_parameters, load_model
from attnlab.lm.tokenizers import FILL, MASK, PAD, START, STOP, UNKNOWN, WORD_SYMBOLS, Tokenizer, split_words
from attnlab.store.folders import refuse_existing, reporting_damage, to_json, write_bytes, write_folder
from attnlab.store.runs import Run, located

__all__ = [
    "AttnlabConfig",
    "AttnlabForCausalLM",
    "AttnlabWordTokenizer",
    "attentions_of",
    "equip",
    "export",
    "import_model",
    "read_folder",
    "register",
]

_Json = dict[str, Any]  # tokenizer.json, whose format belongs to the package tokenizers

_EPSILON = 1e-5  # of torch's LayerNorm, which attnlab uses unchanged
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
    "silu": "silu",
}
_SIZES = ("n_layer", "n_head", "n_embd", "vocab_size")  # settings with the same name in both
# In tokenizer_config.json: what attnlab's own tokenizer.json has in place of what is added.
_ORIGINAL = "attnlab_original"
_CHANGED = ("normalizer", "post_processor", "decoder", "added_tokens")
_NEVER = (*range(0xFF, 0xF4, -1), 0xC1, 0xC0)  # bytes that do not occur in UTF-8
_PROBES = (
    "The quick brown fox, 12345 of them; don't!",
    "  two  spaces\tand\n\nlines ",
    "naïve Ærøskøbing 東京 🙂 a\u0301",
    "x",
)


# Weights


def _is_gpt2(config: ModelConfig) -> bool:
    """Whether a model is a GPT-2 in everything but its names."""
    plain = (
        not config.qk_norm
        and not config.bottleneck
        and not config.options
        and config.activation in _ACTIVATIONS.values()
    )
    block = config.norm == "layer" and config.norm_place == "pre" and config.mlp_ratio > 0
    return set(config.mechanisms) == {"dot"} and config.positions == "learned" and block and plain


def _transposed(name: str, weight: Tensor) -> Tensor:
    """A weight of GPT-2 as attnlab stores it, or the other way round; embeddings are the same in both."""
    return weight.T if weight.ndim == 2 and ".c_" in name else weight


def _to_gpt2(model: LanguageModel, **symbols: Any) -> tuple[transformers.GPT2Config, dict[str, Tensor]]:
    """The config, with the ids of the special symbols, and the weights of a model as a GPT-2."""
    config, weights = model.config, model.state_dict()
    gpt2_config = transformers.GPT2Config(
        **{name: getattr(config, name) for name in _SIZES},
        n_positions=config.block_size,
        n_inner=config.mlp_ratio * config.n_embd,
        activation_function=next(name for name, own in _ACTIVATIONS.items() if own == config.activation),
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout_of_attention,
        layer_norm_epsilon=_EPSILON,
        tie_word_embeddings=config.tied_head,
        architectures=["GPT2LMHeadModel"],
        dtype="float32",
        **symbols,
    )

    def tensor(name: str) -> Tensor:
        """A weight; zeros for the bias of a linear map that has none."""
        return weights[name] if name in weights else torch.zeros(len(weights[name.replace("bias", "weight")]))

    names = {
        name: other for name, other in gpt2_names(config.n_layer).items() if name != "head.weight" or name in weights
    }
    tensors = {other: _transposed(other, tensor(name)) for name, other in names.items()}
    for layer in range(config.n_layer):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"transformer.h.{layer}.{part}.{kind}") for part in PROJECTIONS]
            name = f"transformer.h.{layer}.attn.c_attn.{kind}"
            tensors[name] = _transposed(name, torch.cat(parts))
    return gpt2_config, {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def _model_config(config: Any) -> ModelConfig:
    """The settings of attnlab's model that equals a GPT-2; what has no equal is refused."""
    inner, epsilon = config.n_inner or 4 * config.n_embd, config.layer_norm_epsilon
    activation, streams = config.activation_function, (config.resid_pdrop, config.embd_pdrop)
    foreign = activation not in _ACTIVATIONS
    reasons = {
        f"has the activation '{activation}', and attnlab only {', '.join(_ACTIVATIONS)}": foreign,
        f"has layer_norm_epsilon {epsilon:g}, and attnlab only {_EPSILON:g}": epsilon != _EPSILON,
        f"has n_inner {inner}, and attnlab only multiples of n_embd ({config.n_embd})": inner % config.n_embd,
        "reads a second text (add_cross_attention), and an attnlab model reads one": config.add_cross_attention,
        f"has dropout {streams[0]} in the stream and {streams[1]} in the embedding, and attnlab one number for both: set"
        " them equal in its config.json, which changes training only": len(set(streams)) > 1,
    }
    refuse("this GPT-2", reasons)
    return ModelConfig(
        **{name: getattr(config, name) for name in _SIZES},
        block_size=config.n_positions,
        mechanism="dot",
        positions="learned",
        norm="layer",
        qk_norm=False,
        activation=_ACTIVATIONS[activation],  # type: ignore[arg-type]
        mlp_ratio=inner // config.n_embd,
        tied_head=config.tie_word_embeddings,
        bias=True,
        zero_init=False,
        dropout=float(config.resid_pdrop),
        attention_dropout=-1.0 if config.attn_pdrop == config.resid_pdrop else float(config.attn_pdrop),
    )


def _from_gpt2(config: Any, tensors: dict[str, Tensor], folder: Path) -> LanguageModel:
    """attnlab's model with the weights of a GPT-2."""
    apart = projections_apart({name: _transposed(name, tensor) for name, tensor in tensors.items()})
    for layer in range(config.n_layer):
        # attnlab always divides its scores by the root of the head width.
        scale = 1.0 if config.scale_attn_weights else float((config.n_embd // config.n_head) ** 0.5)
        scale = scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale
        for kind in ("weight", "bias"):
            apart[f"transformer.h.{layer}.attn.query.{kind}"] *= scale
    return from_gpt2(_model_config(config), apart, folder)


# Tokenizers, out


class AttnlabWordTokenizer(transformers.PreTrainedTokenizerFast):
    """attnlab's tokenizer of words: text is cut by attnlab's rules of English before it is looked up."""

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Nothing, as for the model."""

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Write the files, with the module that names the class."""
        written = super().save_pretrained(save_directory, *args, **kwargs)
        for name, content in CODE.items():
            write_bytes(Path(save_directory) / name, content)
        return written

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


def _tokenizer_files(tokenizer: Tokenizer, longest: int) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json."""
    stored = json.loads(tokenizer.backend.to_str())
    settings: _Json = {
        "tokenizer_class": "AttnlabWordTokenizer" if tokenizer.words else "PreTrainedTokenizerFast",
        _ORIGINAL: json.dumps({name: stored[name] for name in _CHANGED}),
        "model_max_length": longest,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if tokenizer.words:
        settings["auto_map"] = {"AutoTokenizer": [None, f"{MODULE}.AttnlabWordTokenizer"]}
        settings |= {"bos_token": START, "eos_token": STOP, "unk_token": UNKNOWN, "pad_token": FILL}
        stored["post_processor"] = _start_with(START, tokenizer.start)
    else:
        settings |= {"eos_token": PAD, "pad_token": PAD, "mask_token": MASK}
        stored["normalizer"] = _normalizer(tokenizer.space, stored["normalizer"])
        if tokenizer.kind == "char":
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


def _tokenizer_from(published: Any, rows: int) -> Tokenizer:
    """attnlab's form of a tokenizer of transformers, for a model with this many rows; the ids stay."""
    backend = getattr(published, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            "this model's tokenizer is not a fast one, and attnlab reads tokenizer.json: save it with use_fast"
        )
    stored, original = json.loads(backend.to_str()), published.init_kwargs.get(_ORIGINAL)
    if original is not None:
        stored |= json.loads(original)
    elif stored["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(stored["pre_tokenizer"]):
        raise UserError(
            f"this model's tokenizer is {stored['model']['type']} and not GPT-2's byte-level BPE, which is what attnlab reads"
        )
    else:
        stored["post_processor"] = stored["truncation"] = stored["padding"] = None
        _assign_id(stored, PAD, published.eos_token, rows)
        _assign_id(stored, MASK, None, rows)
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(stored)))
    for text in _PROBES if original is None else (*_PROBES, f"{PAD} and {MASK}"):
        if tokenizer.encode(text) != published.encode(text, add_special_tokens=False):
            fault = (
                "it is not GPT-2's" if original is None else "its tokenizer.json was changed; export the model again"
            )
            raise UserError(f"this model's tokenizer reads {text!r} in a way that attnlab cannot represent: {fault}")
    return tokenizer


def _assign_id(stored: _Json, symbol: str, like: str | None, rows: int) -> None:
    """Give one of attnlab's symbols an id: that of the token it is `like`, of a byte that never occurs, or of an unused row."""
    vocabulary = stored["model"]["vocab"]
    added = {entry["content"]: entry for entry in stored["added_tokens"]}
    if symbol in vocabulary or symbol in added:
        return
    # Byte-level tokenizers write a byte as a letter; one that no text contains is spare if no other piece is made of it.
    spare = (
        letter
        for letter in map(chr, _NEVER)
        if letter in vocabulary and not any(letter in piece and piece != letter for piece in vocabulary)
    )
    old = like if like is not None and (like in added or like in vocabulary) else next(spare, None)
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


transformers.AutoConfig.register(AttnlabConfig.model_type, AttnlabConfig, exist_ok=True)
transformers.AutoModelForCausalLM.register(AttnlabConfig, AttnlabForCausalLM, exist_ok=True)
transformers.AutoTokenizer.register(AttnlabConfig, fast_tokenizer_class=AttnlabWordTokenizer, exist_ok=True)
register_all()


# Folders, out


class Exported(TypedDict):
    """What `export` has written."""

    folder: str
    layout: Literal["gpt2", "attnlab"]
    parameters: int
    needs_attnlab: bool  # installed: transformers alone cannot load it


def export(source: Path | str, folder: Path | str, *, trust_code: bool = False) -> Exported:
    """Write the model of a run, or of a model folder, as a folder for transformers, and say what was written."""
    source, folder = located(source), Path(folder)
    refuse_existing(folder)
    run = _run_of(source)
    model, tokenizer = load_model(run.model if run else source, trust_code=trust_code)
    written: Exported = {
        "folder": str(folder),
        "layout": "gpt2" if _is_gpt2(model.config) else "attnlab",
        "parameters": sum(count_parameters(model).values()),
        "needs_attnlab": not _is_gpt2(model.config) or tokenizer.words,
    }
    card = _card(folder.name, model, tokenizer, run, written["needs_attnlab"])
    files = {**_model_files(model, tokenizer), **_tokenizer_files(tokenizer, model.config.block_size)}
    write_folder(folder, "export", {**files, "README.md": card.encode()}, about="a model for transformers")
    return written


def _run_of(source: Path) -> Run | None:
    """The run behind a folder, if it is one and not a model folder alone."""
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; `attnlab runs` shows the runs of this folder")
    if (source / "model.safetensors").is_file() and (source / "tokenizer.json").is_file():
        return Run.open(source.parent) if (source.parent / "config.json").is_file() else None
    return Run.open(source)


def _model_files(model: LanguageModel, tokenizer: Tokenizer) -> dict[str, bytes]:
    """config.json, generation_config.json, the weights, and the code of a mechanism in a user's file."""
    symbols: dict[str, int | list[int] | None] = {
        "bos_token_id": tokenizer.start,
        "pad_token_id": tokenizer.pad,
        "eos_token_id": sorted(tokenizer.stops),
    }
    config: Any
    if _is_gpt2(model.config):
        config, tensors = _to_gpt2(model, **symbols)
    else:
        config = AttnlabConfig(asdict(model.config), architectures=["AttnlabForCausalLM"], dtype="float32", **symbols)
        tensors = {f"language_model.{name}": tensor for name, tensor in model.state_dict().items()}
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return {
        "config.json": config.to_json_string().encode(),
        "generation_config.json": transformers.GenerationConfig(**symbols).to_json_string().encode(),
        "model.safetensors": bytes(save_tensors(whole, metadata={"format": "pt"})),
        **({} if _is_gpt2(model.config) and not tokenizer.words else CODE),
        **usercode.code_files(model.config.mechanism),
    }


# The model card


def _card(name: str, model: LanguageModel, tokenizer: Tokenizer, run: Run | None, needs_attnlab: bool) -> str:
    """README.md of an exported model; what is not known is left out."""
    stages, sources = [], []
    for record in reversed([stage.record for stage in _lineage(run)] if run else []):  # the first stage first
        data = {key: source for key, source in (("corpus", record.corpus), ("facts", record.facts)) if source}
        entries = [(key, public_name(source.source), source.sha256) for key, source in data.items()]
        stages.append((record.stage, entries))
        sources += [source.source for source in data.values()] or [""]
    settings = (run.record.settings if run else None) or {"model": asdict(model.config)}
    loss = run.result.final_loss if run and run.complete else None
    templates = Environment(
        loader=PackageLoader("attnlab.hf", "cards"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template("model.md.j2").render(
        name=name,
        version=__version__,
        config=model.config,
        symbols=tokenizer.size,
        kind={"char": "characters", "byte": "bytes", "bpe": "byte-pair pieces", "word": "words"}[tokenizer.kind],
        parameters=count_parameters(model),
        needs_attnlab=needs_attnlab,
        stages=stages,
        licences=licences_of(sources),
        figures=[] if loss is None else [f"final training loss: {loss:.4f} nats per token"],
        own_code=bool(usercode.code_files(model.config.mechanism)),
        settings=list(flatten(settings)),
    )


def _lineage(run: Run) -> Iterator[Run]:
    """A run and those it started from, as far as they are still there."""
    yield run
    base = run.record.base
    if base and (run.path / base / "config.json").is_file():
        yield from _lineage(Run(run.path / base))


# Folders, in


def import_model(folder: Path | str, out: Path | str, *, trust_code: bool = False) -> Run:
    """Write a model of transformers as a run, on which look, evaluate, generate and finetune work."""
    out = Path(out)
    refuse_existing(out)
    return write_run(out, *read_folder(folder, trust_code=trust_code), Path(folder).name)


def read_folder(folder: Path | str, *, trust_code: bool = False) -> tuple[LanguageModel, Tokenizer]:
    """The model and tokenizer of a folder of transformers, with equal scores and ids; what has no equal is refused."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{folder} has no config.json: name a folder that save_pretrained wrote, or a file such as ckpt.pt"
        )
    if (folder / "model").is_dir():
        raise UserError(f"{folder} is already a run of attnlab: use it directly")
    refuse_pickled(folder)
    config = load(transformers.AutoConfig, str(folder), local_files_only=True)
    if config.model_type == "attnlab":
        model = _load_complete(AttnlabForCausalLM, folder, trust_code=trust_code).language_model
    elif config.model_type == "gpt2":
        _model_config(config)  # refuses before the weights are read
        model = _from_gpt2(config, _load_complete(transformers.GPT2LMHeadModel, folder).state_dict(), folder)
    else:
        raise UserError(
            f"{folder} holds a model of type '{config.model_type}': attnlab imports gpt2 and its own exports"
        )
    return model.eval(), read_tokenizer("AutoTokenizer", folder, model.config.vocab_size)


def read_tokenizer(kind: str, folder: Path, rows: int) -> Tokenizer:
    """The tokenizer of a folder, loaded by a class of transformers, for a model with this many rows."""
    files = {file.name for file in folder.glob("*.*")}
    if (
        "tokenizer.json" not in files and not {"vocab.json", "merges.txt"} <= files
    ):  # transformers would make an empty one
        raise DataError(f"{folder} has no tokenizer.json, nor vocab.json and merges.txt: copy the tokenizer there")
    published = load(kind, str(folder), local_files_only=True)
    with reporting_damage(folder / "tokenizer_config.json"):
        tokenizer = _tokenizer_from(published, rows)
    if tokenizer.size > rows:
        raise DataError(f"{folder}: the tokenizer has {tokenizer.size} symbols, the model {rows}")
    return tokenizer


def _load_complete(kind: Any, folder: Path, **settings: Any) -> Any:
    """The model of a folder with every weight from its files: transformers initializes what is missing, and only warns."""
    model, missing = load_weights(kind, str(folder), local_files_only=True, **settings)
    if missing:
        raise DataError(f"{folder} lacks {len(missing)} of its weights, first {min(missing)}: copy or save it again")
    return model
