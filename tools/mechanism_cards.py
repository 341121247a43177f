"""docs/mechanisms.md: the cards of all mechanisms that come with the package, without those of plugins and users' files.

    python tools/mechanism_cards.py > docs/mechanisms.md

The texts of the cards are Markdown already.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from attnlab.measure.cards import (
    BLOCK,
    LONG,
    N_EMBD,
    N_HEAD,
    SHORT,
    WEIGHTS,
    cache_words,
    entries,
    figures,
    link,
    usage,
)
from attnlab.registry import Entry
from attnlab.report.text import markdown_table

WIDTH = 100
INTRODUCTION = f"""# The mechanisms

Generated from the cards by `make docs`; do not edit. `attnlab mechanisms show NAME` prints a card.
With `--error` it measures the distance from exact attention on random queries, keys and values, or
with `--run RUN` on those of a trained model; with `--out DIR` it draws patterns and errors.

Time is that of the paper, in tokens n, width d, and the mechanism's own sizes. Memory is measured:
how the memory that training keeps per text grows from {SHORT:,} to {LONG:,} tokens. Cache and
parameters are those of one layer of width {N_EMBD} with {N_HEAD} heads, made for {BLOCK} tokens;
the cache is what generation keeps of such a text."""
PARITY = """## The same layers in transformers

[`convert_layer`](exchange.md#layers-of-transformers-as-mechanisms) makes mechanisms of layers of
transformers. Compared are a tiny random layer and what is made of it: the output for two texts, and
the gradient by the input, on a CPU in float32. The figures are the largest differences, as shares of
the largest value. [The tests](../tests/hf/test_layer_parity.py) measure them again and refuse more
than 1e-4, also for steps of generation and for the readable reference, and for the recurrent layers
with padding."""


def page() -> str:
    """The whole page."""
    listed = [entry for entry in entries() if entry.build.__module__.startswith("attnlab.mechanisms.")]
    rows = [
        (
            f"[{entry.name}](#{entry.name})",
            entry.cost,
            figures(entry).memory,
            "yes" if entry.causal else "no",
            cache_words(figures(entry).cache),
            f"{figures(entry).parameters:,}",
            entry.defect,
        )
        for entry in listed
    ]
    table = markdown_table(("name", "time", "memory", "causal", "cache", "parameters", "defect"), rows)
    return "\n\n".join([INTRODUCTION, table, PARITY, parity(), *map(section, listed)]) + "\n"


def parity() -> str:
    """The measured distances from the layers of transformers."""
    stored = json.loads((Path(__file__).parents[1] / "docs/parity.json").read_text(encoding="utf-8"))
    rows = [
        (
            row["model"],
            f"`{row['layer']}`",
            f"[{row['mechanism']}](#{row['mechanism']})",
            str(row["tokens"]),
            f"{row['outputs']:.1e}",
            f"{row['gradients']:.1e}",
        )
        for row in stored.values()
    ]
    return markdown_table(("model", "layer", "mechanism", "tokens", "outputs", "gradients"), rows)


def section(entry: Entry) -> str:
    """One mechanism."""
    text, options = entry.parts, entry.described()
    paper = f" Paper: [{entry.paper}]({link(entry.paper)})." if entry.paper else ""
    paragraphs = [text.summary + paper]
    if entry.defect:
        paragraphs.append(f"**Defect:** {entry.defect}.")
    paragraphs += text.body.split("\n") if text.body else []
    paragraphs += [f"**Costs:** {text.costs}", f"**Cannot:** {text.cannot}"]
    paragraphs.append(f"**Its weights:** {WEIGHTS[entry.weights]}.")
    wrapped = [
        textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False) for paragraph in paragraphs
    ]
    if options:
        rows = [(option.name, option.type, str(option.default), option.meaning) for option in options]
        wrapped.append(markdown_table(("option", "type", "default", "meaning"), rows))
    return "\n\n".join([f"## {entry.name}", *wrapped, f"```bash\n{usage(entry)}\n```"])


if __name__ == "__main__":
    print(page(), end="")
