"""A model of transformers as a run of attnlab: GPT-2 folders, and folders that `attnlab export` wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, GPT2LMHeadModel

from attnlab import usercode
from attnlab.config import RunConfig, TaskConfig, TokenizerConfig
from attnlab.errors import DataError, UserError
from attnlab.hf.gpt2 import from_gpt2, settings_of
from attnlab.hf.loading import quietly
from attnlab.hf.modeling import AttnlabForCausalLM
from attnlab.hf.places import refuse_pickled
from attnlab.hf.symbols import from_transformers
from attnlab.model import FORMAT, LanguageModel, model_files
from attnlab.runs import Run, add_files, refuse_existing, reporting_damage, to_json, write_folder
from attnlab.tokenizers import Tokenizer

STAGE = "import"


def read_folder(folder: Path | str, *, trust_code: bool = False) -> tuple[LanguageModel, Tokenizer]:
    """The model and tokenizer of a folder of transformers, with equal scores and ids, or an error that says what is amiss."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} has no config.json: name a folder that save_pretrained wrote")
    if (folder / "model").is_dir():
        raise UserError(f"{folder} is a run of attnlab already: use it as it is")
    refuse_pickled(folder)
    config = loaded(AutoConfig, folder)
    if config.model_type == "attnlab":
        model = whole(AttnlabForCausalLM, folder, trust_code=trust_code).language_model
    elif config.model_type == "gpt2":
        settings_of(config)  # what it cannot hold is said before the weights are read
        model = from_gpt2(config, whole(GPT2LMHeadModel, folder).state_dict())
    else:
        raise UserError(
            f"{folder} holds a model of type '{config.model_type}': attnlab imports gpt2, and what it exported"
        )
    theirs = loaded(AutoTokenizer, folder)
    with reporting_damage(folder / "tokenizer_config.json"):
        tokenizer = from_transformers(theirs, model.config.vocab_size)
    if tokenizer.size > model.config.vocab_size:
        raise DataError(f"{folder}: the tokenizer has {tokenizer.size} symbols, the model {model.config.vocab_size}")
    return model.eval(), tokenizer


def whole(kind: Any, folder: Path, **settings: Any) -> Any:
    """The model of a folder with every weight from its files: transformers draws what is missing, and only warns."""
    model, report = loaded(
        kind, folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **settings
    )
    if report["missing_keys"]:
        raise DataError(
            f"{folder} lacks {len(report['missing_keys'])} of its weights, first {min(report['missing_keys'])}: copy or save"
            " it again"
        )
    return model


def loaded(kind: Any, folder: Path, **settings: Any) -> Any:
    """What transformers reads of a folder, its complaints on one line."""
    try:
        with quietly():
            return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **settings)
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file may raise
        said = " ".join(str(error).split())
        raise DataError(f"{folder} cannot be read by transformers: {said[:300]}") from None


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
    write_folder(run.path / "model", "model", model_files(model, tokenizer))
    parameters = sum(one.numel() for one in model.parameters())
    result = {"imported": Path(folder).name, "parameters": parameters, "seconds": 0.0}
    add_files(run.path, {"result.json": to_json(result)})
    return run
