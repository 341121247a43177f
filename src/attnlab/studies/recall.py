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
from attnlab.lm.evaluate import encode_question, encode_questions, examine
from attnlab.lm.exams import Examination, Scored, majority
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.reader import Reader
from attnlab.report import parts
from attnlab.report.document import Answer, Answers, Document, Head, Heads, Piece, Section, Text, section
from attnlab.report.words import capital, count, figure, legend, percent, plural, quoted, short_answer, visible
from attnlab.store.folders import add_files, verify, write_folder
from attnlab.store.runs import Run
from attnlab.studies import options as opt
from attnlab.studies.study import study
from attnlab.studies.training import DataSummary, Training, TrainingResult, calibration_facts, read_run
from attnlab.trust import CalibrationSummary, Oracle, calibrate
from attnlab.trust.answers import AnswerTrie, answer_distribution
from attnlab.trust.training_data import TrainingData, candidates

_SHOWN = 12  # right and wrong answers in the report
_TRACKS = {
    "pure": "What does a small model remember?",
    "assisted": "What does a small model remember when a reader helps it to learn?",
}
_RUNS = ("pretrain", "finetune", "no-pretraining")
_SURE = 0.5  # minimum probability of an answer that the reader teaches
_FLOOR = 1e-4  # answer prefixes less likely than this are not continued
_FOLDER, _TRAIN, _HELD_OUT, _TAUGHT = "questions", "train.tsv", "held-out.tsv", "taught.tsv"
_RISK = 0.1  # of wrong answers, for which the guarantee is shown
UNCALIBRATED = (
    "Not calibrated: its probabilities guarantee nothing. Calibrate it with questions that it was not trained on (attnlab"
    " calibrate RUN --questions FILE), or train again without N of the training questions (--held-out N)."
)
_CUE = "⁇"  # the symbol after which an answer is written
_Patterns = Sequence[Sequence[Sequence[float]]]  # heads x rows x columns


@dataclass(frozen=True, kw_only=True)
class Row(Scored):
    """A model or a baseline with its score, and how it is called in a sentence."""

    subject: str
    role: str = ""  # control, baseline


@dataclass(frozen=True, kw_only=True)
class RecallResult(TrainingResult):
    """The result of the study."""

    data: DataSummary
    written_questions: int  # by the reader
    held_out: int  # training questions kept for calibration
    rows: list[Row]
    answers: list[Section]  # some right and wrong ones in the lines that they come from
    attention: list[Section]  # of one answer; empty without weights over tokens
    calibration: CalibrationSummary | None


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
        sources = self.data.in_memory(corpus, split_facts(corpus, facts, self.held_out, self.seed)[0])
        self.check_stages(get_args(Stage), sources, self.data.questions(self.exam))

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
        corpus, exam = self.data.corpus(self.corpus), self.data.questions(self.exam)
        lessons = self._prepare(folder)
        facts, taught = self.data.questions(lessons.asked), self.data.questions(lessons.taught)
        runs = {name: Run.open(folder / name) for name in _RUNS}
        pretrained, run, _ = runs.values()
        examinations = examine_all(runs, corpus, facts, exam)
        final = load_model(run.model)
        if self.track == "assisted":
            examinations |= {_MAIN: choose(*final, taught, exam), _READER: self._read(exam)}
        main = examinations[_MAIN]
        add_files(folder, {"predictions.txt": main.lines()})
        trained = {name: read_run(run) for name, run in runs.items()}
        data, mixed = self.data_summary(facts), pretrained.record.facts is not None
        rows = [
            describe(examinations[entry.name], entry, trained, mixed) for entry in _ROWS if entry.name in examinations
        ]
        calibration = self._calibrate(run, lessons, console)
        known = TrainingData(run, corpus, taught)
        example, risk = Oracle(run, data=known).suggest(exam)
        return RecallResult(
            title=_TRACKS[self.track],
            data=data,
            written_questions=len(taught) - len(facts),
            held_out=len(self.data.questions(self.facts)) - len(facts),
            rows=rows,
            runs=trained,
            answers=answers_section(main, corpus),
            attention=_attention_of(*final, main),
            calibration=calibration,
            verdict=[outcome(rows, data)],
            example=example,
            example_risk=risk,
        )

    def document(self, result: RecallResult) -> Document:
        """Return the whole report."""
        rows, data = result.rows, result.data
        kept = [("Kept for calibration, not trained on", count(result.held_out))] if result.held_out else []
        written = ("Questions that a reader wrote", count(result.written_questions))
        sections = [
            *section("Results", parts.accuracy_chart(rows), parts.results_table(rows), parts.commonest_table(rows)),
            *result.answers,
            *result.attention,
            *self._confidence_section(result),
        ]
        return self.report(result, sections, data.facts(*kept, written, ("Track", self.track)), data.notices())

    def _confidence_section(self, result: RecallResult) -> list[Section]:
        title, calibration = "How far its confidence can be trusted", result.calibration
        if calibration is None:
            return [] if self.track == "assisted" else section(title, Text([UNCALIBRATED]))
        words = [rule.words for rule in calibration.rules if rule.max_risk == _RISK]
        if result.held_out:
            words.append(
                f"This cost {plural(result.held_out, 'question')} that the model was not trained on, beside the"
                f" {count(result.data.training_questions)} that it was."
            )
        return section(title, Text(words), calibration_facts(calibration))

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

    def _read(self, exam: tuple[Question, ...]) -> Examination:
        """The answers of the reader by itself, where a document is about the question."""
        corpus = self.data.corpus(self.corpus)
        texts = (
            self.reader.read(item.question).text if corpora.documents_about(corpus, item.question) else ""
            for item in exam
        )
        return Examination(exam, tuple(texts))

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
class _Entry:
    """A model with its run, or a baseline: its name, how it is called in a sentence, and what it does."""

    name: str
    run: str | None
    subject: str
    note: str
    role: str = ""


_MAIN, _ALONE, _MAJORITY, _OPEN = "pretrained + fine-tuned", "no pretraining", "majority answer", "crude open book"
_READER = "own reader, open book"
_PRETRAINED, _MIXED = "pretrained, not fine-tuned", "pretrained with the questions mixed in, not fine-tuned"
_LOOKS_UP = "looks up the document and"
_ROWS = (
    _Entry(_MAIN, "finetune", "the pretrained model", "read every document, then answered the training questions"),
    _Entry(_PRETRAINED, "pretrain", "the pretrained model, not fine-tuned,", "read every document"),
    _Entry(
        _ALONE,
        "no-pretraining",
        "the same model without pretraining",
        "the same model on the training questions alone",
        "control",
    ),
    _Entry(_MAJORITY, None, "always saying", "always the most common training answer", "baseline"),
    _Entry(_OPEN, None, "a reader with the book open", f"{_LOOKS_UP} takes the first known place in it"),
    _Entry(_READER, None, "its own reader", f"{_LOOKS_UP} reads it as learned from the training questions"),
)


def examine_all(
    runs: Mapping[str, Run], corpus: Corpus, facts: tuple[Question, ...], exam: tuple[Question, ...]
) -> dict[str, Examination]:
    """Examine every model and every baseline on the same questions."""
    results = {entry.name: examine(*load_model(runs[entry.run].model), exam) for entry in _ROWS if entry.run}
    places = {item.answer for item in facts if item.answer is not None}
    read = tuple(corpora.open_book(corpus, places, item.question) or "" for item in exam)
    return {**results, _MAJORITY: majority(facts, exam), _OPEN: Examination(exam, read)}


def describe(examination: Examination, entry: _Entry, runs: Mapping[str, parts.TrainedRun], mixed: bool) -> Row:
    """One line of the table of results; `mixed` says whether pretraining read the training questions too."""
    mixed = mixed and entry.run == "pretrain"
    spent = ("pretrain", "finetune") if entry.run == "finetune" else (entry.run,) if entry.run else ()
    answer = f" {short_answer(examination.score().commonest_prediction)}" if entry.name == _MAJORITY else ""
    return examination.scored(
        Row,
        name=_MIXED if mixed else entry.name,
        kind="model" if entry.run else "baseline",
        note=entry.note + (", with the training questions among them" if mixed else ""),
        seconds=sum(runs[name].seconds for name in spent) if spent else None,
        subject=entry.subject + answer,
        role=entry.role,
    )


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


# The sentence at the top


def order(row: Row, other: Row) -> int:
    """1 if the first is clearly better, -1 if clearly worse, 0 if the intervals overlap."""
    assert row.low is not None
    assert row.high is not None
    assert other.low is not None
    assert other.high is not None
    return int(row.low > other.high) - int(row.high < other.low)


def outcome(rows: Sequence[Row], data: DataSummary) -> str:
    """The main result, in one sentence or two: the first row beside the control and the baseline."""
    main, asked = rows[0], plural(rows[0].questions, "question")
    if data.corpus == "people" and data.exam in ("people:test", "people:dev", "people:calibration"):
        asked += " about people it was never asked about"
    if main.accuracy is None:
        return capital(
            f"{main.subject} predicts answers to {asked}; the exam has no answers to compare with, so nothing is scored."
            f" Its most common answers: {parts.commonest_words(main)}."
        )
    control, baseline = (next(row for row in rows if row.role == role) for role in ("control", "baseline"))
    looked_up = next((row for row in rows if row.name == _OPEN), None)
    lookup = ""
    if looked_up is not None and looked_up.accuracy is not None and looked_up.accuracy > main.accuracy:
        surely = "does better" if order(looked_up, main) > 0 else "gets more right, though the 95 % intervals overlap"
        lookup = f" Looking the line up and taking the first known place in it {surely}: {percent(looked_up.accuracy)}."
    reference = f"{baseline.subject} ({figure(baseline.accuracy, 'share')})"
    words = f"{main.subject} correctly answers {percent(main.accuracy)} of {asked}; {control.subject}"
    words += f" {figure(control.accuracy, 'share')}"
    if order(main, control) > 0:
        than = ("clearly less than", "which this exam cannot tell from", "clearly more than")
        words += f", {than[1 + order(control, baseline)]} {reference}."
        if order(main, baseline) <= 0:
            level = "clearly below that" if order(main, baseline) < 0 else "not clearly above that"
            words += " " + capital(f"{main.subject} itself is {level}.")
        return capital(words) + lookup
    overlap = "and as the 95 % intervals overlap, this exam cannot tell the two apart"
    words += f", {overlap if order(main, control) == 0 else 'which is clearly more'}. "
    above = [row.subject for row in (main, control) if order(row, baseline) > 0]
    both = ("neither is", f"only {above[0]} is" if above else "", "both are")[len(above)]
    return capital(words) + capital(f"{both} clearly above {reference}.") + lookup


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


def answers_section(examination: Examination, corpus: Corpus) -> list[Section]:
    """The first right and wrong answers, each with the line that it comes from; none if the exam has no answers."""
    if not examination.answered:
        return []
    right: list[Answer] = []
    wrong: list[Answer] = []
    for item, prediction, is_right in zip(
        examination.questions, examination.predictions, examination.right, strict=True
    ):
        side, answer = right if is_right else wrong, item.answer or ""
        if len(side) < _SHOWN:
            documents = corpora.documents_about(corpus, item.question)
            source = corpus.lines[documents[0]] if documents else None
            pieces = tuple(cut(source, answer, "" if is_right else prediction)) if source else ()
            verdict = "" if is_right else fault(source, answer, prediction)
            side.append(Answer(item.question, prediction, is_right, answer, "", verdict, pieces))
    words = (
        "The line under each answer is what the model read about it; the right answer is highlighted, and so is the wrong"
        " one where it occurs in the same line."
    )
    if wrong:
        ways = Counter(item.verdict for item in wrong).most_common()
        words += f" Of the wrong answers shown: {', '.join(f'{number} {way}' for way, number in ways)}."
    return section("Answers", Text([words]), parts.side_by_side([Answers("Right", right), Answers("Wrong", wrong)]))


# The attention of one answer


@torch.inference_mode()
def _attention_of(model: LanguageModel, tokenizer: Tokenizer, examination: Examination) -> list[Section]:
    """The attention patterns of the first right answer, or the first; nothing without weights over tokens."""
    index = examination.right.index(True) if examination.answered and any(examination.right) else 0
    question, prediction = examination.questions[index].question, examination.predictions[index]
    ids = [*encode_question(tokenizer, question, model.config.block_size), *tokenizer.encode(prediction)]
    ids = ids[: model.config.block_size]
    try:
        with capture(model, "hook_pattern") as seen:
            model(torch.tensor([ids], device=model.device))
    except RuntimeError:
        return []  # a mechanism without a pattern
    taps = [seen.get(f"blocks.{layer}.attn.hook_pattern") for layer in range(model.config.n_layer)]
    patterns = [tap[0].tolist() if tap is not None and is_over_tokens(tap, len(ids)) else [] for tap in taps]
    tokens = [tokenizer.piece(token) for token in ids]
    return attention_section(f"“{question}” – {prediction}", tokens, patterns) if any(patterns) else []


def attention_section(text: str, tokens: Sequence[str], patterns: Sequence[_Patterns]) -> list[Section]:
    """All heads layer by layer, each with the token it looks at most where the answer is chosen: after the last cue."""
    cues = [place for place, token in enumerate(tokens) if token.strip() == _CUE]
    row = cues[-1] if cues else len(tokens) - 1
    heads = []
    for layer, maps in enumerate(patterns, start=1):
        for number, pattern in enumerate(maps, start=1):
            weights = [[round(weight, 3) for weight in line] for line in pattern]
            column = parts.strongest(weights[row])
            most = f"{quoted(tokens[column])} ({percent(weights[row][column])})"
            words = f"Where the answer is chosen (row {quoted(tokens[row])}), it looks most at {most}."
            heads.append(Head(layer, number, weights, words))
    # Up to rounding; the rows of some mechanisms do not.
    sums = all(abs(sum(line) - 1) <= 0.001 * (1 + len(line)) for head in heads for line in head.pattern)
    absent = [str(layer) for layer, maps in enumerate(patterns, start=1) if not maps]
    layers = f"Layer{'s' * (len(absent) > 1)} {', '.join(absent)}"
    left_out = f" {layers} left out: no weights of tokens on tokens there." if absent else ""
    words = (
        f"{text}. Each row is a token, each cell in it how much that token looks at an earlier one or at"
        f" itself{'; a row sums to 100 %' if sums else ''}. The answer is chosen in the outlined row."
        f" {legend(*map(visible, tokens))} The small pictures select a head; shown first is the one with the largest weight"
        f" on one earlier token in that row.{left_out}"
    )
    block = Heads(tokens, heads, row, min(24.0, 560 / len(tokens)))
    return section("Attention of one answer", Text([words]), block)
