"""A new assignment: a sheet, data, a notebook with gaps, templates for students, and right answers as an example.

The files are made from the templates in `template`. In a notebook, a gap is `...`; the example has the gaps filled.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnlab import corpora
from attnlab.course.handout import students_sheet
from attnlab.design import check
from attnlab.reading import packaged_text
from attnlab.store.folders import refuse_existing, write_bytes

_PEOPLE = "people:300"
_HANDED_OUT = ("corpus.txt", "train.tsv", "LICENSE-DATA.md")
_PLACES, _LINES, _TURNS = 24, 250, 5  # of the text that cannot be learned without attention
_FENCE = re.compile(r"^```python\n(.*?)^```\n", flags=re.DOTALL | re.MULTILINE)
_SOLUTIONS = {
    "copy = [0, 0, 0]": 'copy = "10*K[0]"',
    '"0*(K[0] + K[1])"': '"5*(K[0] + K[1])"',
    "parameters = 0": "parameters = 3323392",
    '"uniform loss" = 0': '"uniform loss" = 5.545',
    "mixed = ...  # fill in, of": "mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # of",
    "q_copy = ...": "q_copy = 10 * K[0]",
    "q_average = ...": "q_average = 5 * (K[0] + K[1])",
    "facts = ...": 'facts = "train.tsv"',
    "parameters = ...": "parameters = 3323392",
    "uniform_loss = ...": "uniform_loss = np.log(256)",
}


def write_course(folder: Path) -> list[Path]:
    """Write an assignment into a new folder, and return its files."""
    refuse_existing(folder)
    data = corpora.export(_PEOPLE, folder / "data")
    exam = corpora.load_questions(f"{_PEOPLE}:test")
    handed_out = {path.name: path.read_bytes() for path in data if path.name in _HANDED_OUT}
    pairs = "".join(f"{line}\n" for line in _pairs()).encode()
    files = {f"for-students/{name}": content for name, content in {**handed_out, "pairs.txt": pairs}.items()}
    files["data/pairs.txt"] = pairs
    texts = {
        "README.md": template("README.md"),
        "sheet.toml": template("sheet.toml"),
        "for-students/assignment.ipynb": json.dumps(notebook(template("notebook.md")), indent=1, ensure_ascii=False)
        + "\n",
        "for-students/sheet.toml": students_sheet(check.parse(template("sheet.toml"), Path("sheet.toml"))),
        "for-students/answers.toml": template("answers.toml"),
        "for-students/attention.py": template("attention.py.txt"),
        "for-students/exam.txt": "".join(f"{item.question}\n" for item in exam),
        "students/example/answers.toml": solved(template("answers.toml")),
        "students/example/attention.py": solved(template("attention.py.txt")),
        "students/example/birth.predictions": "".join(f"{answer}\n" for answer in _looked_up(exam)),
    }
    files |= {name: text.encode() for name, text in texts.items()}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / name, content)
    return sorted({*data, *(folder / name for name in files)})


def template(name: str) -> str:
    """A file of the assignment with its gaps."""
    return packaged_text("course", "template", name)


def solved(text: str) -> str:
    """A file of the assignment with its gaps filled."""
    for gap, solution in _SOLUTIONS.items():
        text = text.replace(gap, solution)
    return text


def _looked_up(exam: tuple[corpora.Question, ...]) -> Iterator[str]:
    """The answers of a lookup in the corpus, which makes a few mistakes."""
    corpus = corpora.load_corpus(_PEOPLE)
    places = {str(item.answer) for item in (*exam, *corpora.load_questions(f"{_PEOPLE}:train"))}
    for item in exam:
        yield corpora.open_book(corpus, places, item.question) or ""


def _pairs() -> Iterator[str]:
    """Lines of two random places in turns: what comes next is the word before the last."""
    answers = {str(item.answer) for item in corpora.load_questions(f"{_PEOPLE}:train")}
    places, generator = sorted(filter(str.isalpha, answers))[:_PLACES], random.Random(0)
    return (" ".join(generator.sample(places, 2) * _TURNS) for _ in range(_LINES))


def notebook(text: str) -> dict[str, Any]:
    """A notebook from Markdown; its Python becomes cells of code."""
    cells: list[dict[str, Any]] = []
    for place, part in enumerate(_FENCE.split(text)):
        if not part.strip():
            continue
        cell: dict[str, Any] = {"id": f"cell-{len(cells)}", "metadata": {}, "source": part.strip().splitlines(True)}
        if place % 2:
            cells.append({"cell_type": "code", **cell, "execution_count": None, "outputs": []})
        else:
            cells.append({"cell_type": "markdown", **cell})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
