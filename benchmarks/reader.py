"""How well the reader answers questions about people it was not asked about: cross-validation on the CS224n birthplaces.

    ATTNLAB_DATA=path/to/data python benchmarks/reader.py [--folds 5] [--split 0] [--errors FILE]

The 2,000 training questions are cut into folds by seed; every question is answered by a reader that learned from the other
folds. Beside it stand the share that is in the line at all, and the open book (the first known place of the line). With
`--errors` the questions that were answered wrongly are written to a file, each with its line.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

from birthplaces import data_folder, options

from attnlab.corpora import Corpus, Question, documents_about, load_corpus, load_questions, open_book
from attnlab.reader import Answer, Reader
from attnlab.stats import calibration, mean_interval, proportion_interval


def in_folds(questions: Sequence[Question], folds: int, seed: int) -> list[list[Question]]:
    """The questions shuffled by seed and dealt out."""
    drawn = random.Random(seed).sample(list(questions), len(questions))
    return [drawn[fold::folds] for fold in range(folds)]


def line_of(corpus: Corpus, question: Question) -> str:
    """The line that a question is about."""
    return corpus.lines[documents_about(corpus, question.question)[0]]


def share(name: str, right: Sequence[bool]) -> str:
    """A row: right answers in per cent, with a 95 % interval over the questions."""
    low, high = proportion_interval(sum(right), len(right))
    return f"{name:24} {100 * sum(right) / len(right):5.1f} %   [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    """Train and examine one reader per fold, then print the shares."""
    given, data = options(__doc__, folds=5, split=0, errors="").parse_args(), data_folder()
    corpus, questions = load_corpus(data / "wiki.txt"), load_questions(data / "birth_places_train.tsv")
    folds = in_folds(questions, given.folds, given.split)
    order: list[Question] = []
    answers: list[Answer] = []
    book: list[bool] = []
    each: list[float] = []
    began = time.process_time()
    for held in folds:
        rest = [one for fold in folds if fold is not held for one in fold]
        reader = Reader.train(corpus, rest)
        found = [reader.read(one.question) for one in held]
        each.append(100 * sum(one.answer == answer.text for one, answer in zip(held, found, strict=True)) / len(held))
        print(f"fold {len(each)}: {each[-1]:.1f} %", flush=True)
        order, answers = order + held, answers + found
        places = {one.answer for one in rest if one.answer}
        book += [open_book(corpus, places, one.question) == one.answer for one in held]
    seconds = (time.process_time() - began) / len(folds)
    right = [one.answer == answer.text for one, answer in zip(order, answers, strict=True)]
    inside = [one.answer is not None and one.answer in line_of(corpus, one) for one in order]
    spread = mean_interval(each)
    print(share("reader", right), f"  mean of folds {spread.mean:.1f} [{spread.low:.1f}, {spread.high:.1f}]")
    print(share("open book", book))
    print(share("in the line at all", inside))
    print(share("reader, where it is", [yes for yes, there in zip(right, inside, strict=True) if there]))
    sure = [answer.probability >= 0.5 for answer in answers]
    print(
        share("where surer than half", [yes for yes, enough in zip(right, sure, strict=True) if enough]),
        f"  {sum(sure)}",
    )
    print(f"calibration error {calibration([answer.probability for answer in answers], right).ece:.3f}")
    print(f"{seconds:.1f} seconds of one core a fold")
    if given.errors:
        rows = [
            f"{one.answer}\t{answer.text}\t{answer.probability:.2f}\t{line_of(corpus, one)}\n"
            for one, answer, yes in zip(order, answers, right, strict=True)
            if not yes
        ]
        Path(given.errors).write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
