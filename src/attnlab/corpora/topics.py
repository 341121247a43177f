"""Built-in labelled sentences: English sentences of the standard library's docstrings, each with the topic of its module.

Why: a classifier needs labelled text, and this much of it is on every machine already (see prose.py, which also says whose
text it is). The topic follows from the module and the part from the docstring, so that sentences that were written together
stay together. A sentence stands in one part only, and so do sentences that differ in one word: the library repeats itself.
It must not know about tokens, models or results.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attnlab.corpora.prose import NO_TEXT, bare, docstrings, library_files, sentences_of
from attnlab.errors import DataError

# The modules and packages of a topic; what a version of Python lacks is left out.
MODULES = {
    "concurrency": """
        asyncio threading multiprocessing concurrent queue sched selectors subprocess _threading_local contextvars signal
    """,
    "files": """
        _pyio io tarfile shutil pathlib zipfile tempfile bz2 lzma gzip os fileinput posixpath ntpath genericpath stat
        filecmp fnmatch glob dbm shelve linecache _compression zipimport
    """,
    "mail": "email mailbox smtplib imaplib poplib nntplib smtpd quopri mimetypes mailcap",
    "network": """
        http urllib socket socketserver ssl ftplib xmlrpc ipaddress telnetlib wsgiref cgi cgitb webbrowser asyncore
        asynchat
    """,
    "numbers": """
        _pydecimal decimal statistics random fractions numbers datetime _pydatetime calendar _strptime heapq bisect
        colorsys
    """,
    "python": """
        importlib inspect ast symtable dis opcode pkgutil tokenize pyclbr code codeop typing abc _py_abc enum dataclasses
        imp modulefinder runpy annotationlib keyword types weakref site sysconfig venv zipapp
    """,
    "testing": """
        unittest doctest pdb bdb traceback trace tracemalloc timeit cProfile profile pstats warnings logging
    """,
    "text": """
        xml html json csv configparser difflib textwrap re string codecs locale gettext argparse optparse getopt shlex
        stringprep base64 plistlib tomllib pprint
    """,
}
TOPICS = tuple(MODULES)
_TOPIC_OF = {module: topic for topic, modules in MODULES.items() for module in modules.split()}
_SHORTEST = 5  # words; what is shorter ("Return the value.") is of no topic
_PARTS = {8: "dev", 9: "test"}  # by the last digit of a checksum; the rest is for training


def part_of(text: str) -> str:
    """The part a docstring belongs to, by its checksum: eight tenths of them are for training."""
    return _PARTS.get(int(hashlib.sha256(bare(text).encode()).hexdigest(), 16) % 10, "train")


def labelled_docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the modules above, after its topic, in an order that is the same everywhere."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in library_files(library):
        topic = _TOPIC_OF.get(path.relative_to(library).with_suffix("").parts[0])
        if topic is not None:
            source = path.read_text(encoding="utf-8", errors="replace")
            yield from ((topic, text) for text in docstrings(source))


def spellings(sentence: str) -> list[str]:
    """A sentence as it is compared, and all that is left of it without one of its words.

    Sentences that share one of these differ in one word at most: one too many, one too few, or one for another.
    """
    words = bare(sentence).split()
    return [" ".join(words[:at] + words[at + 1 :]) for at in range(len(words))] + [" ".join(words)]


def told_apart(found: list[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Of rows (part, topic, sentence) those whose sentence is new; a sentence that two topics share belongs to none."""
    owners: dict[str, set[str]] = {}
    for _, topic, sentence in found:
        owners.setdefault(bare(sentence), set()).add(topic)
    seen: set[str] = set()
    for part, topic, sentence in found:
        if len(owners[bare(sentence)]) > 1:
            continue
        alike = spellings(sentence)
        if seen.isdisjoint(alike):
            seen.update(alike)
            yield part, topic, sentence


@cache
def rows() -> tuple[tuple[str, str, str], ...]:
    """All sentences of this Python as (part, topic, sentence)."""
    found = [
        (part_of(text), topic, sentence)
        for topic, text in labelled_docstrings()
        for sentence in sentences_of([text])
        if len(sentence.split()) >= _SHORTEST
    ]
    return tuple(told_apart(found))


def topics() -> dict[str, list[tuple[str, str]]]:
    """The parts train, dev and test, each a list of (topic, sentence)."""
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    for part, topic, sentence in rows():
        parts[part].append((topic, sentence))
    if not all(parts.values()):
        raise DataError(NO_TEXT)
    return parts


def majority_share(labelled: list[tuple[str, str]]) -> float:
    """The share of the commonest topic: the accuracy of who always says the same."""
    return max(Counter(topic for topic, _ in labelled).values()) / len(labelled)
