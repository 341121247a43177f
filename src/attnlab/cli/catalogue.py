"""Verbs that say what there is: params, mechanisms, settings."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from cyclopts import App
from rich.table import Table

from attnlab.cli.common import NONE, Seed, Settings, TrustCode, Whole, app, collect, console, show_json
from attnlab.config import RunConfig, load_preset, preset_names, resolve, type_hints, walk
from attnlab.errors import UserError

HEAVY = 2**28  # parameters of a model that is not built just to count its FLOPs, unless a length is given


@app.command
def params(
    preset: str = "small",
    /,
    *,
    length: Whole | None = None,
    config: Path | None = None,
    json: bool = False,
    given: Settings = NONE,
) -> None:
    """Count the parameters of a preset by part, and the FLOPs that a token takes in a text of some length.

    FLOPs are counted by running the model once: two for every multiply-add that is computed, seen or not; in training forward
    and backward, the optimizer left out.

    Parameters
    ----------
    preset
        The preset.
    length
        Tokens of the text; by default the block.
    config
        A TOML file with settings that lie over it.
    json
        Print for programs.
    """
    from attnlab.flops import Flops, flops_per_token
    from attnlab.model import LanguageModel, count_parameters, meta_model

    model = resolve(preset, "pretrain", config, collect(given, None, None)).model
    parts = count_parameters(meta_model(model))
    tokens, flops = model.block_size if length is None else length, dict[str, Flops]()
    if length is not None or sum(parts.values()) <= HEAVY:
        real = LanguageModel(model)
        flops = {way: flops_per_token(real, tokens, training=way == "training") for way in ("forward", "training")}
    if json:
        counted = {"length": tokens, **{way: one.to_dict() for way, one in flops.items()}} if flops else None
        show_json({"preset": preset, "parts": parts, "total": sum(parts.values()), "flops_per_token": counted})
        return
    table = Table("part", "parameters", *(f"FLOPs a token, {way}" for way in flops), title=preset)
    for column in table.columns[1:]:
        column.justify = "right"
    for part, count in parts.items():
        table.add_row(part, f"{count:,}", *(shown(one.to_dict().get(part.lower())) for one in flops.values()))
    if any(one.other for one in flops.values()):
        table.add_row("other", "", *(shown(one.other) for one in flops.values()))
    table.add_section()
    table.add_row("total", f"{sum(parts.values()):,}", *(shown(one.total) for one in flops.values()), style="bold")
    console.print(table)
    if flops:
        console.print(f"FLOPs of a token in a text of {tokens:,} tokens")
    else:
        console.print("too large to be built in passing: --length N counts its FLOPs, in a text of N tokens")


def shown(flops: float | None) -> str:
    """A number of FLOPs, or nothing."""
    return f"{flops:,.0f}" if flops else ""


mechanisms_app = App(name="mechanisms", help="List the attention mechanisms, or look closely at one of them.")
app.command(mechanisms_app)


@mechanisms_app.default
def mechanisms(*, json: bool = False, markdown: bool = False) -> None:
    """List the attention mechanisms.

    Parameters
    ----------
    json
        Print for programs.
    markdown
        Print the page docs/mechanisms.md, made from the cards.
    """
    from attnlab import meters
    from attnlab.meters.screen import show_list

    entries = meters.entries()
    if markdown:
        sys.stdout.write(meters.page())
    elif json:
        keys = ("name", "card", "paper", "cost", "causal", "defect", "weights", "knobs")
        show_json([{key: getattr(entry, key) for key in keys} for entry in entries])
    else:
        show_list(entries, console)


@mechanisms_app.command(name="show")
def mechanisms_show(
    name: str,
    /,
    *,
    error: bool = False,
    run: Path | None = None,
    std: tuple[float, ...] = (0.5, 1.0, 2.0),
    causal: bool = False,
    draws: Whole = 32,
    seed: Seed = 0,
    out: Path | None = None,
    trust_code: TrustCode = False,
    json: bool = False,
) -> None:
    """Print the card of a mechanism; with --error, measure how far it lies from exact attention.

    The error is that of the same queries, keys and values, over the options that trade cost for nearness, and always
    beside the trivial answer, the mean of the values.

    Parameters
    ----------
    name
        A mechanism, or path.py:ClassName.
    error
        Measure the error.
    run
        Take queries, keys and values from a trained model, on texts of its corpus, and not at random.
    std
        Spreads of the entries of random queries and keys.
    causal
        Measure the causal form; that of a run always is.
    draws
        How often samples and random parts are drawn.
    seed
        Seed of the draws.
    out
        Folder for a picture of the patterns and, with --error, for pictures and numbers; must not exist.
    json
        Print for programs.
    """
    from attnlab import meters, registry
    from attnlab.meters import screen
    from attnlab.runs import refuse_existing, write_folder

    entry = registry.find("mechanism", name)
    if draws < 1:
        raise UserError(f"--draws must be at least 1, not {draws}")
    if run and not error:
        raise UserError("--run says where the queries and keys of --error come from: add --error")
    if out:
        refuse_existing(out)
    found = None
    if error:
        source = (
            meters.run_source(run, seed, trust_code=trust_code)
            if run
            else meters.random_source(std, causal=causal, seed=seed)
        )
        found = meters.examine(entry, source, draws, seed)
    if out:
        write_folder(out, "approximation", meters.pattern_files(entry) | (found.files() if found else {}))
    if json:
        written = sorted(str(path) for path in out.iterdir()) if out else []
        show_json({**meters.card(entry), "error": found.to_dict() if found else None, "files": written})
        return
    if found is None:
        screen.show_card(meters.card(entry), console)
    else:
        screen.show_findings(found, console)
    if out:
        console.print(f"written: {out}", soft_wrap=True)


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
    from attnlab import registry

    meanings = dict(meanings_of(RunConfig))
    for option in registry.find("task", values["task"]["name"]).described():
        values["task"]["options"].setdefault(option.name, option.default)
        meanings[f"task.options.{option.name}"] = option.meaning
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
