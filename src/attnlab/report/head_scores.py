"""The report of `attnlab look --heads`: the scores of every head as a table, a page and one PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from attnlab.pictures import picture_bytes
from attnlab.report.charts import shorten
from attnlab.report.document import Cell, Code, Column, Document, HeatMap, Notice, Row, Section, Table, Text
from attnlab.report.legacy_parts import folded, text_column
from attnlab.report.words import NOTHING, capital, plural

SCORES = {  # names of scores: titles, and what they measure
    "largest": (
        "One value",
        "the largest weight of a row: 1 if the output is the value of one token (copying in part A)",
    ),
    "averaging": (
        "Averaging",
        "the entropy of a row over the largest possible: 1 if all visible tokens weigh the same",
    ),
    "previous": ("Previous token", "the weight on the token before"),
    "same": ("Same token", "the weight on earlier tokens that are the same as the current one"),
    "induction": ("Induction", "the weight on tokens that follow an earlier occurrence of the current one"),
    "first": ("Beginning", "the weight on the first token"),
    "copying": (
        "OV copying",
        "Σλ/Σ|λ| of the OV circuit's eigenvalues: 1 if what is read is written, −1 if suppressed",
    ),
}
ROLES = {
    "first": "beginning of text",
    **{name: title.lower() for name, (title, _) in SCORES.items() if name != "first"},
}


@dataclass(frozen=True)
class HeadScores:
    """The scores of a head, means over the tokens that can show them; None where none can. Numbers count from 1."""

    layer: int
    head: int
    tap: str
    mechanism: str
    largest: float | None = None
    averaging: float | None = None
    previous: float | None = None
    same: float | None = None
    induction: float | None = None
    first: float | None = None
    copying: float | None = None
    role: str = ""  # the score that the head is named after

    @property
    def scores(self) -> list[float | None]:
        """The scores in the order of `SCORES`."""
        return [getattr(self, name) for name in SCORES]

    @property
    def name(self) -> str:
        """Layer and head."""
        return f"layer {self.layer}, head {self.head}"


@dataclass(frozen=True)
class Scored:
    """All heads of a model, scored on a text or on repeated random tokens; `chance` are the scores of even weights."""

    text: str | None
    texts: int
    tokens: int
    heads: Sequence[HeadScores]
    chance: HeadScores
    unread: Sequence[int] = ()  # layers without weights over tokens

    def summary(self) -> dict[str, object]:
        """Plain values, ready for JSON."""
        chance = dict(zip(SCORES, self.chance.scores, strict=True))
        heads = [asdict(one) for one in self.heads]
        return {"text": self.text, "texts": self.texts, "tokens": self.tokens, "heads": heads, "chance": chance} | {
            "no_pattern": list(self.unread)
        }

    def _repr_html_(self) -> str:
        return document(self, "", "")._repr_html_()

    @property
    def read(self) -> str:
        """What the heads read, in words."""
        if self.text is not None:
            return f"“{self.text}”, {plural(self.tokens, 'token')}"
        return f"{plural(self.texts, 'text')} of random tokens, each repeated once: {plural(self.tokens, 'token')} per text"


def _sentences(scored: Scored) -> list[str]:
    """What the heads do, by role."""
    found = [
        f"{capital(words)}: {', '.join(one.name for one in heads)}."
        for role, words in ROLES.items()
        if (heads := [one for one in scored.heads if one.role == role])
    ]
    return found or ["No head has one of these roles."]


def _table(scored: Scored) -> Table:
    def written(value: float | None) -> Cell:
        return Cell(NOTHING if value is None else f"{value:.2f}".replace("-", "−"), value)

    rows = [
        Row(Cell(one.name), [Cell(ROLES.get(one.role, NOTHING)), *map(written, one.scores)]) for one in scored.heads
    ]
    rows.append(Row(Cell("even weights"), [Cell("chance"), *map(written, scored.chance.scores)], tone="baseline"))
    caption = (
        f"Heads reading {scored.read}. A head has a role if that score is more than half of the way from chance to 1,"
        " or if its weights are nearly even."
    )
    titles = [Column(title, note=note) for title, note in SCORES.values()]
    return Table("Scores of heads", caption, [Column("Head", number=False), text_column("Role"), *titles], rows, True)


def document(scored: Scored, run: str, command: str) -> Document:
    """The whole report."""
    nan = float("nan")
    lines = [
        [nan if value is None else round(value, 2) for value in one.scores] for one in (*scored.heads, scored.chance)
    ]
    names, titles = [*(one.name for one in scored.heads), "even weights"], [title for title, _ in SCORES.values()]
    label = f"Heat map of the scores of {plural(len(scored.heads), 'head')}; the table below has the numbers"
    notices = []
    if scored.unread:
        which = f"layer{'s' * (len(scored.unread) > 1)} {', '.join(map(str, scored.unread))}"
        words = "The mechanism there has no weights over tokens, so its heads cannot be scored; see attnlab.influence."
        notices.append(Notice(f"No pattern in {which}.", words))
    explained = Text([f"{title}: {note}." for title, note in SCORES.values()], style="list")
    means = Text(["Means over all tokens that can show a score; “even weights” is a head that attends to all alike."])
    heat = HeatMap("Scores of heads", label, lines, names, titles, numbers=True, cell=36.0)
    return Document(
        kind="look",
        title="What the heads of a model do",
        lead=_sentences(scored),
        sections=[
            Section("Scores", [heat, folded("In numbers", _table(scored))]),
            Section("What the scores mean", [explained, means]),
            Section("Reproduce", [Code(command)]),
        ],
        notices=notices,
        about=f"The model of {run}, reading {scored.read}.",
        footer="The picture is heads.png, the numbers are in result.json.",
    )


def picture(scored: Scored, run: str) -> bytes:
    """The heat map as a PNG, without any global state of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    shown = [*scored.heads, scored.chance]
    names = [*(one.name for one in scored.heads), "even weights (chance)"]
    figure = Figure(figsize=(8.0, 1.9 + 0.26 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    values = [[float("nan") if value is None else value for value in one.scores] for one in shown]
    colours = LinearSegmentedColormap.from_list("scores", ["#c04f00", "#ffffff", "#00477a"])
    ax.imshow(values, cmap=colours, vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    for row, one in enumerate(values):
        for column, value in enumerate(one):
            text = NOTHING if value != value else f"{value:.2f}".replace("-", "−")
            ax.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color="white" if abs(value) > 0.55 else "#222222",
            )
    ax.set_xticks(range(len(SCORES)), [title for title, _ in SCORES.values()], fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.axhline(len(scored.heads) - 0.5, color="#222222", linewidth=0.8)
    ax.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    for spine in ax.spines.values():
        spine.set_color("#c9ccd1")
    title = f"What the heads of {run} do\nreading {scored.read}"
    ax.set_title("\n".join(shorten(line, 700) for line in title.split("\n")), fontsize=9, parse_math=False)
    return picture_bytes(figure)
