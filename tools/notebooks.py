"""Run the notebooks from top to bottom and store them with their outputs: `python tools/notebooks.py [NAME ...]`.

Whole reports and widgets are left out, so that the files stay small; they appear when a notebook is run.
"""

from __future__ import annotations

import base64
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from PIL import Image

_FOLDER = Path(__file__).parents[1] / "notebooks"
_MOST = 20_000  # characters of one output, but for pictures
_LONG = 300  # characters of a plain text beside another form
_TEMPORARY = re.compile(r"/tmp/tmp\w+")
_KINDS = ("text/html", "text/plain", "image/png")


def _small(output: Any) -> Any:
    """An output without what is large or needs a running kernel; None if nothing is left."""
    if output.output_type == "stream":
        return output if output.name == "stdout" else None
    data = {kind: _TEMPORARY.sub("/tmp", text) for kind, text in output.data.items() if kind in _KINDS}
    if "application/vnd.jupyter.widget-view+json" in output.data or not data:
        return None
    if len(data.get("text/html", "")) > _MOST:
        data = {"text/plain": "(a report of its own: run the notebook to see it)"}
    if len(data["text/plain"]) > _LONG and len(data) > 1:
        data["text/plain"] = data["text/plain"][:_LONG] + "…"  # shown in place of the other form only
    if picture := data.get("image/png"):
        data["image/png"] = _with_few_colours(picture)
    output.data = nbformat.from_dict(data)
    return output


def _with_few_colours(picture: str) -> str:
    """A picture in base64, with 64 colours: about a third of its size."""
    few = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(64).save(few, "PNG", optimize=True)
    return base64.b64encode(few.getvalue()).decode()


def store(name: str) -> None:
    """Run a notebook in a temporary folder, and write it again with its outputs."""
    path = _FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": folder}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"
        cell.metadata.clear()  # the times of execution
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := _small(output)) is not None]
    notebook.metadata["language_info"] = nbformat.from_dict({"name": "python"})
    nbformat.write(notebook, path)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or sorted(path.stem for path in _FOLDER.glob("*.ipynb")):
        store(chosen)
