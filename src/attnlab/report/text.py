"""A Document as Markdown, and its tables as CSV and LaTeX.

Names, questions and answers are somebody's text: what Markdown, HTML or LaTeX would read as markup is escaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from attnlab.report.document import (
    Answers,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Document,
    Facts,
    Group,
    Heads,
    HeatMap,
    Table,
    Text,
    Tokens,
)

MARKUP = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w)|^[#+-](?=\s))")
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "∞": r"$\infty$",
    "²": r"$^2$",
}


# Markdown


def safe(words: str) -> str:
    """Somebody's text on one line, with nothing in it that is markup."""
    line = " ".join(words.split())
    return MARKUP.sub(r"\\\1", line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; the columns in `numbers` are aligned to the right."""
    signs = ["---:" if column in numbers else "---" for column in range(len(heading))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, signs, *rows))


def table_markdown(one: Table) -> Iterator[str]:
    """A table with its caption; marks and second lines are in brackets."""

    def written(cell: Cell, mark: str = "") -> str:
        parts = [safe(cell.text), f"({safe(cell.under)})" if cell.under else "", f"**({safe(mark)})**" if mark else ""]
        return " ".join(part for part in parts if part)

    if one.caption:
        yield safe(one.caption)
    rows = [[written(row.name, row.mark), *(written(cell) for cell in row.cells)] for row in one.rows]
    numbers = [place for place, column in enumerate(one.columns) if column.number]
    yield markdown_table([safe(column.title) for column in one.columns], rows, numbers)


def text_markdown(one: Text) -> Iterator[str]:
    """Paragraphs, a list, or quotations."""
    if one.title:
        yield f"### {safe(one.title)}" + (f" **({safe(one.mark)})**" if one.mark else "")
    lines = [safe(line) or "(nothing)" for line in one.paragraphs]
    if one.style == "list":
        yield "\n".join(f"- {line}" for line in lines)
    elif one.style == "numbered":
        yield "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
    else:
        yield from (f"> {line}" if one.style == "samples" else line for line in lines)


def answers_markdown(one: Answers) -> Iterator[str]:
    """Answers as a table; a confidence and a verdict where any answer has one."""
    yield f"### {safe(one.title)}"
    if not one.items:
        yield "None."
        return
    columns = [("Question", "question"), ("It says", "said"), ("Confidence", "confidence"), ("Right is", "answer")]
    columns.append(("Verdict", "verdict"))
    kept = [(title, key) for title, key in columns if any(getattr(item, key) for item in one.items)]
    rows = [[safe(getattr(item, key)) or "–" for _, key in kept] for item in one.items]
    yield markdown_table([title for title, _ in kept], rows)


def block_markdown(block: Block) -> Iterator[str]:
    """A block; of a chart the words that tell it to those who cannot see it."""
    match block:
        case Table():
            yield from table_markdown(block)
        case Text():
            yield from text_markdown(block)
        case Facts():
            pairs = [(safe(name), safe(value)) for name, value in block.pairs]
            yield markdown_table((safe(block.title), ""), pairs)
        case Code():
            yield "\n".join(f"    {line}" for line in block.text.splitlines())
        case Answers():
            yield from answers_markdown(block)
        case HeatMap():
            rows = [
                [safe(name), *(f"{value:,g}" for value in row)]
                for name, row in zip(block.rows, block.values, strict=True)
            ]
            yield safe(block.title)
            yield markdown_table(["", *map(safe, block.columns)], rows, range(1, len(block.columns) + 1))
        case Chart():
            yield f"*{safe(block.label)}*"
        case Tokens():
            yield safe(" ".join(block.tokens))
        case Heads():
            yield from (f"- {safe(head.name)}: {safe(head.sentence)}" for head in block.heads if head.sentence)
        case Group():
            if block.title:
                yield f"### {safe(block.title)}"
            for inner in block.blocks:
                yield from block_markdown(inner)


def markdown_parts(document: Document) -> Iterator[str]:
    """The parts of a document in order."""
    yield f"# {safe(document.title)}"
    yield from map(safe, document.lead)
    yield from (f"**{safe(one.title)}** {safe(one.text)}" for one in document.notices)
    if document.about:
        yield safe(document.about)
    if document.command:
        yield f"    {' '.join(document.command.split())}"
    for part in document.sections:
        yield f"## {safe(part.title)}"
        for block in part.blocks:
            yield from block_markdown(block)


def as_markdown(document: Document) -> str:
    """The whole document."""
    return "\n\n".join(markdown_parts(document)) + "\n"


# Tables for other programs and for papers


def slug(words: str) -> str:
    """A title as a file name."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:40] or "table"


def named_tables(document: Document) -> Iterator[tuple[str, Table]]:
    """The tables with names that no two share."""
    seen: dict[str, int] = {}
    for one in document.tables():
        name = slug(one.title or one.caption)
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}", one


def as_csv(one: Table) -> str:
    """A table with its values in full, for other programs; an interval is a column of its own."""
    under = [any(row.cells[place].under for row in one.rows) for place in range(len(one.columns) - 1)]
    marked = any(row.mark for row in one.rows)

    def full(cell: Cell, column: Column) -> str:
        return repr(cell.value) if column.number and isinstance(cell.value, float | int) else cell.text

    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heading = [one.columns[0].title]
    for column, more in zip(one.columns[1:], under, strict=True):
        heading += [column.title, *([f"{column.title}, below"] if more else [])]
    writer.writerow([*heading, *(["mark"] if marked else [])])
    for row in one.rows:
        cells = [row.name.text]
        for cell, column, more in zip(row.cells, one.columns[1:], under, strict=True):
            cells += [full(cell, column), *([cell.under] if more else [])]
        writer.writerow([*cells, *([row.mark] if marked else [])])
    return stream.getvalue()


def tex(words: str) -> str:
    """Somebody's text in LaTeX."""
    return "".join(LATEX.get(letter, letter) for letter in " ".join(words.split()))


def as_latex(one: Table, name: str) -> str:
    """A table for a paper; needs the package booktabs."""

    def written(cell: Cell, mark: str = "") -> str:
        text = tex(cell.text) + (rf" \emph{{({tex(mark)})}}" if mark else "")
        return rf"{text} {{\footnotesize({tex(cell.under)})}}" if cell.under else text

    lines = [r"\begin{table}", r"\centering"]
    lines.append(rf"\begin{{tabular}}{{{''.join('r' if column.number else 'l' for column in one.columns)}}}")
    lines.append(r"\toprule")
    lines.append(" & ".join(tex(column.title) for column in one.columns) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join([written(row.name, row.mark), *map(written, row.cells)]) + r" \\" for row in one.rows]
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{tex(one.caption)}}}",
        rf"\label{{tab:{name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
