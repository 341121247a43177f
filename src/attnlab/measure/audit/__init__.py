"""Does a mechanism, or a whole model, do what it says: see no future, no padding, no neighbour, and the same each time?

    attnlab.audit_mechanism("dot").verdict             a mechanism by name, or path.py:Class
    attnlab.audit_module(my_model, n_embd=64).faults   anything that turns (B T D) into (B T E), already built

Nothing here knows a mechanism by name or looks into one: whatever turns tokens into outputs is asked from outside, in both
modes, at several lengths and norms (leaks.py says how sizes are measured, CHECKS what is asked).

What no audit from outside can find: a fault that shows only after thousands of calls, at lengths that were not tried, or for
rare inputs. A pass means that the tests found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnlab import registry
from attnlab.config import preset_names, resolve
from attnlab.errors import ConfigError, UserError, unknown
from attnlab.measure.audit import questions
from attnlab.measure.audit.leaks import LIMIT, SAME, Finding, few, influence, not_long
from attnlab.measure.audit.report import Check, Report, answer, document, one_line, wrong
from attnlab.measure.audit.subject import NotTested, Size, Subject, all_forms, awaken, own_copy
from attnlab.model import LanguageModel, load_model
from attnlab.runs import Run

__all__ = [
    "CHECKS",
    "Check",
    "Report",
    "audit_any",
    "audit_mechanism",
    "audit_module",
    "document",
    "influence",
    "wrong",
]

# One more and one less than powers of two, where blocks end, a length that is near none, and the longest.
LENGTHS = tuple(sorted({2**k + step for k in range(1, 10) for step in (-1, 0, 1)} | {150}))
LONGEST = 513
EVERY_LENGTH = frozenset({"future", "prefix"})  # checks that are asked at all of them; the others at a few
DOUBT = 1e-3  # what is larger cannot be rounding
LAYERS = 3  # built to see what they share
OUTPUTS = 512  # scores of a language model that are looked at
SEVERAL = 3  # lengths of two tokens or more without which nothing is known of the future
OF_TIME = frozenset({"future", "gradient", "prefix", "both_ways"})

Question = Callable[[Subject, Sequence[int]], Finding]
Wires = Callable[[int], Finding]

# What is asked, and the largest value that passes. At the edge of a block a token may have no later one to see.
CHECKS: dict[str, tuple[Question, float]] = {
    "responds": (questions.responds, 0.99),
    "future": (questions.future, LIMIT),
    "gradient": (questions.gradient, LIMIT),
    "prefix": (questions.prefix, SAME),
    "cache": (questions.cache, SAME),
    "both_ways": (questions.both_ways, 0.5),
    "padding": (questions.padding, LIMIT),
    "batch": (questions.batch, SAME),
    "train_eval": (questions.train_eval, SAME),
    "repeat": (questions.repeat, SAME),
    "masked": (questions.masked, 0.0),
    "large": (questions.large, 0.0),
}


def examine(subjects: Sequence[Subject], lengths: Sequence[int]) -> list[Check]:
    """Every question asked of every subject, at all lengths of the first and at two of the others."""
    some = sorted({min((one for one in few(lengths) if one > 2), default=lengths[0]), max(not_long(lengths))})

    def ask(name: str, number: int) -> Callable[[], Finding]:
        asked = some if number else lengths if name in EVERY_LENGTH else few(lengths)
        return lambda: beyond_rounding(*CHECKS[name], subjects[number], asked)

    return [
        answer(name, limit, [ask(name, number) for number in range(len(subjects))])
        for name, (_, limit) in CHECKS.items()
    ]


def beyond_rounding(check: Question, limit: float, subject: Subject, lengths: Sequence[int]) -> Finding:
    """An answer, and where it is so small that it may be rounding, the answer in float64, where rounding shrinks away."""
    found = check(subject, lengths)
    if not limit < found.value < DOUBT:
        return found
    try:
        return check(subject.in_double(), lengths)
    except Exception:  # made for float32 only: then the first answer stands
        return found


def _usable(subject: Subject, longest: int) -> tuple[list[int], list[str]]:
    """The lengths that a subject takes, and its words on those that it refuses."""
    taken: list[int] = []
    refused: dict[str, list[str]] = {}
    for tokens in sorted({*(length for length in LENGTHS if length < longest), longest}):
        try:
            with subject.mode(False):
                subject.run(subject.draw(2, tokens))
            taken.append(tokens)
        except Exception as error:  # whatever a user's module may raise
            refused.setdefault(type(error).__name__, []).append(f"{tokens} tokens: {one_line(error)}")
    return taken, [
        f"refuses {first}" + (f" (and {len(more)} other lengths)" if more else "") for first, *more in refused.values()
    ]


def _conduct(name: str, subjects: Sequence[Subject], longest: int, wires: Wires, **more: Any) -> Report:
    """The whole audit of the forms of one subject; `wires` looks at its wiring, with a length that it takes."""
    lengths, refused = _usable(subjects[0], longest)
    if lengths:
        checks = [*examine(subjects, lengths), answer("wiring", 0.0, [lambda: wires(lengths[0])])]
        several = [tokens for tokens in lengths if tokens > 1]
        if len(several) < SEVERAL:
            why = f"runs at {len(several)} of the lengths tried beyond one token, and {SEVERAL} are needed"
            checks = [check.withdrawn(why) if check.passed and check.name in OF_TIME else check for check in checks]
    else:
        checks, refused = [Check("responds", None, 0.0, False, refused[0])], []
    notes = (*more.pop("notes", ()), *refused)
    words = tuple(subject.form for subject in subjects)
    return Report(name, tuple(checks), lengths=tuple(lengths), forms=words, notes=notes, **more)


def audit_mechanism(name: str, *, n_embd: int = 32, n_head: int = 2, length: int = LONGEST) -> Report:
    """Audit an attention mechanism by its name, or a class in a file, path.py:Class."""
    entry, size = registry.find("mechanism", name), Size(n_embd, n_head, length)
    if isinstance(entry.build, nn.Module):
        return audit_module(entry.build, n_embd=n_embd, length=length, name=name)
    with torch.random.fork_rng(devices=[]):
        subjects, notes = all_forms(entry, size)

        def wires(_: int) -> Finding:
            layers = nn.ModuleList(entry.make(size.of_mechanism) for _ in range(LAYERS))
            return questions.shared_wires(layers, between_layers=True)

        return _conduct(entry.name, subjects, length, wires, defect=entry.defect, notes=tuple(notes))


def audit_module(
    module: Callable[..., Any],
    *,
    n_embd: int | None = None,
    vocab_size: int | None = None,
    length: int = LONGEST,
    causal: bool = True,
    name: str = "",
) -> Report:
    """Audit a module or function that is already built, from (B T n_embd) or from ids (B T) below `vocab_size`.

    A module is copied first, and the copy loses its dropout. Where the future may be seen, say causal=False.
    """
    name, defect = name or getattr(module, "__name__", type(module).__name__), ""
    if length < 1:
        raise UserError(f"length must be at least 1, not {length}")
    if isinstance(module, LanguageModel):
        n_embd, vocab_size, length = None, module.config.vocab_size, min(length, module.config.block_size)
        entries = [registry.find("mechanism", one) for one in module.config.mechanisms]
        defect = "; ".join(dict.fromkeys(entry.defect for entry in entries if entry.defect))
    width = n_embd or vocab_size
    if width is None:
        raise UserError("say what it reads: n_embd=..., the width of its vectors, or vocab_size=..., if it reads ids")

    def subject(call: Callable[..., Any], form: str) -> Subject:
        return Subject(call, width, reads_ids=n_embd is None, causal=causal, form=form)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if not isinstance(module, nn.Module):
            return _conduct(name, [subject(module, "as given")], length, _no_wires)
        given, awake = own_copy(module), own_copy(module)
        for one in (given, awake):
            if isinstance(one, LanguageModel):
                _narrow_head(one)
        subjects = [subject(given, "as given")]
        if awaken(awake):
            subjects.append(subject(awake, "with weights where it has zeros"))

        def wires(tokens: int) -> Finding:
            return questions.shared_wires(given, lambda: subjects[0].run(subjects[0].draw(2, tokens)))

        return _conduct(name, subjects, length, wires, defect=defect)


def _narrow_head(model: LanguageModel) -> None:
    """Keep some of the scores of a large vocabulary, in place: the head sees each token by itself and hides nothing."""
    kept = model.head.weight[:OUTPUTS].detach().clone()
    model.head = nn.Linear(kept.shape[1], len(kept), bias=False)
    model.head.weight = nn.Parameter(kept)


def _no_wires(_: int) -> Finding:
    raise NotTested("a plain function shows no modules")


def audit_any(
    name: str, *, n_embd: int = 32, n_head: int = 2, length: int = LONGEST, trust_code: bool = False
) -> Report:
    """Audit what a name stands for: a mechanism, path.py:Class, a preset's model, or the model of a run folder."""
    if ".py:" in name or name in registry.names("mechanism"):
        return audit_mechanism(name, n_embd=n_embd, n_head=n_head, length=length)
    if name in preset_names():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return audit_module(LanguageModel(replace(resolve(name).model, zero_init=False)), length=length, name=name)
    if Path(name).is_dir():
        model, _ = load_model(Run.open(name).model, trust_code=trust_code)
        return audit_module(model, length=length, name=name)
    raise ConfigError(unknown("mechanism, preset or run", name, [*registry.names("mechanism"), *preset_names()]))
