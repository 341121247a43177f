"""Tasks that ask for a module or function: it must compute what the reference computes with the same weights."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab import sandbox
from attnlab.course import mark, marking, modules
from attnlab.course.sheets import sheet_of
from attnlab.design.check import Outcome, parse
from attnlab.errors import UserError
from attnlab.measure.remote import Remote

EXAMPLES = Path(__file__).parents[2] / "examples/sheets"
CODE = (EXAMPLES / "f2.py").read_text("utf-8")
NAMES = (
    '{"heads.query" = "q", "heads.key" = "k", "heads.value" = "v", "attn.out" = "attn.proj", "mlp.up" = "mlp.fc",'
    ' "mlp.out" = "mlp.proj", norm1 = "ln1", norm2 = "ln2", norm = "ln", blocks = "h", tokens = "wte", positions = "wpe"}'
)
PARTS = {
    "mlp": ("MLP", '{up = "fc", out = "proj"}'),
    "attention": ("Attention", NAMES.replace("attn.out", "out").replace("attn.proj", "proj")),
    "block": ("Block", NAMES),
    "model": ("Model", NAMES),
    "loss": ("loss", "{}"),
    "generate": ("generate", "{}"),
}


class Here(Remote):
    """Code in this process: the same functions and messages, without the seconds that a process takes to start."""

    def __init__(self, file: str, content: bytes, *_: object) -> None:
        self.ended, self.released, self.weights, self.sent = "", [], {}, {}
        self._temporary = tempfile.TemporaryDirectory()
        self._file = Path(self._temporary.name) / file
        self._file.write_bytes(content)

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


@pytest.fixture
def here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(modules, "Remote", Here)


def marked(
    folder: Path, part: str, old: str = "", new: str = "", more: str = "", names: str | None = None, code: str = CODE
) -> Outcome:
    """One task, with something else in the student's code."""
    assert old in code
    marking._sheet_at.cache_clear()  # a process reads a sheet once
    name, own_names = PARTS.get(part, (part.title(), "{}"))
    task = (
        f'[[task]]\nname = "it"\nask = "module"\nmodule = "{part}"\nnames = {names or own_names}\npoints = 2\n{more}\n'
    )
    (folder / "sheet.toml").write_text(task, "utf-8")
    (folder / "ann.toml").write_text(f'it = "code.py:{name}"\n', "utf-8")
    (folder / "code.py").write_text(code.replace(old, new) if old else code, "utf-8")
    return mark(folder / "sheet.toml", folder / "ann.toml", trust_code=True, sandbox=False).students[0].outcomes[0]


def test_the_example_is_right(here: None) -> None:
    sheet, answers = (EXAMPLES / name for name in ("f2.toml", "f2-right.toml"))
    marks = mark(sheet, answers, trust_code=True, sandbox=False).students[0]
    assert [(one.name, one.message) for one in marks.outcomes] == [
        (name, "equal to the reference") for name in ("mlp", "attention", "model", "loss", "generate")
    ]


@pytest.mark.parametrize("part", PARTS)
def test_what_computes_the_same_passes(here: None, tmp_path: Path, part: str) -> None:
    outcome = marked(tmp_path, part)
    assert (outcome.passed, outcome.earned, outcome.message) == (True, 2, "equal to the reference")


SLIPS = [
    ("mlp", "F.gelu(", "F.gelu(approximate='tanh', input=", "the first module output that differs is `proj`"),
    ("mlp", "return self.proj(", "return 1.0001 * self.proj(", "1024 values differ"),
    ("attention", "math.sqrt(q.shape[-1])", "math.sqrt(x.shape[-1])", "output[0, 1, 0]: "),
    ("attention", "triu(1)", "triu(2)", "output[0, 0, 0]: "),
    ("attention", "self.proj((weights", "((weights", "shapes equal, 1024 of 1024 values differ"),
    (
        "attention",
        "flatten(2)), weights",
        "flatten(2))[:, :-1], 0",
        "output has shape 2 x 15 x 32 instead of 2 x 16 x 32",
    ),
    ("block", "self.mlp(self.ln2(x))", "self.mlp(x)", "that differs is `mlp.fc`"),
    ("block", "x = x + self.attn(", "x = self.attn(", "that differs is `ln2`"),
    ("model", "self.wpe(torch.arange(ids.shape[1]))", "self.wpe(0 * ids)", "that differs is `h.0.ln1`"),
    ("model", "self.head(self.ln(x))", "self.head(x)", "that differs is `head`"),
    (
        "model",
        "self.ln, self.head =",
        "self.ln, self.lm =",
        "missing: head.weight (50 x 32); not expected: lm.weight (50 x 32)",
    ),
    ("mlp", "4 * n_embd", "2 * n_embd", "parameter fc.weight has shape 64 x 32 instead of 128 x 32"),
    ("mlp", "def forward", "    self.fc.bias = None\n\n    def forward", "parameters missing: fc.bias (128)"),
    (
        "attention",
        "(4))",
        "(4))\n        self.k = self.q",
        "parameters q.weight and k.weight are the same; make them two",
    ),
    (
        "mlp",
        "return self.proj",
        "return x.nothing",
        "it raises AttributeError: 'Tensor' object has no attribute 'nothing'",
    ),
    ("mlp", "def __init__(self, n_embd)", "def __init__(self, width)", "it raises TypeError: "),
    ("mlp", "import math", "import maths", "ModuleNotFoundError: No module named 'maths'"),
    ("loss", "mean()", "sum()", "output: "),
    ("loss", "mean()", "mean().nan_to_num() * math.nan", "output: nan instead of "),
    ("loss", ".mean()", "", "output has shape 2 x 16 x 1 instead of one number"),
    ("loss", "mean()", "mean().item()", "the output must be a tensor"),
    ("generate", "argmax", "argmin", "output[0, 4]: "),
    ("generate", "range(count)", "range(count - 1)", "output has shape 2 x 11 instead of 2 x 12"),
]


@pytest.mark.parametrize(("part", "old", "new", "words"), SLIPS)
def test_a_slip_is_named_in_one_line(here: None, tmp_path: Path, part: str, old: str, new: str, words: str) -> None:
    outcome = marked(tmp_path, part, old, new)
    assert (outcome.passed, outcome.earned, outcome.points) == (False, 0, 2)
    assert words in outcome.message
    assert "\n" not in outcome.message


def test_the_tolerance_is_one_in_a_hundred_thousand(here: None, tmp_path: Path) -> None:
    for change, tolerance, passed in (("2e-6", "", True), ("1e-4", "", False), ("1e-4", "tolerance = 1e-3", True)):
        outcome = marked(
            tmp_path,
            "mlp",
            "return self.proj(F.gelu(self.fc(x)))",
            f"return self.proj(F.gelu(self.fc(x))) + {change}",
            tolerance,
        )
        assert outcome.passed == passed, change


def test_dropout_is_off(here: None, tmp_path: Path) -> None:
    dropped = "return F.dropout(self.proj(F.gelu(self.fc(x))), training=self.training)"
    assert marked(tmp_path, "mlp", "return self.proj(F.gelu(self.fc(x)))", dropped).passed


def test_tied_weights_of_the_reference_may_be_given_twice(here: None, tmp_path: Path) -> None:
    head = "nn.Linear(n_embd, vocab_size, bias=False)\n"
    tied = CODE.replace(head, f"{head}        self.head.weight = self.wte.weight\n")
    (tmp_path / "solution.py").write_text(tied, "utf-8")
    more = 'reference = "solution.py:Model"'
    assert marked(tmp_path, "model", more=more, names="{}").passed
    assert marked(tmp_path, "model", more=more, names="{}", code=f"{tied}\n").passed


def test_a_reference_of_the_teacher(here: None, tmp_path: Path) -> None:
    solution = """
from torch import nn

class Class(nn.Module):
    def __init__(self, width, depth=1):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))

    def forward(self, x, shift):
        return self.layers(x) + shift

def function(a, b):
    return a @ b
"""
    (tmp_path / "solution.py").write_text(solution, "utf-8")
    own = 'reference = "solution.py:Class"\nsizes = {width = 6, depth = 2}\ninputs = [{shape = [3, 6]}, 0.5]'
    assert marked(tmp_path, "class", "depth=1", "depth", own, code=solution).passed
    assert "first module" not in marked(tmp_path, "class", "+ shift", "- shift", own, code=solution).message
    renamed = solution.replace("layers", "stack")
    assert "missing: layers.0.weight (6 x 6)" in marked(tmp_path, "class", more=own, code=renamed).message
    assert marked(tmp_path, "class", more=own, names='{layers = "stack"}', code=renamed).passed
    function = 'reference = "solution.py:function"\ninputs = [{shape = [3, 6]}, {shape = [6, 2]}]'
    code = "import torch\ndef Function(a, b):\n    return torch.einsum('ij,jk', a, b)\n"
    assert marked(tmp_path, "function", more=function, code=code).passed
    assert not marked(tmp_path, "function", "'ij,jk', a", "'ij,jk', -a", function, code=code).passed


def test_sizes_are_those_of_the_reference(here: None, tmp_path: Path) -> None:
    assert marked(tmp_path, "mlp", more="sizes = {n_embd = 8, block_size = 9}").passed
    squared = 'sizes = {activation = "relu2", bias = false}'
    act = "F.gelu(self.fc(x))", "self.fc(x).relu() ** 2"
    assert marked(tmp_path, "mlp", *act, squared).message.startswith("parameters not expected: fc.bias")
    code = CODE.replace("4 * n_embd)", "4 * n_embd, bias=False)").replace(
        "* n_embd, n_embd)", "* n_embd, n_embd, bias=False)"
    )
    assert marked(tmp_path, "mlp", *act, squared, code=code).passed


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('module = "mpl"', "did you mean mlp"),
        ('module = "class"', "a class needs a reference, and inputs"),
        ('module = "mlp"\nsizes = {n_emdb = 3}', "did you mean n_embd"),
        ('module = "mlp"\nsizes = 3', "Expected `object`, got `int` - at `$.sizes`"),
        ('module = "mlp"\ninputs = [{shap = [3]}]', "shap"),
        ('module = "mlp"\ninputs = [{shape = [0]}]', ">= 1"),
        ('module = "mlp"\ntolerance = 0', "tolerance"),
        ('module = "mlp"\nreference = "solution.py"', "a class or function in a file"),
        ('module = "mlp"\nreference = "none.py:MLP"', "no such file"),
        ('module = "mlp"\nreferense = "none.py:MLP"', "did you mean reference"),
        ("points = 1", "module"),
    ],
)
def test_mistakes_of_the_teacher_end_the_marking(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(UserError, match="^it: ") as raised:
        sheet_of(parse(f'[[task]]\nname = "it"\nask = "module"\n{lines}\n', tmp_path / "s.toml"), tmp_path / "s.toml")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_reference_that_does_not_run_ends_the_marking(here: None, tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("class MLP:\n    pass\n", "utf-8")
    with pytest.raises(UserError, match=r"^it: the reference 'MLP' does not run: .*MLP\(\) takes no arguments"):
        marked(tmp_path, "mlp", more='reference = "solution.py:MLP"')


def test_nothing_runs_without_trust(tmp_path: Path) -> None:
    (tmp_path / "sheet.toml").write_text(
        '[[task]]\nname = "it"\nask = "module"\nmodule = "mlp"\nreference = "code.py:MLP"', "utf-8"
    )
    (tmp_path / "ann.toml").write_text('it = "code.py:MLP"\n', "utf-8")
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", "utf-8")
    outcome = mark(tmp_path / "sheet.toml", tmp_path / "ann.toml").students[0].outcomes[0]
    assert outcome.message.startswith("the code was not run: add --trust-code")
    assert not (tmp_path / "ran").exists()


@pytest.mark.processes
@pytest.mark.skipif(bool(sandbox.missing()), reason="no sandbox here")
def test_code_runs_in_a_sandbox(tmp_path: Path) -> None:
    """The reference too, and a student's code cannot read it."""
    lines = [
        'module = "mlp"\nreference = "solution.py:MLP"\nnames = {}',
        'module = "generate"\nreference = "solution.py:generate"',
    ]
    tasks = [f'[[task]]\nname = "{name}"\nask = "module"\n{line}\n' for name, line in zip("ab", lines, strict=True)]
    (tmp_path / "sheet.toml").write_text("".join(tasks), "utf-8")
    (tmp_path / "solution.py").write_text(CODE, "utf-8")
    for student, line in (
        ("ann", ""),
        ("bob", f"open({str(tmp_path / 'solution.py')!r}).read()"),
        ("cyd", "import os; os._exit(0)"),
    ):
        (tmp_path / "students" / student).mkdir(parents=True)
        (tmp_path / "students" / student / "answers.toml").write_text(
            'a = "code.py:MLP"\nb = "code.py:generate"\n', "utf-8"
        )
        (tmp_path / "students" / student / "code.py").write_text(f"{CODE}\n{line}\n", "utf-8")
    marks = mark(tmp_path / "sheet.toml", tmp_path / "students", trust_code=True)
    messages = {student.name: [outcome.message for outcome in student.outcomes] for student in marks.students}
    assert messages["ann"] == ["equal to the reference"] * 2
    assert all("Permission denied" in message for message in messages["bob"])
    assert all("exit code 0" in message for message in messages["cyd"])
    assert [student.points for student in marks.students] == [2, 0, 0]


SIGNATURES = """
import torch
from torch import nn

class Class(nn.Module):
    def __init__(self, {arguments}):
        super().__init__()
        self.mix = nn.Linear({width}, {width})

    def forward(self, {inputs}):
        return self.mix({value})
"""


@pytest.mark.parametrize(
    ("arguments", "width", "inputs", "value"),
    [
        ("d_model, n_heads", "d_model", "x", "x"),
        ("width", "width", "q, k, v", "q + 2 * k - v"),
        ("width", "width", "x, mask", "x * mask"),
    ],
)
def test_modules_are_built_and_called_as_they_are_written(
    here: None, tmp_path: Path, arguments: str, width: str, inputs: str, value: str
) -> None:
    """Not as mechanisms, whose conventions are recognised."""
    code = SIGNATURES.format(arguments=arguments, width=width, inputs=inputs, value=value)
    (tmp_path / "solution.py").write_text(code, "utf-8")
    drawn = ", ".join(["{shape = [2, 3, 8]}"] * (inputs.count(",") + 1))
    sizes = ", ".join(f"{name} = {size}" for name, size in zip(arguments.split(", "), (8, 2), strict=False))
    more = f'reference = "solution.py:Class"\nsizes = {{{sizes}}}\ninputs = [{drawn}]'
    assert marked(tmp_path, "class", more=more, code=f"{code}\n").passed
    wrong = marked(tmp_path, "class", "self.mix(", "1.01 * self.mix(", more=more, code=f"{code}\n")
    assert "instead of" in wrong.message


def test_the_teachers_file_is_no_answer(here: None, tmp_path: Path) -> None:
    code = SIGNATURES.format(arguments="width", width="width", inputs="x", value="x")
    (tmp_path / "solution.py").write_text(code, "utf-8")
    more = 'reference = "solution.py:Class"\nsizes = {width = 8}\ninputs = [{shape = [2, 3, 8]}]'
    outcome = marked(tmp_path, "class", more=more, code=code)
    assert (outcome.passed, outcome.message) == (
        False,
        "that is the reference of the task; hand in a file of your own",
    )


def test_references_that_prove_nothing_and_sizes_that_do_nothing_are_refused(here: None, tmp_path: Path) -> None:
    code = SIGNATURES.format(arguments="width", width="width", inputs="x", value="(-x.abs()).sqrt()")
    (tmp_path / "solution.py").write_text(code, "utf-8")
    inputs = 'reference = "solution.py:Class"\ninputs = [{shape = [2, 3, 8]}]\n'
    with pytest.raises(UserError, match="gives NaN for these inputs"):
        marked(tmp_path, "class", more=f"{inputs}sizes = {{width = 8}}", code=f"{code}\n")
    with pytest.raises(UserError, match='width is not an argument of mlp; for others, write module = "class"'):
        marked(tmp_path, "mlp", more=f"{inputs}sizes = {{width = 8}}", code=f"{code}\n")


def test_whole_numbers_are_equal_or_not() -> None:
    job = modules.Job("generate")
    assert not modules._difference("ids", torch.tensor([100_001]), torch.tensor([100_001]), job)
    assert "100001 instead of 100002" in modules._difference(
        "ids", torch.tensor([100_001]), torch.tensor([100_002]), job
    )


def test_a_right_answer_needs_no_second_call(here: None, tmp_path: Path) -> None:
    """Parts are computed only to say where a wrong output begins to differ."""
    once = CODE.replace(
        "return self.proj(F.gelu",
        "self.calls = getattr(self, 'calls', 0) + 1\n        assert self.calls < 2\n        return self.proj(F.gelu",
    )
    assert marked(tmp_path, "mlp", code=once).passed
    wrong = marked(tmp_path, "mlp", "return self.proj(", "return 2 * self.proj(", code=once)
    assert "instead of" in wrong.message
    assert "first module" not in wrong.message
