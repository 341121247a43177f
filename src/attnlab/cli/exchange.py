"""Verbs for other people's programs: export and import of models, and attention for whoever draws it."""

from __future__ import annotations

from pathlib import Path

from attnlab.cli.common import TrustCode, app, console, show_json


@app.command
def export(source: Path, folder: Path, /, *, trust_code: TrustCode = False, json: bool = False) -> None:
    """Write a model as a folder that transformers loads (AutoModelForCausalLM, AutoTokenizer), with a model card.

    A mingpt with dot-product attention is written as the GPT-2 it is; others load after `import attnlab.exchange`.
    Needs transformers: pip install 'attnlab[hf]'.

    Parameters
    ----------
    source
        The run, or a model folder.
    folder
        Where to; must not exist.
    json
        Print for programs.
    """
    from attnlab.exchange import export
    from attnlab.runs import refuse_several

    refuse_several("an export")
    written = export(source, folder, trust_code=trust_code)
    if json:
        show_json(written)
        return
    how = "import attnlab.exchange, then " if written["needs_attnlab"] else ""
    console.print(f"{written['parameters']:,} parameters in the layout of {written['layout']}")
    console.print(f"load it in Python: {how}AutoModelForCausalLM.from_pretrained({str(folder)!r})", soft_wrap=True)
    console.print(f"model card: {folder / 'README.md'}", soft_wrap=True)


@app.command(name="import")
def import_(source: Path, out: Path, /, *, trust_code: TrustCode = False, json: bool = False) -> None:
    """Make a run of a GPT-2 folder (or of one that export wrote): look, evaluate, generate and finetune then work on it.

    Scores and ids stay equal; what attnlab's model cannot hold is refused. Needs transformers: pip install 'attnlab[hf]'.

    Parameters
    ----------
    source
        A folder with config.json, weights and tokenizer, as save_pretrained writes it.
    out
        The run; must not exist.
    json
        Print for programs.
    """
    from attnlab.exchange import import_model
    from attnlab.runs import refuse_several

    refuse_several("an import")
    run = import_model(source, out, trust_code=trust_code)
    if json:
        show_json({"run": str(run.path), **run.result})
        return
    console.print(f"{run.result['parameters']:,} parameters")
    console.print(f"run folder: {run.path}", soft_wrap=True)


@app.command(name="export-attention")
def export_attention(
    folder: Path, text: str, file: Path, /, *, question: bool = False, trust_code: TrustCode = False
) -> None:
    """Write where every head looks as JSON: tokens, and attention as [layer][head][destination][source].

    bertviz and circuitsvis draw it: docs/exchange.md shows how. attnlab's own page is `attnlab look`.

    Parameters
    ----------
    folder
        The run.
    text
        What it reads. The symbols ⁇ and □ stand for themselves.
    file
        The JSON file; must not exist.
    question
        The text is a question: ask it as in training, with ⁇ behind it.
    """
    from attnlab.look import as_json
    from attnlab.model import load_model
    from attnlab.runs import Run, refuse_existing, write_json

    refuse_existing(file)
    model, tokenizer = load_model(Run.open(folder).model, trust_code=trust_code)
    write_json(file, as_json(model, tokenizer, text, question=question))
    console.print(f"written: {file}", soft_wrap=True)
