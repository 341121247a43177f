"""Trains the run that comes with attnlab, src/attnlab/example: a few minutes of one thread.

Why: the page and `attnlab ask example` show a worked example before anything was trained. All data are built in and all
randomness is seeded, so the same machine and versions give the same weights.

    python tools/make_example.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from attnlab import calibrate, examine, load_model, load_questions
from attnlab.cli import main as attnlab
from attnlab.serve.ask import EXAMPLE_QUESTION
from attnlab.store.folders import write_folder
from attnlab.store.runs import EXAMPLE, Run
from attnlab.trust import Oracle

PEOPLE = "people:200"
SETTINGS = "--preset quick --model.n_embd 64 --model.vocab_size 500 --train.epochs 70 --task.options.views 3"
MOST = 1_000_000  # bytes
KEPT = ("config.json", "result.json", "calibration.json", "model/")  # not: every step of training, and the machine


def make(target: Path) -> None:
    """Trains, calibrates and checks the run, and replaces the target."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        data = f"--corpus {PEOPLE}:x4 --facts {PEOPLE}:train --device cpu"
        attnlab(["pretrain", *f"{data} {SETTINGS}".split(), "--out", str(run)])
        test = load_questions(f"{PEOPLE}:test")
        held_out = [*load_questions(f"{PEOPLE}:dev"), *load_questions(f"{PEOPLE}:calibration"), *test[::2]]
        print(*(rule.words for rule in calibrate(run, held_out).summary().rules), sep="\n")
        paths = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
        files = {name: path.read_bytes() for name, path in paths.items() if name.startswith(KEPT)}
        assert sum(map(len, files.values())) <= MOST, "too large to be shipped"
        write_folder(target, "run", files, replace=True)
    print(examine(*load_model(Run.open(target).model), test[1::2]).score().sentence())
    right = {one.question: one.answer for one in test[1::2]}
    answer = Oracle(target).answer(EXAMPLE_QUESTION)
    print(answer.words)
    assert answer.answer == right[EXAMPLE_QUESTION], "the example question is not answered right: choose another"


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLE)
