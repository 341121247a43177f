"""The page: from a study's result to one HTML file that holds its styles, charts and script.

Everything that comes from a result passes through the template with autoescape; only our own SVG is marked as safe, and
the charts escape what they are given. The browser is told to load nothing and to run nothing but the page's own script.
`render` and the frame template serve any report; the rest here is the page of a study with rows, runs and answers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attnlab.report import words
from attnlab.report.answers import shown, tally
from attnlab.report.attention import adds_up, answer_row, heads, left_out, visible
from attnlab.report.charts import WIDTH, Axis, Bar, bar_chart, line_chart
from attnlab.report.confidence import certified, confidence_facts
from attnlab.report.curves import loss_curve
from attnlab.report.heads import viewer
from attnlab.report.outcome import describe, outcome

SMALL = 370  # width of a chart on a small screen, or of one of two side by side
FORMATS: dict[str, Callable[..., str]] = {
    "percent": words.percent,
    "interval": words.interval,
    "count": words.count,
    "duration": words.duration,
    "plain": words.plain,
    "visible": visible,
}


@dataclass(frozen=True)
class Figure:
    """A chart drawn for wide and for small screens, with its title."""

    title: str
    wide: Markup
    small: Markup


def no_break(value: str) -> str:
    """The text with its numbers and units kept on one line."""
    return re.sub(r"(?<=\d) (?=%|(?:h|min|s)\b)", "\u00a0", value)


@cache
def templates() -> Environment:
    """The templates of this package, each read once."""
    environment = Environment(
        loader=PackageLoader("attnlab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**FORMATS, "no_break": no_break}
    return environment


def render(template: str, context: Mapping[str, Any], scripts: Sequence[str] = ("page.js",)) -> str:
    """Fill a template of this package; its scripts become one, whose digest is all that the browser is told to trust."""
    script = "".join(templates().get_template(name).render() for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates().get_template(template).render(script=Markup(script), script_digest=digest, **context)


def accuracy_figure(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """The accuracies as bars with their intervals; baselines stand back."""
    scored = [row for row in rows if "accuracy" in row]
    if not scored:
        return None
    bars = [
        Bar(row["name"], 100 * row["accuracy"], 100 * row["low"], 100 * row["high"], row["kind"] == "baseline")
        for row in scored
    ]
    label = "Bar chart of right answers. " + "; ".join(describe(row) for row in scored)
    wide, small = (
        bar_chart(bars, Axis("right answers", "%"), label=label, width=width, written=lambda value: f"{value:.1f} %")
        for width in (WIDTH, SMALL)
    )
    return Figure("Right answers, with 95 % intervals", Markup(wide), Markup(small))


def loss_figure(name: str, run: Mapping[str, Any]) -> Figure:
    """The loss of one run over the tokens it read."""
    series, tokens = loss_curve(run["metrics"])
    ends = f"from {series.y[0]:.2f} to {series.y[-1]:.2f} " if series.y else ""
    label = f"Line chart of the training loss of {name}: {ends}nats a token, over {tokens}"
    wide, small = (
        line_chart(
            [series], Axis(tokens), Axis("loss", "nats a token", low=0.0), label=label, width=width, height=height
        )
        for width, height in ((WIDTH, 300), (SMALL, 260))
    )
    return Figure(name, Markup(wide), Markup(small))


def attention_part(attention: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the template needs to show the attention, if there is any."""
    if not attention or not attention["tokens"] or not any(attention["patterns"]):
        return None
    every, tokens = heads(attention), attention["tokens"]
    row = answer_row([visible(token) for token in tokens])
    return {
        "question": attention["question"],
        "answer": attention["answer"],
        "viewer": viewer(every, tokens, row, min(24.0, 560 / len(tokens)), {}),
        "adds_up": adds_up(every),
        "left_out": left_out(attention),
    }


def page(result: Mapping[str, Any]) -> str:
    """The whole page of a study."""
    answers = {side: [shown(item, side == "right") for item in result["answers"][side]] for side in ("right", "wrong")}
    context = {
        "result": result,
        "outcome": outcome(result["rows"], result["world"]),
        "accuracy": accuracy_figure(result["rows"]),
        "scored": any("accuracy" in row for row in result["rows"]),
        "losses": [loss_figure(name, run) for name, run in result["runs"].items() if run["metrics"]],
        "answers": answers,
        "tally": tally(answers["wrong"]),
        "attention": attention_part(result.get("attention")),
        "certified": certified(result["calibration"]) if result.get("calibration") else "",
        "confidence": confidence_facts(result["calibration"]) if result.get("calibration") else [],
        "environment_facts": [(name, words.plain(value)) for name, value in result["environment"].items()],
        "settings": {name: list(words.flat(run["settings"])) for name, run in result["runs"].items()},
    }
    return render("study.html.j2", context)
