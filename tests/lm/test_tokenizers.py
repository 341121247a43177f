from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnlab.lm.tokenizers
from attnlab.errors import CheckpointError, ConfigError
from attnlab.lm.tokenizers import MASK, PAD, Tokenizer, count_words, split_long_text

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
    assert BPE.decode(BPE.encode("a ⁇ b")) == "a ? b"


def test_a_character_never_seen_is_hidden() -> None:
    assert CHAR.encode("Ж") == [CHAR.mask]


def test_long_texts_are_cut_without_a_change_of_their_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "  ".join(LINES) + "  José's\t born\n in 1934" * 100
    parts = split_long_text(text)
    assert "".join(parts) == text
    assert len(parts) == 5
    assert max(map(len, parts)) <= 1000
    assert BPE.encode(text) == BPE.backend.encode(" " + text).ids
    learned = Tokenizer.train("bpe", [text], 320).backend.to_str()
    monkeypatch.setattr(attnlab.lm.tokenizers, "split_long_text", lambda whole: [whole])
    assert Tokenizer.train("bpe", [text], 320).backend.to_str() == learned


def test_a_long_word_is_cut_so_that_learning_takes_linear_time() -> None:
    word = "abcdefghij" * 3000
    learned = Tokenizer.train("bpe", [word], 1000)
    assert max(map(len, learned.backend.get_vocab())) <= 1000
    assert learned.decode(learned.encode(word)) == word


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
    with pytest.raises(CheckpointError, match="incomplete"):
        Tokenizer.load(path)
    path.write_text('{"version": 1')
    with pytest.raises(CheckpointError, match="damaged"):
        Tokenizer.load(path)


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}
BACKTRACK = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
PIECES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": REPLACE},
        {"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 9}},
        {"pre_tokenizer": BACKTRACK},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [PIECES, BACKTRACK]}},
        {"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}},
        {"post_processor": {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}},
        {"padding": {"strategy": {"Fixed": 10}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "□"}},
        {"model": json.loads(BPE.backend.to_str())["model"] | {"dropout": 0.5}},
        {"added_tokens": [{"id": 5000, "content": "far", **dict.fromkeys(("lstrip", "rstrip", "normalized"), False)}]},
    ],
    ids=str,
)
def test_parts_that_attnlab_does_not_read_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    stored = json.loads(BPE.backend.to_str())
    for entry in change.get("added_tokens", []):
        entry |= {"single_word": False, "special": True}
        stored["model"]["vocab"][entry["content"]] = entry["id"]
        change = {"added_tokens": [*stored["added_tokens"], entry]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(stored | change), encoding="utf-8")
    with pytest.raises(CheckpointError, match="a part that attnlab does not read|ids beyond its vocabulary"):
        Tokenizer.load(path)


def test_tokenizers_of_imported_models_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    change = {"normalizer": {"type": "NFC"}, "pre_tokenizer": PIECES}
    path.write_text(json.dumps(json.loads(BPE.backend.to_str()) | change), encoding="utf-8")
    assert Tokenizer.load(path).encode("Ada") != []


def test_the_reports_vocabulary(data_folder: Path) -> None:
    lines = (data_folder / "birthplaces/wiki.txt").read_text(encoding="utf-8").split("\n")
    assert Tokenizer.train("char", lines, 256).size == 256


# Words


NEWS = ["The dog sees the cat .", "A dog , the other one , runs .", "He don 't know <UNK> <START> □"]
WORD = Tokenizer.train("word", NEWS, 0, min_count=1)
COMMON = Tokenizer.train("word", NEWS, 0, min_count=2)


def test_words_are_known_from_their_count_on_in_order_of_it() -> None:
    known = COMMON.backend.get_vocab()
    assert sorted(known, key=known.__getitem__) == ["<START>", "<STOP>", "<UNK>", "<PAD>", ",", ".", "dog", "the"]
    assert COMMON.decode(COMMON.encode("the dog sees , .")) == "the dog <UNK> , ."
    assert COMMON.encode("The")[0] == COMMON.unknown != COMMON.encode("the")[0]
    capped = Tokenizer.train("word", NEWS, 6, min_count=1)
    assert capped.size == 6
    assert set(capped.backend.get_vocab()) == {"<START>", "<STOP>", "<UNK>", "<PAD>", ",", "."}
    again = Tokenizer.train("word", NEWS, capped.size, min_count=1)
    assert again.backend.to_str() == capped.backend.to_str()


def test_a_sentence_of_words_starts_and_stops() -> None:
    text = "The dog runs, don't he know."
    assert WORD.decode(WORD.sentence(text, 100)) == "<START> The dog runs , don 't <UNK> know . <STOP>"
    assert WORD.decode(WORD.sentence(text, 4)) == "<START> The dog runs"
    assert WORD.opening(text) == WORD.sentence(text, 100)[:-1]
    assert BPE.sentence("born", 100) == [*BPE.encode("born"), BPE.pad]
    assert (BPE.start, BPE.stop, BPE.unknown) == (None, BPE.pad, None)
    assert CHAR.unknown == CHAR.mask


def test_special_words_in_a_text_stand_for_nothing() -> None:
    assert WORD.encode("<START> <STOP> <PAD> <UNK>") == [WORD.unknown] * 4
    assert WORD.pad not in WORD.encode("<PAD>")
    assert WORD.encode("□") != [WORD.pad]


def test_words_have_no_symbol_to_ask_with() -> None:
    with pytest.raises(ConfigError, match="no ⁇, so questions cannot be asked") as error:
        _ = WORD.mask
    assert "\n" not in str(error.value)
    assert (WORD.words, WORD.kind, BPE.words, CHAR.kind) == (True, "word", False, "char")


def test_words_are_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(WORD.backend.to_str(), encoding="utf-8")
    again = Tokenizer.load(path)
    assert again.kind == "word"
    assert again.sentence(NEWS[1], 100) == WORD.sentence(NEWS[1], 100)
    assert (again.size, again.pad, again.stops) == (WORD.size, WORD.pad, (WORD.stop, WORD.pad))


def test_the_size_follows_from_the_corpus_where_it_can() -> None:
    assert Tokenizer.train("char", LINES, 0).size == CHAR.size
    with pytest.raises(ConfigError, match="at least 258, not 0"):
        Tokenizer.train("bpe", LINES, 0)
    with pytest.raises(ConfigError, match="above 4, or 0"):
        Tokenizer.train("word", LINES, 4)


def test_the_reports_words(data_folder: Path) -> None:
    lines = (data_folder / "news/train.tokens").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    counts = count_words(lines)
    assert (len(lines), counts.total(), len(counts)) == (61_530, 1_561_375, 80_659)
    assert Tokenizer.train("word", lines, 0, min_count=3).size == 26_604


@pytest.mark.parametrize("missing", [PAD, MASK])
def test_a_tokenizer_without_one_of_the_symbols_is_refused(missing: str, tmp_path: Path) -> None:
    stored = CHAR.backend.to_str().replace(f'"{missing}"', '"another"')
    (tmp_path / "tokenizer.json").write_text(stored, encoding="utf-8")
    with pytest.raises(CheckpointError, match="lacks the symbols"):
        Tokenizer.load(tmp_path / "tokenizer.json")
