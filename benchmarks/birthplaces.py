"""How much `small` recalls of the CS224n birthplaces: 1,800 of the 2,000 training questions to learn, 200 to be examined on.

    ATTNLAB_DATA=path/to/data python benchmarks/birthplaces.py [--split 0] [--out DIR] [settings as for `attnlab pretrain`]

Prints the accuracy after pretraining and after fine-tuning, tokens per second, and minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from attnlab import cli
from attnlab.corpora import as_table, load_questions
from attnlab.store.runs import Run


def split_questions(source: Path, folder: Path, seed: int, held_out: int = 200) -> tuple[Path, Path]:
    """The training questions shuffled by seed and cut: those to learn from, and those held out."""
    lines = list(as_table(load_questions(source)))
    random.Random(seed).shuffle(lines)
    paths = folder / "train.tsv", folder / "dev.tsv"
    for path, part in zip(paths, (lines[:-held_out], lines[-held_out:]), strict=True):
        path.write_text("\n".join(part) + "\n", encoding="utf-8")
    return paths


def data_folder() -> Path:
    """The folder of the birthplaces, in ATTNLAB_DATA."""
    if "ATTNLAB_DATA" not in os.environ:
        sys.exit("set ATTNLAB_DATA to the folder that holds birthplaces/wiki.txt and birth_places_train.tsv")
    return Path(os.environ["ATTNLAB_DATA"]) / "birthplaces"


def options(about: str | None, **defaults: int | str) -> argparse.ArgumentParser:
    """A parser of options with defaults, and the docstring of the program as its help."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default!r}")
    return parser


def main() -> None:
    """Split, pretrain, fine-tune, examine both."""
    given, settings = options(__doc__, split=0, out="").parse_known_args()
    data = data_folder()
    folder = Path(given.out or tempfile.mkdtemp(prefix="birthplaces-"))
    folder.mkdir(parents=True, exist_ok=True)
    facts, exam = (str(path) for path in split_questions(data / "birth_places_train.tsv", folder, given.split))
    base, tuned = str(folder / "pretrain"), str(folder / "finetune")
    cli.main(["pretrain", "--corpus", str(data / "wiki.txt"), "--facts", facts, "--out", base, *settings])
    cli.main(["finetune", base, "--facts", facts, "--out", tuned])
    for name in (base, tuned):
        print(Path(name).name, end=": ", flush=True)
        cli.main(["evaluate", name, "--exam", exam, "--out", f"{name}-exam"])
    results = [Run.open(name).result for name in (base, tuned)]
    print(
        f"{results[0].tokens_per_second:,.0f} tokens/s, {sum(result.seconds for result in results) / 60:.1f} minutes, {folder}"
    )


if __name__ == "__main__":
    main()
