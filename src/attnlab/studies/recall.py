"""The main job: what does a small model remember of what it read?

Pretrain on documents, fine-tune on questions, examine on people it was never asked about; beside it the same model without
pretraining, the majority answer, and a reader with the book open.

There are two tracks, reported apart. In the pure one the model has the documents and the training questions, and answers by
itself. In the assisted one a reader of our own, which learns from the same training questions, first writes a question for
every other document, and the answer is chosen among all answers that occur in training.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, get_args

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnlab import corpora, stages
from attnlab.answers import AnswerTrie, answer_distribution
from attnlab.config import RunConfig, Stage, lasting_names, resolve
from attnlab.corpora import Corpus, Question
from attnlab.errors import Interrupted, UserError, unknown
from attnlab.evaluate import Examination, cue, examine, majority
from attnlab.model import LanguageModel, load_model
from attnlab.progress import display
from attnlab.reader import Reader
from attnlab.report import write_report
from attnlab.runs import Run, environment, read_json, refuse_existing, to_json, write_bytes, write_folder, write_json
from attnlab.studies.lessons import Lessons, prepare
from attnlab.taps import capture
from attnlab.tokenizers import Tokenizer
from attnlab.trust import calibrate

SHOWN = 12  # right and wrong answers in the report
TRACKS = {
    "pure": "What does a small model remember?",
    "assisted": "What does a small model remember when a reader helps it to learn?",
}
FLOOR = 1e-4  # beginnings of answers less likely than this are not read on


@dataclass(frozen=True)
class Plan:
    """What the study is about; everything that it needs to be done again."""

    corpus: str = "people"
    facts: str = "people:train"
    exam: str = "people:test"
    preset: str = "small"
    file: str | None = None
    given: dict[str, Any] = field(default_factory=dict)
    command: str = "attnlab run"
    quick: bool = False
    track: str = "pure"
    held_out: int = 0  # training questions kept back, to calibrate with
    calibration: str | None = None  # or questions from elsewhere for that

    def settings(self, stage: Stage) -> RunConfig:
        """The settings of a stage; what is given by hand for training and task is meant for pretraining."""
        given = (
            self.given if stage == "pretrain" else {k: v for k, v in self.given.items() if k not in ("train", "task")}
        )
        return resolve(self.preset, stage, Path(self.file) if self.file else None, given)


def begin(plan: Plan, folder: Path, console: Console) -> dict[str, Any]:
    """A new study in a new folder; mistakes in data and settings are found before the folder is made."""
    refuse_existing(folder)
    model = {**plan.given.get("model", {})}
    if "mechanism" in model:
        model["mechanism"] = lasting_names(model["mechanism"])
    lasting = replace(
        plan,
        corpus=stages.lasting(plan.corpus),
        facts=stages.lasting(plan.facts),
        exam=stages.lasting(plan.exam),
        calibration=stages.lasting(plan.calibration) if plan.calibration else None,
        file=str(Path(plan.file).resolve()) if plan.file else None,
        given={**plan.given, "model": model},
    )
    check(lasting)
    write_folder(folder, {"study.json": to_json({"study": "recall", "plan": asdict(lasting)})})
    return run(folder, asdict(lasting), console)


def check(plan: Plan) -> None:
    """Find mistakes before anything is trained: settings of every stage, data, questions that are too long."""
    if plan.track not in TRACKS:
        raise UserError(unknown("track", plan.track, TRACKS))
    sources = stages.Sources.read(plan.corpus, plan.facts)
    if not 0 <= plan.held_out <= len(sources.facts) // 2:
        raise UserError(
            f"--held-out {plan.held_out}: keep back 0 to {len(sources.facts) // 2:,} of the {len(sources.facts):,}"
            " training questions"
        )
    if plan.track == "assisted":
        if plan.held_out:
            raise UserError(
                "--held-out is for the pure track: what a reader writes about those kept back is trained on"
            )
        Reader.train(corpora.load_corpus(plan.corpus), sources.facts)  # refuses what it cannot learn from
    exam, config = corpora.load_questions(plan.exam), plan.settings("pretrain")
    tokenizer = stages.learn_tokenizer(config, sources)
    for stage in get_args(Stage):
        stages.rehearse(plan.settings(stage), sources, tokenizer)
    for number, item in enumerate(exam, start=1):
        cue(tokenizer, item.question, config.model.block_size, number)


def run(folder: Path, stored: dict[str, Any], console: Console) -> dict[str, Any]:
    """Do what is not done yet, and show the result; stopped at any point, say how to go on."""
    try:
        finished = folder / "result.json"
        result = read_json(finished) if finished.is_file() else conclude(folder, Plan(**stored), console)
    except (Interrupted, KeyboardInterrupt):
        command = f"attnlab resume {shlex.quote(str(folder))}"
        raise Interrupted(f"stopped; all is saved. Go on with: {command}") from None
    show_table(result, console)
    asked = shlex.quote(result["answers"]["example"])
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    console.print(f"ask it: attnlab ask {shlex.quote(str(folder))} {asked}", soft_wrap=True)
    return result


def conclude(folder: Path, plan: Plan, console: Console) -> dict[str, Any]:
    """Train what is not trained, examine everything, and write the result and the report."""
    corpus = corpora.load_corpus(plan.corpus)
    lessons = learn_from(plan, corpus, folder)
    facts, exam = corpora.load_questions(lessons.asked), corpora.load_questions(plan.exam)
    taught = len(corpora.load_questions(lessons.taught)) - len(facts)
    console.print(
        f"{len(corpus.lines):,} documents, {len(facts):,} training questions,"
        + (f" {taught:,} more written by a reader," if taught else "")
        + (f" {plan.held_out:,} kept back to calibrate with," if plan.held_out else "")
        + f" {len(exam):,} to be examined"
    )
    strangers = sum(not corpora.documents_about(corpus, item.question) for item in (*facts, *exam))
    if strangers:
        console.print(
            f"note: {strangers:,} of {len(facts) + len(exam):,} questions name nobody that a document is about"
        )
    runs = train_all(plan, lessons, folder, console)
    began = time.perf_counter()
    examinations = examine_all(runs, corpus, facts, exam)
    if plan.track == "assisted":
        examinations |= examine_helped(runs["finetune"], lessons, corpus, exam, plan.settings("pretrain").seed)
    model, tokenizer = load_model(runs["finetune"].model)
    result = {
        "study": "recall",
        "track": plan.track,
        "title": TRACKS[plan.track],
        "command": plan.command,
        "finished": date.today().isoformat(),
        "world": describe_world(plan, corpus, facts, exam) | {"track": plan.track, "written_questions": taught},
        "rows": [
            describe_row(row, examinations[row.name], runs) for row in (*ROWS, HELPED) if row.name in examinations
        ],
        "runs": {name: describe_run(one) for name, one in runs.items()},
        "answers": {**pick_answers(examinations[MAIN], corpus), "example": exam[0].question},
        "attention": look(model, tokenizer, examinations[MAIN]),
        "calibration": calibrated(runs["finetune"], lessons, plan, console),
        "environment": environment(),
    }
    training = sum(one.result["seconds"] for one in runs.values())
    result["seconds"] = round(training + time.perf_counter() - began, 1)
    write_bytes(folder / "predictions.txt", lines_of(examinations[MAIN]))
    write_report(result, folder)
    write_json(folder / "result.json", result)
    return result


def learn_from(plan: Plan, corpus: Corpus, folder: Path) -> Lessons:
    """The questions of the study by their use."""
    return prepare(
        corpus,
        plan.facts,
        folder,
        held_out=plan.held_out,
        calibration=plan.calibration,
        assisted=plan.track == "assisted",
        seed=plan.settings("pretrain").seed,
    )


def calibrated(run: Run, lessons: Lessons, plan: Plan, console: Console) -> dict[str, Any] | None:
    """How far the confidence of the final model can be trusted, kept in its run for `attnlab ask`.

    Not in the assisted track: what the reader wrote about those kept back was trained on. Where they are too few, the study
    is none the worse.
    """
    if lessons.held_out is None or plan.track == "assisted":
        return None
    try:
        return calibrate(run, corpora.load_questions(lessons.held_out)).summary()
    except UserError as error:
        console.print(f"note: not calibrated: {error}")
        return None


def train_all(plan: Plan, lessons: Lessons, folder: Path, console: Console) -> dict[str, Run]:
    """The three models, each begun, gone on with, or left as it is when complete."""

    def stage(name: str, kind: Stage, base: Run | None = None) -> Run:
        with display(name, console) as show:
            path = folder / name
            if path.exists():
                return stages.resume(Run.open(path), show)
            if kind == "pretrain":
                facts = lessons.taught if stages.reads_questions(plan.settings(kind)) else None
                return stages.pretrain(plan.settings(kind), plan.corpus, facts, path, show)
            facts = lessons.taught if base else lessons.asked
            return stages.finetune(plan.settings(kind), base, facts, plan.corpus, path, show)

    scratch = stage("no-pretraining", "scratch")
    pretrained = stage("pretrain", "pretrain")
    return {
        "pretrain": pretrained,
        "finetune": stage("finetune", "finetune", pretrained),
        "no-pretraining": scratch,
    }


@dataclass(frozen=True)
class Row:
    """One contestant: its name, the run behind it if any, and how the report speaks of it."""

    name: str
    run: str | None
    note: str
    subject: str
    role: str = ""


MAIN, READER = "pretrained + fine-tuned", "own reader, open book"
ROWS = (
    Row(MAIN, "finetune", "read every document, then answered the training questions", "the pretrained model"),
    Row(
        "pretrained only",
        "pretrain",
        "read every document{mixed}",
        "the pretrained model, not fine-tuned,",
    ),
    Row(
        "no pretraining",
        "no-pretraining",
        "the same model on the training questions alone",
        "the same model without pretraining",
        "control",
    ),
    Row("majority answer", None, "always the commonest training answer", "always saying {commonest}", "baseline"),
    Row("open book", None, "looks the line up and takes the first known place in it", "a reader with the book open"),
)
HELPED = Row(
    READER, None, "looks the line up and reads it as it learned to from the training questions", "its own reader"
)


def examine_all(
    runs: dict[str, Run], corpus: Corpus, facts: tuple[Question, ...], exam: tuple[Question, ...]
) -> dict[str, Examination]:
    """Every model and every baseline on the same questions, by the name of its row."""
    found = {row.name: examine(*load_model(runs[row.run].model), exam) for row in ROWS if row.run}
    places = {item.answer for item in facts if item.answer is not None}
    found["majority answer"] = majority(facts, exam)
    found["open book"] = Examination(exam, tuple(corpora.open_book(corpus, places, q.question) or "" for q in exam))
    return found


def examine_helped(
    final: Run, lessons: Lessons, corpus: Corpus, exam: tuple[Question, ...], seed: int
) -> dict[str, Examination]:
    """In the assisted track: the final model choosing among the answers of its training, and the reader by itself."""
    reader = Reader.train(corpus, corpora.load_questions(lessons.asked), seed)
    known = [bool(corpora.documents_about(corpus, item.question)) for item in exam]
    read = tuple(reader.read(q.question).text if seen else "" for q, seen in zip(exam, known, strict=True))
    return {
        MAIN: choose(*load_model(final.model), corpora.load_questions(lessons.taught), exam),
        READER: Examination(exam, read),
    }


def choose(
    model: LanguageModel, tokenizer: Tokenizer, taught: tuple[Question, ...], exam: tuple[Question, ...]
) -> Examination:
    """The likeliest of all answers that occur in training, scored whole."""
    trie = AnswerTrie(tokenizer, [item.answer for item in taught if item.answer])
    found = answer_distribution(model, tokenizer, [item.question for item in exam], trie, floor=FLOOR)
    return Examination(exam, tuple(answer for answer, _ in found.best()))


def describe_row(row: Row, examination: Examination, runs: dict[str, Run]) -> dict[str, Any]:
    """One line of the table."""
    summary = examination.summary()
    seconds = runs[row.run].result["seconds"] if row.run else None
    if row.run == "finetune":
        seconds += runs["pretrain"].result["seconds"]
    mixed = ", with the training questions among them" if runs["pretrain"].config["data"]["facts"] else ""
    words = {
        "note": row.note.replace("{mixed}", mixed),
        "subject": row.subject.replace("{commonest}", short(summary["commonest_prediction"])),
        "kind": "model" if row.run else "baseline",
    }
    return {**asdict(row), **words, "seconds": seconds, **summary}


def describe_world(
    plan: Plan, corpus: Corpus, facts: tuple[Question, ...], exam: tuple[Question, ...]
) -> dict[str, Any]:
    """The data in numbers."""
    return {
        "corpus": Path(plan.corpus).name,
        "documents": len(corpus.lines),
        "characters": sum(len(line) + 1 for line in corpus.lines),
        "training_questions": len(facts),
        "exam": Path(plan.exam).name,
        "exam_questions": len(exam),
        "asked_before": len({item.question for item in facts} & {item.question for item in exam}),
        "quick": plan.quick,
    }


def describe_run(one: Run) -> dict[str, Any]:
    """A run as the report shows it."""
    config = one.config
    return {
        "folder": one.path.name,
        "stage": config["stage"],
        "settings": config["config"],
        "result": one.result,
        "metrics": one.metrics(),
    }


def pick_answers(examination: Examination, corpus: Corpus) -> dict[str, list[dict[str, Any]]]:
    """The first right and wrong answers, each with the line that it should have come from."""
    picked: dict[str, list[dict[str, Any]]] = {"right": [], "wrong": []}
    if not examination.answered:
        return picked
    for item, prediction, right in zip(examination.questions, examination.predictions, examination.right, strict=True):
        side = picked["right" if right else "wrong"]
        if len(side) < SHOWN:
            documents = corpora.documents_about(corpus, item.question)
            source = corpus.lines[documents[0]] if documents else None
            side.append({"question": item.question, "answer": item.answer, "prediction": prediction, "source": source})
    return picked


@torch.inference_mode()
def look(model: LanguageModel, tokenizer: Tokenizer, examination: Examination) -> dict[str, Any] | None:
    """The attention patterns of one answer: of the first right one, or the first."""
    index = examination.right.index(True) if examination.answered and any(examination.right) else 0
    question, prediction = examination.questions[index].question, examination.predictions[index]
    ids = [*cue(tokenizer, question, model.config.block_size), *tokenizer.encode(prediction)]
    ids = ids[: model.config.block_size]
    try:
        with capture(model, "hook_pattern") as seen:
            model(torch.tensor([ids]))
    except RuntimeError:
        return None  # a mechanism without a pattern
    patterns = [seen[name][0] for name in sorted(seen, key=lambda name: int(name.split(".")[1]))]
    return {
        "question": question,
        "answer": prediction,
        "tokens": [tokenizer.piece(token) for token in ids],
        "patterns": [[[[round(w, 3) for w in row] for row in head] for head in one.tolist()] for one in patterns],
    }


def lines_of(examination: Examination) -> bytes:
    """One prediction a line."""
    return "".join(prediction + "\n" for prediction in examination.predictions).encode()


def short(answer: str) -> str:
    """An answer in a table; a model that has learned nothing may write on and on."""
    return answer if len(answer) <= 30 else answer[:29] + "…"


def show_table(result: dict[str, Any], console: Console) -> None:
    """The result in the terminal."""
    asked = result["world"]["asked_before"]
    novelty = f"{asked:,} of them asked in training" if asked else "never asked before"
    title = f"{result['title']}\n{result['world']['exam_questions']:,} questions, {novelty}; intervals of 95 %"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for heading in ("", "accuracy", "interval", "commonest answer", "training"):
        table.add_column(
            heading, justify="left" if heading in ("", "commonest answer") else "right", no_wrap=not heading
        )
    for row in result["rows"]:
        scores = ("-", "-")
        if "accuracy" in row:
            scores = (f"{100 * row['accuracy']:.1f} %", f"{100 * row['low']:.0f} to {100 * row['high']:.0f} %")
        commonest = Text(f"{short(row['commonest_prediction']) or '(none)'}, {100 * row['commonest_share']:.0f} %")
        seconds = f"{row['seconds'] / 60:.1f} min" if row["seconds"] is not None else "-"
        table.add_row(row["name"], *scores, commonest, seconds, style="bold" if row["name"] == MAIN else "")
    console.print(table)
