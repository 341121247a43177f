"""A model of transformers as the audit sees it: tiny, with random weights, and called as transformers documents.

    audit_transformers("transformers:Qwen3NextForCausalLM").faults    built here, by its name
    attnlab.audit_module(Audited(model), n_embd=64).faults            built elsewhere, with its own sizes

Vectors go in as `inputs_embeds`, padding as `attention_mask`, and pieces of a text with the cache that the model returns. Rows
of several documents carry what transformers' own collator for packed rows gives; a model that refuses them is not tested.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from attnlab.errors import ConfigError, one_line
from attnlab.measure.audit import Report, audit_module
from attnlab.mechanisms.conventions import tensor_of

PREFIX = "transformers:"
_CACHES = ("past_key_values", "cache_params")  # the argument, and the attribute of what a model returns
_MISSING = object()
_LAYERS = 4


class _Cache:
    """What a model returned for the text so far; empty before its first piece."""

    kept: Any = None


class Audited(nn.Module):
    """A model of transformers, called as forward(x, padding, cache, documents)."""

    splits_padding = False  # a piece of a single token is never padding, and its mask is dropped

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        names = inspect.signature(model.forward).parameters
        if "inputs_embeds" not in names or "decoder_inputs_embeds" in names:
            raise ConfigError(
                f"{type(model).__name__} cannot be called with inputs_embeds alone: name a model that reads one text,"
                f" such as {PREFIX}LlamaModel"
            )
        self.model = model
        self.attnlab_convention = (
            f"transformers {transformers.__version__}, packed rows as of DataCollatorWithFlattening"
        )
        self.takes_padding = "attention_mask" in names
        self.cache_name = next((name for name in _CACHES if name in names), "")

    def new_cache(self) -> _Cache | None:
        """An empty cache, or None if the model keeps none."""
        return _Cache() if self.cache_name else None

    def forward(
        self, x: Tensor, padding: Tensor | None = None, cache: _Cache | None = None, documents: Tensor | None = None
    ) -> Tensor:
        """The outputs of the last layer, or the logits."""
        if documents is not None:  # the collator makes batches of one row
            return torch.cat([self._packed(x[row : row + 1], documents[row]) for row in range(len(x))])
        arguments: dict[str, Any] = {} if padding is None else {"attention_mask": (~padding).long()}
        if self.cache_name:
            arguments |= {"use_cache": cache is not None}
        if cache is not None and cache.kept is not None:
            arguments[self.cache_name] = cache.kept
        answer = self.model(inputs_embeds=x, **arguments)
        if cache is not None:
            cache.kept = getattr(answer, self.cache_name)
        return tensor_of(answer)

    def _packed(self, x: Tensor, documents: Tensor) -> Tensor:
        """The outputs of one row of several documents, with everything that the collator knows of their borders."""
        lengths = torch.unique_consecutive(documents, return_counts=True)[1].tolist()
        collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
        borders = dict(collate([{"input_ids": [0] * length} for length in lengths], return_tensors="pt"))
        for name in ("input_ids", "labels"):
            del borders[name]
        try:  # as in training, without a cache
            return tensor_of(self.model(inputs_embeds=x, use_cache=False, **borders))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"refuses packed rows: {one_line(error)}") from error


def audit_transformers(name: str, *, n_embd: int = 32, n_head: int = 2, length: int = 513) -> Report:
    """Audit a model class of transformers, built tiny and with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_tiny(name.removeprefix(PREFIX), n_embd, n_head)
    causal = all(getattr(part, "is_causal", True) for part in model.modules())
    return audit_module(Audited(model), n_embd=n_embd, length=length, causal=causal, name=name)


def build_tiny(name: str, n_embd: int = 32, n_head: int = 2) -> nn.Module:
    """A model of four layers, by the name of its class, in float32 and with transformers' plain torch code."""
    cls = getattr(transformers, name, None)
    if not (inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel) and cls.config_class):
        close = get_close_matches(
            name, [each for each in dir(transformers) if each.endswith(("Model", "ForCausalLM"))], 1
        )
        hint = f"did you mean {close[0]}?" if close else "name a class such as LlamaModel or Qwen3NextForCausalLM"
        raise ConfigError(f"transformers {transformers.__version__} has no model '{name}': {hint}")
    try:
        config = cls.config_class(**_tiny_sizes(cls.config_class(), n_embd, n_head))
        return cls._from_config(config, attn_implementation="eager", dtype=torch.float32)
    except Exception as error:  # whatever transformers may raise
        raise ConfigError(
            f"{name} cannot be built with tiny sizes ({one_line(error)}): build it in Python and call"
            " attnlab.audit_module(attnlab.hf.Audited(model), n_embd=model.config.hidden_size)"
        ) from error


def _tiny_sizes(config: Any, n_embd: int, n_head: int) -> dict[str, Any]:
    """Small values for the sizes that a config has, by the usual names; kinds of layers take turns."""
    heads = {getattr(config, name, _MISSING) for name in ("num_attention_heads", "n_head")}
    of_keys = getattr(config, "num_key_value_heads", None)
    kinds = [*dict.fromkeys(getattr(config, "layer_types", None) or ())]
    values = {
        "hidden_size n_embd d_model": n_embd,
        "intermediate_size moe_intermediate_size shared_expert_intermediate_size mamba_d_ssm": 2 * n_embd,
        "num_attention_heads n_head linear_num_key_heads linear_num_heads": n_head,
        "num_key_value_heads": n_head if of_keys in heads else max(1, n_head // 2),
        "linear_num_value_heads num_heads mamba_n_heads mamba_num_heads": 2 * n_head,
        "head_dim linear_key_head_dim linear_value_head_dim linear_head_dim v_head_dim": n_embd // n_head,
        "qk_rope_head_dim qk_nope_head_dim q_lora_rank kv_lora_rank mamba_head_dim": n_embd // n_head,
        "state_size ssm_state_size mamba_d_state chunk_size mamba_chunk_size block_size sliding_window": 16,
        "index_head_dim index_n_heads": 32,  # with few heads, scores are tied at exactly zero
        "index_topk": 8,
        "num_hidden_layers n_layer num_experts num_local_experts n_routed_experts": _LAYERS,
        "num_experts_per_tok attn_layer_period expert_layer_period": 2,
        "n_group n_groups topk_group first_k_dense_replace attn_layer_offset expert_layer_offset": 1,
        "attn_layer_indices full_attn_idxs": [1],
        "vocab_size": 64,
        "pad_token_id bos_token_id eos_token_id": 0,
        "initializer_range": n_embd**-0.5,  # the usual 0.02 is for widths of thousands
    }
    named = {name: value for names, value in values.items() for name in names.split()}
    if len(kinds) > 1:
        named["layer_types"] = (kinds * _LAYERS)[:_LAYERS]
    # Where None stands for a large value, or for no attention at all.
    unset = {"attn_layer_indices", "full_attn_idxs", "linear_num_key_heads", "linear_num_value_heads"}
    kept = {
        name for name in named if getattr(config, name, None) is not None or (name in unset and hasattr(config, name))
    }
    # What a config derives from other fields cannot be given to it.
    return {name: named[name] for name in named if name in kept & {*inspect.signature(type(config)).parameters}}
