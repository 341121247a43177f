"""The page docs/mechanisms.md, made from the cards of the mechanisms that come with the package."""

from __future__ import annotations

from typing import Any

from attnlab.measure.cards import BLOCK, LONG, N_EMBD, N_HEAD, SHORT, WEIGHTS, cache_words, card, entries

HOME = "attnlab.mechanisms."


def page() -> str:
    """The whole page; mechanisms of plugins and of users' files are not on it."""
    cards = [card(entry) for entry in entries() if entry.build.__module__.startswith(HOME)]
    parts = [INTRODUCTION, table(cards), *(section(one) for one in cards)]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = f"""# The mechanisms

Made from the cards by `make docs`; do not edit. `attnlab mechanisms show NAME` prints a card,
`attnlab mechanisms show NAME --error` measures how far a mechanism lies from exact attention, and with `--out DIR` draws it.

Time is that of the paper, in tokens n, width d, and the mechanism's own sizes. Memory is measured: how what training keeps
of a text grows from {SHORT:,} to {LONG:,} tokens. Cache and parameters are those of one layer of width {N_EMBD} with
{N_HEAD} heads, made for {BLOCK} tokens: the cache is what it keeps of such a text while it generates."""


def table(cards: list[dict[str, Any]]) -> str:
    """All of them at a glance."""
    lines = ["| name | time | memory | causal | cache | parameters | defect |", "|---|---|---|---|---|---|---|"]
    for one in cards:
        cells = (
            f"[{one['name']}](#{one['name']})",
            one["cost"],
            one["memory"],
            "yes" if one["causal"] else "no",
            cache_words(one["cache"]),
            f"{one['parameters']['layer']:,}",
            one["defect"],
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def section(one: dict[str, Any]) -> str:
    """One card."""
    paper = f" Paper: [{one['paper']}]({one['link']})." if one["paper"] else ""
    parts = [f"## {one['name']}", one["summary"] + paper]
    if one["defect"]:
        parts.append(f"**Defect:** {one['defect']}.")
    parts += one["description"].split("\n") if one["description"] else []
    parts += [
        f"**Costs:** {one['costs']}",
        f"**Cannot:** {one['cannot']}",
        f"**Its weights:** {WEIGHTS[one['weights']]}.",
    ]
    if one["options"]:
        lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
        lines += [f"| {o['name']} | {o['type']} | {o['default']} | {o['meaning']} |" for o in one["options"]]
        parts.append("\n".join(lines))
    parts.append(f"```bash\n{one['usage']}\n```")
    return "\n\n".join(parts)
