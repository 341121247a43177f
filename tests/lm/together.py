"""One small training that one process or several do in the same way; as a script: every way of several processes.

`python tests/together.py FOLDER` under RANK and WORLD_SIZE writes the losses and final states as FOLDER/NAME.safetensors;
`python tests/together.py FOLDER long` those of a longer training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import Tensor

from attnlab import registry
from attnlab.config import resolve
from attnlab.lm import optim
from attnlab.lm.model import LanguageModel
from attnlab.lm.processes import Ranks, process_group
from attnlab.lm.tokenizers import Tokenizer
from attnlab.lm.train import Trainer
from attnlab.tasks import Example

LONG, STEPS, SOME, SAVED = 200, 30, 6, 3
VOCABULARY = 50
# Fewer rows than processes, odd numbers, and rows of which one process has all the long or packed ones.
ROWS = (5, 6, 1, 4, 3)
LENGTHS = ((12, 5), (6, 6), (12, 12))
SETTINGS = {
    "n_head": 2,
    "n_embd": 24,
    "block_size": 12,
    "vocab_size": 51,
    "mlp_ratio": 2,
    "dropout": 0.0,
}
MECHANISMS = [
    name
    for name in registry.names("mechanism")
    if (entry := registry.find("mechanism", name)).causal
    and not entry.defect
    and not name.startswith("dsa")  # whose indexer learns from means over the tokens of a process
]
State = dict[str, Tensor]


def batch(step: int, packed: bool) -> list[Example]:
    """Sequences that continue by a rule, with some noise: something to learn in few steps."""
    drawn = torch.Generator().manual_seed(step)
    examples = []
    for row in range(ROWS[step % len(ROWS)]):
        length = LENGTHS[step % len(LENGTHS)][row % 2] + 1
        begin, noise = (
            torch.randint(0, VOCABULARY, (), generator=drawn),
            torch.randint(0, 3, (length,), generator=drawn),
        )
        ids = (begin + 7 * torch.arange(length) + noise) % VOCABULARY
        starts = (4, 5) if packed and step % len(LENGTHS) and not row % 2 else ()
        examples.append(Example(ids.tolist(), 1 + row % 3, starts=starts))
    return examples


def train(
    ranks: Ranks,
    steps: range = range(SOME),
    start: State | None = None,
    preset: str = "small",
    mechanism: str = "dot",
    bottleneck: int = 0,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> State:
    """Train; return losses and norms of the gradients, and the state of model and optimizers by name."""
    torch.manual_seed(0)
    rotary = registry.find("mechanism", mechanism).accepts("rotary") and not bottleneck
    model = {
        **SETTINGS,
        "n_layer": 3 if bottleneck else 2,
        "mechanism": mechanism,
        "positions": "rotary" if rotary else "learned",
        "bottleneck": bottleneck,
        "options": {mechanism: options or {}},
    }
    training = {"clip": 0.5, "weight_decay": 0.1, "precision": "float64", **settings}
    config = resolve(preset, given={"model": model, "train": training})
    dtype = torch.float32 if config.train.precision == "float32" else torch.float64
    tokenizer = Tokenizer.train("char", ["abc"], VOCABULARY)
    trainer = Trainer(cast(Any, None), LanguageModel(config.model).to(dtype), tokenizer, cast(Any, None), config, ranks)
    if start:
        weights = {name[6:]: one for name, one in start.items() if name.startswith("model/")}
        trainer.model.load_state_dict(weights)
        states = {name[6:]: one.clone() for name, one in start.items() if name.startswith("optim/")}
        optim.load_state(trainer.optimizers, states)
    losses = []
    for step in steps:
        with mock.patch("attnlab.lm.train.COST_OF_A_PART", 1):  # so that these short rows are split too
            loss, norm = trainer.train_step(batch(step, packed=not bottleneck), rate=1.0)
        losses.append([*ranks.total(loss), norm])
    states = {f"optim/{name}": one.clone() for name, one in optim.state_tensors(trainer.optimizers).items()}
    weights = {f"model/{name}": one.clone() for name, one in trainer.model.state_dict().items()}
    return {"losses": torch.tensor(losses, dtype=torch.float64), **weights, **states}


def every_way(ranks: Ranks) -> dict[str, State]:
    """Train in every way of several processes."""
    done = {
        "float64": train(ranks, range(STEPS)),
        "parts": train(ranks, accumulate=3),
        "adamw": train(ranks, preset="mingpt", rows_per_batch=0),
        "lengths": train(ranks, preset="mingpt"),
        "saved": train(ranks, range(SAVED)),
        "latents": train(ranks, bottleneck=2),
        "latents-lengths": train(ranks, preset="mingpt", bottleneck=2),
    }
    done["resumed"] = train(ranks, range(SAVED, SOME), done["saved"])
    return done | {name: train(ranks, mechanism=name) for name in MECHANISMS}


def long_ones(ranks: Ranks) -> dict[str, State]:
    """Train for longer, by precision."""
    return {precision: train(ranks, range(LONG), precision=precision) for precision in ("float64", "float32")}


def main(folder: Path, long: bool) -> None:
    """Write what was trained."""
    torch.set_num_threads(1)
    with process_group() as ranks:
        done = long_ones(ranks) if long else every_way(ranks)
        for name, state in done.items() if ranks.first else ():
            save_file({key: one.contiguous() for key, one in state.items()}, folder / f"{name}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "long" in sys.argv[2:])
