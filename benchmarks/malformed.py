"""Malformed input to every verb: wrong values of every option, and damaged files of runs. No case may end in a traceback.

    python benchmarks/malformed.py [--cases 2400] [--seed 0] [--jobs 2] [--limit 60] [--only CASE]

Every case is a command in a forked process of its own, in a fresh copy of a small folder of runs, with a limit of time and
of memory, and without the rights that let root ignore permissions. Training ends after two steps. Prints the number of
cases, of tracebacks (exit code 70, or an end by a signal), of hangs, and how to repeat the first of each kind.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import pkgutil
import random
import resource
import shlex
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = 12 * 2**30  # bytes of addresses a case may ask for
DIGITS = "9" * 5000
TINY = shlex.split(
    "--preset quick --model.n_layer=1 --model.n_head=2 --model.n_embd=16 --model.block_size=64 --model.vocab_size=300"
    " --train.epochs=2 --train.tokens_per_batch=2048 --train.checkpoint_every=1"
)

# A command of every verb that is quick, and right as it stands; {} is replaced by nothing.
VALID: dict[tuple[str, ...], str] = {
    ("corpus", "show"): "--corpus lines.txt --n 2",
    ("corpus", "find"): "'Ann Lee' --corpus lines.txt",
    ("corpus", "export"): "exported --corpus people:20",
    ("evaluate",): "runs/tuned --exam questions.tsv --out new",
    ("generate",): "runs/tuned Where --n 1 --max-new-tokens 3",
    ("audit",): "dot --n_embd 8 --n_head 2 --length 8",
    ("bench",): "dot --lengths 16 --batch 1 --n_head 2 --n_embd 8 --rounds 1 --seconds 0.01 --no-references",
    ("params",): "quick",
    ("mechanisms", "show"): "dot --draws 1",
    ("classify",): "train.tsv dev.tsv --model bag-of-words --out new",
    ("compare",): "dot additive --plan --corpus lines.txt --dev lines.txt --seeds 2",
    ("export",): "runs/tuned new",
    ("import",): "abroad new",
    ("look",): "runs/tuned 'Where was Ann Lee born?' --out new",
    ("report",): "runs/tuned --out new",
    ("runs", "show"): "runs/tuned",
    ("runs", "delete"): "runs/tuned --yes",
    ("runs", "export"): "runs/tuned --tensorboard new",
    ("run",): "recall --out new --corpus lines.txt --facts questions.tsv --exam questions.tsv",
    ("resume",): "runs/half",
    ("pretrain",): "--corpus lines.txt --out new",
    ("finetune",): "runs/plain --facts questions.tsv --out new",
    ("ask",): "runs/tuned 'Where was Ann Lee born?'",
    ("calibrate",): "runs/tuned --questions questions.tsv",
    ("design", "select"): "--keys 1,0;0,1 --values 1,0;0,1 --index 1",
    ("design", "blend"): "--keys 1,0;0,1 --values 1,0;0,1 --indices 0,1 --weights 0.3,0.7",
    ("design", "average"): "--keys 1,0;0,1 --values 1,0;0,1",
    ("design", "reach"): "--keys 1,0;0,1 --values 1,0;0,1 --target 0.5,0.5",
    ("design", "project"): "--keep 1,0 --forget 0,1",
    ("design", "layer"): "--tokens 1,0;0,1 --outputs 1,0;0,1",
    ("design", "edit-key"): "--keys 1,0;0,1 --values 1,0;0,1 --query 1,0 --index 1",
    ("design", "noise"): "--n 3 --samples 20",
    ("check",): "sheet.toml answers.json",
}
# Verbs that read runs, for files that were damaged; @ is the run.
READERS = (
    """
runs | runs --all --json | runs show @ | runs show @ --json | runs delete @ --yes | runs export @ --tensorboard new
report @ --out new | report @ runs/plain --out new | compare @ runs/plain --exam questions.tsv --plan | export @ new
evaluate @ --exam questions.tsv --out new | evaluate @ --corpus lines.txt --out new | generate @ Where --n 1 --max-new-tokens 3
ask @ 'Where was Ann Lee born?' | calibrate @ --questions questions.tsv | look @ 'Ann Lee' --out new | resume @
finetune @ --facts questions.tsv --out new | audit @ --length 8 | mechanisms show dot --error --draws 1 --run @
import abroad new
classify --model @ --test dev.tsv --out new
""".strip()
    .replace("\n", "|")
    .split("|")
)
SETTINGS = (
    "pretrain --corpus lines.txt --out new --config",
    "params quick --config",
    "compare dot additive --plan --config",
)


@dataclass
class Case:
    """One command, and the file that is damaged before it."""

    command: list[str]
    damage: str = ""
    file: str = ""
    seed: int = 0
    outcome: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        words = shlex.join(
            word if len(word) < 200 else f"{word[:20]}...({len(word)} characters)" for word in self.command
        )
        return f"attnlab {words}" + (f"   with {self.file}: {self.damage} (seed {self.seed})" if self.file else "")


# What the commands are given -------------------------------------------------------------------------------------


def build_world(folder: Path) -> None:
    """A small folder of runs of every kind, and files that are wrong in some way."""
    os.chdir(folder)
    names = [
        f"{first} {last}" for first in ("Ann", "Bob", "Eve", "Joe") for last in ("Lee", "Fox", "Ray", "Kim", "Orr")
    ]
    towns = ("Rome", "Oslo", "Lima", "Bonn")
    born = [(name, towns[number % 4]) for number, name in enumerate(names)]
    Path("lines.txt").write_text("".join(f"{name} was born in {town}.\n" for name, town in born) * 3)
    Path("questions.tsv").write_text("".join(f"Where was {name} born?\t{town}\n" for name, town in born))
    table = "".join(f"{number % 2}\ta {'good' if number % 2 else 'bad'} film {number}\n" for number in range(40))
    Path("exam.tsv").write_text("Where was Zoe Orr born?\tRome\nWhere was Max Fox born?\tOslo\n")
    Path("train.tsv").write_text(table)
    Path("dev.tsv").write_text(table.replace("film", "book"))
    Path("settings.toml").write_text("seed = 3\n[model]\nn_layer = 1\n[train]\nepochs = 1.0\n[task.options]\n")
    sheet = '[[task]]\nname = "a"\nkind = "select"\nkeys = [[1, 0], [0, 1]]\nvalues = [[1, 0], [0, 1]]\nindex = 1\n'
    Path("sheet.toml").write_text(f'title = "t"\n{sheet}')
    Path("answers.json").write_text('{"a": {"query": [1, 0]}}')
    for command in (
        ["pretrain", "--corpus", "lines.txt", "--facts", "questions.tsv", "--out", "runs/plain", *TINY],
        ["finetune", "runs/plain", "--facts", "questions.tsv", "--out", "runs/tuned", "--train.epochs=1"],
        ["evaluate", "runs/tuned", "--exam", "questions.tsv", "--out", "runs/exam"],
        ["classify", "train.tsv", "dev.tsv", "--model", "bag-of-words", "--out", "runs/bag"],
        ["export", "runs/tuned", "abroad"],
    ):
        if (code := run_here(command)) != 0:
            sys.exit(f"the folder of runs cannot be made: attnlab {shlex.join(command)} ended with {code}")
    stop_training()  # what follows is stopped in the middle
    short = [word.replace("2048", "256") for word in TINY]
    data = ["--corpus", "lines.txt", "--facts", "questions.tsv"]
    for command in (
        ["pretrain", *data, "--out", "runs/half", *short],
        ["compare", "dot", "additive", *data, "--exam", "exam.tsv", "--seeds", "2", "--out", "runs/study", *short],
        ["run", "recall", *data, "--exam", "questions.tsv", "--out", "runs/recall", *short],
    ):
        run_here(command)
    wrong = Path("wrong")
    wrong.mkdir()
    nested = "[" * 100_000
    contents: dict[str, bytes] = {
        "empty": b"",
        "blank.txt": b"\n\n\n",
        "nul.txt": b"a\0b\n" * 9,
        "latin.txt": b"\xe9t\xe9\n" * 9,
        "cut.txt": b"caf\xc3",
        "utf16.txt": "\ufeffAnn\n".encode("utf-16"),
        "escapes.txt": b"\x1b[2J\x1b]0;x\x07\n" * 9,
        "long.txt": b"x" * 99_999,
        "nested.json": nested.encode(),
        "nested.toml": b"a = " + nested.encode(),
        "digits.toml": b"seed = " + DIGITS.encode(),
        "digits.json": b'{"a": ' + DIGITS.encode() + b"}",
        "list.json": b"[1, 2]",
        "keys.toml": b'seed = "x"\n[mdel]\n',
        "float.toml": b"[train]\nlr = inf\nepochs = nan\n",
        "cut.safetensors": b"\xff\xff\0\0\0\0\0\0{",
        "syntax.py": b"def (",
        "raises.py": b"1 / 0\n",
        "exits.py": b"import sys\nsys.exit(3)\n",
        "none.py": b"X = 3\n",
        "class.py": b"class X:\n  pass\n",
        "needs.py": b"class X:\n  def __init__(self, a, b): 1 / 0\n",
        "bad.npy": b"\x93NUMPY\1\0v\0{'descr': '<f8', 'shape': (9",
        "wide.tsv": b"a\tb\tc\td\n" * 9,
        "thin.tsv": b"a\n" * 9,
        "locked.txt": b"a\n",
    }
    for name, content in contents.items():
        (wrong / name).write_bytes(content)
    (wrong / "locked.txt").chmod(0)
    (wrong / "folder.txt").mkdir()
    (wrong / "loop").symlink_to("loop")
    (wrong / "locked").mkdir(mode=0o500)


def run_here(command: list[str]) -> int:
    """The exit code of a command in this process."""
    from attnlab import cli

    try:
        cli.main(command)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


NUMBERS = """
-1 0 -0.0 1e400 -1e400 nan 1e-320 1e308 0x10 1_0 ٣ 99999999999999999999 4294967296 2147483647 -9223372036854775809 1.5 true
None , ,,1 1, 1,2;3 -1,0 0,0 2147483647,1 1,1,1
"""
# Nothing outside of the temporary folder is named: a verb may write there.
PATHS = """
. .. ~ ~nobody/x lines.txt lines.txt/below runs no/such/file wrong/locked/new wrong/new.unknown
runs/plain runs/half runs/study runs/recall runs/bag runs/exam abroad ../x file:///etc http://[ seed-0
"""
WORDS = """
= -- a=b a>b 💥 people: people:-1 people:0 people:x people:20:x0 people:20:x99999999999999999999 people:20:nowhere prose:x
topics bag-of-words dot, dot,nothing wrong/syntax.py:X wrong/raises.py:X wrong/exits.py:X wrong/none.py:X wrong/class.py:X
wrong/needs.py:X wrong/none.py: wrong/none.py:Y no.py:X model.n_embd=0,1 model.n_embd=16,32 seed=1,2 [1, {} %s%n {0} $(id)
"""
ODD = (
    *(
        "",
        " ",
        "\n",
        "a\0b",
        "\udcff",
        "\x1b[2J",
        "\u202eevil",
        "n" * 300,
        "n" * 5000,
        "people:" + DIGITS,
        "prose:" + DIGITS,
    ),
    *("train.lr=" + DIGITS, "1;" + DIGITS),
)


def wrong_value(argument: Any, files: list[str], rng: random.Random) -> str:
    """A value for an option: mostly one that looks like what it takes."""
    numbers = [*NUMBERS.split(), DIGITS, "-" + DIGITS]
    paths = [*PATHS.split(), *(f"wrong/{name}" for name in files)]
    kind = str(argument.hint)
    counted = "int" in kind or "float" in kind or "." in argument.names[0]
    every = [*numbers, *paths, *WORDS.split(), *ODD]
    fitting = numbers if counted else paths if "Path" in kind else every
    odd = [*ODD, DIGITS, "99999999999999999999", "nan", "-1"]
    return rng.choice(rng.choice((fitting, fitting, odd, every)))


def verbs() -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Every verb of the command line with its arguments."""
    from attnlab.cli import app

    def below(parent: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
        for name in parent:
            if not name.startswith("-"):
                one = parent[name]
                if one.default_command is not None:
                    yield (*names, name), [argument for argument in one.assemble_argument_collection() if argument.show]
                yield from below(one, (*names, name))

    return below(app, ())


def wrong_values(rng: random.Random, files: list[str]) -> Iterator[Case]:
    """Every option and argument of every verb in turn, each with a wrong value; without end."""
    found = list(verbs())
    while True:
        for names, arguments in found:
            valid = shlex.split(VALID.get(names, ""))
            training = TINY if names in {("pretrain",), ("run",)} else []
            # Settings are many, and the same in every verb.
            chosen = [one for one in arguments if "." not in one.names[0]] + rng.sample(
                [one for one in arguments if "." in one.names[0]],
                k=min(6, sum("." in one.names[0] for one in arguments)),
            )
            for argument in chosen:
                name, value = rng.choice(argument.names), wrong_value(argument, files, rng)
                command = [*names, *valid, *training]
                if name.startswith("-"):
                    command += [f"{name}={value}"] if rng.random() < 0.5 else [name, value]
                else:
                    at = len(names) + argument.index if argument.index is not None else len(names)
                    command[at : at + 1] = [value]
                yield Case(command)


def damaged_files(rng: random.Random, files: list[str]) -> Iterator[Case]:
    """A file of a run, or of settings, damaged in some way, and a verb that reads it; without end."""
    while True:
        file = rng.choice(files)
        damage = rng.choice([*DAMAGES, *["value"] * 8])
        if file.endswith("settings.toml"):
            command = [*shlex.split(rng.choice(SETTINGS)), file]
        elif file.startswith(("sheet", "answers")):
            command = ["check", "sheet.toml", "answers.json"]
        else:
            parts = Path(file).parts
            run = str(Path(*parts[:2])) if parts[0] == "runs" else parts[0]
            command = ["import", run, "new"] if run == "abroad" else shlex.split(rng.choice(READERS).replace("@", run))
        if command[0] == "compare" and "--config" in command:
            command += ["--corpus", "lines.txt", "--dev", "lines.txt"]
        yield Case(command, damage, file, rng.randrange(10**9))


# How files are damaged -------------------------------------------------------------------------------------------

LEAVES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**18, 10**400, 1.5, float("nan"), float("inf"), 1e308, "", "x", "\0", "\x1b[2J", "\ud800"),
    *(
        "lines.txt",
        "../../x",
        "n" * 5000,
        [],
        {},
        [[]],
        [None],
        {"a": {"b": []}},
        "wrong/raises.py:X",
        [1, "x"],
        "dot,dot",
    ),
)


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested tables and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:5]) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*here, key)
        yield from places(one, (*here, key))


def change_json(content: bytes, rng: random.Random, remove: bool) -> bytes:
    """One value of a JSON file replaced by another, or taken away."""
    lines = content.decode().rstrip("\n").split("\n")
    at = rng.randrange(len(lines))
    rows = content.decode().startswith("{") and len(lines) > 1 and lines[0].endswith("}")  # a row a line
    value = json.loads(lines[at] if rows else content)
    *above, last = rng.choice(list(places(value)) or [(None,)])
    inner = value
    for key in above:
        inner = inner[key]
    if last is None:
        value = rng.choice(LEAVES)
    elif remove:
        del inner[last]
    else:
        inner[last] = rng.choice(LEAVES)
    written = json.dumps(value)
    if rows:
        lines[at] = written
    return ("\n".join(lines) if rows else written).encode()


def flip(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 8))):
        if changed:
            changed[rng.randrange(min(len(changed), rng.choice((200, 10**9))))] = rng.randrange(256)
    return bytes(changed)


def insert(content: bytes, rng: random.Random) -> bytes:
    """Something put in between."""
    at = rng.randrange(len(content) + 1)
    added = rng.choice(
        (b"\0", b"\xff", b"\n", DIGITS.encode(), b"[" * 5000, b'"', b"{", b"\x1b[2J", content[:100], b"NaN", b"-")
    )
    return content[:at] + added + content[at:]


DAMAGES: dict[str, Any] = {
    "cut": lambda content, rng: content[: rng.randrange(len(content) + 1)],
    "bytes": flip,
    "insert": insert,
    "value": lambda content, rng: change_json(content, rng, remove=False),
    "key": lambda content, rng: change_json(content, rng, remove=True),
    "whole": lambda _content, rng: rng.choice(
        (
            b"",
            b"null",
            b"[]",
            b"{}",
            b"3",
            b'"x"',
            b"[" * 10**5,
            b'{"a":' * 10**5,
            DIGITS.encode(),
            b"\xff\xfe",
            b"{" * 9,
        )
    ),
    "gone": None,
    "folder": None,
    "locked": None,
    "step-backup": None,
}


def do_damage(case: Case) -> None:
    """Damage the file of a case."""
    path, rng = Path(case.file), random.Random(case.seed)
    if case.damage == "step-backup":
        for run in Path("runs").iterdir():
            (run / "checkpoints" / "step-backup").mkdir(parents=True, exist_ok=True)
    elif case.damage == "locked":
        path.chmod(0)
    elif case.damage in ("gone", "folder"):
        path.unlink()
        if case.damage == "folder":
            path.mkdir()
    else:
        if rng.random() < 0.5:  # without checksums, as older versions wrote folders
            for manifest in Path().rglob("manifest.json"):
                manifest.unlink()
        content = path.read_bytes() if path.is_file() else b"{}"
        try:
            path.write_bytes(DAMAGES[case.damage](content, rng))
        except ValueError:  # no JSON
            path.write_bytes(insert(content, rng))


# One case --------------------------------------------------------------------------------------------------------


def drop_rights() -> None:
    """Have permissions hold for root as well."""
    if hasattr(os, "geteuid") and os.geteuid() == 0 and sys.platform == "linux":
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


def stop_training() -> None:
    """End a case that has begun to train: two steps of our own, none of the others'."""
    from attnlab.lm import train
    from attnlab.studies import workers

    batches = train.Trainer._batches

    def two(self: Any) -> Iterator[Any]:
        for number, batch in enumerate(batches(self)):
            if number == 2:
                raise SystemExit(0)
            yield batch

    def begin(*_: object, **__: object) -> Any:
        raise SystemExit(0)

    train.Trainer._batches = two  # type: ignore[method-assign]
    workers.Command.start = begin  # type: ignore[method-assign]
    if "transformers" in sys.modules:
        sys.modules["transformers"].Trainer.train = begin


def child(case: Case, folder: Path, limit: float) -> None:
    """Run one case; never returns."""
    code = 99
    try:
        os.chdir(folder)
        for name in ("out", "err"):
            handle = os.open(f"../{folder.name}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1 if name == "out" else 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["XDG_STATE_HOME"] = str(folder.parent / f"{folder.name}.state")
        sys.argv = ["attnlab", *case.command]
        if case.file:
            do_damage(case)
        drop_rights()
        stop_training()
        code = run_here(case.command)
        sys.stdout.flush()
    except BaseException as error:
        sys.stderr.write(f"Traceback that got out: {error!r}\n")
    finally:
        os._exit(code)


def judge(status: int, base: Path, expired: bool) -> str:
    """What became of a case: fine, or hang, or the traceback in a line."""
    if expired or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)):
        return "hang"
    said = base.with_name(f"{base.name}.err").read_text(errors="replace")
    if os.WIFSIGNALED(status):
        return f"ended by signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    saved = sorted(base.with_name(f"{base.name}.state").glob("attnlab/crashes/*"))
    if saved:
        lines = saved[0].read_text(errors="replace").strip().split("\n")
        ours = [line.strip() for line in lines if "attnlab/" in line and line.startswith("  File")]
        where = ours[-1].split("attnlab/")[-1].replace('", line ', ":") if ours else ""
        return f"{where}: {lines[-1][:160]}"
    if code not in (0, 1, 2, 130) or "Traceback" in said:
        return f"exit code {code}: {said.strip().splitlines()[-1] if said.strip() else ''}"
    if code == 2 and said.count("attnlab: ") != 1:
        return f"not one line: {said[:200]!r}"
    return "fine"


def free(folder: Path) -> None:
    """Remove a folder whatever its permissions."""
    for base, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(inner := os.path.join(base, name)):  # noqa: PTH114, PTH118
                os.chmod(inner, stat.S_IRWXU)  # noqa: PTH101
    shutil.rmtree(folder, ignore_errors=True)


def run_all(cases: list[Case], world: Path, jobs: int, limit: float) -> None:
    """Run the cases, several at a time, and write down what became of each."""
    running: dict[int, tuple[Case, Path, float]] = {}
    waiting = list(enumerate(cases))
    while waiting or running:
        while waiting and len(running) < jobs:
            number, case = waiting.pop(0)
            folder = world.parent / f"case-{number}"
            shutil.copytree(world, folder, symlinks=True, ignore_dangling_symlinks=True)
            for name, mode in (("locked.txt", 0), ("locked", 0o500)):
                (folder / "wrong" / name).chmod(mode)
            if (pid := os.fork()) == 0:
                child(case, folder, limit)
            running[pid] = (case, folder, time.monotonic())
        time.sleep(0.003)
        for pid, (case, folder, began) in list(running.items()):
            expired = time.monotonic() - began > 5 * limit  # of a process that waits
            if expired:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0 if expired else os.WNOHANG)
            if done:
                case.outcome, case.seconds = judge(status, folder, expired), time.monotonic() - began
                del running[pid]
                if case.outcome != "fine":
                    print(f"{case.outcome}\n       {case}", flush=True)
                free(folder)
                free(folder.with_name(f"{folder.name}.state"))


def make_cases(world: Path, count: int, seed: int) -> list[Case]:
    """As many cases as are asked for: two thirds wrong values, a third damaged files."""
    rng = random.Random(seed)
    wrong = sorted(path.name for path in (world / "wrong").iterdir())
    kinds = (".json", ".jsonl", ".toml", ".safetensors", ".tsv", ".txt")
    files = sorted(str(path.relative_to(world)) for path in world.rglob("*") if path.suffix in kinds and path.is_file())
    files = [file for file in files if not file.startswith("wrong")] + ["settings.toml"] * 8
    told = ("config.json", "result.json", "study.json", "metrics.jsonl", "bag.json")
    files += [file for file in files if file.endswith(told) and "checkpoints" not in file] * 5
    values, damages = wrong_values(rng, wrong), damaged_files(rng, files)
    return [next(damages) if number % 3 == 2 else next(values) for number in range(count)]


def import_everything() -> None:
    """Import once what the cases would import each for itself."""
    import attnlab

    lazy = (
        "torch",
        "scipy.optimize",
        "scipy.stats",
        "matplotlib.pyplot",
        "transformers",
        "safetensors.torch",
    )
    ours = (one.name for one in pkgutil.walk_packages(attnlab.__path__, "attnlab."))
    for name in (*lazy, *ours):
        if not name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(name)


def main() -> int:
    """Make the folder, run the cases, print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of computing a case")
    parser.add_argument("--only", type=int, help="the number of a single case")
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory(prefix="attnlab-malformed-") as temporary:
        top = Path(temporary)
        world = top / "world"
        world.mkdir()
        os.environ |= {
            "HOME": str(top),
            "TMPDIR": str(top),
            "ATTNLAB_CACHE": str(top / "cache"),
            "XDG_STATE_HOME": str(top),
        }
        import_everything()
        if (pid := os.fork()) == 0:  # so that no thread of it lives when cases are forked
            build_world(world)
            os._exit(0)
        if os.waitpid(pid, 0)[1] != 0:
            return 1
        cases = make_cases(world, asked.cases, asked.seed)
        if asked.only is not None:
            cases = cases[asked.only : asked.only + 1]
        began = time.monotonic()
        run_all(cases, world, asked.jobs, asked.limit)
        if asked.only is not None:
            print((top / "case-0.err").read_text(errors="replace"))
        for folder in top.iterdir():
            free(folder)
    bad = [(number, case) for number, case in enumerate(cases) if case.outcome != "fine"]
    hangs = [case for _, case in bad if case.outcome == "hang"]
    print(f"malformed inputs: {len(cases)} tried in {time.monotonic() - began:.0f} s, seed {asked.seed}")
    print(f"tracebacks: {len(bad) - len(hangs)}")
    print(f"hangs: {len(hangs)} (over {asked.limit:.0f} s)")
    slowest = max(cases, key=lambda case: case.seconds)
    print(f"slowest: {slowest.seconds:.1f} s, {slowest}")
    for outcome, count in Counter(case.outcome for _, case in bad).most_common():
        numbers = [number for number, case in bad if case.outcome == outcome]
        print(f"{count:4} x {outcome}, cases {', '.join(map(str, numbers[:5]))}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
