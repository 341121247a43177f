"""The verb that looks for what a mechanism should not do: audit."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from attnlab.cli.common import TrustCode, Whole, app, console, errors, show_json
from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.audit import Check, Report

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
STYLES = {"pass": "green", "declared": "yellow", "fail": "bold red", "not tested": "bold yellow"}

BY_DESIGN = ("has no bidirectional form", "may see the future")  # reasons that call for nothing


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what audited code prints, from Python or from C, to standard error: standard output is for the report."""
    flush_c = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush_c(None)
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        flush_c(None)
        os.dup2(kept, 1)
        os.close(kept)


@app.command
def audit(
    *names: str,
    n_embd: Whole = 32,
    n_head: Whole = 2,
    length: Whole = 513,
    trust_code: TrustCode = False,
    json: bool = False,
) -> None:
    """Look for leaks and other faults: of mechanisms, of a class in a file, of a preset's model, of a run's model.

    A column says ok, the size of the fault, or - where it was not tested:
      leak   does the past see the future, by changed tokens, by gradients, or
             by a text that goes on?
      cache  is a text the same piece by piece?
      both   does the bidirectional form see the future?
      pad    do hidden tokens (padding is True) move others?
      batch  do the texts of a batch meet?
      modes  do train() and eval() differ?
      again  do two calls, or one that is watched?
      sane   are all numbers finite, with all tokens hidden or large ones?
      wires  do layers share weights?
    Every cut between past and future is tested at lengths up to 150 and at the
    longest; other lengths, around powers of two, are held against the longest.
    No audit from outside finds a fault that shows only after thousands of
    calls, at lengths that were not tried, or for rare inputs.
    Exit code 1 when a fault is found that is not a declared defect, when leaks
    could not be tested (the verdict is "not tested"), or when nothing but
    specimens with declared defects were named.

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

    if length < 4:
        raise UserError(f"--length must be at least 4, not {length}: leaks are tested at several lengths")
    asked = names or tuple(registry.names("mechanism"))
    reports = []
    for name in asked:
        with errors.status(f"auditing {name}"), stdout_to_stderr():
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
    untested: dict[str, list[str]] = {}
    for name, why in report.untested.items():
        untested.setdefault(why, []).append(name)
    lines = [*report.faults.items()]
    lines += [("not tested", f"{', '.join(names)}: {why}") for why, names in untested.items() if why not in BY_DESIGN]
    lines += [("note", note) for note in report.notes]
    if not lines:
        return
    declared = f", declared: {report.defect}" if report.verdict == "declared" else ""
    console.print(Text.assemble("\n", (report.name, STYLES[report.verdict]), declared))
    grid = Table.grid("check", "says", padding=(0, 2, 0, 0))
    for name, says in lines:
        grid.add_row(f"  {name}", says)
    console.print(grid)


def cell(checks: list[Check]) -> Text:
    """What the checks of a column found, in a few letters."""
    failing = [check for check in checks if check.passed is False]
    if failing:
        sizes = [check.value for check in failing if check.value is not None]
        return Text(f"{max(sizes):.1g}" if sizes else "error", "red")
    return Text("ok", "green") if any(check.passed for check in checks) else Text("-", "dim")
