"""A Document as Markdown, and its tables as CSV and LaTeX.

Names, questions and answers are somebody's text: what Markdown, HTML or LaTeX would read as markup is escaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

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
from attnlab.report.words import NOTHING

LONG = 40  # letters of a text that breaks its lines in LaTeX
FORMULA = ("=", "+", "-", "@")  # what a formula of a spreadsheet starts with
MARKUP = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w)|^[#+-](?=\s))")
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # else an option or a star of the command before
    **{sign: f"{sign}{{}}" for sign in "-',"},  # where two stand together, which would be drawn as one sign
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "|": r"\textbar{}",
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
SPECIAL = re.compile(r"([-',])(?=\1)|[" + re.escape("".join(LATEX.keys() - set("-',"))) + "]")


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
        text = f"**{safe(cell.text)}**" if cell.tone == "strong" else safe(cell.text)
        parts = [text, f"({safe(cell.under)})" if cell.under else "", f"**({safe(mark)})**" if mark else ""]
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
            yield "\n".join(f"- {safe(head.name)}: {safe(head.sentence)}" for head in block.heads)
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
        name = slug(one.title)
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}", one


def field(words: str) -> str:
    """Somebody's text in a CSV file, on one line; an apostrophe keeps spreadsheets from reading it as a formula."""
    line = " ".join(words.split())
    return f"'{line}" if line.startswith(FORMULA) else line


def full(cell: Cell, column: Column) -> str:
    """A number in full, where the cell shows one and not a pair; empty where there is nothing."""
    if not column.number:
        return field(cell.text)
    if isinstance(cell.value, float | int) and re.search(r"\d", cell.text) and not re.search(r"\b(of|to)\b", cell.text):
        return repr(cell.value)
    return "" if cell.text == NOTHING else cell.text


def as_csv(one: Table) -> str:
    """A table with its numbers in full, for other programs; second lines and marks have columns of their own."""
    columns, rows = one.columns, [(row.name, *row.cells) for row in one.rows]
    below = [any(row[place].under for row in rows) for place in range(len(columns))]
    marked = any(row.mark for row in one.rows)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    titles = [
        [field(column.title), *([f"{field(column.title)}, below"] if more else [])]
        for column, more in zip(columns, below, strict=True)
    ]
    writer.writerow([*chain(*titles), *(["mark"] if marked else [])])
    for row, cells in zip(one.rows, rows, strict=True):
        texts = [
            [full(cell, column), *([cell.under if column.number else field(cell.under)] if more else [])]
            for cell, column, more in zip(cells, columns, below, strict=True)
        ]
        writer.writerow([*chain(*texts), *([field(row.mark)] if marked else [])])
    return stream.getvalue()


def tex(words: str) -> str:
    """Somebody's text in LaTeX; what cannot be printed is left out."""
    line = "".join(letter for letter in " ".join(words.split()) if letter.isprintable())
    return SPECIAL.sub(lambda found: LATEX[found[0]], line)


def latex_rows(one: Table) -> Iterator[str]:
    """The rows, each with its second lines below; what is said of names is left out to save room."""
    for row in one.rows:
        mark = rf" \emph{{({tex(row.mark)})}}" if row.mark else ""
        yield " & ".join([tex(row.name.text) + mark, *(tex(cell.text) for cell in row.cells)]) + r" \\"
        if any(cell.under for cell in row.cells):
            below = [rf"\footnotesize {tex(cell.under)}" if cell.under else "" for cell in row.cells]
            yield " & ".join(["", *below]) + r" \\ \addlinespace"


def latex_table(one: Table, name: str) -> str:
    """A table; columns of long texts break their lines."""

    def sign(place: int) -> str:
        if one.columns[place].number:
            return "r"
        texts = [(row.name, *row.cells)[place].text for row in one.rows]
        return r"p{0.4\linewidth}" if any(len(text) > LONG for text in texts) else "l"

    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{''.join(map(sign, range(len(one.columns))))}}}",
        r"\toprule",
        " & ".join(tex(column.title) for column in one.columns) + r" \\",
        r"\midrule",
        *latex_rows(one),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{tex(one.caption or one.title)}}}",
        rf"\label{{tab:{name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def as_latex(document: Document) -> str:
    """All tables, for a paper."""
    head = "% Needs \\usepackage{booktabs}; letters of other scripts need LuaLaTeX or XeLaTeX.\n"
    return "\n".join([head, *(latex_table(one, name) for name, one in named_tables(document))])
