from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import attnlab
from attnlab import __version__, machine
from attnlab.lm import processes
from attnlab.store.folders import kind_of, write_manifest
from verbs import call

TINY = ["--model.n_layer=1", "--model.n_head=2", "--model.n_embd=32", "--model.block_size=64", "--model.vocab_size=300"]
SHORT = ["--train.epochs=1", "--train.tokens_per_batch=1024"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / ".cache"))
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert call("pretrain", "--corpus", "people:60", "--facts", "people:60:train", "--out", folder, *TINY, *SHORT) == 0
    return folder


def fails(capsys: pytest.CaptureFixture[str], code: int, message: str, *arguments: str | Path) -> None:
    """The command ends in one line on standard error with this exit code."""
    capsys.readouterr()
    assert call(*arguments) == code
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert "Traceback" not in error


def test_help_needs_no_torch() -> None:
    heavy = {"torch", "scipy", "matplotlib", "tokenizers", "numpy"}
    program = f"import sys, attnlab.cli; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "verb", ["run", "pretrain", "finetune", "evaluate", "ask", "corpus", "params", "settings", "resume"]
)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(verb, "--help") == 0
    assert "Usage: attnlab" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out.strip() == __version__


def test_params(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("params", "mingpt") == 0
    assert "3,323,392" in capsys.readouterr().out
    assert call("params", "mingpt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["total"] == 3_323_392
    assert call("params", "mingpt", "--model.n_layer", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["total"] == 3_323_392 - 3 * 789_760


def test_corpus_show_prints_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "show", "--corpus", "people:60", "--n", "3", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["documents"] == 60
    assert len(shown["examples"]) == 3
    for pair in shown["examples"]:
        assert pair["input"].count("⁇") == 2
        assert pair["target"].endswith("□")
        row = pair["input"] + pair["target"]
        padding = len(pair["x"]) - len(row) + 1
        assert pair["x"] == row[:-1] + "□" * padding  # the whole sequence, as long as the longest of its batch
        assert pair["y"] == row[1:] + "░" * padding  # one token ahead
    assert len({len(pair["x"]) for pair in shown["examples"]}) == 1
    assert call("corpus", "show", "--corpus", "people:60", "--task", "recall", "--n", "2") == 0
    assert capsys.readouterr().out.count("target") == 2
    call("corpus", "show", "--corpus", "people:60", "--task.options.pad", "true", "--n", "1", "--json")
    (pair,) = json.loads(capsys.readouterr().out)["examples"]
    assert (len(pair["x"]), pair["y"].count("░"), pair["y"][-1]) == (
        127,
        0,
        "□",
    )  # as in the reports: the block is filled
    assert call("corpus", "show", "--corpus", "people:60", "--task", "questions", "--preset", "mingpt", "--json") == 0
    for pair in json.loads(capsys.readouterr().out)["examples"]:
        assert pair["y"].startswith("░" * (len(pair["input"]) - 1) + pair["target"])  # only the answer is learned


def test_corpus_export_writes_the_users_formats_into_a_new_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("corpus", "export", "runs/data", "--corpus", "people:60") == 0
    assert (here / "runs/data/train.tsv").read_text().split("\n")[0].count("\t") == 1
    assert kind_of(here / "runs/data") == "corpus"
    (here / "runs/mine").mkdir()
    (here / "runs/mine/notes.txt").write_text("mine")
    for name in ("data", "mine"):
        fails(capsys, 2, "exists already", "corpus", "export", f"runs/{name}", "--corpus", "people:60")
    assert [path.name for path in (here / "runs/mine").iterdir()] == ["notes.txt"]
    assert call("runs", "delete", "data", "--yes") == 0
    assert not (here / "runs/data").exists()


def test_settings_lists_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("settings", "mingpt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"]["n_embd"] == 256
    assert call("settings") == 0
    shown = capsys.readouterr().out
    assert "attention heads" in shown.replace("\n", " ")
    assert "task.options.listed" in shown
    assert "0.3" in shown


def test_mechanisms(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("mechanisms", "--json") == 0
    assert "dot" in {entry["name"] for entry in json.loads(capsys.readouterr().out)}


def test_finetune_evaluate_and_ask(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("finetune", trained, "--facts", "people:60:train", "--out", "tuned", *SHORT) == 0
    assert call("evaluate", "tuned", "--exam", "people:60:test", "--out", "exam") == 0
    assert "Correct: " in capsys.readouterr().out
    lines = (here / "exam/predictions.txt").read_text().split("\n")
    assert len(lines) == json.loads((here / "exam/result.json").read_text())["questions"] + 1
    (here / "blind.tsv").write_text("Where was Hank Aaron born?\nWhere was Babe Ruth born?\n")
    assert call("evaluate", "tuned", "--exam", "blind.tsv", "--out", "blind", "--json") == 0
    out = json.loads(capsys.readouterr().out)
    assert out["questions"] == 2
    assert out["accuracy"] is None
    assert call("ask", "tuned", "Where was Hank Aaron born?", "--top", "3", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["documents"], shown["answers"], shown["probability"]) == ([], [], None)  # its base read about others
    assert call("ask", trained, "Where was Zaphod Beeblebrox born?") == 0
    assert "no answer (never seen)" in capsys.readouterr().out


def test_a_mechanism_in_a_users_file_trains_and_loads_from_elsewhere(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        (Path(attnlab.__file__).parent / "mechanisms/dot.py")
        .read_text()
        .replace('@mechanism("dot"', '@mechanism("mine"')
    )
    (here / "mine.py").write_text(source.replace("class Dot", "class Mine"))
    world = ("--corpus", "people:60", "--facts", "people:60:train")
    assert call("pretrain", *world, "--mechanism", "mine.py:Mine", "--out", "run", *TINY, *SHORT) == 0
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    capsys.readouterr()
    assert call("ask", "../run", "Where was Hank Aaron born?", "--json") == 0
    assert json.loads(capsys.readouterr().out)["answer"]


def test_mistakes_in_words(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    fails(capsys, 2, "Did you mean", "pretain")
    fails(capsys, 2, "--model.n_head", "pretrain", "--model.n_haed", "4")
    fails(capsys, 2, "model.n_head must be a whole number, not 'four'", "pretrain", "--model.n_head", "four")
    fails(capsys, 2, "model.n_head must be a whole number, not 4.5", "pretrain", "--model.n_head", "4.5")
    fails(capsys, 2, "model.qk_norm must be true or false", "pretrain", "--model.qk_norm", "maybe")
    fails(capsys, 2, "train.epochs must be a finite number", "pretrain", "--train.epochs", "inf")
    fails(capsys, 2, "--seed", "pretrain", "--seed", "1.5")
    fails(capsys, 2, "seed must lie between", "pretrain", "--seed", "-1")
    fails(capsys, 2, "bare must lie in [0, 1]", "pretrain", "--corpus", "people:60", "--task.options.bare=7")
    fails(capsys, 1, "cannot write", "pretrain", "--corpus", "people:60", "--out", "/dev/null/x", *TINY)
    fails(capsys, 2, "did you mean dot", "pretrain", "--mechanism", "dto")
    fails(capsys, 2, "did you mean small", "pretrain", "--preset", "smal")
    fails(capsys, 2, "did you mean recall", "run", "recal")
    fails(capsys, 2, "did you mean recall", "pretrain", "--task.name", "recal")
    fails(capsys, 2, "did you mean lines", "pretrain", "--task.options.line=1")
    fails(capsys, 2, "go together", "run", "--corpus", "people")
    fails(capsys, 2, "no such run folder", "evaluate", "absent")
    fails(capsys, 2, "no such run folder", "resume", "absent")
    fails(capsys, 2, "the question is empty", "ask", "absent", " ")
    assert list(here.iterdir()) == []


def test_mistakes_in_files(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "empty.txt").write_text("")
    (here / "latin.txt").write_bytes("São Paulo\n".encode("latin-1"))
    (here / "facts.tsv").write_text("Where?\tRome\nWhere was it?\n")
    (here / "wrong.toml").write_text("[model]\nn_head = 'four'\n")
    (here / "taken").mkdir()
    fails(capsys, 2, "absent.txt", "pretrain", "--corpus", "absent.txt")
    fails(capsys, 2, "empty.txt", "pretrain", "--corpus", "empty.txt")
    assert call("pretrain", "empty.txt") == 2
    assert capsys.readouterr() == ("", "attnlab: empty.txt is empty; it needs at least one line of text\n")
    fails(capsys, 2, "UTF-8", "pretrain", "--corpus", "latin.txt")
    fails(capsys, 2, "facts.tsv:2", "pretrain", "--corpus", "people:60", "--facts", "facts.tsv")
    fails(capsys, 2, "must be a whole number", "pretrain", "--config", "wrong.toml")
    fails(capsys, 2, "exists already", "pretrain", "--corpus", "people:60", "--out", "taken", *TINY)
    fails(capsys, 2, "exists already", "run", "--quick", "--out", "taken")
    assert list((here / "taken").iterdir()) == []
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def broken(:", "cannot be loaded: SyntaxError"),
        ("import surely_not_installed", "No module named 'surely_not_installed'; install it, or add its folder to"),
        ("class Other: pass\nNOTHING = 0", "mine.py has no class 'Mine': choose from Other"),
        (
            "class Mine:\n    def __init__(self, width, *, rotary=True): pass",
            "Mine is not an nn.Module: let it inherit",
        ),
        (
            "from torch import nn\n"
            "class Mine(nn.Module):\n"
            "    def __init__(self, n_embd, n_head, block_size, *, rotary=True): open('absent.pt')\n"
            "    def forward(self, x): return x\n",
            "Mine cannot be built as Mechanism(n_embd, n_head, block_size): FileNotFoundError",
        ),
    ],
)
def test_mistakes_in_a_users_mechanism(
    here: Path, capsys: pytest.CaptureFixture[str], source: str, message: str
) -> None:
    (here / "mine.py").write_text(source)
    fails(capsys, 2, message, "pretrain", "--corpus", "people:60", "--mechanism", "mine.py:Mine", "--out", "run")
    assert not (here / "run").exists()


def test_a_file_without_its_class_is_not_a_mechanism(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.py").write_text("class Mine: pass")
    for command in (("audit", "mine.py"), ("bench", "mine.py"), ("pretrain", "--mechanism", "dot,mine.py")):
        fails(capsys, 2, "mine.py is a file: name a class in it, mine.py:Mine", *command)


def test_a_study_finds_mistakes_before_it_makes_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "long.tsv").write_text("Where?\tRome\n" + "Where was " + "Maximilian " * 60 + "born?\tRome\n")
    (here / "good.tsv").write_text("Where?\tRome\n")
    (here / "options.toml").write_text("[finetune.task.options]\nviews = 2\n")
    world = ("--corpus", "people:60", "--out", "study", "--preset", "quick", *TINY)
    fails(capsys, 2, "did you mean dot", "run", "--quick", "--mechanism", "dto", "--out", "study")
    fails(capsys, 2, "has no options", "run", "--quick", "--config", "options.toml", "--out", "study")
    fails(capsys, 2, "question 2 ", "run", "--facts", "long.tsv", "--exam", "good.tsv", *world)
    fails(capsys, 2, "question 2 ", "run", "--facts", "good.tsv", "--exam", "long.tsv", *world)
    assert not (here / "study").exists()


def test_several_processes_are_refused_where_one_must_do(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trained: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    fails(capsys, 2, "runs in one process", "run", "--quick")
    fails(capsys, 2, "runs in one process", "evaluate", trained)


def test_more_processes_than_cores_are_noted(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "launch", lambda *_: 0)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert call("pretrain", "--processes", "2") == 0
    assert capsys.readouterr().err == ""
    assert call("pretrain", "--processes", "3") == 0
    assert capsys.readouterr().err == "note: 3 processes on 2 cores will be slower than 2\n"


def test_text_that_looks_like_markup_is_printed_as_it_is(
    here: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("evaluate", trained, "--exam", "people:60:test", "--out", "e[bold]x[/b]") == 0
    assert "predictions: e[bold]x[/b]/predictions.txt" in capsys.readouterr().out
    assert (here / "e[bold]x[/b]/predictions.txt").is_file()


def test_mistakes_with_a_run(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, 2, "comes from the run", "finetune", trained, "--model.n_layer", "2")
    (here / "taken").mkdir()
    fails(capsys, 2, "exists already", "evaluate", trained, "--out", "taken")
    assert not (here / "exam").exists()


def test_a_broken_checkpoint_exits_with_one(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(trained, here / "broken")
    weights = here / "broken/model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    fails(capsys, 1, "model.safetensors is damaged or was edited", "ask", "broken", "Where was Hank Aaron born?")


@pytest.mark.processes
def test_in_the_background_of_a_script_it_can_be_stopped(here: Path) -> None:
    """There SIGINT is ignored, as a shell without job control leaves it; SIGTERM must do."""
    program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from attnlab.cli import main; main()"
    command = [sys.executable, "-c", program, "run", "--quick", "--out", "study"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "documents" in line:
                break
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "attnlab resume study" in told


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("--max-new-tokens must be at least 1, not -3", ["generate", "run", "--max-new-tokens", "-3"]),
        ("pretrain takes one text", ["pretrain", "a.txt", "b.jsonl"]),
        ("--dev takes a share of the text from 0", ["pretrain", "prose:100", "--dev", "1.5"]),
        ("--exam is empty", ["evaluate", "run", "--exam", ""]),
        ("--out is empty", ["pretrain", "--out="]),
        ("an argument is empty", ["corpus", "export", ""]),
        ("finite number", ["generate", "run", "--temperature", "1e400"]),
        ("between", ["generate", "run", "--n", "9" * 30]),
        ("seed must lie", ["generate", "run", "--seed", "2147483648"]),
        ("seed must lie", ["compare", "dot", "additive", "--seeds", "3,2147483648"]),
        ("--seeds must be a number from 1", ["compare", "dot", "additive", "--seeds", "9" * 30]),
        ("not UTF-8", ["runs", "a\0b"]),
    ],
)
def test_values_that_no_option_takes(message: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, 2, message, *arguments)


def test_an_empty_name_is_no_data(trained: Path) -> None:
    with pytest.raises(attnlab.errors.DataError, match="empty"):
        attnlab.load_questions("")
    with pytest.raises(attnlab.errors.DataError, match="empty"):
        attnlab.finetune(attnlab.resolve("small", "finetune"), attnlab.store.runs.Run(trained), "")


def test_one_damaged_run_does_not_hide_the_others(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs/bad").mkdir(parents=True)
    (here / "runs/bad/config.json").write_text('{"stage": "pretrain", "settings": {"seed": ' + "9" * 5000 + "}}")
    write_manifest(here / "runs/bad", "run")
    shutil.copytree(trained, here / "runs/good")
    assert call("runs", "--json") == 0
    kinds = {one["name"]: one["kind"] for one in json.loads(capsys.readouterr().out)}
    assert kinds == {"bad": "damaged", "good": "run"}
