"""The main job: what does a small model remember of what it read?

Pretrain on documents, fine-tune on questions, examine on people it was never asked about; beside it the same model without
pretraining, the majority answer, and a reader with the book open.

There are two tracks, reported apart. In the pure one the model has the documents and the training questions, and answers by
itself. In the assisted one a reader of our own, which learns from the same training questions, first writes a question for
every other document, and the answer is chosen among all answers that occur in training.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console

from attnlab import corpora, stages
from attnlab.config import Stage
from attnlab.corpora import Corpus, Question
from attnlab.errors import UserError, unknown
from attnlab.evaluate import Examination, encode_question, examine, majority
from attnlab.folders import add_files, verify, write_folder
from attnlab.look import is_over_tokens
from attnlab.machine import environment
from attnlab.model import LanguageModel, load_model
from attnlab.reader import Reader
from attnlab.runs import Run
from attnlab.studies.study import Study, Training, describe_run, fingerprints, suggest_question, train
from attnlab.taps import capture
from attnlab.tokenizers import Tokenizer
from attnlab.trust import calibrate
from attnlab.trust.answers import AnswerTrie, answer_distribution
from attnlab.trust.candidates import candidates

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
        stages.check_settings(plan.settings(stage), sources, tokenizer)
    for number, item in enumerate(exam, start=1):
        encode_question(tokenizer, item.question, config.model.block_size, number)


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
    add_files(folder, {"predictions.txt": lines_of(examinations[MAIN])})
    model, tokenizer = load_model(runs["finetune"].model)
    result = {
        "kind": "recall",
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
    ids = [*encode_question(tokenizer, question, model.config.block_size), *tokenizer.encode(prediction)]
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


SURE = 0.5  # the least probability of an answer that is taught
FOLDER, TRAIN, HELD_OUT, TAUGHT = "questions", "train.tsv", "held-out.tsv", "taught.tsv"


@dataclass(frozen=True)
class Lessons:
    """Where each part of the questions is found."""

    asked: str
    """The training questions, without those kept back."""
    taught: str
    """What the model is trained on: the same, and in the assisted track those that the reader wrote."""
    held_out: str | None
    """What it is calibrated with, never trained on."""


def parted(
    corpus: Corpus, facts: Sequence[Question], held_out: int, seed: int
) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """The questions to train with and the `held_out` that are kept back, both in their order.

    Kept back are only those about somebody that no other question is about, as the others would be half known.
    """
    whom = [tuple(corpora.documents_about(corpus, item.question)) or item.question for item in facts]
    times = Counter(whom)
    single = [place for place, one in enumerate(whom) if times[one] == 1]
    kept = {single[pick] for pick in np.random.default_rng(seed).permutation(len(single))[:held_out].tolist()}
    first, second = (
        tuple(item for place, item in enumerate(facts) if (place in kept) == side) for side in (False, True)
    )
    return first, second


def written(corpus: Corpus, asked: Sequence[Question], seed: int) -> tuple[Question, ...]:
    """What the reader writes about documents that no training question is about.

    Where it is not sure the line mostly does not say it, and the model guesses better than a reader from what else it knows.
    """
    return tuple(one.question for one in Reader.train(corpus, asked, seed).write(at_least=SURE))


def prepare(
    corpus: Corpus, facts: str, folder: Path, *, held_out: int, calibration: str | None, assisted: bool, seed: int
) -> Lessons:
    """The questions of a study, written down where they are not the user's own files already."""
    if not held_out and not assisted:
        return Lessons(facts, facts, calibration)
    target = folder / FOLDER
    if not target.exists():
        asked, kept = parted(corpus, corpora.load_questions(facts), held_out, seed)
        files = {TRAIN: asked, **({HELD_OUT: kept} if held_out else {})}
        if assisted:
            files[TAUGHT] = (*asked, *written(corpus, asked, seed))
        lines = {name: "".join(line + "\n" for line in corpora.as_table(part)) for name, part in files.items()}
        write_folder(target, "questions", {name: text.encode() for name, text in lines.items()})
    verify(target)
    return Lessons(
        str(target / TRAIN),
        str(target / (TAUGHT if assisted else TRAIN)),
        str(target / HELD_OUT) if held_out else calibration,
    )


FLOOR = 1e-4  # beginnings of answers less likely than this are not read on


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
    """The likeliest of all answers of training that fit the block, scored whole; where none reaches the floor, without one."""
    asked = [item.question for item in exam]
    room = model.config.block_size - max(
        len(encode_question(tokenizer, question, model.config.block_size)) for question in asked
    )
    answers = candidates(tokenizer, taught, lambda: ())
    trie = AnswerTrie(tokenizer, [answer for answer in answers if len(tokenizer.encode(answer)) <= room])
    found = answer_distribution(model, tokenizer, asked, trie, floor=FLOOR).best()
    for place, (_, probability) in enumerate(found):
        if probability < FLOOR:
            found[place] = answer_distribution(model, tokenizer, [asked[place]], trie).best()[0]
    return Examination(exam, tuple(answer for answer, _ in found))


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


def short(answer: str) -> str:
    """An answer in a table; a model that has learned nothing may write on and on."""
    return answer if len(answer) <= 30 else answer[:29] + "…"


STUDY = Study(
    lambda stored: Plan(**stored),
    check,
    lambda plan: fingerprints(plan, SOURCES),
    conclude,
    lambda _: "recall",
    SOURCES,
    epilogue=lambda folder, result, console: suggest_question(folder, result["answers"]["example"], console),
)
begin = STUDY.begin
