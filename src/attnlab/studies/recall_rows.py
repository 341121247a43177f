"""The contestants of the study of recall: examined on the same questions, one row each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from attnlab import corpora
from attnlab.answers import AnswerTrie, answer_distribution
from attnlab.corpora import Corpus, Question
from attnlab.evaluate import Examination, cue, examine, majority
from attnlab.model import LanguageModel, load_model
from attnlab.reader import Reader
from attnlab.runs import Run
from attnlab.studies.lessons import Lessons
from attnlab.tokenizers import Tokenizer
from attnlab.trust.candidates import candidates

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
    room = model.config.block_size - max(len(cue(tokenizer, question, model.config.block_size)) for question in asked)
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
