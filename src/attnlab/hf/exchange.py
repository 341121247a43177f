"""Exchange with transformers: models out and in, and attnlab's mechanisms inside other people's models.

    import attnlab.exchange                                     # registers everything below

    AutoModelForCausalLM.from_pretrained(folder)                # a folder that `attnlab export` wrote
    AutoModel.from_pretrained(..., attn_implementation="attnlab:performer")

A finished model becomes a folder in GPT-2's layout if it is a GPT-2, else with attnlab's own class; folders of GPT-2, and
those that `attnlab export` wrote, become runs. Importing this module imports transformers, which takes seconds. Models and
mechanisms are not implemented here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypedDict

from safetensors.torch import save as save_tensors

from attnlab import __version__
from attnlab.config import RunConfig, TaskConfig, TokenizerConfig, flatten
from attnlab.corpora.sources import licences_of, public_name
from attnlab.errors import DataError, UserError
from attnlab.store import usercode

try:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GPT2LMHeadModel
except ImportError:
    raise UserError("transformers is not installed, and exchange needs it: pip install 'attnlab[hf]'") from None

from attnlab.hf.attention import equip, register, register_all
from attnlab.hf.conversion import (
    AttnlabWordTokenizer,
    from_gpt2,
    is_gpt2,
    model_config_of,
    to_gpt2,
    tokenizer_files,
    tokenizer_from,
)
from attnlab.hf.loading import load, load_weights, refuse_pickled, render_card
from attnlab.hf.modeling import AttnlabConfig, AttnlabForCausalLM
from attnlab.inside.look import attentions_of
from attnlab.lm.model import LanguageModel, count_parameters, load_model
from attnlab.lm.model import model_files as attnlab_files
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.folders import add_files, refuse_existing, reporting_damage, write_folder
from attnlab.store.records import encode
from attnlab.store.runs import Run, RunRecord, RunResult

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

AutoConfig.register(AttnlabConfig.model_type, AttnlabConfig, exist_ok=True)
AutoModelForCausalLM.register(AttnlabConfig, AttnlabForCausalLM, exist_ok=True)
AutoTokenizer.register(AttnlabConfig, fast_tokenizer_class=AttnlabWordTokenizer, exist_ok=True)
register_all()


# Out


class Exported(TypedDict):
    """What `export` has written."""

    folder: str
    layout: Literal["gpt2", "attnlab"]
    parameters: int
    needs_attnlab: bool  # whether transformers alone cannot load it


def export(source: Path | str, folder: Path | str, *, trust_code: bool = False) -> Exported:
    """Write the model of a run, or of a model folder, as a folder for transformers, and say what was written."""
    source, folder = Path(source), Path(folder)
    refuse_existing(folder)
    run = _run_of(source)
    model, tokenizer = load_model(run.model if run else source, trust_code=trust_code)
    card = _card(folder.name, model, tokenizer, run)
    files = {**_model_files(model, tokenizer), **tokenizer_files(tokenizer, model.config.block_size)}
    write_folder(folder, "export", {**files, "README.md": card.encode()}, about="a model for transformers")
    return {
        "folder": str(folder),
        "layout": "gpt2" if is_gpt2(model.config) else "attnlab",
        "parameters": sum(count_parameters(model).values()),
        "needs_attnlab": _needs_attnlab(model, tokenizer),
    }


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
    if is_gpt2(model.config):
        config, tensors = to_gpt2(model, **symbols)
    else:
        config = AttnlabConfig(asdict(model.config), architectures=["AttnlabForCausalLM"], dtype="float32", **symbols)
        tensors = {f"language_model.{name}": tensor for name, tensor in model.state_dict().items()}
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return {
        "config.json": config.to_json_string().encode(),
        "generation_config.json": GenerationConfig(**symbols).to_json_string().encode(),
        "model.safetensors": bytes(save_tensors(whole, metadata={"format": "pt"})),
        **usercode.code_files(model.config.mechanism),
    }


# The model card


def _card(name: str, model: LanguageModel, tokenizer: Tokenizer, run: Run | None) -> str:
    """README.md of an exported model; what is not known is left out."""
    stages, sources = [], []
    for record in reversed([stage.record for stage in _lineage(run)] if run else []):  # the first stage first
        data = {key: source for key, source in (("corpus", record.corpus), ("facts", record.facts)) if source}
        entries = [(key, public_name(source.source), source.sha256) for key, source in data.items()]
        stages.append((record.stage, entries))
        sources += [source.source for source in data.values()] or [""]
    settings = (run.record.settings if run else None) or {"model": asdict(model.config)}
    return render_card(
        "model",
        name=name,
        version=__version__,
        config=model.config,
        symbols=tokenizer.size,
        kind={"char": "characters", "byte": "bytes", "bpe": "byte-pair pieces", "word": "words"}[tokenizer.kind],
        parameters=count_parameters(model),
        needs_attnlab=_needs_attnlab(model, tokenizer),
        stages=stages,
        licences=licences_of(sources),
        figures=_figures_of(run) if run else [],
        own_code=bool(usercode.code_files(model.config.mechanism)),
        settings=list(flatten(settings)),
    )


def _needs_attnlab(model: LanguageModel, tokenizer: Tokenizer) -> bool:
    """Whether transformers alone cannot load it."""
    return not is_gpt2(model.config) or tokenizer.words


def _lineage(run: Run) -> Iterator[Run]:
    """A run and those it started from, as far as they are still there."""
    yield run
    base = run.record.base
    if base and (run.path / base / "config.json").is_file():
        yield from _lineage(Run(run.path / base))


def _figures_of(run: Run) -> list[str]:
    """The figures of a finished run, for its card."""
    loss = run.result.final_loss if run.complete else None
    return [] if loss is None else [f"final training loss: {loss:.4f} nats per token"]


# In


def import_model(folder: Path | str, out: Path | str, *, trust_code: bool = False) -> Run:
    """Write a model of transformers as a run, on which look, evaluate, generate and finetune work."""
    out = Path(out)
    refuse_existing(out)
    model, tokenizer = read_folder(folder, trust_code=trust_code)
    kind = TokenizerConfig(kind=tokenizer.kind)
    settings = RunConfig(model=model.config, tokenizer=kind, task=TaskConfig(name="spans"))
    run = Run.create(out, RunRecord("import", settings.to_dict()), usercode.code_files(model.config.mechanism))
    write_folder(run.path / "model", "model", attnlab_files(model, tokenizer))
    parameters = sum(weight.numel() for weight in model.parameters())
    add_files(run.path, {"result.json": encode(RunResult(parameters, imported=Path(folder).name))})
    return run


def read_folder(folder: Path | str, *, trust_code: bool = False) -> tuple[LanguageModel, Tokenizer]:
    """The model and tokenizer of a folder of transformers, with equal scores and ids; what has no equal is refused."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} has no config.json: name a folder that save_pretrained wrote")
    if (folder / "model").is_dir():
        raise UserError(f"{folder} is already a run of attnlab: use it directly")
    refuse_pickled(folder)
    config = load(AutoConfig, str(folder), local_files_only=True)
    if config.model_type == "attnlab":
        model = _load_complete(AttnlabForCausalLM, folder, trust_code=trust_code).language_model
    elif config.model_type == "gpt2":
        model_config_of(config)  # refuses before the weights are read
        model = from_gpt2(config, _load_complete(GPT2LMHeadModel, folder).state_dict())
    else:
        raise UserError(
            f"{folder} holds a model of type '{config.model_type}': attnlab imports gpt2 and its own exports"
        )
    published = load(AutoTokenizer, str(folder), local_files_only=True)
    with reporting_damage(folder / "tokenizer_config.json"):
        tokenizer = tokenizer_from(published, model.config.vocab_size)
    if tokenizer.size > model.config.vocab_size:
        raise DataError(f"{folder}: the tokenizer has {tokenizer.size} symbols, the model {model.config.vocab_size}")
    return model.eval(), tokenizer


def _load_complete(kind: Any, folder: Path, **settings: Any) -> Any:
    """The model of a folder with every weight from its files: transformers initializes what is missing, and only warns."""
    model, missing = load_weights(kind, str(folder), local_files_only=True, **settings)
    if missing:
        raise DataError(f"{folder} lacks {len(missing)} of its weights, first {min(missing)}: copy or save it again")
    return model
