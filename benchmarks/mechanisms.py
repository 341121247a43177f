"""Our mechanisms beside the libraries people use: time, memory, leaks, and whether the targets are met.

    python benchmarks/mechanisms.py [--only performer,bigbird] [--lengths 512,2048,8192,16384] [--json FILE]

The first run makes an environment with the libraries of peers-requirements.txt (in the cache folder; ATTNLAB_PEERS names
another place), and all runs work in it, with attnlab from this checkout. pip reads its own settings: where torch for CPUs
has an index of its own, say so by PIP_EXTRA_INDEX_URL. A library that cannot be installed or run is reported and left out.
What is measured stands in contest.py, and how the libraries are called in peers.py. Exit 1 when a target is missed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "peers-requirements.txt"


def environment_folder() -> Path:
    """Where the environment of the peers is; another for every set of versions."""
    stamp = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ATTNLAB_PEERS") or cache / "attnlab" / f"peers-{stamp}")


def install(folder: Path) -> None:
    """Make the environment: all pins at once, and where that fails one by one, so that one peer does not cost the others."""
    print(f"making an environment for the peers in {folder}: a minute or two", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
    torch, *others = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    subprocess.run([*pip, torch], check=True)
    missing = []
    if subprocess.run([*pip, torch, *others]).returncode:
        missing = [pin for pin in others if subprocess.run([*pip, torch, pin]).returncode]
    (folder / "ready.json").write_text(json.dumps({"missing": missing}))


def main() -> None:
    """Go on inside the environment of the peers."""
    folder = environment_folder()
    if not (folder / "ready.json").is_file():
        install(folder)
    for pin in json.loads((folder / "ready.json").read_text())["missing"]:
        print(f"{pin} could not be installed and is left out: remove {folder} to try again", flush=True)
    python = str(folder / "bin" / "python")
    inside = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "OMP_NUM_THREADS": "1"}
    # The compiler's helper of the environment comes before others, and those of the system remain.
    inside["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execve(python, [python, str(HERE / "contest.py"), *sys.argv[1:]], inside)


if __name__ == "__main__":
    main()
