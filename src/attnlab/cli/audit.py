"""The verb that looks for what a mechanism should not do: audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from attnlab.cli.common import TrustCode, Whole, app, console, errors, show_json
from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.audit import Check, Report

# Columns of the table, short enough for 80 letters, and the checks behind each.
COLUMNS = {
    "leak": ("future", "gradient"),
    "cache": ("prefix", "cache"),
    "both": ("both_ways",),
    "pad": ("padding",),
    "batch": ("batch",),
    "modes": ("train_eval",),
    "again": ("repeat",),
    "sane": ("responds", "masked", "large"),
    "wires": ("wiring",),
}
STYLES = {"pass": "green", "declared": "yellow", "fail": "bold red"}


@app.command
def audit(
    *names: str,
    n_embd: Whole = 32,
    n_head: Whole = 2,
    length: Whole = 320,
    trust_code: TrustCode = False,
    json: bool = False,
) -> None:
    """Look for leaks and other faults: of mechanisms, of a class in a file, of a preset's model, of a run's model.

    A column says ok, the size of the fault, or - where nothing could be asked:
      leak   does the past see the future, by changed tokens or by gradients?
      cache  is a text the same piece by piece, and its beginning alone?
      both   does the bidirectional form see the future?
      pad    do hidden tokens move others?
      batch  do the texts of a batch meet?
      modes  do train() and eval() differ?
      again  do two calls, or one that is watched?
      sane   are all numbers finite, with all tokens hidden or large ones?
      wires  do layers share weights?
    Exit code 1 when a fault is found that is not a declared defect, or when
    nothing but specimens with declared defects were named.

    Parameters
    ----------
    names
        Mechanisms, path.py:Class, presets or run folders. Default: every mechanism. A class must be causal, unless it is
        registered with @mechanism("name", causal=False).
    n_embd
        Width of the mechanisms that are built.
    n_head
        Their heads.
    length
        Tokens of the longest text, and their block size.
    json
        Print for programs.
    """
    from attnlab import registry
    from attnlab.audit import audit_any, wrong

    if length < 2:
        raise UserError(f"--length must be at least 2, not {length}: a single token has no future to leak")
    asked = names or tuple(registry.names("mechanism"))
    reports = []
    for name in asked:
        with errors.status(f"auditing {name}"):
            reports.append(audit_any(name, n_embd=n_embd, n_head=n_head, length=length, trust_code=trust_code))
    if json:
        show_json([report.to_dict() for report in reports])
    else:
        show(reports)
    if wrong(reports, named=bool(names)):
        raise SystemExit(1)


def show(reports: list[Report]) -> None:
    """The table, and below it what is wrong in words."""
    table = Table("name", *COLUMNS, "verdict", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in table.columns:
        column.no_wrap = column.header != "name"
        column.min_width = 5
    table.columns[0].overflow, table.columns[0].max_width = "fold", 17
    for report in reports:
        by_name = {check.name: check for check in report.checks}
        cells = [cell([by_name[name] for name in names if name in by_name]) for names in COLUMNS.values()]
        table.add_row(report.name, *cells, Text(report.verdict, STYLES[report.verdict]))
    console.print(table)
    for report in reports:
        explain(report)


def explain(report: Report) -> None:
    """What is wrong with one, in words."""
    if not report.faults and not report.notes:
        return
    declared = f", declared: {report.defect}" if report.verdict == "declared" else ""
    console.print(Text.assemble("\n", (report.name, STYLES[report.verdict]), declared))
    lines = Table.grid("check", "says", padding=(0, 2, 0, 0))
    for name, says in [*report.faults.items(), *(("note", note) for note in report.notes)]:
        lines.add_row(f"  {name}", says)
    console.print(lines)


def cell(checks: list[Check]) -> Text:
    """What the checks of a column found, in a few letters."""
    failing = [check for check in checks if check.passed is False]
    if failing:
        sizes = [check.value for check in failing if check.value is not None]
        return Text(f"{max(sizes):.1g}" if sizes else "error", "red")
    return Text("ok", "green") if any(check.passed for check in checks) else Text("-", "dim")
