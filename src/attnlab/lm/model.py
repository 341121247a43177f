"""The language model: token embedding, blocks of attention and MLP, head. Attention comes from the registry.

A model is saved as a folder: model.safetensors, config.json, tokenizer.json, and code/ for a user's own mechanism.
Nothing is ever unpickled.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable imports the compiler at once, for 2 seconds
from torch.nn import functional as F

from attnlab import ops, reading, registry
from attnlab.config import ModelConfig, require, restore_model
from attnlab.errors import CheckpointError, ConfigError, UserError
from attnlab.inside.taps import Tap
from attnlab.lm.tokenizers import Tokenizer
from attnlab.mechanisms.heads import Attention, PositionTable
from attnlab.store import usercode
from attnlab.store.folders import read_bytes, read_json
from attnlab.store.runs import FORMAT, Run, require_kind

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
}


def _make_norm(kind: str, width: int) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    return nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width, ops.EPSILON, elementwise_affine=False)


def make_attention(config: ModelConfig, layer: int) -> nn.Module:
    """Build the attention of a layer; several mechanisms are repeated over the layers."""
    entries = [registry.find("mechanism", name) for name in config.mechanisms]
    if len(entries) > config.n_layer:
        raise ConfigError(
            f"{len(entries)} mechanisms for {config.n_layer} layers: name fewer, or set --model.n_layer {len(entries)}"
        )
    used = [entry.short_name for entry in entries]
    for name in config.options:
        if name not in used:
            raise ConfigError(
                f"model.options.{name} is given, but model.mechanism uses only {', '.join(used)}: correct one"
            )
    entry = entries[layer % len(entries)]
    if config.bottleneck and layer in (0, config.n_layer - 1) and entry.name != "dot":
        raise ConfigError(f"with a bottleneck the first and last layers must be 'dot', not '{entry.name}'")
    if not entry.causal:
        raise ConfigError(
            f"mechanism '{entry.name}' cannot be causal: choose another, since a language model must not see the future"
        )
    rotary = config.layer_positions[layer % len(config.layer_positions)] == "rotary" and not entry.ordered
    rotation = ops.Rotary(config.rotary_layout, config.rotary_base, config.rotary_fraction)
    if rotary and not entry.accepts("rotary"):
        raise ConfigError(f"mechanism '{entry.short_name}' has no rotary positions: add --model.positions learned")
    if rotary and rotation != ops.ROTARY and not entry.accepts("rotation"):
        raise ConfigError(
            f"mechanism '{entry.name}' rotates in a way of its own: leave out model.rotary_layout, rotary_base and"
            " rotary_fraction, or take `rotation` in its constructor"
        )
    module: nn.Module = entry.make(
        (config.n_embd, config.n_head, config.block_size),
        config.options.get(entry.short_name, {}),
        causal=True,
        rotary=rotary,
        rotation=rotation,
        qk_norm=config.qk_norm,
        bias=config.bias,
        dropout=config.dropout_of_attention,
    )
    return module


def arguments_of(call: Callable[..., Any]) -> frozenset[str]:
    """Return the argument names of a module's forward, or of a function."""
    try:
        return frozenset(inspect.signature(call.forward if isinstance(call, nn.Module) else call).parameters)
    except (TypeError, ValueError):  # functions written in C have no signature
        return frozenset()


@dataclass(frozen=True)
class Packing:
    """Rows with several documents each, taken apart around attention, the only place where tokens meet.

    Attention sees one row per document, filled up with zeros at the end to the longest of its group; documents of about the
    same length (up to the next power of two) are a group, so that at most half of a row is filler.
    """

    positions: Int[Tensor, "B T"]  # of every token in its document
    groups: tuple[tuple[Tensor, Tensor], ...]  # [R, L]: the tokens of every document, and which are filler
    places: Int[Tensor, " N"]  # of every token in the groups, one after the other

    @classmethod
    @_disable_dynamo
    def of(cls, documents: Int[Tensor, "B T"]) -> Packing:
        """Cut rows where the number of the document changes."""
        numbers, device = documents.cpu(), documents.device
        begins = F.pad(numbers[:, 1:] != numbers[:, :-1], (1, 0), value=True).flatten()
        starts, tokens = begins.nonzero()[:, 0], torch.arange(numbers.numel())
        lengths = starts.diff(append=torch.tensor([numbers.numel()]))
        powers = lengths.double().log2().ceil().long()
        places, groups, before = torch.empty_like(tokens), [], 0
        for power in powers.unique():
            first, length = starts[powers == power, None], lengths[powers == power, None]
            offset = tokens[: int(length.max())]
            where, filler = first + offset, offset >= length
            places[where[~filler]] = before + (~filler).flatten().nonzero()[:, 0]
            groups.append((where.masked_fill_(filler, 0).to(device), filler.to(device)))
            before += where.numel()
        positions = tokens - starts[begins.cumsum(0) - 1]
        return cls(positions.view_as(numbers).to(device), tuple(groups), places.to(device))

    @_disable_dynamo  # every group has another shape
    def attend(
        self,
        attention: Callable[[Tensor, Tensor | None], Tensor],
        x: Float[Tensor, "B T D"],
        padding: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the outputs of attention for every document by itself; the filler is hidden if there is padding at all."""
        parts = []
        for where, filler in self.groups:
            rows = x.flatten(0, 1)[where].masked_fill(filler[..., None], 0.0)
            hidden = None if padding is None else filler | padding.flatten()[where]
            parts.append(attention(rows, hidden).flatten(0, 1))
        return torch.cat(parts)[self.places].unflatten(0, x.shape[:2])


class MLP(nn.Module):
    """Two linear layers with an activation in between; with swiglu, a third is multiplied in (arXiv:2002.05202).

    With swiglu, three matrices of 2/3 of the width have the parameters of two; the width is a multiple of 8.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        gated, hidden = config.activation == "swiglu", config.mlp_ratio * config.n_embd
        hidden = -(-hidden // 12) * 8 if gated else hidden
        self.up = nn.Linear(config.n_embd, hidden, bias=config.bias)
        self.gate = nn.Linear(config.n_embd, hidden, bias=config.bias) if gated else None
        self.out = nn.Linear(hidden, config.n_embd, bias=config.bias)
        self.activation = _ACTIVATIONS["silu" if gated else config.activation]
        self.hook_post = Tap()

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Apply the MLP to each token."""
        if self.gate is not None:
            return self.out(self.hook_post(self.activation(self.gate(x)) * self.up(x)))
        return self.out(self.hook_post(self.activation(self.up(x))))


class Block(nn.Module):
    """Attention, then MLP if there is one, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.post = config.norm_place == "post"
        self.norm1 = _make_norm(config.norm, config.n_embd)
        self.attn = make_attention(config, layer)
        self.dropout = nn.Dropout(config.dropout)
        self.hook_resid_pre, self.hook_resid_mid, self.hook_resid_post = Tap(), Tap(), Tap()
        self.hook_attn_out = Tap()
        self.mlp: MLP | None = None
        if config.mlp_ratio:
            self.norm2 = _make_norm(config.norm, config.n_embd)
            self.mlp = MLP(config)
            self.hook_mlp_out = Tap()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        padding: Bool[Tensor, "B S"] | None,
        cache: Any,
        packing: Packing | None = None,
        wanted: Bool[Tensor, "B T"] | None = None,
        across: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "B T D"] | Float[Tensor, "N D"]:
        """Return the residual stream after this block, for all tokens or only for those `wanted`.

        With `across`, a sequence [B, S, D] and a mask, tokens attend to that sequence and not to each other.
        """
        x = self.hook_resid_pre(x)
        normed = self.normed(x)
        if across is None:
            attended = self._attend(normed, padding, cache, packing)
        else:
            assert isinstance(self.attn, Attention)
            attended = self.attn.across(normed, self.normed(across[0]), across[1], cache)
        x = x + self.hook_attn_out(self.dropout(attended))
        x = self.hook_resid_mid(self.norm1(x) if self.post else x)
        x = x if wanted is None else x[wanted]
        if self.mlp is not None:
            x = x + self.hook_mlp_out(self.dropout(self.mlp(x if self.post else self.norm2(x))))
            x = self.norm2(x) if self.post else x
        return self.hook_resid_post(x)

    def normed(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The input of attention: the residual stream, normalised unless norms come after the sums."""
        return x if self.post else self.norm1(x)

    def _attend(self, x: Tensor, padding: Tensor | None, cache: Any, packing: Packing | None) -> Tensor:
        """Return the outputs of attention over the tokens of a row, or of a document."""
        attention = partial(self._attention, cache)
        return packing.attend(attention, x, padding) if packing else attention(x, padding)

    def _attention(self, cache: Any, x: Tensor, padding: Tensor | None) -> Tensor:
        # A mechanism may take forward(x) alone: padding and cache are passed only if there are any.
        arguments = {name: value for name, value in (("padding", padding), ("cache", cache)) if value is not None}
        return self.attn(x, **arguments)


def _attend_through_latents(
    blocks: Sequence[Block],
    latents: Float[Tensor, "L D"],
    x: Float[Tensor, "B T D"],
    padding: Bool[Tensor, "B S"] | None,
    caches: Sequence[Any],
    share: int,
    wanted: Bool[Tensor, "B T"] | None,
) -> Float[Tensor, "B T D"] | Float[Tensor, "N D"]:
    """Apply the blocks of a Perceiver: the first reads tokens into latents, the last reads from the latents.

    Each latent covers `share` tokens and reads all tokens up to the end of its share; a token reads the latents whose share
    has ended. So nothing comes from the future, and the latents of a text do not change while it is being generated.
    """
    first, *middle, last = blocks
    start = caches[0].length if caches[0] is not None else 0
    end = start + x.shape[1]
    place = torch.arange(end + 1, device=x.device)
    ends = place[1 : end // share + 1] * share  # how many tokens each latent has read
    reads = (place[:end] < ends[start // share :, None])[None, None]
    if padding is not None:
        reads = reads & ~padding[:, None, None, :]
    y = latents[start // share : end // share].expand(len(x), -1, -1)
    y = first(y, None, caches[0], across=(x, reads))
    for block, cache in zip(middle, caches[1:-1], strict=True):
        y = block(y, None, cache) if y.shape[1] else y
    return last(x, None, caches[-1], wanted=wanted, across=(y, (ends <= place[start + 1 :, None])[None, None]))


class _TiedHead(nn.Module):
    """A head whose weight is the token embedding; it is not registered again, so that files hold it once."""

    def __init__(self, tokens: nn.Embedding) -> None:
        super().__init__()
        self._tokens = (tokens,)

    @property
    def weight(self) -> Tensor:
        """The token embedding."""
        return self._tokens[0].weight

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Return the logits."""
        return F.linear(x, self.weight)


class LanguageModel(nn.Module):
    """A GPT: predicts the next token from all before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        require(config.vocab_size > 0, "model.vocab_size 0 needs a corpus to learn the vocabulary from: give a number")
        self.config = config = replace(config, mechanism=usercode.named_by_user(config.mechanism))
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions: nn.Embedding | PositionTable | None = None
        if config.positions == "learned":
            self.positions = nn.Embedding(config.block_size, config.n_embd)
        elif config.positions == "sinusoidal":
            self.positions = PositionTable(partial(ops.sinusoidal_table, width=config.n_embd), config.block_size)
        self.latents = nn.Parameter(torch.empty(config.bottleneck, config.n_embd)) if config.bottleneck else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.norm = _make_norm("none" if config.norm_place == "post" else config.norm, config.n_embd)
        self.head: nn.Linear | _TiedHead
        self.head = (
            _TiedHead(self.tokens) if config.tied_head else nn.Linear(config.n_embd, config.vocab_size, bias=False)
        )
        self.hook_embed, self.hook_final = Tap(), Tap()
        if self.positions is not None:
            self.hook_pos_embed = Tap()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weights: normal with std 0.02; biases and (with zero_init) output projections zero."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
                if name.endswith(".out") and self.config.zero_init:
                    nn.init.zeros_(module.weight)
        if isinstance(self.positions, nn.Embedding):
            nn.init.zeros_(self.positions.weight)
        if self.latents is not None:
            nn.init.normal_(self.latents, std=0.02)

    @property
    def takes_padding(self) -> bool:
        """Whether every layer accepts a padding mask; a mechanism may take `forward(x)` alone."""
        return self.latents is not None or all("padding" in arguments_of(part) for part in self.mechanisms)

    @property
    def longest(self) -> int:
        """The longest text that the model can read: the block, or any text if neither positions nor attention have an end."""
        ends = isinstance(self.positions, nn.Embedding) or self.latents is not None
        ends = ends or any(getattr(part, "bounded", True) for part in self.mechanisms)
        return self.config.block_size if ends else sys.maxsize

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.tokens.weight.device

    @property
    def mechanisms(self) -> list[nn.Module]:
        """The attention of every layer."""
        return [block.attn for block in self._layers]

    @property
    def _layers(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def begin_step(self) -> None:
        """Announce a training step to mechanisms that count them: a step may call attention several times."""
        for mechanism in self.mechanisms:
            getattr(mechanism, "begin_step", lambda: None)()

    def new_caches(self) -> list[Any] | None:
        """Make one empty cache per layer for generation; None if a layer has no cache, and texts are then recomputed."""
        if not all(hasattr(part, "new_cache") and "cache" in arguments_of(part) for part in self.mechanisms):
            return None
        return [part.new_cache() for part in self.mechanisms]  # type: ignore[operator]

    def hidden(
        self,
        ids: Int[Tensor, "B T"],
        padding: Bool[Tensor, "B S"] | None = None,
        caches: Sequence[Any] | None = None,
        wanted: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"] | Float[Tensor, "N D"]:
        """Return the input of the head, the residual stream after the last norm: for all tokens, or only for those `wanted`.

        After the last attention tokens are independent, so the last MLP is computed for the wanted tokens only; the taps
        after it then see [N, D]. A row may hold several documents one after the other: `documents` numbers them, they do not
        see each other, and positions begin anew in each. Taps within attention then see the last group of a Packing.
        """
        start = caches[0].length if caches else 0
        if start + ids.shape[1] > self.longest:
            raise ValueError(
                f"{start + ids.shape[1]} tokens do not fit into a block of {self.config.block_size}: shorten the text"
            )
        if padding is not None and not self.takes_padding:
            raise UserError(f"mechanism '{self.config.mechanism}' accepts no padding mask: batch texts of equal length")
        packing = self._pack(documents, caches)
        x = self._embed(ids, start, packing)
        blocks, of_block = self._layers, list(caches) if caches else [None] * len(self.blocks)
        if self.latents is None:
            for block, cache in zip(blocks, of_block, strict=True):
                x = block(x, padding, cache, packing, wanted if block is blocks[-1] else None)
        else:
            share = self.config.block_size // self.config.bottleneck
            x = _attend_through_latents(blocks, self.latents, x, padding, of_block, share, wanted)
        return self.hook_final(self.norm(x))

    def _pack(self, documents: Int[Tensor, "B T"] | None, caches: Sequence[Any] | None) -> Packing | None:
        if documents is None:
            return None
        if self.latents is not None:
            raise ConfigError(
                "with a bottleneck, documents cannot share a row: set --model.bottleneck 0, or do not pack"
            )
        if caches:
            raise ValueError("a cache continues one document per row: generate without packing")
        return Packing.of(documents)

    def _embed(self, ids: Int[Tensor, "B T"], start: int, packing: Packing | None) -> Float[Tensor, "B T D"]:
        x, tokens = self.tokens(ids), ids.shape[1]
        if isinstance(self.positions, PositionTable):
            x = x * self.config.n_embd**0.5  # as in arXiv:1706.03762: tokens would be lost beside sines and cosines
        x = self.hook_embed(x)
        if self.positions is not None:
            if isinstance(self.positions, PositionTable):
                table = self.positions(0 if packing else start, tokens)
            else:
                table = self.positions.weight if packing else self.positions.weight[start : start + tokens]
            x = x + self.hook_pos_embed(
                F.embedding(packing.positions, table) if packing else table.expand(len(ids), -1, -1)
            )
        return self.dropout(x)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        padding: Bool[Tensor, "B S"] | None = None,
        caches: Sequence[Any] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return the logits of the next token at every position."""
        return self.head(self.hidden(ids, padding, caches, documents=documents))


def meta_model(config: ModelConfig) -> LanguageModel:
    """Build a model on the meta device: no memory for weights, enough to count them."""
    with torch.device("meta"):
        return LanguageModel(config)


def count_parameters(model: LanguageModel) -> dict[str, int]:
    """Count the parameters by part; a shared parameter counts once."""
    parts = {"token embedding": 0, "positions": 0, "latents": 0, "attention": 0, "MLP": 0, "norms": 0, "head": 0}
    for name, parameter in model.named_parameters():
        root, *rest = name.split(".")
        inner = rest[1] if root == "blocks" else root
        part = {"tokens": "token embedding", "attn": "attention", "mlp": "MLP"}.get(inner, inner)
        parts["norms" if part.startswith("norm") else part] += parameter.numel()
    return {part: count for part, count in parts.items() if count or part != "latents"}


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """Serialize tensors in the safetensors format."""
    return bytes(save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def read_tensors(path: Path, written_by_attnlab: bool = True) -> dict[str, Tensor]:
    """Read a safetensors file, or raise an error that says what is wrong with it; our own are checked by their manifest."""
    try:
        return dict(load_tensors(read_bytes(path) if written_by_attnlab else reading.read_bytes(path)))
    # A damaged header can raise any of these.
    except (OSError, SafetensorError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is truncated or damaged ({error}): use an older checkpoint or train again"
        ) from None


def model_files(model: LanguageModel, tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the files of a model folder by name."""
    config = {"format": FORMAT, "model": model.config.__dict__}
    return {
        "model.safetensors": to_bytes(dict(model.state_dict())),
        "config.json": json.dumps(config, indent=1).encode(),
        "tokenizer.json": tokenizer.backend.to_str(pretty=True).encode(),
        **usercode.code_files(model.config.mechanism),
    }


def load_model(
    folder: Path | str, *, trust_code: bool = False, device: str | torch.device = "cpu"
) -> tuple[LanguageModel, Tokenizer]:
    """Load the model and tokenizer of a model or run folder; format, names, shapes and finiteness are checked.

    User code in the folder runs only if this user has trusted it, or passes `trust_code`.
    """
    folder = Path(folder)
    if not (folder / "model.safetensors").is_file() and not (folder / "tokenizer.json").is_file():
        folder = Run.open(folder).model
    require_kind(folder, "model", "checkpoint")
    config = read_json(folder / "config.json")
    if config.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {config.get('format')}, but this version reads {FORMAT}:"
            " train it again, or use the version that wrote it"
        )
    try:
        settings = restore_model(folder, config["model"], "model.", str(folder / "config.json"))
        with usercode.trusting(trust_code):
            model = LanguageModel(settings)
    except (KeyError, AttributeError, ConfigError) as error:
        raise CheckpointError(f"{folder / 'config.json'} does not describe a model of this version: {error}") from None
    tensors = read_tensors(folder / "model.safetensors")
    if getattr(tensors.get("tokens.weight"), "dtype", None) == torch.float64:
        model = model.double()
    load_weights(model, tensors, folder)
    read_bytes(folder / "tokenizer.json")  # checked
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    if tokenizer.size > model.config.vocab_size:
        raise CheckpointError(
            f"{folder}: tokenizer.json has {tokenizer.size} symbols, the model {model.config.vocab_size}"
        )
    return model.to(device).eval(), tokenizer


def load_weights(model: LanguageModel, tensors: dict[str, Tensor], folder: Path) -> None:
    """Load tensors into a model; wrong shapes and non-finite values are errors."""
    require_fit(tensors, model.state_dict(), f"{folder}: the weights")
    model.load_state_dict(tensors)


def require_fit(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str, fix: str = "train it again"
) -> None:
    """Raise CheckpointError unless tensors have the names, shapes and types of the expected ones, and are finite."""
    for name in [*expected, *(name for name in tensors if name not in expected)]:
        value, other = tensors.get(name), expected.get(name)
        if value is None or other is None or (value.shape, value.dtype) != (other.shape, other.dtype):
            raise CheckpointError(f"{what} do not fit the model, first at '{name}': {fix}")
        if not torch.isfinite(value).all() and not torch.equal(value, other):  # a mask may hold -inf, as it was built
            raise CheckpointError(
                f"{what} hold NaN or infinity at '{name}': use an older checkpoint, or train with a lower learning rate"
            )
