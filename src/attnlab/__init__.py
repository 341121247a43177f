"""attnlab: an attention laboratory.

The public names are imported when first used, so that `import attnlab` is fast.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "resolve": "attnlab.config",
    "load_corpus": "attnlab.corpora",
    "load_questions": "attnlab.corpora",
    "evidence": "attnlab.corpora.library",
    "mechanism": "attnlab.registry",
    "task": "attnlab.registry",
    "Task": "attnlab.tasks",
    "study": "attnlab.studies.study",
    "Study": "attnlab.studies.study",
    "capture": "attnlab.inside.taps",
    "patch": "attnlab.inside.taps",
    "influence": "attnlab.inside.taps",
    "ablate": "attnlab.inside.ablation",
    "ablate_heads": "attnlab.inside.ablation",
    "head_contributions": "attnlab.inside.contributions",
    "Intervention": "attnlab.inside",
    "LanguageModel": "attnlab.lm.model",
    "load_model": "attnlab.lm.model",
    "flops_per_token": "attnlab.lm.flops",
    "pretrain": "attnlab.lm.stages",
    "finetune": "attnlab.lm.stages",
    "resume": "attnlab.lm.stages",
    "display": "attnlab.lm.progress",
    "examine": "attnlab.lm.evaluate",
    "score": "attnlab.lm.exams",
    "top_answers": "attnlab.lm.evaluate",
    "sample": "attnlab.lm.decoding",
    "beam_search": "attnlab.lm.decoding",
    "variety": "attnlab.lm.decoding",
    "calibrate": "attnlab.trust.calibrating",
    "ask": "attnlab.trust.asking",
    "sentence_losses": "attnlab.lm.perplexity",
    "Run": "attnlab.store.runs",
    "compare": "attnlab.studies.compare",
    "audit_mechanism": "attnlab.measure.audit",
    "audit_module": "attnlab.measure.audit",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'attnlab' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
