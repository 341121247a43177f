"""What an encoder fills in where a text hides a piece: a look at what it has learned."""

from __future__ import annotations

from dataclasses import dataclass

from attnlab.errors import UserError
from attnlab.hf.places import locate, need_extra


@dataclass(frozen=True)
class Filling:
    """One piece for a hidden place, how likely it is, and the text with it."""

    place: int  # which of the hidden places, from 0
    piece: str
    probability: float
    text: str


def fill(name: str, text: str, top: int = 5) -> list[Filling]:
    """The likeliest pieces for every `<mask>` of a text, each place with the others still hidden."""
    need_extra()
    folder = locate(name)
    from attnlab.hf.loading import load

    tokenizer, (model, about) = load(folder, "AutoModelForMaskedLM", output_loading_info=True)
    if about["missing_keys"]:  # transformers would make them up
        raise UserError(f"{name} has no head for hidden words: name a masked language model, such as one of your own")
    mask = tokenizer.mask_token
    if mask is None:
        raise UserError(f"{name} hides nothing (its tokenizer has no mask): name an encoder such as RoBERTa")
    asked = text.replace("<mask>", mask)
    if mask not in asked:
        raise UserError("nothing is hidden: put <mask> where a word is to be found, such as 'The film is <mask> .'")
    import torch

    batch = tokenizer(asked, return_tensors="pt", truncation=True)
    with torch.no_grad():
        shares = model.eval()(**batch).logits[0].softmax(dim=-1)
    places = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    found = []
    parts = asked.split(mask)
    for number, at in enumerate(places):
        best = shares[at].topk(min(top, shares.shape[-1]))
        for share, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            piece = tokenizer.decode([token]).strip()
            filled = mask.join(parts[: number + 1]) + piece + mask.join(parts[number + 1 :])
            found.append(Filling(number, piece, share, filled))
    return found
