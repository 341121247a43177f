"""What every attention head contributes: right answers or perplexity with that head switched off, with intervals over items.

    result = head_contributions(model, lambda: examine(model, tokenizer, questions))
    result = head_contributions(model, lambda: sentence_losses(model, tokenizer, lines))
    result.heads[0].change, result.heads[0].low, result.heads[0].high

A head that is switched off gathers zeros, for all tokens. The intervals hold together for all heads, for other questions or
sentences and this one model. A head may do nothing alone because another does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnlab import stats
from attnlab.errors import UserError
from attnlab.inside import Intervention
from attnlab.inside.ablation import switched_off, taps_in
from attnlab.inside.look import heat_picture, look_files
from attnlab.lm.exams import Examination
from attnlab.lm.model import LanguageModel
from attnlab.lm.perplexity import SentenceLosses
from attnlab.report import parts
from attnlab.report.document import Cell, Code, Column, Document, HeatMap, Section, Table
from attnlab.report.words import listed, plural, span, times

_ALPHA = 0.05

Measured = Examination | SentenceLosses


@dataclass(frozen=True)
class Contribution:
    """The figure with one head switched off, and its change with an interval; layers and heads count from 1."""

    layer: int
    head: int
    value: float
    change: float
    low: float | None
    high: float | None

    @property
    def name(self) -> str:
        """Layer and head."""
        return f"layer {self.layer}, head {self.head}"


@dataclass(frozen=True)
class Contributions:
    """The heads of a model; `value` is the figure of the unchanged model.

    The figure is the share of right answers, and its change a difference; or token perplexity, and its change a ratio.
    """

    figure: str
    items: int
    value: float
    heads: Sequence[Contribution]
    level: float  # of each interval

    @property
    def of_answers(self) -> bool:
        """Whether questions were asked."""
        return self.figure == "accuracy"

    @property
    def measured_on(self) -> str:
        """The items in words."""
        return plural(self.items, "question" if self.of_answers else "text")

    def needed(self) -> list[str]:
        """The names of the heads without which the model is shown to be worse."""
        if self.of_answers:
            return [head.name for head in self.heads if head.high is not None and head.high < 0]
        return [head.name for head in self.heads if head.low is not None and head.low > 1]

    def sentences(self) -> list[str]:
        """What was found."""
        whole = f"{100 * self.value:.1f} % right" if self.of_answers else f"token perplexity {self.value:,.2f}"
        verdict = "No single head is shown to matter."
        needed = [name.replace(",", "") for name in self.needed()]  # "layer 1 head 2", in a list with commas
        if len(needed) == len(self.heads) > 1:
            verdict = "The model is worse without any one of its heads."
        elif needed:
            verdict = f"The model is worse without {listed(needed, 'or')}."
        return [f"All heads: {whole} ({self.measured_on}).", verdict]

    def record(self) -> Contributions:
        """Everything in numbers, ready for JSON."""
        return self

    def files(self, run: str, command: str) -> dict[str, bytes]:
        """The page, the picture and the numbers, as files."""
        heat = self._heat()
        picture = heat_picture(heat, heat.title, f"{run}, measured on {self.measured_on}")
        return look_files(run, self.document(run, command), "heads.png", picture, self)

    def _cell(self, head: Contribution) -> Cell:
        if self.of_answers:
            return parts.difference_cell(head.change, head.low, head.high, "share")
        return Cell(
            f"{times(head.change)} ×", head.change, span(head.low, head.high, "ratio"), low=head.low, high=head.high
        )

    def _heat(self) -> HeatMap:
        """Losses of accuracy in points, or rises of the loss in hundredths of a nat, by layer and head."""
        layers, heads = max(head.layer for head in self.heads), max(head.head for head in self.heads)
        grid = [[math.nan] * heads for _ in range(layers)]
        for head in self.heads:
            harm = -head.change if self.of_answers else math.log(head.change)
            grid[head.layer - 1][head.head - 1] = round(100 * harm, 1)
        largest = max((abs(value) for row in grid for value in row if not math.isnan(value)), default=0.0) or 1.0
        names = [f"layer {layer + 1}" for layer in range(layers)], [f"head {head + 1}" for head in range(heads)]
        unit = "points of right answers" if self.of_answers else "hundredths of a nat of loss"
        label = f"Heat map of what {plural(len(self.heads), 'head')} contribute, in {unit}; the table has the numbers"
        return HeatMap(f"What is lost without each head, in {unit}", label, grid, *names, largest, True, 44.0)

    def document(self, run: str = "", command: str = "") -> Document:
        """The page."""
        return Document(
            kind="look",
            title="What the heads of a model contribute",
            lead=self.sentences(),
            sections=[
                Section("Heads switched off", [self._heat(), self._table()]),
                Section("Reproduce", [Code(command)]),
            ],
            about=f"The model of {run}, with each head switched off in turn; measured on {self.measured_on}.",
            footer="The picture is heads.png, the numbers are in result.json.",
        )

    def _table(self) -> Table:
        figure, kind = ("Right answers", "share") if self.of_answers else ("Token perplexity", "perplexity")
        caption = (
            f"Each head switched off by itself. The {100 * self.level:.4g} % intervals hold together with 95 %, for other"
            f" {'questions' if self.of_answers else 'texts'} and this model."
        )
        return parts.table_of(
            "Heads switched off",
            caption,
            sorted(self.heads, key=lambda head: head.change if self.of_answers else -head.change),
            [
                ("Without", lambda head: Cell(head.name)),
                (figure, lambda head: parts.cell(head.value, kind)),
                (Column("Change", note="a difference" if self.of_answers else "a ratio"), self._cell),
            ],
            brief=True,
        )


def head_contributions(model: LanguageModel, measure: Callable[[], Measured]) -> Contributions:
    """Measure the model, then with each head switched off in turn."""
    layers = [layer for layer in range(model.config.n_layer) if "z" in taps_in(model, layer)]
    places = [(layer, head) for layer in layers for head in range(model.config.n_head)]
    if not places:
        raise UserError("the mechanism of this model has no heads that can be switched off")
    whole, heads, alpha = measure(), [], _ALPHA / len(places)
    if isinstance(whole, Examination) and not whole.answered:
        raise UserError("the questions have no answers to compare with: give QUESTION<TAB>ANSWER per line")
    for layer, head in places:
        with switched_off(model, Intervention(layer, head=head)):
            without = measure()
        heads.append(Contribution(layer + 1, head + 1, _value(without), *_change(without, whole, alpha)))
    of_answers = isinstance(whole, Examination)
    items = len(whole.questions) if isinstance(whole, Examination) else len(whole.losses)
    return Contributions("accuracy" if of_answers else "token perplexity", items, _value(whole), heads, 1 - alpha)


def _value(measured: Measured) -> float:
    return measured.score().accuracy or 0.0 if isinstance(measured, Examination) else measured.token_perplexity


def _change(without: Measured, whole: Measured, alpha: float) -> tuple[float, float | None, float | None]:
    """How the figure changes, with the ends of its interval."""
    if isinstance(without, Examination) and isinstance(whole, Examination):
        test = stats.mcnemar(without.right, whole.right, alpha)
        return test.difference, test.low, test.high
    assert isinstance(without, SentenceLosses)
    assert isinstance(whole, SentenceLosses)
    ratio = stats.compare_perplexities([without.losses], [whole.losses], whole.tokens, alpha=alpha)
    low, high = ratio.both.low, ratio.both.high
    return ratio.ratio, None if low is None else math.exp(low), None if high is None else math.exp(high)
