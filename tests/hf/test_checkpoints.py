"""Checkpoints of nanoGPT, minGPT and CS224N become runs with equal scores, or are refused; no code in them is run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import load_model
from attnlab.errors import CheckpointError, DataError, UserError
from attnlab.hf.checkpoints import import_checkpoint
from attnlab.lm.evaluate import answer_all
from attnlab.store.runs import Run
from verbs import call

TEXT = "Ann Lee. Ann was born in Rome.\nBob Fox. Bob was born in Oslo, 1934!\nHe said: no?\nCy Young. Cy pitched.\n"
CHARACTERS = sorted(set(TEXT))
WIDTH, HEADS, LAYERS, BLOCK = 32, 4, 2, 24


class Attention(nn.Module):
    """Causal attention with the names of either kind: one matrix for queries, keys and values, or three."""

    def __init__(self, fused: bool, bias: bool, buffer: str, rotary: bool) -> None:
        super().__init__()
        if fused:
            self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias), nn.Linear(WIDTH, WIDTH, bias)
        else:
            self.query, self.key, self.value, self.proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        if buffer:
            self.register_buffer(buffer, torch.ones(BLOCK, BLOCK).tril().view(1, 1, BLOCK, BLOCK))
        self.turns = rotary
        if rotary:
            angle = torch.outer(torch.arange(BLOCK), 10_000 ** (-torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS)))
            self.register_buffer("rope_cache", torch.stack([angle.cos(), angle.sin()], dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        fused, tokens = hasattr(self, "c_attn"), x.shape[1]
        parts = self.c_attn(x).split(WIDTH, dim=2) if fused else (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        if self.turns:
            turn = torch.view_as_complex(self.rope_cache[:tokens].contiguous())
            q, k = (
                torch.view_as_real(torch.view_as_complex(one.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)
                for one in (q, k)
            )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return (self.c_proj if fused else self.proj)(mixed)


class Block(nn.Module):
    def __init__(self, fused: bool, bias: bool, buffer: str, rotary: bool, tanh: bool) -> None:
        super().__init__()
        first, second = nn.LayerNorm(WIDTH, bias=bias), nn.LayerNorm(WIDTH, bias=bias)
        up, down = nn.Linear(WIDTH, 4 * WIDTH, bias), nn.Linear(4 * WIDTH, WIDTH, bias)
        self.attn, act = Attention(fused, bias, buffer, rotary), nn.GELU("tanh" if tanh else "none")
        if fused:
            self.ln_1, self.ln_2, self.mlp = first, second, nn.ModuleDict({"c_fc": up, "act": act, "c_proj": down})
        else:
            self.ln1, self.ln2, self.mlp = first, second, nn.Sequential(up, act, down)

    def forward(self, x: Tensor) -> Tensor:
        norms, parts = [one for one in self.children() if isinstance(one, nn.LayerNorm)], self.mlp.children()
        x = x + self.attn(norms[0](x))
        return x + nn.Sequential(*parts)(norms[1](x))


class Reference(nn.Module):
    """A GPT as nanoGPT, minGPT or CS224N names its parts, with random weights of a trained size."""

    def __init__(
        self, program: str, rows: int, *, bias: bool = True, rotary: bool = False, old: bool = False, tanh: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.fused, masks = program != "course", program != "nano" or old
        buffer = ("bias" if self.fused else "mask") if masks else ""
        blocks = [Block(self.fused, bias, buffer, rotary, tanh or program == "mingpt") for _ in range(LAYERS)]
        tokens, norm, head = nn.Embedding(rows, WIDTH), nn.LayerNorm(WIDTH, bias=bias), nn.Linear(WIDTH, rows, False)
        if self.fused:
            table = nn.Embedding(BLOCK, WIDTH)
            parts = {"wte": tokens, "wpe": table, "h": nn.ModuleList(blocks), "ln_f": norm}
            self.transformer, self.lm_head = nn.ModuleDict(parts), head
        else:
            self.tok_emb, self.blocks, self.ln_f, self.head = tokens, nn.Sequential(*blocks), norm, head
            if not rotary:
                self.pos_emb = nn.Parameter(torch.zeros(1, BLOCK, WIDTH))
        if program == "nano":
            tokens.weight = head.weight
        for name, weight in self.named_parameters():
            nn.init.normal_(weight, mean=float("ln" in name and "weight" in name), std=0.2)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        if self.fused:
            parts = self.transformer
            x = parts["wte"](ids) + parts["wpe"].weight[: ids.shape[1]]
            x = nn.Sequential(*parts["h"])(x)
            return self.lm_head(parts["ln_f"](x))
        x = self.tok_emb(ids) + (self.pos_emb[:, : ids.shape[1]] if hasattr(self, "pos_emb") else 0)
        return self.head(self.ln_f(self.blocks(x)))


def saved(folder: Path, program: str, prefix: str = "", **settings: Any) -> tuple[Reference, Path, list[str | Path]]:
    """A model in the file that its program writes, and the options that say what the file does not."""
    text = folder / "input.txt"
    text.write_text(TEXT, encoding="utf-8")
    model = Reference(program, len(CHARACTERS) + 2 * (program == "course"), **settings)
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    if program == "nano":
        arguments = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "block_size": BLOCK, "dropout": 0.2}
        arguments |= {"bias": settings.get("bias", True), "vocab_size": len(CHARACTERS)}
        optimizer = torch.optim.AdamW(model.parameters()).state_dict()
        best = {"iter_num": 250, "best_val_loss": torch.tensor(1.5), "config": {"device": "cpu", "compile": True}}
        torch.save({"model": weights, "optimizer": optimizer, "model_args": arguments, **best}, folder / "ckpt.pt")
        return model, folder / "ckpt.pt", ["--chars", text]
    heads: list[str | Path] = [] if settings.get("rotary") else ["--n-head", str(HEADS)]
    file = folder / ("model.pt" if program == "mingpt" else "vanilla.pretrain.params")
    torch.save(weights, file)
    return model, file, ["--chars" if program == "mingpt" else "--corpus", text, *heads]


def loss_of(model: Reference, ids: list[int]) -> Tensor:
    """The loss of every token but the first."""
    row = torch.tensor([ids])
    return F.cross_entropy(model(row[:, :-1])[0], row[0, 1:], reduction="none")


CASES = {
    "nanoGPT": ("nano", {}),
    "nanoGPT without biases, compiled": ("nano", {"bias": False, "prefix": "_orig_mod."}),
    "nanoGPT with masks": ("nano", {"old": True}),
    "minGPT": ("mingpt", {}),
    "CS224N": ("course", {}),
    "CS224N with rotary positions": ("course", {"rotary": True}),
}


@torch.no_grad()
@pytest.mark.parametrize(("program", "settings"), CASES.values(), ids=CASES)
def test_scores_and_losses_are_equal(tmp_path: Path, program: str, settings: dict[str, Any]) -> None:
    theirs, file, options = saved(tmp_path, program, **settings)
    assert call("import", file, *options, "--out", tmp_path / "run") == 0
    ours, tokenizer = load_model(tmp_path / "run")
    rows = theirs(torch.zeros(1, 1, dtype=torch.long)).shape[-1]
    ids = torch.randint(0, rows, (5, BLOCK))
    wanted, got = theirs(ids), ours(ids)
    assert wanted.std() > 0.5
    assert (got[..., :rows] - wanted).abs().max() <= 1e-5
    symbols = [*CHARACTERS, "□", "⁇"] if program != "course" else ["□", "⁇", *CHARACTERS]
    assert [tokenizer.decode([number]) for number in range(tokenizer.size)] == symbols
    assert got.softmax(-1)[..., rows:].sum() <= 1e-12
    again = tokenizer.encode(TEXT[:BLOCK])
    mean = F.cross_entropy(ours(torch.tensor([again[:-1]]))[0], torch.tensor(again[1:]), reduction="none")
    assert (mean - loss_of(theirs, again)).abs().max() <= 1e-5


@pytest.mark.parametrize("program", ["nano", "mingpt"])
@torch.no_grad()
def test_added_symbols_are_never_written_whatever_the_scores(tmp_path: Path, program: str) -> None:
    theirs, file, _ = saved(tmp_path, program)
    stored = torch.load(file, weights_only=True)
    weights = stored["model"] if program == "nano" else stored
    norm = "transformer.ln_f"
    weights[f"{norm}.bias"] += 40 * torch.randn(WIDTH)  # moves all scores, by hundreds
    weights[f"{norm}.weight"][:3] = 0
    theirs.load_state_dict(weights)
    torch.save(stored, file)
    import_checkpoint(file, tmp_path / "run", chars=tmp_path / "input.txt", n_head=None if program == "nano" else HEADS)
    ours, tokenizer = load_model(tmp_path / "run")
    ids, rows = torch.randint(0, len(CHARACTERS), (5, BLOCK)), len(CHARACTERS)
    assert (theirs(ids) - ours(ids)[..., :rows]).abs().max() <= 1e-6 * theirs(ids).abs().max()
    assert (theirs(ids).log_softmax(-1) - ours(ids).log_softmax(-1)[..., :rows]).abs().max() <= 1e-3
    assert ours(ids).softmax(-1)[..., rows:].max() <= 1e-12
    begin, line = (ours(torch.tensor([[first, *ids[0, 1:]]])) for first in (tokenizer.pad, CHARACTERS.index("\n")))
    assert torch.equal(begin, line)


@torch.no_grad()
def test_the_activation_of_a_file_that_does_not_say_can_be_given(tmp_path: Path) -> None:
    theirs, file, _ = saved(tmp_path, "nano", tanh=True)
    ids, text = torch.randint(0, len(CHARACTERS), (2, BLOCK)), tmp_path / "input.txt"
    found = {}
    for activation in (None, "gelu_tanh"):
        run = import_checkpoint(file, tmp_path / str(activation), chars=text, activation=activation)  # type: ignore[arg-type]
        found[activation] = float((load_model(run.path)[0](ids)[..., : len(CHARACTERS)] - theirs(ids)).abs().max())
    assert found["gelu_tanh"] <= 1e-5
    assert found[None] >= 1e-4
    torch.save(torch.load(file, weights_only=True)["model"], tmp_path / "weights.pt")  # tied, so that it is nanoGPT's
    run = import_checkpoint(tmp_path / "weights.pt", tmp_path / "bare", chars=text, n_head=HEADS)
    assert run.record.settings["model"]["activation"] == "gelu"


# What is refused


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("form", ["beside weights", "zip", "old", "plain"])
def test_code_in_a_file_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    _, file, options = saved(tmp_path, "nano")
    canary = Canary(tmp_path / "canary")
    if form == "plain":
        file.write_bytes(pickle.dumps(canary))
    elif form == "beside weights":
        torch.save(torch.load(file, weights_only=True) | {"config": canary}, file)
    else:
        torch.save({"model": canary}, file, _use_new_zipfile_serialization=form == "zip")
    assert call("import", file, *options, "--out", tmp_path / "run") == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert "attnlab runs no code of a file: save its weights alone" in message
    written = {"plain": "was not written by torch.save, or holds other things beside weights"}
    assert written.get(form, "posix.mkdir beside weights") in message or "nt.mkdir" in message
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "run").exists()


def test_pickled_characters_are_not_read(tmp_path: Path) -> None:
    _, file, _ = saved(tmp_path, "nano")
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"stoi": {"a": 0}, "x": Canary(tmp_path / "canary")}))
    with pytest.raises(UserError, match="is pickled: name the text"):
        import_checkpoint(file, tmp_path / "run", chars=tmp_path / "meta.pkl")
    with pytest.raises(UserError, match="runs no code of a file"):
        import_checkpoint(tmp_path / "meta.pkl", tmp_path / "run", chars=tmp_path / "input.txt")
    assert not (tmp_path / "canary").exists()


def changed(file: Path, **tensors: Tensor | None) -> Path:
    """The same file with other tensors, or without some."""
    stored = torch.load(file, weights_only=True)
    weights = stored.get("model", stored)
    for name, tensor in tensors.items():
        weights.pop(name)
        if tensor is not None:
            weights[name] = tensor
    torch.save(stored, file)
    return file


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "input.txt"

    def refused(match: str, file: Path, error: type[Exception] = UserError, **options: Any) -> None:
        with pytest.raises(error, match=match):
            import_checkpoint(file, tmp_path / "run", **({"chars": text} | options))
        assert not (tmp_path / "run").exists()

    _, nano, _ = saved(tmp_path, "nano")
    refused("has 4 heads: leave --n-head out", nano, n_head=2)
    refused("a checkpoint does not say what its tokens are: give --chars", nano, chars=None)
    refused("one of them", nano, corpus=text)
    layer = "transformer.h.0"
    square = torch.ones(WIDTH, WIDTH)
    fused = {f"{layer}.attn.c_attn.weight": torch.ones(WIDTH, 3 * WIDTH)}
    refused("do not fit the model, first at 'blocks.0.attn.heads", changed(nano, **fused), CheckpointError)
    for wrong in ({"transformer.h.1.mlp.c_fc.weight": None}, {f"{layer}.mlp.c_proj.weight": square}):
        short = changed(saved(tmp_path, "nano")[1], **wrong)
        refused(r"do not fit the model, first at 'blocks\.[01]\.mlp.*save them", short, CheckpointError)
    odd: list[dict[str, Tensor | None]] = [
        {"transformer.wte.weight": torch.tensor(1.0)},
        {"transformer.wpe.weight": torch.tensor(1.0)},
        {f"{layer}.attn.c_attn.bias": torch.tensor(1.0)},
    ]
    for wrong in odd:
        refused("damaged or of another kind", changed(saved(tmp_path, "nano")[1], **wrong), DataError)
    for kind in (torch.int32, torch.complex64):
        other = changed(saved(tmp_path, "nano")[1], **{"transformer.ln_f.weight": torch.ones(WIDTH, dtype=kind)})
        refused("holds whole or complex numbers as weights", other)
    endless = changed(saved(tmp_path, "nano")[1], **{"transformer.ln_f.weight": torch.full((WIDTH,), torch.nan)})
    refused("NaN", endless, CheckpointError)
    _, course, _ = saved(tmp_path, "course")
    refused("does not say how many heads its attention has: add --n-head N", course, chars=None, corpus=text)
    refused(r"n_embd \(32\) must be a multiple of model.n_head \(5\)", course, chars=None, corpus=text, n_head=5)
    whole = {"blocks.1.attn.mask": torch.ones(1, 1, BLOCK, BLOCK)}
    refused("'transformer.h.1.attn.mask' is not a causal mask", changed(course, **whole), n_head=HEADS)
    _, course, _ = saved(tmp_path, "course", rotary=True)
    rates = {"blocks.0.attn.rope_cache": torch.ones(BLOCK, WIDTH // HEADS // 2, 2)}
    refused("'transformer.h.0.attn.rope_cache' is not cosines and sines", changed(course, **rates), n_head=HEADS)
    for part in ("attn.w1.weight", "attn.b2"):  # of the synthesizer
        stored = saved(tmp_path, "course")[0].state_dict() | {f"blocks.0.{part}": torch.ones(3)}
        torch.save(stored, tmp_path / "synthesizer.params")
        refused(f"holds {part}, which is no part of", tmp_path / "synthesizer.params", n_head=HEADS)
    for wrong in ({}, {"a": torch.ones(2)}, [1, 2], {"model": 3}, {1: torch.ones(2)}, {"x": "y"}):  # type: ignore[assignment]
        torch.save(wrong, tmp_path / "wrong.pt")
        refused("holds no token embedding|is no part of|does not hold weights by name", tmp_path / "wrong.pt")


@pytest.mark.parametrize("old", [False, True])
def test_a_truncated_file_is_refused(tmp_path: Path, old: bool) -> None:
    _, file, _ = saved(tmp_path, "nano")
    torch.save(torch.load(file, weights_only=True), file, _use_new_zipfile_serialization=not old)
    content = file.read_bytes()
    for length in (0, 1, 100, len(content) // 2, len(content) - 100):
        file.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"copy or save it again|save its weights alone"):
            import_checkpoint(file, tmp_path / "run", chars=tmp_path / "input.txt")
    with pytest.raises(UserError, match=r"did you mean .*ckpt\.pt"):
        import_checkpoint(tmp_path / "cpt.pt", tmp_path / "run", chars=tmp_path / "input.txt")


def test_a_text_that_the_symbols_were_not_made_from_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for program, right, wrong in (("nano", "--chars", "--corpus"), ("course", "--corpus", "--chars")):
        _, file, options = saved(tmp_path, program)
        other = tmp_path / "other.txt"
        other.write_text(TEXT + "@")
        for option, text in ((right, other), (wrong, tmp_path / "input.txt")):
            assert call("import", file, option, text, *options[2:], "--out", tmp_path / "run") == 2
            message = capsys.readouterr().err
            assert len(message.splitlines()) == 1
            assert f"the model has {len(CHARACTERS) + 2 * (program == 'course')}: name the text" in message
    with pytest.raises(UserError, match="contains □ or ⁇"):
        other.write_text(TEXT + "⁇", encoding="utf-8")
        import_checkpoint(file, tmp_path / "run", corpus=other, n_head=HEADS)
    other.write_bytes(TEXT.replace("\n", "\r\n").encode())  # as Python reads it
    import_checkpoint(file, tmp_path / "run", corpus=other, n_head=HEADS)
    assert call("import", tmp_path, "--chars", other, "--out", tmp_path / "more") == 2
    assert "--chars is for files, and a folder says it" in capsys.readouterr().err
    assert call("look", file, "Ann") == 2
    assert f"becomes a run with `attnlab import {file}`" in capsys.readouterr().err


# Pieces


def test_gpt2s_pieces_may_be_fewer_than_the_rows(tmp_path: Path) -> None:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters, end = sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=[end], initial_alphabet=letters, show_progress=False)
    backend.train_from_iterator([TEXT], trainer)
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "folder").mkdir()
    backend.model.save(str(tmp_path / "folder"))
    model = Reference("nano", 320)
    arguments = {"n_head": HEADS, "dropout": 0.0}
    torch.save({"model": model.state_dict(), "model_args": arguments}, tmp_path / "ckpt.pt")
    for number, tokenizer in enumerate((tmp_path / "tokenizer.json", tmp_path / "folder")):
        run = import_checkpoint(tmp_path / "ckpt.pt", tmp_path / f"run{number}", tokenizer=tokenizer)
        ours, reader = load_model(run.path)
        assert reader.encode(TEXT) == backend.encode(TEXT).ids
        assert (reader.pad, reader.mask) == (0, backend.token_to_id("ÿ"))
        ids = torch.randint(0, 320, (2, BLOCK))
        assert (ours(ids) - model(ids)).abs().max() <= 1e-5
        assert ours.config.tied_head
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    assert call("evaluate", run.path, "--corpus", text, "--out", tmp_path / "measured") == 0
    assert call("generate", run.path, "Ann", "--n", "2", "--max-new-tokens", "30") == 0
    torch.save({"model": Reference("nano", 280).state_dict(), "model_args": arguments}, tmp_path / "ckpt.pt")
    for wrong, message in (
        (tmp_path / "tokenizer.json", "has 290 symbols, the model 280"),
        (tmp_path, "has 290 symbols"),
        (text, r"is no tokenizer\.json"),
        (tmp_path / "measured", r"has no tokenizer\.json, nor vocab\.json and merges\.txt: copy"),
        (tmp_path / "absent" / "tokenizer.json", r"has no tokenizer\.json, nor vocab"),
    ):
        with pytest.raises(UserError, match=message):
            import_checkpoint(tmp_path / "ckpt.pt", tmp_path / "again", tokenizer=wrong)


# What can be done with it


@torch.no_grad()
@pytest.mark.parametrize("program", ["nano", "course"])
def test_the_verbs_work_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str) -> None:
    theirs, file, options = saved(tmp_path, program)
    run, text = tmp_path / "run", tmp_path / "input.txt"
    assert call("import", file, run, *options, "--json") == 0
    assert json.loads(capsys.readouterr().out)["run"] == str(run)
    assert call("import", file, run, *options) == 2
    assert "exists already" in capsys.readouterr().err

    measure = ("--corpus", text, "--probe", "Bob was born", "--json")
    assert call("evaluate", run, *measure, "--out", tmp_path / "measured") == 0
    measured = json.loads(capsys.readouterr().out)
    if program == "course":  # lines, and what ends them
        numbers = {character: number for number, character in enumerate(["□", "⁇", *CHARACTERS])}
        texts = [[*map(numbers.__getitem__, line), 0][:BLOCK] for line in TEXT.splitlines()]
        assert measured["seen"] == len(texts)
        sentence = [*map(numbers.__getitem__, "Bob was born"), 0]
    else:  # windows of the text, after a line end
        ids = [CHARACTERS.index(character) for character in "\n" + TEXT]
        texts = [ids[at : at + BLOCK + 1] for at in range(0, len(ids) - BLOCK, BLOCK)]
        sentence = [*map(CHARACTERS.index, "Bob was born")]
    assert len(texts) > 2
    wanted = torch.cat([loss_of(theirs, ids) for ids in texts])
    assert measured["tokens"] == len(wanted)
    assert measured["loss"] == pytest.approx(float(wanted.double().mean()), abs=1e-5)

    assert measured["probes"][0]["loss"] == pytest.approx(float(loss_of(theirs, sentence).mean()), abs=1e-5)

    exam = tmp_path / "exam.tsv"
    exam.write_text("Where?\tRome\nWho?\tBob\n")
    assert call("evaluate", run, "--exam", exam, "--out", tmp_path / "examined") == 0
    assert call("look", run, "Ann was born", "--out", tmp_path / "look") == 0
    data = ("--exam", exam) if program == "course" else ("--corpus", text)
    assert call("look", run, "--ablate", *data, "--out", tmp_path / "ablated") == 0
    assert call("runs", "show", run) == 0
    capsys.readouterr()
    if program == "course":  # it has read the corpus
        assert call("ask", run, "Bob Fox?", "--json") == 0
        asked = json.loads(capsys.readouterr().out)
        assert asked["answers"]
        assert asked["documents"] is not None
    else:
        assert call("ask", run, "Where?") == 2
        assert "was trained on running text, not on questions" in capsys.readouterr().err
    assert call("generate", run, "Ann", "--n", "2", "--max-new-tokens", "40", "--json") == 0
    for sample in json.loads(capsys.readouterr().out)["samples"]:
        assert sample.startswith("Ann")
        assert program == "course" or (len(sample) == 43 and not set(sample) & {"□", "⁇"})
    assert Run.open(run).result.imported == file.name


@torch.no_grad()
def test_answers_are_written_as_in_the_course(tmp_path: Path) -> None:
    """What follows the first ⁇ up to the next, by the reference alone."""
    theirs, file, _ = saved(tmp_path, "course")
    run = import_checkpoint(file, tmp_path / "run", corpus=tmp_path / "input.txt", n_head=HEADS)
    symbols = ["□", "⁇", *CHARACTERS]
    for question in ("He?", "Bob was born in?"):
        ids = [*map(symbols.index, question), 1]
        while len(ids) < BLOCK:
            ids.append(int(theirs(torch.tensor([ids]))[0, -1].argmax()))
        written = "".join(symbols[number] for number in ids[len(question) + 1 :]).split("⁇")[0].split("□")[0]
        assert answer_all(*load_model(run.path), [question]) == [" ".join(written.strip().splitlines())]
