"""docs/api.md: the public Python API, with signatures and summaries read from the code.

    python tools/api.py > docs/api.md

PUBLIC is the list. A module without names contributes its `__all__`, or else what its file imports.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator

PUBLIC = {
    "attnlab": (
        "Train, examine, ask, compare and audit. Each name is imported when it is first used.",
        (),
    ),
    "attnlab.design": ("Queries and matrices for a wanted output, with proofs: [design](design.md).", ()),
    "attnlab.stats": (
        "Intervals, tests and power. Plain numbers in, frozen records out: [comparing](comparing.md).",
        (),
    ),
    "attnlab.corpora": ("Text and questions, built-in or your own.", ()),
    "attnlab.corpora.labelled": ("Tables of labelled texts for `attnlab classify`.", ("read_tables",)),
    "attnlab.reader": ("Learns from questions where answers stand, and writes more questions.", ()),
    "attnlab.trust": ("Calibrated confidence, source line and verdict: [trust](trust.md).", ()),
    "attnlab.inside.look": (
        "One text inside a model: [looking inside](looking.md).",
        ("look", "View", "attentions_of"),
    ),
    "attnlab.inside.heads": (
        "What every head does, in scores: [looking inside](looking.md).",
        ("score_heads", "ScoredHeads", "HeadScores"),
    ),
    "attnlab.inside.taps": ("Read and change activations by name.", ("Tap", "taps_of")),
    "attnlab.mechanisms.heads": (
        "What most mechanisms are made of: [a mechanism of your own](your-own.md).",
        ("Attention", "Heads", "KeyValueCache", "StateCache"),
    ),
    "attnlab.mechanisms.recurrent": (
        "What recurrent mechanisms are made of: [a recurrent mechanism](your-own.md#a-recurrent-mechanism).",
        ("Recurrent", "Gates", "RecurrentCache"),
    ),
    "attnlab.ops": (
        "Tensor functions that mechanisms share.",
        ("split_heads", "visible", "masked_softmax", "attention_pattern", "fused_attention"),
    ),
    "attnlab.tasks": (
        "What every training objective is made of: [a task of your own](your-own.md).",
        ("Task", "TaskData", "Example"),
    ),
    "attnlab.studies.study": (
        "What every study is made of: [a study of your own](your-own.md#a-study-of-your-own).",
        ("Study", "study", "Outcome"),
    ),
    "attnlab.studies.training": (
        "What studies share that train models on a corpus and questions.",
        ("Training", "TrainingResult", "Share", "share_of"),
    ),
    "attnlab.studies.options": (
        "Options that studies and commands share.",
        ("Corpus", "Facts", "Exam", "about", "default"),
    ),
    "attnlab.studies.recall": (
        "The main study: `Recall(...).begin(folder, console)`; [recall](recall.md).",
        ("Recall", "RecallResult"),
    ),
    "attnlab.studies.trust": (
        "Known, withheld and invented names, run like recall: [trust](trust.md).",
        ("Trust", "TrustResult"),
    ),
    "attnlab.studies.compare": ("Comparisons, run like recall: [comparing](comparing.md).", ("Compare",)),
    "attnlab.studies.why": ("Why reading helps: [why](why.md).", ("Why", "WhyResult")),
    "attnlab.report": ("Results as documents: HTML, Markdown, JSON, CSV, LaTeX and terminal.", ()),
    "attnlab.report.parts": ("Cells and frames that reports share.", ("StudyResult", "columns", "report_of")),
    "attnlab.report.document": (
        "The blocks of a document.",
        (
            "Document",
            "Section",
            "Table",
            "Row",
            "Cell",
            "section",
            "Chart",
            "HeatMap",
            "Heads",
            "Text",
            "Facts",
            "Code",
            "Answers",
        ),
    ),
    "attnlab.hf": (
        "Hugging Face: [classify](classify.md), [exchange](exchange.md).",
        (),
    ),
    "attnlab.exchange": (
        "`import attnlab.exchange` registers attnlab with transformers: [exchange](exchange.md).",
        ("register", "equip", "export", "import_model", "AttnlabForCausalLM"),
    ),
}
INTRODUCTION = """\
# Python API

Written by `python tools/api.py`; a test keeps it up to date. These names are public: a change to
one of them is listed in the changelog. All other names are private to their package and may change
without notice.
"""


class _Ellipsis:
    """A default that has no short form, as shown in a signature."""

    def __repr__(self) -> str:
        return "..."


def names_of(module: str) -> list[str]:
    """The public names of a module, sorted, without dunder names."""
    package = importlib.import_module(module)
    imported = [name for name, value in vars(package).items() if not inspect.ismodule(value)]
    chosen = PUBLIC[module][1] or getattr(package, "__all__", imported)
    return sorted((name for name in chosen if not name.startswith("_")), key=lambda name: (name.lower(), name))


def call_of(name: str, value: object) -> str:
    """How a name is used: with parameters and their defaults if it can be called."""
    if not callable(value):
        return name
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    plain = [
        one.replace(
            annotation=one.empty,
            default=_Ellipsis() if "<" in repr(one.default) and one.default is not one.empty else one.default,
        )
        for one in signature.parameters.values()
    ]
    return f"{name}{inspect.Signature(plain)}"


def summary_of(value: object) -> str:
    """The first paragraph of a docstring; nothing for constants."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return ""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def lines_of(module: str) -> Iterator[str]:
    """One section of the page."""
    yield f"## {module}"
    yield ""
    yield from textwrap.wrap(PUBLIC[module][0], 100)
    yield ""
    for name in names_of(module):
        value = getattr(importlib.import_module(module), name)
        text = f"- `{call_of(name, value)}`: {summary_of(value)}".removesuffix(": ")
        yield from textwrap.wrap(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    yield ""


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "\n" + "\n".join(line for module in PUBLIC for line in lines_of(module))


if __name__ == "__main__":
    print(page(), end="")
