"""Texts that models write, beside each other: what the worker of models does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnlab.errors import AttnlabError


def sample_runs(
    root: Path, names: Sequence[str], prompt: str, settings: dict[str, Any], trust_code: bool
) -> Iterator[dict[str, Any]]:
    """Texts of each run, one after the other, as `attnlab generate` samples them."""
    from attnlab.lm import evaluate
    from attnlab.serve.models import open_once

    for name in names:
        try:
            opened = open_once(str(root / name), trust_code)
            texts = evaluate.sample(opened.model, opened.tokenizer, prompt, **settings)
        except AttnlabError as error:
            yield {"run": name, "samples": [], "problem": str(error)}
        else:
            yield {"run": name, "samples": [text.encode("utf-8", "replace").decode() for text in texts], "problem": ""}
