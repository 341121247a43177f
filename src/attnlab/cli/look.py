"""The verb that shows what happens inside a run's model: look."""

from __future__ import annotations

import shlex
from pathlib import Path

from attnlab.cli.common import TrustCode, app, console, show_json


@app.command
def look(
    folder: Path,
    text: str,
    /,
    *,
    question: bool = False,
    out: Path | None = None,
    trust_code: TrustCode = False,
    json: bool = False,
) -> None:
    """Look inside a run's model as it reads a text: DIR/look.html and DIR/patterns.png show where every head looks.

    Parameters
    ----------
    folder
        The run.
    text
        What it reads. The symbols ⁇ and □ stand for themselves.
    question
        The text is a question: ask it as in training, with ⁇ behind it.
    out
        Folder for look.html, patterns.png and result.json; must not exist. Default: runs/look-N.
    json
        Print for programs: the paths, the expected tokens, and every head in numbers.
    """
    from attnlab import look
    from attnlab.model import load_model
    from attnlab.runs import Run, free_name, refuse_existing, refuse_several, write_folder

    refuse_several("a look")
    opened, target = Run.open(folder), out or free_name("look")
    refuse_existing(target)
    view = look.look(*load_model(opened.model, trust_code=trust_code), text, question=question)
    command = shlex.join(["attnlab", "look", str(folder), text, *(["--question"] if question else [])])
    write_folder(target, "look", look.files(view, str(folder), command))
    page, picture = target / "look.html", target / "patterns.png"
    if json:
        show_json({"run": str(folder), **view.summary(), "page": str(page), "picture": str(picture)})
        return
    for guess in view.next:
        console.print(f"{100 * guess.probability:5.1f} %  {guess.token!r}")
    unread = [str(number) for number, layer in enumerate(view.layers, start=1) if layer.kind == "influence"]
    if unread:
        console.print(f"(no pattern in layer {', '.join(unread)}: its influence is shown instead)")
    console.print(f"page: {page}", soft_wrap=True)
    console.print(f"picture: {picture}", soft_wrap=True)
