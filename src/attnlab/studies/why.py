"""Why does reading help? How much of what it read a model can be asked for, by how often and in how many forms it read it.

A model reads about everybody, then it is fine-tuned on questions about some people, then it is examined on questions about
others: what it answers there it can only know from reading. Every person is told in one sentence form or in several, and
whatever the number of forms, models of equal exposures have met every person equally often. Beside them stand a model that
has read nothing, and models that read one form in the project's own way, in short views with questions among them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attnlab import corpora, stages, stats
from attnlab.config import diff
from attnlab.corpora import Corpus, Question
from attnlab.errors import UserError
from attnlab.evaluate import encode_question, majority
from attnlab.machine import environment
from attnlab.model import LanguageModel, load_model
from attnlab.report.words import count, interval, percent, plural
from attnlab.runs import lineage, unused_path
from attnlab.studies.compare import Plan
from attnlab.studies.compare.jobs import train_all
from attnlab.studies.compare.judge import compare_answers
from attnlab.studies.compare.plan import fingerprints, try_once
from attnlab.studies.compare.records import Record, all_records, notes_on, whole_result
from attnlab.studies.study import Study
from attnlab.studies.why_plan import Cell, cells_of, make_plan
from attnlab.taps import eval_mode
from attnlab.tokenizers import Tokenizer

__all__ = ["STUDY", "begin", "check", "make_plan", "measure"]


def check(plan: Plan) -> None:
    """Find mistakes before anything is trained; cells of one text differ in epochs alone, and one of them stands for all."""
    assert plan.exam is not None
    exam = corpora.load_questions(plan.exam)
    cells = cells_of(plan)
    most = max(cell.exposures for cell in cells)
    for specimen, cell in zip(plan.specimens, cells, strict=True):
        settings = specimen.settings(plan.seeds[0])
        if cell.exposures != most and cell.way != "nothing":
            continue
        sources = stages.Sources.read(specimen.corpus, plan.facts)
        tokenizer = stages.learn_tokenizer(settings, sources)
        for stage in specimen.steps:
            stages.check_settings(specimen.settings(plan.seeds[0], stage), sources, tokenizer)
        for number, item in enumerate(exam, start=1):
            encode_question(tokenizer, item.question, settings.model.block_size, number)
    try_once(plan.specimens[0], plan.seeds[0])


def measure(*, out: Path | str | None = None, console: Console | None = None, **asked: Any) -> dict[str, Any]:
    """The whole study from Python, silently unless there is a console; `asked` as in make_plan.

    why.measure(world="people:300", forms=(1, 4), exposures=(50, 100), seeds=3)["verdict"]
    """
    said = ", ".join(f"{key}={value!r}" for key, value in asked.items())
    plan = make_plan(**{"command": f"why.measure({said})", **asked})
    return begin(plan, Path(out) if out else unused_path("why"), console or Console(quiet=True))


def conclude(folder: Path, plan: Plan, console: Console) -> dict[str, Any]:
    """Train and examine what is not, judge, and write the result and the report."""
    train_all(plan, folder, console)
    return judge(plan, folder)


# From the finished runs to a result


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
    with eval_mode(model):
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


Result = Mapping[str, Any]
PAPER = "Allen-Zhu and Li (arXiv:2309.14316)"


def told(cell: Result) -> str:
    """How a cell has read."""
    if cell["way"] == "nothing":
        return "that read nothing"
    how = "one form" if cell["forms"] == 1 else f"{cell['forms']} forms"
    way = "in short views of" if cell["way"] == "views" else "in"
    return f"that met everybody {plural(cell['exposures'], 'time')} {way} {how}"


def scored(cell: Result) -> str:
    """Its right answers."""
    return f"{percent(cell['accuracy'])} ({interval(cell['low'], cell['high'])})"


# For every question: what stands before the numbers where the answer is yes, cannot be told, no.
OPENINGS = {
    "reading": ("Reading helps", "Whether reading helps cannot be told here", "Reading hurts here"),
    "forms": ("Several forms help", "Whether several forms help cannot be told here", "Several forms hurt here"),
    "views": ("Views help", "Whether views help cannot be told here", "Views hurt here"),
    "exposures": (
        "Reading more often helps",
        "Whether reading more often helps cannot be told here",
        "Reading more often hurts here",
    ),
}


def sentence(comparison: Result, cells: Mapping[str, Result]) -> str:
    """The answer to one question of the study."""
    yes, unknown, no = OPENINGS[comparison["asked"]]
    opening = {1: yes, 0: unknown, -1: no}[comparison["apart"]]
    a, b = cells[comparison["a"]], cells[comparison["b"]]
    words = f"{opening}: a model {told(a)} answers {scored(a)} of the questions correctly, one {told(b)} {scored(b)}"
    return f"{words}." if comparison["apart"] else f"{words}; the intervals overlap."


def verdict(result: Result) -> list[str]:
    """What came out, question by question; the first sentence says who was asked what."""
    cells = {one["name"]: one for one in result["cells"]}
    world, seeds = result["world"], len(result["seeds"])
    intro = (
        f"{plural(world['exam_questions'], 'question')} about people that the model had read about but was never asked"
        f" about; {plural(seeds, 'model')} of each kind; in brackets 95 % intervals for new"
        f" {'questions' if seeds == 1 else 'models and questions'}."
    )
    return [*(sentence(one, cells) for one in result["comparisons"]), intro]


def explain(result: Result) -> list[str]:
    """What it means, as paragraphs."""
    cells = {one["name"]: one for one in result["cells"]}
    pairs = {one["asked"]: one for one in result["comparisons"]}
    return [*stored(cells, pairs), *why(pairs), *for_your_corpus(cells, pairs), limits(result)]


def stored(cells: Mapping[str, Result], pairs: Mapping[str, Result]) -> list[str]:
    """What is known by heart beside what can be asked for."""
    found: list[str] = []
    for asked, side in (("views", "b"), ("reading", "a")):
        cell = cells[pairs[asked][side]] if asked in pairs else None
        if cell is None or not cell.get("by_heart") or (found and cell["forms"] == 1):
            continue
        heart = cell["by_heart"]
        words = (
            f"A model {told(cell)} knows {scored(heart)} of the places by heart: given the line of a person it is examined on"
            f" up to the place, it goes on with the place. Asked, it knows {scored(cell)}."
        )
        if heart["low"] > cell["high"]:
            words += " So it has stored more than a question reaches."
        elif heart["high"] >= cell["low"]:
            words += " What is stored can be asked for, as far as these intervals tell."
        found.append(words)
    return found


def why(pairs: Mapping[str, Result]) -> list[str]:
    """Why forms should matter, and whether they do here."""
    reason = (
        "A model that reads learns to foresee every word from those before it. Where a person is told in one way only, the"
        " place of birth can be learned as the end of that one sentence, from all the words that stand before it; a question"
        " has other words. In several forms the name is what all sentences have in common, and the place becomes tied to"
        " the name, which is what a question begins with."
    )
    if "forms" not in pairs:
        return [reason]
    theirs = f"{PAPER} found about 10 % with one form and about 96 % with several, on larger models and invented people"
    here = {
        1: f"{theirs}; the direction is the same here.",
        0: f"{theirs}; this study is too small to see it, or there is nothing to see at this size.",
        -1: f"{theirs}; here it is the other way round.",
    }
    return [f"{reason} {here[pairs['forms']['apart']]}"]


def for_your_corpus(cells: Mapping[str, Result], pairs: Mapping[str, Result]) -> list[str]:
    """What follows for a text that tells every fact once."""
    pair = pairs["views"]
    views, lines = cells[pair["a"]], cells[pair["b"]]
    if pair["apart"] != 1:
        return []
    share = views["tokens"] / lines["tokens"]
    words = (
        "Most texts tell a fact once. Views get round that: the title of a document alone, or with a little of the text,"
        " must bring back one of its names or places, and training questions are among the views from the start. They"
        f" took {percent(share)} of the tokens that whole lines took ({count(views['tokens'])} against"
        f" {count(lines['tokens'])})."
    )
    many = cells[pairs["reading"]["a"]]
    if many["forms"] > 1 and many["low"] > views["high"]:
        words += " Other wordings help still more, where they can be had."
    elif many["forms"] > 1 and many["high"] < views["low"]:
        words += f" They do more than whole lines in {many['forms']} forms."
    return [words]


def limits(result: Result) -> str:
    """What the study does not show."""
    return (
        f"One size of model, {count(result['world']['people'])} people and one kind of fact. An exposure is one line read"
        " whole, or one view; forms are drawn anew for every person, and each number of forms has a tokenizer learned from"
        " its own text. The settings of the preset were tried on questions about other people (the dev part) only."
    )


STUDY = Study(Plan.stored, check, fingerprints, conclude, lambda _: "why")
begin = STUDY.begin
