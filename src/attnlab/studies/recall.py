"""The main job: what does a small model remember of what it read?

Pretrain on documents, fine-tune on questions, examine on people it was never asked about; beside it the same model without
pretraining, the majority answer, and a reader with the book open.

There are two tracks, reported apart. In the pure one the model has the documents and the training questions, and answers by
itself. In the assisted one a reader of our own, which learns from the same training questions, first writes a question for
every other document, and the answer is chosen among all answers that occur in training.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console

from attnlab import corpora, stages
from attnlab.comparing import carry_out
from attnlab.comparing.checks import refuse_changes
from attnlab.config import Stage
from attnlab.corpora import Corpus, Question
from attnlab.errors import UserError, unknown
from attnlab.evaluate import Examination, cue
from attnlab.look import is_over_tokens
from attnlab.model import LanguageModel, load_model
from attnlab.reader import Reader
from attnlab.report import write_report
from attnlab.runs import Run, add_files, environment, read_json, refuse_existing, to_json, write_folder
from attnlab.studies.lessons import Lessons, prepare
from attnlab.studies.recall_rows import HELPED, MAIN, ROWS, describe_row, examine_all, examine_helped, show_table
from attnlab.studies.training import Training, describe_run, fingerprints, invite, lasting, train
from attnlab.taps import capture
from attnlab.tokenizers import Tokenizer
from attnlab.trust import calibrate

SOURCES = ("corpus", "facts", "exam", "calibration")  # fields of the plan that name data
SHOWN = 12  # right and wrong answers in the report
TRACKS = {
    "pure": "What does a small model remember?",
    "assisted": "What does a small model remember when a reader helps it to learn?",
}


@dataclass(frozen=True)
class Plan(Training):
    """What the study is about; everything that it needs to be done again."""

    corpus: str = "people"
    facts: str = "people:train"
    exam: str = "people:test"
    command: str = "attnlab run"
    quick: bool = False
    track: str = "pure"
    held_out: int = 0  # training questions kept back, to calibrate with
    calibration: str | None = None  # or questions from elsewhere for that


def begin(plan: Plan, folder: Path, console: Console) -> dict[str, Any]:
    """A new study in a new folder; mistakes in data and settings are found before the folder is made."""
    refuse_existing(folder)
    plan = lasting(plan, *SOURCES)
    check(plan)
    study = {"study": "recall", "plan": asdict(plan), "fingerprints": fingerprints(plan, *SOURCES)}
    write_folder(folder, "study", {"study.json": to_json(study)})
    return run(folder, asdict(plan), console)


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
    """Go on with the study."""
    result = carry_out(folder, lambda: conclude(folder, Plan(**stored), console), show_table, console)
    invite(folder, result["answers"]["example"], console)
    return result


def conclude(folder: Path, plan: Plan, console: Console) -> dict[str, Any]:
    """Train what is not trained, examine everything, and write the result and the report."""
    refuse_changes(read_json(folder / "study.json").get("fingerprints", {}), fingerprints(plan, *SOURCES))
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
    add_files(folder, {"predictions.txt": lines_of(examinations[MAIN])})
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
    write_report(result, folder)
    add_files(folder, {"result.json": to_json(result)})
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
    scratch = train(plan, folder / "no-pretraining", "scratch", plan.corpus, lessons.asked, console)
    pretrained = train(plan, folder / "pretrain", "pretrain", plan.corpus, lessons.taught, console)
    final = train(plan, folder / "finetune", "finetune", plan.corpus, lessons.taught, console, pretrained)
    return {"pretrain": pretrained, "finetune": final, "no-pretraining": scratch}


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
    """The attention patterns of one answer, the first right one or the first; a layer without weights over tokens has none."""
    index = examination.right.index(True) if examination.answered and any(examination.right) else 0
    question, prediction = examination.questions[index].question, examination.predictions[index]
    ids = [*cue(tokenizer, question, model.config.block_size), *tokenizer.encode(prediction)]
    ids = ids[: model.config.block_size]
    try:
        with capture(model, "hook_pattern") as seen:
            model(torch.tensor([ids]))
    except RuntimeError:
        return None  # a mechanism without a pattern
    taps = [seen.get(f"blocks.{layer}.attn.hook_pattern") for layer in range(model.config.n_layer)]
    patterns = [one[0].tolist() if one is not None and is_over_tokens(one, len(ids)) else [] for one in taps]
    if not any(patterns):
        return None
    return {
        "question": question,
        "answer": prediction,
        "tokens": [tokenizer.piece(token) for token in ids],
        "patterns": [[[[round(w, 3) for w in row] for row in head] for head in one] for one in patterns],
    }


def lines_of(examination: Examination) -> bytes:
    """One prediction a line."""
    return "".join(prediction + "\n" for prediction in examination.predictions).encode()
