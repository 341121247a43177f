"""What `classify` prints of its data before training: the labelled tables, and one batch explained. Plain data in."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from attnlab.report.legacy_parts import Result
from attnlab.report.words import count, percent, plural

MOST_PIECES, MOST_PADDING = 24, 3  # of the text that is shown
_USES = {"train": "training", "dev": "validation", "test": "test"}
_BATCHING = {
    "grouped": "texts of similar length together, each batch as wide as its longest",
    "random": "texts as they come, each batch as wide as its longest",
    "fixed": "every batch as wide as the limit",
}


def _print(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _table(titles: tuple[str, ...], numbers: range = range(0)) -> Table:
    table = Table(*titles, box=None, pad_edge=False)
    for place in numbers:
        table.columns[place].justify = "right"
    return table


# The tables


def show_tables(found: Result, console: Console) -> None:
    """Print how the labels were recognised, how often each occurs, and texts of each."""
    for name, one in found["data"].items():
        read = f"{one['source']}: {one['texts']:,} texts, {_USES[name]}; {one['column'].replace('-', ' ')}"
        skipped = f"; {one['blank']:,} blank lines skipped" if one["blank"] else ""
        _print(console, f"{read} ({one['recognised']}){'; heading skipped' if one['heading'] else ''}{skipped}")
    table = _table(("label", *found["data"]), range(1, len(found["data"]) + 1))
    original = {name: label for label, name in found["renamed"].items()}
    for label in found["labels"]:
        title = f"{label} (in the files: {original[label]})" if label in original else label
        table.add_row(title, *(f"{one['counts'][label]:,}" for one in found["data"].values()))
    console.print(table)
    for label, texts in found["examples"].items():
        _print(console, f"{label}:", *(f"  {text if len(text) <= 100 else text[:99] + '…'}" for text in texts))
    _print(console, *(f"warning: {warning}" for warning in found["warnings"]))


# A batch


def show_batch(found: Result, console: Console) -> None:
    """Print the first batch: its tensors, one text piece by piece, and the cost of padding."""
    one, texts = found["text"], found["batch"]["texts"]
    _print(console, "", *_tokenizer_lines(found), "")
    _print(
        console, f"the first batch: {plural(texts, 'line')} of {found['source']} in their order, as a model gets them"
    )
    console.print(_tensor_table(found))
    _print(console, *_batch_lines(found), "")
    _print(
        console,
        f"the shortest text of it, {one['line']}, label {one['label']} (number {one['label_id']}): {one['text']}",
    )
    console.print(piece_table(one))
    _print(console, *rest_lines(one), "", _source_line(found))
    console.print(_batching_table(found))


def _tokenizer_lines(found: Result) -> Iterator[str]:
    one = found["tokenizer"]
    yield f"tokenizer of {found['model']}: {one['class']}, {count(one['pieces'])} pieces"
    special = ", ".join(f"{entry['token']} = {entry['id']} ({name})" for name, entry in one["special_tokens"].items())
    yield f"special tokens: {special}; {one['added_to_a_text']} are put around every text"
    cut = f"cut at {one['limit']} tokens (truncation)"
    if one["limit"] < one["max_length"]:
        cut += f", since the model has no more positions, though max_length is {one['max_length']}"
    yield f"texts are {cut}, and padded {one['padding']}, on the {one['padding_side']}"


def _tensor_table(found: Result) -> Table:
    table = _table(("tensor", "type", "shape", "meaning"))
    for one in found["tensors"]:
        table.add_row(one["name"], one["dtype"], " × ".join(map(str, one["shape"])), one["meaning"])
    return table


def _cuts(one: Result) -> str:
    if not one["truncated"]:
        return "no text was cut"
    return (
        f"{plural(one['truncated'], 'text')} cut, {plural(one['tokens_cut'], 'token')} lost, at most"
        f" {count(one['most_cut'])} of one text"
    )


def _batch_lines(found: Result) -> Iterator[str]:
    one, places = found["batch"], found["batch"]["texts"] * found["batch"]["width"]
    yield (
        f"{one['texts']} × {one['width']} = {plural(places, 'place')}: {count(one['tokens'])} real tokens and"
        f" {count(one['padding'])} of padding ({percent(one['padding'] / places)}); {_cuts(one)}"
    )
    yield (
        f"padded to {found['tokenizer']['limit']} it would have {plural(one['padded_to_limit'], 'place')},"
        f" {one['padded_to_limit'] / places:.1f} times as many"
    )


def _shown_and_rest(one: Result) -> tuple[list[Result], list[Result]]:
    """The pieces of a text that are shown, with the first of its padding, and the rest."""
    real = [entry for entry in one["pieces"] if entry["mask"]]
    padding = [entry for entry in one["pieces"] if not entry["mask"]]
    return real[:MOST_PIECES] + padding[:MOST_PADDING], real[MOST_PIECES:] + padding[MOST_PADDING:]


def piece_table(one: Result) -> Table:
    """A text as pieces, with the first of its padding."""
    table = _table(("piece", "id", "mask"), range(1, 3))
    for entry in _shown_and_rest(one)[0]:
        table.add_row(entry["piece"], str(entry["id"]), str(entry["mask"]))
    return table


def rest_lines(one: Result) -> Iterator[str]:
    """What the table of pieces leaves out."""
    _, rest = _shown_and_rest(one)
    real = sum(entry["mask"] for entry in rest)
    told = [plural(real, "more piece")] if real else []
    told += [f"{count(len(rest) - real)} more of padding"] if len(rest) > real else []
    if told:
        yield f"and {', '.join(told)}"


def _source_line(found: Result) -> str:
    one = found["table"]
    return (
        f"the whole of {found['source']}: {plural(one['texts'], 'text')} of {one['shortest']} to {count(one['longest'])}"
        f" tokens (median {one['median']}), {count(one['tokens'])} together; {_cuts(one)}"
    )


def _batching_table(found: Result) -> Table:
    table = _table(("batching", "places per epoch", "padding", ""), range(1, 3))
    for name, one in found["table"]["batching"].items():
        table.add_row(name, count(one["places"]), percent(one["share"]), _BATCHING[name])
    return table
