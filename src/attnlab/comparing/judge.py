"""From finished runs to what may be said: figures with intervals, tests, verdicts. Reads results; trains and loads nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from attnlab import corpora, stages, stats
from attnlab.comparing import explain
from attnlab.comparing.figures import Figure, figures
from attnlab.comparing.plan import Plan
from attnlab.comparing.specimens import different
from attnlab.config import diff, walk
from attnlab.errors import UserError
from attnlab.perplexity import SentenceLosses
from attnlab.runs import Run, environment, read_json

ALPHA = 0.05
AHEAD = 0.005  # relative change of perplexity, read whole and word by word, that rounding cannot make
CURVE = ("step", "tokens", "loss", "seconds")  # of every step
FUTURE = ("future", "gradient")  # checks of an audit that find a leak


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


def refuse_differences(plan: Plan, records: Mapping[str, Sequence[Record]]) -> None:
    """Refuse runs that differ in more than the specimen and the seed; those of one specimen, in more than the seed."""
    first = records[plan.specimens[0].name][0].run
    for rows in records.values():
        for record in rows:
            for other, allowed in ((first, {plan.varied}), (rows[0].run, set())):
                found = different(diff(*map(stages.stored_config, (other, record.run))).keys()) - allowed
                found |= {"data"} if sums(other) != sums(record.run) else set()
                if found:
                    raise UserError(
                        f"{other.path} and {record.run.path} differ in {', '.join(sorted(found))} beside {plan.varied}:"
                        " what came out could not be told apart; remove the run that is wrong and resume, or start anew"
                    )


def sums(run: Run) -> list[str | None]:
    """The checksums of the data a run was trained on."""
    return [entry["sha256"] if entry else None for entry in run.config["data"].values()]


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
    return result | explain.explained(result)


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
    }


def describe(
    plan: Plan, folder: Path, rows: Sequence[Record], columns: Sequence[Figure], audit: Mapping[str, Any]
) -> dict[str, Any]:
    """One specimen with all its runs."""
    spread = {}
    for column in columns:
        each = [row.values[column.key] for row in rows]
        spread[column.key] = {**asdict(stats.mean_interval(each)), "each": each}
    found: dict[str, Any] = {
        "leaks": any(check in audit["faults"] for check in FUTURE),
        "audit": dict(audit),
        "settings": {plan.varied: dict(walk(settings_of(rows[0].run))).get(plan.varied)},
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
    if plan.words:
        found |= of_text(rows)
        ahead = [abs(one["word_by_word"] / one["whole"] - 1) for one in (row.measured["word_by_word"] for row in rows)]
        found["leaks"] = found["leaks"] or max(ahead) > AHEAD
    return found


def of_text(rows: Sequence[Record]) -> dict[str, Any]:
    """What a specimen makes of sentences: probes and both readings as means over seeds, samples of the first seed."""
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
        "word_by_word": {
            "sentences": rows[0].measured["word_by_word"]["sentences"],
            **{
                key: explain.geometric_mean([row.measured["word_by_word"][key] for row in rows])
                for key in ("whole", "word_by_word")
            },
        },
    }


def compare_all(
    plan: Plan, records: Mapping[str, Sequence[Record]], column: Figure, leaking: set[str]
) -> list[dict[str, Any]]:
    """Every pair that is tested, with Holm's correction where there are several."""
    pairs = plan.compared()
    test = compare_text if plan.words else compare_answers
    tested = [test(records[a], records[b]) for a, b in pairs]
    known = [at for at, one in enumerate(tested) if one["p"] is not None]
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
                "shown": p is not None and p < ALPHA,
                "believed": not {a, b} & leaking,
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


def losses_of(record: Record) -> SentenceLosses:
    """The losses of the dev sentences."""
    return SentenceLosses.from_csv((record.folder / "dev.csv").read_text(encoding="utf-8"))


def compare_text(a: Sequence[Record], b: Sequence[Record]) -> dict[str, Any]:
    """Token perplexities of the same sentences: for new seeds and new sentences, or with one seed for new sentences."""
    first, second = ([losses_of(record) for record in side] for side in (a, b))
    record = stats.paired_bootstrap(
        [one.losses for one in first], [one.losses for one in second], weights=first[0].tokens
    )
    both = record.both
    low, high, p = record.ratio_low, record.ratio_high, record.p
    if both is not None:
        low, high, p = explain.exp_or_none(both.low), explain.exp_or_none(both.high), both.p
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
        test = "McNemar, with this one seed"
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
