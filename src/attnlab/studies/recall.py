"""The main job: what does a small model remember of what it read?

Pretrain on documents, fine-tune on questions, examine on people it was never asked about. It is compared with the same
model without pretraining, with the most common answer, and with a reader that looks up the document.

There are two tracks, reported separately. In the pure track the model has the documents and the training questions, and
answers by itself. In the assisted track a reader that learns from the same training questions first writes a question for
every other document, and the answer is chosen among all answers that occur in training.

A difference is claimed only where the 95 % intervals do not overlap. This is conservative: intervals that overlap a little
can hide a real difference, so the sentence then says that this exam cannot tell, never that there is none.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self, get_args

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
from attnlab.lm.exams import Examination, Scored, majority
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.reader import Reader
from attnlab.report.document import Answer, Answers, Document, Facts, Head, Heads, Piece, Section, Text, section
from attnlab.report.parts import (
    QUICK,
    StudyResult,
    TrainedRun,
    accuracy_chart,
    commonest_table,
    commonest_words,
    report_of,
    reproduce,
    results_table,
    settings_of,
    side_by_side,
    strongest,
    training_blocks,
)
from attnlab.report.words import capital, count, figure, interval, percent, plural, short_answer, visible
from attnlab.store.folders import add_files, verify, write_folder
from attnlab.store.runs import Run
from attnlab.studies import options as opt
from attnlab.studies.study import DataSummary, Training, asked_before, data_facts, read_run, study
from attnlab.trust import CalibrationSummary, calibrate
from attnlab.trust.answers import AnswerTrie, answer_distribution
from attnlab.trust.training_data import TrainingData, candidates

_SHOWN = 12  # right and wrong answers in the report
_TRACKS = {
    "pure": "What does a small model remember?",
    "assisted": "What does a small model remember when a reader helps it to learn?",
}
_SURE = 0.5  # minimum probability of an answer that the reader teaches
_FLOOR = 1e-4  # answer prefixes less likely than this are not continued
_FOLDER, _TRAIN, _HELD_OUT, _TAUGHT = "questions", "train.tsv", "held-out.tsv", "taught.tsv"
_RISK = 0.1  # of wrong answers, for which the guarantee is shown
UNCALIBRATED = (
    "Not calibrated: its probabilities guarantee nothing. Calibrate it with questions that it was not trained on (attnlab"
    " calibrate RUN --questions FILE), or train again without N of the training questions (--held-out N)."
)
_CUE = "⁇"  # the symbol after which an answer is written


# Results


@dataclass(frozen=True, kw_only=True)
class Row(Scored):
    """A model or a baseline with its score; in a sentence it is called by its subject, else by its name."""

    subject: str = ""
    role: str = ""  # control, baseline


@dataclass(frozen=True)
class ShownAnswer:
    """An answer beside the right one and the line that contains it."""

    question: str
    answer: str | None
    prediction: str
    source: str | None


@dataclass(frozen=True)
class ShownAnswers:
    """The first right and wrong answers, and a question to try."""

    right: list[ShownAnswer]
    wrong: list[ShownAnswer]
    example: str


@dataclass(frozen=True)
class Attention:
    """The attention patterns of one answer, by layer, head and row; empty for layers without weights over tokens."""

    question: str
    answer: str
    tokens: list[str]
    patterns: list[list[list[list[float]]]]


@dataclass(frozen=True, kw_only=True)
class RecallResult(StudyResult):
    """The result of the study."""

    track: str
    quick: bool
    data: DataSummary
    written_questions: int  # by the reader
    held_out: int  # training questions kept for calibration
    rows: list[Row]
    runs: dict[str, TrainedRun]
    answers: ShownAnswers
    attention: Attention | None
    calibration: CalibrationSummary | None
    verdict: list[str]


# The study


@study("recall")
class Recall(Training[RecallResult]):
    """Test what a small model remembers of what it read.

    Without files, it reads and is asked about the built-in people. Settings given as options are those
    of pretraining. A file given by --config may hold tables [finetune.train] and [scratch.train] for
    the other trainings. The built-in people have questions for calibration. With files, --held-out N
    keeps N training questions for it, which the model is then not trained on.
    """

    track: Annotated[str, opt.about("Track: pure (the model alone) or assisted (by a reader).")] = "pure"
    held_out: Annotated[opt.Whole, opt.about("Training questions kept for calibration.")] = 0
    calibration: opt.Hidden[str] = ""  # other questions for it

    sources = (*Training.sources, "calibration")

    def completed(self) -> Self:
        """Fill in the built-in people, with their questions for calibration."""
        plan = super().completed()
        return plan if self.corpus else replace(plan, calibration=f"{plan.corpus}:calibration")

    @property
    def seed(self) -> int:
        """The seed of the training, which also splits the questions."""
        return self.settings("pretrain").seed

    @cached_property
    def reader(self) -> Reader:
        """The reader of the assisted track, trained once; an error if it cannot learn from the questions."""
        return Reader.train(self.data.corpus(self.corpus), self.data.questions(self.facts), self.seed)

    def check(self) -> None:
        """Find errors before training: settings of every stage, data, questions that are too long."""
        if self.track not in _TRACKS:
            raise UserError(unknown("track", self.track, _TRACKS))
        corpus, facts = self.data.corpus(self.corpus), self.data.questions(self.facts)
        if not 0 <= self.held_out <= len(facts) // 2:
            raise UserError(
                f"--held-out {self.held_out}: keep back 0 to {len(facts) // 2:,} of the {len(facts):,} training questions"
            )
        if self.track == "assisted":
            if self.held_out:
                raise UserError(
                    "--held-out is for the pure track: the reader's questions about held-out people are trained on"
                )
            _ = self.reader
        config = self.settings("pretrain")
        sources = self.data.in_memory(corpus, split_facts(corpus, facts, self.held_out, self.seed)[0])
        tokenizer = stages.learn_tokenizer(config, sources)
        for stage in get_args(Stage):
            stages.check_settings(self.settings(stage), sources, tokenizer)
        encode_questions(tokenizer, (item.question for item in self.data.questions(self.exam)), config.model.block_size)

    def train(self, folder: Path, console: Console) -> None:
        """Start or resume the three models."""
        corpus, exam = self.data.corpus(self.corpus), self.data.questions(self.exam)
        lessons = self._prepare(folder)
        facts, taught = self.data.questions(lessons.asked), self.data.questions(lessons.taught)
        written, kept = len(taught) - len(facts), len(self.data.questions(self.facts)) - len(facts)
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

        def train(name: str, stage: Stage, questions: str, base: Run | None = None) -> Run:
            sources = (self.corpus, questions)
            return self.train_stage(folder / name, self.settings(stage), stage, sources, console, base)

        train("no-pretraining", "scratch", lessons.asked)
        pretrained = train("pretrain", "pretrain", lessons.taught)
        train("finetune", "finetune", lessons.taught, pretrained)

    def judge(self, folder: Path, console: Console) -> RecallResult:
        """Examine the trained models and the baselines, and calibrate the final model."""
        began = time.perf_counter()
        corpus, exam = self.data.corpus(self.corpus), self.data.questions(self.exam)
        lessons = self._prepare(folder)
        facts, taught = self.data.questions(lessons.asked), self.data.questions(lessons.taught)
        runs = {name: Run.open(folder / name) for name in ("pretrain", "finetune", "no-pretraining")}
        examinations = examine_all(runs, corpus, facts, exam)
        if self.track == "assisted":
            examinations |= self._examine_assisted(runs["finetune"], taught, exam)
        main = examinations[_MAIN]
        add_files(folder, {"predictions.txt": main.lines()})
        calibration = self._calibrate(runs["finetune"], lessons, console)
        attention = _attention_of(*load_model(runs["finetune"].model), main)
        trained = {name: read_run(run) for name, run in runs.items()}
        held_out = len(self.data.questions(self.facts)) - len(facts)
        mixed = bool(runs["pretrain"].record.facts)
        data = self.data_summary(facts)
        rows = [
            _row(contestant, examinations[contestant.name], trained, mixed, held_out)
            for contestant in _CONTESTANTS
            if contestant.name in examinations
        ]
        return RecallResult(
            kind=self.name,
            track=self.track,
            quick=self.quick,
            title=_TRACKS[self.track],
            command=self.command,
            data=data,
            written_questions=len(taught) - len(facts),
            held_out=held_out,
            rows=rows,
            runs=trained,
            answers=_pick_answers(main, corpus),
            attention=attention,
            calibration=calibration,
            verdict=[outcome(rows, data)],
            seconds=round(sum(run.seconds for run in trained.values()) + time.perf_counter() - began, 1),
        )

    def document(self, result: RecallResult) -> Document:
        """Return the whole report."""
        rows, runs = result.rows, result.runs
        kept = [("Kept for calibration, not trained on", count(result.held_out))] if result.held_out else []
        facts = data_facts(
            result.data,
            *kept,
            ("Questions that a reader wrote", count(result.written_questions)),
            ("Track", result.track),
        )
        return report_of(
            self.name,
            result,
            result.verdict,
            [
                *section("Results", accuracy_chart(rows), results_table(rows), commonest_table(rows)),
                *section("Training", *training_blocks(runs)),
                *_answers_section(result.answers),
                *_attention_section(result.attention),
                *_confidence_section(result),
                reproduce(result, facts, settings_of(runs)),
            ],
            [*([QUICK] if result.quick else []), *asked_before(result.data)],
        )

    def example(self, result: RecallResult) -> str:
        """Return the first question of the exam."""
        return result.answers.example

    def _calibrate(self, run: Run, lessons: _Lessons, console: Console) -> CalibrationSummary | None:
        """Calibrate the final model, for the report and for `attnlab ask`; too few questions cost a note only.

        Not in the assisted track: what the reader wrote about held-out people was trained on.
        """
        if self.track == "assisted":
            return None
        if not lessons.held_out:
            console.print(UNCALIBRATED)
            return None
        data = TrainingData(run, self.data.corpus(self.corpus), self.data.questions(lessons.asked))
        try:
            return calibrate(run, self.data.questions(lessons.held_out), data=data).summary()
        except UserError as error:
            console.print(f"note: not calibrated: {error}")
            return None

    def _examine_assisted(
        self, final: Run, taught: tuple[Question, ...], exam: tuple[Question, ...]
    ) -> dict[str, Examination]:
        """The final model choosing among the answers of its training, and the reader by itself."""
        corpus = self.data.corpus(self.corpus)
        known = [bool(corpora.documents_about(corpus, item.question)) for item in exam]
        read = tuple(self.reader.read(q.question).text if seen else "" for q, seen in zip(exam, known, strict=True))
        return {_MAIN: choose(*load_model(final.model), taught, exam), _READER: Examination(exam, read)}

    def _prepare(self, folder: Path) -> _Lessons:
        """The questions of the study, stored in its folder unless they are the user's own files."""
        assisted, target = self.track == "assisted", folder / _FOLDER
        if not self.held_out and not assisted and not target.exists():
            return _Lessons(self.facts, self.facts, self.calibration)
        if not target.exists():
            corpus, facts = self.data.corpus(self.corpus), self.data.questions(self.facts)
            asked, kept = split_facts(corpus, facts, self.held_out, self.seed)
            files = {_TRAIN: asked, **({_HELD_OUT: kept} if kept else {})}
            if assisted:
                # If the reader is unsure, the document mostly does not tell, and the model guesses better than the reader.
                files[_TAUGHT] = (*asked, *(pair.question for pair in self.reader.write(at_least=_SURE)))
            lines = {name: "".join(line + "\n" for line in corpora.as_table(part)) for name, part in files.items()}
            write_folder(target, "questions", {name: text.encode() for name, text in lines.items()})
        verify(target)
        return _Lessons(
            str(target / _TRAIN),
            str(target / (_TAUGHT if assisted else _TRAIN)),
            str(target / _HELD_OUT) if (target / _HELD_OUT).exists() else self.calibration,
        )


# Questions by use


@dataclass(frozen=True)
class _Lessons:
    """The names of the questions by use."""

    asked: str  # training questions without those held out
    taught: str  # what the model is trained on: the same, and in the assisted track those written by the reader
    held_out: str  # for calibration, never trained on; empty if there are none


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
    single = [place for place, subject in enumerate(subjects) if times[subject] == 1]
    kept = {single[pick] for pick in np.random.default_rng(seed).permutation(len(single))[:held_out].tolist()}
    first, second = (
        tuple(item for place, item in enumerate(facts) if (place in kept) == side) for side in (False, True)
    )
    return first, second


# The examination


@dataclass(frozen=True)
class _Contestant:
    """A model or baseline: its name, its run if any, and its description in the report."""

    name: str
    run: str | None
    note: str
    subject: str
    role: str = ""


_MAIN, _READER = "pretrained + fine-tuned", "own reader, open book"
_ROWS = (
    _Contestant(
        _MAIN, "finetune", "read every document, then answered the training questions{kept}", "the pretrained model"
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
    *_ROWS,
    _Contestant(
        _READER, None, "looks up the document and reads it as learned from the training questions", "its own reader"
    ),
)


def examine_all(
    runs: Mapping[str, Run], corpus: Corpus, facts: tuple[Question, ...], exam: tuple[Question, ...]
) -> dict[str, Examination]:
    """Examine every model and every baseline on the same questions."""
    results = {row.name: examine(*load_model(runs[row.run].model), exam) for row in _ROWS if row.run}
    places = {item.answer for item in facts if item.answer is not None}
    results["majority answer"] = majority(facts, exam)
    results["open book"] = Examination(exam, tuple(corpora.open_book(corpus, places, q.question) or "" for q in exam))
    return results


def choose(
    model: LanguageModel, tokenizer: Tokenizer, taught: tuple[Question, ...], exam: Sequence[Question]
) -> Examination:
    """Choose the most likely training answer that fits into the block; if none reaches the floor, without a floor."""
    asked, block = [item.question for item in exam], model.config.block_size
    room = block - max(map(len, encode_questions(tokenizer, asked, block)))
    answers = candidates(tokenizer, taught, lambda: ())
    trie = AnswerTrie(tokenizer, [answer for answer in answers if len(tokenizer.encode(answer)) <= room])
    best = answer_distribution(model, tokenizer, asked, trie, floor=_FLOOR).best()
    for place, (_, probability) in enumerate(best):
        if probability < _FLOOR:
            best[place] = answer_distribution(model, tokenizer, [asked[place]], trie).best()[0]
    return Examination(tuple(exam), tuple(answer for answer, _ in best))


def _row(
    contestant: _Contestant, examination: Examination, runs: Mapping[str, TrainedRun], mixed: bool, held_out: int
) -> Row:
    """One line of the table of results; `mixed` says whether pretraining read the training questions too."""
    seconds = runs[contestant.run].seconds if contestant.run else None
    if contestant.run == "finetune":
        seconds = runs["pretrain"].seconds + runs["finetune"].seconds
    kept = f", without {held_out:,} kept for calibration" if held_out else ""
    note = contestant.note.replace("{mixed}", ", with the training questions among them" if mixed else "")
    return examination.scored(
        Row,
        name=contestant.name,
        kind="model" if contestant.run else "baseline",
        note=note.replace("{kept}", kept),
        seconds=seconds,
        subject=contestant.subject.replace("{commonest}", short_answer(examination.score().commonest_prediction)),
        role=contestant.role,
    )


def _pick_answers(examination: Examination, corpus: Corpus) -> ShownAnswers:
    """The first right and wrong answers."""
    picked = ShownAnswers([], [], examination.questions[0].question)
    if not examination.answered:
        return picked
    for item, prediction, right in zip(examination.questions, examination.predictions, examination.right, strict=True):
        side = picked.right if right else picked.wrong
        if len(side) < _SHOWN:
            documents = corpora.documents_about(corpus, item.question)
            source = corpus.lines[documents[0]] if documents else None
            side.append(ShownAnswer(item.question, item.answer, prediction, source))
    return picked


@torch.inference_mode()
def _attention_of(model: LanguageModel, tokenizer: Tokenizer, examination: Examination) -> Attention | None:
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
    patterns = [tap[0].tolist() if tap is not None and is_over_tokens(tap, len(ids)) else [] for tap in taps]
    if not any(patterns):
        return None
    rounded = [[[[round(w, 3) for w in row] for row in head] for head in layer] for layer in patterns]
    return Attention(question, prediction, [tokenizer.piece(token) for token in ids], rounded)


# The sentence at the top


def _subject(row: Row) -> str:
    return row.subject or f"“{row.name}”"


def order(row: Row, other: Row) -> int:
    """1 if the first is clearly better, -1 if clearly worse, 0 if the intervals overlap."""
    assert row.low is not None
    assert row.high is not None
    assert other.low is not None
    assert other.high is not None
    return int(row.low > other.high) - int(row.high < other.low)


def _against(row: Row, other: Row) -> str:
    """How a row compares with another; follows its own accuracy in the sentence."""
    words = {1: "clearly more than", 0: "which this exam cannot tell from", -1: "clearly less than"}
    return f"{words[order(row, other)]} {_subject(other)} ({figure(other.accuracy, 'share')})"


def _questions(data: DataSummary, number: int) -> str:
    questions = plural(number, "question")
    if data.corpus == "people" and data.exam in ("people:test", "people:dev", "people:calibration"):
        return f"{questions} about people it was never asked about"
    return questions


def outcome(rows: Sequence[Row], data: DataSummary) -> str:
    """The main result, in one sentence or two: the first row beside the control and the baseline."""
    main = rows[0]
    asked = _questions(data, main.questions)
    if main.accuracy is None:
        return capital(
            f"{_subject(main)} predicts answers to {asked}; the exam has no answers to compare with, so nothing is scored."
            f" Its most common answers: {commonest_words(main)}."
        )
    control, baseline = (next(row for row in rows if row.role == role) for role in ("control", "baseline"))
    first = f"{_subject(main)} correctly answers {percent(main.accuracy)} of {asked}"
    second = f"{_subject(control)} {figure(control.accuracy, 'share')}"
    place = order(main, control)
    if place == 0:
        second += ", and as the 95 % intervals overlap, this exam cannot tell the two apart."
    elif place < 0:
        second += ", which is clearly more."
    else:
        second += f", {_against(control, baseline)}."
        if order(main, baseline) <= 0:
            level = "clearly below that" if order(main, baseline) < 0 else "not clearly above that"
            second += " " + capital(f"{_subject(main)} itself is {level}.")
    if place <= 0:
        second += f" {_standing(main, control, baseline)}"
    return capital(f"{first}; {second}")


def _standing(main: Row, control: Row, baseline: Row) -> str:
    reference = f"{_subject(baseline)} ({figure(baseline.accuracy, 'share')})"
    above = [row for row in (main, control) if order(row, baseline) > 0]
    if len(above) == 2:
        return f"Both are clearly above {reference}."
    if not above:
        return f"Neither is clearly above {reference}."
    return capital(f"only {_subject(above[0])} is clearly above {reference}.")


# Answers


def _places(phrase: str, text: str) -> list[tuple[int, int]]:
    """Where a phrase occurs in a text as whole words."""
    if not phrase:
        return []
    return [match.span() for match in re.finditer(rf"(?<!\w){re.escape(phrase)}(?!\w)", text)]


def _apart(place: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Whether a span overlaps none of the others."""
    return all(place[1] <= begin or end <= place[0] for begin, end in others)


def cut(source: str, answer: str, prediction: str) -> Iterator[Piece]:
    """The line in pieces, with the answer and the prediction marked; where they overlap, the answer is."""
    right = _places(answer, source)
    marks = [(span, "answer") for span in right]
    marks += [(span, "prediction") for span in _places(prediction, source) if _apart(span, right)]
    done = 0
    for (begin, end), role in sorted(marks):
        if begin > done:
            yield Piece(source[done:begin])
        yield Piece(source[begin:end], role)
        done = end
    if done < len(source):
        yield Piece(source[done:])


def fault(source: str | None, answer: str, prediction: str) -> str:
    """In which way a wrong prediction is wrong, as far as the line tells."""
    if not prediction:
        return "no answer was given"
    if source is None:
        return "no line of the corpus was found for it"
    predicted, right = _places(prediction, source), _places(answer, source)
    if any(_apart(place, right) for place in predicted):
        return "another phrase of the same line"
    return "overlaps the right answer" if predicted else "not in this line"


def _shown(item: ShownAnswer, right: bool) -> Answer:
    """One answer of the result, ready to be shown."""
    answer, prediction, source = item.answer or "", item.prediction, item.source
    pieces = tuple(cut(source, answer, "" if right else prediction)) if source else ()
    why = "" if right else fault(source, answer, prediction)
    return Answer(item.question, prediction, right, answer, "", why, pieces)


def _answers_section(answers: ShownAnswers) -> list[Section]:
    right, wrong = [_shown(item, True) for item in answers.right], [_shown(item, False) for item in answers.wrong]
    if not right and not wrong:
        return []
    words = (
        "The line under each answer is what the model read about it; the right answer is highlighted, and so is the wrong"
        " one where it occurs in the same line."
    )
    if wrong:
        ways = Counter(item.verdict for item in wrong).most_common()
        words += f" Of the wrong answers shown: {', '.join(f'{number} {way}' for way, number in ways)}."
    return section("Answers", Text([words]), side_by_side([Answers("Right", right), Answers("Wrong", wrong)]))


# The attention of one answer


def answer_row(tokens: Sequence[str]) -> int:
    """The row that chooses the first token of the answer: the last cue, else the last row."""
    cues = [place for place, token in enumerate(tokens) if token.strip() == _CUE]
    return cues[-1] if cues else len(tokens) - 1


def _heads_of(attention: Attention) -> list[Head]:
    """All heads, layer by layer, each with the token it looks at most where the answer is chosen."""
    tokens = attention.tokens
    row = answer_row(tokens)

    def sentence(weights: Sequence[float]) -> str:
        column = strongest(weights)
        return (
            f"Where the answer is chosen (row {visible(tokens[row])}), it looks most at {visible(tokens[column])}"
            f" ({percent(weights[column])})."
        )

    return [
        Head(layer, number, pattern, sentence(pattern[row]))
        for layer, patterns in enumerate(attention.patterns, start=1)
        for number, pattern in enumerate(patterns, start=1)
    ]


def _sums_to_one(heads: Sequence[Head]) -> bool:
    """Whether every row of weights sums to one up to rounding; not all mechanisms' rows do."""
    return all(abs(sum(row) - 1) <= 0.001 * (1 + len(row)) for head in heads for row in head.pattern)


def _attention_section(attention: Attention | None) -> list[Section]:
    if not attention or not attention.tokens or not any(attention.patterns):
        return []
    heads, tokens = _heads_of(attention), attention.tokens
    absent = [str(layer) for layer, patterns in enumerate(attention.patterns, start=1) if not patterns]
    layers = f"Layer{'s' * (len(absent) > 1)} {', '.join(absent)}"
    left_out = f" {layers} left out: no weights of tokens on tokens there." if absent else ""
    words = (
        f"“{attention.question}” – {attention.answer}. Each row is a token, each cell in it how much that token looks at"
        f" an earlier one or at itself{'; a row sums to 100 %' if _sums_to_one(heads) else ''}. The answer is chosen in the"
        " outlined row, and “·” is a space. The small pictures select a head; shown first is the one with the largest weight on"
        f" one earlier token in that row.{left_out}"
    )
    block = Heads(tokens, heads, answer_row([visible(token) for token in tokens]), min(24.0, 560 / len(tokens)))
    return section("Attention of one answer", Text([words]), block)


# Confidence


def _confidence_facts(calibration: CalibrationSummary) -> list[tuple[str, str]]:
    area = calibration.auroc
    known = f"{area.value:.3f}" if area else "-"
    if area and area.low is not None:
        known += f" ({area.low:.3f} to {area.high:.3f})"
    right = f"{percent(calibration.accuracy)} ({interval(calibration.low, calibration.high)})"
    return [
        ("Calibration questions", count(calibration.questions)),
        ("Most likely answers that are right", right),
        ("Candidate answers", count(calibration.candidates)),
        ("Calibration error before", percent(calibration.ece_before)),
        ("Calibration error after, on other questions than the fit", percent(calibration.ece_after)),
        ("Calibration error by chance, if perfectly calibrated", percent(calibration.ece_if_calibrated)),
        ("AUROC, right against wrong answers", known),
    ]


def _confidence_section(result: RecallResult) -> list[Section]:
    title, calibration = "How far its confidence can be trusted", result.calibration
    if calibration is None:
        return [] if result.track == "assisted" else section(title, Text([UNCALIBRATED]))
    words = [rule.words for rule in calibration.rules if rule.max_risk == _RISK]
    if result.held_out:
        words.append(
            f"This cost {plural(result.held_out, 'question')} that the model was not trained on, beside the"
            f" {count(result.data.training_questions)} that it was."
        )
    return section(title, Text(words), Facts("Calibration", _confidence_facts(calibration)))
