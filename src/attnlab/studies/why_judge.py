"""From the finished runs of the study why to its result: shares with intervals, what differs, what may be said."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from attnlab import corpora, stages, stats
from attnlab.comparing import Plan
from attnlab.comparing.judge import compare_answers
from attnlab.comparing.records import Record, all_records, notes_on, whole_result
from attnlab.config import diff
from attnlab.corpora import Corpus, Question
from attnlab.errors import UserError
from attnlab.evaluate import majority
from attnlab.model import LanguageModel, load_model
from attnlab.runs import environment, lineage
from attnlab.studies.why_plan import Cell, cells_of
from attnlab.studies.why_words import explain, verdict
from attnlab.taps import at_rest
from attnlab.tokenizers import Tokenizer


def judge(plan: Plan, folder: Path) -> dict[str, Any]:
    """The result of the study, ready for JSON and for the report."""
    assert plan.corpus is not None
    assert plan.facts is not None
    assert plan.exam is not None
    records = all_records(plan, folder)
    refuse_strangers(plan, records)
    corpus, facts = corpora.load_corpus(plan.corpus), corpora.load_questions(plan.facts)
    exam = corpora.load_questions(plan.exam)
    cells = [describe(cell, records[cell.name], beginnings(corpus, exam)) for cell in cells_of(plan)]
    every = [record for rows in records.values() for record in rows]
    result: dict[str, Any] = {
        "kind": "why",
        "study": "why",
        "title": plan.title,
        "question": plan.question,
        "command": plan.command,
        "finished": date.today().isoformat(),
        "seconds": round(sum(one.values["seconds"] + one.measured["measuring"] for one in every), 1),
        "quick": plan.quick,
        "seeds": list(plan.seeds),
        "jobs": plan.jobs,
        "world": {
            "people": len(corpus.lines),
            "training_questions": len(facts),
            "exam": plan.exam,
            "exam_questions": len(exam),
        },
        "majority": majority(facts, exam).summary(),
        "cells": cells,
        "comparisons": compare_all(cells, records),
        "notes": notes_on(records),
        "environment": environment(),
        "settings": settings_of(plan, records),
    }
    return result | {"verdict": verdict(result), "explanation": explain(result)}


def refuse_strangers(plan: Plan, records: Mapping[str, Sequence[Record]]) -> None:
    """Refuse runs whose settings are not those of their cell and seed: they were moved here, or made otherwise."""
    for name, rows in records.items():
        specimen = plan.find(name)
        for record in rows:
            for run in lineage(record.run):
                stored = stages.stored_config(run)
                # The vocabulary may follow from the text.
                wanted = specimen.settings(record.seed, run.config["stage"])
                if found := sorted(set(diff(stored, wanted)) - {"model.vocab_size"}):
                    raise UserError(
                        f"{run.path} is not the run of {name} with seed {record.seed}: it differs in {', '.join(found)};"
                        " remove it and resume"
                    )


def describe(cell: Cell, rows: Sequence[Record], begun: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """One cell: right answers over seeds and questions, and what was read for them."""
    right = [record.answers() for record in rows]
    found: dict[str, Any] = {
        "name": cell.name,
        "way": cell.way,
        "forms": cell.forms,
        "exposures": cell.exposures,
        **share(right),
        "seconds": statistics.fmean(whole_result(record.run)["seconds"] for record in rows),
        "commonest": rows[0].measured["commonest_prediction"],
        "commonest_share": statistics.fmean(record.measured["commonest_share"] for record in rows),
    }
    if cell.way == "nothing":
        return found
    read = [lineage(record.run)[-1] for record in rows]
    return found | {
        "tokens": round(statistics.fmean(run.result["tokens"] for run in read)),
        "loss": statistics.fmean(run.result["final_loss"] for run in read),
        "by_heart": share([by_heart(*load_model(run.model), begun) for run in read]) if begun else None,
    }


def share(right: Sequence[Sequence[bool]]) -> dict[str, Any]:
    """The share of right answers of seeds x questions, with its interval for new ones of both.

    Where all are right or all wrong there is no spread to judge by, and with one seed only questions spread: there it is
    Wilson's interval of the questions.
    """
    each = [sum(row) / len(row) for row in right]
    found = stats.crossed(right)
    low, high = found.low, found.high
    if len(right) == 1 or low is None or high is None:
        low, high = stats.proportion_interval(round(found.mean * found.items), found.items)
    return {"accuracy": found.mean, "low": max(0.0, low), "high": min(1.0, high), "each": each}


def beginnings(corpus: Corpus, exam: Sequence[Question]) -> list[tuple[str, str]]:
    """Of everybody in the examination the line up to the answer, and the answer, where the line tells it."""
    found = []
    for item in exam:
        for number in corpora.documents_about(corpus, item.question)[:1]:
            line, title = corpus.lines[number], corpus.titles[number]
            place = line.find(item.answer or "", len(title))
            if item.answer and place > 0:
                found.append((line[:place].rstrip(), item.answer))
    return found


@torch.inference_mode()
def by_heart(model: LanguageModel, tokenizer: Tokenizer, begun: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether a model that is given the line of a person up to the answer would go on with it, token by token.

    Read at once with the answer behind, which is the same: if a token before was not the likeliest, it is wrong already.
    """
    rows = [(tokenizer.encode(beginning), tokenizer.encode(answer)) for beginning, answer in begun]
    ids = torch.full((len(rows), max(len(given) + len(wanted) for given, wanted in rows)), tokenizer.pad)
    for place, (given, wanted) in enumerate(rows):
        ids[place, : len(given) + len(wanted)] = torch.tensor(given + wanted)
    ids = ids[:, : model.config.block_size]
    with at_rest(model):
        guessed = model.head(model.hidden(ids)).argmax(dim=-1).tolist()
    return [
        guess[len(given) - 1 : len(given) + len(wanted) - 1] == wanted
        for guess, (given, wanted) in zip(guessed, rows, strict=True)
    ]


PAIRS = {
    "reading": ("most", "nothing"),
    "forms": ("most", "one"),
    "views": ("views", "one"),
    "exposures": ("most", "least"),
}


def roles(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The cells that sentences are about: most forms and exposures, one form, views, few exposures, nothing read."""
    forms, times = (max(one[key] for one in cells) for key in ("forms", "exposures"))
    least = min(one["exposures"] for one in cells if one["way"] != "nothing")
    return {
        "most": Cell("lines", forms, times).name,
        "one": Cell("lines", 1, times).name,
        "views": Cell("views", 1, times).name,
        "least": Cell("lines", forms, least).name,
        "nothing": Cell("nothing").name,
    }


def compare_all(cells: Sequence[Mapping[str, Any]], records: Mapping[str, Sequence[Record]]) -> list[dict[str, Any]]:
    """What the study asks, each as a pair of cells; a difference is claimed only where their intervals lie apart."""
    names, by_name = roles(cells), {one["name"]: one for one in cells}
    found = []
    for asked, pair in PAIRS.items():
        a, b = (names[role] for role in pair)
        if a == b:
            continue
        tested = compare_answers(records[a], records[b])
        apart = int(by_name[a]["low"] > by_name[b]["high"]) - int(by_name[a]["high"] < by_name[b]["low"])
        found.append(
            {"asked": asked, "a": a, "b": b, "apart": apart}
            | {key: tested[key] for key in ("difference", "low", "high", "p", "test")}
        )
    return found


def settings_of(plan: Plan, records: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """The settings of the runs that stand for all: cells differ in epochs, text and, of views, the task."""
    names = roles([{"forms": one.forms, "exposures": one.exposures, "way": one.way} for one in cells_of(plan)])
    found: dict[str, Any] = {}
    for role in ("most", "views", "nothing"):
        for run in lineage(records[names[role]][0].run):
            stored = {key: value for key, value in run.config["config"].items() if key != "seed"}
            found[f"{names[role]}, {run.config['stage']}"] = stored
    return found
