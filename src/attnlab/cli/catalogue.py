"""Verbs that say what there is: params, mechanisms, settings."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from attnlab.cli.common import NONE, Settings, app, collect, console, show_json
from attnlab.config import RunConfig, load_preset, preset_names, resolve, type_hints, walk


@app.command
def params(preset: str = "small", /, *, config: Path | None = None, json: bool = False, given: Settings = NONE) -> None:
    """Count the parameters of a preset by part.

    Parameters
    ----------
    preset
        The preset.
    config
        A TOML file with settings that lie over it.
    json
        Print for programs.
    """
    from attnlab.model import count_parameters, on_paper

    parts = count_parameters(on_paper(resolve(preset, "pretrain", config, collect(given, None, None)).model))
    if json:
        show_json({"preset": preset, "parts": parts, "total": sum(parts.values())})
        return
    table = Table("part", "parameters", title=preset)
    table.columns[1].justify = "right"
    for part, count in parts.items():
        table.add_row(part, f"{count:,}")
    table.add_section()
    table.add_row("total", f"{sum(parts.values()):,}", style="bold")
    console.print(table)


@app.command
def mechanisms(*, json: bool = False) -> None:
    """List the attention mechanisms.

    Parameters
    ----------
    json
        Print for programs.
    """
    from attnlab import registry

    entries = [registry.find("mechanism", name) for name in registry.names("mechanism")]
    if json:
        keys = ("name", "card", "paper", "cost", "causal", "defect")
        show_json([{key: getattr(entry, key) for key in keys} for entry in entries])
        return
    table = Table("name", "what it does", "cost", "paper")
    for entry in entries:
        table.add_row(entry.name, entry.card.split("\n")[0], entry.cost, entry.paper)
    console.print(table)


@app.command
def settings(preset: str = "small", /, *, json: bool = False) -> None:
    """List every setting with its meaning and its value in a preset.

    Parameters
    ----------
    preset
        The preset.
    json
        Print for programs.
    """
    values = resolve(preset).to_dict()
    if json:
        show_json(values)
        return
    meanings = dict(meanings_of(RunConfig))
    stages = load_preset(preset)
    table = Table("setting", preset, "meaning")
    special = {stage: dict(walk(stages.get(stage, {}))) for stage in ("finetune", "scratch")}
    for name, value in walk(values):
        other = "".join(f"\n{stage}: {special[stage][name]}" for stage in special if name in special[stage])
        table.add_row(name, str(value) + other, meanings.get(name, ""))
    console.print(table)
    console.print(f"presets: {', '.join(preset_names())}")


def meanings_of(cls: type[Any], prefix: str = "") -> list[tuple[str, str]]:
    """Every setting's dotted name and meaning."""
    found: list[tuple[str, str]] = []
    for one in fields(cls):
        kind = type_hints(cls)[one.name]
        if is_dataclass(kind) and isinstance(kind, type):
            found += meanings_of(kind, f"{prefix}{one.name}.")
        else:
            found.append((prefix + one.name, one.metadata["help"]))
    return found
