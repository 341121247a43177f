"""What the audit finds in models of transformers, and packed documents compared with the same documents alone.

    python benchmarks/audit_transformers.py [--models Qwen3NextModel,MiniMaxModel] [--length 66]

Tiny random models on a CPU, with transformers' plain torch code. The first table has the checks of `attnlab audit
transformers:MODEL`. The second one calls the models without the audit: the largest difference from each document alone, as a
share of the largest output, where the row has no borders, restarting `position_ids`, and everything that transformers' collator
gives; then a text in pieces with a cache, whose positions the model numbers or the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import torch
import transformers
from birthplaces import options
from torch import Tensor, nn

from attnlab.hf.audited import PREFIX, Audited, audit_transformers, build_tiny
from attnlab.measure.audit import Check

MODELS = (
    "GPT2Model,LlamaModel,DeepseekV3Model,DeepseekV32Model,GptOssModel,MiniMaxModel,Mamba2Model,BambaModel,FalconH1Model,"
    "JambaModel,NemotronHModel,Qwen3NextModel,OlmoHybridModel,KimiLinearModel"
)
CHECKS = ("future", "gradient", "prefix", "padding", "cache", "packing", "batch", "large")
CUT, TOKENS = 10, 24
PIECES = ((0, 9, *range(10, TOKENS + 1)), (0, 9, 12, 17, TOKENS))  # single tokens after a prompt, and longer pieces


def relative(first: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return ((first - other).abs().max() / other.abs().max()).item()


def shown(truth: Tensor, call: Callable[..., Tensor], *arguments: Any) -> str:
    """The difference of outputs from what they should be, or that the model refuses."""
    try:
        return f"{relative(call(*arguments), truth):.0e}"
    except ValueError:
        return "refuses"


def packed(model: nn.Module, x: Tensor, borders: dict[str, Any]) -> Tensor:
    """The outputs of two documents in one row."""
    return model(inputs_embeds=x, use_cache=False, **borders).last_hidden_state


def in_pieces(model: nn.Module, x: Tensor, numbered: bool, cuts: Sequence[int]) -> Tensor:
    """The outputs of a text in pieces; with `numbered`, the caller gives the positions."""
    name, cache, parts = Audited(model).cache_name, None, []
    for begin, end in pairwise(cuts):
        positions = {"position_ids": torch.arange(begin, end)[None]} if numbered else {}
        answer = model(inputs_embeds=x[:, begin:end], use_cache=True, **{name: cache}, **positions)
        cache = getattr(answer, name)
        parts.append(answer.last_hidden_state)
    return torch.cat(parts, 1)


@torch.no_grad()
def compare(name: str) -> list[str]:
    """The columns of the second table."""
    torch.manual_seed(0)
    model = build_tiny(name).eval()
    x = torch.randn(1, TOKENS, 32)
    whole = packed(model, x, {})
    alone = torch.cat([packed(model, x[:, :CUT], {}), packed(model, x[:, CUT:], {})], 1)
    positions = torch.cat([torch.arange(CUT), torch.arange(TOKENS - CUT)])[None]
    ends = torch.tensor([0, CUT, TOKENS], dtype=torch.int32)
    longest = TOKENS - CUT
    flash = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    everything = {"position_ids": positions, **flash, "seq_idx": (torch.arange(TOKENS) >= CUT).int()[None]}
    ways: tuple[dict[str, Any], ...] = ({}, {"position_ids": positions}, everything)
    cells = [shown(alone, packed, model, x, way) for way in ways]
    return cells + [shown(whole, in_pieces, model, x, *way) for way in product((False, True), PIECES)]


def cell(check: Check) -> str:
    """The result of one check."""
    return "-" if check.passed is None else "ok" if check.passed else f"{check.value or float('nan'):.0e}"


def main() -> None:
    """Audit, compare, print."""
    given = options(__doc__, models=MODELS, length=66).parse_args()
    transformers.logging.set_verbosity_error()
    names = given.models.split(",")
    print(f"transformers {transformers.__version__}\n\n| model | {' | '.join(CHECKS)} |\n|{'---|' * (len(CHECKS) + 1)}")
    for name in names:
        report = audit_transformers(PREFIX + name, length=given.length)
        checks = {check.name: check for check in report.checks}
        print(f"| {name} | {' | '.join(cell(checks[check]) for check in CHECKS)} |", flush=True)
        for fault, words in report.faults.items():
            print(f"    {fault}: {words}")
    titles = ("no borders", "position_ids", "collator", "single tokens", "pieces", "numbered tokens", "numbered pieces")
    print(f"\n| model | {' | '.join(titles)} |\n|{'---|' * (len(titles) + 1)}")
    for name in names:
        print(f"| {name} | {' | '.join(compare(name))} |")


if __name__ == "__main__":
    main()
