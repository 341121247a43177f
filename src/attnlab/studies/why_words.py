"""What the numbers of the study why allow one to say, in sentences made from them. Plain data in, text out.

A difference is claimed only where the 95 % intervals of two cells lie apart; else the words are that it cannot be told here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.report.words import count, interval, percent, plural

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
