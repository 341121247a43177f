"""Running text of any size, read block by block: plain text, JSONL, parquet, `datasets` folders, and folders of these.

    text = open_text("shakespeare.txt")      # nothing is read yet
    text.blocks("file")                      # about a megabyte each, with `□` before every document

Each record of JSONL, parquet and `datasets` is a document. Plain text is one document per file, per line, or between blank
lines; a line that is exactly `<|endoftext|>` always ends a document. `□` and `⁇` in the text itself become question marks.
Knows nothing about what is made of the text.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from attnlab.corpora.cache import remembered_hash
from attnlab.corpora.files import RECORDS, decoded, numbered_bytes, opened, record_form, refuse_foreign
from attnlab.corpora.library import Corpus
from attnlab.corpora.sources import check_name, is_built_in, load_corpus
from attnlab.errors import AttnlabWarning, DataError
from attnlab.lm.tokenizers import MASK, PAD
from attnlab.reading import read_bytes

Documents = Literal["file", "lines", "blank"]
Progress = Callable[[float], None]  # called with the completed share

BLOCK = 2**20  # bytes
LONGEST_LINE = 2**16  # bytes; a line may be cut between blocks only if it is longer
_SEPARATOR = "<|endoftext|>"
_WORD = re.compile(r"[^\W\d]+")
_REPEATED = 8  # bytes of a large text for each byte of its different words, at least, when a tokenizer is learned
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_TEXTS = (".txt", ".text", ".md", "")
_SPLIT = re.compile(r"(?<![a-z])(train|training|test|validation|valid|val|dev|eval)(?![a-z])")
_ROWS = 1000  # records of a parquet or arrow file read at once
_Pieces = Iterator[tuple[bool, str]]  # whether a document begins, and a part of it


@dataclass(frozen=True)
class RunningText:
    """A text by name or path; nothing of it is kept in memory."""

    source: str
    progress: Progress | None = field(default=None, compare=False)  # called with the share that was made into tokens
    lines: Corpus | None = None  # the text, if it is in memory

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files of the text, in order; none if it is in memory."""
        return () if self.lines else tuple(_files_of(Path(self.source)))

    @cached_property
    def sha256(self) -> str:
        """The checksum of the files, remembered while they are unchanged; of lines in memory, theirs."""
        if self.lines:
            return self.lines.sha256
        sums = [remembered_hash(path) for path in self.files]
        return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    @property
    def size(self) -> int:
        """The number of bytes on disk, or of characters in memory."""
        if self.lines:
            return sum(len(line) + 1 for line in self.lines.lines)
        return sum(path.stat().st_size for path in self.files)

    def blocks(self, documents: Documents = "file") -> Iterator[str]:
        """Yield the text in blocks of about a megabyte, with `□` before every document."""
        gathered: list[str] = []
        size = 0
        for begins, piece in self._pieces(documents):
            piece = piece.replace(PAD, "?").replace(MASK, "?")
            gathered.append(PAD + piece if begins else piece)
            size += len(piece)
            if size >= BLOCK:
                yield "".join(gathered)
                gathered, size = [], 0
        if gathered:
            yield "".join(gathered)

    def each_line(self) -> Iterator[str]:
        """Yield the lines of all documents, without blank ones."""
        for block in self.blocks():
            yield from split_lines(block)

    def texts(self, most: int = 0) -> Iterator[str]:
        """Yield the text for learning a tokenizer; if it is longer than `most` bytes, blocks spread evenly over it.

        Learning takes memory for different words, so that a block that has too many, as in languages without spaces, is cut.
        """
        size = self.size
        every = max(1, -(-size // most)) if most else 1
        for number, block in enumerate(self.blocks()):
            if number % every == 0:
                if most:
                    wanted = most * BLOCK // min(most, max(1, size)) // _REPEATED
                    block = block[: len(block) * wanted // max(wanted, _different(block))]
                yield from filter(None, block.split(PAD))

    def _pieces(self, documents: Documents) -> _Pieces:
        """The parts of all documents in order."""
        if self.lines:
            return _split(_blocks_of(self.lines), documents)
        return (piece for path in self.files for piece in _pieces_of(path, documents))


def open_text(source: str | Path, progress: Progress | None = None) -> RunningText:
    """Open a text by name or path; only that it exists is checked."""
    if is_built_in(source):
        return RunningText(str(source), progress, load_corpus(source))
    check_name(source, ("people", "prose", "stories", "addition"))
    text = RunningText(str(source), progress)
    for path in text.files:
        with opened(path):
            pass
    return text


def split_lines(text: str) -> list[str]:
    """Split running text with `□` before documents into lines without spaces around them; blank ones are left out."""
    return [line for part in text.replace(PAD, "\n").split("\n") if (line := part.strip())]


def _different(text: str) -> int:
    """The bytes of all different words of a text."""
    return sum(len(word.encode()) for word in set(_WORD.findall(text)))


def _blocks_of(corpus: Corpus) -> Iterator[str]:
    """Lines in memory as those of a text file, with blank lines between documents of several lines."""
    numbers = corpus.documents or (0,) * len(corpus.lines)
    last = numbers[0]
    for line, number in zip(corpus.lines, numbers, strict=True):
        yield f"\n{line}\n" if number != last else f"{line}\n"
        last = number


# Files


def _files_of(path: Path) -> list[Path]:
    """The files of a text: the file itself, those of a `datasets` folder, or those in a folder that can be trained on."""
    if not path.is_dir():
        return [path]
    if (path / "dataset_dict.json").exists():
        if not (path / "train").is_dir():
            raise DataError(f"{path} has no split 'train': name the folder of a split in it")
        path = path / "train"
    if (path / "state.json").exists():
        try:
            names = [entry["filename"] for entry in json.loads(read_bytes(path / "state.json"))["_data_files"]]
            files = [path / name for name in names]
            if any(file.resolve().parent != path.resolve() for file in files):
                raise ValueError("it names a file outside the folder")
            return files
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path / 'state.json'} cannot be used ({error}): save the dataset again") from None
    readable = (*RECORDS, *_TEXTS)
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in readable and file.is_file())
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not files:
        raise DataError(f"{path} has no file that can be read: it needs .txt, .jsonl, .parquet or .arrow files")
    records = [file for file in files if record_form(file)]  # plain text beside them describes them
    return _without_other_splits(records or files, path)


def _without_other_splits(files: list[Path], folder: Path) -> list[Path]:
    """The files of the split `train`, if names of files or folders tell it from others; a note says so."""
    splits = [set(_SPLIT.findall(str(file.relative_to(folder)).lower())) for file in files]
    trained = [file for file, names in zip(files, splits, strict=True) if names & {"train", "training"}]
    if not trained or set.union(*splits) <= {"train", "training"}:
        return files
    message = f"{folder}: read {len(trained)} of {len(files)} files, those named train; name a file to read another"
    warnings.warn(message, AttnlabWarning, stacklevel=2)
    return trained


def _pieces_of(path: Path, documents: Documents) -> _Pieces:
    """The parts of the documents of one file."""
    form = record_form(path)
    if form is None:
        return _split(read_blocks(path), documents)
    texts = _read_jsonl(path) if form == "JSONL" else _read_column(path, form)
    return ((True, text) for text in texts if text.strip())


def read_blocks(path: Path) -> Iterator[str]:
    """Yield a text file in blocks that end with a line where possible; line ends become LF."""
    rest, number, offset = b"", 1, 0
    with opened(path) as stream:
        while data := stream.read(BLOCK):
            if offset == 0:
                refuse_foreign(rest + data, path.name)
            data = rest + data
            cut = data.rfind(b"\n") + 1 or (_last_character(data) if len(data) > LONGEST_LINE else 0)
            if not cut:
                rest = data
                continue
            yield _normal(decoded(data[:cut], path.name, number, offset), offset)
            number, offset, rest = number + data.count(b"\n", 0, cut), offset + cut, data[cut:]
    if rest:
        yield _normal(decoded(rest, path.name, number, offset), offset)


def _last_character(data: bytes) -> int:
    """The beginning of the last character of a text, or of CR, which may belong to CRLF."""
    at = len(data) - 1
    while at > 0 and len(data) - at < 4 and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _normal(text: str, offset: int) -> str:
    """A block with LF line ends and without a byte order mark."""
    text = text.replace("\r\n", "\n")
    return text.removeprefix("\ufeff") if offset == 0 else text


def _split(blocks: Iterable[str], documents: Documents) -> _Pieces:
    """Split blocks of a file into parts of documents."""
    fresh = begins = True  # whether a document begins next, and a line
    for block in blocks:
        parts: list[str] = []
        for line in _LINE.findall(block) if documents != "file" or _SEPARATOR in block else [block]:
            blank = not line.strip()
            separates = begins and (line.rstrip("\n") == _SEPARATOR or (blank and documents == "blank"))
            if separates or (begins and documents == "lines"):
                if parts:
                    yield fresh, "".join(parts)
                fresh, parts = True, []
            begins = line.endswith("\n")
            if not separates and not (blank and fresh and not parts):
                parts.append(line.removesuffix("\n") if documents == "lines" else line)
        if parts:
            yield fresh, "".join(parts)
            fresh = False


def _refused(path: Path, number: int, reason: str) -> DataError:
    return DataError(f"{path.name}:{number}: {reason}; each line must be a JSON object with the key 'text'")


def _read_jsonl(path: Path) -> Iterator[str]:
    """The texts of JSON lines."""
    with opened(path) as stream:
        for number, data in numbered_bytes(path, stream):
            if not data.strip():
                continue
            try:
                text = json.loads(data)["text"]
                text.encode()
            except UnicodeEncodeError as error:  # JSON can hold half a character, and UTF-8 cannot
                raise _refused(path, number, f"\\u{ord(text[error.start]):04x} is half of a character") from None
            except (KeyError, TypeError, AttributeError):
                raise _refused(path, number, "no text") from None
            except (ValueError, RecursionError) as error:
                raise _refused(path, number, f"not valid JSON ({' '.join(str(error).split())[:100]})") from None
            yield text


def _read_column(path: Path, form: str) -> Iterator[str]:
    """The column `text` of a parquet file, or of an arrow file as `datasets` writes it, some rows at a time."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path} needs pyarrow: pip install 'attnlab[parquet]'") from None
    with opened(path):
        pass
    try:
        if form == "parquet":
            batches = parquet.ParquetFile(path).iter_batches(_ROWS, columns=["text"])
        else:
            batches = pyarrow.ipc.open_stream(pyarrow.memory_map(str(path)))
        for batch in batches:
            if "text" not in batch.schema.names:
                raise DataError(f"{path} has no column 'text', but {', '.join(batch.schema.names) or 'none'}")
            column = batch.column("text")
            kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
            if str(kind) not in ("string", "large_string", "string_view"):
                raise DataError(f"{path}: the column 'text' is {column.type}, not string: write it again as text")
            column.validate(full=True)  # a forged offset would read memory outside the file
            for begin in range(0, len(batch), _ROWS):
                yield from column.slice(begin, _ROWS).drop_null().to_pylist()
    except (pyarrow.ArrowException, MemoryError, OSError) as error:
        why = " ".join(str(error).split())[:100] or "it does not fit into memory"
        raise DataError(f"{path} cannot be read ({why}): write it again") from None
