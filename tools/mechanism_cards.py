"""docs/mechanisms.md: the cards of all mechanisms that come with the package, without those of plugins and users' files.

    python tools/mechanism_cards.py > docs/mechanisms.md

The texts of the cards are Markdown already.
"""

from __future__ import annotations

import textwrap

from attnlab.measure.cards import BLOCK, LONG, N_EMBD, N_HEAD, SHORT, WEIGHTS, MechanismCard, cache_words, card, entries
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


def page() -> str:
    """The whole page."""
    cards = [card(entry) for entry in entries() if entry.build.__module__.startswith("attnlab.mechanisms.")]
    rows = [
        (
            f"[{card.name}](#{card.name})",
            card.cost,
            card.memory,
            "yes" if card.causal else "no",
            cache_words(card.cache),
            f"{card.parameters:,}",
            card.defect,
        )
        for card in cards
    ]
    table = markdown_table(("name", "time", "memory", "causal", "cache", "parameters", "defect"), rows)
    return "\n\n".join([INTRODUCTION, table, *map(section, cards)]) + "\n"


def section(card: MechanismCard) -> str:
    """One mechanism."""
    paper = f" Paper: [{card.paper}]({card.link})." if card.paper else ""
    paragraphs = [card.text.summary + paper]
    if card.defect:
        paragraphs.append(f"**Defect:** {card.defect}.")
    paragraphs += card.text.body.split("\n") if card.text.body else []
    paragraphs += [f"**Costs:** {card.text.costs}", f"**Cannot:** {card.text.cannot}"]
    paragraphs.append(f"**Its weights:** {WEIGHTS[card.weights]}.")
    wrapped = [textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) for text in paragraphs]
    if card.options:
        rows = [(option.name, option.type, str(option.default), option.meaning) for option in card.options]
        wrapped.append(markdown_table(("option", "type", "default", "meaning"), rows))
    return "\n\n".join([f"## {card.name}", *wrapped, f"```bash\n{card.usage}\n```"])


if __name__ == "__main__":
    print(page(), end="")
