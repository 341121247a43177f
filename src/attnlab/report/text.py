"""A Document as Markdown, and its tables as CSV and LaTeX.

Names, questions and answers are somebody's text: what Markdown, HTML or LaTeX would read as markup is escaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from attnlab.report import document as blocks
from attnlab.report.document import Cell, Column, Document, Table
from attnlab.report.words import NOTHING

_LONG = 40  # letters of a text that breaks its lines in LaTeX
_FORMULA = ("=", "+", "-", "@")  # what a formula of a spreadsheet starts with
_MARKUP = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w)|^[#+-](?=\s))")
_LATEX = {
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
_SPECIAL = re.compile(r"([-',])(?=\1)|[" + re.escape("".join(_LATEX.keys() - set("-',"))) + "]")


# Markdown


def _safe(words: str) -> str:
    """Text on one line, with markup escaped."""
    line = " ".join(words.split())
    return _MARKUP.sub(r"\\\1", line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; the columns in `numbers` are aligned to the right."""
    signs = ["---:" if column in numbers else "---" for column in range(len(heading))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, signs, *rows))


def _table_markdown(table: Table) -> Iterator[str]:
    """A table with its caption; marks and second lines are in parentheses."""

    def written(cell: Cell, mark: str = "") -> str:
        text = f"**{_safe(cell.text)}**" if cell.tone == "strong" else _safe(cell.text)
        parts = [text, f"({_safe(cell.under)})" if cell.under else "", f"**({_safe(mark)})**" if mark else ""]
        return " ".join(part for part in parts if part)

    if table.caption:
        yield _safe(table.caption)
    rows = [[written(row.name, row.mark), *(written(cell) for cell in row.cells)] for row in table.rows]
    numbers = [place for place, column in enumerate(table.columns) if column.number]
    yield markdown_table([_safe(column.title) for column in table.columns], rows, numbers)


def _text_markdown(text: blocks.Text) -> Iterator[str]:
    if text.title:
        yield f"### {_safe(text.title)}" + (f" **({_safe(text.mark)})**" if text.mark else "")
    lines = [_safe(line) or "(nothing)" for line in text.paragraphs]
    if text.style == "list":
        yield "\n".join(f"- {line}" for line in lines)
    elif text.style == "numbered":
        yield "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
    else:
        yield from (f"> {line}" if text.style == "samples" else line for line in lines)


def answer_rows(answers: blocks.Answers) -> tuple[list[str], list[list[str]]]:
    """The titles and rows of a table of answers, without empty columns."""
    titles = ("Question", "Answer", "Confidence", "Right answer", "Verdict")
    rows = [(item.question, item.prediction, item.confidence, item.answer, item.verdict) for item in answers.items]
    kept = [place for place in range(len(titles)) if any(row[place] for row in rows)]
    return [titles[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _answers_markdown(answers: blocks.Answers) -> Iterator[str]:
    yield f"### {_safe(answers.title)}"
    if not answers.items:
        yield "None."
        return
    titles, rows = answer_rows(answers)
    yield markdown_table(titles, [[_safe(text) or NOTHING for text in row] for row in rows])


def _block_markdown(block: blocks.Block) -> Iterator[str]:
    """A block as Markdown; a chart is represented by its label."""
    match block:
        case Table():
            yield from _table_markdown(block)
        case blocks.Text():
            yield from _text_markdown(block)
        case blocks.Facts():
            pairs = [(_safe(name), _safe(value)) for name, value in block.pairs]
            yield markdown_table((_safe(block.title), ""), pairs)
        case blocks.Code():
            yield "\n".join(f"    {line}" for line in block.text.splitlines())
        case blocks.Answers():
            yield from _answers_markdown(block)
        case blocks.HeatMap():
            rows = [
                [_safe(name), *(f"{value:,g}" for value in row)]
                for name, row in zip(block.rows, block.values, strict=True)
            ]
            yield _safe(block.title)
            yield markdown_table(["", *map(_safe, block.columns)], rows, range(1, len(block.columns) + 1))
        case blocks.Chart():
            yield f"*{_safe(block.label)}*"
        case blocks.Tokens():
            yield _safe(" ".join(block.tokens))
        case blocks.Heads():
            yield "\n".join(f"- {_safe(head.name)}: {_safe(head.sentence)}" for head in block.heads)
        case blocks.Group():
            if block.title:
                yield f"### {_safe(block.title)}"
            for inner in block.blocks:
                yield from _block_markdown(inner)


def as_markdown(document: Document) -> str:
    """The whole document as Markdown."""
    parts = [f"# {_safe(document.title)}", *map(_safe, document.lead)]
    parts += [f"**{_safe(notice.title)}** {_safe(notice.text)}" for notice in document.notices]
    if document.about:
        parts.append(_safe(document.about))
    if document.command:
        parts.append(f"    {' '.join(document.command.split())}")
    for part in document.sections:
        parts.append(f"## {_safe(part.title)}")
        for block in part.blocks:
            parts += _block_markdown(block)
    return "\n\n".join(parts) + "\n"


# Tables for other programs and for papers


def named_tables(document: Document) -> Iterator[tuple[str, Table]]:
    """The tables with names that no two share."""
    seen: dict[str, int] = {}
    for table in document.tables():
        name = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")[:40] or "table"
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}", table


def _field(words: str) -> str:
    """Text of a CSV file on one line; an apostrophe keeps spreadsheets from reading it as a formula."""
    line = " ".join(words.split())
    return f"'{line}" if line.startswith(_FORMULA) else line


def _csv_fields(title: str, column: Column, cells: Sequence[Cell]) -> Iterator[tuple[str, list[str]]]:
    """The CSV columns of one column of a table: its value, the ends of its interval, and its second line, if any has one."""
    has_interval = any(cell.low is not None for cell in cells)
    if not has_interval or any(cell.value is not None for cell in cells):
        yield title, [_value(cell, column) for cell in cells]
    if has_interval:
        yield f"{title}, low", [_number(cell.low) for cell in cells]
        yield f"{title}, high", [_number(cell.high) for cell in cells]
    notes = [_field(cell.under) if cell.low is None else "" for cell in cells]
    if any(notes):
        yield f"{title}, note", notes


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _value(cell: Cell, column: Column) -> str:
    """A number in full precision, or the text of the cell; empty if it shows nothing."""
    if column.number and isinstance(cell.value, float | int):
        return repr(cell.value)
    return "" if column.number and cell.text == NOTHING else _field(cell.text)


def as_csv(table: Table) -> str:
    """A table with its numbers in full, for other programs; intervals, second lines and marks have their own columns."""
    fields: list[tuple[str, list[str]]] = []
    for place, column in enumerate(table.columns):
        cells = [(row.name, *row.cells)[place] for row in table.rows]
        fields += _csv_fields(_field(column.title), column, cells)
    if any(row.mark for row in table.rows):
        fields.append(("mark", [_field(row.mark) for row in table.rows]))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([title for title, _ in fields])
    writer.writerows(zip(*(values for _, values in fields), strict=True))
    return stream.getvalue()


def tex(words: str) -> str:
    """Somebody's text in LaTeX; what cannot be printed is left out."""
    line = "".join(letter for letter in " ".join(words.split()) if letter.isprintable())
    return _SPECIAL.sub(lambda match: _LATEX[match[0]], line)


def _latex_rows(table: Table) -> Iterator[str]:
    """The rows with their second lines below; those of names are left out to save space."""
    for row in table.rows:
        mark = rf" \emph{{({tex(row.mark)})}}" if row.mark else ""
        yield " & ".join([tex(row.name.text) + mark, *(tex(cell.text) for cell in row.cells)]) + r" \\"
        if any(cell.under for cell in row.cells):
            below = [rf"\footnotesize {tex(cell.under)}" if cell.under else "" for cell in row.cells]
            yield " & ".join(["", *below]) + r" \\ \addlinespace"


def _latex_table(table: Table, name: str) -> str:
    """A table; columns with long texts wrap."""

    def sign(place: int) -> str:
        if table.columns[place].number:
            return "r"
        texts = [(row.name, *row.cells)[place].text for row in table.rows]
        return r"p{0.4\linewidth}" if any(len(text) > _LONG for text in texts) else "l"

    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{''.join(map(sign, range(len(table.columns))))}}}",
        r"\toprule",
        " & ".join(tex(column.title) for column in table.columns) + r" \\",
        r"\midrule",
        *_latex_rows(table),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{tex(table.caption or table.title)}}}",
        rf"\label{{tab:{name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def as_latex(document: Document) -> str:
    """All tables, for a paper."""
    head = "% Needs \\usepackage{booktabs}; letters of other scripts need LuaLaTeX or XeLaTeX.\n"
    return "\n".join([head, *(_latex_table(table, name) for name, table in named_tables(document))])
