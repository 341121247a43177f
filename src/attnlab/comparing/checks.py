"""What is looked at before a comparison is trained, and again whenever it goes on: mistakes, overlaps, changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attnlab import corpora, stages
from attnlab.comparing.plan import Plan, stages_of
from attnlab.comparing.specimens import Specimen
from attnlab.config import code_named_in
from attnlab.errors import UserError
from attnlab.evaluate import cue
from attnlab.manifest import digest
from attnlab.model import LanguageModel

FEW_WORDS = 97


def check(plan: Plan) -> None:
    """Find mistakes before anything is trained: settings of every specimen and stage, data, questions that are too long."""
    sources = stages.Sources.read(plan.corpus, plan.facts)
    exam = corpora.load_questions(plan.exam) if plan.exam else ()
    if plan.exam and any(item.answer is None for item in exam):
        raise UserError(f"{plan.exam} has questions without answers: a comparison needs them all")
    seen, asked = seen_before(plan)
    if seen == asked:
        raise UserError(
            f"all of {plan.dev or plan.exam} is in what is learned from: measure on text or questions that are not"
        )
    if plan.runs:
        return
    config = plan.specimens[0].settings(plan.seeds[0])
    tokenizer = stages.learn_tokenizer(config, sources)
    for number, item in enumerate(exam, start=1):
        cue(tokenizer, item.question, config.model.block_size, number)
    for specimen in plan.specimens:
        for stage in stages_of(specimen, plan):
            stages.rehearse(specimen.settings(plan.seeds[0], stage), sources, tokenizer)
        try_once(specimen, plan.seeds[0])


def try_once(specimen: Specimen, seed: int) -> None:
    """Have a specimen's model read two words, so that a class that cannot is found before an hour is spent."""
    model = small_model(specimen, seed)
    try:
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.long))
    except Exception as error:  # whatever a user's class may raise
        raise UserError(
            f"{specimen.name} cannot read a text: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from None


def small_model(specimen: Specimen, seed: int) -> LanguageModel:
    """A fresh model of a specimen with few words: what is asked of it before training does not depend on the vocabulary."""
    config = specimen.settings(seed).model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LanguageModel(replace(config, vocab_size=FEW_WORDS, zero_init=False))


def seen_before(plan: Plan) -> tuple[int, int]:
    """How many of the sentences or questions that are measured were learned from, and of how many."""
    if plan.words:
        assert plan.dev is not None
        known = set(corpora.load_corpus(plan.corpus).lines) if plan.corpus else set()
        measured: Sequence[str] = corpora.load_corpus(plan.dev).lines
    else:
        assert plan.exam is not None
        known = {item.question for item in corpora.load_questions(plan.facts)} if plan.facts else set()
        measured = [item.question for item in corpora.load_questions(plan.exam)]
    return sum(one in known for one in measured), len(measured)


def fingerprints(plan: Plan) -> dict[str, str]:
    """Checksums of everything that a comparison is made of and that could change under it: data, the user's own files."""
    learned = stages.Sources.read(plan.corpus, plan.facts).described
    found = {key: entry["sha256"] for key, entry in learned.items() if entry}
    if plan.dev:
        found["dev"] = corpora.load_corpus(plan.dev).sha256
    if plan.exam:
        found["exam"] = stages.checksum(corpora.load_questions(plan.exam))
    found |= {one: corpora.load_corpus(one).sha256 for one in {each.corpus for each in plan.specimens} if one}
    if not plan.runs:
        for one in plan.specimens:
            found |= sums_of_files(one.file, one.given)
    return found


def sums_of_files(settings: str | None, given: Mapping[str, Any]) -> dict[str, str]:
    """Checksums of the user's own files that settings are made of: the settings file, and the code that is named."""
    named = code_named_in({"file": settings, "given": given})
    found = {}
    for path in [*([Path(settings)] if settings else []), *(Path(one.rpartition(":")[0]).resolve() for one in named)]:
        try:
            found[str(path)] = digest(path.read_bytes())
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}), and the study needs it: restore it") from None
    return found


def refuse_changes(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to resume a study whose data, settings or code have changed since it began."""
    changed = [name for name in before if now.get(name) != before[name]]
    if changed:
        raise UserError(
            f"{', '.join(changed)} changed since this study began, and its runs would not belong together:"
            " restore what changed, or start a new study"
        )
