"""One run of a comparison in a process of its own, so that its peak memory is its own: trained, or gone on with; measured.

python -m attnlab.comparing.job FOLDER SPECIMEN SEED
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from attnlab import stages
from attnlab.comparing.measure import measure
from attnlab.comparing.plan import Plan, stages_of
from attnlab.errors import AttnlabError
from attnlab.machine import end_with_parent
from attnlab.runs import Run, read_json


def train(plan: Plan, folder: Path, name: str, seed: int) -> Run:
    """The run that is measured, trained as far as it is not."""
    path = plan.path(folder, name, seed)
    if plan.runs:
        return Run.open(path)
    specimen = plan.find(name)
    steps = stages_of(specimen, plan)
    settings = specimen.settings(seed)
    run: Run | None = None
    for stage in steps:
        # The run that is measured has the plain name, whatever it took to get there.
        place = path if stage == steps[-1] else path.with_name(f"{path.name}-{stage}")
        if (place / "config.json").is_file():
            run = stages.resume(Run.open(place))
        elif stage == "pretrain":
            assert plan.corpus is not None
            facts = plan.facts if stages.reads_questions(settings) else None
            run = stages.pretrain(settings, plan.corpus, facts, place)
        else:
            assert plan.facts is not None
            run = stages.finetune(specimen.settings(seed, stage), run, plan.facts, plan.corpus, place)
    assert run is not None
    return run


def main(arguments: list[str]) -> int:
    """Do one job; mistakes end in one line."""
    folder, name, seed = Path(arguments[0]), arguments[1], int(arguments[2])
    end_with_parent(signal.SIGINT)
    try:
        plan = Plan.stored(read_json(folder / "study.json")["plan"])
        run = train(plan, folder, name, seed)
        target = plan.measured(folder, name, seed)
        if not target.exists():
            measure(plan, run, target)
    except AttnlabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
