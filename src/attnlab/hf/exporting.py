"""A finished model as a folder that transformers loads: GPT-2's layout where the model is a GPT-2, else attnlab's own class."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor
from transformers import GenerationConfig

from attnlab import usercode
from attnlab.errors import AttnlabError, UserError
from attnlab.hf.card import Facts, card
from attnlab.hf.gpt2 import is_gpt2, to_gpt2
from attnlab.hf.modeling import AttnlabConfig
from attnlab.hf.symbols import tokenizer_files
from attnlab.model import LanguageModel, count_parameters, load_model
from attnlab.runs import Run, read_json, refuse_existing, write_folder
from attnlab.tokenizers import Tokenizer


def export(source: Path | str, folder: Path | str, *, trust_code: bool = False) -> dict[str, Any]:
    """Write the model of a run, or of a model folder, as a folder for transformers, and say what was written."""
    source, folder = Path(source), Path(folder)
    refuse_existing(folder)
    run = run_of(source)
    model, tokenizer = load_model(run.model if run else source, trust_code=trust_code)
    layout = "gpt2" if is_gpt2(model.config) else "attnlab"
    facts = Facts(
        name=folder.name,
        layout=layout,
        tokenizer=tokenizer.kind,
        model=asdict(model.config),
        parameters=count_parameters(model),
        symbols=tokenizer.size,
        stages=stages_of(run) if run else [],
        result=run.result if run and run.complete else {},
        examined=examinations(run) if run else [],
    )
    files = {**model_files(model, tokenizer, layout), **tokenizer_files(tokenizer, model.config.block_size)}
    write_folder(folder, "export", {**files, "README.md": card(facts).encode()})
    parameters = sum(facts.parameters.values())
    return {"folder": str(folder), "layout": layout, "parameters": parameters, "needs_attnlab": facts.needs_attnlab}


def run_of(source: Path) -> Run | None:
    """The run behind a folder, if it is one and not a model folder alone."""
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; `attnlab runs` shows the runs of this folder")
    if (source / "model.safetensors").is_file() and (source / "tokenizer.json").is_file():
        return Run.open(source.parent) if (source.parent / "config.json").is_file() else None
    return Run.open(source)


def stages_of(run: Run) -> list[dict[str, Any]]:
    """What was asked in a run and in those it went on from, the first one first; those that are gone are left out."""
    stored = run.config
    base = run.path / stored["base"] if stored.get("base") else None
    if base is None or not (base / "config.json").is_file():
        return [stored]
    return [*stages_of(Run(base)), stored]


def model_files(model: LanguageModel, tokenizer: Tokenizer, layout: str) -> dict[str, bytes]:
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
        "model.safetensors": packed(tensors),
        **usercode.code_files(model.config.mechanism),
    }


def packed(tensors: dict[str, Tensor]) -> bytes:
    """Weights as transformers stores them."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    return bytes(save_tensors(whole, metadata={"format": "pt"}))


def examinations(run: Run) -> list[dict[str, Any]]:
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
