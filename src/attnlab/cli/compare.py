"""The command that compares: mechanisms, presets, values of one setting, or finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from attnlab.cli import options as opt
from attnlab.cli.common import COMPARE, app, console, errors, show_json
from attnlab.cli.options import NONE, SETTINGS_HINT, about, collect, default, read_seeds, typed_command
from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.studies.compare import Plan


@app.command(group=COMPARE, help_epilogue=SETTINGS_HINT)
def compare(
    *specimens: Annotated[str, about("What to compare; the first is the baseline.")],
    task: Annotated[
        str | None, about("Task: words, recall, spans or questions."), default("that of the preset")
    ] = None,
    seeds: opt.Seeds | None = None,
    vary: Annotated[str | None, about("One setting with its values, such as train.lr=0.001,0.002.")] = None,
    corpus: opt.Corpus | None = None,
    dev: opt.Dev | None = None,
    facts: opt.Facts | None = None,
    exam: Annotated[opt.Exam | None, about("Test questions with answers: a file, or people:dev.")] = None,
    probe: opt.Probe | None = None,
    out: Annotated[opt.Out | None, default("runs/compare-N")] = None,
    preset: Annotated[opt.Preset | None, default("that of the task")] = None,
    config: opt.Config | None = None,
    mechanism: Annotated[opt.Mechanism | None, about("Attention mechanism of all, for --vary.")] = None,
    jobs: opt.Jobs = 0,
    all_pairs: Annotated[bool, about("Test every pair, not only each against the first.")] = False,
    quick: opt.Quick = False,
    plan: Annotated[bool, about("Train nothing: say what this comparison can find.")] = False,
    difference: Annotated[float | None, about("With --plan: difference to find; 0.02 is two points.")] = None,
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
    given: opt.Settings = NONE,
) -> None:
    """Compare mechanisms, or any one setting, with several seeds each and a statistical test.

    Compares mechanisms (dot additive, path.py:Class), presets or settings files that differ in one
    setting, or finished runs; or the values of one setting, with --vary. Each is audited first.
    Resume a stopped comparison with `attnlab resume`.
    """
    from attnlab import machine, runs
    from attnlab.studies import compare as comparing

    machine.require_single_process("a comparison")
    if difference is not None and not plan:
        raise UserError("--difference goes with --plan: add --plan, or leave it out")
    made = comparing.make_plan(
        specimens,
        task=task,
        vary=vary,
        preset=preset,
        config=config,
        given=collect(given, mechanism),
        seeds=read_seeds(seeds),
        data=comparing.Data(corpus, dev, facts, exam),
        jobs=jobs,
        quick=quick,
        all_pairs=all_pairs,
        trust_code=trust_code,
        command=typed_command(),
        **({"probes": tuple(probe)} if probe else {}),
    )
    if plan:
        _tell_plan(made, difference, json)
        return

    result = comparing.begin(made, out or runs.unused_path("compare"), errors if json else console)
    if json:
        show_json(result)


def _tell_plan(made: Plan, difference: float | None, json: bool) -> None:
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
