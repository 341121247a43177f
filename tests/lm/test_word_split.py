from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.lm.tokenizers import split_sentences, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The quick brown fox jumps over the lazy dog.", "The quick brown fox jumps over the lazy dog ."),
        ('"I don\'t," said Mr. Lee.', '" I don \'t , " said Mr. Lee .'),
        ("“It’s the ’90s… isn’t it?”", "\" It 's the ' 90s ... isn 't it ? \""),
        ("O'Brien's dogs' tails—gone!", "O 'Brien 's dogs ' tails -- gone !"),
        (
            "He paid $50,000 (45% of it) at 10:30 a.m. and left",
            "He paid $ 50,000 ( 45 % of it ) at 10 : 30 a.m. and left",
        ),
        ("Sunoco Inc., of the U.S., rose.", "Sunoco Inc . , of the U.S. , rose ."),
        ("U.S.-led, well-known; self- and non-self", "U.S.-led , well-known ; self- and non-self"),
        ("wait...what?!", "wait ... what ? !"),
        ("jurors--some of them", "jurors -- some of them"),
        ("See No. 5 and pp. 3-4. No. Never", "See No. 5 and pp. 3-4 . No . Never"),
        ("So do I. George W. Bush left", "So do I . George W. Bush left"),
        ("-5 and 3.14, or .com", "-5 and 3.14 , or .com"),
        ("and/or a_b@c.org", "and / or a_b @ c.org"),
        ("The <UNK> said: x<y.", "The <UNK> said : x < y ."),
        ("", ""),
        ("   ", ""),
    ],
)
def test_words(text: str, words: str) -> None:
    assert split_words(text) == words.split()


@pytest.mark.parametrize(
    "line",
    [
        "Wal-Mart 's founder said us-- ' cause they are , \" he said .",
        "C , C, MA ( Missing ) , D , A. He was given grades , Reeves said .",
        "15 at Carolina Panthers FOX 1 p.m.",
        '" It isn \'t mate. i recon ... "',
    ],
)
def test_what_is_written_apart_stays_as_it_is(line: str) -> None:
    assert split_words(line) == line.split()


def test_commas_that_are_attached_outvote_a_full_stop_that_stands() -> None:
    line = "Ann was born in Mobile, Alabama, in 1954 ."
    assert split_words(line) == ["Ann", "was", "born", "in", "Mobile", ",", "Alabama", ",", "in", "1954", "."]


tokens = st.lists(
    st.sampled_from(["dog", "cats", "Mr.", "1,234", "U.S.", "it's", "well-known", "said,", '"no"', "(so)"])
)


@given(tokens, st.sampled_from([".", "?", "!", ""]))
def test_taking_apart_twice_changes_nothing_and_loses_nothing(words: list[str], end: str) -> None:
    text = " ".join(words) + end
    once = split_words(text)
    assert split_words(" ".join(once)) == once
    assert "".join(once) == text.replace(" ", "")


def test_sentences() -> None:
    text = 'He met Mr. Lee in the U.S. in May. "Why?" she asked. It was No. 5! (She left.) Then nothing'
    assert split_sentences(text) == [
        "He met Mr. Lee in the U.S. in May.",
        '"Why?" she asked.',
        "It was No. 5!",
        "(She left.)",
        "Then nothing",
    ]
    assert split_sentences(" ") == []


def test_the_news_pass_unchanged(data_folder: Path) -> None:
    for name in ("train", "dev"):
        lines = (data_folder / f"news/{name}.tokens").read_text(encoding="utf-8").split("\n")
        assert all(split_words(line) == line.split() for line in lines)
