"""The questions of a recall study by their use: to train with, to calibrate with, and those that a reader writes.

Where nothing is kept back and nothing written, they are the user's own files; else they lie in the study's folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnlab import corpora
from attnlab.corpora import Corpus, Question
from attnlab.reader import Reader
from attnlab.runs import verify, write_folder

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
