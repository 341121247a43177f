"""The verb that compares: mechanisms, presets, values of one setting, or finished runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.cli.common import NONE, Settings, TrustCode, Whole, app, collect, console, errors, read_seeds, show_json
from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.studies.compare import Plan


@app.command
def compare(
    *specimens: str,
    task: str | None = None,
    seeds: str | None = None,
    vary: str | None = None,
    corpus: str | None = None,
    dev: str | None = None,
    facts: str | None = None,
    exam: str | None = None,
    probe: list[str] | None = None,
    out: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    mechanism: str | None = None,
    jobs: Whole = 0,
    all_pairs: bool = False,
    quick: bool = False,
    plan: bool = False,
    difference: float | None = None,
    trust_code: TrustCode = False,
    json: bool = False,
    given: Settings = NONE,
) -> None:
    """Compare mechanisms, or any one setting: audited, trained in turn with several seeds, tested, reported.

    Specimens are mechanisms (dot additive, path.py:Class), presets or settings files that differ in one setting, or finished
    runs; or say --vary SETTING=VALUE,VALUE. The first is what the others are held against. Stopped, `attnlab resume` goes on.

    Parameters
    ----------
    specimens
        What is compared.
    task
        words (perplexity of text), recall, spans or questions (answers). Default: that of the preset.
    seeds
        How many runs of each (default 3), or their seeds: 3,4,5.
    vary
        One setting with its values, such as train.lr=0.001,0.002.
    corpus
        Text to learn, one sentence or document a line: a file, or prose:train, people (built in).
    dev
        Other text to be measured on, for words: a file, or prose:dev.
    facts
        Training questions, question<TAB>answer a line: a file, or people:train.
    exam
        Questions to be examined on, with answers: a file, or people:dev.
    probe
        A sentence to be shown with its loss; may be given several times. Default: the four of the course reports.
    out
        Folder for everything; must not exist. Default: runs/compare-N.
    preset
        Where the settings start from. Default: nano-words, mingpt or small, as the task asks.
    config
        A TOML file with settings that lie over the preset.
    mechanism
        Attention mechanism of all specimens, for --vary.
    jobs
        Runs at a time. Default: one a core, on one thread each; 1 times them undisturbed.
    all_pairs
        Test each with each, not only with the first.
    quick
        Less text: the same story in a minute or two, for a look.
    plan
        Train nothing: say what this comparison can find, and what it would take to find more.
    difference
        With --plan: the gain one would like to find, as a share (0.02 is two points).
    json
        Print the result for programs.
    """
    from attnlab import runs
    from attnlab.studies import compare as comparing

    runs.refuse_several("a comparison")
    if difference is not None and not plan:
        raise UserError("--difference goes with --plan: it says what one would like to find")
    made = comparing.make_plan(
        specimens,
        task=task,
        vary=vary,
        preset=preset,
        config=config,
        given=collect(given, mechanism, None),
        seeds=read_seeds(seeds) if seeds else None,
        data=comparing.Data(corpus, dev, facts, exam),
        jobs=jobs,
        quick=quick,
        all_pairs=all_pairs,
        trust_code=trust_code,
        command="attnlab " + shlex.join(sys.argv[1:]),
        **({"probes": tuple(probe)} if probe else {}),
    )
    if plan:
        tell_plan(made, difference, json)
        return

    result = comparing.begin(made, out or runs.free_name("compare"), errors if json else console)
    if json:
        show_json(result)


def tell_plan(made: Plan, difference: float | None, json: bool) -> None:
    """What a comparison would do and could find."""
    from attnlab.studies import compare as comparing

    comparing.check(made)
    lines = comparing.advise(made, difference)
    names = [one.name for one in made.specimens]
    if json:
        show_json(
            {"specimens": names, "varied": made.varied, "order": made.order(), "jobs": made.jobs, "advice": lines}
        )
        return
    console.print(f"{', '.join(names)} differ in {made.varied} only", soft_wrap=True)
    runs = ", ".join(f"{name} {seed}" for name, seed in made.order())
    console.print(f"{len(made.order())} runs, {made.jobs} at a time: {runs}", soft_wrap=True)
    for line in lines:
        console.print(f"- {line}", soft_wrap=True)
