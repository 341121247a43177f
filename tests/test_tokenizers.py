from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.errors import CheckpointError, ConfigError
from attnlab.tokenizers import MASK, PAD, Tokenizer

LINES = ["Hank Aaron was born in Mobile in 1934 .", "Where was José born?", "São Paulo, 1,234 people"] * 20
BPE = Tokenizer.train("bpe", LINES, 320)
CHAR = Tokenizer.train("char", LINES, 64)

plain = st.text(st.characters(exclude_characters=PAD + MASK, exclude_categories=["Cs"]))


@given(plain)
def test_pieces_give_any_text_back(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text


@given(st.text(st.sampled_from(sorted(set("".join(LINES))))))
def test_characters_give_known_text_back(text: str) -> None:
    assert CHAR.decode(CHAR.encode(text)) == text
    assert len(CHAR.encode(text)) == len(text)


def test_special_symbols_are_kept_apart_from_text() -> None:
    for tokenizer in (BPE, CHAR):
        assert tokenizer.mask not in tokenizer.encode("born?")
        assert tokenizer.decode([*tokenizer.encode("born?"), tokenizer.mask, *tokenizer.encode("in")]) == "born?⁇in"
        assert tokenizer.pad not in tokenizer.encode("a □ b")
        assert tokenizer.decode(BPE.encode("a ⁇ b")) == "a ? b" or tokenizer is CHAR


def test_a_character_never_seen_is_hidden() -> None:
    assert CHAR.encode("Ж") == [CHAR.mask]


def test_digits_stand_alone_and_first_words_are_like_inner_words() -> None:
    assert len(BPE.encode("1934")) >= 4
    assert BPE.encode("born in born")[0] == BPE.encode("born in born")[-1]


def test_training_again_gives_the_same_vocabulary() -> None:
    assert Tokenizer.train("bpe", LINES, 320).backend.to_str() == BPE.backend.to_str()


def test_save_and_load(tmp_path: Path) -> None:
    for tokenizer in (BPE, CHAR):
        path = tmp_path / "tokenizer.json"
        path.write_text(tokenizer.backend.to_str(), encoding="utf-8")
        again = Tokenizer.load(path)
        assert again.encode(LINES[1]) == tokenizer.encode(LINES[1])
        assert (again.size, again.pad, again.mask) == (tokenizer.size, tokenizer.pad, tokenizer.mask)


def test_too_small_vocabularies_name_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"set --model.vocab_size \d+"):
        Tokenizer.train("char", LINES, 10)
    with pytest.raises(ConfigError, match="at least 258"):
        Tokenizer.train("bpe", LINES, 100)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(CheckpointError, match="missing"):
        Tokenizer.load(path)
    path.write_text('{"version": 1')
    with pytest.raises(CheckpointError, match="damaged"):
        Tokenizer.load(path)


def test_the_reports_vocabulary(data_folder: Path) -> None:
    lines = (data_folder / "birthplaces/wiki.txt").read_text(encoding="utf-8").split("\n")
    assert Tokenizer.train("char", lines, 256).size == 256
