"""From finished runs to what may be said: figures with intervals, tests, verdicts. Reads results; trains and loads nothing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from attnlab import corpora, stages, stats
from attnlab.comparing import explain
from attnlab.comparing.checks import seen_before
from attnlab.comparing.figures import Figure, Kind, figures
from attnlab.comparing.plan import Plan
from attnlab.comparing.specimens import different
from attnlab.config import walk
from attnlab.errors import UserError
from attnlab.perplexity import SentenceLosses
from attnlab.runs import Run, environment, read_json
from attnlab.stats.perplexity import exp_or_none

AHEAD = 0.005  # relative change of perplexity, read whole and word by word, that rounding cannot make
CURVE = ("step", "tokens", "loss", "seconds")  # of every step
FUTURE = ("future", "gradient", "prefix", "padding")  # checks of an audit that find what must not be seen
RATIO = ("ratio", "ratio_low", "ratio_high", "p")


@dataclass(frozen=True)
class Record:
    """One run with what came out of it."""

    seed: int
    run: Run
    folder: Path  # what was measured
    values: dict[str, float]
    measured: dict[str, Any]

    def table(self, name: str) -> list[str]:
        """The lines of one of its files, without the heading."""
        return (self.folder / name).read_text(encoding="utf-8").splitlines()[1:]


def read_records(plan: Plan, folder: Path) -> dict[str, list[Record]]:
    """All runs of a comparison by specimen, in the order of the seeds; those that do not belong together are refused."""
    found: dict[str, list[Record]] = {}
    for specimen in plan.specimens:
        for seed in plan.seeds:
            run, place = Run.open(plan.path(folder, specimen.name, seed)), plan.measured(folder, specimen.name, seed)
            record = {"measured": read_json(place / "measured.json"), "result": whole_result(run)}
            values = {one.key: one.of(record) for one in figures(plan.words)}
            there = {key: float(value) for key, value in values.items() if value is not None}
            found.setdefault(specimen.name, []).append(Record(seed, run, place, there, record["measured"]))
    refuse_differences(plan, found)
    return found


def whole_result(run: Run) -> dict[str, Any]:
    """What came out of a run, with the time and tokens of the runs that it started from."""
    result, base = run.result, run.config["base"]
    if base:
        before = whole_result(Run.open(run.path / base))
        seconds, tokens = (result[key] + before[key] for key in ("seconds", "tokens"))
        result |= {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}
        result["peak_memory"] = max(result.get("peak_memory") or 0, before.get("peak_memory") or 0) or None
    return result


def lineage(run: Run) -> list[Run]:
    """A run, and those that it started from."""
    base = run.config["base"]
    return [run, *(lineage(Run.open(run.path / base)) if base else ())]


def refuse_differences(plan: Plan, records: Mapping[str, Sequence[Record]]) -> None:
    """Refuse runs that differ in more than the specimen and the seed; those of one specimen, in more than the seed."""
    first = lineage(records[plan.specimens[0].name][0].run)
    for name, rows in records.items():
        for record in rows:
            own = lineage(record.run)
            found = (
                apart(first, own) - {plan.varied}
                | apart(lineage(rows[0].run), own)
                | misplaced(plan, name, record, own)
            )
            if found:
                raise UserError(
                    f"{first[0].path} and {record.run.path} differ in {', '.join(sorted(found))} beside {plan.varied}:"
                    " what came out could not be told apart; remove the run that is wrong and resume, or start anew"
                )


def apart(one: Sequence[Run], other: Sequence[Run]) -> set[str]:
    """In what two runs differ, with all that they started from: settings, stages, data."""
    if [run.config["stage"] for run in one] != [run.config["stage"] for run in other]:
        return {"stage"}
    found: set[str] = set()
    for left, right in zip(one, other, strict=True):
        found |= different(stages.stored_config(left), stages.stored_config(right))
        found |= {"data"} if sums(left) != sums(right) else set()
    return found


def misplaced(plan: Plan, name: str, record: Record, own: Sequence[Run]) -> set[str]:
    """What shows that a run lies in a folder that is not its own: another seed, or another specimen."""
    configs = [stages.stored_config(run) for run in own]
    found = {"seed"} if any(config.seed != record.seed for config in configs) else set()
    if not plan.runs and plan.find(name).value(plan.varied) != dict(walk(configs[-1].to_dict())).get(plan.varied):
        found.add("specimen")
    return found


def sums(run: Run) -> list[str | None]:
    """The checksums of the data a run was trained on."""
    return [entry["sha256"] if entry else None for entry in run.config["data"].values()]


def notes_on(records: Mapping[str, Sequence[Record]]) -> list[str]:
    """What a reader must know of the runs as a whole."""
    every = [record.run for rows in records.values() for record in rows]
    places = {json.dumps(read_json(run.path / "env.json"), sort_keys=True) for run in every}
    ways = {(run.result.get("processes"), run.result.get("threads")) for run in every}
    seeds = len(next(iter(records.values())))
    found = []
    if len(places) > 1 or len(ways) > 1:
        found.append(
            "Not all runs were made on the same machine with the same versions and threads: do not compare their times."
        )
    if seeds == 2:
        found.append(
            "With two seeds, equals are found to differ in about 8 % of comparisons, not in 5 %: train three or more."
        )
    return found


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
    result = {
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
    seen, asked = seen_before(plan)
    if seen:
        what = "sentences" if plan.words else "questions"
        said["verdict"].append(
            f"{seen:,} of the {asked:,} {what} measured on were learned from: read the figures with that."
        )
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
        "settings": {plan.varied: dict(walk(settings_of(lineage(rows[0].run)[-1]))).get(plan.varied)},
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
            row["mcnemar"] = asdict(stats.mcnemar(answers_of(one), answers_of(other)))
        rows.append(row)
    return rows


def answers_of(record: Record) -> list[bool]:
    """Right and wrong, question by question."""
    return [line == "1" for line in record.table("right.csv")]


def losses_of(record: Record, name: str) -> SentenceLosses:
    """The losses of the sentences in one of its files."""
    return SentenceLosses.from_csv((record.folder / name).read_text(encoding="utf-8"))


def compare_text(a: Sequence[Record], b: Sequence[Record], name: str = "dev.csv") -> dict[str, Any]:
    """Token perplexities of the same sentences: for new seeds and new sentences, or with one seed for new sentences."""
    first, second = ([losses_of(record, name) for record in side] for side in (a, b))
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
    first, second = ([answers_of(record) for record in side] for side in (a, b))
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
