"""Running text as tokens on disk, and the windows that are read from it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.config import TaskConfig
from attnlab.corpora import RunningText, load_corpus, open_text
from attnlab.errors import CheckpointError, ConfigError, DataError, StorageError
from attnlab.lm.shards import Shard, learn_tokenizer, tokenized
from attnlab.lm.tokenizers import Tokenizer
from attnlab.tasks import TaskData, make_task
from attnlab.tasks.text import Text, shuffled

PROSE = list(load_corpus("prose:400").lines)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def text(tmp_path: Path) -> RunningText:
    (tmp_path / "prose.txt").write_text("\n".join(PROSE))
    return open_text(tmp_path / "prose.txt")


def task_of(text: RunningText, block: int = 32, kind: str = "char", **options: object) -> Text:
    tokenizer = learn_tokenizer(text, kind, 300 if kind == "bpe" else 0)  # type: ignore[arg-type]
    made = make_task(TaskConfig("text", options), TaskData(tokenizer, block, text))
    assert isinstance(made, Text)
    return made


def ids_of(shard: Shard) -> list[int]:
    return shard.read(0, len(shard)).tolist()


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_the_order_is_a_permutation(n: int, seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 2**62, size=6).tolist()
    found = shuffled(np.arange(n), n, keys)
    assert sorted(found.tolist()) == list(range(n))
    assert found[n // 2 :].tolist() == shuffled(np.arange(n // 2, n), n, keys).tolist()


def test_the_order_looks_random_and_is_that_of_the_generator() -> None:
    n = 10_000
    orders = [shuffled(np.arange(n), n, np.random.default_rng(s).integers(0, 2**62, size=6).tolist()) for s in (0, 1)]
    for order in orders:
        assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.05
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert np.count_nonzero(orders[0] == orders[1]) < 20


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_stored_ids_are_those_of_whole_documents(text: RunningText, kind: str) -> None:
    task = task_of(text, kind=kind, documents="lines")
    tokenizer = learn_tokenizer(text, kind, 300 if kind == "bpe" else 0)  # type: ignore[arg-type]
    assert ids_of(task.shard) == [number for line in PROSE for number in (tokenizer.pad, *tokenizer.encode(line))]
    assert task.shard.documents == len(PROSE)
    whole = ids_of(task_of(text, kind=kind).shard)
    assert whole == [tokenizer.pad, *tokenizer.encode("\n".join(PROSE))]


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_blocks_may_end_anywhere(kind: str) -> None:
    """The ids are those of encode, and those of the library for the whole text, wherever blocks are cut."""
    tokenizer = Tokenizer.train(kind, PROSE, 400 if kind == "bpe" else 0)  # type: ignore[arg-type]
    draw = random.Random(0)
    for letters in ("ab c  \n\t1é中\u2028\x1c\x85's ll  .,Z", "abcé"):
        for length in (3, 50, 2500):
            documents = ["".join(draw.choices(letters, k=length)) for _ in range(3)]
            marked = "".join("□" + one for one in documents)
            wanted = [number for one in documents for number in (tokenizer.pad, *tokenizer.encode(one))]
            for block in (1, 7, 100, 3000):
                blocks = [marked[at : at + block] for at in range(0, len(marked), block)]
                assert np.concatenate(list(tokenizer.encode_running(blocks))).tolist() == wanted
            if length < 1000:
                assert tokenizer.encode(documents[0]) == tokenizer.backend.encode(tokenizer.space + documents[0]).ids


def test_an_epoch_sees_every_token_once_and_resumes_exactly(text: RunningText) -> None:
    task = task_of(text, documents="lines")
    stored = np.array(ids_of(task.shard))
    windows = task.examples(np.random.default_rng([3, 1]))
    begin = windows.begin
    rows = np.array([example.ids for example in windows])
    assert rows.shape == (len(windows), windows.length) == ((len(stored) - 1 - begin) // 32, 33)
    seen = sorted(map(tuple, rows[:, 1:].tolist()))
    assert seen == sorted(map(tuple, stored[begin + 1 : begin + 1 + 32 * len(windows)].reshape(-1, 32).tolist()))
    again = task.examples(np.random.default_rng([3, 1]))
    for at in range(5, 9):
        assert (*again[at].ids, again[at].starts) == (*windows[at].ids, windows[at].starts)
    other = task.examples(np.random.default_rng([3, 2]))
    assert (other.begin, [*other[0].ids]) != (begin, [*windows[0].ids])


def test_documents_are_kept_apart_unless_asked(text: RunningText) -> None:
    task = task_of(text, documents="lines")
    examples = list(task.examples(np.random.default_rng(0)))
    assert any(example.starts for example in examples)
    for example in examples:
        assert list(example.starts) == [place for place in range(1, 33) if example.ids[place] == task.pad]
    together = task_of(text, documents="lines", apart=False).examples(np.random.default_rng(0))
    assert not any(example.starts for example in together)


def test_half_of_the_windows_inside_a_document_begin_with_its_symbol(text: RunningText) -> None:
    windows = list(task_of(text).examples(np.random.default_rng(0)))
    begun = sum(bool(example.ids[0] == 0) for example in windows)
    assert abs(begun / len(windows) - 0.5) < 0.01
    assert not any(0 in example.ids[1:] for example in windows)


@pytest.mark.parametrize("documents", ["file", "lines"])
def test_text_held_out_is_never_trained_on(text: RunningText, documents: str) -> None:
    task = task_of(text, documents=documents, held_out=0.1)
    total = len(task.shard)
    assert 0.05 * total <= total - task.end <= 0.1 * total + 1
    for seed in range(20):
        windows = task.examples(np.random.default_rng(seed))
        assert windows.begin + len(windows) * 32 < task.end
    held = np.concatenate([example.ids[:-1] for example in task.held_out()])
    assert held.tolist() == ids_of(task.shard)[task.end : task.end + len(held)]
    assert total - task.end - len(held) <= 32
    if documents == "lines":
        assert held[0] == task.pad
    assert len(task_of(text).held_out()) == 0


@pytest.mark.parametrize("held_out", [0.0, 0.1, 0.9999])
def test_a_text_for_validation_is_read_whole_and_as_it_is(text: RunningText, held_out: float) -> None:
    task = task_of(text, held_out=held_out)
    windows = task.validation()
    rows = np.concatenate([example.ids[:-1] for example in windows])
    assert rows.tolist() == ids_of(task.shard)[: len(rows)]
    assert len(windows) == (len(task.shard) - 1) // 32


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 60, 65])
def test_a_text_shorter_than_a_block_works(tmp_path: Path, length: int) -> None:
    (tmp_path / "short.txt").write_text("x" * length)
    task = task_of(open_text(tmp_path / "short.txt"))
    for seed in range(20):
        windows = task.examples(np.random.default_rng(seed))
        assert len(windows) >= 1
        assert windows.length == min(32, length) + 1
        assert all(len(example.ids) == windows.length for example in windows)


def test_the_second_time_nothing_is_read(text: RunningText, monkeypatch: pytest.MonkeyPatch) -> None:
    first = task_of(text).shard
    monkeypatch.setattr(RunningText, "blocks", None)
    second = task_of(text).shard
    assert (first.built, second.built) == (True, False)
    with pytest.raises(ConfigError, match="not callable"):
        task_of(text, documents="lines")


def test_a_damaged_cache_is_rebuilt(text: RunningText, cache: Path) -> None:
    wanted = ids_of(task_of(text).shard)
    for name in ("tokens.bin", "about.json", "manifest.json"):
        for damage in (b"", b"\0" * 40):
            [path] = (cache / "tokens").glob(f"*/{name}")
            path.write_bytes(damage + path.read_bytes()[len(damage) or 10 :])
            shard = task_of(text).shard
            assert shard.built
            assert ids_of(shard) == wanted
    [path] = (cache / "tokenizers").glob("*/tokenizer.json")
    path.write_text("{}")
    assert ids_of(task_of(text).shard) == wanted


def test_damage_in_a_large_cache_is_found_when_it_is_read(
    text: RunningText, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnlab.corpora.cache._CHECKED", 0)
    monkeypatch.setattr("attnlab.lm.shards._BLOCK", 1000)
    wanted = ids_of(task_of(text).shard)
    [path] = (cache / "tokens").glob("*/tokens.bin")
    content = bytearray(path.read_bytes())
    content[2500] ^= 1
    path.write_bytes(content)
    shard = task_of(text).shard
    assert not shard.built
    assert shard.read(0, 1000).tolist() == wanted[:1000]  # bytes 0 to 2000
    for _ in range(2):  # it is found again
        with pytest.raises(CheckpointError, match="damaged in megabyte 2: remove it"):
            shard.read(990, 20)
    assert shard.read(1500, 100).tolist() == wanted[1500:1600]


def test_a_full_disk_is_one_line_and_leaves_nothing(
    text: RunningText, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = learn_tokenizer(text, "byte", 0)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnlab.lm.shards._write", fail)
    with pytest.raises(StorageError, match="No space left on device.*ATTNLAB_CACHE"):
        tokenized(text, tokenizer, "file")
    assert [one.name for one in (cache / "tokens").iterdir()] == []


def test_mistakes_are_named(text: RunningText, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task text has no words"):
        task_of(text, kind="word")
    with pytest.raises(ConfigError, match="held_out must lie"):
        task_of(text, held_out=1.0)
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(DataError, match="is empty"):
        task_of(open_text(tmp_path / "blank.txt"))
    (tmp_path / "tiny.txt").write_text("ab")
    with pytest.raises(ConfigError, match="too few to hold out 0.1 of them: set --dev 0"):
        task_of(open_text(tmp_path / "tiny.txt"), held_out=0.1).examples(np.random.default_rng(0))


_CHILD = """
import sys
import numpy as np
from attnlab.config import TaskConfig
from attnlab.corpora import open_text
from attnlab.machine import memory_held
from attnlab.lm.shards import learn_tokenizer
from attnlab.tasks import TaskData, make_task

for path in sys.argv[1:]:
    text = open_text(path)
    data = TaskData(learn_tokenizer(text, "byte", 0), 128, text)
    windows = make_task(TaskConfig("text"), data).examples(np.random.default_rng(0))
    tokens = sum(len(windows[number].ids) - 1 for number in range(len(windows)))
    print(tokens, memory_held("VmHWM"))
"""


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux")
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    line = "The quick brown fox jumps over the lazy dog, again and again.\n"
    for name, size in (("small", 4_000_000), ("large", 20_000_000)):
        (tmp_path / name).write_text(line * (size // len(line)))
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "small"), str(tmp_path / "large")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    (small, before), (large, after) = (map(int, row.split()) for row in ran.stdout.splitlines())
    assert large - small > 15_000_000
    assert after - before < 10_000_000


def test_memory_does_not_grow_with_text_without_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    letters = [chr(0x4E00 + number) for number in range(500)]
    (tmp_path / "text.txt").write_text("".join(draw.choices(letters, k=100_000)), encoding="utf-8")
    whole = open_text(tmp_path / "text.txt")
    tokenizer = learn_tokenizer(whole, "bpe", 800)
    stored = ids_of(tokenized(whole, tokenizer, "file"))
    assert stored == [tokenizer.pad, *tokenizer.encode("".join(whole.blocks()).removeprefix("□"))]
    kept = sum(len(chunk.encode()) + len(ids) for chunk, ids in tokenizer._known.items())
    assert kept < 10_000
    monkeypatch.setattr("attnlab.corpora.running.BLOCK", 2**12)
    most = 2**16
    assert sum(len(one.encode()) for one in whole.texts(most)) < most / 8 + 2**12
    (tmp_path / "english.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 7000)
    assert sum(map(len, open_text(tmp_path / "english.txt").texts(most))) > 0.9 * most
