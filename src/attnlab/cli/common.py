"""What the commands share: the application, the terminal, and how errors end it."""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, Group, Parameter, UnknownOptionError, UnusedCliTokensError
from rich.text import Text

from attnlab import __version__
from attnlab.config import LARGEST, TrainConfig
from attnlab.errors import AttnlabError, AttnlabWarning, NotARun, UserError, cut, unknown
from attnlab.machine import is_main_process, require_single_process
from attnlab.store.folders import is_written, kind_of, peek, refuse_existing
from attnlab.store.records import encode
from attnlab.store.runs import unused_path
from attnlab.terminal import Terminal, printable, printable_json, unexpected

_LONGEST = 2000  # characters of a message, which may quote user input
_SHORT = {f"--train.{item.name}": item.metadata["short"] for item in fields(TrainConfig) if item.metadata["short"]}
_CONVERTED = re.compile(r'unable to convert "(.*)" into (?:float|int)\.')
console = Terminal(markup=False, emoji=False)  # most of what is printed is user text
errors = Terminal(stderr=True, markup=False, emoji=False)


def _refuse_extremes(_kind: object, value: Any) -> None:
    """Refuse infinite numbers and whole numbers beyond 32 bits, in any option."""
    for number in value if isinstance(value, tuple | list) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError("it must be a finite number")
        if isinstance(number, int) and abs(number) > LARGEST:
            raise ValueError(f"it must lie between -{LARGEST} and {LARGEST}")


def _shown_default(value: Any) -> str | None:
    """A default as help shows it: nothing for flags and computed defaults."""
    if value is None or value is False or value in ("", ()):
        return None
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


app = App(
    name="attnlab",
    version=__version__,
    help="""Design attention with proofs, train small language models, and measure what they know.

Commands to try first:
  attnlab run --quick                   train on 300 people and ask: a minute
  attnlab design tour                   solve attention backwards, step by step
  attnlab compare dot additive --quick  test two mechanisms, three seeds each""",
    help_format="plaintext",
    default_parameter=Parameter(negative=(), show_default=_shown_default, validator=_refuse_extremes),
)
TRAIN, DESIGN, MEASURE, COMPARE, HUGGING_FACE, DATA, HELP = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Train", "Design", "Measure", "Compare", "Hugging Face", "Data", "Help"))
)
app["--help"].group = app["--version"].group = HELP


def say(*lines: str | Text) -> None:
    """Print lines in one piece each, however long: paths and answers are copied and read by programs."""
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def show_json(value: Any) -> None:
    """Print a record, or plain values, as JSON."""
    sys.stdout.write(printable_json(encode(value).decode()))


def output_folder(out: Path | None, stem: str, activity: str) -> Path:
    """The folder to write, by default runs/STEM-N; it must not exist, and one process writes it."""
    require_single_process(activity)
    folder = out or unused_path(stem)
    refuse_existing(folder)
    return folder


def main(arguments: list[str] | None = None) -> None:
    """Run a command; mistakes end in one line on standard error and an exit code."""
    # Idle OpenMP threads sleep soon instead of spinning: beside another program, training is several times faster.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch loads
    warnings.showwarning = _show_warning
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a script must not react to Ctrl-C
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    else:
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # both ask it to stop
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still shows the rest
    try:
        from attnlab.cli.studies import with_study

        words = sys.argv[1:] if arguments is None else arguments
        refuse_unreadable(words)
        app(with_study(respell(words)), exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _fail(_in_plain_words(error), 2)
    except NotARun as error:
        _fail(f"{error}{_advice(error.folder) if error.folder else ''}", error.exit_code)
    except AttnlabError as error:
        _fail(str(error), error.exit_code, getattr(error, "__notes__", ()))
    except KeyboardInterrupt:
        _fail("stopped; continue an unfinished run with: attnlab resume FOLDER", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:  # the system's reason, nearly always about a path
            _fail(f"{error.filename or 'the system'}: {error.strerror}; choose another file or folder", 1)
        _fail(*unexpected(error))


def _advice(folder: Path) -> str:
    """What to do with a folder that is not a run, by what it holds."""
    if not folder.exists():
        return "; `attnlab runs` shows those of this folder"
    named, kind = shlex.quote(str(folder)), kind_of(folder)
    if folder.is_file():
        return f": a checkpoint of nanoGPT, minGPT or CS224N becomes a run with `attnlab import {named}`"
    architecture = peek(folder / "config.json").get("model_type")
    if kind == "study":
        verb = "runs show" if is_written(folder / "result.json") else "resume"
        return f": see `attnlab {verb} {named}`"
    if kind == "classifier" and not (folder / "model" / "config.json").is_file():
        return f": `attnlab classify --model {named} --predict FILE` labels texts with it"
    if kind == "classifier":
        return f": load it with AutoModelForSequenceClassification.from_pretrained({str(folder / 'model')!r})"
    if architecture in ("gpt2", "attnlab"):
        return f"; it is a model of transformers: to convert it to a run, use `attnlab import {named} runs/NAME`"
    if architecture:
        return (
            f"; it is a model of transformers ({architecture}): load it with AutoModel.from_pretrained({str(folder)!r}),"
            f" or fine-tune it: attnlab classify --model {named}"
        )
    return ""


def respell(arguments: Sequence[str]) -> list[str]:
    """Arguments with options in their shown spelling: underscores and other names are accepted too."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    words = [_respell(word) if word.startswith("--") else word for word in arguments[:end]]
    for place, (word, value) in enumerate(zip(words, [*words[1:], ""], strict=True)):
        if word == "--compile" and value not in ("true", "false"):  # a setting, which takes a value
            words[place] = "--compile=true"
    return [*words, *arguments[end:]]


def _respell(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if "." not in name:
        name = name.replace("_", "-")
    elif ".options." not in name:  # a setting, written as in files
        name = "--" + name[2:].replace("-", "_")
    return _SHORT.get(name, name) + equals + value


def refuse_unreadable(arguments: Sequence[str]) -> None:
    """Refuse arguments that are empty or not text: no message, run or report could show them."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        option, _, value = (word if word.startswith("--") else f"{before}={word}").partition("=")
        if not value and not (word.startswith("--") and "=" not in word):
            where = option if option.startswith("--") else "an argument"
            raise UserError(f"{where} is empty: give a value, or leave it out")
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in word):
            raise UserError(f"the argument '{word}' is not UTF-8 text: rename the file, or write the argument again")


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Show our own warnings as one line; those of libraries as Python does."""
    if issubclass(category, AttnlabWarning):
        sys.stderr.write(f"note: {printable(str(message))}\n")
    else:
        _python_warning(message, category, *where, **more)


_python_warning = warnings.showwarning


def _in_plain_words(error: CycloptsError) -> str:
    """The message of the parser in plain words."""
    chain = tuple(error.command_chain or ())
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        first, commands = error.unused_tokens[0], _commands(error.app)
        if first in commands:
            return f"unexpected argument: {first}; write it first: attnlab {' '.join(chain)} {first}"
        if commands:
            return unknown("command", first, commands)
        if chain == ("pretrain",):
            return f"pretrain takes one text, and {first} is another: put several files into a folder, and name it"
        return f"unexpected argument: {first}; see --help; join several mechanisms or lengths by commas"
    if isinstance(error, UnknownOptionError) and chain[:1] == ("run",):
        option = error.token.keyword or ""
        studies = app["run"]
        takers = [name for name in _commands(studies) if option in _options(studies[name])]
        if takers:
            return f"{option} is for {', '.join(takers)}, not for {(*chain, 'recall')[1]}: leave it out"
    return _CONVERTED.sub(r"'\1' is not a number", " ".join(str(error).split()))


def _commands(group: App | None) -> list[str]:
    return [name for name in group or () if not name.startswith("-")]


def _options(command: App) -> set[str]:
    arguments = command.assemble_argument_collection()
    return {name for argument in arguments if argument.parse for name in argument.names}


def _fail(message: str, code: int, notes: Sequence[str] = ()) -> None:
    """Print one line and code to copy on standard error, and exit; of several processes the first, or their parent, prints."""
    line = printable(cut(message, _LONGEST)).replace("\n", "\\n")
    if "ATTNLAB_FAILURE" in os.environ:
        from attnlab.lm.processes import record_failure

        record_failure(code, line)
    elif is_main_process():
        sys.stderr.write("\n".join((f"attnlab: {line}", *map(printable, notes), "")))
    sys.exit(code)
