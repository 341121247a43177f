"""What an audit says: one Check per question, one Report per subject, the verdict, and a Document of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from attnlab.measure.audit.leaks import Finding, worst
from attnlab.measure.audit.subject import NotTested
from attnlab.report.document import Cell, Column, Document, Facts, Row, Section, Table

# What a declared defect may account for: seeing what is hidden, in all its forms. NaN or shared layers are never meant.
EXCUSED = frozenset({"future", "gradient", "prefix", "cache", "padding"})

NOT_TESTED = "not tested"

# Columns of the table, short enough for 80 letters, and the checks behind each.
COLUMNS = {
    "leak": ("future", "gradient", "prefix"),
    "cache": ("cache",),
    "both": ("both_ways",),
    "pad": ("padding",),
    "batch": ("batch",),
    "modes": ("train_eval",),
    "again": ("repeat",),
    "sane": ("responds", "masked", "large"),
    "wires": ("wiring",),
}
BY_DESIGN = ("has no bidirectional form", "may see the future")  # reasons that need no mention


@dataclass(frozen=True)
class Check:
    """One question and its answer; without value it was not asked, or could not be answered (`says` why)."""

    name: str
    value: float | None
    limit: float
    passed: bool | None
    says: str
    by_position: tuple[float, ...] = ()

    def withdrawn(self, why: str) -> Check:
        """The same question without its answer."""
        return replace(self, value=None, passed=None, says=f"{NOT_TESTED}: {why}", by_position=())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "by_position"}


@dataclass(frozen=True)
class Report:
    """The audit of one subject. `causal_leak` is None where the future may be seen."""

    name: str
    checks: tuple[Check, ...]
    defect: str = ""
    lengths: tuple[int, ...] = ()
    forms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def failing(self) -> list[Check]:
        """The checks that are not passed."""
        return [check for check in self.checks if check.passed is False]

    @property
    def verdict(self) -> str:
        """pass, fail, declared (a specimen that is wrong as it says it is), or not tested: who sees the future is unknown."""
        if self.defect:
            return "declared" if self.failing and all(check.name in EXCUSED for check in self.failing) else "fail"
        if self.failing:
            return "fail"
        # A causal subject is asked for leaks, a bidirectional one whether it sees both ways.
        return NOT_TESTED if {"future", "both_ways"} <= self.untested.keys() else "pass"

    @property
    def untested(self) -> dict[str, str]:
        """The checks that could not be made, and why."""
        return {check.name: check.says.removeprefix(f"{NOT_TESTED}: ") for check in self.checks if check.passed is None}

    @property
    def causal_leak(self) -> float | None:
        """The largest share of an output that later tokens move or make, by change or by gradient."""
        sizes = [check.value for check in self.of_time if check.value is not None]
        return max(sizes, default=None)

    @property
    def leak_by_position(self) -> list[float]:
        """The same for every position of a text of up to 64 tokens."""
        rows = [check.by_position for check in self.of_time if check.by_position]
        return [max(column) for column in zip(*rows, strict=True)]

    @property
    def of_time(self) -> list[Check]:
        """The checks that look for the future."""
        return [check for check in self.checks if check.name in ("future", "gradient")]

    @property
    def faults(self) -> dict[str, str]:
        """What is wrong, in words, by check."""
        found = {check.name: check.says for check in self.failing}
        if self.defect and not self.failing:
            found["declared"] = f"declares a defect that it does not have: {self.defect}"
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "name": self.name,
            "causal_leak": self.causal_leak,
            "verdict": self.verdict,
            "defect": self.defect,
            "faults": self.faults,
            "untested": self.untested,
            "checks": [check.to_dict() for check in self.checks],
            "leak_by_position": self.leak_by_position,
            "lengths": list(self.lengths),
            "forms": list(self.forms),
            "notes": list(self.notes),
        }


def answer(name: str, limit: float, questions: Iterable[Callable[[], Finding]]) -> Check:
    """The worst answer to a question asked several times; one that raises is not passed."""
    found, reasons = [], []
    for question in questions:
        try:
            found.append(question())
        except NotTested as reason:
            reasons.append(str(reason))
        except Exception as error:  # whatever a user's module may raise
            return Check(name, None, limit, False, f"raises {one_line(error)}")
    if not found:
        return Check(name, None, limit, None, f"{NOT_TESTED}: {reasons[0]}")
    first = worst(found)
    passed = first.value <= limit
    return Check(name, first.value, limit, passed, "" if passed else first.says, first.by_position)


def one_line(error: Exception) -> str:
    """An error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def wrong(reports: Sequence[Report], named: bool) -> bool:
    """Whether an audit must end in an error: an undeclared fault, no test for leaks, or only specimens asked for by name."""
    verdicts = {report.verdict for report in reports}
    return not verdicts.isdisjoint(("fail", NOT_TESTED)) or (named and verdicts == {"declared"})


# In words


def _cell(checks: Sequence[Check]) -> Cell:
    """What the checks of a column found, in a few letters."""
    failing = [check for check in checks if check.passed is False]
    if failing:
        size = max((check.value for check in failing if check.value is not None), default=None)
        return Cell("error" if size is None else f"{size:.1g}", size, tone="bad")
    return Cell("ok", tone="good") if any(check.passed for check in checks) else Cell("-", tone="quiet")


def _row(report: Report) -> Row:
    by_name = {check.name: check for check in report.checks}
    cells = [_cell([by_name[name] for name in names if name in by_name]) for names in COLUMNS.values()]
    tone: Literal["good", "warning", "bad"] = "bad" if report.verdict == "fail" else "warning"
    verdict = Cell(report.verdict, tone="good" if report.verdict == "pass" else tone)
    return Row(Cell(report.name), [*cells, verdict])


def _explanation(report: Report) -> Facts | None:
    """What is wrong with one, what was not tested, and notes; nothing where there is nothing to say."""
    untested: dict[str, list[str]] = {}
    for name, why in report.untested.items():
        untested.setdefault(why, []).append(name)
    pairs = [*report.faults.items()]
    pairs += [(NOT_TESTED, f"{', '.join(names)}: {why}") for why, names in untested.items() if why not in BY_DESIGN]
    pairs += [("note", note) for note in report.notes]
    declared = f", declared: {report.defect}" if report.verdict == "declared" else ""
    return Facts(f"{report.name}{declared}", pairs) if pairs else None


def document(reports: Sequence[Report]) -> Document:
    """Several audits as a report: the table, and below it what is wrong in words."""
    columns = [Column(title, number=False) for title in ("name", *COLUMNS, "verdict")]
    sections = [Section("Checks", [Table("Checks", "", columns, [_row(report) for report in reports])])]
    explained = [facts for facts in map(_explanation, reports) if facts is not None]
    if explained:
        sections.append(Section("Findings", explained))
    return Document("audit", "Audit", [], sections)
