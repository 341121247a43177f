"""A corpus whose lines have headings, and lookup of the lines about a name, or of the most similar names.

    corpus.find("Ann B. Lee")                  the lines under exactly this heading
    corpus.about("Where was Ann B. Lee born?") the lines whose headings occur in a text
    corpus.nearest("Anne Lee", 5)              the most similar headings, for names that match none

Retrieval in its simplest form, a dictionary of headings in memory, is the open-book baseline for models that must recall.
A corpus that is read line by line fits into memory, since training needs it there too. Knows nothing about where the lines
came from, tokens or models.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnlab.errors import UserError

# Written with a full stop and followed by more of the name, unlike "Jr" and "Sr".
_ABBREVIATIONS = re.compile(
    "Adm|Brig|Capt|Card|Cmdr|Col|Cpl|Dr|Fr|Ft|Gen|Gov|Hon|Lt|Maj|Messrs|Mlle|Mme|Mr|Mrs|Ms|Mt|Msgr|Pfc|Pres|Prof|Pvt"
    "|Rep|Rev|Rt|Sen|Sgt|St|Ste|Supt|Ven"
)
_INITIALS = re.compile(r"[^\W\d_](?:\.-?[^\W\d_])*")
_LONGEST_HEADING = 12  # words; anything longer is a sentence
_SIMILAR = 0.3  # least similarity of a name that is worth showing


def normal(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), in which headings are compared."""
    return unicodedata.normalize("NFC", text)


def _continues(heading: str) -> bool:
    """Whether the full stop after this beginning of a line belongs to an initial or an abbreviation."""
    words = heading.replace("(", " ").split()
    return not words or any(form.fullmatch(words[-1]) for form in (_ABBREVIATIONS, _INITIALS))


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _is_repeated(name: str, line: str) -> bool:
    """Whether the name that begins a line is repeated in full after the full stop."""
    begin = len(name) + 2
    end = begin + len(name)
    return line.startswith(name, begin) and _in_word(name[-1]) != _in_word(line[end : end + 1])


def title_of(line: str) -> str:
    """Return the heading of a line such as "Ann B. Lee. Lee was born in York .", or "" if it has none."""
    stop, otherwise = line.find(". "), ""
    while stop >= 0 and len(line[:stop].split()) <= _LONGEST_HEADING:
        beginning = line[:stop]
        stop = line.find(". ", stop + 1)
        if not beginning.strip() or beginning.endswith(" "):
            continue
        # "Malcolm X. Malcolm X was ...": a name of several words that is repeated at once was complete.
        if not _continues(beginning) or (" " in beginning and _is_repeated(beginning, line)):
            return beginning
        # "Anastasius I. Pope Anastasius I was ...": if nothing else can be the heading.
        if " " in beginning:
            otherwise = otherwise or beginning
    return otherwise


def _edges(text: str) -> list[int]:
    """The positions at which a word may begin or end."""
    inside = [_in_word(character) for character in text]
    return [i for i in range(len(text) + 1) if not (0 < i < len(text) and inside[i - 1] and inside[i])]


def spans(text: str, names: Container[str], longest: int) -> Iterator[tuple[int, int]]:
    """Yield the places where names occur as whole words, from left to right, the longest first at each place."""
    positions = _edges(text)
    for i, start in enumerate(positions):
        ends = [end for end in positions[i + 1 : i + 1 + longest] if end - start <= longest]
        yield from ((start, end) for end in reversed(ends) if text[start:end] in names)


def fingerprint(lines: Iterable[str]) -> str:
    """Return the sha256 of the lines, each with a line feed."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def folded(name: str) -> str:
    """Return a name without accents, capitals and punctuation."""
    letters = (letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
    return " ".join(re.sub(r"[\W_]+", " ", "".join(letters).casefold()).split())


@dataclass(frozen=True)
class Line:
    """A line and its number, counted from 0."""

    number: int
    text: str


@dataclass(frozen=True)
class Near:
    """A heading and its similarity to a name, from 0 to 1."""

    name: str
    similarity: float


@dataclass(frozen=True)
class Corpus:
    """Documents of one line each, or sentences that share a document, and where they came from."""

    source: str
    lines: tuple[str, ...]
    documents: tuple[int, ...] | None = None  # a number that lines of one text share; None: every line is one

    @cached_property
    def sha256(self) -> str:
        """The fingerprint of the lines, whatever file they came from."""
        return fingerprint(self.lines)

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """The heading of each line, or ""."""
        return tuple(title_of(line) for line in self.lines)

    @cached_property
    def shelf(self) -> dict[str, tuple[int, ...]]:
        """The numbers of the lines under each heading."""
        numbers_under: dict[str, list[int]] = defaultdict(list)
        for number, title in enumerate(self.titles):
            if title:
                numbers_under[normal(title)].append(number)
        return {title: tuple(numbers) for title, numbers in numbers_under.items()}

    @cached_property
    def longest_title(self) -> int:
        """The number of characters of the longest heading."""
        return max(map(len, self.shelf), default=0)

    @cached_property
    def _folded_titles(self) -> tuple[str, ...]:
        """The headings of the shelf as they are compared with other names."""
        return tuple(map(folded, self.shelf))

    def find(self, name: str) -> tuple[Line, ...]:
        """Return the lines under exactly this heading, in the order of the corpus."""
        return tuple(Line(number, self.lines[number]) for number in self.shelf.get(normal(name), ()))

    def about(self, text: str) -> tuple[Line, ...]:
        """Return the lines whose headings occur in a text, in the order of `headings_in`."""
        return tuple(Line(number, self.lines[number]) for number in documents_about(self, text))

    def nearest(self, name: str, n: int = 5) -> tuple[Near, ...]:
        """Return the headings most similar to a name: typos, missing initials, words in another order."""
        from rapidfuzz import fuzz, process  # only here: it is slow to import

        if n < 1:
            raise UserError(f"n must be at least 1, not {n}")
        wanted = folded(name)
        if not wanted or not self.shelf:
            return ()
        ratios = [
            process.cdist([wanted], self._folded_titles, scorer=scorer, dtype=np.float64)[0]
            for scorer in (fuzz.ratio, fuzz.token_sort_ratio)
        ]
        similarity = np.maximum(*ratios) / 100
        last = np.sort(similarity)[-min(n, len(similarity))]
        near = [
            Near(heading, float(similarity[place]))
            for place, heading in enumerate(self.shelf)
            if similarity[place] >= max(last, _SIMILAR)
        ]
        return tuple(sorted(near, key=lambda near: (-near.similarity, near.name != normal(name), near.name))[:n])


def headings_in(text: str, headings: Container[str], longest: int) -> list[str]:
    """Return the headings that occur in a text, the longest first; one inside a longer one does not count."""
    text = normal(text)
    taken: list[tuple[int, int]] = []
    for start, end in sorted(spans(text, headings, longest), key=lambda span: span[0] - span[1]):
        if all(end <= first or last <= start for first, last in taken):
            taken.append((start, end))
    return list(dict.fromkeys(text[start:end] for start, end in taken))


def documents_about(corpus: Corpus, text: str) -> list[int]:
    """Return the numbers of the lines whose headings occur in a text, in the order of `headings_in`."""
    headings = headings_in(text, corpus.shelf, corpus.longest_title)
    return [number for heading in headings for number in corpus.shelf[heading]]


def open_book(corpus: Corpus, places: Collection[str], question: str) -> str | None:
    """Answer by looking up the heading and taking the first known place in the line; None if there is none."""
    known = frozenset(places)
    longest = max(map(len, known), default=0)
    for line in corpus.about(question):
        title = corpus.titles[line.number]
        text = line.text[len(title) :]
        named = [text[start:end] for start, end in spans(text, known, longest)]
        # Warren and Orlando are names too: the person's own name is a place only if there is no other.
        own = frozenset(title.split())
        if named:
            return next((place for place in named if not own.issuperset(place.split())), named[0])
    return None
