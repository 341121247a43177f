"""attnlab: an attention laboratory.

The public names are imported when first used, so that `import attnlab` is fast.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES = {  # by module
    "config": "resolve",
    "corpora": "load_corpus load_questions",
    "corpora.library": "evidence",
    "registry": "mechanism task",
    "tasks": "Task",
    "studies.study": "study Study",
    "inside.taps": "capture patch influence",
    "inside.ablation": "ablate ablate_heads",
    "inside.contributions": "head_contributions",
    "inside.trace": "trace",
    "inside": "Intervention",
    "lm.model": "LanguageModel load_model",
    "lm.flops": "flops_per_token",
    "lm.stages": "pretrain finetune resume",
    "lm.progress": "display",
    "lm.evaluate": "examine top_answers",
    "lm.exams": "score",
    "lm.decoding": "sample beam_search variety",
    "trust.calibrating": "calibrate",
    "trust.asking": "ask",
    "lm.perplexity": "sentence_losses",
    "store.runs": "Run",
    "studies.compare": "compare",
    "measure.audit": "audit_mechanism audit_module",
}
_MODULES = {name: f"attnlab.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'attnlab' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
