"""Tasks of the view "ask" that need a model. They run in a worker, which keeps the run that was opened last.

Nothing here computes: that is done by attnlab.lm.evaluate, attnlab.trust and attnlab.inside.look.
torch is imported by the tasks only, so that the server can name them without it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from attnlab.errors import AttnlabError, UntrustedCode, UserError
from attnlab.store.runs import Run
from attnlab.store.usercode import ADVICE

if TYPE_CHECKING:
    from torch import Tensor

    from attnlab.inside.look import Layer
    from attnlab.lm.model import LanguageModel
    from attnlab.lm.tokenizers import Tokenizer
    from attnlab.trust.asking import Considered, Oracle

RISKS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
TAPS = {  # what an intervention may replace: the end of the tap's name
    "z": "attn.hook_z",
    "attn_out": "hook_attn_out",
    "mlp_out": "hook_mlp_out",
    "resid_pre": "hook_resid_pre",
    "resid_mid": "hook_resid_mid",
    "resid_post": "hook_resid_post",
}
MOST_SHOWN = 256  # tokens of a text whose attention is sent
_LEVELS = 32767  # steps of a weight: 16 bits with a sign
_EXAMPLES = 3
_SEARCHED, _PARTNERS = 2000, 8  # training questions, and those of a given length that are offered


@dataclass(frozen=True)
class Opened:
    """A run with its model in memory; the oracle if it can be asked questions."""

    stamp: tuple[object, ...]
    run: Run
    model: LanguageModel
    tokenizer: Tokenizer
    oracle: Oracle | None


_kept: Opened | None = None


def open_once(folder: str, trust_code: bool) -> Opened:
    """Open a run, or return it if it was opened last and has not changed."""
    global _kept
    run = Run.open(folder)
    changing = (run.model / "model.safetensors", run.model / "config.json", run.path / "calibration.json")
    stamp = (run.path, trust_code, *(path.stat().st_mtime_ns if path.is_file() else 0 for path in changing))
    if _kept is None or _kept.stamp != stamp:
        _kept = None  # before the next model takes memory
        try:
            _kept = _open(run, trust_code, stamp)
        except UntrustedCode as error:
            raise UntrustedCode(str(error).replace(ADVICE, "start the server with --trust-code")) from None
    return _kept


def _open(run: Run, trust_code: bool, stamp: tuple[object, ...]) -> Opened:
    from attnlab.lm.model import load_model
    from attnlab.lm.tokenizers import Tokenizer
    from attnlab.trust.asking import Oracle

    if run.record.task.tested != "answers" or Tokenizer.load(run.model / "tokenizer.json").words:
        return Opened(stamp, run, *load_model(run.model, trust_code=trust_code), None)
    oracle = Oracle(run, trust_code=trust_code)
    return Opened(stamp, run, oracle.model, oracle.tokenizer, oracle)


# About a run


def about(folder: str, trust_code: bool) -> dict[str, Any]:
    """What the page needs to know about a run before anything is asked."""
    opened = open_once(folder, trust_code)
    config, oracle = opened.model.config, opened.oracle
    names = config.mechanisms
    return {
        "asks": oracle is not None,
        "layers": [
            {"mechanism": names[number % len(names)], "taps": taps_in(opened.model, number)}
            for number in range(config.n_layer)
        ],
        "heads": config.n_head,
        "parameters": sum(one.numel() for one in opened.model.parameters()),
        "block": config.block_size,
        "calibrated": oracle is not None and oracle.calibration is not None,
        "questions": _example_questions(oracle) if oracle else [],
        "texts": _example_texts(opened.run),
    }


def taps_in(model: LanguageModel, layer: int) -> list[str]:
    """The activations of a layer that can be replaced."""
    from attnlab.inside.taps import taps_of

    names = taps_of(model)
    return [short for short, end in TAPS.items() if f"blocks.{layer}.{end}" in names]


def _example_questions(oracle: Oracle) -> list[str]:
    """Questions that it was trained on, then some that it was not, where they are known."""
    from attnlab.corpora import load_questions
    from attnlab.trust.calibrating import usual_questions

    found = [item.question for item in oracle.facts[:_EXAMPLES]]
    with suppress(AttnlabError):
        found += [item.question for item in load_questions(usual_questions(oracle.run))[:_EXAMPLES]]
    return list(dict.fromkeys(found))


def _example_texts(run: Run) -> list[str]:
    """Beginnings of lines that it was trained on."""
    from attnlab.trust.training_data import TrainingData

    with suppress(AttnlabError, OSError, UnicodeError):
        lines = (line.split() for line in TrainingData(run).lines())
        return [" ".join(words[:6]) for words in islice((one for one in lines if len(one) > 4), _EXAMPLES)]
    return []


# Answers


def answer(folder: str, trust_code: bool, text: str, asking: bool, limit: int) -> Iterator[dict[str, Any]]:
    """Yield the tokens that the model writes, then the answer with its verdicts, then the attention over all of it."""
    opened = open_once(folder, trust_code)
    ids = prompt(opened, text, asking)
    tokenizer = opened.tokenizer
    yield {
        "kind": "prompt",
        "tokens": [tokenizer.piece(token) for token in ids],
        "note": _unknown_words(tokenizer, ids),
        "partners": _partners(opened, ids) if asking else [],
    }
    written: list[int] = []
    for token, chances in _write(opened, ids, limit):
        stops = token in tokenizer.stops
        yield {
            "kind": "token",
            "token": tokenizer.piece(token),
            "stop": stops,
            "probability": chances[token].item(),
            "top": _likeliest(chances, tokenizer),
        }
        written += [] if stops else [token]
    yield {"kind": "written", "text": tokenizer.decode(written).strip()}
    if asking:
        assert opened.oracle is not None
        yield {"kind": "answer", **_answered(opened.oracle, opened.oracle.consider(text, top=8))}
    yield {"kind": "look", **_looked(opened, [*ids, *written], text)}


def prompt(opened: Opened, text: str, asking: bool) -> list[int]:
    """The tokens of a question or of the beginning of a text."""
    from attnlab.inside import look
    from attnlab.lm.evaluate import encode_question
    from attnlab.trust.asking import checked_question

    block = opened.model.config.block_size
    if not asking:
        return look.encode(opened.tokenizer, text, False, block)
    if opened.oracle is None:
        raise UserError("this run was not trained on questions: continue a text with it instead")
    question = checked_question(text)
    look.encode(opened.tokenizer, question, True, block)  # refuses symbols that the model does not have
    return encode_question(opened.tokenizer, question, block)


def _partners(opened: Opened, ids: Sequence[int]) -> list[str]:
    """Training questions of as many tokens, those with the most tokens in common first, for activations to come from."""
    assert opened.oracle is not None
    coded = [(item.question, opened.tokenizer.encode(item.question)) for item in opened.oracle.facts[:_SEARCHED]]
    fitting = [(text, some) for text, some in coded if len(some) == len(ids) - 1 and some != ids[:-1]]
    fitting.sort(key=lambda one: -sum(mine == theirs for mine, theirs in zip(ids, one[1], strict=False)))
    return [text for text, _ in fitting[:_PARTNERS]]


def _write(opened: Opened, ids: Sequence[int], limit: int) -> Iterator[tuple[int, Tensor]]:
    """Yield greedily chosen tokens, each with the probabilities of all tokens."""
    import torch

    from attnlab.inside.taps import eval_mode
    from attnlab.lm.evaluate import continuation

    met: list[Tensor] = []

    def choose(scores: Tensor) -> Tensor:
        met.append(scores[0, : opened.tokenizer.size].softmax(dim=-1))
        return met[-1].argmax()[None]

    with eval_mode(opened.model):
        for chosen in continuation(opened.model, torch.tensor([ids]), limit, opened.tokenizer.stops, choose=choose):
            yield int(chosen.item()), met[-1]


def _likeliest(chances: Tensor, tokenizer: Tokenizer, count: int = 5) -> list[tuple[str, float]]:
    values, tokens = chances.topk(min(count, len(chances)))
    return [(tokenizer.piece(token), value) for token, value in zip(tokens.tolist(), values.tolist(), strict=True)]


def _unknown_words(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    count = sum(token == tokenizer.unknown for token in ids) if tokenizer.words else 0
    if not count:
        return ""
    return f"{count} of these words {'is' if count == 1 else 'are'} not in its vocabulary: it reads <UNK> instead."


def _answered(oracle: Oracle, asked: Considered) -> dict[str, Any]:
    """An answer, and what is decided for each risk, so that the page can change the risk by itself."""
    from attnlab.corpora.evidence import place_in

    decided = [oracle.decide(asked, risk) for risk in RISKS]
    first = decided[0]
    begin, end = place_in(first.quote, asked.answer) or (len(first.quote), len(first.quote))
    return {
        "answer": asked.answer,
        "probability": asked.probability,
        "alternatives": asked.alternatives,
        "calibrated": first.calibrated,
        "quote": [first.quote[:begin], first.quote[begin:end], first.quote[end:]],
        "nearest": [asdict(one) for one in asked.nearest],
        "risks": [
            {
                "risk": one.max_risk,
                "verdict": one.verdict,
                "abstains": one.abstains,
                "certified": bool((rule := oracle.rule(one.max_risk)) and rule.met),
                "reasons": [reason for reason in one.reasons if reason != one.rule],
                "rule": one.rule,
            }
            for one in decided
        ],
    }


# Attention


def _looked(opened: Opened, ids: Sequence[int], text: str) -> dict[str, Any]:
    """The attention of every layer and head over a text, or why it cannot be shown."""
    from attnlab.inside.look import look_at

    if len(ids) > MOST_SHOWN:
        return {"refused": f"Attention is shown for texts of up to {MOST_SHOWN} tokens, and this has {len(ids)}."}
    try:
        view = look_at(opened.model, opened.tokenizer, ids, text)
    except UserError as error:
        return {"refused": str(error)}
    if not all(layer.maps.isfinite().all() for layer in view.layers):
        return {"refused": "Attention is not shown: some weights are not finite, so the model may have diverged."}
    return {
        "tokens": view.tokens,
        "layers": [_packed(layer) for layer in view.layers],
        "read": [[one.probability, one.expected] for one in view.read],
    }


def _packed(layer: Layer) -> dict[str, Any]:
    """The maps of a layer as 16-bit numbers in base64: rows up to the diagonal, or all of them if the future is seen."""
    import numpy as np

    maps = layer.shares().double().cpu().numpy()
    causal = not np.triu(maps, 1).any()
    scales = np.maximum(np.abs(maps).max(axis=(1, 2)), 1e-30)
    steps = np.round(maps / scales[:, None, None] * _LEVELS).astype("<i2")
    kept = steps[:, *np.tril_indices(maps.shape[-1])] if causal else steps.reshape(len(steps), -1)
    return {
        "mechanism": layer.mechanism,
        "kind": layer.kind,
        "causal": causal,
        "scales": scales.tolist(),
        "weights": base64.b64encode(np.ascontiguousarray(kept).tobytes()).decode(),
    }
