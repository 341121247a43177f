"""The verb that measures speed and memory: bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from attnlab.cli.common import Whole, app, console, show_json
from attnlab.terminal import printable


@app.command
def bench(
    *names: str,
    lengths: str = "512,1024,2048,4096,8192,16384",
    batch: Whole = 1,
    n_head: Whole = 8,
    n_embd: Whole = 256,
    causal: Annotated[bool, Parameter(negative="--bidirectional")] = True,
    whole: Annotated[bool, Parameter(negative=())] = False,
    references: bool = True,
    threads: Whole = 1,
    rounds: Whole = 7,
    seconds: float = 15.0,
    memory_limit: float | None = None,
    reach: str | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Measure time and peak memory of mechanisms, forward + backward, beside torch's fused attention.

    All contestants of a length run in turns in one process, and times are given as multiples of SDPA's. Memory is
    measured in child processes (Linux).

    Parameters
    ----------
    names
        Mechanisms, with options if you like: sliding:window=128; or classes in files: my_file.py:MyAttention. Default: all.
    lengths
        Tokens of a text, several with commas between.
    batch
        Texts at once.
    n_head
        Heads.
    n_embd
        Width of all heads together.
    causal
        Look back only, or both ways.
    whole
        Time whole modules with their projections, not the attention itself.
    references
        Time the readable references too.
    threads
        Processor threads.
    rounds
        How many runs at most; the least time counts.
    seconds
        Skip a length at which a single run would take longer.
    memory_limit
        Skip a length at which a run would need more, in GB. Default: half of what is free.
    reach
        Find the longest text within a budget of memory, of time, or each of both, instead: 1GB, 10s or 1GB,10s.
    out
        Folder for the tables and pictures; must not exist.
    json
        Print for programs.
    """
    from attnlab.bench import measure
    from attnlab.bench import reach as find
    from attnlab.bench.contestants import Case, contestants
    from attnlab.runs import refuse_existing, refuse_several

    refuse_several("a benchmark")
    if out is not None:
        refuse_existing(out)
    memory = measure.spare_memory() if memory_limit is None else 1e9 * memory_limit
    limits = measure.Limits(seconds, memory, rounds, threads).checked()
    like = Case("", whole=whole, batch=batch, n_head=n_head, n_embd=n_embd, causal=causal).checked()
    if reach is None:
        tokens = measure.read_lengths(lengths)
        cases, refused = contestants(names, like, references)
        show_bench(measure.measure(cases, tokens, limits, refused, tell), out, json)
    else:
        budgets = find.read_budgets(reach)
        cases, _ = contestants(names, like, references=False)
        show_reach(find.reach(cases, budgets, limits, tell), out, json)


def tell(what: str) -> None:
    """Say on standard error what is going on; on a terminal the next word takes its place."""
    said = printable(what)
    sys.stderr.write(f"\r\x1b[K{said}" if sys.stderr.isatty() else f"{said}\n")
    sys.stderr.flush()


def show_bench(result: Any, out: Path | None, json: bool) -> None:
    """Print a benchmark, and write it down if asked."""
    from attnlab.bench import results
    from attnlab.bench.pictures import bench_picture

    tell("")
    if out is not None:
        write(out, "bench", results.to_dict(result), results.to_markdown(result), bench_picture(result))
    if json:
        show_json({**results.to_dict(result), "out": None if out is None else str(out)})
        return
    console.print(results.headline(result))
    show_table(results.time_table(result))
    if result.setting["memory_measured"]:
        show_table(results.memory_table(result))
    else:
        console.print("Peak memory is not measured on this system (Linux can).")
    for line in results.notes(result):
        console.print(line)
    if out is not None:
        console.print(f"written: {out}", soft_wrap=True)


def show_reach(found: Any, out: Path | None, json: bool) -> None:
    """Print how far budgets go, and write it down if asked."""
    from attnlab.bench import reach
    from attnlab.bench.pictures import reach_picture

    tell("")
    if out is not None:
        write(out, "reach", reach.to_dict(found), reach.to_markdown(found), reach_picture(found))
    if json:
        show_json({**reach.to_dict(found), "out": None if out is None else str(out)})
        return
    console.print(reach.headline(found))
    for one in found.reaches:
        show_table(reach.table(one))
    if out is not None:
        console.print(f"written: {out}", soft_wrap=True)


def show_table(rows: list[list[str]]) -> None:
    """A table with its numbers to the right."""
    head, *body = rows
    table = Table(*head)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in body:
        table.add_row(*row)
    console.print(table)


def write(out: Path, stem: str, data: dict[str, Any], text: str, figure: Any) -> None:
    """The folder of a measurement."""
    from attnlab.bench.pictures import files
    from attnlab.runs import to_json, write_folder

    write_folder(out, "bench", {f"{stem}.json": to_json(data), f"{stem}.md": text.encode(), **files(figure, stem)})
