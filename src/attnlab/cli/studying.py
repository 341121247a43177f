"""The verb that does whole studies: run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from attnlab.cli.common import NONE, MaxRisk, Seed, Settings, Whole, app, collect, console, read_numbers, read_seeds
from attnlab.errors import UserError

# Options that only some studies take, by study.
OWN = {
    "recall": ("exam", "facts", "held_out", "seed", "track"),
    "trust": ("exam", "facts", "max_risk", "seed"),
    "why": ("exposures", "forms", "jobs", "seeds"),
    "comparisons": ("dev", "exam", "facts", "jobs", "seeds"),
}


@app.command
def run(
    study: str = "recall",
    /,
    *,
    corpus: str | None = None,
    dev: str | None = None,
    facts: str | None = None,
    exam: str | None = None,
    out: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    mechanism: str | None = None,
    seed: Seed | None = None,
    seeds: str | None = None,
    jobs: Whole | None = None,
    track: str | None = None,
    held_out: Whole | None = None,
    max_risk: MaxRisk | None = None,
    forms: str | None = None,
    exposures: str | None = None,
    quick: bool = False,
    given: Settings = NONE,
) -> None:
    """Do a whole study and write its report; without a name, the main job on the built-in people.

    recall              what does a small model remember of what it read?
    trust               does it know what it does not know? Lines are withheld, and names invented
    why                 why does reading help? Right answers by exposures and by sentence forms
    additive-vs-dot     additive attention beside dot-product attention, on sentences
    shared-projections  one projection for queries and keys, or for all three
    masking             zeros after the softmax: a gain that is a leak
    efficient           what every mechanism remembers, in which time and memory

    Of recall, trust and why, settings of training and task given by hand are those of pretraining; a file given by --config
    may hold tables [finetune.train] and [scratch.train] for the other trainings. The rest are comparisons: see
    `attnlab compare`.

    Parameters
    ----------
    study
        The study.
    corpus
        Text, one sentence or document a line: a file, or people, prose:train (built in); of why people:300 and the like.
    dev
        Other text to be measured on: a file, or prose:dev (additive-vs-dot, shared-projections, masking).
    facts
        Training questions, question<TAB>answer a line: a file, or people:train (recall, trust, efficient). Of a file, trust
        sets two fifths aside to calibrate with and to examine on.
    exam
        Questions to be examined on: a file, or people:test (recall, efficient; may be given for trust).
    out
        Folder for everything; must not exist. Default: runs/STUDY-N.
    preset
        Where the settings start from. Default: small for recall of the built-in people, recall for that of files and for
        trust, nano-words for sentences, quick for efficient, reader for why.
    config
        A TOML file with settings that lie over the preset.
    mechanism
        Attention mechanism of recall, trust or why; short for model.mechanism.
    seed
        Seed of weights, order and views (recall, trust), and of who is withheld (trust).
    seeds
        How many runs of each specimen, or their seeds: 3,4,5 (comparisons and why; default 3).
    jobs
        Runs at a time (comparisons and why). Default: one a core.
    track
        Of recall: pure (the model learns from text and training questions, and answers by itself), or assisted (a reader of
        our own writes questions about the other documents, and answers are chosen among those known).
    held_out
        Training questions kept back to calibrate `attnlab ask` with (recall). Default: a tenth of a file in the pure track;
        of the built-in people none, since people:dev serves.
    max_risk
        Share of answers that may be wrong (trust; default 0.1).
    forms
        In how many sentence forms everybody is told: 1,2,4,8 (why).
    exposures
        How often everybody is met in reading: 8,24,48 (why).
    quick
        A smaller world: the same story in a minute or two, of comparisons and why in a few.
    """
    from attnlab import runs, studies
    from attnlab.studies import compare as comparing
    from attnlab.studies import recall, trust, why
    from attnlab.studies.compare.ready import ready_plan

    runs.refuse_several("a study")
    studies.find(study)
    named: dict[str, Any] = {"dev": dev, "facts": facts, "exam": exam, "seed": seed, "seeds": seeds, "jobs": jobs}
    named |= {"track": track, "held_out": held_out, "max_risk": max_risk, "forms": forms, "exposures": exposures}
    refuse_others(study, named)
    folder = out or runs.free_name(study)
    shared: dict[str, Any] = {
        "given": collect(given, mechanism, seed),
        "quick": quick,
        "command": "attnlab " + shlex.join(sys.argv[1:]),
    }
    several: dict[str, Any] = {
        "preset": preset,
        "config": config,
        "seeds": read_seeds(seeds) if seeds else None,
        "jobs": jobs or 0,
    }
    single: dict[str, Any] = {"preset": preset or usual(study, corpus, quick), "file": str(config) if config else None}
    if study == "recall":
        about = recall_data(corpus, facts, exam, quick, track or "pure", held_out)
        recall.begin(recall.Plan(**about, **single, **shared), folder, console)
    elif study == "trust":
        about = trust_data(corpus, facts, exam, quick)
        risk = 0.1 if max_risk is None else max_risk
        trust.begin(trust.Plan(**about, max_risk=risk, **single, **shared), folder, console)
    elif study == "why":
        numbers: dict[str, Any] = {
            "forms": read_numbers(forms, "forms"),
            "exposures": read_numbers(exposures, "exposures"),
        }
        why.begin(why.make_plan(world=corpus, **numbers, **several, **shared), folder, console)
    else:
        data = comparing.Data(corpus, dev, facts, exam)
        comparing.begin(ready_plan(study, data, **several, **shared), folder, console)


def refuse_others(study: str, named: dict[str, Any]) -> None:
    """Refuse options that are for other studies, saying for which."""
    own = OWN.get(study, OWN["comparisons"])
    if "seed" not in own and named["seed"] is not None:
        raise UserError(f"{study} needs several seeds: --seeds 3, or --seeds 7,8,9")
    for name, value in named.items():
        if value is not None and name not in own:
            takers = ", ".join(taker for taker, options in OWN.items() if name in options)
            raise UserError(f"--{name.replace('_', '-')} is for {takers}, not for {study}: leave it out")


def usual(study: str, corpus: str | None, quick: bool) -> str:
    """The preset of a study of one model: the longer training where it is about what a model knows, or about files."""
    return "quick" if quick else "small" if study == "recall" and corpus is None else "recall"


def recall_data(
    corpus: str | None, facts: str | None, exam: str | None, quick: bool, track: str, held_out: int | None
) -> dict[str, Any]:
    """What recall is about: the user's three files, a tenth of whose questions calibrates, or the built-in people."""
    from attnlab import corpora

    if (corpus is None) != (facts is None) or (corpus is None) != (exam is None):
        raise UserError("--corpus, --facts and --exam go together: give all three, or none for the built-in people")
    if corpus is not None and facts is not None:
        usually = 0 if track == "assisted" else len(corpora.load_questions(facts)) // 10
        kept = usually if held_out is None else held_out
        return {"corpus": corpus, "facts": facts, "exam": exam, "track": track, "held_out": kept}
    world = "people:300" if quick else "people"
    parts = {"facts": f"{world}:train", "exam": f"{world}:test", "calibration": f"{world}:dev"}
    return {"corpus": world, **parts, "track": track, "held_out": held_out or 0}


def trust_data(corpus: str | None, facts: str | None, exam: str | None, quick: bool) -> dict[str, Any]:
    """What trust is about: the user's files, whose facts are split where there is no examination, or the built-in people."""
    if (corpus is None) != (facts is None) or (corpus is None and exam is not None):
        raise UserError("--corpus and --facts go together: give both, or none for the built-in people")
    if corpus is not None:
        return {"corpus": corpus, "facts": facts, "calibration": None, "known": exam}
    world = "people:600" if quick else "people"
    parts = {"facts": f"{world}:train", "calibration": f"{world}:dev", "known": f"{world}:test"}
    return {"corpus": world, **parts, "withheld": 60 if quick else 200}
