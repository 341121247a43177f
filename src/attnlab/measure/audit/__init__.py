"""Audit a mechanism or a whole model: does it see the future, padding or other texts, and is it deterministic?

    attnlab.audit_mechanism("dot").verdict             a mechanism by name, or path.py:Class
    attnlab.audit_module(my_model, n_embd=64).faults   a built module that turns (B T D) into (B T E)

Nothing here knows a mechanism by name or looks inside one: whatever turns tokens into outputs is tested from outside, in
both modes, at several lengths and norms (leaks.py measures sizes, CHECKS lists the questions).

No audit from outside finds a fault that shows only after thousands of calls, at lengths that were not tried, or for rare
inputs. A pass means that the tests found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from attnlab import registry
from attnlab.config import preset_names, resolve
from attnlab.errors import ConfigError, UserError, one_line, unknown
from attnlab.lm.model import LanguageModel, load_model
from attnlab.machine import cores
from attnlab.measure.audit import questions
from attnlab.measure.audit.leaks import LIMIT, SAME, Finding, few, not_long, worst
from attnlab.measure.audit.subject import NotTested, Subject, all_forms, dropout_of, own_copy, randomize_zero_init
from attnlab.mechanisms.conventions import conventions_of
from attnlab.report.document import Block, Cell, Column, Document, Facts, Row, Section, Table, Text
from attnlab.report.words import plural
from attnlab.store import records, usercode
from attnlab.store.runs import Run, located
from attnlab.supervisor import NO_LIMITS, call_each

# Powers of two, where blocks end, and their neighbours; a length that is near none; and the longest.
LENGTHS = tuple(sorted({2**k + step for k in range(1, 10) for step in (-1, 0, 1)} | {150}))
LONGEST = 513
_EVERY_LENGTH = frozenset({"future", "prefix"})  # checks that run at all of them; the others run at a few
_LAYERS = 3  # built to see what they share
_OUTPUTS = 512  # logits of a language model that are tested
_SEVERAL = 3  # lengths of two tokens or more, without which nothing is known of the future
_OF_TIME = frozenset({"future", "gradient", "prefix", "bidirectional"})
# Faults that a declared defect may explain: seeing what is hidden, in any form. NaN or shared layers never.
_EXCUSED = frozenset({"future", "gradient", "prefix", "cache", "padding"})
_NOT_TESTED = "not tested"
_BY_DESIGN = ("has no bidirectional form", "may see the future")  # reasons that need no mention

Question = Callable[[Subject, Sequence[int]], Iterator[Finding]]

# The questions, and the largest value that passes. At the edge of a block a token may have no later one to see.
CHECKS: dict[str, tuple[Question, float]] = {
    "repeat": (questions.repeat, SAME),
    "responds": (questions.responds, 0.99),
    "future": (questions.future, LIMIT),
    "gradient": (questions.gradient, LIMIT),
    "prefix": (questions.prefix, SAME),
    "cache": (questions.cache, SAME),
    "bidirectional": (questions.bidirectional, 0.5),
    "padding": (questions.padding, LIMIT),
    "batch": (questions.batch, SAME),
    "packing": (questions.packing, SAME),
    "train_eval": (questions.train_eval, SAME),
    "masked": (questions.masked, 0.0),
    "large": (questions.large, 0.0),
}
# The groups of checks that a report shows, and when one of them fails.
_GROUPS = {
    "future": (
        ("future", "gradient", "prefix"),
        "the past sees the future: by changed tokens, by gradients, or by a longer text",
    ),
    "cache": (("cache",), "reading piece by piece, with a cache, gives other outputs"),
    "bidirectional": (("bidirectional",), "the bidirectional form does not see the future"),
    "padding": (("padding",), "hidden tokens change others"),
    "batch": (("batch",), "the texts of a batch influence each other"),
    "packing": (("packing",), "documents packed into one row influence each other"),
    "modes": (("train_eval",), "train() and eval() differ"),
    "repeat": (("repeat",), "two calls differ, or one whose pattern is captured"),
    "finite": (
        ("responds", "masked", "large"),
        "outputs ignore the inputs, or are not finite with all tokens hidden or with large inputs",
    ),
    "tied": (("tied",), "layers share weights"),
}
_VERDICTS = {
    "pass": "the audit found no fault.",
    "fail": "the audit found faults.",
    "declared": "the audit found the defect that it declares, and no other fault.",
    "not tested": "whether it sees the future could not be tested.",
}


@dataclass(frozen=True)
class Check:
    """One question and its answer; if `passed` is None it was not or could not be answered (`says` why)."""

    name: str
    value: float | None
    limit: float
    passed: bool | None
    says: str
    by_position: tuple[float, ...] = ()


@dataclass(frozen=True)
class Report:
    """The audit of one subject with its conclusions, as `attnlab audit --json` prints it; made by `conclude`."""

    name: str
    verdict: Literal["pass", "fail", "declared", "not tested"]
    causal_leak: float | None  # the largest share of an output that comes from later tokens; None where it may
    defect: str
    faults: dict[str, str]  # descriptions, by check
    untested: dict[str, str]  # reasons, by check
    checks: tuple[Check, ...]
    leak_by_position: tuple[float, ...]  # like causal_leak, of a text of up to 64 tokens
    lengths: tuple[int, ...]
    forms: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def failing(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.passed is False]


def conclude(
    name: str,
    checks: Sequence[Check],
    defect: str = "",
    lengths: Sequence[int] = (),
    forms: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Report:
    """What follows from the checks.

    The verdict is `declared` if it is wrong in the way it declares, and `not tested` if whether it sees the future is unknown.
    """
    faults = {check.name: check.says for check in checks if check.passed is False}
    untested = {check.name: check.says for check in checks if check.passed is None}
    verdict: Literal["pass", "fail", "declared", "not tested"] = "fail" if faults else "pass"
    if defect and not faults:
        verdict, faults = "fail", {"declared": f"declares a defect that it does not have: {defect}"}
    elif defect and faults.keys() <= _EXCUSED:
        verdict = "declared"
    elif not faults and {"future", "bidirectional"} <= untested.keys():
        # A causal subject is tested for leaks, a bidirectional one for seeing both ways.
        verdict = "not tested"
    of_future = [check for check in checks if check.name in ("future", "gradient")]
    leak = max((check.value for check in of_future if check.value is not None), default=None)
    rows = [check.by_position for check in of_future if check.by_position]
    by_position = tuple(max(column) for column in zip(*rows, strict=True))
    measured = (tuple(checks), by_position, tuple(lengths), tuple(forms), tuple(notes))
    return Report(name, verdict, leak, defect, faults, untested, *measured)


def is_failure(reports: Sequence[Report], named: bool) -> bool:
    """Whether the command must fail: an undeclared fault, leaks not tested, or only declared defects asked for by name."""
    verdicts = {report.verdict for report in reports}
    return not verdicts.isdisjoint(("fail", "not tested")) or (named and verdicts == {"declared"})


# Running the checks


def answer(name: str, limit: float, asked: Iterable[Callable[[], Iterable[Finding]]]) -> Check:
    """The worst answer to a question asked several times; one that raises has failed."""
    findings, reasons = [], []
    for question in asked:
        try:
            findings.append(worst(question()))
        except NotTested as reason:
            reasons.append(str(reason))
        except Exception as error:  # whatever a user's module may raise
            return Check(name, None, limit, False, f"raises {one_line(error)}")
    if not findings:
        return Check(name, None, limit, None, reasons[0])
    first = worst(findings)
    passed = first.value <= limit
    return Check(name, first.value, limit, passed, "" if passed else first.says, first.by_position)


def _run_checks(subjects: Sequence[Subject], lengths: Sequence[int]) -> list[Check]:
    """Every question asked of every subject, at all lengths of the first and at two of the others."""
    pair = sorted({min((tokens for tokens in few(lengths) if tokens > 2), default=lengths[0]), max(not_long(lengths))})
    checks = []
    for name, (question, limit) in CHECKS.items():
        first = lengths if name in _EVERY_LENGTH else few(lengths)
        asked = [(subject, pair if number else first) for number, subject in enumerate(subjects)]
        checks.append(answer(name, limit, [partial(question, *each) for each in asked]))
    return checks


def _usable_lengths(subject: Subject, longest: int) -> tuple[list[int], list[str]]:
    """The lengths that a subject accepts, and its errors at those it refuses."""
    taken: list[int] = []
    refused: dict[str, list[str]] = {}
    for tokens in sorted({*(length for length in LENGTHS if length < longest), longest}):
        try:
            with subject.mode(False):
                subject.run(subject.draw(2, tokens))
            taken.append(tokens)
        except Exception as error:  # whatever a user's module may raise
            refused.setdefault(type(error).__name__, []).append(f"{plural(tokens, 'token')}: {one_line(error)}")
    return taken, [
        f"refuses {first}" + (f" (and {plural(len(more), 'other length')})" if more else "")
        for first, *more in refused.values()
    ]


def _audit(
    name: str,
    subjects: Sequence[Subject],
    longest: int,
    ties: Callable[[int], Finding],
    defect: str = "",
    notes: Sequence[str] = (),
) -> Report:
    """The whole audit of the forms of one subject; `ties` tests what its layers share, at a length that it accepts."""
    lengths, refused = _usable_lengths(subjects[0].under(""), longest)
    forms = tuple(subject.form for subject in subjects)
    if not lengths:
        return conclude(name, [Check("responds", None, 0.0, False, refused[0])], defect, forms=forms, notes=notes)
    checks = [*_run_checks(subjects, lengths), answer("tied", 0.0, [lambda: [ties(lengths[0])]])]
    several = [tokens for tokens in lengths if tokens > 1]
    if len(several) < _SEVERAL:
        why = f"runs at {len(several)} of the lengths tried beyond one token, and {_SEVERAL} are needed"
        checks = [
            Check(check.name, None, check.limit, None, why) if check.passed and check.name in _OF_TIME else check
            for check in checks
        ]
    return conclude(name, checks, defect, lengths, forms, [*notes, *refused])


# What can be audited


def audit_mechanism(name: str, *, n_embd: int = 32, n_head: int = 2, length: int = LONGEST) -> Report:
    """Audit an attention mechanism by its name, or a class in a file, path.py:Class."""
    entry, sizes = registry.find("mechanism", name), (n_embd, n_head, length)
    if isinstance(entry.build, nn.Module):
        return audit_module(entry.build, n_embd=n_embd, length=length, name=name)
    with torch.random.fork_rng(devices=[]):
        subjects, notes = all_forms(entry, sizes)

        def ties(_: int) -> Finding:
            layers = nn.ModuleList(entry.make(sizes) for _ in range(_LAYERS))
            return questions.tied(layers, between_layers=True)

        return _audit(entry.name, subjects, length, ties, entry.defect, notes)


def audit_module(
    module: Callable[..., Any],
    *,
    n_embd: int | None = None,
    vocab_size: int | None = None,
    length: int = LONGEST,
    causal: bool = True,
    name: str = "",
) -> Report:
    """Audit a built module or function that reads vectors (B T n_embd), or ids (B T) below `vocab_size`.

    A module is copied first, and one copy loses its dropout. Pass causal=False if it may see the future.
    """
    name, defect = name or getattr(module, "__name__", type(module).__name__), ""
    if length < 1:
        raise UserError(f"length must be at least 1, not {length}")
    if isinstance(module, LanguageModel):
        n_embd, vocab_size, length = None, module.config.vocab_size, min(length, module.config.block_size)
        entries = [registry.find("mechanism", name) for name in module.config.mechanisms]
        defect = "; ".join(dict.fromkeys(entry.defect for entry in entries if entry.defect))
    width = n_embd or vocab_size
    if width is None:
        raise UserError("say what it reads: n_embd=..., the width of its vectors, or vocab_size=..., if it reads ids")

    def subject(call: Callable[..., Any], form: str) -> Subject:
        return Subject(call, width, reads_ids=n_embd is None, causal=causal, form=form)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if not isinstance(module, nn.Module):
            return _audit(name, [subject(module, "as given")], length, _unknown_ties)
        plain, awake = own_copy(module), own_copy(module, dropout=dropout_of(module) > 0)
        for copy in (plain, awake):
            if isinstance(copy, LanguageModel):
                _narrow_head(copy)
        subjects = [subject(plain, "as given")]
        if randomize_zero_init(awake) or dropout_of(module):
            subjects.append(subject(awake, "with dropout, and weights where it has zeros"))

        def ties(tokens: int) -> Finding:
            return questions.tied(plain, lambda: subjects[0].run(subjects[0].draw(2, tokens)))

        return _audit(name, subjects, length, ties, defect, conventions_of(module))


def _narrow_head(model: LanguageModel) -> None:
    """Keep some of the logits of a large vocabulary, in place: the head sees each token by itself and hides nothing."""
    kept = model.head.weight[:_OUTPUTS].detach().clone()
    model.head = nn.Linear(kept.shape[1], len(kept), bias=False)
    model.head.weight = nn.Parameter(kept)


def _unknown_ties(_: int) -> Finding:
    raise NotTested("a plain function shows no modules")


def audit_any(
    name: str, *, n_embd: int = 32, n_head: int = 2, length: int = LONGEST, trust_code: bool = False
) -> Report:
    """Audit a mechanism, path.py:Class, the model of a preset, or the model of a run folder."""
    if usercode.is_code(name) or name in registry.names("mechanism"):
        return audit_mechanism(name, n_embd=n_embd, n_head=n_head, length=length)
    if name in preset_names():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return audit_module(LanguageModel(replace(resolve(name).model, zero_init=False)), length=length, name=name)
    if located(name).is_dir():
        model, _ = load_model(Run.open(name).model, trust_code=trust_code)
        return audit_module(model, length=length, name=name)
    raise ConfigError(unknown("mechanism, preset or run", name, [*registry.names("mechanism"), *preset_names()]))


def audit_mechanisms(*, n_embd: int = 32, n_head: int = 2, length: int = LONGEST) -> list[Report]:
    """Audit all mechanisms, one process per core at a time."""
    calls = [(name, n_embd, n_head, length) for name in registry.names("mechanism")]
    reports = {}
    for number, values, error in call_each(_audit_alone, calls, NO_LIMITS, cores(), [__name__]):
        if error is not None:
            raise error
        reports[number] = records.convert(Report, values[0])
    return [reports[number] for number in range(len(calls))]


def _audit_alone(name: str, n_embd: int, n_head: int, length: int) -> Iterator[Report]:
    torch.set_num_threads(1)
    yield audit_mechanism(name, n_embd=n_embd, n_head=n_head, length=length)


# The report


def document(reports: Sequence[Report]) -> Document:
    """Audits as a report: the table of results, and descriptions of the faults below it."""
    lead = [f"{report.name}: {_VERDICTS[report.verdict]}" for report in reports[:1] if len(reports) == 1]
    checks = _check_rows(reports[0]) if len(reports) == 1 else _subject_rows(reports)
    sections = [Section("Checks", checks)]
    explained = [facts for facts in map(_explanation, reports) if facts is not None]
    if explained:
        sections.append(Section("Findings", explained))
    return Document("audit", "Audit", lead, sections)


def _check_rows(report: Report) -> list[Block]:
    """One subject: a row per group of checks, with the result and when it fails."""
    rows = []
    for name, (_, fails) in _GROUPS.items():
        cell = _cell(report, name)
        words = f"fault of size {cell.text}" if cell.value is not None else {"-": _NOT_TESTED}.get(cell.text, cell.text)
        rows.append(Row(Cell(name), [replace(cell, text=words), Cell(fails)]))
    return [Table("Checks", "", [Column(title, number=False) for title in ("check", "result", "fails if")], rows)]


def _subject_rows(reports: Sequence[Report]) -> list[Block]:
    """Several subjects: a row for each, with the groups of checks whose results differ or show a fault as columns."""
    cells = {name: [_cell(report, name) for report in reports] for name in _GROUPS}
    passed, untested = (
        [name for name, column in cells.items() if all(cell.text == text for cell in column)] for text in ("ok", "-")
    )
    shown = [name for name in _GROUPS if name not in (*passed, *untested)]
    rows = []
    for place, report in enumerate(reports):
        tone: Literal["good", "warning", "bad"] = "bad" if report.verdict == "fail" else "warning"
        verdict = Cell(report.verdict, tone="good" if report.verdict == "pass" else tone)
        rows.append(Row(Cell(report.name), [*(cells[name][place] for name in shown), verdict]))
    table = Table("Checks", "", [Column(title, number=False) for title in ("name", *shown, "verdict")], rows)
    alike = (("All pass", passed), ("Not tested", untested))
    return [table, *(Text([f"{title}: {', '.join(names)}."]) for title, names in alike if names)]


def _cell(report: Report, group: str) -> Cell:
    """The result of a group of checks: ok, the size of the fault, error, or - if not tested."""
    checks = [check for check in report.checks if check.name in _GROUPS[group][0]]
    failing = [check for check in checks if check.passed is False]
    if failing:
        size = max((check.value for check in failing if check.value is not None), default=None)
        return Cell("error" if size is None else f"{size:.1g}", size, tone="bad")
    return Cell("ok", tone="good") if any(check.passed for check in checks) else Cell("-", tone="quiet")


def _explanation(report: Report) -> Facts | None:
    """Faults, checks that were not made, and notes; None if there is nothing to say."""
    untested: dict[str, list[str]] = {}
    for name, why in report.untested.items():
        untested.setdefault(why, []).append(name)
    pairs = [*report.faults.items()]
    pairs += [(_NOT_TESTED, f"{', '.join(names)}: {why}") for why, names in untested.items() if why not in _BY_DESIGN]
    pairs += [("note", note) for note in report.notes]
    declared = f", declared: {report.defect}" if report.verdict == "declared" else ""
    return Facts(f"{report.name}{declared}", pairs) if pairs else None
