"""A batch explained in the terminal: its tensors, one text piece by piece, and what padding costs. Plain data in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from attnlab.report.words import count, percent, plural

Result = Mapping[str, Any]
MOST_PIECES, MOST_PADDING = 24, 3  # of the text that is shown
MEANINGS = {
    "grouped": "texts of similar length together, each batch as wide as its longest",
    "random": "texts as they come, each batch as wide as its longest",
    "fixed": "every batch as wide as the limit",
}


def tell_batch(found: Result, console: Console) -> None:
    """Everything that there is to say of the first batch and of the table."""

    def say(line: str = "") -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    say()
    for line in tokenizer_lines(found):
        say(line)
    say()
    say(
        f"the first batch: {plural(found['batch']['texts'], 'line')} of {found['source']} in their order, as a model gets them"
    )
    console.print(tensor_table(found))
    for line in batch_lines(found):
        say(line)
    say()
    one = found["text"]
    say(f"the shortest text of it, {one['line']}, label {one['label']} (number {one['label_id']}): {one['text']}")
    console.print(piece_table(one))
    for line in rest_lines(one):
        say(line)
    say()
    for line in table_lines(found):
        say(line)
    console.print(batching_table(found))


def tokenizer_lines(found: Result) -> Iterator[str]:
    """The tokenizer and its settings."""
    one = found["tokenizer"]
    yield f"tokenizer of {found['model']}: {one['class']}, {count(one['pieces'])} pieces"
    special = ", ".join(f"{entry['token']} = {entry['id']} ({name})" for name, entry in one["special_tokens"].items())
    yield f"special tokens: {special}; {one['added_to_a_text']} are put around every text"
    cut = f"cut at {one['limit']} tokens (truncation)"
    if one["limit"] < one["max_length"]:
        cut += f", since the model has no more places, though max_length is {one['max_length']}"
    yield f"texts are {cut}, and padded {one['padding']}, on the {one['padding_side']}"


def tensor_table(found: Result) -> Table:
    """The tensors of the batch."""
    table = Table("tensor", "type", "shape", "meaning", box=None, pad_edge=False)
    for one in found["tensors"]:
        table.add_row(one["name"], one["dtype"], " × ".join(map(str, one["shape"])), one["meaning"])
    return table


def cuts(one: Result) -> str:
    """How much was cut off."""
    if not one["truncated"]:
        return "no text was cut"
    return (
        f"{plural(one['truncated'], 'text')} cut, {plural(one['tokens_cut'], 'token')} lost, at most"
        f" {count(one['most_cut'])} of one text"
    )


def batch_lines(found: Result) -> Iterator[str]:
    """The counts of the batch."""
    one, places = found["batch"], found["batch"]["texts"] * found["batch"]["width"]
    yield (
        f"{one['texts']} × {one['width']} = {plural(places, 'place')}: {count(one['tokens'])} real tokens and"
        f" {count(one['padding'])} of padding ({percent(one['padding'] / places)}); {cuts(one)}"
    )
    yield (
        f"padded to {found['tokenizer']['limit']} it would have {plural(one['padded_to_limit'], 'place')},"
        f" {one['padded_to_limit'] / places:.1f} times as many"
    )


def shown_and_rest(one: Result) -> tuple[list[Result], list[Result]]:
    """The pieces of a text that are shown, with the first of its padding, and all others."""
    real = [entry for entry in one["pieces"] if entry["mask"]]
    padding = [entry for entry in one["pieces"] if not entry["mask"]]
    return real[:MOST_PIECES] + padding[:MOST_PADDING], real[MOST_PIECES:] + padding[MOST_PADDING:]


def piece_table(one: Result) -> Table:
    """A text as pieces, with the first of its padding."""
    table = Table("piece", "id", "mask", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for entry in shown_and_rest(one)[0]:
        table.add_row(entry["piece"], str(entry["id"]), str(entry["mask"]))
    return table


def rest_lines(one: Result) -> Iterator[str]:
    """What the table of pieces left out."""
    _, rest = shown_and_rest(one)
    real = sum(entry["mask"] for entry in rest)
    told = [plural(real, "more piece")] if real else []
    told += [f"{count(len(rest) - real)} more of padding"] if len(rest) > real else []
    if told:
        yield f"and {', '.join(told)}"


def table_lines(found: Result) -> Iterator[str]:
    """The counts of the whole table."""
    one = found["table"]
    yield (
        f"the whole of {found['source']}: {plural(one['texts'], 'text')} of {one['shortest']} to {count(one['longest'])}"
        f" tokens (median {one['median']}), {count(one['tokens'])} together; {cuts(one)}"
    )


def batching_table(found: Result) -> Table:
    """What an epoch costs by each way to make batches."""
    table = Table("batching", "places an epoch", "padding", "", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, one in found["table"]["batching"].items():
        table.add_row(name, count(one["places"]), percent(one["share"]), MEANINGS[name])
    return table
