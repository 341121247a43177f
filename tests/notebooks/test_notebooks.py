"""Every notebook runs from top to bottom in a kernel of its own, shows its results, and is stored with small outputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
SHOWN = {  # what the page of a notebook must hold when it has run
    "classify": ("<iframe", "bag of words: ", "encoder: "),
    "compare": ("<iframe", "zero_mask"),
    "design": ("solved", "impossible", "The copying bound", "sufficient"),
    "mechanisms": ("zero_mask - declared", "FLOPs per token"),
    "recall": ("<iframe", "fine-tuned alone - ", "final_loss", "Induction"),
}


def test_there_is_one_for_each_part() -> None:
    assert sorted(SHOWN) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_stored_as_it_ran_with_small_outputs_and_a_picture(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    kinds = {kind for cell in code for output in cell.outputs for kind in (*output.get("data", ()), output.output_type)}
    assert "image/png" in kinds
    assert "error" not in kinds
    assert path.stat().st_size < 150_000


@pytest.mark.notebook
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, tmp_path: Path) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []  # only what this run shows counts
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    page = str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    for words in SHOWN[name]:
        assert words in page
    if name == "recall":
        pretrained, alone = (float(share) for share in re.findall(r"out of \d+: ([\d.]+)%", page))
        assert pretrained > 50 > 20 > alone  # as the text says
