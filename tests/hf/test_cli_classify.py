"""`attnlab classify` as a user gives it: what is shown, what is written, what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnlab.corpora.labelled import read_tables
from attnlab.hf.bag import Bag, cross_validate
from attnlab.stats import proportion_interval
from attnlab.store.listing import kind_of
from verbs import call

QUICK = ("--epochs", "2", "--lr", "5e-3", "--batch_size", "16")


@pytest.fixture(scope="module")
def done(files: Path, roberta: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "run"
    tables = (files / "train.tsv", files / "dev.tsv", "--test", files / "test.tsv")
    assert call("classify", *tables, "--model", roberta, "--labels", "pos=good,neg=bad", "--out", out, *QUICK) == 0
    return out


@pytest.fixture(scope="module")
def result(done: Path) -> dict:
    return json.loads((done / "result.json").read_text())


def test_what_is_written(done: Path, result: dict) -> None:
    assert {path.name for path in done.iterdir()} == {
        "model",
        "predictions.tsv",
        "report.html",
        "report.md",
        "result.json",
        "manifest.json",
    }
    assert not list(done.parent.glob(".*"))
    assert result["tables"]["labels"] == ["bad", "good"]
    assert result["settings"]["epochs"] == 2
    assert result["settings"]["lr"] == 5e-3
    assert len(result["epochs"]) == 2
    assert result["tables"]["data"]["train"]["counts"] == {"bad": 80, "good": 80}
    assert len(result["tables"]["data"]["dev"]["sha256"]) == 64
    assert result["environment"]["transformers"]
    config = json.loads((done / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}


@pytest.fixture
def kept(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as a user has it, under ./runs."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(done, "runs/classify-1"))


def test_it_is_listed_and_shown(kept: Path, result: dict, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("runs", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert [entry[name] for name in ("name", "kind", "what", "state")] == [
        *("classify-1", "classifier", "classifier", "complete"),
    ]
    assert (entry["accuracy"], entry["loss"]) == (result["dev"]["accuracy"], result["dev"]["loss"])
    assert (entry["tokens"], entry["seconds"], entry["seed"]) == (result["tokens"], result["seconds"], 0)
    assert entry["settings"]["batch_size"] == 16
    assert call("runs", "--filter", "lr=5e-3") == 0
    assert f"{100 * result['dev']['accuracy']:.1f} % on validation" in capsys.readouterr().out
    assert call("runs", "show", "classify-1") == 0
    shown = capsys.readouterr().out
    for part, name in (("dev", "validation"), ("test", "test")):
        one = result[part]
        (line,) = (line for line in shown.splitlines() if line.startswith(name))
        assert f"{100 * one['accuracy']:.1f} % (95 % interval {100 * one['low']:.1f} to" in line
        assert f"{one['right']} of {one['texts']}" in line
    assert call("runs", "export", "classify-1", "--tensorboard", "board") == 2
    assert "no curves to export" in capsys.readouterr().err
    assert call("runs", "delete", "classify-1", "--yes") == 0
    assert not kept.exists()


def test_its_report_is_written_again(done: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in kept.glob("report.*"):
        file.unlink()
    assert call("report", "runs/classify-1") == 0
    for name in ("report.html", "report.md"):
        assert (kept / name).read_text() == (done / name).read_text()
    shutil.copytree(kept, "runs/classify-2")
    capsys.readouterr()
    assert call("report", "classify-1", "classify-2") == 2
    assert "no runs to compare with others: name it alone" in capsys.readouterr().err
    assert not Path("runs/report-1").exists()


@pytest.mark.parametrize("verb", [("export", "{}", "new"), ("evaluate", "{}"), ("ask", "{}", "Who?"), ("resume", "{}")])
def test_it_is_no_run_and_says_what_it_is(
    kept: Path, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    assert call(*(word.format(kept) for word in verb)) == 2
    error = capsys.readouterr().err
    assert "is a classifier, not a run: load it with AutoModelForSequenceClassification" in error
    assert "from_pretrained('runs/classify-1/model')" in error
    assert len(error.splitlines()) == 1
    shutil.rmtree(kept / "model")
    (kept / "model").mkdir()
    assert call(*(word.format(kept) for word in verb)) == 2
    assert "--predict FILE` labels texts with it" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["encoder", "bag-of-words"])
def test_a_saved_classifier_labels_texts(
    kind: str,
    done: Path,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = done
    if kind == "bag-of-words":
        saved = tmp_path / "bag"
        tables = (files / "train.tsv", files / "dev.tsv", "--test", files / "test.tsv")
        assert call("classify", *tables, "--model", kind, "--out", saved) == 0
    before = [line.split("\t") for line in (saved / "predictions.tsv").read_text().splitlines()]
    texts = [row[4] for row in before if row[0] == "test"]
    Path("texts.txt").write_text("".join(f"{text}\n" for text in texts))
    capsys.readouterr()
    assert call("classify", "--model", saved, "--predict", "texts.txt", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    heading, *lines = Path(found["out"], "predictions.tsv").read_text().splitlines()
    first, second = found["labels"]
    assert heading == f"label\tp({first})\tp({second})\ttext"
    assert [one["label"] for one in found["texts"]] == [row[2] for row in before if row[0] == "test"]
    for line, one, row in zip(lines, found["texts"], [row for row in before if row[0] == "test"], strict=True):
        label, *chances, text = line.split("\t")
        assert (label, text) == (one["label"], row[4])
        assert sum(map(float, chances)) == pytest.approx(1, abs=1e-5)
        assert max(map(float, chances)) == pytest.approx(float(row[3]), abs=1e-4)
    assert sum(found["counts"].values()) == len(texts)
    assert call("classify", "--model", saved / "model", "--predict", "texts.txt", "--out", "labelled") == 0
    assert f"30 texts of texts.txt, labelled by {saved / 'model'}" in capsys.readouterr().out.replace("\n", "")
    assert kind_of(Path("labelled")) == "predictions"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "bag-of-words"), "--predict needs a saved classifier: add --model FOLDER"),
        (("--model", "{roberta}"), "has no trained head for labels: make a classifier of it"),
        (("--model", "{done}", "--lr", "1"), "--predict trains nothing: leave --lr out"),
        (("--model", "{done}", "--out", "texts.txt"), "texts.txt exists already"),
        (("--model", "{done}", "--predict", "{train}"), "train.tsv:1: a tab; give the texts alone"),
        (("--model", "{done}", "--predict", "blank.txt"), "blank.txt:2: a blank line has no label; remove it"),
    ],
)
def test_labelling_refuses_what_it_cannot_use(
    arguments: tuple[str, ...],
    words: str,
    done: Path,
    roberta: Path,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a lovely film\n")
    Path("blank.txt").write_text("a lovely film\n\na dull film\n\n")
    given = [one.format(roberta=roberta, done=done, train=files / "train.tsv") for one in arguments]
    given += [] if "--predict" in given else ["--predict", "texts.txt"]
    assert call("classify", *given) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_numbers_fit_the_predictions(done: Path, result: dict) -> None:
    heading, *lines = (done / "predictions.tsv").read_text().splitlines()
    assert heading == "part\tlabel\tpredicted\tconfidence\ttext"
    rows = [line.split("\t") for line in lines]
    labels = result["tables"]["labels"]
    for part, texts in (("dev", 40), ("test", 30)):
        pairs = [(label, said) for name, label, said, _, _ in rows if name == part]
        one = result[part]
        right = sum(label == said for label, said in pairs)
        assert (one["texts"], one["right"], one["accuracy"]) == (texts, right, right / texts)
        assert (one["low"], one["high"]) == proportion_interval(right, texts)
        counts = [[pairs.count((meant, said)) for said in labels] for meant in labels]
        assert one["confusion"] == counts
        assert len(one["mistakes"]) == min(20, texts - right)
        sure = [mistake["confidence"] for mistake in one["mistakes"]]
        assert sure == sorted(sure, reverse=True)


def test_the_page_has_it_all(done: Path, result: dict) -> None:
    page, text = (done / "report.html").read_text(), (done / "report.md").read_text()
    accuracy = f"{100 * result['test']['accuracy']:.1f}"
    assert accuracy in page
    assert accuracy in text
    assert "Confusion matrix" in page
    assert "Labels on test" in page
    assert "95 % interval" in text
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_what_is_shown_before_training(
    files: Path, roberta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("classify", files / "train.tsv", files / "dev.tsv", "--model", "bag-of-words")
    assert call(*arguments, "--labels", "pos=good", "--out", tmp_path / "bag") == 0
    shown = capsys.readouterr().out
    told = " ".join(shown.split())
    assert "train.tsv: 160 texts, training; label first (the first column has 2 short values that repeat" in told
    assert "good (in the files: pos)" in shown
    texts = [line.split("\t")[1] for line in (files / "train.tsv").read_text().splitlines() if line.startswith("pos")]
    assert "good\n" + "".join(f"{text}\n" for text in texts[:3]) in shown
    assert "the most common label gives 50.0 %" in shown


def test_the_baseline(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("classify", files / "train.tsv", files / "dev.tsv", "--test", files / "test.tsv")
    assert call(*arguments, "--model", "bag-of-words", "--out", tmp_path / "bag", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "bag" / "result.json").read_text())
    assert min(result["dev"]["accuracy"], result["test"]["accuracy"]) > 0.9
    assert (result["epochs"], result["best_epoch"]) == ([], 0)
    accuracies = cross_validate(read_tables(files / "train.tsv", files / "dev.tsv"), 0)
    facts = result["facts"]
    assert facts["cross_validated"] == accuracies[facts["strength"]] == max(accuracies.values())
    bag = Bag.load(tmp_path / "bag" / "model")
    rows = [line.split("\t") for line in (tmp_path / "bag" / "predictions.tsv").read_text().splitlines()[1:]]
    chances = bag.probabilities([row[4] for row in rows])
    assert [bag.labels[one] for one in chances.argmax(axis=1)] == [row[2] for row in rows]
    assert chances.max(axis=1).tolist() == pytest.approx([float(row[3]) for row in rows], abs=1e-5)


def test_explain_batch_trains_nothing(
    files: Path, roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("classify", files / "train.tsv", files / "dev.tsv", "--model", roberta, "--explain-batch")
    assert call(*arguments) == 0
    assert "input_ids" in capsys.readouterr().out
    assert call(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "batch"
    assert not list(tmp_path.iterdir())


def test_mistakes(files: Path, roberta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = (files / "train.tsv", files / "dev.tsv")
    (tmp_path / "there").mkdir()
    wrong = (
        ((files / "train.tsv", "--model", roberta), "classify takes a training and a validation table"),
        ((*both, "--model", roberta, "--labels", "x=y"), "--labels: unknown label 'x'"),
        ((*both, "--model", roberta, "--epochs", "0"), "epochs must be at least 1"),
        ((*both, "--model", roberta, "--optimizer", "adam"), "optimizer must be one of"),
        ((*both, "--model", tmp_path / "absent"), "is not a folder: name the folder of an encoder"),
        ((*both, "--model", "no-such-model-at-all"), "HF_HUB_OFFLINE keeps the hub closed"),
        ((*both, "--model", roberta, "--out", tmp_path / "there"), "there exists already"),
        ((files / "trian.tsv", files / "dev.tsv", "--model", roberta), "did you mean"),
    )
    for arguments, message in wrong:
        out = () if "--out" in arguments else ("--out", tmp_path / "new")
        assert call("classify", *arguments, *out) == 2, message
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_stopped_it_leaves_nothing(
    files: Path, roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from attnlab.hf import fine_tuning

    def stop(*_: object, **__: object) -> None:
        assert list(tmp_path.glob(".out.*")), "it works in a folder of its own"
        raise KeyboardInterrupt

    monkeypatch.setattr(fine_tuning.RecordingTrainer, "evaluate", stop)
    tables = (files / "train.tsv", files / "dev.tsv")
    assert call("classify", *tables, "--model", roberta, "--out", tmp_path / "out", *QUICK) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_start_is_light() -> None:
    code = (
        "import sys, attnlab.cli; from attnlab.hf import FineTuning, locate;"
        "heavy = {'torch', 'numpy', 'transformers', 'sklearn', 'jinja2'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_baseline_takes_a_seed_and_nothing_of_an_encoder(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("classify", files / "train.tsv", files / "dev.tsv", "--model", "bag-of-words")
    assert call(*asked, "--epochs", 3, "--out", tmp_path / "out") == 2
    assert "leave --epochs out" in capsys.readouterr().err
    assert call(*asked, "--seed", 3, "--out", tmp_path / "out") == 0
    assert (tmp_path / "out" / "result.json").is_file()


def test_which_model_must_be_said(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("classify", files / "train.tsv", files / "dev.tsv") == 2
    assert "--model is required: bag-of-words, minilm" in capsys.readouterr().err
