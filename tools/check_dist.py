"""Builds wheel and sdist, installs each into an empty environment from the locks, and uses what was installed.

Why: an editable install finds files that a built package may lack, and an environment of tests has more than users have.

    python tools/check_dist.py [arguments for pip]
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Words of a command, and what its output must contain.
COMMANDS = [
    ("--version", "0."),
    ("params mingpt", "3,323,392"),
    ("design select --keys 1,0;0,1;1,1 --values 1,0;0,1;5,5 --index 2 --tolerance 0.01", "query"),
    ("corpus find Hank_Aaron --corpus people", "Mobile"),
]


def call(*words: str, cwd: Path = ROOT) -> str:
    """The output of a command; a failure ends the program with what the command said."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}failed with exit code {done.returncode}")
    return done.stdout


def contents(archive: Path) -> set[str]:
    """The files of the package inside a wheel or sdist, as paths below attnlab/."""
    if archive.suffix == ".whl":
        names = zipfile.ZipFile(archive).namelist()
    else:
        with tarfile.open(archive) as tar:
            names = [name.partition("/src/")[2] for name in tar.getnames()]
    return {name for name in names if name.startswith("attnlab/")}


def check(archive: Path, pip_arguments: list[str], folder: Path) -> None:
    """Compares an archive with the source tree, installs it into an empty environment, and runs it there."""
    package = ROOT / "src/attnlab"
    source = {p.relative_to(ROOT / "src").as_posix() for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    if difference := contents(archive) ^ source:
        raise SystemExit(f"{archive.name} and src/ differ in {', '.join(sorted(difference))}")
    started = time.monotonic()
    venv.create(folder, with_pip=True)
    # Most of the byte code would never be used.
    install = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "--no-compile", *pip_arguments]
    call(*install, "--require-hashes", "--no-deps", "-r", "requirements/run.txt")
    call(*install, "-r", "requirements/torch.txt")
    call(*install, "--no-deps", "--no-build-isolation", str(archive))
    call(str(folder / "bin/python"), "-m", "pip", "check")
    for command, expected in COMMANDS:
        words = [word.replace("_", " ") for word in command.split()]
        if expected not in (output := call(str(folder / "bin/attnlab"), *words, cwd=folder)):
            raise SystemExit(f"attnlab {command}: {expected!r} is not in the output:\n{output}")
    print(f"{archive.name}: {len(source)} files, installed and used in {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    """Builds both archives and checks each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call(sys.executable, "-m", "hatchling", "build", "-d", str(folder))
        archives = sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz")))
        assert len(archives) == 2
        for number, archive in enumerate(archives):
            check(archive, sys.argv[1:], folder / f"environment-{number}")


if __name__ == "__main__":
    main()
