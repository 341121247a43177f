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
    "index_corpus": "attnlab.corpora.index",
    "evidence": "attnlab.corpora.evidence",
    "mechanism": "attnlab.registry",
    "task": "attnlab.registry",
    "capture": "attnlab.taps",
    "patch": "attnlab.taps",
    "influence": "attnlab.taps",
    "LanguageModel": "attnlab.model",
    "load_model": "attnlab.model",
    "flops_per_token": "attnlab.flops",
    "pretrain": "attnlab.stages",
    "finetune": "attnlab.stages",
    "resume": "attnlab.stages",
    "display": "attnlab.progress",
    "examine": "attnlab.evaluate",
    "score": "attnlab.exams",
    "top_answers": "attnlab.evaluate",
    "sample": "attnlab.evaluate",
    "calibrate": "attnlab.trust.calibrating",
    "ask": "attnlab.trust.asking",
    "sentence_losses": "attnlab.perplexity",
    "Run": "attnlab.runs",
    "compare": "attnlab.studies.compare",
    "audit_mechanism": "attnlab.measure.audit",
    "audit_module": "attnlab.measure.audit",
    "show": "attnlab.serve.notebook",
    "design_widget": "attnlab.serve.notebook",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'attnlab' has no attribute '{name}'")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
