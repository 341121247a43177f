"""A corpus whose lines have headings: lookup of the lines about a name, and evidence for an answer in them.

    corpus.find("Ann B. Lee")                   the lines under exactly this heading
    corpus.about("Where was Ann B. Lee born?")  the lines whose headings occur in a text
    corpus.nearest("Anne Lee", 5)               the most similar headings, for names that match none
    evidence(corpus, question, answer)          the line about the person, and the answer in it

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
AROUND = 60  # characters quoted on either side of an answer
# Capitalised words, with the particles that join the parts of a name.
_NAME = re.compile(r"[^\W\d_a-z][\w'’.-]*(?:,? (?:[^\W\d_a-z][\w'’.-]*|(?:da|de|del|der|di|la|of|the|van|von)(?= )))*")
_BEFORE_PLACE = re.compile(r"(?:\b(?:at|from|in|near)|\d,?)\s$")

_Span = tuple[int, int]  # where a part of a text begins and ends


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


def spans(text: str, names: Container[str], longest: int) -> Iterator[_Span]:
    """Yield the places where names occur as whole words, from left to right, the longest first at each place."""
    inside = [False, *map(_in_word, text), False]
    edges = [at for at in range(len(text) + 1) if not (inside[at] and inside[at + 1])]  # where words may begin or end
    for i, start in enumerate(edges):
        ends = [end for end in edges[i + 1 : i + 1 + longest] if end - start <= longest]
        yield from ((start, end) for end in reversed(ends) if text[start:end] in names)


def _longest_first(places: Iterable[_Span]) -> list[_Span]:
    """The longest of some places in a text, then those that do not overlap with longer ones."""
    taken: list[_Span] = []
    for start, end in sorted(places, key=lambda place: place[0] - place[1]):
        if all(end <= first or last <= start for first, last in taken):
            taken.append((start, end))
    return taken


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
        """The sha256 of the lines, each with a line feed, whatever file they came from."""
        digest = hashlib.sha256()
        for line in self.lines:
            digest.update(f"{line}\n".encode())
        return digest.hexdigest()

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
    return list(dict.fromkeys(text[start:end] for start, end in _longest_first(spans(text, headings, longest))))


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


# Evidence


@dataclass(frozen=True)
class Evidence:
    """What a corpus says about a question and its answer."""

    question: str
    answer: str
    lines: tuple[Line, ...]
    """The lines about the person named in the question, those that contain the answer first."""
    place: _Span | None
    """Position of the answer in the first line."""
    nearest: tuple[Near, ...]
    """If there is no line: the headings most similar to the name in the question."""

    @property
    def seen(self) -> bool:
        """Whether the corpus has a line about the person named in the question."""
        return bool(self.lines)

    @property
    def supported(self) -> bool:
        """Whether such a line contains the answer as whole words."""
        return self.place is not None

    @property
    def quote(self) -> str:
        """The part of the line around the answer, or its beginning."""
        if not self.lines:
            return ""
        begin, end = self.place or (0, AROUND)
        return excerpt(self.lines[0].text, begin, end)


def excerpt(text: str, begin: int, end: int) -> str:
    """Return a part of a text with some words around it, and an ellipsis where text is omitted."""
    left, right = max(begin - AROUND, 0), min(end + AROUND, len(text))
    if left:
        left = max(text.find(" ", left, begin) + 1, left)  # not within a word, unless there is no blank
    if right < len(text):
        right = max(text.rfind(" ", end, right), end) if " " in text[end:right] else right
    return f"{'… ' if left else ''}{text[left:right].strip()}{' …' if right < len(text) else ''}"


def _is_own_name(line: str, begin: int, end: int) -> bool:
    """Whether a part of a line is the person's own name or a part of it, and so no evidence.

    Warren Spahn's line is no evidence for a town called Warren, unless the word follows `in`, `from` or similar, or the
    number that ends a date.
    """
    heading = title_of(line)
    if begin < len(heading):
        return True
    return set(line[begin:end].split()) <= set(heading.split()) and not _BEFORE_PLACE.search(line[:begin])


def named_in(line: str, answers: Collection[str]) -> dict[str, _Span]:
    """Return the answers that a line names as whole words, except the person's own name, with their first position.

    Of overlapping answers, the longest counts.
    """
    longest = max(map(len, answers), default=0)
    others = (place for place in spans(line, answers, longest) if not _is_own_name(line, *place))
    places: dict[str, _Span] = {}
    for begin, end in sorted(_longest_first(others)):
        places.setdefault(line[begin:end], (begin, end))
    return places


def place_in(line: str, answer: str) -> _Span | None:
    """Return the position of an answer in a line that names it."""
    wanted = normal(answer).strip()
    return named_in(line, {wanted}).get(wanted)


def name_in(question: str) -> str:
    """Guess the name in a question about an unknown person: the longest run of capitalised words."""
    runs = [match.group() for match in _NAME.finditer(question)]
    # The first word of a question is capitalised without being a name.
    beginning = question.lstrip().split(" ")[0]
    runs = [run for run in runs if run != beginning] or runs
    return max(runs, key=len, default=question)


def evidence(corpus: Corpus, question: str, answer: str, n: int = 5) -> Evidence:
    """Look up a question and its answer in a corpus; if no line is about the name, find the n most similar names."""
    lines = [Line(line.number, normal(line.text)) for line in corpus.about(question)]
    if not lines:
        return Evidence(question, answer, (), None, corpus.nearest(name_in(question), n))
    places = [(line, place_in(line.text, answer)) for line in lines]
    places.sort(key=lambda pair: pair[1] is None)  # lines that contain the answer come first
    return Evidence(question, answer, tuple(line for line, _ in places), places[0][1], ())
