"""Exchange with transformers: models out and in, and attnlab's mechanisms inside other people's models.

    import attnlab.exchange                                     # registers everything below

    AutoModelForCausalLM.from_pretrained(folder)                # a folder that `attnlab export` wrote
    AutoModel.from_pretrained(..., attn_implementation="attnlab:performer")

A finished model becomes a folder in GPT-2's layout where it is a GPT-2, else in attnlab's own class; folders of GPT-2, and
those that `attnlab export` wrote, become runs. Importing this module imports transformers, which takes seconds. Nothing here
computes what the model or a mechanism computes.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from attnlab import usercode
from attnlab.config import RunConfig, TaskConfig, TokenizerConfig
from attnlab.errors import AttnlabError, DataError, UserError

try:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GPT2LMHeadModel
except ImportError:
    raise UserError("transformers is not installed, and exchange needs it: pip install 'attnlab[hf]'") from None

from attnlab.folders import add_files, read_json, refuse_existing, reporting_damage, to_json, write_folder
from attnlab.hf.attention import equip, register, register_all
from attnlab.hf.card import Facts, model_card
from attnlab.hf.gpt2 import from_gpt2, is_gpt2, settings_of, to_gpt2
from attnlab.hf.loading import load, load_weights, refuse_pickled
from attnlab.hf.modeling import AttnlabConfig, AttnlabForCausalLM
from attnlab.hf.symbols import AttnlabWordTokenizer, from_transformers, tokenizer_files
from attnlab.look import attentions_of, circuits_of
from attnlab.model import FORMAT, LanguageModel, count_parameters, load_model
from attnlab.model import model_files as attnlab_files
from attnlab.runs import Run
from attnlab.tokenizers import Tokenizer

__all__ = [
    "AttnlabConfig",
    "AttnlabForCausalLM",
    "AttnlabWordTokenizer",
    "attentions_of",
    "circuits_of",
    "equip",
    "export",
    "import_model",
    "read_folder",
    "register",
]

STAGE = "import"

AutoConfig.register(AttnlabConfig.model_type, AttnlabConfig, exist_ok=True)
AutoModelForCausalLM.register(AttnlabConfig, AttnlabForCausalLM, exist_ok=True)
AutoTokenizer.register(AttnlabConfig, fast_tokenizer_class=AttnlabWordTokenizer, exist_ok=True)
register_all()


# Out


def export(source: Path | str, folder: Path | str, *, trust_code: bool = False) -> dict[str, Any]:
    """Write the model of a run, or of a model folder, as a folder for transformers, and say what was written."""
    source, folder = Path(source), Path(folder)
    refuse_existing(folder)
    run = _run_of(source)
    model, tokenizer = load_model(run.model if run else source, trust_code=trust_code)
    layout = "gpt2" if is_gpt2(model.config) else "attnlab"
    facts = Facts(
        name=folder.name,
        layout=layout,
        tokenizer=tokenizer.kind,
        model=asdict(model.config),
        parameters=count_parameters(model),
        symbols=tokenizer.size,
        stages=_stages_of(run) if run else [],
        result=run.result if run and run.complete else {},
        examined=_examinations(run) if run else [],
    )
    files = {**_model_files(model, tokenizer, layout), **tokenizer_files(tokenizer, model.config.block_size)}
    write_folder(folder, "export", {**files, "README.md": model_card(facts).encode()})
    parameters = sum(facts.parameters.values())
    return {"folder": str(folder), "layout": layout, "parameters": parameters, "needs_attnlab": facts.needs_attnlab}


def _run_of(source: Path) -> Run | None:
    """The run behind a folder, if it is one and not a model folder alone."""
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; `attnlab runs` shows the runs of this folder")
    if (source / "model.safetensors").is_file() and (source / "tokenizer.json").is_file():
        return Run.open(source.parent) if (source.parent / "config.json").is_file() else None
    return Run.open(source)


def _stages_of(run: Run) -> list[dict[str, Any]]:
    """What was asked in a run and in those it went on from, the first one first; those that are gone are left out."""
    stored = run.config
    base = run.path / stored["base"] if stored.get("base") else None
    if base is None or not (base / "config.json").is_file():
        return [stored]
    return [*_stages_of(Run(base)), stored]


def _model_files(model: LanguageModel, tokenizer: Tokenizer, layout: str) -> dict[str, bytes]:
    """config.json, generation_config.json, the weights, and the code of a mechanism in a user's file."""
    symbols: dict[str, Any] = {
        "bos_token_id": tokenizer.start,
        "pad_token_id": tokenizer.pad,
        "eos_token_id": sorted(tokenizer.stops),
    }
    config: Any
    if layout == "gpt2":
        config, tensors = to_gpt2(model, **symbols)
    else:
        config = AttnlabConfig(asdict(model.config), architectures=["AttnlabForCausalLM"], dtype="float32", **symbols)
        tensors = {f"language_model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {
        "config.json": config.to_json_string().encode(),
        "generation_config.json": GenerationConfig(**symbols).to_json_string().encode(),
        "model.safetensors": _packed(tensors),
        **usercode.code_files(model.config.mechanism),
    }


def _packed(tensors: dict[str, Tensor]) -> bytes:
    """Weights as transformers stores them."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return bytes(save_tensors(whole, metadata={"format": "pt"}))


def _examinations(run: Run) -> list[dict[str, Any]]:
    """What `evaluate` has written about a run, in the folders beside it."""
    found = []
    for path in sorted(run.path.parent.glob("*/result.json")):
        try:
            result = read_json(path)
        except AttnlabError:  # another run that is damaged is no reason not to export this one
            continue
        named = result.get("run")
        if isinstance(named, str) and Path(named).resolve() == run.path.resolve() and path.parent != run.path:
            found.append(result)
    return found


# In


def import_model(folder: Path | str, out: Path | str, *, trust_code: bool = False) -> Run:
    """Write a model of transformers as a run, on which look, evaluate, generate and finetune work."""
    out = Path(out)
    refuse_existing(out)
    model, tokenizer = read_folder(folder, trust_code=trust_code)
    settings = replace(
        RunConfig(), model=model.config, tokenizer=TokenizerConfig(kind=tokenizer.kind), task=TaskConfig(name="spans")
    )
    stored = {
        "format": FORMAT,
        "stage": STAGE,
        "config": settings.to_dict(),
        "data": {"corpus": None, "facts": None},
        "base": None,
    }
    run = Run.create(out, stored, usercode.code_files(model.config.mechanism))
    write_folder(run.path / "model", "model", attnlab_files(model, tokenizer))
    parameters = sum(one.numel() for one in model.parameters())
    result = {"imported": Path(folder).name, "parameters": parameters, "seconds": 0.0}
    add_files(run.path, {"result.json": to_json(result)})
    return run


def read_folder(folder: Path | str, *, trust_code: bool = False) -> tuple[LanguageModel, Tokenizer]:
    """The model and tokenizer of a folder of transformers, with equal scores and ids, or an error that says what is amiss."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} has no config.json: name a folder that save_pretrained wrote")
    if (folder / "model").is_dir():
        raise UserError(f"{folder} is a run of attnlab already: use it as it is")
    refuse_pickled(folder)
    config = load(AutoConfig, str(folder), local_files_only=True)
    if config.model_type == "attnlab":
        model = _with_every_weight(AttnlabForCausalLM, folder, trust_code=trust_code).language_model
    elif config.model_type == "gpt2":
        settings_of(config)  # what it cannot hold is said before the weights are read
        model = from_gpt2(config, _with_every_weight(GPT2LMHeadModel, folder).state_dict())
    else:
        raise UserError(
            f"{folder} holds a model of type '{config.model_type}': attnlab imports gpt2, and what it exported"
        )
    theirs = load(AutoTokenizer, str(folder), local_files_only=True)
    with reporting_damage(folder / "tokenizer_config.json"):
        tokenizer = from_transformers(theirs, model.config.vocab_size)
    if tokenizer.size > model.config.vocab_size:
        raise DataError(f"{folder}: the tokenizer has {tokenizer.size} symbols, the model {model.config.vocab_size}")
    return model.eval(), tokenizer


def _with_every_weight(kind: Any, folder: Path, **settings: Any) -> Any:
    """The model of a folder with every weight from its files: transformers draws what is missing, and only warns."""
    model, missing = load_weights(kind, str(folder), local_files_only=True, **settings)
    if missing:
        raise DataError(f"{folder} lacks {len(missing)} of its weights, first {min(missing)}: copy or save it again")
    return model
