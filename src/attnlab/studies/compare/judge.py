"""From finished runs to what may be said: figures with intervals, tests, verdicts. Plain numbers; trains and loads nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from attnlab import corpora, stages, stats
from attnlab.config import flatten
from attnlab.errors import UserError
from attnlab.machine import environment
from attnlab.runs import Run, lineage
from attnlab.stats.perplexity import exp_or_none
from attnlab.studies.compare import explain
from attnlab.studies.compare.figures import Figure, Kind, figures
from attnlab.studies.compare.plan import Plan, seen_before
from attnlab.studies.compare.records import Record, notes_on, read_records

AHEAD = 0.005  # relative change of perplexity, read whole and word by word, that rounding cannot make
CURVE = ("step", "tokens", "loss", "seconds")  # of every step
FUTURE = ("future", "gradient", "prefix", "padding")  # checks of an audit that find what must not be seen
RATIO = ("ratio", "ratio_low", "ratio_high", "p")


def judge(plan: Plan, folder: Path, audits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The result of a comparison, ready for JSON and for the report."""
    records = read_records(plan, folder)
    columns = [
        one for one in figures(plan.words) if all(one.key in r.values for rows in records.values() for r in rows)
    ]
    specimens = [
        describe(plan, folder, rows, columns, audits[name])
        | {"name": name, "reference": name == plan.specimens[0].name}
        for name, rows in records.items()
    ]
    leaking = {one["name"] for one in specimens if one["leaks"]}
    comparisons = compare_all(plan, records, columns[0], leaking)
    for one in specimens[1:]:
        if one["leaks"] and plan.words:
            one["gain"] = worth(records[one["name"]], records[plan.specimens[0].name])
    first = records[plan.specimens[0].name][0]
    everything = [one for rows in records.values() for one in rows]
    result: dict[str, Any] = {
        "kind": "comparison",
        "study": plan.study,
        "title": plan.title,
        "question": plan.question,
        "command": plan.command,
        "finished": date.today().isoformat(),
        "seconds": round(sum(one.values["seconds"] + one.measured["measuring"] for one in everything), 1),
        "quick": plan.quick,
        "task": stages.stored_config(first.run).task.name,
        "preset": stages.stored_config(first.run).preset,
        "varied": plan.varied,
        "seeds": list(plan.seeds),
        "jobs": plan.jobs,
        "order": [list(one) for one in plan.order()],
        "data": describe_data(plan),
        "figures": [one.to_dict() for one in columns],
        "specimens": specimens,
        "comparisons": comparisons,
        "paired": [
            pair(a, b, column, records) for a, b in plan.compared() for column in columns[1:] if column.kind != "count"
        ],
        "environment": environment(),
        "settings": {name: settings_of(rows[0].run) for name, rows in records.items()},
    }
    if plan.theirs:
        result["theirs"] = list(plan.theirs)
    if plan.words:
        result["text_quality"] = first.measured["text_quality"]
    said = explain.explained(result)
    if seen := result["data"]["seen_before"]:
        what = "sentences" if plan.words else "questions"
        said["verdict"].append(f"{seen:,} of the {what} measured on were learned from: read the figures with that.")
    return result | {**said, "verdict": [*said["verdict"], *notes_on(records)]}


def settings_of(run: Run) -> dict[str, Any]:
    """The settings of a run without its seed."""
    stored: dict[str, Any] = run.config["config"]
    return {key: value for key, value in stored.items() if key != "seed"}


def describe_data(plan: Plan) -> dict[str, Any]:
    """The data in numbers."""
    lines = corpora.load_corpus(plan.corpus).lines if plan.corpus else ()
    return {
        **{
            key: Path(name).name if (name := getattr(plan, key)) else None for key in ("corpus", "dev", "facts", "exam")
        },
        "sentences": len(lines),
        "dev_sentences": len(corpora.load_corpus(plan.dev).lines) if plan.dev else None,
        "questions": len(corpora.load_questions(plan.exam)) if plan.exam else None,
        "seen_before": seen_before(plan)[0],
    }


def describe(
    plan: Plan, folder: Path, rows: Sequence[Record], columns: Sequence[Figure], audit: Mapping[str, Any]
) -> dict[str, Any]:
    """One specimen with all its runs."""
    spread = {}
    for column in columns:
        each = [row.values[column.key] for row in rows]
        spread[column.key] = {**spread_of(each, column.kind), "each": each}
    found: dict[str, Any] = {
        "leaks": any(check in audit["faults"] for check in FUTURE),
        "audit": dict(audit),
        "settings": {plan.varied: dict(flatten(settings_of(lineage(rows[0].run)[-1]))).get(plan.varied)},
        "values": spread,
        "runs": [
            {
                "seed": row.seed,
                "folder": os.path.relpath(row.run.path, folder),
                "values": row.values,
                "metrics": [{key: step[key] for key in CURVE} for step in row.run.metrics()],
            }
            for row in rows
        ],
    }
    ahead = [abs(one["word_by_word"] / one["whole"] - 1) for one in (row.measured["word_by_word"] for row in rows)]
    found["leaks"] = found["leaks"] or max(ahead) > AHEAD
    found["word_by_word"] = {
        "sentences": rows[0].measured["word_by_word"]["sentences"],
        **{
            key: stats.geometric_mean([row.measured["word_by_word"][key] for row in rows])
            for key in ("whole", "word_by_word")
        },
    }
    return found | (of_text(rows) if plan.words else {})


def spread_of(each: Sequence[float], kind: Kind) -> dict[str, Any]:
    """The mean over seeds with its interval: of perplexities, which multiply, in logarithms; within what can be."""
    if kind == "perplexity":
        found = asdict(stats.mean_interval([math.log(value) for value in each]))
        sd = asdict(stats.mean_interval(each))["sd"]
        return found | {key: exp_or_none(found[key]) for key in ("mean", "low", "high")} | {"sd": sd}
    found = asdict(stats.mean_interval(each))
    if found["low"] is not None:
        found["low"] = max(0.0, found["low"])
        found["high"] = min(1.0, found["high"]) if kind == "share" else found["high"]
    return found


def worth(leaking: Sequence[Record], reference: Sequence[Record]) -> dict[str, Any]:
    """The perplexity of a leaking specimen over that of the reference: read whole, and word by word."""
    return {
        name: {key: value for key, value in compare_text(leaking, reference, f"{name}.csv").items() if key in RATIO}
        for name in ("whole", "word_by_word")
    }


def of_text(rows: Sequence[Record]) -> dict[str, Any]:
    """What a specimen makes of sentences: probes as means over seeds, samples of the first seed."""
    return {
        "probes": [
            explain.mean_probe([row.measured["probes"][at] for row in rows])
            for at in range(len(rows[0].measured["probes"]))
        ],
        "samples": rows[0].measured["samples"],
        "sample_quality": {
            key: sum(row.measured["sample_quality"][key] for row in rows) / len(rows)
            for key in rows[0].measured["sample_quality"]
        },
    }


def compare_all(
    plan: Plan, records: Mapping[str, Sequence[Record]], column: Figure, leaking: set[str]
) -> list[dict[str, Any]]:
    """Every pair that is tested, with Holm's correction where there are several."""
    pairs = plan.compared()
    test = compare_text if plan.words else compare_answers
    tested = [test(records[a], records[b]) for a, b in pairs]
    # Right answers are written word by word, where there is no future; perplexities of who sees it are not believed.
    believed = [column.kind == "share" or not set(pair) & leaking for pair in pairs]
    known = [at for at, one in enumerate(tested) if one["p"] is not None and believed[at]]
    adjusted: dict[int, float] = {}
    if len(known) > 1:
        adjusted = dict(zip(known, stats.holm([tested[at]["p"] for at in known]), strict=True))
    found = []
    for at, ((a, b), one) in enumerate(zip(pairs, tested, strict=True)):
        p = adjusted.get(at, one["p"])
        comparisons = len(known) if at in adjusted else 1
        words = stats.in_words(one.pop("record"), a, b, adjusted=adjusted.get(at), comparisons=comparisons)
        found.append(
            {
                "a": a,
                "b": b,
                "figure": column.key,
                "words": words,
                **one,
                "adjusted": adjusted.get(at),
                "shown": p is not None and p < explain.ALPHA,
                "believed": believed[at],
                "by_seed": by_seed(records[a], records[b], column),
            }
        )
    return found


def by_seed(a: Sequence[Record], b: Sequence[Record], column: Figure) -> list[dict[str, Any]]:
    """The figure of both, seed by seed; of answers with McNemar's test of each."""
    rows: list[dict[str, Any]] = []
    for one, other in zip(a, b, strict=True):
        values = one.values[column.key], other.values[column.key]
        row: dict[str, Any] = {"seed": one.seed, "a": values[0], "b": values[1], "difference": values[0] - values[1]}
        if column.kind == "share":
            row["mcnemar"] = asdict(stats.mcnemar(one.answers(), other.answers()))
        rows.append(row)
    return rows


def compare_text(a: Sequence[Record], b: Sequence[Record], name: str = "dev.csv") -> dict[str, Any]:
    """Token perplexities of the same sentences: for new seeds and new sentences, or with one seed for new sentences."""
    first, second = ([record.losses(name) for record in side] for side in (a, b))
    if len({(one.tokens, one.unknown) for one in (*first, *second)}) > 1:
        raise UserError("the runs were not measured on the same words: their perplexities cannot be compared")
    record = stats.paired_bootstrap(
        [one.losses for one in first], [one.losses for one in second], weights=first[0].tokens
    )
    both = record.both
    low, high, p = record.ratio_low, record.ratio_high, record.p
    if both is not None:
        low, high, p = exp_or_none(both.low), exp_or_none(both.high), both.p
    test = "for new seeds and new sentences" if both else "for new sentences, with this one seed"
    found = {"ratio": record.ratio, "ratio_low": low, "ratio_high": high, "p": p, "test": test}
    return {**found, "details": asdict(record), "record": record}


def compare_answers(a: Sequence[Record], b: Sequence[Record]) -> dict[str, Any]:
    """Right answers to the same questions: for new seeds and new questions, or McNemar's test of one seed."""
    first, second = ([record.answers() for record in side] for side in (a, b))
    record: stats.McNemar | stats.SeedsByQuestions
    bounds: stats.McNemar | stats.Crossed
    if len(a) == 1:
        record = bounds = stats.mcnemar(first[0], second[0])
        test = "for new questions, with this one seed"
    else:
        record = stats.seeds_by_questions(first, second)
        bounds, test = record.both, "for new seeds and new questions"
    found = {"difference": record.difference, "low": bounds.low, "high": bounds.high, "p": bounds.p, "test": test}
    return {**found, "details": asdict(record), "record": record}


def pair(a: str, b: str, column: Figure, records: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """The difference of a further figure, seed by seed, A minus B: described, not tested."""
    sides = [[row.values[column.key] for row in records[name]] for name in (a, b)]
    found = stats.paired(*sides)
    ratio = found.a / found.b if found.b else None
    return {
        "a": a,
        "b": b,
        "figure": column.key,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "ratio": ratio,
    }
