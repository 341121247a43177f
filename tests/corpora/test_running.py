"""Running text: every form of source, how documents are told apart, what is refused, and the task that is guessed."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from attnlab.corpora import export, load_corpus, open_text, running, sources
from attnlab.errors import AttnlabWarning, DataError
from attnlab.lm.tokenizers import MASK, PAD
from attnlab.tasks.guess import guess_task

TEXTS = ["Hello there.\nHow are you?", "Für Elise", "three"]


def documents(source: Path, how: running.Documents = "file") -> list[str]:
    return "".join(open_text(source).blocks(how)).split(PAD)[1:]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("block", [1, 7, 2**20])
def test_plain_text_is_split_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(running, "BLOCK", block)
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone two\r\n thrée\r\n\r\n \nfour □⁇\n<|endoftext|>\nsix <|endoftext|>\n\nseven".encode())
    assert documents(path) == ["one two\n thrée\n\n \nfour ??\n", "six <|endoftext|>\n\nseven"]
    assert documents(path, "lines") == ["one two", " thrée", "four ??", "six <|endoftext|>", "seven"]
    assert documents(path, "blank") == ["one two\n thrée\n", "four ??\n", "six <|endoftext|>\n", "seven"]


def test_a_line_longer_than_memory_is_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BLOCK", 7)
    monkeypatch.setattr(running, "LONGEST_LINE", 20)
    line = "ü𝒳 \r" * 50 + "end"
    (tmp_path / "a.txt").write_bytes(f"{line}\r\nsecond\n".encode())
    assert max(map(len, running.read_blocks(tmp_path / "a.txt"))) < 40
    assert documents(tmp_path / "a.txt", "lines") == [line, "second"]


def test_records_are_documents(tmp_path: Path) -> None:
    import pyarrow
    from datasets import Dataset, DatasetDict
    from pyarrow import parquet

    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in [*TEXTS, " "]))
    parquet.write_table(pyarrow.table({"id": [1, 2, 3, 4], "text": [*TEXTS, None]}), tmp_path / "a.parquet")
    Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "saved", num_shards=2)
    splits = {"train": Dataset.from_dict({"text": TEXTS}), "test": Dataset.from_dict({"text": ["no"]})}
    DatasetDict(splits).save_to_disk(tmp_path / "splits")
    for name in ("a.jsonl", "a.parquet", "saved", "splits"):
        assert documents(tmp_path / name) == TEXTS, name
        assert guess_task(tmp_path / name).task == "text"


def test_a_folder_is_all_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.TXT").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.png").write_bytes(b"\x89PNG")
    (tmp_path / ".hidden.txt").write_text("no")
    assert documents(tmp_path) == ["first", "second"]
    before = open_text(tmp_path).sha256
    (tmp_path / "b.TXT").write_text("Second")
    assert open_text(tmp_path).sha256 != before
    (tmp_path / "d.JSONL").write_text('{"text": "record"}\n')
    assert documents(tmp_path) == ["record"]  # the rest describes it


@pytest.mark.parametrize("names", [("train-0{}", "test-0"), ("a.train.{}", "a.valid"), ("train/{}", "Validation/0")])
def test_other_splits_are_not_trained_on(tmp_path: Path, names: tuple[str, str]) -> None:
    train, other = names
    files = {train.format(0): "first", train.format(1): "second", other: "no"}
    for name, text in files.items():
        path = tmp_path / f"data/{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": text}))
    with pytest.warns(AttnlabWarning, match="read 2 of 3 files, those named train"):
        assert documents(tmp_path) == ["first", "second"]
    assert documents(tmp_path / f"data/{other}.jsonl") == ["no"]
    path.rename(tmp_path / "data/latest.jsonl")  # no other split, and no name of one
    assert len(documents(tmp_path)) == 3


def test_only_columns_of_strings_are_text(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    kinds = [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()]
    for column in (*(pyarrow.array(TEXTS, kind) for kind in kinds), pyarrow.array(TEXTS).dictionary_encode()):
        with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as sink:
            table = pyarrow.table({"text": column})
            with pyarrow.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        assert documents(tmp_path / "a.arrow") == TEXTS
    for values in ([b"Alice"], [["Alice", "Bob"]], [{"a": "Alice"}], [7]):
        parquet.write_table(pyarrow.table({"text": values}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match="the column 'text' is .*, not string"):
            documents(tmp_path / "a.parquet")


def test_forged_columns_are_refused(tmp_path: Path) -> None:
    import pyarrow

    table = pyarrow.table({"text": ["aa", "bb"]})
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    sound = (tmp_path / "a.arrow").read_bytes()
    offsets = struct.pack("<3i", 0, 2, 4)
    assert sound.count(offsets) == sound.count(b"aabb") == 1
    for old, new in ((offsets, struct.pack("<3i", 0, 2, 60)), (b"aabb", b"aab\xff")):
        (tmp_path / "a.arrow").write_bytes(sound.replace(old, new))
        with pytest.raises(DataError, match="cannot be read"):
            documents(tmp_path / "a.arrow")


def test_a_saved_dataset_names_only_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "private.arrow").write_bytes(b"")
    (tmp_path / "saved").mkdir()
    for name in ("../private.arrow", str(tmp_path / "private.arrow")):
        (tmp_path / "saved" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(DataError, match="names a file outside the folder"):
            open_text(tmp_path / "saved")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\nbad \xff here", "a.txt:2: byte 0xff at offset 9 is not UTF-8"),
        ("a.txt", "text".encode("utf-16"), "is UTF-16"),
        ("a.txt", b"a\n\0", "a.txt:2: byte 0x00"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "a"}', "a.jsonl:2: no text"),
        ("a.jsonl", b'{"text": "a"', "a.jsonl:1: not valid JSON"),
        ("a.jsonl", b'{"text": "\\ud800"}', "a.jsonl:1: .ud800 is half of a character"),
        ("a.parquet", b"PAR1 not really", "a.parquet cannot be read"),
        ("a.arrow", b"not really", "a.arrow cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        documents(tmp_path / name)
    assert "\n" not in str(refused.value)


def test_missing_sources_and_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_text(tmp_path / "none.txt")
    with pytest.raises(DataError, match="no file that can be read"):
        open_text(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'attnlab\[parquet\]'"):
        documents(tmp_path / "a.parquet")


def test_lines_that_do_not_fit_into_memory_name_the_other_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("text\n" * 100)
    monkeypatch.setattr(sources, "memory_free", lambda: 1000)
    with pytest.raises(DataError, match="--task.name text"):
        load_corpus(tmp_path / "a.txt")


def test_the_task_is_guessed_from_the_first_lines(tmp_path: Path) -> None:
    export("people:300", tmp_path / "people")
    export("prose:300", tmp_path / "prose")
    play = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n" * 30
    wrapped = "It was a cold morning. He went out to see\nwhether the boat was still there. It was. The\noars" * 30
    stories = "It was a cold morning. He went out to see whether the boat was still there. It was.\n" * 30
    for name, text in {"play": play, "wrapped": wrapped, "stories": stories}.items():
        (tmp_path / name).write_text(text)
    found = {
        name: (guess.task, guess.options.get("documents"))
        for name in ("people/corpus.txt", "prose/train.txt", "play", "wrapped", "stories")
        for guess in [guess_task(tmp_path / name)]
    }
    assert found == {
        "people/corpus.txt": ("recall", None),
        "prose/train.txt": ("text", "lines"),
        "play": ("text", "file"),
        "wrapped": ("text", "file"),
        "stories": ("text", "lines"),
    }
    assert guess_task("people:300:x4").task == "recall"
    assert guess_task("prose").task == "text"


def test_symbols_in_the_text_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": f"a{PAD}b{MASK}"}))
    assert documents(tmp_path / "a.jsonl") == ["a?b?"]
