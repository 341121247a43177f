"""Commands that measure mechanisms and models: audit, bench, params, mechanisms."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.table import Column, Table

from attnlab import registry
from attnlab.cli.common import DESIGN, MEASURE, app, console, errors, say, show_json
from attnlab.config import resolve
from attnlab.errors import UserError
from attnlab.machine import require_single_process
from attnlab.store.folders import refuse_existing, write_folder
from attnlab.store.records import encode
from attnlab.studies import options as opt
from attnlab.studies.options import NONE, SETTINGS_HINT, about, at_least_one, collect, default
from attnlab.terminal import printable

if TYPE_CHECKING:
    from attnlab.report.document import Document

_LARGE = 2**28  # parameters; FLOPs of a larger model are counted only if a length is given
_DECLARED = ("name", "card", "paper", "cost", "causal", "defect", "weights", "knobs")  # of a mechanism, as JSON


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send the output of audited code, from Python or from C, to standard error: standard output is for the report."""
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


@app.command(group=MEASURE)
def audit(
    *names: Annotated[
        str, about("Mechanisms, path.py:Class, transformers:Class, presets, runs."), default("all mechanisms")
    ],
    n_embd: Annotated[opt.Whole, about("Width of the mechanisms that are built.")] = 32,
    n_head: Annotated[opt.Whole, about("Number of their heads.")] = 2,
    length: Annotated[opt.Whole, about("Longest text in tokens, and their block size.")] = 513,
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Test mechanisms, classes in files, presets and runs for leaks and other faults.

    A result is ok, the size of the fault, or - where it was not tested:
      future         does the past see the future, by changed tokens, gradients or a longer text?
      cache          does reading piece by piece, with a cache, give the same outputs?
      bidirectional  does the bidirectional form see the future?
      padding        do hidden tokens (padding is True) change others?
      batch          do the texts of a batch influence each other?
      packing        do documents packed into one row influence each other?
      modes          do train() and eval() differ?
      repeat         do two calls differ, or one whose pattern is captured?
      finite         are all numbers finite, with all tokens hidden or with large inputs?
      tied           do layers share weights?
    A class must be causal, unless it is registered with @mechanism("name", causal=False).
    Every cut between past and future is tested at lengths up to 65 and at the longest; other lengths,
    around powers of two, are compared with the longest. No audit from outside finds a fault
    that shows only after thousands of calls, at lengths that were not tried, or for rare inputs.
    Exit code 1 if a fault is found that is not a declared defect, if leaks could not be tested (the
    verdict is "not tested"), or if only variants with declared defects were named.
    """
    from attnlab.measure.audit import audit_any, audit_mechanisms, document, is_failure

    if length < 4:
        raise UserError(f"--length must be at least 4, not {length}: leaks are tested at several lengths")
    sizes = {"n_embd": n_embd, "n_head": n_head, "length": length}
    if names:
        reports = []
        for name in names:
            with errors.status(f"auditing {name}"), _stdout_to_stderr():
                if name.startswith("transformers:"):  # takes seconds to import
                    from attnlab.hf.audited import audit_transformers

                    reports.append(audit_transformers(name, **sizes))
                else:
                    reports.append(audit_any(name, **sizes, trust_code=trust_code))
    else:
        with errors.status("auditing all mechanisms"):
            reports = audit_mechanisms(**sizes)
    _deliver(document(reports), reports, None, json)
    if is_failure(reports, named=bool(names)):
        raise SystemExit(1)


@app.command(group=MEASURE)
def bench(
    *names: Annotated[str, about("Mechanisms, sliding:window=128, or path.py:Class."), default("all")],
    lengths: Annotated[str, about("Text lengths in tokens.")] = "512,1024,2048,4096,8192,16384",
    batch: Annotated[opt.Whole, about("Texts per batch.")] = 1,
    n_head: Annotated[opt.Whole, about("Number of heads.")] = 8,
    n_embd: Annotated[opt.Whole, about("Width of all heads together.")] = 256,
    causal: Annotated[bool, about("Causal or bidirectional."), Parameter(negative="--bidirectional")] = True,
    whole: Annotated[bool, about("Time whole modules, with their projections.")] = False,
    references: Annotated[bool, about("Also time the references."), Parameter(negative="--no-references")] = True,
    threads: Annotated[opt.Whole, about("Processor threads.")] = 1,
    rounds: Annotated[opt.Whole, about("Maximum runs of each; the shortest time counts.")] = 7,
    seconds: Annotated[float, about("Skip lengths that take longer, in seconds per run.")] = 15.0,
    memory_limit: Annotated[
        float | None, about("Skip lengths that need more GB."), default("half the free memory")
    ] = None,
    reach: Annotated[str | None, about("Find the longest text in this memory instead: 1GB, 500MB.")] = None,
    out: opt.Out | None = None,
    json: opt.Json = False,
) -> None:
    """Measure time and peak memory of mechanisms beside torch's fused attention.

    Times are of forward and backward, as multiples of SDPA's; all mechanisms run in turns in one
    process. Memory is measured in child processes (Linux).
    """
    from attnlab.measure.bench import BenchResult, ReachResult, timing
    from attnlab.measure.bench.cases import Case, choose_cases
    from attnlab.report.html import as_html
    from attnlab.report.text import as_markdown

    require_single_process("a benchmark")
    if out is not None:
        refuse_existing(out)
    memory = timing.spare_memory() if memory_limit is None else 1e9 * memory_limit
    limits = timing.Limits(seconds, memory, rounds, threads).checked()
    like = Case("", whole=whole, batch=batch, n_head=n_head, n_embd=n_embd, causal=causal).checked()
    result: BenchResult | ReachResult
    if reach is None:
        tokens = timing.read_lengths(lengths)
        cases, refused = choose_cases(names, like, references)
        result = timing.measure(cases, tokens, limits, refused, _show_progress)
    else:
        amount = timing.read_memory(reach)
        cases, _ = choose_cases(names, like, references=False)
        result = timing.reach(cases, amount, limits, _show_progress)
    _show_progress("")
    report = result.document()
    if out is not None:
        files = {"json": encode(result), "md": as_markdown(report).encode(), "html": as_html(report).encode()}
        named = {f"{report.kind}.{ending}": content for ending, content in files.items()}
        write_folder(out, "bench", named, about="a benchmark")
    _deliver(report, result, out, json)


def _show_progress(what: str) -> None:
    """Print the current step on standard error; on a terminal it replaces the one before."""
    line = printable(what)
    sys.stderr.write(f"\r\x1b[K{line}" if sys.stderr.isatty() else f"{line}\n")
    sys.stderr.flush()


def _deliver(report: Document, record: object, out: Path | None, json: bool) -> None:
    """Print a report and the folder that was written, or its record as JSON."""
    from attnlab.report.screen import show_all

    if json:
        show_json(record)
        return
    show_all(report, console)
    if out is not None:
        say(f"written: {out}")


@app.command(group=MEASURE, help_epilogue=SETTINGS_HINT)
def params(
    preset: opt.Preset = "small",
    /,
    *,
    length: Annotated[opt.Whole | None, about("Length of the text in tokens."), default("the block size")] = None,
    config: opt.Config | None = None,
    json: opt.Json = False,
    given: opt.Settings = NONE,
) -> None:
    """Count the parameters of a preset by part, and its FLOPs per token.

    FLOPs are counted by running the model once: two per computed multiply-add, masked or not.
    Training counts forward and backward, without the optimizer.
    """
    from attnlab.lm.flops import Flops, flops_per_token
    from attnlab.lm.model import LanguageModel, count_parameters, meta_model

    model = resolve(preset, "pretrain", config, collect(given)).model
    parts = count_parameters(meta_model(model))
    tokens, flops = model.block_size if length is None else length, dict[str, Flops]()
    if length is not None or sum(parts.values()) <= _LARGE:
        real = LanguageModel(model)
        flops = {way: flops_per_token(real, tokens, training=way == "training") for way in ("forward", "training")}
    if json:
        counted = {"length": tokens, **{way: counts.to_dict() for way, counts in flops.items()}} if flops else None
        show_json({"preset": preset, "parts": parts, "total": sum(parts.values()), "flops_per_token": counted})
        return
    rows = {part: (count, *(getattr(of, part.lower(), 0) for of in flops.values())) for part, count in parts.items()}
    rows["other"] = (0, *(of.other for of in flops.values()))
    titles = ("parameters", *(f"FLOPs per token, {way}" for way in flops))
    table = Table("part", *(Column(title, justify="right") for title in titles), title=preset)
    for part, numbers in rows.items():
        if any(numbers):
            table.add_row(part, *(f"{number:,.0f}" if number else "" for number in numbers))
    table.add_section()
    totals = (sum(parts.values()), *(of.total for of in flops.values()))
    table.add_row("total", *(f"{number:,.0f}" for number in totals), style="bold")
    console.print(table)
    if flops:
        say(f"FLOPs per token in a text of {tokens:,} tokens")
    else:
        say("too large to build by default: --length N counts its FLOPs, in a text of N tokens")


_mechanisms_app = App(name="mechanisms", help="List the attention mechanisms, or show one of them.", group=DESIGN)
app.command(_mechanisms_app)


@_mechanisms_app.default
def mechanisms(*, json: opt.Json = False) -> None:
    """List the attention mechanisms."""
    from attnlab.measure import cards

    entries = cards.entries()
    listed = [{key: getattr(entry, key) for key in _DECLARED} for entry in entries]
    _deliver(cards.list_document(entries), listed, None, json)


@_mechanisms_app.command(name="show")
def mechanisms_show(
    name: Annotated[str, about("Mechanism, or path.py:Class.")],
    /,
    *,
    error: Annotated[bool, about("Measure the distance from exact attention.")] = False,
    run: Annotated[opt.Folder | None, about("Take queries, keys and values from this run.")] = None,
    std: Annotated[tuple[float, ...], about("Standard deviations of random queries and keys.")] = (0.5, 1.0, 2.0),
    causal: Annotated[bool, about("Measure the causal form, as always with --run.")] = False,
    draws: Annotated[opt.Whole, about("Number of random draws.")] = 32,
    seed: opt.Seed = 0,
    out: opt.Out | None = None,
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Show the card of a mechanism; with --error, measure how far it is from exact attention.

    The error compares the same queries, keys and values, for the options that trade cost for accuracy,
    and always beside the trivial answer, the mean of the values. OUT/mechanism.html has patterns and
    curves.
    """
    from attnlab.measure import approximation, cards
    from attnlab.report.html import as_html

    entry = registry.find("mechanism", name)
    at_least_one("draws", draws)
    if run and not error:
        raise UserError("--run chooses the queries and keys of --error: add --error")
    if out:
        refuse_existing(out)
    measured, report = None, cards.document(entry)
    if error:
        source = (
            approximation.run_source(run, seed, trust_code=trust_code)
            if run
            else approximation.random_source(std, causal=causal, seed=seed)
        )
        measured = approximation.examine(entry, source, draws, seed)
        report = approximation.document(measured)
    if out:
        page, files = cards.illustrated(entry), dict[str, bytes]()
        if measured:
            page = replace(page, sections=[*page.sections, *report.sections])
            files["error.json"] = encode(measured)
        files["mechanism.html"] = as_html(page).encode()
        write_folder(out, "approximation", files, about="patterns and errors of a mechanism")
    declared = {key: getattr(entry, key) for key in _DECLARED}
    shown = {**declared, "options": entry.described(), "usage": cards.usage(entry), **vars(cards.figures(entry))}
    _deliver(report, {**shown, "error": measured}, out, json)
