"""The view "ask": pick a run, ask it or continue a text with it, look inside, change what it computes, and sample texts.

Records of requests and answers, and the tasks that a worker runs; the worker keeps the run that was opened last. Nothing
here computes: that is done by attnlab.lm.decoding, attnlab.trust and attnlab.inside. torch is imported by the tasks only,
because the server does not import it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct, structs

from attnlab.errors import AttnlabError, UntrustedCode, UserError
from attnlab.inside import Ablation, HeadEffect, Intervention, TapName, Trace
from attnlab.serve.routes import Options, Query, Route, RunName
from attnlab.store.listing import Entry, arrange, read, read_all
from attnlab.store.runs import EXAMPLE, Run, run_folder
from attnlab.store.usercode import ADVICE

if TYPE_CHECKING:
    from torch import Tensor

    from attnlab.inside.look import Layer
    from attnlab.lm.model import LanguageModel
    from attnlab.lm.tokenizers import Tokenizer
    from attnlab.trust.answers import AnswerTrie
    from attnlab.trust.asking import Considered, Neighbour, Oracle

RISKS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
EXAMPLE_QUESTION = "Where was Jimmy Collins born?"  # one that the example run was not trained on
MOST_SHOWN = 256  # tokens of a text whose attention is sent
_LONG = 300.0  # seconds: a large model, its corpus, or influences of many layers
_SAMPLING = 600.0  # seconds: up to six runs with ten texts each
_LEVELS = 32767  # steps of a weight: 16 bits with a sign
_EXAMPLES = 3
_SEARCHED, _PARTNERS = 2000, 8  # training questions, and those of the same length that are offered


# The runs to choose from


class Choice(Struct, frozen=True):
    """A run that has a model, named by its path below the folder of runs."""

    name: str
    what: str
    mechanism: str | None
    task: str | None
    asks: bool  # whether it can be asked questions; if not, it continues texts
    code: bool  # whether it carries code of its own
    example: bool = False  # whether it comes with attnlab


class Choices(Struct, frozen=True):
    """The folder of runs, and those that have a model."""

    root: str
    runs: list[Choice]


def choices(options: Options, _: Query) -> Choices:
    """The runs that have a model, the newest first, then the example, then what unfinished studies hold.

    A study stands for its fine-tuned model.
    """
    root = options.root
    entries = arrange(read_all(root), reverse=True) if root.is_dir() else []
    ready, begun = ([entry for entry in entries if _is_begun(entry) == late] for late in (False, True))
    runs, later = ([choice for entry in some for choice in _choices(root, entry)] for some in (ready, begun))
    example = () if (root / EXAMPLE.name).is_dir() else _choice(EXAMPLE.parent, read(EXAMPLE), EXAMPLE)
    return Choices(str(root), [*runs, *(structs.replace(choice, example=True) for choice in example), *later])


def _is_begun(entry: Entry) -> bool:
    """Whether a study is not finished: its models may be baselines or half trained."""
    return entry.kind == "study" and entry.state != "complete"


def _choices(root: Path, entry: Entry) -> list[Choice]:
    """A run, or a study and the runs inside it."""
    if entry.kind != "study":
        return _choice(root, entry, entry.path)
    try:
        main = run_folder(entry.path)
    except UserError:  # a comparison, or not finished
        main = None
    chosen = [choice for run in entry.runs if run.path == main for choice in _choice(root, run, entry.path)]
    others = [choice for run in entry.runs if run.path != main for choice in _choice(root, run, run.path)]
    return chosen + others


def _choice(root: Path, run: Entry, shown: Path) -> list[Choice]:
    """A run, under the name of the folder that stands for it; none if it has no model or no printable name."""
    name = shown.relative_to(root).as_posix()
    if run.kind != "run" or not (run.path / "model").is_dir() or not name.isprintable():
        return []
    asks = Run(run.path).record.task.tested == "answers" and run.settings.get("tokenizer.kind") != "word"
    code = (run.path / "code").is_dir() or (run.path / "model" / "code").is_dir()
    return [Choice(name, run.what, run.mechanism, run.task, asks, code)]


# Opening a run


class RunQuery(Query, frozen=True):
    """A run."""

    run: RunName


class LayerInfo(Struct, frozen=True):
    """The mechanism of a layer, and the activations that can be replaced."""

    mechanism: str
    taps: list[TapName]


class RunInfo(Struct, frozen=True):
    """An opened run, with examples of what to ask."""

    asks: bool
    layers: list[LayerInfo]
    heads: int
    parameters: int
    block: int
    calibrated: bool
    questions: list[str]
    texts: list[str]


@dataclass(frozen=True)
class _Opened:
    """A run with its model in memory; the oracle if it can be asked questions."""

    stamp: tuple[object, ...]
    run: Run
    model: LanguageModel
    tokenizer: Tokenizer
    oracle: Oracle | None


_opened: _Opened | None = None


def open_once(options: Options, name: str) -> _Opened:
    """Open a run, or return it if it was opened last and has not changed."""
    global _opened
    example = name == EXAMPLE.name and not (options.root / name).is_dir()
    run, trust_code = Run.open(EXAMPLE if example else options.folder(name)), options.trust_code
    changing = (run.model / "model.safetensors", run.model / "config.json", run.path / "calibration.json")
    stamp = (run.path, trust_code, *(path.stat().st_mtime_ns if path.is_file() else 0 for path in changing))
    if _opened is None or _opened.stamp != stamp:
        _opened = None  # before the next model takes memory
        try:
            _opened = _open(run, trust_code, stamp)
        except UntrustedCode as error:
            raise UntrustedCode(str(error).replace(ADVICE, "start the server with --trust-code")) from None
    return _opened


def _open(run: Run, trust_code: bool, stamp: tuple[object, ...]) -> _Opened:
    from attnlab.lm.model import load_model
    from attnlab.lm.tokenizers import Tokenizer
    from attnlab.trust.asking import Oracle

    if run.record.task.tested != "answers" or Tokenizer.load(run.model / "tokenizer.json").words:
        return _Opened(stamp, run, *load_model(run.model, trust_code=trust_code), None)
    oracle = Oracle(run, trust_code=trust_code)
    return _Opened(stamp, run, oracle.model, oracle.tokenizer, oracle)


def open_run(options: Options, query: RunQuery) -> RunInfo:
    """Open a run: what it is, and what it can be asked."""
    from attnlab.inside.ablation import taps_in

    opened = open_once(options, query.run)
    config, oracle = opened.model.config, opened.oracle
    names = config.mechanisms
    return RunInfo(
        asks=oracle is not None,
        layers=[LayerInfo(names[layer % len(names)], taps_in(opened.model, layer)) for layer in range(config.n_layer)],
        heads=config.n_head,
        parameters=sum(weight.numel() for weight in opened.model.parameters()),
        block=config.block_size,
        calibrated=oracle is not None and oracle.calibration is not None,
        questions=_example_questions(oracle) if oracle else [],
        texts=_example_texts(opened.run),
    )


def _example_questions(oracle: Oracle) -> list[str]:
    """Questions that it was trained on, then some that it was not, where they are known."""
    from attnlab.corpora import load_questions
    from attnlab.trust.calibrating import usual_questions

    questions = [EXAMPLE_QUESTION] if oracle.run.path == EXAMPLE else []
    questions += [item.question for item in oracle.facts[:_EXAMPLES]]
    with suppress(AttnlabError):
        questions += [item.question for item in load_questions(usual_questions(oracle.run))[:_EXAMPLES]]
    return list(dict.fromkeys(questions))


def _example_texts(run: Run) -> list[str]:
    """Beginnings of lines that it was trained on."""
    from attnlab.trust.training_data import TrainingData

    with suppress(AttnlabError, OSError, UnicodeError):
        lines = (line.split() for line in TrainingData(run).lines())
        return [" ".join(words[:6]) for words in islice((words for words in lines if len(words) > 4), _EXAMPLES)]
    return []


# Answers


class Prompt(RunQuery, frozen=True):
    """A question, or the beginning of a text; to continue it, the most tokens to write."""

    text: Annotated[str, Meta(max_length=4000)]
    mode: Literal["ask", "continue"] = "ask"
    limit: Annotated[int, Meta(ge=1, le=200)] = 40

    @property
    def question(self) -> bool:
        """Whether the text is a question."""
        return self.mode == "ask"


class _Event(Struct, frozen=True, tag_field="kind", tag=str.lower):
    """A line of an answer."""


class Read(_Event, frozen=True, tag="prompt"):
    """The tokens of the text, and training questions of as many tokens for activations to come from."""

    tokens: list[str]
    note: str
    partners: list[str]


class Token(_Event, frozen=True):
    """A written token, its probability, and the likeliest tokens."""

    token: str
    stop: bool
    probability: float
    top: list[tuple[str, float]]


class Written(_Event, frozen=True):
    """All that the model wrote."""

    text: str


class AtRisk(Struct, frozen=True):
    """What is decided about an answer at one risk."""

    risk: float
    verdict: str
    abstains: bool
    certified: bool
    reasons: list[str]
    rule: str


class Answered(_Event, frozen=True, tag="answer"):
    """An answer and what is decided at each risk, so that the page can change the risk by itself; `quote` in three parts."""

    answer: str
    probability: float | None
    alternatives: Sequence[tuple[str, float]]
    calibrated: bool
    quote: tuple[str, str, str]
    nearest: Sequence[Neighbour]
    risks: list[AtRisk]


class Weights(Struct, frozen=True):
    """The maps of a layer as 16-bit numbers in base64: rows up to the diagonal, or all of them if the future is seen."""

    mechanism: str
    kind: str
    causal: bool
    scales: list[float]
    weights: str


class Look(_Event, frozen=True, omit_defaults=True):
    """The attention of every layer and head, and the probability and best guess of each token; or why there is none."""

    tokens: Sequence[str] = ()
    layers: Sequence[Weights] = ()
    read: Sequence[tuple[float | None, str | None]] = ()
    refused: str = ""


def answer(options: Options, query: Prompt) -> Iterator[_Event]:
    """Yield the tokens that the model writes, then the answer with its verdicts, then the attention over all of it."""
    opened = open_once(options, query.run)
    ids = _encode(opened, query)
    tokenizer = opened.tokenizer
    partners = _partners(opened, ids) if query.question else []
    yield Read([tokenizer.piece(token) for token in ids], _unknown_words(tokenizer, ids), partners)
    written: list[int] = []
    for token, chances in _write(opened, ids, query.limit):
        stops = token in tokenizer.stops
        top = _likeliest(chances, tokenizer)
        if not math.isfinite(top[0][1]):
            raise AttnlabError("the model computed a number that is not finite: it may have diverged")
        yield Token(tokenizer.piece(token), stops, chances[token].item(), top)
        written += [] if stops else [token]
    yield Written(tokenizer.decode(written).strip())
    if opened.oracle is not None and query.question:
        yield _answered(opened.oracle, opened.oracle.consider(query.text, top=8))
    yield _look(opened, [*ids, *written], query.text)


def _encode(opened: _Opened, query: Prompt) -> list[int]:
    """The tokens of what is asked or continued."""
    from attnlab.inside.ablation import encode_prompt

    if query.question and opened.oracle is None:
        raise UserError("this run was not trained on questions: continue a text with it instead")
    return encode_prompt(opened.model, opened.tokenizer, query.text, query.question)


def _partners(opened: _Opened, ids: Sequence[int]) -> list[str]:
    """Training questions of as many tokens, those with the most tokens in common first."""
    assert opened.oracle is not None
    coded = [(item.question, opened.tokenizer.encode(item.question)) for item in opened.oracle.facts[:_SEARCHED]]
    fitting = [(text, others) for text, others in coded if len(others) == len(ids) - 1 and others != ids[:-1]]
    fitting.sort(key=lambda pair: -sum(token == other for token, other in zip(ids, pair[1], strict=False)))
    return [text for text, _ in fitting[:_PARTNERS]]


def _write(opened: _Opened, ids: Sequence[int], limit: int) -> Iterator[tuple[int, Tensor]]:
    """Yield greedily chosen tokens, each with the probabilities of all tokens."""
    import torch

    from attnlab.inside.taps import eval_mode
    from attnlab.lm.decoding import continuation

    chances: list[Tensor] = []

    def choose(scores: Tensor) -> Tensor:
        chances.append(scores[0, : opened.tokenizer.size].softmax(dim=-1))
        return chances[-1].argmax()[None]

    with eval_mode(opened.model):
        for chosen in continuation(opened.model, torch.tensor([ids]), limit, opened.tokenizer.stops, choose=choose):
            yield int(chosen.item()), chances[-1]


def _likeliest(chances: Tensor, tokenizer: Tokenizer, count: int = 5) -> list[tuple[str, float]]:
    values, tokens = chances.topk(min(count, len(chances)))
    return [(tokenizer.piece(token), value) for token, value in zip(tokens.tolist(), values.tolist(), strict=True)]


def _unknown_words(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    count = sum(token == tokenizer.unknown for token in ids) if tokenizer.words else 0
    if not count:
        return ""
    return f"{count} of these words {'is' if count == 1 else 'are'} not in its vocabulary: it reads <UNK> instead."


def _answered(oracle: Oracle, asked: Considered) -> Answered:
    from attnlab.corpora.library import place_in

    decided = [oracle.decide(asked, risk) for risk in RISKS]
    quote = decided[0].quote
    begin, end = place_in(quote, asked.answer) or (len(quote), len(quote))
    return Answered(
        answer=asked.answer,
        probability=asked.probability,
        alternatives=asked.alternatives,
        calibrated=decided[0].calibrated,
        quote=(quote[:begin], quote[begin:end], quote[end:]),
        nearest=asked.nearest,
        risks=[
            AtRisk(
                risk=each.max_risk,
                verdict=each.verdict,
                abstains=each.abstains,
                certified=bool((rule := oracle.rule(each.max_risk)) and rule.met),
                reasons=[reason for reason in each.reasons if reason != each.rule],
                rule=each.rule,
            )
            for each in decided
        ],
    )


# Attention


def _look(opened: _Opened, ids: Sequence[int], text: str) -> Look:
    """The attention of every layer and head over a text, or why it cannot be shown."""
    from attnlab.inside.look import look_at

    if len(ids) > MOST_SHOWN:
        return Look(refused=f"Attention is shown for texts of up to {MOST_SHOWN} tokens, and this has {len(ids)}.")
    try:
        view = look_at(opened.model, opened.tokenizer, ids, text)
    except UserError as error:
        return Look(refused=str(error))
    if not all(layer.maps.isfinite().all() for layer in view.layers):
        return Look(refused="Attention is not shown: some weights are not finite, so the model may have diverged.")
    read = [(token.probability, token.expected) for token in view.read]
    return Look(view.tokens, [_packed(layer) for layer in view.layers], read)


def _packed(layer: Layer) -> Weights:
    import numpy as np

    maps = layer.shares().double().cpu().numpy()
    causal = not np.triu(maps, 1).any()
    scales = np.maximum(np.abs(maps).max(axis=(1, 2)), 1e-30)
    steps = np.round(maps / scales[:, None, None] * _LEVELS).astype("<i2")
    kept = steps[:, *np.tril_indices(maps.shape[-1])] if causal else steps.reshape(len(steps), -1)
    content = base64.b64encode(np.ascontiguousarray(kept).tobytes()).decode()
    return Weights(layer.mechanism, layer.kind, causal, scales.tolist(), content)


# Every step to an answer


class Steps(Prompt, frozen=True, kw_only=True):
    """A text, the token of it or of what is written to follow, by default the last that is given, and changes."""

    token: Annotated[int, Meta(ge=0)] | None = None
    changes: Annotated[tuple[Intervention, ...], Meta(max_length=64)] = ()


def steps(options: Options, query: Steps) -> Trace:
    """Everything that the model computes on the way to the token after the one that is followed."""
    from attnlab.inside.trace import trace

    opened = open_once(options, query.run)
    if (count := len(_encode(opened, query))) > MOST_SHOWN:
        raise UserError(f"steps are shown for texts of up to {MOST_SHOWN} tokens, and this has {count}: shorten it")
    arguments = opened.model, opened.tokenizer, query.text
    return trace(*arguments, question=query.question, changes=query.changes, token=query.token, limit=query.limit)


# Changes inside the model


class Changes(Prompt, frozen=True, kw_only=True):
    """A text, and the changes to make while the model reads it."""

    changes: Annotated[list[Intervention], Meta(min_length=1, max_length=64)]


def intervene(options: Options, query: Changes) -> Ablation:
    """What the model says without and with some changes inside it."""
    from attnlab.inside.ablation import ablate

    opened, answers = _askable(options, query)
    arguments = opened.model, opened.tokenizer, query.text, query.changes
    return ablate(*arguments, question=query.question, answers=answers)


def heads(options: Options, query: Prompt) -> Iterator[HeadEffect]:
    """How likely the model's answer is, unchanged, then with each head switched off."""
    from attnlab.inside.ablation import ablate_heads

    opened, answers = _askable(options, query)
    yield from ablate_heads(opened.model, opened.tokenizer, query.text, question=query.question, answers=answers)


def _askable(options: Options, query: Prompt) -> tuple[_Opened, AnswerTrie | None]:
    """A run that can be asked this, and the answers that it knows."""
    opened = open_once(options, query.run)
    _encode(opened, query)  # refuses what cannot be asked
    return opened, opened.oracle.trie if opened.oracle else None


# Samples


class Sampling(Query, frozen=True):
    """What to sample from which runs."""

    names: Annotated[list[RunName], Meta(min_length=1, max_length=6)]
    prompt: Annotated[str, Meta(max_length=2000)] = ""
    count: Annotated[int, Meta(ge=1, le=10, title="the number of texts")] = 3
    temperature: Annotated[float, Meta(ge=0, le=10, title="the temperature")] = 0.8
    top_k: Annotated[int, Meta(ge=0, le=100_000, title="top k")] = 0
    top_p: Annotated[float, Meta(gt=0, le=1, title="top p")] = 1.0
    beams: Annotated[int, Meta(ge=0, le=64, title="the number of beams")] = 0
    length_penalty: Annotated[float, Meta(ge=0, le=10, title="the length penalty")] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1, title="the seed")] = 0
    limit: Annotated[int, Meta(ge=1, le=400, title="the maximum number of tokens")] = 80


class Samples(Struct, frozen=True):
    """Texts of a run with their log probabilities, if they were searched for, and figures; or why there are none."""

    run: str
    samples: list[str]
    figures: str = ""
    log_probabilities: list[float] = []
    problem: str = ""


def sample(options: Options, query: Sampling) -> Iterator[Samples]:
    """Texts of each run, one after the other, as `attnlab generate` writes them."""
    from attnlab.lm import decoding

    ways = {"beams", "length_penalty"}, {"temperature", "top_k", "top_p", "seed"}
    settings = structs.asdict(query)
    for name in settings.pop("names"):
        options.folder(name)
    for unused in ways[bool(query.beams)]:
        del settings[unused]
    for name in dict.fromkeys(query.names):
        try:
            opened = open_once(options, name)
            if query.beams:
                beams = decoding.beam_search(opened.model, opened.tokenizer, **settings)
                texts, chances = [beam.text for beam in beams], [beam.log_probability for beam in beams]
            else:
                texts, chances = decoding.sample(opened.model, opened.tokenizer, **settings), []
        except AttnlabError as error:
            yield Samples(name, [], problem=str(error))
        else:
            yield Samples(name, texts, str(decoding.variety(texts, query.prompt)), chances)


ROUTES = (
    Route("GET", "/ask/runs", Query, choices),
    Route("POST", "/ask/open", RunQuery, open_run, "models", _LONG),
    Route("POST", "/ask/answer", Prompt, answer, "models", _LONG),
    Route("POST", "/ask/steps", Steps, steps, "models", _LONG),
    Route("POST", "/ask/intervene", Changes, intervene, "models", _LONG),
    Route("POST", "/ask/heads", Prompt, heads, "models", _LONG),
    Route("POST", "/samples", Sampling, sample, "models", _SAMPLING),
)
