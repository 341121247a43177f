"""Verbs about encoders: encoder pretrain, encoder fill."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from attnlab.cli.common import Whole, app, as_written, console, settings_class, show_json
from attnlab.config import build, from_text, type_hints
from attnlab.encoders.settings import EncoderConfig
from attnlab.errors import UserError

encoder_app = App(
    name="encoder",
    help="Pretrain a small RoBERTa on your own text, and see what it fills in. Needs the extra hf.",
    default_parameter=Parameter(name_transform=as_written),
)
app.command(encoder_app)

LITTLE = 0.3  # nats below who knows frequencies only: the first thing that any context teaches

GivenEncoder: Any = settings_class(EncoderConfig, defaults=True)
NONE = GivenEncoder()


@encoder_app.command(name="pretrain")
def pretrain_encoder(
    *corpus: str,
    out: Path | None = None,
    json: bool = False,
    given: Annotated[GivenEncoder, Parameter(name="*")] = NONE,
) -> None:
    """Pretrain a small RoBERTa by having it guess hidden tokens; the folder is one for transformers.

    Parameters
    ----------
    corpus
        Text files with one text a line, tables with labels (only their text is read), or prose or people (built in).
        Default: prose.
    out
        Folder of the encoder; must not exist. Default: runs/encoder-N.
    json
        Print the result for programs.
    """
    from attnlab.encoders import pretrain
    from attnlab.progress import display
    from attnlab.runs import free_name
    from attnlab.stages import QUIET

    values = {one.name: getattr(given, one.name) for one in fields(given) if getattr(given, one.name) is not None}
    kinds = type_hints(EncoderConfig)
    config = build(EncoderConfig, {name: from_text(value, kinds[name]) for name, value in values.items()})
    folder, names = out or free_name("encoder"), corpus or ("prose",)
    if json:
        show_json(pretrain(names, folder, config, QUIET))
        return
    with display("encoder", console) as show:
        result = pretrain(names, folder, config, show)
    last, guess = result["history"][-1], result["unigram"]
    console.print(
        f"{result['parameters']:,} parameters, {result['tokens']:,} tokens in {result['seconds']:.0f} s"
        f" ({result['tokens_per_second']:,} tokens/s): {last['accuracy']:.1%} of hidden tokens found, loss"
        f" {last['loss']:.3f} (by frequency alone {guess['accuracy']:.1%}, {guess['loss']:.3f}): {folder}",
        soft_wrap=True,
    )
    if last["loss"] > guess["loss"] - LITTLE:
        console.print(
            "it has learned little from the context yet: give it more --minutes, or a smaller size", soft_wrap=True
        )


@encoder_app.command(name="fill")
def fill_in(encoder: str, text: str, /, *, top: Whole = 5, json: bool = False) -> None:
    """What an encoder fills in where a text says <mask>, with probabilities.

    Parameters
    ----------
    encoder
        A folder that `attnlab encoder pretrain` wrote, or any masked language model of the hub by name.
    text
        A text with one or several <mask>.
    top
        How many fillings to show for every place.
    json
        Print for programs.
    """
    if top < 1:
        raise UserError(f"--top must be at least 1, not {top}")
    from attnlab.encoders import fill

    fillings = fill(encoder, text, top)
    if json:
        show_json([asdict(one) for one in fillings])
        return
    for number, one in enumerate(fillings):
        if number and one.place != fillings[number - 1].place:
            console.print()
        console.print(f"{one.probability:7.1%}  {one.piece:<16}{one.text}", highlight=False, soft_wrap=True)
