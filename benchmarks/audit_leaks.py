"""How many planted leaks the audit catches, and what the audit of all mechanisms costs.

    python benchmarks/audit_leaks.py [--leaks 40] [--seed 0]

Each leak adds a little of one later token to the output at one position beyond 150 tokens, from some length on (up to more
than 400 tokens), in a module that is otherwise causal. A third of them has no gradient, a third passes through a ReLU. Prints
the leaks that were caught, those that were missed, and processor seconds.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass

import torch
from birthplaces import options
from torch import Tensor, nn

from attnlab import registry
from attnlab.measure.audit import LONGEST, audit_mechanism, audit_module

WIDTH = 16
KINDS = {"linear": lambda x: x, "no gradient": lambda x: x.detach().round(), "relu": torch.relu}


@dataclass(frozen=True)
class Leak:
    """Where a leak is: output `place` takes from token `source` in texts longer than `longer_than`."""

    place: int
    source: int
    longer_than: int
    kind: str

    @classmethod
    def draw(cls, generator: random.Random, kind: str) -> Leak:
        """A leak at random; half of them look at the next token only."""
        place = generator.randrange(150, LONGEST - 1)
        source = place + 1 if generator.random() < 0.5 else generator.randrange(place + 1, LONGEST)
        return cls(place, source, generator.choice([0, 200, 300, 400, 450]), kind)


class Leaking(nn.Module):
    """Causal attention of one head with one leak."""

    def __init__(self, leak: Leak) -> None:
        super().__init__()
        self.leak = leak
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """The averages, and the leak."""
        y = nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True)
        if x.shape[1] <= max(self.leak.source, self.leak.longer_than):
            return y
        here = (torch.arange(x.shape[1]) == self.leak.place)[:, None]
        return y + 0.01 * here * KINDS[self.leak.kind](x[:, self.leak.source : self.leak.source + 1])


def main() -> None:
    """Plant the leaks, audit all mechanisms, print."""
    given = options(__doc__, leaks=40, seed=0).parse_args()
    generator = random.Random(given.seed)
    leaks = [Leak.draw(generator, list(KINDS)[number % len(KINDS)]) for number in range(given.leaks)]
    missed, begun = [], time.process_time()
    for number, leak in enumerate(leaks):
        torch.manual_seed(number)
        if audit_module(Leaking(leak), n_embd=WIDTH).verdict != "fail":
            missed.append(leak)
    print(
        f"caught {len(leaks) - len(missed)} of {len(leaks)} leaks, {time.process_time() - begun:.0f} s of processor time"
    )
    for leak in missed:
        print(f"  missed: {leak}")
    begun = time.process_time()
    verdicts = {name: audit_mechanism(name).verdict for name in registry.names("mechanism")}
    print(f"all {len(verdicts)} mechanisms: {time.process_time() - begun:.0f} s of processor time")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
