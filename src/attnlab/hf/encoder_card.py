"""The model card of an encoder, from its result: what it is, what it was trained on, how well it guesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.corpora.licences import licences_of, shown


def model_card(result: Mapping[str, Any]) -> str:
    """Markdown with the header that model hubs read."""
    config, best, guess = result["config"], result["history"][-1], result["unigram"]
    rows = [f"| {shown(one['name'])} | {one['texts']:,} | `{one['sha256']}` |" for one in result["corpus"]]
    curve = [
        f"| {one['epoch']:.2f} | {one['seconds'] / 60:.1f} | {one['loss']:.3f} | {one['accuracy']:.1%} |"
        for one in result["history"]
    ]
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: fill-mask",
            "tags: [roberta, attnlab]",
            "---",
            "",
            "# A small RoBERTa",
            "",
            f"{config['n_layer']} layers, width {config['n_embd']}, {config['n_head']} heads,"
            f" {result['vocab_size']:,} byte-pair pieces, texts of up to {config['block_size']} tokens:"
            f" {result['parameters']:,} parameters. Pretrained from scratch with attnlab by filling in hidden tokens.",
            "",
            "It knows nothing but its corpus, and has its faults. It is a start for fine-tuning, not a source of facts.",
            "",
            "| trained on | texts | sha256 |",
            "|---|---|---|",
            *rows,
            "",
            *licences_of(one["name"] for one in result["corpus"]),
            "",
            f"{result['tokens']:,} tokens in {result['seconds'] / 60:.1f} minutes on {result['threads']} thread(s)"
            f" ({result['tokens_per_second']:,} a second), {config['hidden']:.0%} of them hidden, seed {config['seed']}.",
            "",
            f"Of the texts {config['held_out']:.1%} were held out; {result['validation_targets']:,} of their tokens, 15 %,"
            f" were hidden. It finds {best['accuracy']:.1%} of them (loss {best['loss']:.3f}); who knows only how frequent"
            f" every token is finds {guess['accuracy']:.1%} (loss {guess['loss']:.3f}).",
            "",
            "| epoch | minutes | loss of hidden tokens | found |",
            "|---|---|---|---|",
            *curve,
            "",
            "```python",
            "from transformers import AutoModelForMaskedLM, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("this-folder")',
            'model = AutoModelForMaskedLM.from_pretrained("this-folder")',
            "```",
            "",
        ]
    )
