"""English text split into words with separate punctuation, as in news corpora, and into sentences.

    split_words('"I don\\'t," said Mr. Lee.')   ->   " I don 't , " said Mr. Lee .

The conventions are those of the statistical translation tools that such corpora come from: case is unchanged, `'s` and `'t`
are separate, hyphens join, a full stop belongs to an abbreviation or is separate. A line that is already split, as every line
of such a corpus is, stays as it is. Plain text in and out; knows nothing about vocabularies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_SEPARATE = frozenset({'"', "'", ".", ",", ";", ":", "?", "!", "'s", "'t", "'re", "'ve", "'ll", "'m", "'d"})

# A full stop after these is part of them and does not end a sentence.
_TITLES = """
Adm Brig Bros Capt Cmdr Col Corp Cpl Dr Drs Ft Gen Gov Hon Lt Maj Messrs Mme Mr Mrs Ms Msgr Ph Pfc Pres Prof Pvt Rep Reps Rev
Sen Sens Sgt Sr St Ste Supt approx cf ed eg esp ie vs
"""
_ABBREVIATIONS = frozenset(_TITLES.split())
_BEFORE_NUMBERS = frozenset(("Fig", "No", "Nos", "Sec", "Vol", "fig", "no", "nos", "p", "pp", "sec", "vol"))

_TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "—": " -- ", "…": " ... ", "−": "-"})

_TOKEN = re.compile(
    r"""
      (?P<tail> (?<=[^\W_]) ' [^\W\d_]\w* )                         # 's, 't, O 'Brien
    | (?P<run>  \.{2,} | -{2,} | <[A-Za-z]+> )                      # an ellipsis, a dash, <unk>
    | (?P<word> (?: (?<!\S) [.-] )?                                 # .com, -5
                \w+ (?: (?: \.?- | \. | (?<=\d),(?=\d) ) \w+ )*  # U.S, U.S.-led, well-known, 1,234.5
                (?: - (?! [-\w] ) )?                                # self-
      )
      (?P<stop> (?: (?<=\w) \. (?!\.) )? )
    | \S
    """,
    re.VERBOSE,
)

_SENTENCE_END = re.compile(r"""[.!?]+["')\]]*(?=\s+["'(\[]*[A-Z0-9])""")


def _is_spaced(words: list[str]) -> bool:
    """Whether a text is already split: more punctuation marks and `'s` are separate than attached."""
    separate = sum(word in _SEPARATE for word in words)
    attached = sum(word[-1] in ",;!?" and len(word) > 1 for word in words)
    return separate > attached


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text in order."""
    words = text.split()
    if _is_spaced(words):
        return words
    text = text.translate(_TYPOGRAPHY)
    pieces: list[str] = []
    for match in _TOKEN.finditer(text):
        if match["stop"] and not _is_abbreviation(match["word"], text[match.end() :]):
            pieces += [match["word"], "."]
        else:
            pieces.append(match.group())
    return pieces


def _is_abbreviation(word: str, rest: str) -> bool:
    """Whether the full stop after a word is part of it, given what follows."""
    if "." in word and any(letter.isalpha() for letter in word):  # U.S., p.m., e.g.
        return True
    if word in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I"):
        return True
    continues = re.match(r"\s+([a-z]|\d)", rest)
    return continues is not None and (continues[1].isalpha() or word in _BEFORE_NUMBERS)


@dataclass(frozen=True)
class LengthBar:
    """A bar of the histogram of words per sentence: sentences of `least` to `most` words."""

    least: int
    most: int
    sentences: int


def word_lengths(lines: Iterable[str], width: int = 5) -> tuple[LengthBar, ...]:
    """The bars of a histogram of the words per sentence, each `width` words wide."""
    counts = Counter((len(split_words(line)) - 1) // width for line in lines)
    places = range(max(counts, default=-1) + 1)
    return tuple(LengthBar(place * width + 1, place * width + width, counts[place]) for place in places)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph; a full stop that is part of a word ends a sentence only at the very end."""
    sentences, begin = [], 0
    for match in _SENTENCE_END.finditer(text):
        word = text[begin : match.start()].rsplit(None, 1)[-1:]
        if match.group() == "." and word and _is_abbreviation(word[0].lstrip("\"'(["), text[match.end() :]):
            continue
        sentences.append(text[begin : match.end()].strip())
        begin = match.end()
    sentences.append(text[begin:].strip())
    return [sentence for sentence in sentences if sentence]
