from __future__ import annotations

import io
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from attnlab import studies
from attnlab.config import merge
from attnlab.corpora import Question, export, load_corpus, load_questions, sources
from attnlab.errors import CheckpointError, DataError, Interrupted, OutputExists, UserError
from attnlab.lm import stages, train
from attnlab.lm.tokenizers import Tokenizer
from attnlab.reader import Reader
from attnlab.report.document import Answers, Heads
from attnlab.report.words import short_answer
from attnlab.store.folders import write_manifest
from attnlab.store.records import decode, encode, read
from attnlab.store.runs import Run
from attnlab.studies import recall
from attnlab.studies.recall import UNCALIBRATED, Recall, RecallResult, split_facts
from attnlab.studies.study import StoredStudy, find
from attnlab.trust.training_data import TrainingData
from verbs import call

GIVEN: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 300},
    "train": {"epochs": 2.0, "tokens_per_batch": 1024, "checkpoint_every": 2},
}


def plan_of(world: str, **fields: Any) -> Recall:
    return Recall(corpus=world, facts=f"{world}:train", exam=f"{world}:test", quick=True, **fields)


NAMES = [
    "pretrained + fine-tuned",
    "pretrained with the questions mixed in, not fine-tuned",
    "no pretraining",
    "majority answer",
    "crude open book",
]
PLAN = plan_of("people:60", preset="quick", given=GIVEN)


@pytest.fixture
def console() -> Any:
    with Path("/dev/null").open("w") as nowhere:
        yield Console(file=nowhere, width=80)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RecallResult]:
    """The folder and the result of the study."""
    folder = tmp_path_factory.mktemp("recall") / "study"
    return folder, PLAN.begin(folder, Console(quiet=True)).result


Whole = tuple[Path, RecallResult]


def examined(whole: Whole, folder: Path, exam: Path | str) -> tuple[RecallResult, str]:
    """The result of the same models with another exam, and what is shown."""
    shutil.copytree(whole[0], folder)
    for name in ("result.json", "predictions.txt", "manifest.json"):
        (folder / name).unlink()
    console = Console(file=io.StringIO(), width=100)
    plan = replace(PLAN, exam=str(exam))
    stored = StoredStudy("recall", msgspec.Raw(encode(plan)), plan.fingerprints())
    (folder / "study.json").write_bytes(encode(stored))
    write_manifest(folder, "study")
    return studies.resume(folder, console).result, console.file.getvalue()  # type: ignore[attr-defined]


def test_the_whole_story(whole: Whole, console: Console) -> None:
    folder, result = whole
    exam = load_questions("people:60:test")
    assert read(RecallResult, folder / "result.json") == result
    assert len((folder / "predictions.txt").read_text().split("\n")) == len(exam) + 1
    assert [row.name for row in result.rows] == NAMES
    for row in result.rows:
        assert row.questions == len(exam)
        assert 0 <= row.low <= row.accuracy <= row.high <= 1  # type: ignore[operator]
    majority = next(row for row in result.rows if row.name == "majority answer")
    assert majority.commonest_share == 1
    blocks = list(PLAN.document(result).blocks())
    (attention,) = (block for block in blocks if isinstance(block, Heads))
    assert len(attention.heads) == 2
    assert len(attention.heads[0].pattern) == len(attention.tokens)
    shown = sum(len(block.items) for block in blocks if isinstance(block, Answers))
    assert shown >= min(len(exam), recall._SHOWN)
    page = (folder / "report.html").read_text()
    assert "pretrained + fine-tuned" in page
    assert "quick run" in page.lower()
    with pytest.raises(OutputExists):
        PLAN.begin(folder, console)
    before = (folder / "report.html").read_bytes()
    assert studies.resume(folder, console).result == result
    assert (folder / "report.html").read_bytes() == before
    manifest = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"study has no manifest\.json"):
        studies.resume(folder, console)
    (folder / "manifest.json").write_bytes(manifest)
    assert result.seconds >= sum(run.seconds for run in result.runs.values())
    assert Run.open(folder).path == folder / "finetune"


def test_judging_needs_the_folder_only(
    whole: Whole, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: Any) -> None:
        raise AssertionError("judging must not train")

    monkeypatch.setattr(train.Trainer, "fit", fit)
    folder = shutil.copytree(whole[0], tmp_path / "study")
    again = PLAN.complete_result(PLAN.judge(folder, console), 0.0)
    assert decode(RecallResult, encode(replace(again, seconds=0)), folder) == replace(whole[1], seconds=0)
    assert PLAN.document(again).title == whole[1].title


def test_a_study_that_was_killed_goes_on_to_the_same_result(
    whole: Whole, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kill(Exception):
        pass

    real = train.Trainer.checkpoint

    def kill_after_saving(trainer: train.Trainer) -> None:
        real(trainer)
        if trainer.run.path.name == "pretrain":
            raise Kill

    with monkeypatch.context() as patched:
        patched.setattr(train.Trainer, "checkpoint", kill_after_saving)
        with pytest.raises(Kill):
            PLAN.begin(tmp_path / "killed", console)
    assert Run.open(tmp_path / "killed/no-pretraining").complete
    assert not Run.open(tmp_path / "killed/pretrain").complete
    again = studies.resume(tmp_path / "killed", console).result
    for left, right in zip(whole[1].rows, again.rows, strict=True):
        assert replace(left, seconds=0) == replace(right, seconds=0)
    assert whole[1].runs["pretrain"].curve == again.runs["pretrain"].curve


def test_an_exam_without_answers_gives_predictions_only(whole: Whole, tmp_path: Path) -> None:
    blind = tmp_path / "blind.tsv"
    blind.write_text("Where was Hank Aaron born?\n")
    result, shown = examined(whole, tmp_path / "study", blind)
    assert result.rows[0].accuracy is None
    assert (tmp_path / "study/predictions.txt").read_text().count("\n") == 1
    assert result.answers == []
    assert shown.endswith(f"ask it: attnlab ask {tmp_path / 'study'}\n")  # it has not read about Hank Aaron


def test_a_stop_during_the_examination_says_how_to_go_on(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(recall, "examine_all", interrupt)
        with pytest.raises(Interrupted, match=f"attnlab resume {tmp_path / 'study'}"):
            PLAN.begin(tmp_path / "study", console)
    assert studies.resume(tmp_path / "study", console).result.rows


def test_questions_asked_in_training_are_not_called_new(
    whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, shown = examined(whole, tmp_path / "study", "people:60:train")
    assert result.data.asked_before == 36
    assert "36 of them asked in training" in shown
    _, *hint = shlex.split(shown.rpartition("ask it: ")[2].splitlines()[0])
    assert call(*hint) == 0
    asked = {item.question: item.answer for item in load_questions("people:60:train")}
    assert capsys.readouterr().out.startswith(f"{asked[hint[2]]} (")


def test_questions_about_strangers_are_counted_and_long_answers_cut(whole: Whole, tmp_path: Path) -> None:
    strange = tmp_path / "strange.tsv"
    strange.write_text("Where was Zaphod Beeblebrox born?\tBetelgeuse\n")
    assert "note: 1 of 37 questions name no person" in examined(whole, tmp_path / "study", strange)[1]
    assert short_answer("x" * 31) == "x" * 29 + "…"
    assert short_answer("x" * 30) == "x" * 30


def test_mistakes_are_found_before_a_folder_is_made(tmp_path: Path, console: Console) -> None:
    with pytest.raises(DataError, match="has no answer"):
        blind = tmp_path / "blind.tsv"
        blind.write_text("Where was Hank Aaron born?\n")
        replace(PLAN, facts=str(blind)).begin(tmp_path / "study", console)
    with pytest.raises(DataError):
        replace(PLAN, facts="absent.tsv").begin(tmp_path / "study", console)
    with pytest.raises(UserError, match="did you mean recall"):
        find("recal")
    assert not (tmp_path / "study").exists()


def test_stages_get_their_own_settings() -> None:
    plan = Recall(preset="small", given={"model": {"n_layer": 1}, "train": {"epochs": 7.0}, "seed": 3})
    assert plan.settings("pretrain").train.epochs == 7
    assert plan.settings("finetune").train.epochs != 7
    assert {plan.settings(stage).model.n_layer for stage in ("pretrain", "finetune", "scratch")} == {1}
    assert plan.settings("scratch").seed == 3
    assert stages.absolute("people:train") == "people:train"
    assert Path(stages.absolute("x.tsv")).is_absolute()


@pytest.mark.slow
def test_the_quick_world_is_remembered(tmp_path: Path, console: Console) -> None:
    """Pretraining is worth it: far above the same model without, which is near the majority answer."""
    plan = plan_of("people:300", preset="quick")
    rows = {row.name: row for row in plan.begin(tmp_path / "study", console).result.rows}
    main, control, majority = (rows[name] for name in (recall._MAIN, "no pretraining", "majority answer"))
    assert recall.order(main, control) == 1
    assert main.accuracy > 0.5
    assert abs(control.accuracy - majority.accuracy) < 0.1


def test_questions_kept_back_are_not_trained_on_and_calibrate(tmp_path: Path, console: Console) -> None:
    plan = replace(PLAN, held_out=10)
    folder = tmp_path / "study"
    result = plan.begin(folder, console).result
    train, kept = (load_questions(folder / "questions" / name) for name in ("train.tsv", "held-out.tsv"))
    assert len(kept) == 10
    assert {*train, *kept} == {*load_questions("people:60:train")}
    for name in ("pretrain", "finetune", "no-pretraining"):
        assert Run.open(folder / name).record.facts.source == str(folder / "questions" / "train.tsv")
    assert result.calibration.questions == 10
    assert (result.data.training_questions, result.held_out) == (len(train), 10)
    page = (folder / "report.md").read_text()
    assert f"This cost 10 questions that the model was not trained on, beside the {len(train)} that it was." in page
    assert UNCALIBRATED not in page
    assert (folder / "finetune" / "calibration.json").is_file()
    moved = folder.rename(tmp_path / "moved")  # its own questions move along
    assert TrainingData(Run.open(moved / "finetune")).facts == train


def reads_first_and_says_so(folder: Path) -> None:
    """Check what the assisted track has written."""
    result = read(RecallResult, folder / "result.json")
    assert result.title.endswith("when a reader helps it to learn?")
    asked, taught = (load_questions(folder / "questions" / name) for name in ("train.tsv", "taught.tsv"))
    assert taught[: len(asked)] == asked
    names = {item.question for item in load_questions("people:60:test")}
    assert len(taught) > len(asked) + len(names) / 2
    sources = {name: Run.open(folder / name).record.facts.source for name in result.runs}
    assert sources["pretrain"].endswith("taught.tsv")
    assert sources["no-pretraining"].endswith("train.tsv")  # else it would be told what the corpus says
    assert [row.name for row in result.rows] == [*NAMES, "own reader, open book"]
    known = {item.answer for item in taught}
    assert set((folder / "predictions.txt").read_text().split("\n")[:-1]) <= known
    assert result.calibration is None
    assert "assisted" in (folder / "report.html").read_text()


def test_unknown_tracks_and_too_many_kept_back_are_named(tmp_path: Path, console: Console) -> None:
    with pytest.raises(UserError, match="did you mean assisted"):
        replace(PLAN, track="asisted").begin(tmp_path / "study", console)
    with pytest.raises(UserError, match="keep back 0 to 18 of the 36"):
        replace(PLAN, held_out=30).begin(tmp_path / "study", console)
    with pytest.raises(UserError, match="for the pure track"):
        replace(PLAN, track="assisted", held_out=3).begin(tmp_path / "study", console)
    assert not (tmp_path / "study").exists()


def test_nobody_is_kept_back_who_is_asked_about_again() -> None:
    corpus = load_corpus("people:60")
    facts = load_questions("people:60:train")
    again = tuple(Question(item.question.replace("?", " again?"), item.answer) for item in facts[:20])
    for seed in range(5):
        train, kept = split_facts(corpus, (*facts, *again), 10, seed)
        assert len(kept) == 10
        assert len(train) + len(kept) == len(facts) + len(again)
        assert not {*facts[:20], *again} & {*kept}


def test_too_few_to_calibrate_with_cost_a_note_only(tmp_path: Path) -> None:
    with (tmp_path / "screen").open("w") as screen:
        result = replace(PLAN, held_out=2).begin(tmp_path / "study", Console(file=screen, width=200)).result
    assert result.calibration is None
    assert "not calibrated" in (tmp_path / "screen").read_text()
    assert (tmp_path / "study" / "predictions.txt").is_file()


def test_a_study_is_resumed_only_as_it_was_begun(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    exam = tmp_path / "exam.tsv"
    exam.write_text("Where was Hank Aaron born?\tMobile\n")

    class Kill(Exception):
        pass

    def kill(*_: Any) -> None:
        raise Kill

    with monkeypatch.context() as patched:
        patched.setattr(train.Trainer, "fit", kill)
        with pytest.raises(Kill):
            replace(PLAN, exam=str(exam)).begin(tmp_path / "study", console)
    stored = tmp_path / "study/study.json"
    text = stored.read_text()
    stored.write_text(text.replace("people:60:train", "people:60:calibration"))
    with pytest.raises(CheckpointError, match=r"study\.json is damaged or was edited"):
        studies.resume(tmp_path / "study", console)
    stored.write_text(text)
    exam.write_text("Where was Hank Aaron born?\tBoston\n")
    with pytest.raises(UserError, match="exam changed since this study began"):
        studies.resume(tmp_path / "study", console)


SMALL = {"model": {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 64}, "train": {"epochs": 0.05}}


def small_plan(preset: str) -> Recall:
    given = merge(SMALL, {"model": {"bottleneck": 32}}) if preset == "mingpt-perceiver" else SMALL
    return replace(PLAN, corpus="people:20", facts="people:20:train", exam="people:20:test", preset=preset, given=given)


@pytest.mark.parametrize("preset", ["small", "mingpt-perceiver"])
def test_presets_run_through_the_study(preset: str, tmp_path: Path, console: Console) -> None:
    result = small_plan(preset).begin(tmp_path / "study", console).result
    assert (tmp_path / "study" / "report.html").is_file()
    assert (result.attention == []) == (preset == "mingpt-perceiver")  # its layers weigh latents, not tokens


def test_a_preset_of_words_is_refused_before_training(tmp_path: Path, console: Console) -> None:
    with pytest.raises(UserError, match=r"^[^\n]+$"):
        small_plan("nano-words").begin(tmp_path / "study", console)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("track", ["pure", "assisted"])
def test_corpus_and_questions_are_read_once_and_each_tokenizer_learned_once(
    track: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    export("people:60", tmp_path / "data")
    names = {"corpus": "corpus.txt", "facts": "train.tsv", "exam": "test.tsv"}
    files = {use: tmp_path / "data" / name for use, name in names.items()}
    counted: Counter[str] = Counter()

    def count(owner: Any, name: str, key: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def counting(*given: Any, **more: Any) -> Any:
            counted[key(*given)] += 1
            return real(*given, **more)

        monkeypatch.setattr(owner, name, counting)

    for name in ("numbered_lines", "read_questions"):
        count(sources, name, lambda path: Path(path).name)
    count(Tokenizer, "train", lambda *_: "tokenizer")
    count(Reader, "train", lambda *_: "reader")
    options = [f"--{table}.{name}={value}" for table in GIVEN for name, value in GIVEN[table].items()]
    named = [f"--{use}={path}" for use, path in files.items()]
    out = tmp_path / "study"
    assert call("run", "recall", *named, "--track", track, "--preset", "quick", "--out", out, *options) == 0
    assert not (out / "questions" / "held-out.tsv").exists()  # nothing is kept back unless --held-out says so
    assert not (out / "finetune" / "calibration.json").exists()
    told = " ".join(capsys.readouterr().out.split())
    assert (UNCALIBRATED in told) == (track == "pure")  # an assisted model cannot be calibrated
    assert (UNCALIBRATED in (out / "report.md").read_text()) == (track == "pure")
    # In the assisted track, the model without pretraining must not see what the reader wrote.
    expected = {"tokenizer": 1} if track == "pure" else {"tokenizer": 2, "reader": 1}
    # train.tsv: the user's file, and in the assisted track its copy beside what the reader wrote.
    stored = {"train.tsv": 1} if track == "pure" else {"train.tsv": 2, "taught.tsv": 1}
    assert counted == {"corpus.txt": 1, "test.tsv": 1, **stored, **expected}
    if track == "assisted":
        reads_first_and_says_so(out)
