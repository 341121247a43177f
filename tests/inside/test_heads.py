from __future__ import annotations

import copy
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnlab import stats
from attnlab.config import ModelConfig
from attnlab.corpora import Question
from attnlab.errors import UserError
from attnlab.inside.contributions import head_contributions
from attnlab.inside.heads import SCORES, Scores, copying_scores, pattern_scores, repeated_tokens, score_heads
from attnlab.lm.exams import Examination
from attnlab.lm.model import LanguageModel, model_files
from attnlab.lm.perplexity import sentence_losses
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.folders import to_json, write_folder
from verbs import call

SYMBOLS = 16  # of the character tokenizer below, □ and ⁇ among them
TOKENS = 24
WIDTH = 64  # residual stream: token, previous token, position, and nothing
CHANCE_SAME = sum(1 / n for n in range(13, 25)) / 12  # 12 tokens, then the same again
CHANCE_PREVIOUS = sum(1 / n for n in range(2, 25)) / 23


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return Tokenizer.train("char", ["abcdefghijklm"], SYMBOLS)


def random_model(**settings: object) -> LanguageModel:
    torch.manual_seed(0)
    given = {"n_layer": 2, "n_head": 4, "n_embd": WIDTH, "block_size": TOKENS, "vocab_size": SYMBOLS, "norm": "rms"}
    return LanguageModel(
        ModelConfig(**{**given, "positions": "learned", "zero_init": False, "qk_norm": False, **settings})
    ).eval()  # type: ignore[arg-type]


def test_heads_are_scored_beyond_the_block(letters: Tokenizer) -> None:
    text = "abcdefgh" * 10
    scored = score_heads(random_model(positions="rotary"), letters, text)
    longer = score_heads(random_model(positions="rotary", block_size=80), letters, text)
    assert (scored.tokens, scored.heads) == (80, longer.heads)
    with pytest.raises(UserError, match="80 tokens, but the model's block holds 24: shorten it"):
        score_heads(random_model(), letters, text)


def built_model(letters: Tokenizer) -> LanguageModel:
    """Two layers of known heads: previous token, same token, beginning, averaging; then one that does induction."""
    model = random_model(n_head=2, n_embd=2 * WIDTH)
    token, before, place = (slice(0, 16), slice(16, 32), slice(32, 56))
    sharp = 30.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.tokens.weight[:, token] = torch.eye(SYMBOLS)
        assert model.positions is not None
        model.positions.weight[:, place] = torch.eye(TOKENS)
        model.head.weight[:, token] = torch.eye(SYMBOLS)

        def set_head(layer: int, head: int, query: Tensor, key: Tensor, write: Tensor) -> None:
            """Weights of a head: `query` and `key` of [d_head, d_model]; the token read is written through `write`."""
            attention = model.blocks[layer].attn
            rows = slice(head * WIDTH, (head + 1) * WIDTH)
            attention.heads.query.weight[rows] = sharp * query
            attention.heads.key.weight[rows] = key
            attention.heads.value.weight[rows, token][:SYMBOLS] = torch.eye(SYMBOLS)
            attention.out.weight[:, rows][:, :SYMBOLS] = write

        def of(source: slice, matrix: Tensor, row: int = 0) -> Tensor:
            made = torch.zeros(WIDTH, 2 * WIDTH)
            made[row : row + len(matrix), source] = matrix
            return made

        eye, places = torch.eye(SYMBOLS), torch.eye(TOKENS)
        to_before, to_token = torch.zeros(2 * WIDTH, SYMBOLS), torch.zeros(2 * WIDTH, SYMBOLS)
        to_before[before] = to_token[token] = eye
        set_head(0, 0, of(place, places), of(place, places.roll(1, 0)), to_before)  # key s answers the query s + 1
        # The same letter, but not the token itself.
        set_head(0, 1, of(token, eye) + of(place, places, 16), of(token, eye) - of(place, places, 16), -0.1 * to_token)
        # The token after the same letter; not the first token, which took itself for its predecessor.
        begin = of(place, places[:1], 40)
        set_head(1, 0, of(token, eye) + of(place, torch.ones(1, TOKENS), 40), of(before, eye) - begin, to_token)
    return model


# Heads whose weights are known


def test_built_heads_score_what_they_do(letters: Tokenizer) -> None:
    model = built_model(letters)
    scored = score_heads(model, letters)
    previous, same, induction, averaging = scored.heads
    assert (scored.texts, scored.tokens) == (8, TOKENS)
    assert [one.role for one in scored.heads] == ["previous", "same", "induction", "averaging"]
    assert previous.previous == pytest.approx(1, abs=1e-3)
    assert previous.largest == pytest.approx(1, abs=1e-3)
    assert previous.averaging == pytest.approx(0, abs=1e-2)
    assert previous.first == pytest.approx(1 / (TOKENS - 1), abs=1e-3)  # from the second token
    assert same.same == pytest.approx(1, abs=1e-3)
    assert induction.induction == pytest.approx(1, abs=1e-3)
    assert averaging.averaging == pytest.approx(1)
    assert averaging.previous == pytest.approx(CHANCE_PREVIOUS)
    assert [previous.copying, same.copying, induction.copying, averaging.copying] == pytest.approx([0, -1, 1, 0])
    on_text = score_heads(model, letters, "abcabdab")
    assert on_text.heads[2].induction == pytest.approx(1, abs=1e-2)  # two earlier `a` lead to two `b`
    assert (on_text.texts, on_text.tokens) == (1, 8)


def test_the_first_token_and_texts_without_repeats() -> None:
    begins = torch.zeros(1, 1, 6, 6)
    begins[..., 0] = 1
    (scores,) = pattern_scores(begins, torch.arange(6)[None])
    assert scores.first == scores.largest == 1
    assert scores.same is scores.induction is None
    (below,) = pattern_scores(-3 * begins, torch.arange(6)[None])
    assert below == scores
    # x x: what follows the earlier x is the token itself, which is no induction.
    assert pattern_scores(torch.eye(2)[None, None], torch.zeros(1, 2, dtype=torch.long))[0].induction is None


# Heads that do nothing


def test_untrained_heads_score_near_chance(letters: Tokenizer) -> None:
    """Keys of an untrained head are exchangeable, so each of the t + 1 visible tokens gets 1 / (t + 1) on average.

    Weights of deviation 0.02 make queries and keys of deviation 0.02·√64 = 0.16, and scores of 0.16² = 0.026: no mean of
    weights differs from chance by more than four times that share.
    """
    scored = score_heads(random_model(n_layer=4), letters)
    chance = scored.chance
    assert chance.previous == chance.first == chance.largest == pytest.approx(CHANCE_PREVIOUS)
    assert chance.same == chance.induction == pytest.approx(CHANCE_SAME)
    assert chance.averaging == pytest.approx(1)
    for name in ("previous", "same", "induction", "first"):
        values = torch.tensor([getattr(one, name) for one in scored.heads])
        assert (values / getattr(chance, name) - 1).abs().max() < 0.1, name
    assert {one.role for one in scored.heads} == {"averaging"}


def test_random_circuits_copy_by_chance() -> None:
    """For random weights W_V W_E W_U W_O is nearly a C x C Gaussian matrix of entries s: its trace has the deviation √C s,
    and its eigenvalues lie evenly in a disc of radius √C s, so that Σ|λ| is 2/3 C √C s: the score deviates by 1.5 / C."""
    torch.manual_seed(1)
    model = random_model(n_layer=8, n_head=8, n_embd=256, vocab_size=600)
    scores = torch.tensor([copying_scores(model, layer, 600) for layer in range(8)]).flatten()
    expected = 1.5 / 32
    assert scores.mean().abs() < 4 * expected / 8
    assert scores.std().item() == pytest.approx(expected, rel=0.35)


def test_copying_survives_norms_and_shared_values() -> None:
    """A circuit that copies scores 1 under layer norms with scales and biases, and for groups of heads."""
    model = random_model(n_layer=1, n_embd=32, vocab_size=20, norm="layer", bias=True, mechanism="gqa")
    with torch.no_grad():
        for norm in (model.blocks[0].norm1, model.norm):
            norm.weight.uniform_(0.5, 2)
            norm.bias.normal_()
        attention = model.blocks[0].attn
        embedded = model.blocks[0].norm1(model.tokens.weight) - model.blocks[0].norm1.bias
        inward = attention.heads.value.weight  # one group
        # The read-out undoes the scale of the last norm, and every head writes what it read: the circuit is positive.
        for head in range(4):
            attention.out.weight[:, 8 * head : 8 * head + 8] = inward.T * (1 if head else -1)
        model.head.weight.copy_(embedded / model.norm.weight)
    scores = copying_scores(model, 0, 20)
    assert scores == pytest.approx([-1, 1, 1, 1], abs=1e-6)


# Tokens, files and the command


def test_random_tokens_are_ordinary_and_distinct(letters: Tokenizer) -> None:
    rows = repeated_tokens(letters, TOKENS)
    assert len(rows) == 8
    for row in rows:
        assert row[:12] == row[12:]
        assert len(set(row[:12])) == 12
        assert not {letters.pad, letters.mask} & set(row)
    assert repeated_tokens(letters, TOKENS, seed=1) != rows
    words = Tokenizer.train("word", ["one two three"], 0)
    assert repeated_tokens(words, 64)[0][0] == words.start
    assert len(repeated_tokens(words, 64)[0]) == 7
    with pytest.raises(UserError, match="too few for repeated tokens: give a text"):
        repeated_tokens(letters, 3)
    with pytest.raises(UserError, match="one token"):
        score_heads(random_model(), letters, "a")


def test_a_layer_without_a_pattern_is_said_to_have_none(letters: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Nothing(nn.Module):\n"
        '    """Looks nowhere."""\n'
        "    def __init__(self, n_embd, n_head, block_size):\n"
        "        super().__init__()\n"
        "    def forward(self, x):\n"
        "        return x\n"
    )
    scored = score_heads(random_model(mechanism=f"{tmp_path / 'mine.py'}:Nothing, dot"), letters)
    assert scored.unread == [1]
    assert {one.layer for one in scored.heads} == {2}
    page = scored.files("runs/x", "attnlab look")["look.html"].decode()
    assert "No pattern in layer 1." in page
    nothing = score_heads(random_model(mechanism=f"{tmp_path / 'mine.py'}:Nothing"), letters)
    assert nothing.unread == [1, 2]
    assert nothing.files("runs/x", "attnlab look")["heads.png"].startswith(b"\x89PNG")


def test_the_command_writes_table_picture_and_numbers(
    letters: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    write_folder(tmp_path / "runs/built", "run", {"config.json": to_json({})})
    write_folder(tmp_path / "runs/built/model", "model", model_files(built_model(letters), letters))
    assert call("look", "runs/built", "--heads") == 0
    out = capsys.readouterr().out
    assert "Previous token: layer 1, head 1." in out
    assert "Induction: layer 2, head 1." in out
    assert "picture: runs/look-1/heads.png" in out
    assert call("look", "runs/built", "abcabc", "--heads", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    stored = json.loads((tmp_path / "runs/look-2/result.json").read_text())
    assert all(printed[key] == value for key, value in stored.items())
    assert printed["text"] == "abcabc"
    assert set(SCORES) <= set(printed["heads"][0])
    assert printed["heads"][2]["induction"] == pytest.approx(1, abs=1e-2)
    assert math.isfinite(printed["chance"]["same"])
    assert call("look", "runs/built") == 2
    assert "--heads alone" in capsys.readouterr().err


def test_scores_have_titles_and_order() -> None:
    assert Scores(*range(7)).in_order() == list(range(7))


def test_heads_of_a_model_with_norms_after_the_sums_have_no_copying_score() -> None:
    for place, expected in (("pre", True), ("post", False)):
        model = LanguageModel(ModelConfig(n_embd=16, n_head=2, block_size=16, vocab_size=20, norm_place=place))  # type: ignore[arg-type]
        assert (copying_scores(model, 0, 20) is not None) is expected


# Heads switched off


def test_a_head_switched_off_is_one_whose_output_weights_are_zero(letters: Tokenizer) -> None:
    model, lines = built_model(letters), ["abcabdab", "aabbccdd", "abcdabcd", "mmaabbmm", "lkjlkjlk", "dcbadcba"]
    result = head_contributions(model, lambda: sentence_losses(model, letters, lines))
    assert result.value == sentence_losses(model, letters, lines).token_perplexity
    assert [(head.layer, head.head) for head in result.heads] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for head in result.heads:
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.blocks[head.layer - 1].attn.out.weight[:, (head.head - 1) * WIDTH : head.head * WIDTH] = 0
        without = sentence_losses(other, letters, lines)
        assert head.value == pytest.approx(without.token_perplexity, rel=1e-5)
        assert head.change == pytest.approx(head.value / result.value, rel=1e-5)
        whole = sentence_losses(model, letters, lines)
        both = stats.compare_perplexities([without.losses], [whole.losses], whole.tokens, alpha=0.05 / 4).both
        ends = (None, None) if both.low is None or both.high is None else (math.exp(both.low), math.exp(both.high))
        assert (head.low, head.high) == (pytest.approx(ends[0], rel=1e-4), pytest.approx(ends[1], rel=1e-4))
    induction, averaging = result.heads[2:]
    assert induction.change > 1.02
    assert averaging.change == 1  # it writes nothing
    assert result.level == pytest.approx(1 - 0.05 / 4)
    assert result._heat().values[1][0] == pytest.approx(100 * math.log(induction.change), abs=0.05)


def test_contributions_to_right_answers_are_paired_by_question(letters: Tokenizer) -> None:
    """Without the head of induction, the model no longer continues what it has seen."""
    model = built_model(letters)
    texts = ["".join(three) for three in itertools.permutations("abcfghklm", 3)][::25]
    questions = [Question(f"{text}{text[0]}", text[1]) for text in texts]

    def measure() -> Examination:
        asked = [item.question for item in questions]
        with torch.no_grad():
            written = [model(torch.tensor([letters.encode(text)]))[0, -1].argmax().item() for text in asked]
        return Examination(tuple(questions), tuple(letters.decode([int(token)]) for token in written))

    result = head_contributions(model, measure)
    assert (result.value, result.items, result.of_answers) == (1.0, len(texts), True)
    induction = result.heads[2]
    assert (induction.value, induction.change) == (0.0, -1.0)
    test = stats.mcnemar([0] * len(texts), [1] * len(texts), 0.05 / 4)
    assert (induction.low, induction.high) == (test.low, test.high)
    assert "without layer 1 head 1 or layer 2 head 1." in result.sentences()[1]
    page = result.files("runs/x", "attnlab look")["look.html"].decode()
    assert "−100.0 points" in page
    unknown = Examination(tuple(replace(item, answer=None) for item in questions), ("a",) * len(texts))
    with pytest.raises(UserError, match="no answers to compare with"):
        head_contributions(model, lambda: unknown)


def test_the_command_switches_heads_off(
    letters: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "runs/built", "run", {"config.json": to_json({})})
    write_folder(tmp_path / "runs/built/model", "model", model_files(built_model(letters), letters))
    Path("exam.tsv").write_text("abca\tb\nfghf\tg\nklmk\tl\n")
    assert call("look", "runs/built", "--ablate", "--exam", "exam.tsv", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["figure"], printed["items"], len(printed["heads"])) == ("accuracy", 3, 4)
    assert Path(printed["picture"]).read_bytes().startswith(b"\x89PNG")
    for wrong in (["--ablate"], ["--exam", "exam.tsv"], ["abc", "--ablate", "--exam", "exam.tsv"]):
        assert call("look", "runs/built", *wrong) == 2
        assert "--ablate takes --exam QUESTIONS or --corpus TEXT" in capsys.readouterr().err
