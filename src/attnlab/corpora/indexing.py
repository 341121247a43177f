"""How an index of a corpus is made and kept: a line at a time, once, whole or not at all.

    ~/.cache/attnlab/indexes/      or the folder named by ATTNLAB_CACHE, or one of the caller's own
      6f1c0a.../                   by the checksum of the lines: text fields of tantivy, the lines themselves
        about.json                 what was indexed, by which version, and every file with its size
        manifest.json              the sha256 of every file
      known/                       checksums of files that were read before, as long as the files stay as they are

Why apart from index.py: nobody who asks needs to know it. One process builds at a time; others wait and find it done. It must
not know what the index is asked for.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import time
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tantivy

from attnlab import manifest
from attnlab.corpora.library import fingerprint, normal, title_of
from attnlab.errors import AttnlabError, DataError, StorageError
from attnlab.machine import cache_folder, writable

_ENGINE = importlib.metadata.version("tantivy")
_ABOUT, _KIND = "about.json", "index"
_FORMAT = 2  # another number where what is stored changes: older indexes are then built anew
_MEMORY = 80_000_000  # bytes for the words not yet on disk
_REMEMBERED = 2**20  # headings; of one that comes again soon the name is indexed once
CHECKED = (
    2**26
)  # bytes of an index up to which every file is hashed when it is opened; of others the sizes are compared
_RECENT = 2.0  # seconds; a file changed just now may change again within one tick of its clock
LINES_A_REPORT = 5_000

Lines = Callable[[], Iterable[str]]
Progress = Callable[[float], None]  # hears the share that is done


def folded(name: str) -> str:
    """A name without accents, capitals and punctuation."""
    letters = (one for one in unicodedata.normalize("NFKD", name) if not unicodedata.combining(one))
    return " ".join(re.sub(r"[\W_]+", " ", "".join(letters).casefold()).split())


def analyzers() -> dict[str, tantivy.TextAnalyzer]:
    """How names become threes of characters, and text becomes words."""
    threes = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.ngram(3, 3))
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.lowercase())
    return {
        name: one.filter(tantivy.Filter.ascii_fold()).build() for name, one in (("threes", threes), ("text", words))
    }


def _schema() -> tantivy.Schema:
    """What is kept of a line: number, bytes, heading, threes of the heading, words."""
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("number", stored=True, indexed=True)
    builder.add_bytes_field("line", stored=True)
    builder.add_text_field("heading", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("threes", tokenizer_name="threes", index_option="freq")
    builder.add_text_field("text", tokenizer_name="text", index_option="freq")
    return builder.build()


def _document(number: int, line: str, heading: str, named: bool) -> tantivy.Document:
    """A line as it is indexed; with the threes of its heading if it is to be found by a name like it."""
    made = tantivy.Document()
    made.add_unsigned("number", number)
    made.add_bytes("line", line.encode())
    made.add_text("text", normal(line))
    if heading:
        made.add_text("heading", heading)
    if named:
        made.add_text("threes", f" {folded(heading)} ")
    return made


def build(lines: Iterable[str], folder: Path, report: Callable[[int], None]) -> dict[str, Any]:
    """Index lines into an empty folder; returns what there is to say about them."""
    index = tantivy.Index(_schema(), path=str(folder))
    for name, analyzer in analyzers().items():
        index.register_tokenizer(name, analyzer)
    with _writing(index) as writer:
        return fill(writer, lines, report)


@contextmanager
def _writing(index: tantivy.Index) -> Iterator[tantivy.IndexWriter]:
    """A writer whose threads have come to their end afterwards, also where it was interrupted: they would write on."""
    writer = index.writer(_MEMORY, 1)
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


def fill(writer: tantivy.IndexWriter, lines: Iterable[str], report: Callable[[int], None]) -> dict[str, Any]:
    """Hand lines to a writer; returns what there is to say about them."""
    digest, seen, number, done, longest = hashlib.sha256(), array("q", bytes(8 * _REMEMBERED)), 0, 0, 0
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
        if number % LINES_A_REPORT == 0:
            report(done)
    return {"sha256": digest.hexdigest(), "lines": number, "longest": longest}


def files_of(folder: Path) -> list[Path]:
    """The files of the search engine, which must stay as they are."""
    ours = (_ABOUT, manifest.NAME)
    return sorted(one for one in folder.iterdir() if one.name not in ours and one.suffix != ".lock")


def _hash_of(path: Path) -> str:
    """The sha256 of a file, which need not fit into memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def about(folder: Path, verify: bool = False) -> dict[str, Any]:
    """What an index says about itself, or nothing where there is none that can be used; `verify` reads every byte of it."""
    try:
        listed = manifest.Manifest.read(folder)
        if listed is None or listed.kind != _KIND or _hash_of(folder / _ABOUT) != listed.files[_ABOUT]:
            return {}
        told = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if (told["format"], told["tantivy"]) != (_FORMAT, _ENGINE):
            return {}
        sizes = {one.name: one.stat().st_size for one in files_of(folder)}
        if sizes != told["sizes"]:
            return {}
        every = verify or sum(sizes.values()) <= CHECKED
        if every and any(_hash_of(folder / name) != listed.files[name] for name in sizes):
            return {}
        return told
    except (AttnlabError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until no other process builds in this folder, where the system can tell."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def make(target: Path, lines: Iterable[str], expected: str, report: Callable[[int], None]) -> None:
    """Build an index under another name, and give it its own when it is complete."""
    temporary = target.with_name(f".index-{target.name}.tmp")
    try:
        temporary.mkdir()
        told = build(lines, temporary, report)
        if told["sha256"] != expected:
            raise DataError("the corpus was changed while it was being indexed: try again when it is complete")
        files = files_of(temporary)
        told |= {"format": _FORMAT, "tantivy": _ENGINE, "sizes": {one.name: one.stat().st_size for one in files}}
        (temporary / _ABOUT).write_text(json.dumps(told), encoding="utf-8")
        hashes = {one.name: _hash_of(one) for one in (*files, temporary / _ABOUT)}
        (temporary / manifest.NAME).write_bytes(manifest.Manifest(_KIND, hashes).to_bytes())
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    except AttnlabError:
        raise
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StorageError(
            f"the index of the corpus cannot be written to {target.parent} ({reason}):"
            " free some space, or set ATTNLAB_CACHE to another folder"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def home(folder: Path | None) -> Path:
    """Where indexes are kept."""
    return cache_folder() / "indexes" if folder is None else folder


def place_of(sha256: str, folder: Path | None = None) -> Path:
    """The folder of the index of lines with this checksum; the only place where a checksum becomes a path."""
    if not manifest.is_digest(sha256):
        raise DataError(
            f"the checksum of the corpus, {str(sha256)[:80]!r}, is no sha256: the run's config.json is damaged or was edited"
        )
    return home(folder) / sha256[:32]


def keep(
    sha256: str,
    lines: Lines,
    size: int,
    folder: Path | None = None,
    progress: Progress | None = None,
    verify: bool = False,
) -> tuple[Path, bool]:
    """The folder of the index of these lines, and whether it was built just now: only then are they read."""
    kept = place_of(sha256, folder)
    if about(kept, verify):
        return kept, False
    place = writable(kept.parent)
    target = place / kept.name
    with alone(place):
        if about(target, verify):
            return target, False
        for left in place.glob(".index-*.tmp"):  # by a process that was killed, since no other builds now
            shutil.rmtree(left, ignore_errors=True)
        make(target, lines(), sha256, lambda done: progress(min(done / max(size, 1), 1.0)) if progress else None)
    if progress:
        progress(1.0)
    return target, True


def fingerprint_of(path: Path, lines: Lines, folder: Path | None = None) -> str:
    """The checksum of a file's lines; remembered as long as the file stays as it is, since reading a gigabyte takes time."""
    try:
        status = path.stat()
    except OSError:
        return fingerprint(lines())  # which says what is wrong
    known = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
    note = home(folder) / "known" / hashlib.sha256(known.encode()).hexdigest()[:32]
    with suppress(OSError, UnicodeDecodeError):
        if re.fullmatch("[0-9a-f]{64}", text := note.read_text(encoding="ascii")):
            return text
    found = fingerprint(lines())
    if time.time() - status.st_mtime > _RECENT and path.stat().st_mtime_ns == status.st_mtime_ns:
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(found, encoding="ascii")
    return found
