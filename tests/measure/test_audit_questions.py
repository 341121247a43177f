"""What an audit asks, at which lengths, in which modes and of which tokens, and how it measures what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab.config import ModelConfig
from attnlab.errors import ConfigError
from attnlab.inside.taps import Tap
from attnlab.lm.model import LanguageModel
from attnlab.measure import audit
from attnlab.measure.audit import (
    Check,
    _narrow_head,
    _usable_lengths,
    audit_module,
    conclude,
    document,
    leaks,
    questions,
)
from attnlab.measure.audit.leaks import SAME, Setting, worst
from attnlab.measure.audit.subject import (
    CONDITIONS,
    NotTested,
    Subject,
    all_forms,
    dropout_of,
    own_copy,
    randomize_zero_init,
)
from attnlab.registry import Entry

WIDTH = 4


def running_mean(x: Tensor, padding: Tensor | None = None) -> Tensor:
    """The mean of the tokens so far, of which hidden ones do not count."""
    shown = torch.ones(x.shape[:2]) if padding is None else (~padding).float()
    return (x * shown[..., None]).cumsum(1) / shown.cumsum(1).clamp_min(1)[..., None]


# Sizes


def test_sizes_of_small_and_of_infinite_outputs() -> None:
    assert leaks.difference(torch.tensor([1e-3]), torch.tensor([2e-3])) == pytest.approx(0.5)
    assert leaks.difference(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 1.0])) == 0.75
    assert leaks.difference(torch.tensor([-1.0, 1.0]), torch.tensor([-4.0, 1.0])) == 0.75
    assert leaks.difference(torch.tensor([1.0]), torch.tensor([-9.0])) == pytest.approx(10 / 9)
    assert leaks.size_of(torch.tensor([float("nan"), float("inf"), -float("inf"), -0.5, 0.25])) == 0.5


def test_rounding_is_what_departs_from_a_straight_line() -> None:
    x, step = torch.randn(2, 3, WIDTH), torch.tensor([[0.0, 0.1, 0.2], [0.3, 0.0, 0.5]])
    assert leaks.rounding(Subject(lambda x: 3 * x, WIDTH, dtype=torch.float64), x.double(), step).max() < 1e-12
    curved = leaks.rounding(Subject(lambda x: x**2, WIDTH), x, step)
    change = step[..., None] * torch.randn(WIDTH, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(curved, 10 * (2 * (x * change) ** 2).amax(2), rtol=1e-3, atol=1e-5)
    ids = Subject(lambda ids: ids[..., None].float(), WIDTH, reads_ids=True)
    assert leaks.rounding(ids, torch.zeros(2, 3, dtype=torch.long), step).tolist() == [[0.0] * 3] * 2
    drawn: list[float] = []
    noisy = Subject(lambda x: (drawn.append(torch.rand(()).item()), x)[1], WIDTH)
    leaks.rounding(noisy, x, step, seeds=(4, 5, 4))
    assert drawn[0] == drawn[2] != drawn[1]
    infinite = Subject(lambda x: x + float("inf"), WIDTH)
    assert leaks.rounding(infinite, x, step).max() == 0


@pytest.mark.parametrize(
    ("norm", "condition", "steps"),
    [
        (1.0, "", [1e-3, 1e-3]),
        (100.0, "", [1e-4, 1e-4]),
        (0.01, "", [1e-3, 1e-3]),
        (1.0, "repeated tokens", [1e-3]),
    ],
)
def test_a_leak_is_compared_with_how_its_text_rounds(
    monkeypatch: pytest.MonkeyPatch, norm: float, condition: str, steps: list[float]
) -> None:
    """Of the text and of the changed text, with small changes of all tokens, then of those in question only."""
    asked: list[Tensor] = []

    def rounding(subject: Subject, x: Tensor, step: Tensor, padding: Tensor | None) -> Tensor:
        asked.append(step)
        return torch.zeros(x.shape[:2])

    monkeypatch.setattr(leaks, "rounding", rounding)
    subject = Subject(lambda x: x.flip(1), WIDTH, condition=condition)
    assert leaks.future_leak(subject, Setting(5, norm), [2]).max() > 0.1
    assert subject.confirmed == {"later"}
    assert [step.max().item() for step in asked] == pytest.approx(steps * 2)
    assert all((step == step.max()).all() for step in asked[:: len(steps)])
    if not condition:
        assert [(step > 0).tolist() for step in asked[1::2]] == [[[False] * 3 + [True] * 2] * 2] * 2
    asked.clear()
    leaks.future_leak(subject, Setting(5, norm), [2])  # it is known to leak
    assert not asked


def test_what_is_as_small_as_rounding_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(lambda x: x + 1e-3 * x.sum(1, keepdim=True), WIDTH)
    for limit, found in ((1e6, False), (1e-9, True)):
        monkeypatch.setattr(leaks, "rounding", lambda *_, limit=limit: torch.full((2, 5), limit))
        assert bool(leaks.future_leak(subject, Setting(5), [2]).any()) == found


def test_rounding_of_hidden_outputs_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = torch.tensor([[True, False, False, False]])
    monkeypatch.setattr(leaks, "rounding", lambda *_: torch.tensor([[1e6, 0.0, 0.0, 1e6]]))
    subject = Subject(lambda x, padding: x.flip(1), WIDTH)
    found = leaks.future_leak(subject, Setting(4, rows=1, padding=hidden), [2])
    assert (found[0] > 0).tolist() == [False] * 4  # only the first output sees the last token, and it is hidden
    found = leaks.future_leak(subject, Setting(4, rows=1, padding=hidden), [1])
    assert (found[0] > 0).tolist() == [False, True, False, False]


def test_other_ids_are_shifted_by_another_number_at_every_cut() -> None:
    subject, cuts = Subject(nn.Identity(), 5, reads_ids=True), torch.arange(6)
    x = torch.tensor([[0, 1, 2, 3, 4, 0, 1]])
    changed = leaks.opposite_tokens(subject, x, cuts, torch.arange(7) > cuts[:, None])
    assert ((changed - x) % 5)[:, -1].tolist() == [1, 2, 3, 4, 1, 2]
    alone = leaks.opposite_tokens(Subject(nn.Identity(), 1, reads_ids=True), 0 * x, cuts, torch.ones(6, 7).bool())
    assert not alone.any()


def test_influence_is_the_gradient_in_a_random_direction() -> None:
    x = torch.randn(1, 3, WIDTH)
    towards, other = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(5))
    for step in (0.0, 0.1):
        found = leaks.influence(Subject(lambda x: x**2, WIDTH), x, [1, 2], seed=5, step=step)
        expected = (2 * (1 + step) * x[0] * (towards + step * other)).norm(dim=-1)
        assert torch.allclose(found, torch.diag(expected)[1:], rtol=1e-5)


def sizes_of_calls(most: Callable[[Subject], object], width: int = WIDTH) -> list[int]:
    """How many texts each call gets."""
    rows: list[int] = []
    most(Subject(lambda x: (rows.append(len(x)), x)[1], width))
    return rows


def test_a_pass_holds_as_many_texts_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 64, 1)
    assert sizes_of_calls(lambda subject: leaks.influence(subject, x, [0] * 130), width=1) == [128, 2]
    cuts = sizes_of_calls(lambda subject: leaks.future_leak_at_all_cuts(subject, Setting(128)), width=1)
    assert cuts == [1, 1, 64, 63]
    monkeypatch.setattr(leaks, "_NUMBERS", 64 * WIDTH * 3)
    x = torch.randn(1, 64, WIDTH)
    assert sizes_of_calls(lambda subject: leaks.influence(subject, x, [0] * 7)) == [3, 3, 1]
    assert sizes_of_calls(lambda subject: leaks.future_leak_at_all_cuts(subject, Setting(64)))[:3] == [1, 1, 3]
    monkeypatch.setattr(leaks, "_NUMBERS", 1)
    assert sizes_of_calls(lambda subject: leaks.influence(subject, x, [0] * 2)) == [1, 1]
    assert set(sizes_of_calls(lambda subject: leaks.future_leak_at_all_cuts(subject, Setting(5)))) == {1}


def test_shares_of_the_future() -> None:
    found = leaks.future_share(torch.tensor([[1.0, 3.0, 2.0], [1.0, 0.5, 0.25], [1e-20, 1e-20, 1e-20]]), [0, 1, 0])
    assert found.tolist() == pytest.approx([0.75, 0.2, 1e-20 / 3e-12])
    assert leaks.future_share(torch.zeros(2, 3), [0, 1]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("norm", "step"), [(1.0, 1e-4), (0.01, 1e-4), (3.0, 1e-4 / 9), (100.0, 1e-6)])
def test_a_gradient_in_doubt_is_compared_with_how_it_rounds(
    monkeypatch: pytest.MonkeyPatch, norm: float, step: float
) -> None:
    """The strongest is asked for again in every row, at three points of a line."""
    asked: list[tuple[list[int], float]] = []
    rough = [0.0]

    def influence(subject: Subject, x: Tensor, places: Sequence[int], seed: int, step: float = 0.0) -> Tensor:
        asked.append(([*places], step))
        found = torch.ones(len(places), 4)
        found[:, 3] = 3 + rough[0] * abs(step) if places[0] == places[-1] else torch.tensor([1.0, 3.0, 1.0])
        return found

    monkeypatch.setattr(leaks, "influence", influence)
    subject = Subject(nn.Identity(), WIDTH)
    found = leaks.future_gradient(subject, Setting(4, norm), [0, 1, 2])
    assert found.tolist() == pytest.approx([0.5, 0.75, 0.5])
    assert [places for places, _ in asked] == [[0, 1, 2], *[[1, 1, 1]] * 3]
    assert [given for _, given in asked] == pytest.approx([0, -step, 0, step])
    asked.clear()
    assert leaks.future_gradient(subject, Setting(4, norm), [0, 1, 2]).tolist() == pytest.approx(found.tolist())
    assert len(asked) == 1  # it is known to leak
    for curve, confirmed in ((0.1, True), (0.2, False)):  # ten times twice the curve is below 3, or above
        rough[0] = curve / step
        subject = Subject(nn.Identity(), WIDTH)
        assert bool(leaks.future_gradient(subject, Setting(4, norm), [0, 1, 2]).any()) == confirmed
        assert subject.confirmed == ({"gradient"} if confirmed else set())


def test_about_as_many_positions_as_asked_for() -> None:
    for tokens, most in ((513, 12), (150, 12), (513, 64), (100, 8)):
        chosen = leaks.positions(tokens, most, 0)
        ends = {0, 1, tokens // 2, tokens - 2}
        at_random = [place for place in chosen if place % 16 != 15 and place not in ends]
        assert most / 4 <= len(at_random) <= most / 3
        assert most / 3 <= len(chosen) - len(at_random) - len(ends) <= most
        assert chosen != leaks.positions(tokens, most, 1)
        edges = {place for seed in range(9) for place in leaks.positions(tokens, most, seed)}
        assert set(range(15, tokens - 1, 16)) <= edges
    for tokens in (32, 33, 64, 65, 512):  # the last token has no future
        assert max(max(leaks.positions(tokens, 8, seed)) for seed in range(9)) == tokens - 2


# What is asked about the future


Asked = list[tuple[Setting, list[int]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Asked]:
    """Which measurements a question asks for; nothing is measured."""
    every: dict[str, Asked] = {"future_leak": [], "future_leak_at_all_cuts": [], "future_gradient": []}

    def record(name: str) -> Callable[..., Tensor]:
        def measure(_: Subject, setting: Setting, places: Sequence[int] = ()) -> Tensor:
            every[name].append((setting, [*places]))
            if name == "future_gradient":
                return torch.arange(1.0, len(places) + 1)
            return torch.zeros(len(places) or setting.tokens - 1, setting.tokens)

        return measure

    for name in every:
        monkeypatch.setattr(questions, name, record(name))
    return every


def test_where_a_change_of_later_tokens_is_looked_for(asked: dict[str, Asked]) -> None:
    lengths = [1, 2, 3, 64, 65, 66, 150, 200, 300]
    findings = list(questions.future(Subject(nn.Identity(), WIDTH), lengths))
    plain = [setting for setting, _ in asked["future_leak_at_all_cuts"] if not setting.condition]
    assert [setting.tokens for setting in plain] == [2, 3, 64, 65, 300]
    assert {(setting.rows, setting.training) for setting in plain} == {(1, False)}
    under = [(one.condition, one.tokens, one.training) for one, _ in asked["future_leak_at_all_cuts"] if one.condition]
    assert under == [(condition, 64, training) for condition in CONDITIONS for training in (False, True)]
    longer = [(one.condition, one.tokens, one.training, cuts) for one, cuts in asked["future_leak"] if one.condition]
    assert longer == [(name, 150, training, [75, 148]) for name in CONDITIONS for training in (False, True)]
    assert {(setting.rows, setting.norm) for name in asked for setting, _ in asked[name] if setting.condition} == {
        (1, 1)
    }
    few = [(setting, cuts) for setting, cuts in asked["future_leak"] if not setting.condition]
    assert {setting.tokens for setting, _ in few} == {2, 3, 64, 150, 300}
    assert [len(cuts) <= 4 + 2 * 4 for setting, cuts in few if setting.norm == 1] == [True] * 10
    by_mode = [cuts for setting, cuts in few if setting.norm == 1 and setting.tokens == 300]
    assert min(map(len, by_mode)) >= 8
    assert by_mode[0] != by_mode[1]
    assert all(len(cuts) <= 8 for setting, cuts in few if setting.norm != 1 and setting.tokens == 64)
    assert [len(finding.by_position) for finding in findings[: len(few)]] == [
        64 if setting.tokens == 64 else 0 for setting, _ in few
    ]


def test_the_future_is_also_looked_for_with_padding(asked: dict[str, Asked]) -> None:
    list(questions.future(Subject(lambda x, padding=None: x, WIDTH), [1, 2, 64, 150, 300]))
    padded = [setting for setting, _ in asked["future_leak"] if setting.padding is not None]
    assert [(one.tokens, one.training, one.rows) for one in padded] == [(64, False, 4), (150, True, 4)]
    for setting in padded:
        assert setting.padding is not None
        middle = setting.tokens // 2
        assert setting.padding[:, 0].tolist()[:2] == [False, True]  # nothing hidden, the beginning
        assert setting.padding[:, -1].tolist()[:3] == [False, False, True]  # the end
        assert not setting.padding[0].any()
        assert setting.padding[3, middle]


def test_which_gradients_are_looked_at(asked: dict[str, Asked]) -> None:
    findings = list(questions.gradient(Subject(nn.Identity(), WIDTH), [1, 2, 5, 64, 100]))
    found = [(one.tokens, one.norm, one.training) for one, _ in asked["future_gradient"]]
    assert found == [
        *((tokens, 1.0, training) for tokens in (2, 5) for training in (False, True)),
        (64, 1.0, False),
        (64, 1.0, True),
        (64, 0.01, False),
        (64, 100.0, False),
        (100, 1.0, False),
        (100, 1.0, True),
    ]
    for (setting, places), finding in zip(asked["future_gradient"], findings, strict=True):
        everything = setting.tokens <= 64 and setting.norm == 1
        assert (places == list(range(setting.tokens - 1))) == everything
        assert len(places) > 9 or everything
        assert finding.value == len(places)
        assert f"of output {places[-1]} falls" in finding.says
        ranks = {place: rank for rank, place in enumerate(places, start=1)}
        by_position = tuple(float(ranks.get(place, 0)) for place in range(64))
        assert finding.by_position == (by_position if setting.tokens == 64 else ())
    long = [places for setting, places in asked["future_gradient"] if setting.tokens == 100]
    assert long[0] != long[1]


def test_a_leak_in_words() -> None:
    leak = torch.zeros(2, 6)
    leak[1, 2] = 0.25
    says = questions._worst_leak(leak, [0, 3], Setting(6)).says
    assert says == "output 2 moves by 0.25 of its range when tokens 4 and later change (6 tokens, eval())"
    assert "when the last token changes" in questions._worst_leak(leak, [0, 4], Setting(6)).says
    assert questions._worst_leak(leak, [0, 3], Setting(6), True).by_position == (0.0, 0.0, 0.25, 0.0, 0.0, 0.0)


class Seen(nn.Module):
    """A running mean that notes the shape of each call, whether it trains, and what is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, int, bool]] = []
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        self.calls.append((len(x), x.shape[1], self.training))
        return self.weight * running_mean(x, padding)


def test_beginnings_of_texts_in_both_modes() -> None:
    seen = Seen()
    findings = list(questions.prefix(Subject(seen, WIDTH), [1, 2, 5]))
    assert seen.calls == [(2, 5, False), (2, 1, False), (2, 2, False), (1, 5, True), (1, 1, True), (1, 2, True)]
    assert "the outputs of the first token change" in findings[0].says
    assert "the outputs of the first 2 tokens change" in findings[1].says
    in_training = nn.Module()
    in_training.forward = lambda x: x + in_training.training * x.mean(1, keepdim=True)  # type: ignore[method-assign]
    assert worst(questions.prefix(Subject(in_training, WIDTH), [1, 2, 5])).value > 0.01


# Caches


class Reader(nn.Module):
    """Notes the pieces in which texts are read with a cache, and what is hidden so far."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[list[tuple[int, int]]] = []

    def new_cache(self) -> list[tuple[int, int]]:
        self.pieces.append([])
        return self.pieces[-1]

    def forward(self, x: Tensor, padding: Tensor | None = None, cache: list[tuple[int, int]] | None = None) -> Tensor:
        if cache is not None:
            begin = cache[-1][1] if cache else 0
            cache.append((begin, begin + x.shape[1]))
            assert padding is None or padding.shape[1] == begin + x.shape[1]
        return x.clone()


def test_texts_are_read_in_pieces_of_many_sizes() -> None:
    reader = Reader()
    findings = list(questions.cache(Subject(reader, WIDTH), [1, 20, 150, 200, 300]))
    assert len(findings) == 4 * 2 * 3  # lengths, padded or not, and ways to read
    ends = [pieces[-1][1] for pieces in reader.pieces if pieces]
    assert set(ends) == {1, 20, 150, 300}
    longest = [[end - begin for begin, end in pieces] for pieces in reader.pieces if pieces and pieces[-1][1] == 300]
    assert longest[0] == [260, *[1] * 40]  # the end token by token
    assert [291, 4, 1, 1, 3] in longest  # a few pieces
    around = [31, *[1] * 2, 94, *[1] * 2, 126, *[1] * 2, 43]  # single tokens where blocks end
    assert longest.count(around) == 3  # also by the text in between, and with padding
    assert longest.count(longest[0]) == 2
    short = [pieces for pieces in reader.pieces if pieces and pieces[-1][1] == 20]
    assert [end - begin for begin, end in short[0]] == [1] * 20
    assert all(begin == before for pieces in reader.pieces for (_, before), (begin, _) in pairwise(pieces))


def test_texts_with_caches_of_their_own_do_not_meet() -> None:
    class Meeting(Reader):
        """What was read last, with whatever cache, is seen."""

        last: Tensor | None = None

        def forward(self, x: Tensor, padding: Tensor | None = None, cache: Any = None) -> Tensor:
            before = self.last if cache else None
            if cache is not None:
                cache.append((0, x.shape[1]))
                self.last = x[:, -1:]
            return x if before is None else x + 0.1 * before

    assert worst(questions.cache(Subject(Reader(), WIDTH), [5])).value == 0
    assert worst(questions.cache(Subject(Meeting(), WIDTH), [5])).value > 0.01


# Hidden tokens and the texts of a batch


def test_numbers_that_should_be_the_same_may_differ_as_outputs_round(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    first, x = torch.tensor([[[2.0]] * 5] * 4), torch.zeros(4, 5, 1)

    def rounding(_: Subject, x: Tensor, step: Tensor, *, seeds: tuple[int, ...]) -> Tensor:
        given.append((step, seeds))
        return scale * 1e-4 * torch.arange(20.0).reshape(4, 5)  # 90 % are below 0.0018

    monkeypatch.setattr(questions, "rounding", rounding)
    for scale in (1.0, 1e-3, 1e3):  # both are relative to the outputs
        for by, size in ((0.0017, SAME), (0.0019, 0.0019 / 2.0019), (1e-6, 5e-7)):
            y, other = scale * first, scale * (first + by)
            found = questions._differ(Subject(nn.Identity(), 1), x, y, other, "they differ", "here")
            assert found.value == pytest.approx(size, rel=0.1)
    (step, seeds), *_ = given
    assert len(given) == 2 * 3
    assert step.shape == (4, 5)
    assert (step == 1e-3).all()
    assert len(set(seeds)) == 3  # also the noise of a module that draws is rounding


def test_a_text_is_moved_by_others_in_its_batch_in_one_way_only() -> None:
    def only(when: Callable[[Tensor, Tensor | None], bool]) -> Subject:
        """Adds the mean of the batch."""

        def call(x: Tensor, padding: Tensor | None = None) -> Tensor:
            return x + 0.1 * x.mean(0, keepdim=True) if when(x, padding) else x

        return Subject(call, WIDTH)

    assert worst(questions.batch(only(lambda x, padding: False), [1, 3, 7])).value == 0
    for when, words in (
        (lambda x, padding: len(x) == 3, "another changes"),
        (lambda x, padding: padding is not None, "others in its batch are padded"),
        (lambda x, padding: len(x) == 1, "it is alone"),
    ):
        found = {one.says.split(", by")[0] for one in questions.batch(only(when), [3]) if one.value > SAME}
        assert f"a text moves when {words}" in found
    packed = only(lambda x, padding: len(x) == 4)  # rows of one length each
    assert worst(questions.packing(packed, [3])).says.startswith(
        "a text moves when another packed into its row changes"
    )
    with pytest.raises(NotTested, match="may see the future"):
        list(questions.packing(Subject(torch.clone, WIDTH, causal=False), [3]))


def test_every_text_of_a_batch_is_changed_once() -> None:
    for place in range(3):

        def call(x: Tensor, place: int = place) -> Tensor:
            return x + (0.1 * x[place] if len(x) == 3 and place < 3 else 0 * x)

        found = [one.value > SAME for one in questions.batch(Subject(call, WIDTH), [2])]
        assert found[:3] == [number == place for number in range(3)]


def test_texts_packed_into_one_row_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[list[list[int]]] = []

    def packed(self: Subject, tokens: Tensor, documents: Tensor) -> Tensor:
        rows.append(documents.tolist())
        return tokens

    monkeypatch.setattr(Subject, "run_packed", packed)
    for call in (lambda x: x, lambda x, documents=None: x):
        list(questions.packing(Subject(call, WIDTH), [1, 2, 3, 6]))
    apart = [[[0] * tokens + [1] * tokens] * 2 for tokens in (3, 6)]
    inside = [[[0] * first + [1] * second] * 2 for first, second in ((1, 2), (2, 4))]
    assert rows == [
        one for one in (*apart, *inside) for _ in range(2 * 3)
    ]  # both modes; as it is, one changed, the other


def test_a_text_that_sees_another_in_its_row_is_found_on_either_side() -> None:
    for direction in (1, -1):

        def call(x: Tensor, documents: Tensor | None = None, direction: int = direction) -> Tensor:
            return x if documents is None else x + 0.1 * x.roll(direction, 1)

        assert worst(questions.packing(Subject(call, WIDTH), [6])).value > 0.01
    assert worst(questions.packing(Subject(lambda x, documents=None: x, WIDTH), [6])).value == 0


# Modes, repetition and size


class Tapped(nn.Module):
    """A layer with a tap for its pattern, whose output is another while the tap is read in one mode."""

    def __init__(self, mode: bool | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.hook_pattern, self.mode, self.drop = Tap(), mode, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        self.hook_pattern(torch.ones(len(x), 1, x.shape[1], x.shape[1]).tril())
        read = bool(self.hook_pattern._forward_hooks)
        return self.drop(x + 0.1 * (read and self.training == self.mode))


@pytest.mark.parametrize("mode", [False, True])
def test_reading_a_pattern_changes_nothing_in_either_mode(mode: bool) -> None:
    assert worst(questions.repeat(Subject(Tapped(), WIDTH), [3])).value == 0
    assert "the pattern is captured" in worst(questions.repeat(Subject(Tapped(mode), WIDTH), [3])).says


def test_patterns_are_not_read_under_dropout() -> None:
    for dropout, training, read in ((0.0, True, True), (0.5, False, True), (0.5, True, False), (0.0, False, True)):
        subject = Subject(Tapped(dropout=dropout), WIDTH)
        with subject.mode(training):
            assert bool(questions._captured(subject, subject.draw(1, 3))) == read
    assert questions._captured(Subject(nn.Identity(), WIDTH), torch.zeros(1, 3, WIDTH)) == {}


def test_outputs_of_modes_are_compared_before_all_else() -> None:
    class Scaled(nn.Module):
        """Other outputs, or only other influences, in train()."""

        def __init__(self, outputs: bool) -> None:
            super().__init__()
            self.outputs = outputs

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return x
            return 1.5 * x if self.outputs else 1.5 * x - 0.5 * x.detach()

    (only,) = questions.train_eval(Subject(Scaled(True), WIDTH), [3])
    assert only.says.startswith("outputs in train() and eval() differ, by 0.33")
    outputs, influences = questions.train_eval(Subject(Scaled(False), WIDTH), [3])
    assert outputs.value < SAME < 0.3 < influences.value
    assert influences.says.startswith("influences in train() and eval() differ")
    long = list(questions.train_eval(Subject(Scaled(False), WIDTH), [3, 200]))
    assert [one.value > 0.3 for one in long] == [False, True, False, False]  # not of long texts
    patterns = [one.says.split(" in ")[0] for one in questions.train_eval(Subject(Tapped(), WIDTH), [3])]
    assert patterns == ["outputs", "hook_pattern", "output", "influences"]


def test_influences_of_modes_are_compared_at_six_places(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def influence(_: Subject, x: Tensor, places: Sequence[int]) -> Tensor:
        asked.append([*places])
        assert len(x) == 1
        return torch.zeros(1)

    monkeypatch.setattr(questions, "influence", influence)
    list(questions.train_eval(Subject(nn.Identity(), WIDTH), [1, 7, 100]))
    assert asked == [places for places in (list(range(6)), leaks.positions(100, 6, 100)) for _ in range(2)]


@pytest.mark.parametrize("change", ["input", "call", "seed", "nothing"])
def test_a_text_that_gives_other_numbers_the_next_time(change: str) -> None:
    class Changing(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Changing.calls += 1
            if change == "input":
                x += 1
            if change == "seed":
                return x + torch.rand(())
            return x + Changing.calls if change == "call" else x

    found = [one.says for one in questions.repeat(Subject(Changing(), WIDTH), [2]) if one.value > SAME]
    says = {"input": "it changes its input in place", "call": "other outputs", "seed": "other outputs"}
    assert bool(found) == (change in says)
    assert all(says[change] in words or change == "input" for words in found)
    modes = [("eval()" in words, "train()" in words) for words in found]
    assert (False, True) in modes or change in ("seed", "nothing")  # in train() a seed may matter
    assert ((True, False) in modes) == (change in says)


def test_which_inputs_must_give_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def nonfinite(subject: Subject, x: Tensor, setting: Setting, hidden: Tensor | None = None) -> Any:
        rows = [] if hidden is None else hidden.float().mean(1).tolist()
        asked.append((setting.tokens, setting.norm, setting.training, tuple(rows)))
        assert x.shape[:2] == ((2, setting.tokens) if hidden is None else hidden.shape)

    monkeypatch.setattr(questions, "_nonfinite", nonfinite)
    list(questions.large(Subject(nn.Identity(), WIDTH), [2, 3, 150, 200]))
    scales = (0.0, 1.0, 100.0, 1e4)
    every = {(tokens, norm, mode, ()) for tokens in (2, 150) for norm in scales for mode in (False, True)}
    assert set(asked) == every
    assert len(asked) == len(every)
    asked.clear()
    list(questions.masked(Subject(lambda x, padding: x, WIDTH), [4, 150, 200]))
    assert [one[:3] for one in asked] == [(tokens, 1.0, mode) for tokens in (4, 150) for mode in (False, True)]
    assert {(some[0], 0 < some[1] < 1, some[2]) for *_, some in asked} == {(0.0, True, 1.0)}


def test_infinite_numbers_are_counted_in_outputs_and_gradients() -> None:
    class Rooted(nn.Module):
        """The square root has an infinite gradient at 0."""

        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))
            self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return (0 * x + self.shift + self.frozen).sqrt()

    subject, x = Subject(Rooted(), 3), torch.ones(1, 2, 3)
    found = questions._nonfinite(subject, x, Setting(2))
    assert found.value == 6 + 3  # of the tokens (0 times infinite), and of the parameter
    assert found.says == "9 numbers are NaN or infinite (2 tokens, eval())"
    infinite = Subject(lambda x: torch.full_like(x, float("inf")), 3)
    hidden = questions._nonfinite(infinite, x, Setting(2), None)
    assert hidden.value == 6
    padded = Subject(lambda x, padding: torch.full_like(x, float("nan")), 3)
    shown = questions._nonfinite(padded, x, Setting(2), torch.ones(1, 2).bool())
    assert "6 numbers are NaN or infinite where a token sees no token" in shown.says
    scaled = Subject(lambda x: torch.where(x > 50, float("inf"), x), 3)
    assert [questions._nonfinite(scaled, x, Setting(2, norm)).value for norm in (1.0, 49.0, 51.0)] == [0, 0, 6]


# Weights that layers share


def test_a_block_called_twice_is_reported_and_a_single_layer_is_not() -> None:
    class Twice(nn.Module):
        def __init__(self, part: nn.Module, times: int) -> None:
            super().__init__()
            self.part, self.times = part, times

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.times):
                x = self.part(x)
            return x

    def lines(part: nn.Module, times: int = 2) -> Any:
        module = Twice(part, times)
        return questions.tied(module, lambda: module(torch.ones(1, 2, WIDTH)))

    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    assert lines(nn.Linear(WIDTH, WIDTH)).value == 0
    assert lines(block, 1).value == 0
    assert (
        lines(nn.Sequential(block, nn.ReLU())).says == "one pass goes 2 times through part"
    )  # not also through part.0
    same = nn.Linear(WIDTH, WIDTH)
    assert lines(nn.Sequential(same, same)).says == "the same weights serve as part.0, part.1"
    many = nn.ModuleList([nn.Linear(1, 1)] * 6)
    assert questions.tied(many).says == "the same weights serve as 0, 1, 2, 3, 2 more"
    assert questions.tied(nn.ModuleList([nn.ReLU()] * 3)).value == 0  # no weights


def test_one_weight_in_several_layers_is_listed_once() -> None:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(3))
    layers[2] = layers[0]
    assert questions._shared(layers, between_layers=True) == [["0", "2"]]
    assert questions._shared(layers, between_layers=False) == [["0", "2"]]
    layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    layers[0][1].weight = layers[0][0].weight  # type: ignore[index, union-attr]
    assert questions._shared(layers, between_layers=True) == []  # within one layer
    assert questions._shared(layers, between_layers=False) == [["0.0.weight", "0.1.weight"]]
    layers[1][1] = layers[1][0]  # type: ignore[index]
    assert ["1.0", "1.1"] in questions._shared(layers, between_layers=False)
    assert questions._shared(layers, between_layers=True) == []


# Hidden tokens


def test_hidden_tokens_are_changed_at_every_length_and_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float, bool, int]] = []

    def leak(subject: Subject, setting: Setting, x: Tensor, other: Tensor, where: Tensor, *_: Tensor) -> Tensor:
        assert where is setting.padding
        assert torch.equal((other != x).all(2), where)
        assert other[where].std() > 5 * x[where].std()  # larger ones
        seen.append((setting.tokens, setting.norm, setting.training, setting.rows))
        found = torch.zeros(x.shape[:2])
        found[3, 1] = 0.5
        return found

    monkeypatch.setattr(questions, "leak_into", leak)
    findings = list(questions.padding(Subject(lambda x, padding=None: x, WIDTH), [1, 2, 5, 200]))
    norms = (1.0, 0.01, 100.0)
    assert seen == [(tokens, norm, mode, 6) for tokens in (2, 5) for norm in norms for mode in (False, True)]
    assert [one.value for one in findings[::2]] == [0.5] * len(seen)
    assert all(one.says.startswith("output 1 moves by 0.5 of its range") for one in findings[::2])
    assert [one.value for one in findings[1::2]] == [0.0] * len(seen)


def test_hidden_tokens_that_count_in_an_average_are_found() -> None:
    def counting(x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Hidden tokens are zero, and count."""
        return running_mean(x if padding is None else x * ~padding[..., None])

    for call, passes in ((running_mean, True), (counting, False)):
        found = worst(questions.padding(Subject(call, WIDTH), [7]))
        assert (found.value == 0) == passes
        assert passes or "count in an average of equal tokens" in found.says
    open_both_ways = Subject(counting, WIDTH, causal=False)
    setting, x = Setting(7), open_both_ways.draw(2, 7)
    assert not list(questions._weightless(open_both_ways, setting, x, questions._hidden_tokens(7, 0)[-2:]))


def test_a_bidirectional_form_may_be_blind_at_some_outputs() -> None:
    def seeing(from_place: int) -> Subject:
        def call(x: Tensor) -> Tensor:
            later = x.flip(1).cumsum(1).flip(1)
            return torch.where((torch.arange(x.shape[1]) >= from_place)[:, None], later, x)

        return Subject(call, WIDTH, causal=False)

    (found,) = questions.bidirectional(seeing(4), [1, 11])
    assert found.value == pytest.approx(0.4)
    assert found.says.startswith("40 % of the outputs")
    assert next(questions.bidirectional(seeing(0), [1, 64, 100])).value == 0


def test_an_output_that_depends_on_the_input_at_some_places() -> None:
    def call(x: Tensor) -> Tensor:
        return x * (torch.arange(x.shape[1]) > 2)[:, None]

    (found,) = questions.responds(Subject(call, WIDTH), [1, 3])
    assert found.value == 1
    (found,) = questions.responds(Subject(call, WIDTH), [4, 1])
    assert found.value == pytest.approx(0.75)


def test_gradients_without_any_future_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def influence(*_: Any) -> Tensor:
        calls.append(1)
        found = torch.ones(2, 3).tril()
        found[1, 2] = 1e-7  # below what counts, and told as it is
        return found

    monkeypatch.setattr(leaks, "influence", influence)
    assert leaks.future_gradient(Subject(nn.Identity(), WIDTH), Setting(3), [0, 1]).tolist() == pytest.approx([0, 1e-7])
    assert len(calls) == 1


# What is audited


def test_zeros_are_replaced_by_numbers_of_the_usual_size() -> None:
    module = nn.Module()
    module.gate, module.matrix = nn.Parameter(torch.zeros(5000)), nn.Parameter(torch.zeros(50, 400))
    module.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    assert randomize_zero_init(module)
    assert module.gate.std().item() == pytest.approx(0.5, rel=0.1)
    assert module.matrix.std().item() == pytest.approx(400**-0.5, rel=0.1)
    assert not module.frozen.any()
    assert not randomize_zero_init(module)


def test_the_embedding_is_the_one_of_the_symbols() -> None:
    model = nn.Sequential(nn.Embedding(64, 3), nn.Embedding(11, 3))
    assert Subject(model, 11, reads_ids=True).embedding is model[1]
    assert Subject(model, 12, reads_ids=True).embedding is None
    assert Subject(model, 11).embedding is None
    with pytest.raises(NotTested, match=r"no nn.Embedding of 12 rows"):
        Subject(model, 12, reads_ids=True).vectors(torch.zeros(1, 2, dtype=torch.long))


def test_rows_of_several_texts_need_a_module_that_reads_them() -> None:
    x, documents = torch.randn(1, 5, WIDTH), torch.tensor([[0, 0, 1, 1, 1]])

    def refusing(x: Tensor, documents: Tensor | None = None) -> Tensor:
        raise ConfigError("one document each")

    with pytest.raises(NotTested, match="one document each"):
        Subject(refusing, WIDTH).run_packed(x, documents)
    with pytest.raises(NotTested, match="reads one text per row"):
        Subject(lambda ids: ids, WIDTH, reads_ids=True).run_packed(x, documents)
    packed = Subject(running_mean, WIDTH).run_packed(x, documents)
    assert torch.allclose(packed, torch.cat([running_mean(x[:, :2]), running_mean(x[:, 2:])], 1), atol=1e-6)


def test_a_cache_may_belong_to_a_layer_or_to_a_model() -> None:
    class Model(nn.Module):
        def new_caches(self) -> list[int] | None:
            return []

        def forward(self, x: Tensor, caches: list[int] | None = None) -> Tensor:
            assert caches is not None
            caches.append(x.shape[1])
            return x

    subject = Subject(Model(), WIDTH)
    cache = subject.new_cache()
    subject.run(torch.zeros(1, 3, WIDTH), cache=cache)
    assert cache == [3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "new_caches", lambda self: None)
        with pytest.raises(NotTested, match="keeps no cache"):
            subject.new_cache()


def test_lengths_that_are_refused_are_told_once_for_every_kind_of_error() -> None:
    def call(x: Tensor) -> Tensor:
        tokens = x.shape[1]
        if tokens in (2, 3):
            raise ValueError("too\nshort")
        if tokens == 5:
            raise RuntimeError("no five")
        return x

    taken, refused = _usable_lengths(Subject(call, WIDTH), 6)
    assert taken == [1, 4, 6]
    assert refused == [
        "refuses 2 tokens: ValueError: too short (and 1 other length)",
        "refuses 5 tokens: RuntimeError: no five",
    ]


def test_a_model_of_many_symbols_is_judged_by_some_of_its_logits() -> None:
    model = LanguageModel(ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=600))
    weights = model.head.weight.detach().clone()
    _narrow_head(model)
    assert model(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 512)
    assert torch.equal(model.head.weight, weights[:512])


class Narrow(nn.Module):
    """A mechanism that cannot have a bias, nor another number of heads."""

    def __init__(self, n_embd: int, n_head: int, block_size: int, *, bias: bool = False, causal: bool = True) -> None:
        super().__init__()
        if bias or n_head != 2:
            raise ConfigError("no bias, two heads")
        self.mix = nn.Parameter(torch.zeros(n_embd))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix


def test_forms_that_cannot_be_built_are_noted() -> None:
    entry = Entry("mechanism", "narrow", Narrow)
    subjects, notes = all_forms(entry, (8, 2, 5))
    assert [subject.form for subject in subjects] == ["causal", "causal dropout=0.25", "bidirectional"]
    assert [subject.causal for subject in subjects] == [True, True, False]
    assert [note.split(": ")[0] for note in notes] == ["not audited as causal rotary qk_norm bias"]
    assert [subject.width for subject in subjects] == [8] * 3  # it has no wider form
    assert [bool(subject.call.mix.any()) for subject in subjects] == [False, True, True]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no bias, two heads"):
        all_forms(entry, (8, 1, 5))
    for sizes, told in (
        ((0, 2, 5), "n_embd must be at least 1, not 0"),
        ((8, 0, 5), "n_head must be at least 1, not 0"),
        ((8, 2, 0), "length must be at least 1, not 0"),
        ((6, 2, 5), r"n_embd \(6\) must be an even multiple of n_head \(2\)"),
    ):
        with pytest.raises(ConfigError, match=told):
            all_forms(entry, sizes)


def test_a_report_tells_why_something_was_not_tested() -> None:
    checks = [
        Check("future", 0.0, 0.1, True, ""),
        Check("cache", None, 0.1, None, "keeps no cache"),
        Check("bidirectional", None, 0.1, None, "has no bidirectional form"),
        Check("padding", None, 0.1, None, "accepts no padding mask"),
        Check("masked", None, 0.1, None, "accepts no padding mask"),
    ]
    (facts,) = document([conclude("mine", checks, notes=["odd"])]).sections[1].blocks
    assert facts.pairs == [  # type: ignore[union-attr]
        ("not tested", "cache: keeps no cache"),
        ("not tested", "padding, masked: accepts no padding mask"),
        ("note", "odd"),
    ]


def test_a_text_read_after_another_is_another_one() -> None:
    class Remembering(nn.Module):
        """Adds how far the text before was from this one."""

        before: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            last, self.before = self.before if self.before is not None else x, x
            return x + 0.1 * (last - x).abs().mean()

    assert worst(questions.repeat(Subject(Remembering(), WIDTH), [3])).value > 0.01


def test_only_modules_with_dropout_or_zeros_have_a_second_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dropout_of(nn.Linear(2, 2)) == 0
    attention = nn.MultiheadAttention(2, 1, dropout=0.3)  # keeps its rate as a number
    assert [dropout_of(one) for one in (attention, own_copy(attention), own_copy(attention, dropout=True))] == [
        0.3,
        0,
        0.25,
    ]
    assert dropout_of(nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.3), nn.Dropout(0.2))) == 0.3
    zeros = nn.Linear(WIDTH, WIDTH)
    nn.init.zeros_(zeros.bias)
    audited: list[int] = []
    monkeypatch.setattr(audit, "_audit", lambda _, subjects, *__: audited.append(len(subjects)))
    for module in (nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), zeros):
        audit_module(module, n_embd=WIDTH)
    assert audited == [1, 2, 2]


def test_modes_are_compared_for_every_text_of_a_batch() -> None:
    class Later(nn.Module):
        """In train(), texts after the first move by their distance from it."""

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * self.training * (x - x[:1])

    assert worst(questions.train_eval(Subject(Later(), WIDTH), [3])).value > 0.01


@pytest.mark.parametrize(("most", "width"), [(5, 64), (4, 8)])
def test_a_form_is_wider_only_if_that_runs_at_the_length(most: int, width: int) -> None:
    class Short(nn.Module):
        """A mechanism that reads only a few tokens of 64 numbers."""

        def __init__(
            self, n_embd: int, n_head: int, block_size: int, *, causal: bool = True, dropout: float = 0.0
        ) -> None:
            super().__init__()
            self.dropout = dropout

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] > most and x.shape[2] == 64:
                raise ValueError("too long")
            return x

    subjects, _ = all_forms(Entry("mechanism", "short", Short), (8, 2, 5))
    assert [subject.width for subject in subjects if "dropout" in subject.form] == [width]


def test_a_leak_into_outputs_that_are_all_zero_is_found() -> None:
    drawn = Subject(nn.Identity(), WIDTH).draw(2, 4)

    def call(x: Tensor) -> Tensor:
        moved = torch.zeros_like(x)
        moved[:, 0] = x[:, -1] - (drawn[: len(x), -1] if x.shape == drawn.shape else 0)
        return moved

    found = leaks.future_leak(Subject(call, WIDTH), Setting(4), [2])
    assert (found[0] > 0.1).tolist() == [True, False, False, False]


def test_a_block_called_twice_is_reported_of_modules_with_a_second_form(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.drop = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            twice: Tensor = self.part(self.drop(self.part(x)))
            return twice

    ties: list[str] = []
    monkeypatch.setattr(audit, "_audit", lambda name, subjects, length, tied, *_: ties.append(tied(3).says))
    audit_module(Twice(), n_embd=WIDTH)
    assert ties == ["one pass goes 2 times through part"]
