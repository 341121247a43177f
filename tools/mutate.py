"""Which small changes to the source the tests notice: `make mutate`, or for some rooms

    python tools/mutate.py optim stats --sample 40 --seed 1

A mutant is a copy of the source with one change. Every room names modules and the tests that should notice. Its tests run
once with coverage, then for every mutant those that reach the changed line, in a fork of this process, which has
imported torch already. The source itself is never changed. Survivors are printed as diffs: each is a gap in the tests, or
equivalent to the original.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {  # modules under src/attnlab, tests under tests
    "optim": ("lm/optim.py", "lm/test_optim.py lm/test_validation.py"),
    "train": ("lm/train.py", "lm/test_train.py lm/test_training_rules.py lm/test_resume.py lm/test_validation.py"),
    "stats": ("stats/*.py", "stats"),
    "trust": ("trust/verdict.py trust/calibrating.py", "trust/test_trust_verdict.py trust/test_trust_asking.py"),
    "exams": ("lm/exams.py", "lm/test_exams.py lm/test_evaluate.py"),
    "folders": ("store/folders.py", "store/test_runs.py store/test_folders.py"),
    "verifier": (
        "design/verifier.py",
        "design/test_verifier.py design/test_edits.py design/test_project.py design/test_layer.py",
    ),
    "audit": ("measure/audit/*.py", "measure/test_audit.py"),
    "sliding": ("mechanisms/sliding.py", "mechanisms"),
    "linear": ("mechanisms/linear.py", "mechanisms"),
}
SWAPPED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
RENAMED = {"min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin"}
IMPORTED = ("torch", "scipy.optimize", "scipy.stats", "beartype", "msgspec", "tokenizers")
SIGNS = {ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot}  # swapped is negated
SKIPPED = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)  # Python 3.11 misplaces what is inside an f-string


class Mutant(NamedTuple):
    """A changed module: the source, the lines that the change is on, and the changed text."""

    path: Path
    lines: range
    text: str


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    whole = path.read_bytes()
    starts = [0, *accumulate(len(line) for line in whole.splitlines(keepends=True))]
    for node, statement, negated in _nodes(ast.parse(whole), None):
        for changed in [ast.UnaryOp(ast.Not(), node), *_changes(node)] if negated else _changes(node):
            new = ast.unparse(ast.fix_missing_locations(changed))
            new = f"({new})" if isinstance(node, ast.expr) else new
            last = node.end_lineno or node.lineno
            begin, end = starts[node.lineno - 1] + node.col_offset, starts[last - 1] + (node.end_col_offset or 0)
            text = (whole[:begin] + new.encode() + whole[end:]).decode()
            yield Mutant(path, range(statement.lineno, last + 1), text)


def _nodes(node: ast.AST, statement: ast.stmt | None) -> Iterator[tuple[ast.expr | ast.stmt, ast.stmt, bool]]:
    """The nodes that may change, the statement of each, and whether it is a condition; no annotations or type aliases."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name in ("annotation", "returns") or not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":  # zip(..., strict=True) asserts
                continue
            inside = child if isinstance(child, ast.stmt) else statement
            alias = (
                isinstance(child, ast.BinOp) and isinstance(child.op, ast.BitOr) and inside and not inside.col_offset
            )
            if isinstance(child, ast.expr | ast.stmt) and inside is not None and not alias:
                plain = isinstance(child, ast.UnaryOp) or (
                    isinstance(child, ast.Compare) and type(child.ops[0]) in SIGNS
                )
                yield child, inside, name in ("test", "ifs") and not plain
            yield from _nodes(child, inside)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The node with one change: an operator, a constant, a name, a result, or a statement that is left out."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op]):
            new.ops = [SWAPPED[type(op)]()]
            yield new
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPPED:
            new.op = SWAPPED[type(op)]()
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Name(id=name) if name in RENAMED:
            yield ast.Name(RENAMED[name])
        case ast.Attribute(attr=name) if name in RENAMED:
            new.attr = RENAMED[name]
            yield new
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
    match node:
        case ast.Expr(value=ast.Constant()):
            pass  # a docstring
        case ast.Raise() | ast.AugAssign() | ast.Break() | ast.Continue() | ast.Expr():
            yield ast.Pass()


class Room:
    """Modules and their tests, with a copy of the source that the mutants are written to."""

    def __init__(self, name: str, copied: Path) -> None:
        modules, tests = (places.split() for places in ROOMS[name])
        self.tests = [f"tests/{place}" for place in tests]
        self.copied = copied
        self.paths = sorted(path for pattern in modules for path in (ROOT / "src/attnlab").glob(pattern))
        self.reached: dict[tuple[str, int], set[str]] = {}  # the tests by file and line; "" for all tests

    def measure(self) -> float:
        """Run the tests once, remember which of them reach which line, and return the seconds that it took."""
        began, data = time.monotonic(), self.copied / ".coverage"
        os.environ["COVERAGE_FILE"] = str(data)
        if self._run([*self.tests, "--cov=attnlab", "--cov-context=test", "--cov-report="], 3600):
            raise SystemExit(f"the tests fail without any change: pytest {' '.join(self.tests)}")
        measured = coverage.CoverageData(str(data))
        measured.read()
        for file in measured.measured_files():
            for line, tests in measured.contexts_by_lineno(file).items():
                # What a fixture or an import computes may be used by any test.
                names = {test.removesuffix("|run") if test.endswith("|run") else "" for test in tests}
                self.reached[str(Path(file).relative_to(self.copied)), line] = names
        return time.monotonic() - began

    def notices(self, mutant: Mutant, seconds: float) -> bool:
        """Whether a test fails, or does not end, with this mutant."""
        place = mutant.path.relative_to(ROOT)
        names = set().union(*(self.reached.get((str(place), line), set()) for line in mutant.lines))
        if not names:
            return False
        target = self.copied / place
        target.write_text(mutant.text, encoding="utf-8")
        try:
            return self._run(self.tests if "" in names else sorted(names), seconds)
        finally:
            shutil.copyfile(mutant.path, target)
            _forget(target)

    def _run(self, arguments: Iterable[str], seconds: float) -> bool:
        """Whether pytest fails in a fork, with the copied source first on the path."""
        child = os.fork()
        if not child:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            sys.path.insert(0, str(self.copied / "src"))
            os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *arguments])))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status != 0
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True


def _forget(module: Path) -> None:
    """Remove the compiled versions of a module: they are recognised by second and size, which a mutant may share."""
    for path in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
        path.unlink()


def main() -> None:
    """Sample the mutants of rooms, and print how many the tests notice and the others."""
    parser = argparse.ArgumentParser(description="Which small changes to the source the tests notice.")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"all of them by default: {', '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=40, help="mutants per room")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another sample")
    options = parser.parse_args()
    os.chdir(ROOT)
    for module in IMPORTED:
        importlib.import_module(module)
    for name in options.rooms or ROOMS:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
            os.environ["PYTHONPATH"] = str(Path(folder) / "src")
            room = Room(name, Path(folder))
            limit = 30 + 5 * room.measure()
            every = [mutant for path in room.paths for mutant in mutants(path)]
            sample = random.Random(options.seed).sample(every, min(options.sample, len(every)))
            survivors = [mutant for mutant in sample if not room.notices(mutant, limit)]
        print(f"{name}: {len(sample)} of {len(every)} mutants, {len(sample) - len(survivors)} noticed", flush=True)
        for mutant in survivors:
            old, new = mutant.path.read_text(encoding="utf-8").splitlines(), mutant.text.splitlines()
            lines = list(difflib.unified_diff(old, new, str(mutant.path.relative_to(ROOT)), lineterm="", n=0))
            print("\n".join([lines[0], *lines[2:]]), flush=True)


if __name__ == "__main__":
    main()
