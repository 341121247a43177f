"""One whole classification: a model is trained, measured and written down, in a folder that is there whole or not at all."""

from __future__ import annotations

import importlib.metadata
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnlab.corpora.labelled import Tables
from attnlab.errors import Interrupted
from attnlab.hf import bag
from attnlab.hf.models import PACKAGES
from attnlab.hf.outcome import Epoch, Outcome
from attnlab.hf.places import need_extra
from attnlab.hf.results import make_result, predictions
from attnlab.hf.settings import BAG_OF_WORDS, FineTuning
from attnlab.report import strict, write_report
from attnlab.runs import disk, environment, folders_above, refuse_existing, to_json, write_bytes, write_manifest
from attnlab.stages import QUIET, Show, silent


def fine_tune(
    model: str,
    tables: Tables,
    settings: FineTuning,
    folder: Path | None = None,
    show: Show = QUIET,
    after_epoch: Callable[[Epoch], None] = silent,
) -> Outcome:
    """Fine-tune a model on tables; with a folder its best epoch is saved there and measured once on the test table.

    Without one nothing is written and the test table is not touched: so it can be called as often as a search likes. Whoever
    raises in `after_epoch` ends it there.
    """
    need_extra(*PACKAGES)
    if folder is not None:
        with disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
    if model == BAG_OF_WORDS:
        return bag.run(tables, settings, folder, show)
    from attnlab.hf import fine_tuning

    return fine_tuning.run(model, tables, settings, folder, show, after_epoch)


def make_classifier(
    model: str, tables: Tables, settings: FineTuning, out: Path, show: Show = QUIET, command: str = ""
) -> dict[str, Any]:
    """Train, measure and report; the folder holds model/, result.json, predictions.tsv and the report."""
    refuse_existing(out)
    need_extra(*PACKAGES)
    with staged(out) as folder:
        (folder / "model").mkdir()
        outcome = fine_tune(model, tables, settings, folder / "model", show)
        found = {
            **make_result(model, tables, settings, outcome),
            "command": command,
            "finished": time.strftime("%Y-%m-%d %H:%M"),
            "environment": {**environment(), **versions()},
        }
        result: dict[str, Any] = strict(found)
        write_bytes(folder / "predictions.tsv", ("\n".join(predictions(tables, outcome)) + "\n").encode())
        write_report(result, folder)
        write_bytes(folder / "result.json", to_json(result))
        write_manifest(folder / "model", "model")
        write_manifest(folder, "classifier")
    return result


def versions() -> dict[str, str]:
    """The versions of what classification stands on, by the name one installs."""
    names = ("scikit-learn" if name == "sklearn" else name for name in PACKAGES)
    return {name: importlib.metadata.version(name) for name in names}


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder to be filled, which gets its name when all is there; what was stopped leaves nothing behind."""
    try:
        with folders_above(out), tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
            filled = Path(work) / "filled"
            filled.mkdir()
            yield filled
            refuse_existing(out)
            with disk(out):
                filled.rename(out)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped: nothing was written to {out}; give the command again to start anew") from None
