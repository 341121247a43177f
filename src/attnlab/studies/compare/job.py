"""One run of a comparison in a process of its own, so that its peak memory is its own: trained, or gone on with; measured.

python -m attnlab.studies.compare.job FOLDER SPECIMEN SEED PARENT
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from attnlab import stages
from attnlab.errors import AttnlabError
from attnlab.folders import is_written, locked, read_json
from attnlab.machine import end_with_parent
from attnlab.runs import Run
from attnlab.studies.compare.measure import measure
from attnlab.studies.compare.plan import Plan, fingerprints, stages_of
from attnlab.studies.study import refuse_changes
from attnlab.terminal import unexpected


def train(plan: Plan, folder: Path, name: str, seed: int) -> Run:
    """The run that is measured, trained as far as it is not."""
    path = plan.path(folder, name, seed)
    if plan.runs:
        return Run.open(path)
    specimen = plan.find(name)
    steps = stages_of(specimen, plan)
    settings, corpus = specimen.settings(seed), plan.text_of(name)
    run: Run | None = None
    for stage in steps:
        # The run that is measured has the plain name, whatever it took to get there.
        place = path if stage == steps[-1] else path.with_name(f"{path.name}-{stage}")
        if (place / "config.json").is_file():
            run = stages.resume(Run.open(place))
        elif stage == "pretrain":
            assert corpus is not None
            facts = plan.facts if stages.reads_questions(settings) else None
            run = stages.pretrain(settings, corpus, facts, place)
        else:
            assert plan.facts is not None
            run = stages.finetune(specimen.settings(seed, stage), run, plan.facts, corpus, place)
    assert run is not None
    return run


def work(folder: Path, name: str, seed: int) -> None:
    """Train and measure a run, as far as that is not done."""
    study = read_json(folder / "study.json")
    plan = Plan.stored(study["plan"])
    refuse_changes(study.get("fingerprints", {}), fingerprints(plan))
    target = plan.measured(folder, name, seed)
    if target.exists() and not is_written(plan.path(folder, name, seed) / "result.json"):
        shutil.rmtree(target)  # of a run that is there no more
    run = train(plan, folder, name, seed)
    if not target.exists():
        measure(plan, run, target)


def main(arguments: list[str]) -> int:
    """Do one job; mistakes end in one line."""
    folder, name, seed, parent = Path(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from its parent, also where the parent ignores Ctrl-C
    end_with_parent(signal.SIGINT)
    if os.getppid() != parent:
        return 130  # it ended before it could be watched
    try:
        plan = Plan.stored(read_json(folder / "study.json")["plan"])
        with locked(folder / "logs", f"{plan.find(name).folder}-seed-{seed}.lock"):
            work(folder, name, seed)
    except AttnlabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        line, code = unexpected(error)
        sys.stderr.write(f"{line}\n")
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
