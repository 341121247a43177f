"""make faults: faults of every kind against a small chain of commands, and a table of those tried and survived.

    python tests/faults/faults.py [--short] [--jobs N] [--only WORD]

The chain is pretrain, finetune, evaluate, calibrate, report, a comparison and a recall study, of models with 31,488
parameters. A fault is survived when the command, or the one that a user gives next (`attnlab resume`, or the same again),
ends with the very figures of the chain without faults, or in one line where the fault cannot be repaired; and when nothing
else has changed.
"""

from __future__ import annotations

import argparse
import codecs
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import sandbox
from chain import CHAIN, CONFIG, DATA, EXAM, QUESTION, TINY, Golden, Link, Task, judge, make_golden, recover
from sandbox import Outcome, attnlab, contents, differences, figures, kill_at, start

# kill -9 ----------------------------------------------------------------------------------------------------------


def killed(golden: Golden, link: Link, number: int) -> str:
    """Kill a command at an event, recover, and compare."""
    with golden.sandbox(*link.needs, of=link.state) as place:
        before = {name: contents(place / "work" / name) for name in link.needs}
        first = attnlab(place, *link.command, strike=kill_at(number))
        if first.code == 0:
            return f"it was not killed: {first}"
        return judge(golden, place, link, recover(place, link), before)


def sample(golden: Golden, short: bool) -> Iterator[tuple[Link, int]]:
    """The events to kill at: all; of the two studies the first and the last at every place in the code that is new."""
    seen: set[tuple[str, str]] = set()
    for link in CHAIN:
        events = golden.events.get(link.name, [])
        keys = [(kind, re.sub(r"\d+", "N", f"{Path(path).name} {place}")) for kind, path, place in events]
        if link.name not in ("compare", "compare, resumed", "recall") and not short:
            chosen = list(range(len(events)))
        else:
            if link.name == "compare" and events:
                keys = keys[: golden.event("compare", "mkdir", "compare/logs")]
            fresh = [key for key in dict.fromkeys(keys) if key not in seen]
            ends = {keys.index(key) for key in fresh} | {len(keys) - 1 - keys[::-1].index(key) for key in fresh}
            chosen = sorted(ends)
        seen.update(keys)
        yield from ((link, number) for number in (chosen[:: len(chosen) // 4 + 1] if short else chosen))


def kills(golden: Golden, short: bool) -> list[Task]:
    """kill -9 at every write."""
    return [
        Task(f"kill -9: {link.name}", f"event {at} {golden.events[link.name][at]}", partial(killed, golden, link, at))
        for link, at in sample(golden, short)
    ]


# Damage to what is recorded --------------------------------------------------------------------------------------


def torn(golden: Golden, short: bool) -> list[Task]:
    """metrics.jsonl of a stopped run, cut at every byte of its last two lines, and damaged in any line."""
    content = (golden.root / "stopped" / "pretrain" / "metrics.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)[:-1]  # the kill has cut the last one
    whole = b"".join(lines)
    tails = [whole[:cut] for cut in range(len(whole) - len(lines[-1]) - len(lines[-2]), len(whole) + 1)]
    tails += [whole + tail for tail in (b"\0" * 40, b"{", b"\n", b'{"step": 9}\n', b"\xff\xfe")]
    found = [Task("torn last lines", repr(tail[-40:]), partial(recorded, golden, tail)) for tail in tails]
    for number in range(len(lines)):
        line = lines[number].replace(b'"loss":', b'"loss":1')
        assert line != lines[number]
        bad = b"".join((*lines[:number], line, *lines[number + 1 :]))
        found.append(Task("damage in the middle", f"line {number + 1}", partial(recorded, golden, bad, True)))
    return found[:: 60 if short else 1]


def recorded(golden: Golden, content: bytes, may_refuse: bool = False) -> str:
    """Resume a run with other metrics than it has written."""
    with golden.sandbox("pretrain", of="stopped") as place:
        (place / "work" / "pretrain" / "metrics.jsonl").write_bytes(content)
        outcome = attnlab(place, "resume", "pretrain")
        if may_refuse and outcome.refused:
            return "detected"
        return str(outcome) if outcome.code else differences(place / "work" / "pretrain", golden.figures["pretrain"])


# Disks ------------------------------------------------------------------------------------------------------------


def full_disk(golden: Golden, short: bool) -> list[Task]:
    """A disk that is full from some event on, and files that may not grow beyond a size."""
    found = []
    for link in CHAIN[:1] if short else CHAIN:
        every = {"pretrain": 3, "finetune": 11, "compare": 40, "compare, resumed": 29, "recall": 29}.get(link.name, 2)
        for number in range(0, len(golden.events[link.name]), 50 if short else every):
            work = partial(filled, golden, link, strike=sandbox.full_from(number))
            found.append(Task("full disk (ENOSPC)", f"{link.name}, event {number}", work))
        for size in () if short else (1_000, 3_000, 6_000, 100_000, 150_000):
            work = partial(filled, golden, link, before=sandbox.limited_to(size))
            found.append(Task("full disk (RLIMIT_FSIZE)", f"{link.name}, {size} bytes", work))
    return found


def filled(golden: Golden, link: Link, **fault: Any) -> str:
    """A command that finds the disk full ends in one line; with room again, it comes to its end."""
    with golden.sandbox(*link.needs, of=link.state) as place:
        before = {name: contents(place / "work" / name) for name in link.needs}
        first = attnlab(place, *link.command, **fault)
        if first.code and not first.refused:
            return f"not one line: {first}"
        return judge(golden, place, link, recover(place, link) if first.code else first, before)


READ_ONLY = (
    ("resume", "pretrain"),
    ("pretrain", *DATA, "--out", "new"),
    ("finetune", "finetune", "--out", "new"),
    ("evaluate", "finetune", *EXAM, "--out", "new"),
    ("calibrate", "finetune"),
    ("report", "finetune", "--out", "new"),
    ("report", "recall"),
    ("resume", "compare"),
    ("runs", "delete", "finetune", "--yes"),
    ("export", "finetune", "new"),
)
READING = (("runs", "show", "finetune"), ("runs", "."), ("ask", "finetune", QUESTION), ("generate", "finetune", "Ada"))


def read_only(golden: Golden, short: bool) -> list[Task]:
    """Folders that may not be written, as a user who is not root."""
    if short:
        return [Task("read-only folder", "pretrain", partial(refused_there, golden, READ_ONLY[1]))]
    run, checkpoints = ("pretrain",), ("pretrain/checkpoints",)
    return [
        *(Task("read-only folder", " ".join(one), partial(refused_there, golden, one)) for one in READ_ONLY),
        *(Task("read-only folder", " ".join(one), partial(read_there, golden, one)) for one in READING),
        Task("read-only parent", "resume", partial(resumed_there, golden, run, ())),
        Task("read-only cache and state", "resume", partial(resumed_there, golden, (".",), ())),
        Task("read-only checkpoints", "resume", partial(resumed_there, golden, (".",), checkpoints)),
    ]


@contextmanager
def other_user(golden: Golden, writable: Sequence[str] = (), *others: str) -> Iterator[Path]:
    """A sandbox in which a user who is not root may write only some folders."""
    with golden.sandbox() as place:
        for state, name in (*AFTER[:1], *AFTER[4:], ("stopped", "pretrain"), ("unjudged", "compare")):
            if (golden.root / state / name).exists():  # the short part does without studies
                shutil.copytree(golden.root / state / name, place / "work" / name)
        permit(place, False)
        for name in writable:
            permit(place / "work" / name, True)
        for name in others:
            permit(place / "work" / name, False)
        try:
            yield place
        finally:
            permit(place, True)


def permit(folder: Path, writing: bool) -> None:
    """Let everybody write a folder and all in it, or nobody."""
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if writing else 0o555) if path.is_dir() else (0o666 if writing else 0o444))


def refused_there(golden: Golden, command: Sequence[str]) -> str:
    """A command that would write ends in one line, and changes nothing."""
    with other_user(golden) as place:
        before = contents(place)
        outcome = attnlab(place, *command, before=sandbox.as_nobody)
        return ("" if outcome.refused else str(outcome)) + (
            "" if contents(place) == before else " it changed something"
        )


def read_there(golden: Golden, command: Sequence[str]) -> str:
    """A command that only reads works as ever."""
    with other_user(golden) as place:
        free, bound = attnlab(place, *command), attnlab(place, *command, before=sandbox.as_nobody)
        return "" if (free.code, free.out) == (bound.code, bound.out) else str(bound)


def resumed_there(golden: Golden, writable: Sequence[str], others: Sequence[str]) -> str:
    """A run is resumed where it may be written; else it ends in one line, and goes on once it may."""
    with other_user(golden, writable, *others) as place:
        outcome = attnlab(place, "resume", "pretrain", before=sandbox.as_nobody)
        if others:
            if not outcome.refused:
                return f"not one line: {outcome}"
            permit(place / "work", True)
            outcome = attnlab(place, "resume", "pretrain", before=sandbox.as_nobody)
        return str(outcome) if outcome.code else differences(place / "work" / "pretrain", golden.figures["pretrain"])


# Bit flips --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """Folders in some state, and the commands that read them; `made` is the folder that such a command makes or changes."""

    folders: tuple[tuple[str, str], ...]  # state and name; flipped is the first
    commands: tuple[tuple[str, ...], ...]
    made: str | None = None

    @property
    def flipped(self) -> str:
        return self.folders[0][1]


AFTER = tuple(("after", name) for name in ("finetune", "pretrain", "exam", "compare", "recall"))
READS = (
    Read((("stopped", "pretrain"),), (("resume", "pretrain"),), "pretrain"),
    Read(AFTER[:2], (("evaluate", "finetune", *EXAM, "--out", "exam"),), "exam"),
    Read(
        AFTER[:2],
        (
            ("ask", "finetune", QUESTION),
            ("runs", "show", "finetune", "--json"),
            ("report", "finetune", "--json"),
            ("resume", "finetune"),
        ),
    ),
    Read((AFTER[1], AFTER[0]), (("ask", "finetune", QUESTION), ("report", "finetune", "pretrain", "--json"))),
    Read(AFTER[2:3], (("runs", "show", "exam", "--json"),)),
    Read((("unjudged", "compare"),), (("resume", "compare"),), "compare"),
    Read(AFTER[3:4], (("runs", "show", "compare", "--json"), ("report", "compare", "--json"), ("resume", "compare"))),
    Read((("unjudged", "recall"),), (("resume", "recall"),), "recall"),
    Read(AFTER[4:5], (("ask", "recall", QUESTION), ("runs", "show", "recall", "--json"), ("resume", "recall"))),
)


def flips(golden: Golden, short: bool) -> list[Task]:
    """One bit changed, in every file that is written, at several places."""
    found = []
    for read in READS[:2] if short else READS:
        wanted = [answer(golden, read, number) for number in range(len(read.commands))]
        folder = golden.root / read.folders[0][0] / read.flipped
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            # A finished run has no use for its checkpoints; reports are for people, and read by no command.
            unread = path.suffix in (".html", ".md") or ("checkpoints/" in name and read.folders[0][0] != "stopped")
            if not path.is_file() or not path.stat().st_size or unread:
                continue
            drawn, size, count = random.Random(f"{read.folders} {name}"), path.stat().st_size, 1 if short else 5
            for part in range(count):
                at = min(size - 1, int(size * (part + drawn.random()) / count))
                flip = (name, at, drawn.randrange(8))
                work = partial(flipped, golden, read, flip, wanted)
                found.append(Task("bit flips", f"{read.folders[0]} {flip}", work))
    return found


def answer(golden: Golden, read: Read, number: int, flip: tuple[str, int, int] | None = None) -> tuple[Outcome, Any]:
    """What a command says and makes, with a bit flipped or without."""
    with golden.sandbox() as place:
        for state, name in read.folders:
            shutil.copytree(golden.root / state / name, place / "work" / name)
        if flip:
            path = place / "work" / read.flipped / flip[0]
            times, content = path.stat(), bytearray(path.read_bytes())
            content[flip[1]] ^= 1 << flip[2]
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        outcome = attnlab(place, *read.commands[number])
        said = replace(outcome, out=outcome.out.replace(str(place), ""), err=outcome.err.replace(str(place), ""))
        made = (
            figures(place / "work" / read.made, spare=flip[0] if flip else "")
            if read.made and not outcome.code
            else None
        )
        return said, made


def flipped(golden: Golden, read: Read, flip: tuple[str, int, int], wanted: Sequence[tuple[Outcome, Any]]) -> str:
    """Whether the commands that read a file detect a flipped bit, or do the same with it."""
    seen = "same result"
    for number, (right, made_right) in enumerate(wanted):
        said, made = answer(golden, read, number, flip)
        if said.refused:
            seen = "detected"
            continue
        if said.code:
            return f"{read.commands[number]}: not one line: {said}"
        if read.made:
            same = all(made.get(name) == one for name, one in made_right.items() if name != flip[0])
        else:
            same = said.out == right.out
        if not same and not tells(said, right):
            return f"{read.commands[number]}: silently wrong: {said}"
        if tells(said, right):
            seen = "detected"
    return seen


def tells(said: Outcome, right: Outcome) -> bool:
    """Whether damage is told: a fall-back, a note, or an entry that is listed as damaged."""
    words = ("falling back", "damaged", "has changed since")
    return any(word in said.out + said.err and word not in right.out + right.err for word in words)


# Special files ----------------------------------------------------------------------------------------------------

HUGE = 40 * 2**30  # bytes; a hole takes no space on the disk
TOLD = re.compile("damaged|cannot be read|falling back|not a run|there is no file|is a link")
IN_TIME = 30  # seconds; ten times what the slowest of these commands takes
SPECIAL: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "40 GB": lambda path: (path.touch(), os.truncate(path, HUGE)),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o666),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "unreadable": lambda path: path.touch(0o000),
}
MODEL = (
    "manifest.json",
    *(f"model/{name}" for name in ("manifest.json", "config.json", "tokenizer.json", "model.safetensors")),
)
SHEET = """
tolerance = 0.05
keys = [[1, 0], [0, 1]]
values = [[1, 2], [3, 4]]
[[task]]
name = "a"
ask = "select"
index = 0
"""
LINES = "Ada Lovelace was born in London.\nAlan Turing was born in London too.\n" * 20
OWN = {
    "text.txt": LINES,
    "text.jsonl": '{"text": "Ada Lovelace was born in London."}\n',
    "exam.tsv": "Where was Ada Lovelace born?\tLondon\n",
    "predictions.txt": "London\n",
    "settings.toml": TINY,
    "sheet.toml": SHEET,
    "answers/ada.toml": "a = [50, 0]\n",
    "keys.csv": "1,0\n0,1\n",
    "rule.py": "class Rule:\n    pass\n",
}
NEW = ("--config", "settings.toml", "--out", "new")

# Verb: state and folder, command, and the files that are replaced, one at a time.
VERBS: tuple[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...], tuple[str, ...]], ...] = (
    ("runs", AFTER[:2], ("runs", "."), ("finetune/manifest.json", "finetune/config.json", "finetune/result.json")),
    ("runs (stopped)", (("stopped", "pretrain"),), ("runs", "."), ("pretrain/metrics.jsonl", "pretrain/.lock")),
    (
        "runs show",
        AFTER[:2],
        ("runs", "show", "finetune", "--json"),
        ("finetune/manifest.json", "finetune/result.json"),
    ),
    ("report", AFTER[:2], ("report", "finetune", "--json"), ("finetune/config.json", "finetune/metrics.jsonl")),
    ("ask", AFTER[:2], ("ask", "finetune", QUESTION), tuple(f"finetune/{name}" for name in MODEL)),
    ("generate", AFTER[:2], ("generate", "finetune", "Ada"), tuple(f"finetune/{name}" for name in MODEL)),
    ("look", AFTER[:2], ("look", "finetune", QUESTION), ("finetune/manifest.json", "finetune/model/tokenizer.json")),
    (
        "evaluate",
        AFTER[:2],
        ("evaluate", "finetune", "--exam", "exam.tsv", "--out", "new"),
        ("finetune/config.json", "exam.tsv"),
    ),
    (
        "resume",
        (("stopped", "pretrain"),),
        ("resume", "pretrain"),
        ("pretrain/manifest.json", "pretrain/config.json", "pretrain/metrics.jsonl", "pretrain/.lock"),
    ),
    (
        "finetune",
        AFTER[1:2],
        ("finetune", "pretrain", "--facts", "exam.tsv", *NEW),
        ("pretrain/manifest.json", "exam.tsv"),
    ),
    ("pretrain", (), ("pretrain", "--corpus", "text.txt", *NEW), ("text.txt", "settings.toml")),
    ("pretrain (text)", (), ("pretrain", "--task.name", "text", "--corpus", "text.txt", *NEW), ("text.txt",)),
    ("pretrain (JSONL)", (), ("pretrain", "--task.name", "text", "--corpus", "text.jsonl", *NEW), ("text.jsonl",)),
    (
        "pretrain (class)",
        (),
        ("pretrain", "--model.mechanism", "rule.py:Rule", "--corpus", "text.txt", *NEW),
        ("rule.py",),
    ),
    ("corpus show", (), ("corpus", "show", "text.txt"), ("text.txt",)),
    ("score", (), ("score", "exam.tsv", "predictions.txt"), ("exam.tsv", "predictions.txt")),
    ("check", (), ("check", "sheet.toml", "answers"), ("sheet.toml", "answers/ada.toml")),
    ("design", (), ("design", "select", "--keys", "keys.csv", "--index", "0"), ("keys.csv",)),
    ("audit", AFTER[:2], ("audit", "finetune"), ("finetune/manifest.json", "finetune/model/tokenizer.json")),
    ("export", AFTER[:2], ("export", "finetune", "new"), ("finetune/manifest.json", "finetune/model/tokenizer.json")),
    ("recall, resumed", (("unjudged", "recall"),), ("resume", "recall"), ("recall/manifest.json", "recall/study.json")),
)


def special_files(golden: Golden, short: bool) -> list[Task]:
    """A FIFO, a device and the like in place of a file, by verb."""
    return [
        Task(f"special files: {verb}", f"{kind} as {name}", partial(replaced, golden, folders, command, name, kind))
        for number, (verb, folders, command, names) in enumerate(VERBS)
        for name in names
        for place, kind in enumerate(SPECIAL)
        if all((golden.root / state / one).exists() for state, one in folders)  # the short part does without studies
        and (not short or (number + place) % len(SPECIAL) == 0)
    ]


def replaced(golden: Golden, folders: Sequence[tuple[str, str]], command: Sequence[str], name: str, kind: str) -> str:
    """A command that meets a special file ends in time: in one line, or it tells the damage, or it needs no such file."""

    def before() -> None:
        signal.alarm(IN_TIME)
        if kind == "unreadable":
            sandbox.as_nobody()

    said = []
    for damaged in (True, False):
        with golden.sandbox() as place:
            work = place / "work"
            for state, one in folders:
                shutil.copytree(golden.root / state / one, work / one)
            for own, text in OWN.items():
                (work / own).parent.mkdir(exist_ok=True)
                (work / own).write_text(text)
            if damaged:
                (work / name).unlink(missing_ok=True)
                SPECIAL[kind](work / name)
            outcome = attnlab(place, *command, before=before if damaged else None)
            if damaged and (outcome.refused or (outcome.code == 0 and TOLD.search(outcome.out + outcome.err))):
                return "detected"
            said.append(
                (outcome.code, re.sub(r"[\d.,]+ (s|tokens/s|kB|MB)\b", "", outcome.out.replace(str(place), "")))
            )
    return (
        "same result"
        if said[0] == said[1]
        else f"not in one line, not in time, or silently wrong: {said[0][0]}, {said[0][1][-200:]!r}"
    )


# Two processes, moves, clocks ------------------------------------------------------------------------------------


def two_writers(golden: Golden, short: bool) -> list[Task]:
    """A command that stands still at some event, and another beside it."""
    evaluate, calibrate, compare = CHAIN[2].command, CHAIN[3].command, CHAIN[5].command
    resume, pretrain = ("resume", "pretrain"), CHAIN[0].command
    pairs: list[tuple[tuple[tuple[str, str], ...], Sequence[str], int, Sequence[str], str, str]] = []
    pairs += [((("stopped", "pretrain"),), resume, at, resume, "pretrain", "pretrain") for at in (1, 0, 4, 8, 20)]
    if not short:
        pairs += [((("stopped", "pretrain"),), resume, 5, ("calibrate", "pretrain"), "pretrain", "pretrain")]
        pairs += [((), pretrain, at, pretrain, "pretrain", "pretrain") for at in (0, 3, 9, 12)]
        pairs += [(AFTER[:2], evaluate, at, evaluate, "exam", "evaluate") for at in (0, 2)]
        pairs += [(AFTER[:2], calibrate, at, calibrate, "finetune", "calibrate") for at in (0, 1, 3)]
        pairs += [(AFTER[:2], calibrate, at, ("resume", "finetune"), "finetune", "calibrate") for at in (1, 3)]
        again = ("resume", "compare")
        pairs += [((("stopped", "compare"),), again, at, again, "compare", "compare") for at in (0, 1, 2)]
        pairs += [((), compare, at, compare, "compare", "compare") for at in (1, 7)]
        again = ("resume", "recall")
        pairs += [((("unjudged", "recall"),), again, at, again, "recall", "recall") for at in (0, 1, 2, 6)]
    return [
        Task("two writers", f"{first} at {at}, {second}", partial(beside, golden, *pair))
        for pair in (pairs[:1] if short else pairs)
        for _, first, at, second, _, _ in [pair]
    ]


def beside(
    golden: Golden,
    folders: Sequence[tuple[str, str]],
    first: Sequence[str],
    number: int,
    second: Sequence[str],
    folder: str,
    link: str,
) -> str:
    """One comes to its end, the other too or ends in one line; the figures are those of one alone."""
    with golden.sandbox() as place:
        for state, name in folders:
            shutil.copytree(golden.root / state / name, place / "work" / name)
        one = start(place, *first, strike=sandbox.stop_at(number))
        if (early := one.wait(orphans=False)) is not None:
            return f"the first did not stand still: {early}"
        other = start(place, *second)
        threading.Timer(2.0, os.kill, (one.pid, signal.SIGCONT)).start()  # the second may wait for the first
        late, early = other.wait(orphans=False), one.wait(orphans=False)
        assert late is not None
        assert early is not None
        if not all(each.code == 0 or each.refused for each in (early, late)) or (early.code and late.code):
            return f"first: {early}; second: {late}"
        return differences(place / "work" / folder, golden.figures[link])


def moved(golden: Golden, short: bool) -> list[Task]:
    """Folders that were moved or copied, used from another folder."""
    row, run = "moved and copied folders", (("stopped", "finetune"), ("after", "pretrain"))
    studies = [(state, name) for name in ("compare", "recall") for state in ("stopped", "unjudged")]
    commands = (
        ("ask", "DIR/finetune", QUESTION),
        ("ask", "DIR/recall", QUESTION),
        ("report", "DIR/compare", "--json"),
        ("resume", "DIR/compare"),
        ("evaluate", "DIR/finetune", *EXAM, "--out", "exam"),
    )
    found = [Task(row, "a stopped run with its base", partial(elsewhere, golden, run))]
    found += [Task(row, f"{name}, {state}", partial(elsewhere, golden, ((state, name),))) for state, name in studies]
    found += [Task(row, " ".join(command), partial(same_from, golden, command)) for command in commands]
    return found[:1] if short else found


def elsewhere(golden: Golden, folders: Sequence[tuple[str, str]]) -> str:
    """Resume a copy in another folder, then the original, which is none the worse."""
    wrong, name = "", folders[0][1]
    with golden.sandbox() as place:
        for parent in ("deep/inside", "work"):
            for state, one in folders:
                shutil.copytree(golden.root / state / one, place / parent / one)
        for target in ("../deep/inside", "."):
            outcome = attnlab(place, "resume", f"{target}/{name}")
            there = place / "work" / target / name
            wrong += f"{target}: {outcome}" if outcome.code else differences(there, golden.figures[name])
    return wrong


def same_from(golden: Golden, command: Sequence[str]) -> str:
    """A command says the same of folders wherever they lie."""
    said = []
    for parent, named in (("work", "."), ("other place", "../other place")):
        with golden.sandbox() as place:
            for state, name in AFTER:
                if name != "exam":
                    shutil.copytree(golden.root / state / name, place / parent / name)
            outcome = attnlab(place, *(one.replace("DIR", named) for one in command))
            made = place / "work" / "exam" / "predictions.txt"
            out = outcome.out.replace(named + "/", "")
            said.append((outcome.code, out, made.read_bytes() if made.is_file() else b""))
    return "" if said[0] == said[1] and said[0][0] == 0 else f"{said[0]} {said[1]}"


def clocks(golden: Golden, short: bool) -> list[Task]:
    """Clocks that are wrong, or jump while a run is under way."""
    years = (0,) if short else (-30, -1, 0, 1, 30)
    return [Task("clock jumps", f"{year} years", partial(at_another_time, golden, year)) for year in years]


def at_another_time(golden: Golden, years: int) -> str:
    """Files of another time and a clock that jumps: a stopped run is stopped, and resumes as ever."""

    def jump() -> None:
        real, calls = time.time, itertools.count()
        time.time = lambda: real() + (-1) ** next(calls) * 86_400 * 365 * (years or 3)

    with golden.sandbox("pretrain", of="stopped") as place:
        for path in (place / "work" / "pretrain").rglob("*"):
            stamp = time.time() + 86_400 * 365 * years
            os.utime(path, (stamp, stamp))
        listed = attnlab(place, "runs", ".", "--json", before=jump)
        if listed.code or [one["state"] for one in json.loads(listed.out)] != ["stopped"]:
            return f"not stopped: {listed}"
        outcome = attnlab(place, "resume", "pretrain", before=jump)
        return str(outcome) if outcome.code else differences(place / "work" / "pretrain", golden.figures["pretrain"])


TASKS: list[Task] = []
codecs.lookup("utf-8-sig")  # a user who is not root may not be able to import it


def carry_out(number: int) -> tuple[int, str]:
    """One task in a worker; a mistake of ours counts as a fault that was not survived."""
    sandbox.adopt_orphans()
    try:
        return number, TASKS[number].work()
    except Exception as error:
        return number, f"the suite failed: {error!r}"


def main() -> int:
    """Try everything, print the table; 1 when a fault was not survived."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--short", action="store_true")
    asked.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    asked.add_argument("--only", default="")
    options = asked.parse_args()
    began = time.monotonic()
    sandbox.adopt_orphans()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        Path(folder).chmod(0o755)
        (scratch := Path(folder) / "scratch").mkdir()
        CONFIG.write_text(TINY)
        golden = make_golden(Path(folder) / "golden", scratch, CHAIN[:3] if options.short else CHAIN)
        print(f"the chain is done after {time.monotonic() - began:.0f} s", flush=True)
        TASKS.extend(task for make in ROWS for task in make(golden, options.short) if options.only in task.row)
        tried, survived, words = Counter(task.row for task in TASKS), Counter[str](), Counter[str]()
        with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
            for number, wrong in pool.imap_unordered(carry_out, range(len(TASKS))):
                task = TASKS[number]
                survived[task.row] += wrong in SURVIVED
                if task.row == "bit flips" and wrong in SURVIVED:
                    words[wrong] += 1
                if wrong not in SURVIVED:
                    print(f"NOT SURVIVED: {task.row}: {task.what}: {wrong}", flush=True)
        CONFIG.unlink()
    width = max(map(len, tried))
    print(f"{'fault':{width}}  tried  survived")
    for row, count in tried.items():
        print(f"{row:{width}}  {count:5}  {survived[row]:8}")
    if count := tried["bit flips"]:
        told = ", ".join(f"{number} {word}" for word, number in words.items() if word)
        print(f"bit flips: {count} tried, {told}, {count - survived['bit flips']} silently wrong or not one line")
    print(f"{sum(tried.values())} faults, {sum(survived.values())} survived, in {time.monotonic() - began:.0f} s")
    return int(survived != tried)


ROWS: Sequence[Callable[[Golden, bool], list[Task]]] = (
    *(kills, torn, full_disk, read_only, flips, special_files, two_writers, moved, clocks),
)
SURVIVED = ("", "detected", "same result")

if __name__ == "__main__":
    sys.exit(main())
