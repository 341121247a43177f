"""Checkpoints of nanoGPT, minGPT and Stanford's CS224N as runs.

    import_checkpoint("ckpt.pt", "runs/mine", chars="input.txt")

These programs train the same model under three sets of names. Scores are equal, or the file is refused. Files of torch are
pickled: only tensors and plain values are read from them, and never code. nanoGPT's and minGPT's characters leave no id for
□ and ⁇, so two rows are added (`_add_symbols`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from attnlab import ops
from attnlab.config import ModelConfig, RunConfig, TaskConfig, TaskTraits, TokenizerConfig, build, load_preset
from attnlab.corpora import load_corpus
from attnlab.corpora.files import decoded, numbered_bytes, opened, refuse_foreign
from attnlab.errors import AttnlabError, DataError, UserError, one_line, refuse
from attnlab.lm.model import LanguageModel, model_files, require_fit
from attnlab.lm.tokenizers import MASK, PAD, Tokenizer, character_backend
from attnlab.store import usercode
from attnlab.store.folders import add_files, refuse_existing, write_folder
from attnlab.store.records import encode
from attnlab.store.runs import DataSource, Run, RunRecord, RunResult
from attnlab.tasks import task_class

Activation = Literal["gelu", "gelu_tanh"]

# attnlab's names of weights, and GPT-2's: of the whole model, and of the parts of a block.
_OUTER = {
    "tokens.weight": "transformer.wte.weight",
    "positions.weight": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
}
_PARTS = {"norm1": "ln_1", "norm2": "ln_2", "attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.out": "mlp.c_proj"}
PROJECTIONS = ("attn.query", "attn.key", "attn.value")  # which GPT-2 stores side by side as attn.c_attn
# Parts of the names of CS224N, which are those of the first minGPT, and GPT-2's.
_COURSE = {"tok_emb": "transformer.wte", "pos_emb": "transformer.wpe.weight", "ln_f": "transformer.ln_f"}
_COURSE |= {"blocks.": "transformer.h.", ".ln1": ".ln_1", ".ln2": ".ln_2", ".proj": ".c_proj"}
_COURSE |= {".mlp.0": ".mlp.c_fc", ".mlp.2": ".mlp.c_proj", "head.": "lm_head."}
_BEFORE = r"^transformer\.(h\.\d+\.)?"
_BUFFERS = (".attn.bias", ".attn.mask", ".attn.rope_cache")


# Weights


def gpt2_names(n_layer: int) -> dict[str, str]:
    """GPT-2's names of weights by attnlab's, with queries, keys and values apart."""
    parts = _PARTS | {name.replace("attn", "attn.heads"): name for name in PROJECTIONS}
    return _OUTER | {
        f"blocks.{layer}.{part}.{kind}": f"transformer.h.{layer}.{other}.{kind}"
        for layer in range(n_layer)
        for part, other in parts.items()
        for kind in ("weight", "bias")
    }


def projections_apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a GPT-2 with queries, keys and values apart."""
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        fused = ".attn.c_attn." in name
        names = [name.replace("attn.c_attn", part) for part in PROJECTIONS] if fused else [name]
        apart |= zip(names, tensor.chunk(3) if fused else [tensor], strict=True)
    return apart


def from_gpt2(config: ModelConfig, tensors: Mapping[str, Tensor], source: Path) -> LanguageModel:
    """attnlab's model with the weights of a GPT-2, projections apart; norms without a bias get zeros."""
    model = LanguageModel(config)
    expected, names = model.state_dict(), gpt2_names(config.n_layer)
    weights = {name: torch.zeros_like(one) for name, one in expected.items() if re.search(r"norm\d?\.bias", name)}
    weights |= {name: tensors[other].detach().float() for name, other in names.items() if other in tensors}
    if config.tied_head:
        weights.pop("head.weight", None)
    require_fit(weights, expected, f"{source}: the weights", "save them again")
    model.load_state_dict(weights)
    return model.eval()


def read_checkpoint(
    file: Path | str, *, n_head: int | None = None, activation: Activation | None = None
) -> LanguageModel:
    """The model of a checkpoint of nanoGPT, minGPT or CS224N; the heads and the activation, where the file does not say."""
    try:
        return _read_model(Path(file), n_head, activation)
    except AttnlabError:
        raise
    except Exception as error:  # a damaged file may raise anything
        why = f"it is damaged or of another kind ({one_line(error)})"
        raise DataError(f"{file} cannot be read, {why}: copy or save it again") from None


def _read_model(file: Path, n_head: int | None, activation: Activation | None) -> LanguageModel:
    tensors, arguments, course = _weights_of(file)
    rotary = _take_buffers(file, tensors)
    tensors = projections_apart(tensors)
    layers = {name.split(".")[2] for name in tensors if name.startswith("transformer.h.")}
    foreign = min(tensors.keys() - gpt2_names(len(layers)).values(), default="")
    reasons = {
        f"holds {re.sub(_BEFORE, '', foreign)}, which is no part of nanoGPT, minGPT or CS224N's model with dot-product"
        " attention; others, such as its synthesizer and perceiver, have no equal here": foreign,
        "holds no token embedding of nanoGPT, minGPT or CS224N": "transformer.wte.weight" not in tensors,
        "holds whole or complex numbers as weights": not all(one.is_floating_point() for one in tensors.values()),
    }
    refuse(str(file), reasons)
    tokens, up = tensors["transformer.wte.weight"], tensors.get("transformer.h.0.mlp.c_fc.weight", torch.empty(0))
    rows, width = tokens.shape
    tied = torch.equal(tensors.get("lm_head.weight", tokens), tokens)
    tanh = not arguments and not course and not tied  # as in today's minGPT; nanoGPT's head is tied
    heads = arguments.get("n_head") or (width // (2 * rotary.shape[1]) if rotary is not None else None)
    reasons = {
        "does not say how many heads its attention has: add --n-head N (8 in CS224N)": not heads and not n_head,
        f"says that its attention has {heads} heads: leave --n-head out": heads and n_head and heads != n_head,
    }
    refuse(str(file), reasons)
    settings = load_preset("mingpt")["model"] | {
        "n_layer": len(layers),
        "n_head": heads or n_head,
        "n_embd": width,
        "block_size": len(tensors.get("transformer.wpe.weight", ()) if rotary is None else rotary),
        "vocab_size": rows,
        "positions": "learned" if rotary is None else "rotary",
        "rotary_layout": "half" if rotary is None else "interleaved",
        "activation": activation or ("gelu_tanh" if tanh else "gelu"),
        "mlp_ratio": len(up) // width,
        "tied_head": tied,
        "bias": "transformer.h.0.mlp.c_fc.bias" in tensors,
        "dropout": arguments.get("dropout", 0.0),
    }
    return from_gpt2(build(ModelConfig, settings, "model.", str(file)), tensors, file)


def _weights_of(file: Path) -> tuple[dict[str, Tensor], dict[str, Any], bool]:
    """The tensors of a file by GPT-2's names, nanoGPT's settings if it has them, and whether the names were CS224N's."""
    again = "save its weights alone where it was written: torch.save(model.state_dict(), 'weights.pt')"
    with opened(file) as stream, warnings.catch_warnings(action="ignore"):
        try:
            stored = torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:
            if "Weights only load failed" not in str(error):
                raise RuntimeError(one_line(error)) from None  # an OSError would be one of the stream
            code = re.search(r"GLOBAL (\S+)", str(error))
            what = f"holds {code[1]}" if code else "was not written by torch.save, or holds other things"
            raise UserError(f"{file} {what} beside weights, and attnlab runs no code of a file: {again}") from None
    tensors, arguments = stored, {}
    if isinstance(stored, dict) and "model" in stored:
        tensors, arguments = stored["model"], stored.get("model_args", {})
    named = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not named or not isinstance(arguments, dict) or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise DataError(f"{file} does not hold weights by name: {again}")
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in tensors.items()}
    course = "tok_emb.weight" in tensors
    for old, new in _COURSE.items() if course else ():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    if course and "transformer.wpe.weight" in tensors:
        tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"].flatten(0, -2)  # of three dimensions
    return tensors, arguments, course


def _take_buffers(file: Path, tensors: dict[str, Tensor]) -> Tensor | None:
    """Remove the causal masks and rotary tables, which are the same in every layer, and return a table if there is one."""
    table = None
    for name in [name for name in tensors if name.endswith(_BUFFERS)]:
        tensor = tensors.pop(name).float()
        own, what = torch.ones(tensor.shape[-2:]).tril()[None, None], "a causal mask"
        if name.endswith("rope_cache"):
            table, what = tensor, "cosines and sines as [position, pair, 2] at base 10,000"
            own = torch.stack(ops.rotary_table(len(tensor), 2 * tensor.shape[1]).chunk(2, dim=-1), dim=-1)
        if own.shape != tensor.shape or not torch.allclose(tensor, own, atol=1e-4):
            raise UserError(f"{file}: '{name}' is not {what}, and attnlab has no equal for it")
    return table


def _add_symbols(model: LanguageModel, like: int) -> LanguageModel:
    """The same model with two more symbols, which it reads as the symbol `like` and never writes.

    The last norm makes n, of mean zero, then g n + b, and the head w (g n + b). The new norm makes n + 1. The new row of the
    head, g w less its mean plus (w b) / D, has the same scores, and a row of equal numbers c has the score c D for every text.
    It is less than the mean of all scores, and so than their log-sum-exp, whatever the text: n is as long as the root of D.
    """
    config = replace(model.config, vocab_size=model.config.vocab_size + 2, tied_head=False)
    weights, width = dict(model.state_dict()), config.n_embd
    head, gain, bias = (
        one.double() for one in (model.head.weight.detach(), weights["norm.weight"], weights["norm.bias"])
    )
    scaled, constant = head * gain, head @ bias
    centred = scaled - scaled.mean(dim=1, keepdim=True)
    lowest = constant.mean() - centred.mean(dim=0).norm() * width**0.5 - 30
    constant = torch.cat([constant, lowest.expand(2)])
    tokens = weights["tokens.weight"]
    weights |= {
        "tokens.weight": torch.cat([tokens, tokens[[like, like]]]),
        "head.weight": (torch.cat([centred, centred.new_zeros(2, width)]) + constant[:, None] / width).float(),
        "norm.weight": torch.ones(width),
        "norm.bias": torch.ones(width),
    }
    larger = LanguageModel(config)
    larger.load_state_dict(weights)
    return larger.eval()


# Tokenizers


def _characters_of(path: Path) -> list[str]:
    """The different characters of a text in order, with every line end as a line feed."""
    found: set[str] = set()
    with opened(path) as stream:
        for number, line in numbered_bytes(path, stream):
            if number == 1:
                refuse(str(path), {"is pickled: name the text that it was made from": line.startswith(b"\x80")})
                refuse_foreign(line, path.name)
            found |= set(decoded(line, path.name, number, 0))
    refuse(str(path), {f"contains {PAD} or {MASK}, which are special symbols here": found & {PAD, MASK}})
    return sorted(found - {"\r"} | {"\n"} if "\r" in found else found)


def _with_characters(model: LanguageModel, path: Path, special: bool) -> tuple[LanguageModel, Tokenizer]:
    """A model with its tokenizer: the characters of a text, after □ and ⁇ if they are `special` symbols of the model."""
    characters, rows = _characters_of(path), model.config.vocab_size
    symbols = [PAD, MASK, *characters] if special else characters
    if len(symbols) != rows:
        raise DataError(
            f"{path} has {len(characters)} different characters, which makes {len(symbols)} symbols, and the model has {rows}:"
            f" name the text that it learned, as --corpus if {PAD} and {MASK} come first, as in CS224N, else as --chars"
        )
    if special:
        return model, Tokenizer(character_backend(symbols))
    like = symbols.index("\n") if "\n" in symbols else 0
    return _add_symbols(model, like), Tokenizer(character_backend([*symbols, PAD, MASK]))


# Runs


def import_checkpoint(
    file: Path | str,
    out: Path | str,
    *,
    n_head: int | None = None,
    activation: Activation | None = None,
    chars: Path | str | None = None,
    corpus: Path | str | None = None,
    tokenizer: Path | str | None = None,
) -> Run:
    """Write a checkpoint of nanoGPT, minGPT or CS224N as a run; its tokens are those of exactly one of the last three.

    `chars` is the text whose characters are the symbols; of a `corpus`, □ and ⁇ come before them, and the run remembers it as
    what the model has read. `tokenizer` is a file of GPT-2's byte-pair pieces.
    """
    out, given = Path(out), [one for one in (chars, corpus, tokenizer) if one is not None]
    refuse_existing(out)
    if len(given) != 1:
        raise UserError(
            "a checkpoint does not say what its tokens are: give --chars FILE (the text of nanoGPT's or minGPT's characters),"
            " --corpus FILE (CS224N's) or --tokenizer FILE (GPT-2's pieces), one of them"
        )
    model = read_checkpoint(file, n_head=n_head, activation=activation)
    if tokenizer is not None:
        from attnlab.hf.exchange import read_tokenizer  # imports transformers

        path = Path(tokenizer)
        refuse(str(path), {"is no tokenizer.json, nor its folder": not path.is_dir() and path.name != "tokenizer.json"})
        folder = path if path.is_dir() else path.parent
        reader = read_tokenizer("GPT2TokenizerFast", folder, model.config.vocab_size)
    else:
        model, reader = _with_characters(model, Path(given[0]), special=corpus is not None)
    read = DataSource(str(Path(corpus).resolve()), load_corpus(corpus).sha256) if corpus is not None else None
    return write_run(out, model, reader, Path(file).name, "spans" if corpus is not None else "text", read)


def write_run(
    out: Path,
    model: LanguageModel,
    tokenizer: Tokenizer,
    source: str,
    task: str = "spans",
    corpus: DataSource | None = None,
) -> Run:
    """Write a model from elsewhere as a run that was trained on this task, as far as other commands ask for it."""
    settings = RunConfig(model=model.config, tokenizer=TokenizerConfig(tokenizer.kind), task=TaskConfig(task))
    traits = TaskTraits(task_class(settings.task).reads, task_class(settings.task).tested)
    record = RunRecord("import", settings.to_dict(), traits, corpus)
    run = Run.create(out, record, usercode.code_files(model.config.mechanism))
    write_folder(run.path / "model", "model", model_files(model, tokenizer))
    parameters = sum(weight.numel() for weight in model.parameters())
    add_files(run.path, {"result.json": encode(RunResult(parameters, imported=source))})
    return run
