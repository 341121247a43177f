"""One small training that one process or several do in the same way; as a script: every way of several processes.

`python tests/together.py FOLDER` under RANK and WORLD_SIZE writes the losses and final states as FOLDER/NAME.safetensors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from attnlab import optim
from attnlab.config import resolve
from attnlab.model import LanguageModel
from attnlab.processes import Ranks, distribute, full, full_tensor, no_sync, process_group, shares_of
from attnlab.train import SummedLoss

STEPS, SOME, SAVED = 200, 8, 4
ROWS, LENGTH, VOCABULARY = 6, 12, 50
# Widths that two processes cannot share evenly, so that their parts differ in size.
SETTINGS = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 20,
    "block_size": LENGTH,
    "vocab_size": 51,
    "mlp_ratio": 2,
    "dropout": 0.0,
}
State = dict[str, Tensor]


def batch(step: int) -> Tensor:
    """Sequences that continue by a rule, with some noise: something to learn in few steps."""
    drawn = torch.Generator().manual_seed(step)
    starts = torch.randint(0, VOCABULARY, (ROWS, 1), generator=drawn)
    noise = torch.randint(0, 3, (ROWS, LENGTH + 1), generator=drawn)
    return (starts + 7 * torch.arange(LENGTH + 1) + noise) % VOCABULARY


def train(
    ranks: Ranks,
    dtype: torch.dtype,
    shard: bool = False,
    steps: range = range(STEPS),
    start: State | None = None,
    preset: str = "small",
    accumulate: int = 1,
    layers: int = 2,
) -> State:
    """Train; return the losses, and the full state of model and optimizers by name."""
    torch.manual_seed(0)
    config = resolve(preset, given={"model": {**SETTINGS, "n_layer": layers}, "train": {"clip": 0.5}})
    model = LanguageModel(config.model).to(dtype)
    module = distribute(SummedLoss(model), ranks, shard)
    optimizers = optim.make_optimizers(model, config.train, ranks)
    if start:
        weights = {name[6:]: one for name, one in start.items() if name.startswith("model/")}
        model.load_state_dict(shares_of(weights, model.state_dict()))
        optim.load_state(
            optimizers, {name[6:]: one.clone() for name, one in start.items() if name.startswith("optim/")}
        )
    losses = []
    for step in steps:
        rows = batch(step)[ranks.rank :: ranks.world]
        loss = 0.0
        parts = rows.chunk(accumulate)
        for number, part in enumerate(parts):
            with no_sync(module, last=number == len(parts) - 1):
                share = module(part[:, :-1], part[:, 1:]) / (ROWS * LENGTH)
                (share * ranks.world).backward()
            loss += share.item()
        norm = full_tensor(nn.utils.clip_grad_norm_(model.parameters(), config.train.clip))
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        losses.append([*ranks.total(loss), norm.item()])
    states = {f"optim/{name}": one for name, one in optim.state_tensors(optimizers).items()}
    weights = {f"model/{name}": one for name, one in full(model.state_dict()).items()}
    return {"losses": torch.tensor(losses, dtype=torch.float64), **weights, **states}


def main(folder: Path) -> None:
    """Train in every way of several processes."""
    torch.set_num_threads(1)
    with process_group() as ranks:
        double, some, rest = torch.float64, range(SOME), range(SAVED, SOME)
        done = {
            "copied-float64": train(ranks, double, layers=1),
            "copied-float32": train(ranks, torch.float32, layers=1),
            "copied-parts": train(ranks, double, steps=some, accumulate=3),
            "copied-adamw": train(ranks, double, steps=some, preset="mingpt"),
            "sharded-float64": train(ranks, double, True, some),
            "sharded-parts": train(ranks, double, True, some, accumulate=3),
            "sharded-adamw": train(ranks, double, True, some, preset="mingpt"),
            "copied-saved": train(ranks, double, False, range(SAVED)),
            "sharded-saved": train(ranks, double, True, range(SAVED)),
        }
        done["sharded-resumed"] = train(ranks, double, True, rest, done["copied-saved"])
        done["copied-resumed"] = train(ranks, double, False, rest, done["sharded-saved"])
        done["sharded-grown"] = train(ranks, double, True, rest, train(Ranks(), double, steps=range(SAVED)))
        if not ranks.first:
            done = {}
        dtype = (double, torch.float32)[ranks.rank]
        done[f"alone-{str(dtype)[6:]}"] = train(Ranks(), dtype, layers=1)  # each process one of them
        for name, state in done.items():
            save_file({key: one.contiguous() for key, one in state.items()}, folder / f"{name}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
