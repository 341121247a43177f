"""Score every attention head for what heads are known to do: previous token, same token, induction, copying, averaging.

    scored = score_heads(model, tokenizer)                       # on repeated random tokens
    scored = score_heads(model, tokenizer, "the cat sat on the mat")
    scored.heads[0].induction, scored.chance.induction

The scores are those of the interpretability literature (docs/looking.md). A layer without weights over tokens has no
scores, and is listed so. A model and tokens in, a record out, and from it a picture and a page; knows nothing about folders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab.errors import UserError
from attnlab.inside.look import (
    encode_to_show,
    heat_picture,
    is_over_tokens,
    look_files,
    no_pattern,
    refuse_bottleneck,
    row_shares,
)
from attnlab.inside.taps import capture, eval_mode
from attnlab.lm.model import Block, LanguageModel
from attnlab.lm.tokenizers import Tokenizer
from attnlab.mechanisms.heads import Attention
from attnlab.report.document import Cell, Code, Column, Document, HeatMap, Row, Section, Table, Text
from attnlab.report.parts import columns, folded, text_column
from attnlab.report.words import NOTHING, capital, plural

_ROWS, _LONGEST = 8, 50  # random texts, and tokens before each is repeated
_ROLE = 0.5  # of the way from chance to 1: from here on a head is named after a score
_EVEN = 0.95  # of the largest entropy: from here on a head averages


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
class Scores:
    """The scores of a head, means over the tokens that can show them; None where none can."""

    largest: float | None = None
    averaging: float | None = None
    previous: float | None = None
    same: float | None = None
    induction: float | None = None
    first: float | None = None
    copying: float | None = None

    def in_order(self) -> list[float | None]:
        """The scores in the order of `SCORES`."""
        return [getattr(self, name) for name in SCORES]


@dataclass(frozen=True, kw_only=True)
class HeadScores(Scores):
    """A head with its scores; numbers count from 1."""

    layer: int
    head: int
    tap: str
    mechanism: str
    role: str = ""  # the score that the head is named after

    @property
    def name(self) -> str:
        """Layer and head."""
        return f"layer {self.layer}, head {self.head}"


@dataclass(frozen=True)
class ScoredHeads:
    """All heads of a model, scored on a text or on repeated random tokens; `chance` are the scores of even weights."""

    text: str | None
    texts: int
    tokens: int
    heads: Sequence[HeadScores]
    chance: Scores
    unread: Sequence[int] = ()  # layers without weights over tokens

    @property
    def read(self) -> str:
        """What the heads read, in words."""
        if self.text is not None:
            return f"“{self.text}”, {plural(self.tokens, 'token')}"
        return f"{plural(self.texts, 'text')} of random tokens, each repeated once: {plural(self.tokens, 'token')} per text"

    @property
    def rows(self) -> list[tuple[str, str, list[float | None]]]:
        """Name, role and scores of every head, and last those of even weights."""
        heads = [(head.name, ROLES.get(head.role, NOTHING), head.in_order()) for head in self.heads]
        return [*heads, ("even weights", "chance", self.chance.in_order())]

    def record(self) -> ScoredHeads:
        """Everything in numbers, ready for JSON."""
        return self

    def files(self, run: str, command: str) -> dict[str, bytes]:
        """The page, the picture and the numbers, as files."""
        picture = heat_picture(self._heat(), f"What the heads of {run} do", f"reading {self.read}")
        return look_files(run, self.document(run, command), "heads.png", picture, self)

    def _repr_html_(self) -> str:
        return self.document()._repr_html_()

    def document(self, run: str = "", command: str = "") -> Document:
        """The page."""
        explained = Text([f"{title}: {note}." for title, note in SCORES.values()], style="list")
        means = Text(
            ["Means over all tokens that can show a score; “even weights” is a head that attends to all alike."]
        )
        return Document(
            kind="look",
            title="What the heads of a model do",
            lead=_sentences(self.heads),
            sections=[
                Section("Scores", [self._heat(), folded("In numbers", _table(self))]),
                Section("What the scores mean", [explained, means]),
                Section("Reproduce", [Code(command)]),
            ],
            notices=no_pattern(self.unread, ", so its heads cannot be scored; see attnlab.influence."),
            about=f"The model of {run}, reading {self.read}.",
            footer="The picture is heads.png, the numbers are in result.json.",
        )

    def _heat(self) -> HeatMap:
        names, titles = [name for name, _, _ in self.rows], [title for title, _ in SCORES.values()]
        values = [[math.nan if score is None else round(score, 2) for score in scores] for _, _, scores in self.rows]
        label = f"Heat map of the scores of {plural(len(self.heads), 'head')}; the table below has the numbers"
        return HeatMap("Scores of heads", label, values, names, titles, numbers=True, cell=36.0)


def _written(score: float | None) -> str:
    return NOTHING if score is None else f"{score:.2f}".replace("-", "−")


def _sentences(heads: Sequence[HeadScores]) -> list[str]:
    """What the heads do, by role."""
    sentences = [
        f"{capital(words)}: {', '.join(head.name for head in named)}."
        for role, words in ROLES.items()
        if (named := [head for head in heads if head.role == role])
    ]
    return sentences or ["No head has one of these roles."]


def _table(scored: ScoredHeads) -> Table:
    rows = [
        Row(Cell(name), [Cell(role), *(Cell(_written(score), score) for score in scores)])
        for name, role, scores in scored.rows
    ]
    rows[-1] = replace(rows[-1], tone="baseline")
    caption = (
        f"Heads reading {scored.read}. A head has a role if that score is more than half of the way from chance to 1,"
        " or if its weights are nearly even."
    )
    titles = [Column(title, note=note) for title, note in SCORES.values()]
    return Table("Scores of heads", caption, columns("Head", text_column("Role"), *titles), rows, True)


# Scoring


def score_heads(
    model: LanguageModel, tokenizer: Tokenizer, text: str | None = None, *, question: bool = False, seed: int = 0
) -> ScoredHeads:
    """Score all heads on a text, or without one on random tokens that are repeated once."""
    refuse_bottleneck(model)
    if text:
        rows = [encode_to_show(model, tokenizer, text, question)]
    else:
        rows = repeated_tokens(tokenizer, model.config.block_size, seed)
    ids = torch.tensor(rows, device=model.device)
    if ids.shape[1] < 2:
        raise UserError("the text has one token, and a head can only attend to it: write more")
    with eval_mode(model), torch.no_grad(), capture(model) as seen:
        model(ids)
    even = torch.ones(ids.shape[1], ids.shape[1]).tril()
    (chance,) = pattern_scores((even / even.sum(-1, keepdim=True))[None, None], ids.cpu())
    chance = replace(chance, copying=0.0)
    names, heads, unread = model.config.mechanisms, [], []
    for layer in range(model.config.n_layer):
        pattern = seen.get(tap := f"blocks.{layer}.attn.hook_pattern")
        if pattern is None or not is_over_tokens(pattern, ids.shape[1]):
            unread.append(layer + 1)
            continue
        by_head = pattern_scores(pattern, ids.cpu())
        copying: Sequence[float | None] = copying_scores(model, layer, tokenizer.size) or [None] * len(by_head)
        for number, (scores, copies) in enumerate(zip(by_head, copying, strict=True), start=1):
            heads.append(
                HeadScores(
                    layer=layer + 1,
                    head=number,
                    tap=tap,
                    mechanism=names[layer % len(names)],
                    role=role_of(scores, chance),
                    **vars(replace(scores, copying=copies)),
                )
            )
    return ScoredHeads(text, ids.shape[0], ids.shape[1], heads, chance, unread)


def repeated_tokens(tokenizer: Tokenizer, block_size: int, seed: int = 0) -> list[list[int]]:
    """Texts of distinct random tokens followed by the same tokens again, after the start symbol if there is one."""
    special = {tokenizer.pad, tokenizer.start, tokenizer.unknown, *tokenizer.stops}
    ordinary = torch.tensor([token for token in range(tokenizer.size) if token not in special])
    opening = [] if tokenizer.start is None else [tokenizer.start]
    length = min(_LONGEST, (block_size - len(opening)) // 2, len(ordinary))
    if length < 2:
        raise UserError(
            f"a block of {block_size} tokens and {len(ordinary)} symbols are too few for repeated tokens: give a text"
        )
    generator = torch.Generator().manual_seed(seed)
    halves = [ordinary[torch.randperm(len(ordinary), generator=generator)[:length]].tolist() for _ in range(_ROWS)]
    return [opening + half + half for half in halves]


def pattern_scores(pattern: Float[Tensor, "#B H T T"], ids: Int[Tensor, "B T"]) -> list[Scores]:
    """The scores of every head that follow from its weights; None where no token of the text can show them.

    Rows are made absolute and normalised to sum to 1, as some mechanisms have negative weights or sums below 1.
    """
    rows = row_shares(pattern.cpu()).expand(len(ids), -1, -1, -1)
    tokens = ids.shape[1]
    visible = torch.arange(2, tokens + 1, dtype=rows.dtype)  # tokens that each row but the first may attend to
    entropy = torch.special.entr(rows[:, :, 1:]).sum(-1) / visible.log()
    scores = {
        "largest": rows[:, :, 1:].amax(-1).mean((0, 2)).tolist(),
        "averaging": entropy.mean((0, 2)).tolist(),
        **{name: _mean_weight(rows, places) for name, places in _targets(ids).items()},
    }
    return [Scores(**dict(zip(scores, values, strict=True))) for values in zip(*scores.values(), strict=True)]


def _targets(ids: Int[Tensor, "B T"]) -> dict[str, Bool[Tensor, "B T T"]]:
    """Where a head of each kind looks (key) from each token (query)."""
    tokens = ids.shape[1]
    same = (ids[:, :, None] == ids[:, None]).tril(-1)
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]
    first = torch.zeros(tokens, tokens, dtype=torch.bool)
    first[1:, 0] = True
    return {
        "previous": torch.ones(tokens - 1, dtype=torch.bool).diag(-1).expand_as(same),
        "same": same,
        "induction": after.tril(-1),
        "first": first.expand_as(same),
    }


def _mean_weight(rows: Float[Tensor, "B H T T"], places: Bool[Tensor, "B T T"]) -> list[float | None]:
    """The weight of every head on these places, averaged over the queries that have any."""
    asked = places.any(-1)
    if not asked.any():
        return [None] * rows.shape[1]
    weights = (rows * places[:, None]).sum(-1).transpose(1, 2)[asked]
    return list(weights.mean(0).tolist())


def copying_scores(model: LanguageModel, layer: int, symbols: int) -> list[float] | None:
    """How far every head writes the token that it reads: Σλ / Σ|λ| over the eigenvalues of its OV circuit.

    The circuit maps a token, straight from its embedding, to the logits that the head's output adds: W_U W_O W_V W_E. Its
    nonzero eigenvalues are those of a matrix of the head's width. 1: every direction is copied; 0: chance; -1: suppressed.
    None for a mechanism that is no `Attention` or has gates or norms between values and output, and with norms after the
    sums. Norms before enter by their linear part.
    """
    block = model.blocks[layer]
    assert isinstance(block, Block)
    attention = block.attn
    if not isinstance(attention, Attention) or not attention.linear_output or block.post:
        return None
    with torch.no_grad():
        embedded = block.norm1(model.tokens.weight[:symbols])
        bias = getattr(block.norm1, "bias", None)
        embedded = (embedded if bias is None else embedded - bias).double()
        scale = getattr(model.norm, "weight", None)
        read_out = (model.head.weight[:symbols] if scale is None else model.head.weight[:symbols] * scale).double()
        if isinstance(model.norm, torch.nn.LayerNorm):
            read_out = read_out - read_out.mean(-1, keepdim=True)
        heads, groups = attention.heads.n_head, attention.heads.kv_heads
        into = (attention.heads.value or attention.heads.query).weight.double().unflatten(0, (groups, -1))
        into = into.repeat_interleave(heads // groups, dim=0)  # H, C, D
        out = attention.out.weight.double().unflatten(1, (heads, -1)).transpose(0, 1)  # H, D, C
        values = torch.linalg.eigvals(into @ (embedded.T @ read_out) @ out)
        return list((values.real.sum(-1) / values.abs().sum(-1).clamp_min(1e-30)).tolist())


def role_of(scores: Scores, chance: Scores) -> str:
    """The kind of head that the scores show: more than half of the way from chance to 1; empty if none or several."""
    lifts = {
        name: (value - least) / (1 - least)
        for name in ("previous", "same", "induction", "first")
        if (value := getattr(scores, name)) is not None and (least := getattr(chance, name)) is not None and least < 1
    }
    shown = [name for name, lift in lifts.items() if lift >= _ROLE and lift == max(lifts.values())]
    if shown:
        return shown[0] if len(shown) == 1 else ""
    return "averaging" if (scores.averaging or 0.0) >= _EVEN else ""
