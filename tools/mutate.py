"""Which small changes to the source the tests notice: `make mutate`, or for some rooms

    python tools/mutate.py optim stats --sample 40 --seed 1

A mutant is a module with one change inside a function or in a constant. Every room names modules and the tests that should
notice. They are collected once and run once with coverage; then, for every mutant, those that reach the changed line run
in a fork in which the changed code replaces the original. No file is changed. Survivors are printed as diffs: each is a
gap in the tests, or equivalent to the original. A test does not see the mutant in processes that it starts, nor in what it
computed when it was imported.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import coverage
import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {  # modules under src/attnlab, tests under tests, and words that the names of the tests contain
    "optim": ("lm/optim.py", "lm/test_optim.py", ""),
    "train": ("lm/train.py", "lm/test_train.py lm/test_training_rules.py lm/test_validation.py", ""),
    "stats": ("stats/*.py", "stats", ""),
    "trust": (
        "trust/verdict.py trust/calibrating.py",
        "trust/test_trust_verdict.py trust/test_thresholds.py trust/test_trust_asking.py",
        "",
    ),
    "exams": ("lm/exams.py", "lm/test_exams.py", ""),
    "folders": ("store/folders.py", "store/test_runs.py store/test_folders.py", ""),
    "verifier": ("design/verifier.py", "design/test_verifier.py design/test_edits.py design/test_layer.py", ""),
    "audit": ("measure/audit/*.py", "measure/test_audit.py measure/test_audit_questions.py", ""),
    "sliding": ("mechanisms/sliding.py", "mechanisms", "sliding"),
    "linear": ("mechanisms/linear.py", "mechanisms", "linear"),
}
SLOW = 2  # seconds: tests that take longer run only where no other reaches the changed line
SWAPPED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
RENAMED = {"min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin"}
SIGNS = {ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot}  # swapped is negated
SKIPPED = (ast.JoinedStr, ast.Assert)  # Python 3.11 misplaces what is inside an f-string
UNCHANGED = ("annotation", "returns", "decorator_list", "args", "bases")  # of functions and classes


class Mutant(NamedTuple):
    """A changed module: its path, the lines of the change, the new text, and whether the change is outside functions."""

    path: Path
    lines: range
    text: str
    constant: bool


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    whole = path.read_bytes()
    starts = [0, *accumulate(len(line) for line in whole.splitlines(keepends=True))]
    for top in ast.parse(whole).body:
        for node, statement, condition in _nodes(top, top, isinstance(top, ast.Assign)):
            for changed in _changes(node, condition):
                new = ast.unparse(ast.fix_missing_locations(changed))
                new = f"({new})" if isinstance(node, ast.expr) else new
                last = node.end_lineno or node.lineno
                begin, end = starts[node.lineno - 1] + node.col_offset, starts[last - 1] + (node.end_col_offset or 0)
                text = (whole[:begin] + new.encode() + whole[end:]).decode()
                yield Mutant(path, range(statement.lineno, last + 1), text, statement is top)


def _nodes(node: ast.AST, statement: ast.stmt, inside: bool) -> Iterator[tuple[ast.expr | ast.stmt, ast.stmt, bool]]:
    """The nodes inside functions or constants, the statement of each, and whether it is a condition."""
    defines = isinstance(node, ast.FunctionDef | ast.ClassDef)
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED) or (defines and name in UNCHANGED):
                continue
            if name == "annotation" or (isinstance(child, ast.keyword) and child.arg == "strict"):
                continue  # strict=True of zip asserts
            within = inside or isinstance(node, ast.FunctionDef)
            at = child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.expr | ast.stmt) and within:
                sign = isinstance(child, ast.Compare) and type(child.ops[0]) in SIGNS
                yield child, at, name in ("test", "ifs") and not sign and not isinstance(child, ast.UnaryOp)
            yield from _nodes(child, at, within)


def _changes(node: ast.AST, condition: bool) -> Iterator[ast.AST]:
    """The node with one change: an operator, a constant, a name, a result, a condition negated, a statement left out."""
    new = copy.deepcopy(node)
    if condition and isinstance(node, ast.expr):
        yield ast.UnaryOp(ast.Not(), node)
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
            yield from (ast.Constant(other) for other in (value + 1, value - 1) if other != value)  # 1e30 + 1 is 1e30
        case ast.Name(id=name) if name in RENAMED:
            yield ast.Name(RENAMED[name])
        case ast.Attribute(attr=name) if name in RENAMED:
            new.attr = RENAMED[name]
            yield new
        case ast.Return(value=ast.Constant(value=None)):
            pass
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
    match node:
        case ast.Expr(value=ast.Constant()):
            pass  # a docstring
        case ast.Raise() | ast.AugAssign() | ast.Break() | ast.Continue() | ast.Expr():
            yield ast.Pass()


def put_in(mutant: Mutant) -> None:
    """Replace the code of every function of the module, or set its constant, also in modules that have imported it."""
    tree, path = ast.parse(mutant.text), str(mutant.path)
    if mutant.constant:
        module = next(m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == path)
        changed = [node for node in tree.body if node.lineno in mutant.lines]
        original = dict(vars(module))
        exec(compile(ast.Module(changed, []), path, "exec"), vars(module))
        for name, value in original.items():
            if vars(module)[name] is not value:  # also where it was imported to
                users = [vars(user) for user in list(sys.modules.values()) if vars(user).get(name, vars) is value]
                for user in users:
                    user[name] = vars(module)[name]
        return
    codes: dict[str, list[CodeType]] = defaultdict(list)
    todo = [compile(tree, path, "exec", dont_inherit=True)]
    for code in todo:
        todo += [part for part in code.co_consts if isinstance(part, CodeType)]
        codes[code.co_qualname].append(code)
    gc.unfreeze()
    live: dict[str, dict[CodeType, list[FunctionType]]] = defaultdict(lambda: defaultdict(list))
    for item in gc.get_objects():
        if type(item) is FunctionType and item.__code__.co_filename == path:
            live[item.__code__.co_qualname][item.__code__].append(item)
    for name, versions in live.items():
        old = sorted(versions, key=lambda code: code.co_firstlineno)
        new = sorted(codes[name], key=lambda code: code.co_firstlineno)
        for before, after in zip(old, new if len(new) == len(old) else new[:1] * len(old), strict=True):
            for function in versions[before]:
                function.__code__ = after


class Room:
    """A plugin of pytest that runs the collected tests once for every mutant of a sample."""

    def __init__(self, name: str, sample: int, seed: int) -> None:
        self.name = name
        paths = sorted(path for pattern in ROOMS[name][0].split() for path in (ROOT / "src/attnlab").glob(pattern))
        self.every = [mutant for path in paths for mutant in mutants(path)]
        self.sample = random.Random(seed).sample(self.every, min(sample, len(self.every)))
        self.coverage = coverage.Coverage(data_file=None, include=[str(path) for path in paths], config_file=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure, then try the mutants."""
        self.items = session.items
        with tempfile.TemporaryDirectory() as folder:
            measured = Path(folder) / "measured.json"
            if _in_fork(lambda: self._measure(measured), 3600):
                raise SystemExit(f"the tests of {self.name} fail without any change")
            self.seconds, self.reached = json.loads(measured.read_bytes())
        noticed = 0
        for mutant in self.sample:
            if self._notices(mutant):
                noticed += 1
                continue
            old, new = mutant.path.read_text(encoding="utf-8").splitlines(), mutant.text.splitlines()
            lines = list(difflib.unified_diff(old, new, str(mutant.path.relative_to(ROOT)), lineterm="", n=0))
            print("\n".join([lines[0], *lines[2:]]), flush=True)
        print(f"{self.name}: {len(self.sample)} of {len(self.every)} mutants, {noticed} noticed", flush=True)
        return True

    def _measure(self, path: Path) -> bool:
        """Whether a test fails; write the seconds of each test, and which tests reach which line."""
        for original in {mutant.path for mutant in self.every}:  # what replaces code must not be what is noticed
            put_in(Mutant(original, range(0), original.read_text(encoding="utf-8"), False))
        seconds: list[float] = []
        self.coverage.start()
        for place, item in enumerate(self.items):
            self.coverage.switch_context(str(place))
            began = time.process_time()
            if self._fails(item, self.items[place + 1 : place + 2]):
                return True
            seconds.append(time.process_time() - began)
        self.coverage.stop()
        data = self.coverage.get_data()
        reached = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        path.write_text(json.dumps([seconds, reached]), encoding="utf-8")
        return False

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> None:
        """What a shared fixture computes is used by every test that asks for the fixture."""
        if fixturedef.scope != "function" and coverage.Coverage.current() is self.coverage:
            self.coverage.switch_context(fixturedef.argname)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Go on after shared fixtures."""
        if coverage.Coverage.current() is self.coverage:
            self.coverage.switch_context(str(self.items.index(item)))

    def _fails(self, item: pytest.Item, following: list[pytest.Item]) -> bool:
        reports = runtestprotocol(item, log=False, nextitem=following[0] if following else None)
        return any(report.failed for report in reports)

    def _notices(self, mutant: Mutant) -> bool:
        """Whether a test fails, or does not end, with this mutant."""
        lines = self.reached.get(str(mutant.path), {})
        names = {name for line in mutant.lines for name in lines.get(str(line), ())}
        places = [
            place
            for place, item in enumerate(self.items)
            if mutant.constant or str(place) in names or names.intersection(getattr(item, "fixturenames", ()))
        ]
        quick = [place for place in places if self.seconds[place] <= SLOW]
        places = quick or places
        # Quick ones first, else by module: fixtures.
        places.sort(key=lambda place: [self.seconds[place] > limit for limit in (0.3, 0.05)])
        chosen = [self.items[place] for place in places]

        def fails() -> bool:
            put_in(mutant)
            return any(self._fails(item, chosen[at + 1 : at + 2]) for at, item in enumerate(chosen))

        return bool(chosen) and _in_fork(fails, 30 + 10 * sum(self.seconds[place] for place in places))


def _in_fork(test: Callable[[], bool], seconds: float) -> bool:
    """Whether the test is true, ends by an error, or does not end, in a process of its own and without output."""
    child = os.fork()
    if not child:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            os._exit(int(test()))
        finally:
            os._exit(1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status != 0
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main() -> None:
    """Sample the mutants of rooms, and print how many the tests notice and the others."""
    parser = argparse.ArgumentParser(description="Which small changes to the source the tests notice.")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"all of them by default: {', '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=40, help="mutants per room")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another sample")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    for name in options.rooms or ROOMS:
        child = os.fork()
        if not child:
            _, tests, words = ROOMS[name]
            arguments = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "-k", words]
            places = [f"tests/{place}" for place in tests.split()]
            room = Room(name, options.sample, options.seed)
            os._exit(int(pytest.main([*arguments, *places], plugins=[room])))
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
