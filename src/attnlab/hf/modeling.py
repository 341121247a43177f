"""An attnlab model as transformers knows models: AttnlabConfig and AttnlabForCausalLM, around attnlab's own LanguageModel.

Nothing is implemented twice: ids and padding go in, scores come out. Texts padded on the left are read from their first token
on, each as if it were alone, with caches of their own.

A folder names its classes, so that from_pretrained(folder, trust_remote_code=True) works wherever attnlab is installed.
User code inside a folder runs only if it is trusted: from_pretrained(folder, trust_code=True).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from attnlab.config import ModelConfig, restore_model
from attnlab.errors import UserError, refuse
from attnlab.hf.attention import Group, read_groups, rows_by_start, watch
from attnlab.inside.taps import taps_of
from attnlab.lm.model import LanguageModel
from attnlab.store import usercode
from attnlab.store.folders import write_bytes

_PATTERN = "attn.hook_pattern"
MODULE = "modeling_attnlab"  # in an exported folder: where transformers finds the classes
CODE = {
    f"{MODULE}.py": b"from attnlab.exchange import AttnlabConfig, AttnlabForCausalLM, AttnlabWordTokenizer  # noqa: F401\n"
}


class AttnlabConfig(PreTrainedConfig):
    """The settings of an attnlab model; `settings` are attnlab's, the rest repeats them under transformers' names."""

    model_type = "attnlab"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(self, settings: dict[str, object] | None = None, **others: Any) -> None:
        model = restore_model(None, settings or {}, "settings.", "config.json")
        repeated = {
            "vocab_size": model.vocab_size,
            "hidden_size": model.n_embd,
            "num_hidden_layers": model.n_layer,
            "num_attention_heads": model.n_head,
            "max_position_embeddings": model.block_size,
            "tie_word_embeddings": False,
        }
        classes = {"AutoConfig": f"{MODULE}.AttnlabConfig", "AutoModelForCausalLM": f"{MODULE}.AttnlabForCausalLM"}
        super().__init__(**others | repeated | {"auto_map": classes})
        self.settings = asdict(model)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Nothing: transformers would copy the source of the class into the folders that it saves."""

    @property
    def own(self) -> ModelConfig:
        """The settings as attnlab reads them."""
        folder = Path(self.name_or_path) if self.name_or_path else None
        return restore_model(folder, self.settings, "settings.", "config.json")


class AttnlabCache:
    """The caches of the layers, for each group of rows that begin at the same position."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.caches: list[list[Any]] = []  # of every group
        self.length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of tokens read so far, with padding."""
        return self.length

    def reorder_cache(self, beam_idx: Int[Tensor, " B"]) -> None:
        """Continue with other rows, as beam search does: each replaced by one that begins at the same position."""
        for number, (rows, _) in enumerate(self.groups):
            place = {row: index for index, row in enumerate(rows.tolist())}
            chosen = torch.tensor([place[row] for row in beam_idx[rows].tolist()], device=rows.device)
            self.caches[number] = [cache.select(chosen) for cache in self.caches[number]]


class AttnlabForCausalLM(PreTrainedModel, GenerationMixin):
    """A language model of attnlab that transformers can load, save, train and generate with."""

    config_class = AttnlabConfig
    base_model_prefix = "language_model"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: AttnlabConfig) -> None:
        super().__init__(config)
        self.language_model = LanguageModel(config.own)
        self.drawn = not any(weight.is_meta for weight in self.parameters())
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, trust_code: bool = False, **kwargs: Any
    ) -> Any:
        """A model from a folder; the code that it carries runs if it is trusted, or by `trust_code`."""
        with usercode.trusting(trust_code):
            return super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write a folder, with the code of a mechanism in a user's file."""
        super().save_pretrained(save_directory, *args, **kwargs)
        for name, content in (CODE | usercode.code_files(self.config.own.mechanism)).items():
            path = Path(save_directory) / name
            path.parent.mkdir(exist_ok=True)
            write_bytes(path, content)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Nothing, as for the config."""

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: a LanguageModel initializes its own weights."""

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialize what no file contained as in a new LanguageModel; its tables of positions are in no file."""
        if self.drawn:
            return
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            new = LanguageModel(self.config.own)
        values = {**dict(new.named_parameters()), **dict(new.named_buffers())}
        for name, tensor in [*self.language_model.named_parameters(), *self.language_model.named_buffers()]:
            if not getattr(tensor, "_is_hf_initialized", False):
                tensor.copy_(values[name])
        self.drawn = True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: the cache of a mechanism need not be keys and values."""
        return False

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.language_model.tokens

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.language_model.head

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Embedding:
        """Refused: the size of the vocabulary is a setting of the model."""
        raise UserError("an attnlab model keeps its vocabulary: train one with another --model.vocab_size")

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: AttnlabCache | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """The scores of every next token, and the loss if there are labels."""
        counted = others.pop("num_items_in_batch", None)
        cache, mask = past_key_values, attention_mask
        unread = sorted(name for name, value in others.items() if value is not None and name != "cache_position")
        reasons = {
            "reads input_ids: it does not accept embeddings": input_ids is None,
            "takes an attention_mask of padding, [batch, tokens], not one of pairs": mask is not None
            and mask.ndim != 2,
            "has caches of its own: leave past_key_values and cache options out": (
                cache is not None and not isinstance(cache, AttnlabCache)
            ),
            f"does not read {', '.join(unread)}: give it input_ids, attention_mask and labels": unread,
        }
        refuse("an attnlab model", reasons)
        assert input_ids is not None
        if cache is None and use_cache and not self.training:
            cache = AttnlabCache()
        tokens = (cache.length if cache is not None else 0) + input_ids.shape[1]
        if mask is not None and mask.shape != (len(input_ids), tokens):
            raise UserError(f"attention_mask is {list(mask.shape)} for {tokens} tokens: give one number per token")
        watched = self.watched(bool(output_attentions), bool(output_hidden_states))
        logits, seen = self.read(input_ids, None if mask is None else ~mask.bool(), cache, watched)
        loss = None
        if labels is not None:
            counts = {"num_items_in_batch": counted} if counted else {}
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **counts)
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep, None)  # 0 keeps all
        output_type: Any = CausalLMOutputWithPast  # its types are narrower than what it accepts
        output: CausalLMOutputWithPast = output_type(
            loss=loss,
            logits=logits[:, kept],
            past_key_values=cache,
            hidden_states=tuple(seen[name] for name in watched if not name.endswith(_PATTERN)) or None,
            attentions=tuple(seen[name] for name in watched if name.endswith(_PATTERN)) or None,
        )
        plain = return_dict if return_dict is not None else self.config.return_dict
        return output if plain else output.to_tuple()

    def watched(self, attentions: bool, hidden: bool) -> list[str]:
        """The taps to capture: patterns layer by layer, the stream before every block and after the last norm."""
        layers = range(self.config.num_hidden_layers)
        wanted = [f"blocks.{layer}.{_PATTERN}" for layer in layers] if attentions else []
        if attentions and (self.language_model.latents is not None or set(wanted) - set(taps_of(self.language_model))):
            raise UserError(
                "this model has layers without weights between tokens: leave output_attentions out, and see"
                " attnlab.influence(model.language_model, ids)"
            )
        return wanted + ([f"blocks.{layer}.hook_resid_pre" for layer in layers] + ["hook_final"] if hidden else [])

    def read(
        self,
        ids: Int[Tensor, "B T"],
        hidden: Bool[Tensor, "B S"] | None,
        cache: AttnlabCache | None,
        watched: list[str],
    ) -> tuple[Float[Tensor, "B T V"], dict[str, Tensor]]:
        """The scores and the captured taps; every row from its first token on, with zeros before it."""
        asked, total = ids.shape[1], (cache.length if cache is not None else 0) + ids.shape[1]
        groups = cache.groups if cache is not None else []
        groups = groups or list(rows_by_start(hidden, len(ids), total, ids.device))
        caches = cache.caches if cache is not None else []
        for _ in groups[len(caches) :] if cache is not None else ():
            new = self.language_model.new_caches()
            if new is None:
                raise UserError("a mechanism of this model keeps no cache: generate with use_cache=False")
            caches.append(new)
        own_caches = iter(caches)

        def read_group(group: Group, first: int, padding: Tensor | None) -> dict[str, Tensor]:
            own = next(own_caches, None)
            if padding is not None and own is not None:
                raise UserError('generation needs left padding: set tokenizer.padding_side = "left"')
            with watch(self.language_model, watched) as seen:
                scores = self.language_model(ids[group[0], first:], padding, own)
            return {**seen, "scores": scores}

        tensors = read_groups(groups, hidden, (len(ids), asked, total), read_group)
        if cache is not None:
            cache.groups, cache.caches, cache.length = groups, caches, total
        return tensors.pop("scores"), tensors
