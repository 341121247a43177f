"""Model cards, of exported models and of encoders: what one is, what it was trained on, how well it does, how to load it.

Facts in, Markdown out; what is not known is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnlab import __version__, usercode
from attnlab.config import flatten
from attnlab.corpora.sources import licences_of, public_name


@dataclass(frozen=True)
class Facts:
    """What is known of a model."""

    name: str
    layout: str
    tokenizer: str
    model: dict[str, Any]
    parameters: dict[str, int]
    symbols: int
    stages: list[dict[str, Any]] = field(default_factory=list)  # config.json of the runs it comes from, its own last
    result: dict[str, Any] = field(default_factory=dict)  # result.json of its run
    examined: list[dict[str, Any]] = field(default_factory=list)  # what `evaluate` wrote of it

    @property
    def needs_attnlab(self) -> bool:
        """Whether transformers alone cannot load it."""
        return self.layout != "gpt2" or self.tokenizer == "word"


def model_card(facts: Facts) -> str:
    """README.md of an exported model."""
    head = _header("text-generation", "attnlab", facts.name)
    parts = [head, _what(facts), _loading(facts), _training(facts), _figures(facts), _limits(facts), _settings(facts)]
    return "\n".join(part for part in parts if part)


def encoder_card(result: Mapping[str, Any]) -> str:
    """README.md of a small encoder, from its result."""
    config, best, guess = result["config"], result["history"][-1], result["unigram"]
    rows = [f"| {public_name(one['name'])} | {one['texts']:,} | `{one['sha256']}` |" for one in result["corpus"]]
    curve = [
        f"| {one['epoch']:.2f} | {one['seconds'] / 60:.1f} | {one['loss']:.3f} | {one['accuracy']:.1%} |"
        for one in result["history"]
    ]
    return "\n".join(
        [
            _header("fill-mask", "roberta, attnlab", "A small RoBERTa"),
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


def _header(task: str, tags: str, title: str) -> str:
    """The fields that model hubs read, and the title."""
    return f"---\nlibrary_name: transformers\npipeline_tag: {task}\ntags: [{tags}]\n---\n# {title}\n"


def _what(facts: Facts) -> str:
    """Mechanism and sizes."""
    model, total = facts.model, sum(facts.parameters.values())
    parts = ", ".join(f"{part} {count:,}" for part, count in facts.parameters.items() if count)
    kind = {"char": "characters", "bpe": "byte-pair pieces", "word": "words"}[facts.tokenizer]
    return (
        f"A causal language model made with attnlab {__version__}: attention `{model['mechanism']}`, {model['n_layer']} layers,"
        f" {model['n_head']} heads, width {model['n_embd']}, texts of up to {model['block_size']} tokens, {facts.symbols:,}"
        f" symbols ({kind}).\n{total:,} parameters: {parts}.\n"
    )


def _loading(facts: Facts) -> str:
    """A block of Python that runs as it stands."""
    first = "import attnlab.exchange  # pip install 'attnlab[hf]'\n" if facts.needs_attnlab else ""
    layout = (
        "It is a GPT-2 in everything but its name, and transformers alone loads it.\n"
        if not facts.needs_attnlab
        else ""
    )
    ask = ""
    if facts.tokenizer != "word":
        ask = (
            "\n⁇ hides, asks and closes, □ fills and ends; in a text they are read as question marks. To ask a question as in"
            ' training: `tokenizer("Where was Hank Aaron born?⁇", split_special_tokens=False, return_tensors="pt")`.\n'
        )
    return f"""## How to load it
{layout}
```python
{first}from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "path/to/this/folder"
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
inputs = tokenizer("Hank Aaron", return_tensors="pt")
written = model.generate(**inputs, max_new_tokens=10, do_sample=False)
print(tokenizer.decode(written[0]))
```
{ask}"""


def _training(facts: Facts) -> str:
    """The data of every stage, with their checksums and licences."""
    lines, sources = [], []
    for stored in facts.stages:
        data = {key: one for key, one in (stored.get("data") or {}).items() if isinstance(one, dict)}
        lines += [f"- {stored.get('stage')}" + ("" if data else ": on data that are not known")]
        lines += [f"  - {key}: `{public_name(one['source'])}`, sha256 `{one['sha256']}`" for key, one in data.items()]
        sources += [one["source"] for one in data.values()] or [""]
    if not lines:
        return "## Training\nHow it was trained is not known: it was exported from its weights alone.\n"
    licences = [f"\n{words}" for words in licences_of(sources)]
    return "\n".join(["## Training\n", *lines, *licences, ""])


def _figures(facts: Facts) -> str:
    """What was measured, with intervals."""
    lines = []
    loss = facts.result.get("final_loss")
    if isinstance(loss, int | float):
        lines.append(f"- final training loss: {loss:.4f} nats a token")
    for one in [facts.result, *facts.examined]:
        if {"accuracy", "low", "high", "questions"} <= one.keys():
            exam = f" of `{public_name(str(one['exam']))}`" if "exam" in one else ""
            share, low, high = (100 * one[key] for key in ("accuracy", "low", "high"))
            lines.append(
                f"- {one['questions']:,} questions{exam}: {share:.1f} % right (95 % interval {low:.1f} to {high:.1f} %)"
            )
        if one.get("corpus") and "token_perplexity" in one:
            lines.append(f"- token perplexity on `{public_name(one['corpus'])}`: {one['token_perplexity']:,.1f}")
    return "\n".join(["## Figures\n", *lines, ""]) if lines else "## Figures\nNone were measured in its run.\n"


def _limits(facts: Facts) -> str:
    """What it cannot do."""
    longest = facts.model["block_size"]
    lines = [
        "A small model for study: it repeats what it was trained on, makes up what it was not, and knows no other text.",
        f"It reads at most {longest} tokens. To write on from several texts at once, pad them on the left.",
    ]
    if facts.tokenizer == "char":
        lines.append("Characters that its corpus never showed are read as ⁇.")
    if usercode.code_files(facts.model["mechanism"]):
        lines.append(
            "Its mechanism is code of its maker, in the folder code: read it, then load the model with trust_code=True."
            " What that code imports is not in the folder."
        )
    return "## Limits\n" + " ".join(lines) + "\n"


def _settings(facts: Facts) -> str:
    """Every setting, for whoever wants to train it again."""
    values = (facts.stages[-1].get("config") if facts.stages else None) or {"model": facts.model}
    rows = [f"| {name} | {value} |" for name, value in flatten(values)]
    return "\n".join(["## Settings\n", "| setting | value |", "|---|---|", *rows, ""])
