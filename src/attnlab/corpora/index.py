"""An index of a corpus on disk: lines by heading, headings like a name, passages by their words; for a gigabyte and more.

    index = attnlab.index_corpus("wiki.txt")     # built once, a line at a time; opened from then on
    index.find("Ann B. Lee")                     # the lines under exactly this heading
    index.nearest("Anne Lee", 5)                 # the headings most like a name, for names that are none
    index.search("born in York", 5)              # passages by BM25

Why: evidence for what a model says has to come at once, from corpora that do not fit into memory. The search engine is
tantivy, which maps its files and skips what cannot be among the best; rapidfuzz says how alike two names are. Headings are
those of library.py. It must not know about models, nor what the lines are evidence for.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tantivy
from rapidfuzz import fuzz

from attnlab.corpora.indexing import Lines, Progress, about, analyzers, fingerprint_of, folded, keep
from attnlab.corpora.library import Corpus, headings_in, normal, title_of
from attnlab.corpora.sources import is_built_in, lines_of, load_corpus
from attnlab.errors import StorageError, UserError

_CANDIDATES = 100  # headings that are looked at closely
_MOST_CANDIDATES = 6_400  # where many lines share a heading
_MOST_WORDS = 48  # of a text to be searched for: the rarest


@dataclass(frozen=True)
class Line:
    """A line and its number, counted from nought as in a Corpus."""

    number: int
    text: str


@dataclass(frozen=True)
class Passage(Line):
    """A line that speaks of what was searched for, and how much so by BM25."""

    score: float


@dataclass(frozen=True)
class Near:
    """A heading, and how like it is to a name: from 0 to 1."""

    name: str
    similarity: float


def similarity(one: str, other: str) -> float:
    """How alike two folded names are, in the order given or by sorted parts: 1 where the same letters are left."""
    return max(fuzz.ratio(one, other), fuzz.token_sort_ratio(one, other)) / 100


@contextmanager
def _answering(folder: Path) -> Iterator[None]:
    """What the search engine says of a damaged file becomes one line with the remedy."""
    try:
        yield
    except BaseException as error:
        # A panic of the engine is no Exception, and its class cannot be imported.
        if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
            raise StorageError(f"the index {folder} is damaged: remove that folder, and it is built anew") from None
        raise


class Index:
    """An open index. Several may be open at once, in any number of processes."""

    def __init__(self, folder: Path, built: bool = False) -> None:
        told = about(folder)
        if not told:
            raise StorageError(f"there is no index in {folder}: make one with attnlab.index_corpus")
        self.folder, self.built = folder, built
        self.sha256, self.longest = told["sha256"], told["longest"]
        with _answering(folder):
            self._index = tantivy.Index.open(str(folder))
            self._index.config_reader("manual", 0)  # it never changes: no thread need watch it
            self._searcher, self._analyzers = self._index.searcher(), analyzers()
            if self._searcher.num_docs != told["lines"]:
                raise ValueError

    def __len__(self) -> int:
        return self._searcher.num_docs

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.lines_under(normal(name)) > 0

    def line(self, number: int) -> str:
        """The line of a number, counted from nought."""
        if not 0 <= number < len(self):
            raise UserError(f"there is no line {number}: the corpus has lines 0 to {len(self) - 1}")
        return self._best(self._term("number", number), 1)[0].text

    def find(self, name: str) -> tuple[Line, ...]:
        """The lines under exactly this heading, in the order of the corpus."""
        heading = normal(name)
        found = self._best(self._term("heading", heading), self.lines_under(heading))
        return tuple(sorted((Line(one.number, one.text) for one in found), key=lambda one: one.number))

    def about(self, text: str) -> tuple[Line, ...]:
        """The lines whose headings occur in a text, as library.documents_about finds them."""
        found = headings_in(text, self, self.longest)
        return tuple(line for heading in found for line in self.find(heading))

    def nearest(self, name: str, n: int = 5) -> tuple[Near, ...]:
        """The headings most like a name, the likest first: typing errors, initials left out and parts that changed places."""
        _refuse_none(n)
        asked = folded(name)
        query = self._any("threes", self._analyzers["threes"].analyze(f" {asked} "))
        headings: set[str] = set()
        candidates, full = max(_CANDIDATES, 4 * n), bool(asked)
        while full and len(headings) < n and candidates <= max(_MOST_CANDIDATES, 4 * n):
            found = self._best(query, candidates)
            headings = {normal(title_of(one.text)) for one in found}
            candidates, full = 8 * candidates, len(found) == candidates
        near = [Near(heading, similarity(asked, folded(heading))) for heading in headings]
        return tuple(sorted(near, key=lambda one: (-one.similarity, one.name != normal(name), one.name))[:n])

    def search(self, text: str, n: int = 5) -> tuple[Passage, ...]:
        """The passages that speak most of what a text speaks of, by BM25; words of most lines say nothing and are left out."""
        _refuse_none(n)
        with _answering(self.folder):
            words = dict.fromkeys(self._analyzers["text"].analyze(normal(text)))
            known = {word: self._searcher.doc_freq("text", word) for word in words}
        rare = {word: lines for word, lines in known.items() if 0 < 2 * lines <= len(self)}
        chosen = sorted(rare or known, key=lambda word: known[word])[:_MOST_WORDS]
        return tuple(sorted(self._best(self._any("text", chosen), n), key=lambda one: (-one.score, one.number)))

    def lines_under(self, heading: str) -> int:
        """How many lines have a heading."""
        with _answering(self.folder):
            return self._searcher.doc_freq("heading", heading)

    def _term(self, field: str, value: Any) -> tantivy.Query:
        option = "freq" if field in ("text", "threes") else "basic"
        return tantivy.Query.term_query(self._index.schema, field, value, option)

    def _any(self, field: str, values: Iterable[str]) -> tantivy.Query:
        parts = [(tantivy.Occur.Should, self._term(field, value)) for value in dict.fromkeys(values)]
        return tantivy.Query.boolean_query(parts)

    def _best(self, query: tantivy.Query, n: int) -> list[Passage]:
        if n < 1:
            return []
        with _answering(self.folder):
            hits = self._searcher.search(query, max(1, min(n, len(self))), count=False).hits
            found = ((score, self._searcher.doc(address)) for score, address in hits)
            return [Passage(one["number"][0], bytes(one["line"][0]).decode(), float(score)) for score, one in found]


def _refuse_none(n: int) -> None:
    """Refuse to look for less than one."""
    if n < 1:
        raise UserError(f"n must be at least 1, not {n}")


def _opened(
    sha256: str, lines: Lines, size: int, folder: Path | None, progress: Progress | None, verify: bool
) -> Index:
    """The index of these lines, built if there is none or if the one there cannot be read."""
    place, built = keep(sha256, lines, size, folder, progress, verify)
    try:
        return Index(place, built)
    except StorageError:
        shutil.rmtree(place, ignore_errors=True)
        return Index(*keep(sha256, lines, size, folder, progress))


def index_corpus(
    corpus: Corpus | str | Path, folder: Path | None = None, progress: Progress | None = None, verify: bool = False
) -> Index:
    """The index of a corpus: a file, built-in data by its name, or lines in memory; built if there is none yet.

    `folder` is where indexes are kept (default: the cache); `progress` hears the share that is done. With `verify` every
    file of an index is compared with its checksum, and a damaged index is built again; small ones are always verified.
    """
    if isinstance(corpus, Corpus) or is_built_in(corpus):
        loaded = corpus if isinstance(corpus, Corpus) else load_corpus(corpus)
        size = sum(len(line.encode()) + 1 for line in loaded.lines)
        return _opened(loaded.sha256, lambda: loaded.lines, size, folder, progress, verify)
    path, lines = Path(corpus), partial(lines_of, corpus)
    sha256 = fingerprint_of(path, lines, folder)
    return _opened(sha256, lines, path.stat().st_size, folder, progress, verify)
