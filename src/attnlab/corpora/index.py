"""A search index of a corpus on disk, for corpora that do not fit into memory.

    index = attnlab.index_corpus("wiki.txt")     # built once, line by line; opened from then on
    index.find("Ann B. Lee")                     # the lines under exactly this heading
    index.nearest("Anne Lee", 5)                 # the most similar headings, for names that match none
    index.search("born in York", 5)              # passages by BM25

    ~/.cache/attnlab/indexes/      or the folder named by ATTNLAB_CACHE, or the caller's own
      6f1c0a.../                   named by the checksum of the lines: the files of tantivy, with the lines themselves
        about.json                 what was indexed, by which version, and the size of every file
        manifest.json              the sha256 of every file
      known/                       checksums of files that were read before, valid while the files are unchanged

The search engine is tantivy, which maps its files into memory and skips lines that cannot rank high; rapidfuzz compares
names. Headings are those of library.py. One process builds at a time, and others wait for it. Knows nothing about models.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import tantivy
from rapidfuzz import fuzz

from attnlab.corpora import cache
from attnlab.corpora.cache import CHECKED, Progress, hash_of, seal
from attnlab.corpora.library import Corpus, fingerprint, headings_in, normal, title_of
from attnlab.corpora.sources import is_built_in, lines_of, load_corpus
from attnlab.errors import AttnlabError, DataError, StorageError, UserError
from attnlab.machine import cache_folder
from attnlab.store.folders import MANIFEST, Manifest, is_digest

_ENGINE = importlib.metadata.version("tantivy")
_ABOUT, _KIND = "about.json", "index"
_FORMAT = 2  # increased when the stored fields change: older indexes are then rebuilt
_WRITER_MEMORY = 80_000_000  # bytes
_REMEMBERED = 2**20  # headings; repeated soon, a heading is indexed by name only once
LINES_PER_REPORT = 5_000
_CANDIDATES = 100  # headings whose similarity is computed
_MOST_CANDIDATES = 6_400  # if many lines share a heading
_MOST_WORDS = 48  # per query: the rarest

_Lines = Callable[[], Iterable[str]]


@dataclass(frozen=True)
class Line:
    """A line and its number, counted from 0 as in a Corpus."""

    number: int
    text: str


@dataclass(frozen=True)
class Passage(Line):
    """A line found by a search, with its BM25 score."""

    score: float


@dataclass(frozen=True)
class Near:
    """A heading and its similarity to a name, from 0 to 1."""

    name: str
    similarity: float


def similarity(one: str, other: str) -> float:
    """Return the similarity of two folded names, in the order given or with sorted words; 1: the same letters."""
    return max(fuzz.ratio(one, other), fuzz.token_sort_ratio(one, other)) / 100


def _folded(name: str) -> str:
    """A name without accents, capitals and punctuation."""
    letters = (one for one in unicodedata.normalize("NFKD", name) if not unicodedata.combining(one))
    return " ".join(re.sub(r"[\W_]+", " ", "".join(letters).casefold()).split())


class Index:
    """An open index. Any number of processes may open the same one."""

    def __init__(self, folder: Path, built: bool = False) -> None:
        about = _read_about(folder)
        if about is None:
            raise StorageError(f"there is no index in {folder}: make one with attnlab.index_corpus")
        self.folder, self.built = folder, built
        self.sha256, self.longest = about.sha256, about.longest
        with _reporting_damage(folder):
            self._index = tantivy.Index.open(str(folder))
            self._index.config_reader("manual", 0)  # it never changes, so no thread has to watch it
            self._searcher, self._analyzers = self._index.searcher(), _analyzers()
            if self._searcher.num_docs != about.lines:
                raise ValueError

    def __len__(self) -> int:
        return self._searcher.num_docs

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._lines_under(normal(name)) > 0

    def line(self, number: int) -> str:
        """Return a line by its number, counted from 0."""
        if not 0 <= number < len(self):
            raise UserError(f"there is no line {number}: the corpus has lines 0 to {len(self) - 1}")
        return self._best(self._term("number", number), 1)[0].text

    def find(self, name: str) -> tuple[Line, ...]:
        """Return the lines under exactly this heading, in the order of the corpus."""
        heading = normal(name)
        found = self._best(self._term("heading", heading), self._lines_under(heading))
        return tuple(sorted((Line(one.number, one.text) for one in found), key=lambda one: one.number))

    def about(self, text: str) -> tuple[Line, ...]:
        """Return the lines whose headings occur in a text, as library.documents_about does."""
        found = headings_in(text, self, self.longest)
        return tuple(line for heading in found for line in self.find(heading))

    def nearest(self, name: str, n: int = 5) -> tuple[Near, ...]:
        """Return the headings most similar to a name: typos, missing initials, words in another order."""
        _require_positive(n)
        asked = _folded(name)
        query = self._any("threes", self._analyzers["threes"].analyze(f" {asked} "))
        headings: set[str] = set()
        candidates, full = max(_CANDIDATES, 4 * n), bool(asked)
        while full and len(headings) < n and candidates <= max(_MOST_CANDIDATES, 4 * n):
            found = self._best(query, candidates)
            headings = {normal(title_of(one.text)) for one in found}
            candidates, full = 8 * candidates, len(found) == candidates
        near = [Near(heading, similarity(asked, _folded(heading))) for heading in headings]
        return tuple(sorted(near, key=lambda one: (-one.similarity, one.name != normal(name), one.name))[:n])

    def search(self, text: str, n: int = 5) -> tuple[Passage, ...]:
        """Return the passages most relevant to a text by BM25; words that occur in most lines are ignored."""
        _require_positive(n)
        with _reporting_damage(self.folder):
            words = dict.fromkeys(self._analyzers["text"].analyze(normal(text)))
            known = {word: self._searcher.doc_freq("text", word) for word in words}
        rare = {word: lines for word, lines in known.items() if 0 < 2 * lines <= len(self)}
        chosen = sorted(rare or known, key=lambda word: known[word])[:_MOST_WORDS]
        return tuple(sorted(self._best(self._any("text", chosen), n), key=lambda one: (-one.score, one.number)))

    def _lines_under(self, heading: str) -> int:
        with _reporting_damage(self.folder):
            return self._searcher.doc_freq("heading", heading)

    def _term(self, field: str, value: str | int) -> tantivy.Query:
        option = "freq" if field in ("text", "threes") else "basic"
        return tantivy.Query.term_query(self._index.schema, field, value, option)

    def _any(self, field: str, values: Iterable[str]) -> tantivy.Query:
        parts = [(tantivy.Occur.Should, self._term(field, value)) for value in dict.fromkeys(values)]
        return tantivy.Query.boolean_query(parts)

    def _best(self, query: tantivy.Query, n: int) -> list[Passage]:
        if n < 1:
            return []
        with _reporting_damage(self.folder):
            hits = self._searcher.search(query, max(1, min(n, len(self))), count=False).hits
            found = ((score, self._searcher.doc(address)) for score, address in hits)
            return [Passage(one["number"][0], bytes(one["line"][0]).decode(), float(score)) for score, one in found]


@contextmanager
def _reporting_damage(folder: Path) -> Iterator[None]:
    """Turn the engine's errors about a damaged file into one line with the fix."""
    try:
        yield
    except BaseException as error:
        # A panic of the engine is not an Exception, and its class cannot be imported.
        if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
            raise StorageError(f"the index {folder} is damaged: remove that folder, and it is rebuilt") from None
        raise


def _require_positive(n: int) -> None:
    if n < 1:
        raise UserError(f"n must be at least 1, not {n}")


def index_corpus(
    corpus: Corpus | str | Path, folder: Path | None = None, progress: Progress | None = None, verify: bool = False
) -> Index:
    """Open the index of a corpus (a file, built-in data by name, or lines in memory), building it if there is none.

    `folder` holds the indexes (default: the cache); `progress` is called with the completed share. With `verify`, every
    file of the index is compared with its checksum, and a damaged index is rebuilt; small ones are always verified.
    """
    lines: _Lines
    if isinstance(corpus, Corpus) or is_built_in(corpus):
        loaded = corpus if isinstance(corpus, Corpus) else load_corpus(corpus)
        sha256, lines = loaded.sha256, lambda: loaded.lines
        size = sum(len(line.encode()) + 1 for line in loaded.lines)
    else:
        path, lines = Path(corpus), partial(lines_of, corpus)
        sha256 = cache.remembered(path, lambda: fingerprint(lines()), _home(folder))
        size = path.stat().st_size
    place, built = ensure(sha256, lines, size, folder, progress, verify)
    try:
        return Index(place, built)
    except StorageError:
        shutil.rmtree(place, ignore_errors=True)
        return Index(*ensure(sha256, lines, size, folder, progress))


# Building and storing


@dataclass(frozen=True)
class _Built:
    """What was indexed: the checksum and number of the lines, and the length of the longest heading."""

    sha256: str
    lines: int
    longest: int


@dataclass(frozen=True)
class _About(_Built):
    """The content of about.json."""

    format: int
    tantivy: str
    sizes: dict[str, int]


def _analyzers() -> dict[str, tantivy.TextAnalyzer]:
    """How names are split into trigrams, and text into words."""
    threes = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.ngram(3, 3))
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.lowercase())
    return {
        name: one.filter(tantivy.Filter.ascii_fold()).build() for name, one in (("threes", threes), ("text", words))
    }


def _schema() -> tantivy.Schema:
    """What is stored per line: number, bytes, heading, trigrams of the heading, words."""
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("number", stored=True, indexed=True)
    builder.add_bytes_field("line", stored=True)
    builder.add_text_field("heading", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("threes", tokenizer_name="threes", index_option="freq")
    builder.add_text_field("text", tokenizer_name="text", index_option="freq")
    return builder.build()


def _document(number: int, line: str, heading: str, named: bool) -> tantivy.Document:
    """A line as it is indexed; if `named`, with the trigrams of its heading, so that similar names find it."""
    made = tantivy.Document()
    made.add_unsigned("number", number)
    made.add_bytes("line", line.encode())
    made.add_text("text", normal(line))
    if heading:
        made.add_text("heading", heading)
    if named:
        made.add_text("threes", f" {_folded(heading)} ")
    return made


@contextmanager
def _writing(folder: Path) -> Iterator[tantivy.IndexWriter]:
    """A writer into an empty folder whose threads have ended afterwards, even when interrupted: they would keep writing."""
    index = tantivy.Index(_schema(), path=str(folder))
    for name, analyzer in _analyzers().items():
        index.register_tokenizer(name, analyzer)
    writer = index.writer(_WRITER_MEMORY, 1)
    try:
        yield writer
        writer.commit()
    except BaseException:
        with suppress(ValueError):
            writer.rollback()
        raise
    finally:
        with suppress(ValueError):
            writer.wait_merging_threads()


def _build(lines: Iterable[str], folder: Path, report: Callable[[int], None]) -> _Built:
    """Index lines into an empty folder; `report` is called with the bytes done."""
    digest, seen, number, done, longest = hashlib.sha256(), array("q", bytes(8 * _REMEMBERED)), 0, 0, 0
    with _writing(folder) as writer:
        for number, line in enumerate(lines, start=1):
            data = f"{line}\n".encode()
            digest.update(data)
            done += len(data)
            heading = normal(title_of(line))
            longest = max(longest, len(heading))
            mark = hash(heading)
            fresh = seen[mark % _REMEMBERED] != mark
            seen[mark % _REMEMBERED] = mark
            writer.add_document(_document(number - 1, line, heading, bool(heading) and fresh))
            if number % LINES_PER_REPORT == 0:
                report(done)
    return _Built(digest.hexdigest(), number, longest)


def files_of(folder: Path) -> list[Path]:
    """Return the files of the search engine, which must not change."""
    ours = (_ABOUT, MANIFEST)
    return sorted(one for one in folder.iterdir() if one.name not in ours and one.suffix != ".lock")


def _sizes_of(folder: Path) -> dict[str, int]:
    return {one.name: one.stat().st_size for one in files_of(folder)}


def _read_about(folder: Path, verify: bool = False) -> _About | None:
    """Read about.json; None if there is no usable index. With `verify`, or if the index is small, hash every file."""
    try:
        listed = Manifest.read(folder)
        if listed is None or listed.kind != _KIND or hash_of(folder / _ABOUT) != listed.files[_ABOUT]:
            return None
        about = _About(**json.loads((folder / _ABOUT).read_text(encoding="utf-8")))
        if (about.format, about.tantivy, about.sizes) != (_FORMAT, _ENGINE, _sizes_of(folder)):
            return None
        hashed = about.sizes if verify or sum(about.sizes.values()) <= CHECKED else {}
        return None if any(hash_of(folder / name) != listed.files[name] for name in hashed) else about
    except (AttnlabError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _make(folder: Path, lines: Iterable[str], expected: str, report: Callable[[int], None]) -> None:
    """Build an index in an empty folder."""
    built = _build(lines, folder, report)
    if built.sha256 != expected:
        raise DataError("the corpus was changed while it was being indexed: try again when it is complete")
    about = _About(**asdict(built), format=_FORMAT, tantivy=_ENGINE, sizes=_sizes_of(folder))
    (folder / _ABOUT).write_text(json.dumps(asdict(about)), encoding="utf-8")
    seal(folder, _KIND, [*files_of(folder), folder / _ABOUT])


def _home(folder: Path | None) -> Path:
    return cache_folder() / "indexes" if folder is None else folder


def place_of(sha256: str, folder: Path | None = None) -> Path:
    """Return the folder of the index of lines with this checksum; the only place where a checksum becomes a path."""
    if not is_digest(sha256):
        raise DataError(
            f"the checksum of the corpus, {str(sha256)[:80]!r}, is no sha256: the run's config.json is damaged or was edited"
        )
    return _home(folder) / sha256[:32]


def ensure(
    sha256: str,
    lines: _Lines,
    size: int,
    folder: Path | None = None,
    progress: Progress | None = None,
    verify: bool = False,
) -> tuple[Path, bool]:
    """Return the folder of the index of these lines, and whether it was built now; only then are the lines read."""

    def report(done: int) -> None:
        if progress:
            progress(min(done / max(size, 1), 1.0))

    place, built = cache.ensure(
        place_of(sha256, folder),
        _KIND,
        lambda found: _read_about(found, verify) is not None,
        lambda empty: _make(empty, lines(), sha256, report),
    )
    if built and progress:
        progress(1.0)
    return place, built
