import json
import subprocess
import sys

import numpy as np
import pytest

from attnlab import cli

K = np.array([[0.47, 0.65, 0.60], [0.64, 0.50, -0.59], [-0.03, -0.48, -0.88], [0.43, -0.83, 0.35]])
V = np.array([[-0.07, -0.88, 0.47], [0.37, -0.93, -0.07], [-0.25, -0.75, 0.61], [0.94, 0.20, 0.28]])
CONTRACT = {
    "status",
    "query",
    "weights",
    "output",
    "bound",
    "error",
    "certificate",
    "statement",
    "lower_bound",
}


@pytest.fixture
def files(tmp_path):
    for name, data in (("K", K), ("V", V)):
        np.savetxt(tmp_path / f"{name}.csv", data, delimiter=",", fmt="%.17g")
        np.save(tmp_path / f"{name}.npy", data)
        (tmp_path / f"{name}.json").write_text(json.dumps(data.tolist()), encoding="utf-8")
    return tmp_path


def run(capsys, *arguments):
    words = [str(a) for a in arguments]
    code = 0
    try:
        cli.main(words if words[:1] == ["check"] else ["design", *words])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("kind", ["csv", "npy", "json"])
def test_the_contract_of_select(capsys, files, kind):
    result = run_json(
        capsys,
        "select",
        "--keys",
        files / f"K.{kind}",
        "--values",
        files / f"V.{kind}",
        "--index",
        0,
        "--tolerance",
        0.01,
    )
    assert set(result) >= CONTRACT
    assert result["status"] == "solved"
    assert set(result["error"]) == {"float32", "float64"}
    assert result["certificate"] is None
    scores = K @ result["query"]
    weights = np.exp(scores) / np.exp(scores).sum()
    assert weights == pytest.approx(result["weights"])
    assert np.abs(weights @ V - V[0]).max() <= result["bound"] <= 0.01


def test_blend_and_reach(capsys, files):
    options = ("--keys", files / "K.csv", "--values", files / "V.csv")
    blend = run_json(capsys, "blend", *options, "--indices", "0,1", "--weights", ".5,.5")
    assert blend["output"] == pytest.approx(((V[0] + V[1]) / 2).tolist(), abs=0.01)
    assert run_json(capsys, "average", *options, "--indices", "0,1")["query"] == blend["query"]
    reach = run_json(capsys, "reach", *options, "--target", "1,0,0")
    assert reach["status"] == "impossible"
    assert reach["certificate"]["type"] == "separating"
    assert reach["lower_bound"] > 0.1
    negative = run_json(capsys, "reach", *options, "--target", "-.07,-.88,.47", "--tolerance", "0.05")
    assert negative["status"] == "solved"


def test_inline_matrices_and_every_row(capsys):
    result = run_json(capsys, "select", "--keys", "1,0;0,1", "--values", "[[1, 0], [0, 1]]", "--scale", "sqrt")
    assert np.shape(result["query"]) == (2, 2)
    assert [row["status"] for row in result["rows"]] == ["solved", "solved"]


def test_the_other_commands(capsys):
    assert run_json(capsys, "project", "--keep", "1,0", "--forget", "1,1")["matrix"] == pytest.approx(
        np.array([[1, -1], [0, 0]])
    )
    assert run_json(capsys, "layer", "--tokens", "1,0;0,1", "--outputs", "0,1;nan,nan")["status"] == "solved"
    edit = run_json(capsys, "edit-key", "--keys", "0,0;0,0", "--values", "1,0;0,1", "--query", "5,0", "--index", 1)
    assert edit["key"][0] > 0.5
    noise = run_json(capsys, "noise", "--samples", 2000, "--n", 4, "--robust", 1, "--varies", "0,1")
    assert len(noise["designs"]) == 4


def test_people_get_words(capsys):
    code, out, _ = run(capsys, "select", "--keys", "-1;0;1", "--values", "1,0,0;0,1,0;0,0,1", "--index", 1)
    assert code == 0
    for part in ("select value 1: impossible", "0.5·k_0 + 0.5·k_2", "proved minimum error  0.6666", "margin"):
        assert part in out


@pytest.mark.parametrize(("name", "magic"), [("b.png", b"\x89PNG"), ("b.SVG", b"<?xml"), ("b.pdf", b"%PDF")])
def test_a_picture_is_what_its_name_says_and_never_written_over(capsys, tmp_path, name, magic):
    path = tmp_path / "a" / name
    options = ("select", "--keys", "1,0;0,1", "--values", "1,0;0,1", "--index", 0, "--picture", path)
    assert run(capsys, *options)[0] == 0
    assert [file.name for file in path.parent.iterdir()] == [name]
    before = path.read_bytes()
    assert before.startswith(magic)
    code, out, err = run(capsys, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "exists already: choose another name" in err
    path.unlink()
    run(capsys, *options)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["select", "--keys", "1,2;3", "--values", "1;2", "--index", "0"], "make them equal"),
        (["select", "--keys", "1,nan;3,4", "--values", "1;2", "--index", "0"], "finite number"),
        (["select", "--keys", "", "--values", "1;2", "--index", "0"], "is empty"),
        (["select", "--keys", "[]", "--values", "1;2", "--index", "0"], "at least one vector"),
        (["select", "--keys", "1;2", "--values", "1;2", "--index", "7"], "choose from 0 to 1"),
        (["select", "--keys", "1;x", "--values", "1;2", "--index", "0"], "'x' in row 2 is not a number"),
        (["select", "--keys", "[[1],", "--values", "1;2", "--index", "0"], "is not JSON"),
        (["select", "--keys", "none.csv", "--values", "1;2", "--index", "0"], "there is no file none.csv"),
        (["select", "--keys", "1;2", "--values", "1;2", "--index", "one"], "one"),
        (["select", "--keys", "1;2", "--values", "1;2", "--indx", "1"], "index"),
        (["select", "--values", "1;2"], "keys"),
        (
            ["blend", "--keys", "1;2", "--values", "1;2", "--indices", "0,1", "--weights", ".5,.6"],
            "divide by their sum",
        ),
        (["blend", "--keys", "1;2", "--values", "1;2", "--indices", "0;1"], "whole numbers"),
        (["reach", "--keys", "1;2", "--values", "1;2", "--target", "1,2"], "give 1"),
        (["tour", "--step", "A99"], "unknown step"),
        (["tuor"], "tour"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_a_picture_that_cannot_be_written_is_one_line(capsys, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    options = ("select", "--keys", "1;0", "--values", "1;0", "--index", 0, "--picture", tmp_path / "file" / "a.png")
    code, _, err = run(capsys, *options)
    assert (code, err.count("\n")) == (1, 1)
    assert "cannot be written" in err


def test_json_and_statement_name_the_reading(capsys, files):
    for kind, words in (("csv", "keys as the decimals written"), ("npy", "keys as binary float64 values")):
        options = ("--keys", files / f"K.{kind}", "--values", files / f"V.{kind}")
        result = run_json(capsys, "reach", *options, "--target", "9,9,9")
        assert words == result["reading"] == result["certificate"]["reading"]
        assert words in result["statement"]


def test_check_exits_1_when_a_task_fails(capsys, tmp_path):
    sheet, good, bad = (tmp_path / f"{name}.toml" for name in ("sheet", "good", "bad"))
    sheet.write_text(
        'keys = [[1], [-1]]\nvalues = [[1], [0]]\n[[task]]\nname = "t"\nask = "select"\nindex = 0\n', "utf-8"
    )
    good.write_text("t = [9]", "utf-8")
    bad.write_text("t = [0.1]", "utf-8")
    code, out, _ = run(capsys, "check", sheet, good, "--json")
    assert code == 0
    assert json.loads(out)["students"][0]["passed"]
    code, out, _ = run(capsys, "check", sheet, bad)
    assert code == 1
    assert "off by" in out
    assert "0 of 1 point" in out
    assert run(capsys, "check", sheet, tmp_path / "none.toml")[0] == 2


def test_help_loads_no_numerics():
    code = "import sys; from attnlab import cli\ncli.main(['design', '--help'])\n"
    code += "print([m for m in ('numpy', 'scipy', 'matplotlib', 'torch') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "select" in done.stdout


LONG = ";".join(["0.123456,0.654321,0.111111"] * 60)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--keys", LONG, "--values", "1,0"),
        ("--keys", "[[1" + "0" * 400 + "]]", "--values", "[[1]]"),
        ("--keys", "[[1" + "0" * 5000 + "]]", "--values", "[[1]]"),
        ("--keys", "[" * 100_000, "--values", "[[1]]"),
        *(("--keys", f"{x};1", "--values", "1;0") for x in ("1e308", "1e200", "1e-320", "1e-999999999", "9" * 5000)),
        *(("--keys", "0;1", "--values", "1;0", "--tolerance", x) for x in ("1e-320", "nan", "1e400", "x")),
        *(("--keys", "0;1", "--values", "1;0", "--index", x) for x in ("0.9", "1.0", "1e0", "1_0", "9" * 5000)),
        *(("--keys", "0;1", "--values", "1;0", "--index", "0", "--picture", x) for x in ("/", ".", "a", "a.jpg")),
        *(("--keys", "0;1;2", "--values", "1,0;0,1;0,0", "--index", 1, "--seconds", x) for x in ("nan", "-5")),
    ],
)
def test_extreme_input_is_one_line(capsys, arguments):
    code, out, err = run(capsys, "select", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_indices_are_whole_and_numbers_real():
    from attnlab.design import blend, select
    from attnlab.errors import UserError

    with pytest.raises(UserError, match="whole"):
        blend(np.eye(2), np.eye(2), [0.5])
    with pytest.raises(UserError, match="complex"):
        select(np.eye(2) * 1j, np.eye(2), 0)
