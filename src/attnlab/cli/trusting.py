"""Verbs that ask a run and say how far to believe it: ask, calibrate."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.cli.common import MaxRisk, TrustCode, Whole, app, console, indexing, show_json
from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.trust import Answer


@app.command
def ask(
    folder: Path,
    question: str,
    /,
    *,
    max_risk: MaxRisk = 0.1,
    top: Whole = 5,
    trust_code: TrustCode = False,
    json: bool = False,
) -> None:
    """Ask a run one question: its answer with a probability and a verdict, or that it had better not answer.

    recalled and supported  it is confident, and the line it read about the name says so
    inferred                confident; the line does not say so, and names no other answer of that kind
    contradicts its source  confident; the line does not say so, and names another
    guess                   not confident
    never seen              no line that it read is about the name

    Parameters
    ----------
    folder
        The run.
    question
        The question, as the training questions are phrased.
    max_risk
        Share of answers that may be wrong; below the confidence that this takes it abstains (after `attnlab calibrate`).
    top
        How many of the likeliest answers to show.
    json
        Print for programs.
    """
    if not question.strip():
        raise UserError("the question is empty: write one, such as 'Where was Hank Aaron born?'")
    if top < 1:
        raise UserError(f"--top must be at least 1, not {top}")
    if not 0 < max_risk < 1:
        raise UserError(f"--max-risk must lie between 0 and 1, such as 0.1, not {max_risk:g}")
    from attnlab.trust import Witness

    with indexing() as progress:
        witness = Witness(folder, progress, trust_code=trust_code)
    answer = witness.answer(question, max_risk, top)
    if json:
        likeliest = [{"answer": said, "probability": share} for said, share in answer.alternatives]
        documents = list(answer.lines) if answer.looked_up else None
        show_json({**asdict(answer), "answers": likeliest, "documents": documents})
        return
    tell_answer(answer)


def tell_answer(answer: Answer) -> None:
    """An answer for people."""
    from attnlab.trust.verdict import GUESS, UNSEEN, percent

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    sure = percent(answer.probability)
    if answer.abstains and answer.verdict in (GUESS, UNSEEN):
        say(f"no answer: {answer.verdict} (it would have said {answer.answer}, {sure})")
    elif answer.abstains:
        say(f"no answer at this risk (it would have said {answer.answer}, {sure}: {answer.verdict})")
    else:
        say(f"{answer.answer}: {answer.verdict} ({sure})")
    if answer.quote:
        say(f"  read: {answer.quote}")
    for reason in answer.reasons:
        say(f"  {reason}")
    if answer.nearest:
        say("  the nearest names that it knows, and what it says of them:")
        for one in answer.nearest:
            say(f"  {100 * one.similarity:5.0f} %  {one.name}" + (f": {one.answer}" if one.answer else ""))
    say("likeliest:")
    for said, share in answer.alternatives:
        say(f"{percent(share):>9}  {said}")
    say(f"{percent(max(0.0, 1 - sum(share for _, share in answer.alternatives))):>9}  (anything else, or nothing)")
    if answer.rule not in answer.reasons:
        say(answer.rule)


@app.command
def calibrate(
    folder: Path, /, *, questions: str | None = None, trust_code: TrustCode = False, json: bool = False
) -> None:
    """Find out how far a run's confidence can be trusted, and keep it in the run's folder for `attnlab ask`.

    It takes questions with answers that the run was not trained on, about names that it read: a few hundred. Half of them
    choose a temperature and thresholds, the other half certifies what the thresholds promise.

    Parameters
    ----------
    folder
        The run.
    questions
        Held-out questions, question<TAB>answer a line: a file, or people:dev. Default: people:dev for the built-in people.
    json
        Print for programs.
    """
    from attnlab import corpora, trust
    from attnlab.runs import Run, refuse_several

    refuse_several("a calibration")
    opened = Run.open(folder)
    source = questions or trust.usual_questions(opened)
    with indexing() as progress:
        found = trust.calibrate(opened, corpora.load_questions(source), progress, trust_code=trust_code)
    summary = {"run": str(folder), "source": source, **found.summary()}
    if json:
        show_json(summary)
        return
    tell_calibration(summary)


def tell_calibration(summary: dict[str, Any]) -> None:
    """A calibration for people."""

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    right, low, high = (100 * summary[key] for key in ("accuracy", "low", "high"))
    say(
        f"{summary['questions']:,} questions that it was not trained on, {summary['candidates']:,} answers to choose"
        f" from: {right:.1f} % right (95 % interval {low:.1f} to {high:.1f} %)"
    )
    if summary["strangers"]:
        say(f"left out: {summary['strangers']:,} that name nobody that a line it read is about")
    before, after, perfect = (100 * summary[key] for key in ("ece_before", "ece_after", "ece_if_calibrated"))
    say(
        f"temperature {summary['temperature']:.3f}: calibration error {before:.1f} % before, {after:.1f} % after"
        f" (by chance alone about {perfect:.1f} %)"
    )
    if summary["note"]:
        say(f"note: {summary['note']}")
    if summary["auroc"]:
        area, low, high = (summary["auroc"][key] for key in ("value", "low", "high"))
        span = f" ({low:.3f} to {high:.3f})" if low is not None else ""
        say(f"its confidence tells right from wrong answers: AUROC {area:.3f}{span}, where 0.5 is chance")
    for rule in summary["rules"]:
        say(f"\nat most {100 * rule['max_risk']:.0f} % wrong: {rule['words']}")
    say(f"\nkept in the run; ask it: attnlab ask {shlex.quote(summary['run'])} 'QUESTION' --max-risk 0.1")
