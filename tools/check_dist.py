"""Builds wheel and sdist, installs each into an empty environment from the locks, and uses what was installed.

Why: an editable install finds files that a built package may lack, and an environment of tests has more than users have.

    python tools/check_dist.py [arguments for pip]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
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
    ("ask example Where_was_Jimmy_Collins_born?", "recalled and supported"),
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


def pip_install(environment: Path, *arguments: str) -> None:
    """Installs into an environment; most of the byte code would never be used."""
    call(str(environment / "bin/python"), "-m", "pip", "install", "-q", "--no-compile", *arguments)


def check(archive: Path, environment: Path) -> None:
    """Compares an archive with the source tree, installs it into an environment of dependencies, and runs it there."""
    package = ROOT / "src/attnlab"
    source = {p.relative_to(ROOT / "src").as_posix() for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    if difference := contents(archive) ^ source:
        raise SystemExit(f"{archive.name} and src/ differ in {', '.join(sorted(difference))}")
    pip_install(environment, "--no-deps", "--no-build-isolation", str(archive))
    call(str(environment / "bin/python"), "-m", "pip", "check")
    for command, expected in COMMANDS:
        words = [word.replace("_", " ") for word in command.split()]
        if expected not in (output := call(str(environment / "bin/attnlab"), *words, cwd=environment)):
            raise SystemExit(f"attnlab {command}: {expected!r} is not in the output:\n{output}")
    print(f"{archive.name}: {len(source)} files, installed and used", flush=True)


def main() -> None:
    """Builds both archives and checks each in an environment of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call(sys.executable, "-m", "hatchling", "build", "-d", str(folder))
        archives = sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz")))
        assert len(archives) == 2
        first, second = folder / "first", folder / "second"
        venv.create(first, with_pip=True)
        pip_install(first, *sys.argv[1:], "--require-hashes", "--no-deps", "-r", "requirements/run.txt")
        pip_install(first, *sys.argv[1:], "-r", "requirements/torch.txt")
        # Installing the dependencies a second time would take a minute.
        shutil.copytree(first, second, symlinks=True, copy_function=os.link)
        for archive, environment in zip(archives, (first, second), strict=True):
            check(archive, environment)


if __name__ == "__main__":
    main()
