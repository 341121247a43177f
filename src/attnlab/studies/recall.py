"""The main job: what does a small model remember of what it read?

Pretrain on documents, fine-tune on questions, examine on people it was never asked about. It is compared with the same
model without pretraining, with the most common answer, and with a reader that looks up the document.

There are two tracks, reported separately. In the pure track the model has the documents and the training questions, and
answers by itself. In the assisted track a reader that learns from the same training questions first writes a question for
every other document, and the answer is chosen among all answers that occur in training.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from rich.console import Console

from attnlab import corpora
from attnlab.config import Stage
from attnlab.corpora import Corpus, Question
from attnlab.errors import UserError, unknown
from attnlab.inside.look import is_over_tokens
from attnlab.inside.taps import capture
from attnlab.lm import stages
from attnlab.lm.evaluate import encode_question, encode_questions, examine
from attnlab.lm.exams import Examination, Score, majority
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.reader import Reader
from attnlab.report.recall import UNCALIBRATED, document, outcome
from attnlab.report.words import short_answer
from attnlab.store.folders import add_files, verify, write_folder
from attnlab.store.records import flat, plain
from attnlab.store.runs import Run
from attnlab.studies.study import Study, StudyResult, TrainedRun, Training, sums_of_files, train_stage
from attnlab.trust import CalibrationSummary, calibrate
from attnlab.trust.answers import AnswerTrie, answer_distribution
from attnlab.trust.training_data import TrainingData, candidates

_SOURCES = ("corpus", "facts", "exam", "calibration")  # fields of the plan that name data
SHOWN = 12  # right and wrong answers in the report
_TRACKS = {
    "pure": "What does a small model remember?",
    "assisted": "What does a small model remember when a reader helps it to learn?",
}
_SURE = 0.5  # minimum probability of an answer that the reader teaches
_FLOOR = 1e-4  # answer prefixes less likely than this are not continued
_FOLDER, _TRAIN, _HELD_OUT, _TAUGHT = "questions", "train.tsv", "held-out.tsv", "taught.tsv"


@dataclass(frozen=True)
class Plan(Training):
    """The study with everything needed to repeat it."""

    corpus: str = "people"
    facts: str = "people:train"
    exam: str = "people:test"
    command: str = "attnlab run"
    quick: bool = False
    track: str = "pure"
    held_out: int = 0  # training questions kept for calibration
    calibration: str | None = None  # or other questions for it

    @property
    def seed(self) -> int:
        """The seed of the training, which also splits the questions."""
        return self.settings("pretrain").seed

    @cached_property
    def reader(self) -> Reader:
        """The reader of the assisted track, trained once; an error if it cannot learn from the questions."""
        return Reader.train(self.data.corpus(self.corpus), self.data.questions(self.facts), self.seed)


def check(plan: Plan) -> None:
    """Find errors before training: settings of every stage, data, questions that are too long."""
    if plan.track not in _TRACKS:
        raise UserError(unknown("track", plan.track, _TRACKS))
    corpus, facts = plan.data.corpus(plan.corpus), plan.data.questions(plan.facts)
    if not 0 <= plan.held_out <= len(facts) // 2:
        raise UserError(
            f"--held-out {plan.held_out}: keep back 0 to {len(facts) // 2:,} of the {len(facts):,} training questions"
        )
    if plan.track == "assisted":
        if plan.held_out:
            raise UserError(
                "--held-out is for the pure track: the reader's questions about held-out people are trained on"
            )
        _ = plan.reader
    config = plan.settings("pretrain")
    sources = plan.data.made(corpus, split_facts(corpus, facts, plan.held_out, plan.seed)[0])
    tokenizer = stages.learn_tokenizer(config, sources)
    for stage in get_args(Stage):
        stages.check_settings(plan.settings(stage), sources, tokenizer)
    encode_questions(tokenizer, (item.question for item in plan.data.questions(plan.exam)), config.model.block_size)


# Results


@dataclass(frozen=True)
class _Contestant:
    """A model or baseline: its name, its run if any, and its description in the report."""

    name: str
    run: str | None
    note: str
    subject: str
    role: str = ""


@dataclass(frozen=True)
class _Row:
    contestant: _Contestant = flat()
    kind: str = ""
    seconds: float | None = None
    score: Score | None = flat(None)


@dataclass(frozen=True)
class _ShownAnswer:
    question: str
    answer: str | None
    prediction: str
    source: str | None


@dataclass(frozen=True)
class _Answers:
    right: list[_ShownAnswer]
    wrong: list[_ShownAnswer]
    example: str


@dataclass(frozen=True)
class _Attention:
    question: str
    answer: str
    tokens: list[str]
    patterns: list[list[list[list[float]]]]


@dataclass(frozen=True)
class _WorldSummary:
    corpus: str
    documents: int
    characters: int
    training_questions: int
    exam: str
    exam_questions: int
    asked_before: int  # exam questions that are training questions too
    quick: bool
    track: str
    written_questions: int  # by the reader
    held_out: int  # training questions kept for calibration


@dataclass(frozen=True, kw_only=True)
class _RecallResult(StudyResult):
    kind: str = "recall"
    study: str = "recall"
    track: str
    world: _WorldSummary
    rows: list[_Row]
    runs: dict[str, TrainedRun]
    answers: _Answers
    attention: _Attention | None
    calibration: CalibrationSummary | None
    verdict: list[str]


def train(plan: Plan, folder: Path, console: Console) -> None:
    """Start or resume the three models."""
    corpus, exam = plan.data.corpus(plan.corpus), plan.data.questions(plan.exam)
    lessons = _prepare(plan, folder)
    facts, taught = plan.data.questions(lessons.asked), plan.data.questions(lessons.taught)
    written, kept = len(taught) - len(facts), len(plan.data.questions(plan.facts)) - len(facts)
    console.print(
        f"{len(corpus.lines):,} documents, {len(facts):,} training questions,"
        + (f" {written:,} more written by a reader," if written else "")
        + (f" {kept:,} more kept for calibration and not trained on," if kept else "")
        + f" {len(exam):,} exam questions"
    )
    unknown_names = sum(not corpora.documents_about(corpus, item.question) for item in (*facts, *exam))
    if unknown_names:
        console.print(
            f"note: {unknown_names:,} of {len(facts) + len(exam):,} questions name no person that a document is about"
        )
    train_stage(plan, folder / "no-pretraining", "scratch", plan.corpus, lessons.asked, console)
    pretrained = train_stage(plan, folder / "pretrain", "pretrain", plan.corpus, lessons.taught, console)
    train_stage(plan, folder / "finetune", "finetune", plan.corpus, lessons.taught, console, pretrained)


def judge(plan: Plan, folder: Path, console: Console) -> _RecallResult:
    """Examine the trained models and the baselines, and calibrate the final model."""
    began = time.perf_counter()
    corpus, exam = plan.data.corpus(plan.corpus), plan.data.questions(plan.exam)
    lessons = _prepare(plan, folder)
    facts, taught = plan.data.questions(lessons.asked), plan.data.questions(lessons.taught)
    runs = {name: Run.open(folder / name) for name in ("pretrain", "finetune", "no-pretraining")}
    examinations = examine_all(runs, corpus, facts, exam)
    if plan.track == "assisted":
        examinations |= _examine_assisted(plan, runs["finetune"], taught, exam)
    main = examinations[MAIN]
    add_files(folder, {"predictions.txt": main.lines()})
    calibrated = _calibrate(plan, runs["finetune"], lessons, console)
    attention = _look(*load_model(runs["finetune"].model), main)
    training = sum(one.result["seconds"] for one in runs.values())
    kept = len(plan.data.questions(plan.facts)) - len(facts)
    world = _WorldSummary(
        corpus=Path(plan.corpus).name,
        documents=len(corpus.lines),
        characters=sum(len(line) + 1 for line in corpus.lines),
        training_questions=len(facts),
        exam=Path(plan.exam).name,
        exam_questions=len(exam),
        asked_before=len({item.question for item in facts} & {item.question for item in exam}),
        quick=plan.quick,
        track=plan.track,
        written_questions=len(taught) - len(facts),
        held_out=kept,
    )
    rows = [describe_row(one, examinations[one.name], runs, kept) for one in _CONTESTANTS if one.name in examinations]
    return _RecallResult(
        track=plan.track,
        title=_TRACKS[plan.track],
        command=plan.command,
        world=world,
        rows=rows,
        runs={name: TrainedRun.read(one) for name, one in runs.items()},
        answers=_pick_answers(main, corpus),
        attention=attention,
        calibration=calibrated,
        verdict=[outcome(plain(rows), plain(world))],
        seconds=round(training + time.perf_counter() - began, 1),
    )


def _calibrate(plan: Plan, run: Run, lessons: _Lessons, console: Console) -> CalibrationSummary | None:
    """Calibrate the final model, for the report and for `attnlab ask`; too few questions cost a note only.

    Not in the assisted track: what the reader wrote about held-out people was trained on.
    """
    if plan.track == "assisted":
        return None
    if lessons.held_out is None:
        console.print(UNCALIBRATED)
        return None
    data = TrainingData(run, plan.data.corpus(plan.corpus), plan.data.questions(lessons.asked))
    try:
        return calibrate(run, plan.data.questions(lessons.held_out), data=data).summary()
    except UserError as error:
        console.print(f"note: not calibrated: {error}")
        return None


def _pick_answers(examination: Examination, corpus: Corpus) -> _Answers:
    """The first right and wrong answers."""
    picked = _Answers([], [], examination.questions[0].question)
    if not examination.answered:
        return picked
    for item, prediction, right in zip(examination.questions, examination.predictions, examination.right, strict=True):
        side = picked.right if right else picked.wrong
        if len(side) < SHOWN:
            documents = corpora.documents_about(corpus, item.question)
            source = corpus.lines[documents[0]] if documents else None
            side.append(_ShownAnswer(item.question, item.answer, prediction, source))
    return picked


@torch.inference_mode()
def _look(model: LanguageModel, tokenizer: Tokenizer, examination: Examination) -> _Attention | None:
    """The attention patterns of the first right answer, or the first; None without weights over tokens."""
    index = examination.right.index(True) if examination.answered and any(examination.right) else 0
    question, prediction = examination.questions[index].question, examination.predictions[index]
    ids = [*encode_question(tokenizer, question, model.config.block_size), *tokenizer.encode(prediction)]
    ids = ids[: model.config.block_size]
    try:
        with capture(model, "hook_pattern") as seen:
            model(torch.tensor([ids], device=model.device))
    except RuntimeError:
        return None  # a mechanism without a pattern
    taps = [seen.get(f"blocks.{layer}.attn.hook_pattern") for layer in range(model.config.n_layer)]
    patterns = [one[0].tolist() if one is not None and is_over_tokens(one, len(ids)) else [] for one in taps]
    if not any(patterns):
        return None
    rounded = [[[[round(w, 3) for w in row] for row in head] for head in one] for one in patterns]
    return _Attention(question, prediction, [tokenizer.piece(token) for token in ids], rounded)


# Questions by use


@dataclass(frozen=True)
class _Lessons:
    """The names of the questions by use."""

    asked: str  # training questions without those held out
    taught: str  # what the model is trained on: the same, and in the assisted track those written by the reader
    held_out: str | None  # for calibration, never trained on


def split_facts(
    corpus: Corpus, facts: tuple[Question, ...], held_out: int, seed: int
) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """Split the questions into those to train with and the `held_out`, both in order.

    Only questions about somebody that no other question is about are held out: the others would be half known.
    """
    if not held_out:
        return facts, ()
    subjects = [tuple(corpora.documents_about(corpus, item.question)) or item.question for item in facts]
    times = Counter(subjects)
    single = [place for place, one in enumerate(subjects) if times[one] == 1]
    kept = {single[pick] for pick in np.random.default_rng(seed).permutation(len(single))[:held_out].tolist()}
    first, second = (
        tuple(item for place, item in enumerate(facts) if (place in kept) == side) for side in (False, True)
    )
    return first, second


def _prepare(plan: Plan, folder: Path) -> _Lessons:
    """The questions of the study, stored in its folder unless they are the user's own files."""
    assisted, target = plan.track == "assisted", folder / _FOLDER
    if not plan.held_out and not assisted and not target.exists():
        return _Lessons(plan.facts, plan.facts, plan.calibration)
    if not target.exists():
        corpus, facts = plan.data.corpus(plan.corpus), plan.data.questions(plan.facts)
        asked, kept = split_facts(corpus, facts, plan.held_out, plan.seed)
        files = {_TRAIN: asked, **({_HELD_OUT: kept} if kept else {})}
        if assisted:
            # If the reader is unsure, the document mostly does not tell, and the model guesses better than the reader.
            files[_TAUGHT] = (*asked, *(one.question for one in plan.reader.write(at_least=_SURE)))
        lines = {name: "".join(line + "\n" for line in corpora.as_table(part)) for name, part in files.items()}
        write_folder(target, "questions", {name: text.encode() for name, text in lines.items()})
    verify(target)
    return _Lessons(
        str(target / _TRAIN),
        str(target / (_TAUGHT if assisted else _TRAIN)),
        str(target / _HELD_OUT) if (target / _HELD_OUT).exists() else plan.calibration,
    )


# The examination


MAIN, READER = "pretrained + fine-tuned", "own reader, open book"
ROWS = (
    _Contestant(
        MAIN, "finetune", "read every document, then answered the training questions{kept}", "the pretrained model"
    ),
    _Contestant("pretrained only", "pretrain", "read every document{mixed}", "the pretrained model, not fine-tuned,"),
    _Contestant(
        "no pretraining",
        "no-pretraining",
        "the same model on the training questions alone",
        "the same model without pretraining",
        "control",
    ),
    _Contestant(
        "majority answer", None, "always the most common training answer", "always saying {commonest}", "baseline"
    ),
    _Contestant(
        "open book", None, "looks up the document and takes the first known place in it", "a reader with the book open"
    ),
)
_CONTESTANTS = (
    *ROWS,
    _Contestant(
        READER, None, "looks up the document and reads it as learned from the training questions", "its own reader"
    ),
)


def examine_all(
    runs: Mapping[str, Run], corpus: Corpus, facts: tuple[Question, ...], exam: tuple[Question, ...]
) -> dict[str, Examination]:
    """Examine every model and every baseline on the same questions."""
    found = {row.name: examine(*load_model(runs[row.run].model), exam) for row in ROWS if row.run}
    places = {item.answer for item in facts if item.answer is not None}
    found["majority answer"] = majority(facts, exam)
    found["open book"] = Examination(exam, tuple(corpora.open_book(corpus, places, q.question) or "" for q in exam))
    return found


def _examine_assisted(
    plan: Plan, final: Run, taught: tuple[Question, ...], exam: tuple[Question, ...]
) -> dict[str, Examination]:
    """The final model choosing among the answers of its training, and the reader by itself."""
    corpus = plan.data.corpus(plan.corpus)
    known = [bool(corpora.documents_about(corpus, item.question)) for item in exam]
    read = tuple(plan.reader.read(q.question).text if seen else "" for q, seen in zip(exam, known, strict=True))
    return {MAIN: choose(*load_model(final.model), taught, exam), READER: Examination(exam, read)}


def choose(
    model: LanguageModel, tokenizer: Tokenizer, taught: tuple[Question, ...], exam: Sequence[Question]
) -> Examination:
    """Choose the most likely training answer that fits into the block; if none reaches the floor, without a floor."""
    asked, block = [item.question for item in exam], model.config.block_size
    room = block - max(map(len, encode_questions(tokenizer, asked, block)))
    answers = candidates(tokenizer, taught, lambda: ())
    trie = AnswerTrie(tokenizer, [answer for answer in answers if len(tokenizer.encode(answer)) <= room])
    found = answer_distribution(model, tokenizer, asked, trie, floor=_FLOOR).best()
    for place, (_, probability) in enumerate(found):
        if probability < _FLOOR:
            found[place] = answer_distribution(model, tokenizer, [asked[place]], trie).best()[0]
    return Examination(tuple(exam), tuple(answer for answer, _ in found))


def describe_row(one: _Contestant, examination: Examination, runs: Mapping[str, Run], held_out: int = 0) -> _Row:
    """One line of the table of results."""
    score = examination.score()
    seconds = runs[one.run].result["seconds"] if one.run else None
    if one.run == "finetune":
        seconds += runs["pretrain"].result["seconds"]
    mixed = ", with the training questions among them" if runs["pretrain"].record.facts else ""
    subject = one.subject.replace("{commonest}", short_answer(score.commonest_prediction))
    kept = f", without {held_out:,} kept for calibration" if held_out else ""
    note = one.note.replace("{mixed}", mixed).replace("{kept}", kept)
    shown = replace(one, note=note, subject=subject)
    return _Row(shown, "model" if one.run else "baseline", seconds, score)


STUDY = Study(
    plan=Plan,
    name=lambda _: "recall",
    check=check,
    fingerprints=lambda plan: (
        plan.data.checksums({key: getattr(plan, key) for key in _SOURCES}) | sums_of_files(plan.file, plan.given)
    ),
    train=train,
    judge=judge,
    document=document,
    sources=_SOURCES,
    example=lambda result: result["answers"]["example"],
)
