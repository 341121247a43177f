"""English text taken apart: words with their punctuation standing alone, as news corpora are written, and sentences.

    split_words('"I don\\'t," said Mr. Lee.')   ->   " I don 't , " said Mr. Lee .

The manner is that of the statistical translation tools, in which such corpora come: no case is changed, `'s` and `'t` stand
alone, hyphens join, a full stop belongs to an abbreviation or stands alone. A line that is written apart already, as every
line of such a corpus is, stays as it is. Plain text in and out; knows nothing of vocabularies.
"""

from __future__ import annotations

import re

_STANDING = frozenset({'"', "'", ".", ",", ";", ":", "?", "!", "'s", "'t", "'re", "'ve", "'ll", "'m", "'d"})

# A full stop behind these is part of them, and the sentence goes on.
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
    """Whether a text was written apart already: more of its full stops, commas and `'s` stand alone than are attached."""
    standing = sum(word in _STANDING for word in words)
    attached = sum(word[-1] in ",;!?" and len(word) > 1 for word in words)
    return standing > attached


def split_words(text: str) -> list[str]:
    """The words and marks of a text in order."""
    words = text.split()
    if _is_spaced(words):
        return words
    text = text.translate(_TYPOGRAPHY)
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        if match["stop"]:
            found += (
                [match["word"] + "."] if _is_abbreviation(match["word"], text[match.end() :]) else [match["word"], "."]
            )
        else:
            found.append(match.group())
    return found


def _is_abbreviation(word: str, rest: str) -> bool:
    """Whether the full stop behind a word is part of it, seen from what follows."""
    if "." in word and any(letter.isalpha() for letter in word):  # U.S., p.m., e.g.
        return True
    if word in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I"):
        return True
    goes_on = re.match(r"\s+([a-z]|\d)", rest)
    return goes_on is not None and (goes_on[1].isalpha() or word in _BEFORE_NUMBERS)


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph; a full stop that belongs to its word ends none, but at the very end."""
    found, begin = [], 0
    for match in _SENTENCE_END.finditer(text):
        word = text[begin : match.start()].rsplit(None, 1)[-1:]
        if match.group() == "." and word and _is_abbreviation(word[0].lstrip("\"'(["), text[match.end() :]):
            continue
        found.append(text[begin : match.end()].strip())
        begin = match.end()
    found.append(text[begin:].strip())
    return [sentence for sentence in found if sentence]
