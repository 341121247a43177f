"""Classes as courses and other libraries write them are built, called, audited and trained as they are."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import classes_of_others as others
import pytest
import torch
from torch import Tensor, nn

from attnlab import registry, sandbox
from attnlab.config import resolve
from attnlab.course.classes import Job, measure
from attnlab.errors import AttnlabWarning, ConfigError
from attnlab.lm import progress, stages
from attnlab.lm.model import load_model
from attnlab.lm.train import Step
from attnlab.measure.audit import CHECKS, audit_mechanism, audit_module
from attnlab.measure.bench.cases import Case, choose_cases
from attnlab.mechanisms.conventions import Config, adapt, tensor_of
from verbs import call

SIZES = (12, 2, 9)
TOKENS = 8
TRIL = torch.ones(TOKENS, TOKENS).tril().bool()
ADDED = torch.zeros(TOKENS, TOKENS).masked_fill(~TRIL, -torch.inf)
SOURCE = Path(others.__file__).read_text("utf-8")


def config(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(n_embd=12, n_head=2, block_size=9, **fields)


# Every class, built and called by hand, and what is said of it.
Hand = tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Any], str]
FIRST = "its output is the first tensor of several"
HANDS: dict[str, Hand] = {
    "MinGPT": (
        lambda: others.MinGPT(config(attn_pdrop=0.0, resid_pdrop=0.0)),
        lambda module, x: module(x),
        "built from config (n_embd, n_head, attn_pdrop, resid_pdrop, block_size)",
    ),
    "NanoGPT": (
        lambda: others.NanoGPT(others.GPTConfig(9, 2, 12, 0.0, False)),
        lambda module, x: module(x),
        "built from config (n_embd, n_head, bias, dropout)",
    ),
    "Infinite": (
        lambda: others.Infinite({"emb_dim": 12, "n_heads": 2, "context_length": 9}, 0),
        lambda module, x: module(x),
        "built from cfg (emb_dim, qkv_bias, n_heads, context_length)",
    ),
    "FromScratch": (
        lambda: others.FromScratch(12, 12, 9, 0.0, 2),
        lambda module, x: module(x)[0],
        f"built from d_in=n_embd, d_out=n_embd, context_length=block_size, num_heads=n_head; {FIRST}",
    ),
    "Annotated": (
        lambda: others.Annotated(2, 12),
        lambda module, x: module(x, x, x, TRIL[None]),
        "built from h=n_head, d_model=n_embd; called as forward(x, key=x, value=x, mask);"
        " the mask is True where visible, [1, T, T]",
    ),
    "Hidden": (
        lambda: others.Hidden(12, 2, 9),
        lambda module, x: module(x, ~TRIL),
        "called as forward(x, attn_mask); the mask is True where hidden, [T, T]",
    ),
    "Llama": (
        lambda: others.Llama(0, others.ModelArgs(12, 2, 2)),
        lambda module, x: module(x, ADDED),
        "built from args (n_heads, n_kv_heads, dim); called as forward(x, mask);"
        " the mask is 0 where visible, -inf where hidden, [T, T]",
    ),
    "HuggingFace": (
        lambda: others.HuggingFace(
            SimpleNamespace(num_attention_heads=2, hidden_size=12, attention_bias=False, attention_dropout=0.0)
        ),
        lambda module, x: module(x, ADDED[None, None])[0],
        "built from config (num_attention_heads, hidden_size, attention_bias, attention_dropout);"
        " called as forward(x, attention_mask); the mask is 0 where visible, -inf where hidden, [1, 1, T, T];"
        f" {FIRST}",
    ),
    "Torch": (
        lambda: others.Torch(12, 2, batch_first=True),
        lambda module, x: module(x, x, x, attn_mask=~TRIL)[0],
        "built from embed_dim=n_embd, num_heads=n_head;"
        " called as forward(x, key=x, value=x, is_causal=True, attn_mask);"
        f" the mask is True where hidden, [T, T]; {FIRST}",
    ),
    "Lucid": (
        lambda: others.Lucid(12, 2, 6, causal=True),
        lambda module, x: module(x),
        "built from dim=n_embd, heads=n_head, dim_head=6, causal=True",
    ),
    "Flagged": (
        lambda: others.Flagged(12, 2),
        lambda module, x: module(x, is_causal=True),
        "built from embed_dim=n_embd, num_heads=n_head; called as forward(x, is_causal=True)",
    ),
    "Rotated": (
        lambda: others.Rotated(12, 2, 9, 10000.0),
        lambda module, x: module(x, torch.arange(TOKENS)),
        "built from d_model=n_embd, num_heads=n_head, max_seq_len=block_size, theta=10000.0;"
        " called as forward(x, token_positions=torch.arange(x.shape[1]))",
    ),
    "Multiplied": (
        lambda: others.Multiplied(12, 12, 2),
        lambda module, x: module(x, TRIL.float())[0],
        "built from input_dim=n_embd, embed_dim=n_embd, num_heads=n_head; called as forward(x, mask);"
        f" the mask is 1 where visible, 0 where hidden, [T, T]; {FIRST}",
    ),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("theirs") / "attention.py"
    path.write_text(SOURCE, "utf-8")
    return path


@pytest.mark.parametrize("name", HANDS)
def test_a_class_computes_what_it_computes_by_hand(name: str) -> None:
    by_hand, called, says = HANDS[name]
    cls = getattr(others, name)
    entry = registry.Entry("mechanism", name, adapt(cls))
    torch.manual_seed(3)
    module = entry.make(SIZES, **({"dropout": 0.0} if entry.accepts("dropout") else {})).eval()
    torch.manual_seed(3)
    original = by_hand().eval()
    assert isinstance(module, cls)
    assert module.attnlab_convention == f"{name}: {says}"
    weights = original.state_dict()
    assert list(module.state_dict()) == list(weights)
    assert all(torch.equal(tensor, weights[key]) for key, tensor in module.state_dict().items())
    x = torch.randn(3, TOKENS, 12)
    torch.testing.assert_close(module(x), called(original, x))
    torch.testing.assert_close(copy.deepcopy(module).double()(x.double()).float(), module(x))


@pytest.mark.parametrize("name", HANDS)
def test_the_audit_passes_classes_and_finds_their_leaks(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("attnlab.measure.audit.CHECKS", {key: CHECKS[key] for key in ("future", "padding")})
    report = audit_mechanism(f"{file}:{name}", n_embd=12, n_head=2, length=5)
    assert (report.verdict, report.notes) == ("pass", (f"{name}: {HANDS[name][2]}",))
    monkeypatch.setattr("attnlab.measure.audit.CHECKS", {"future": CHECKS["future"]})
    before, after = others.LEAKS[name]
    start = SOURCE.index(f"class {name}(")
    assert before in SOURCE[start:]
    (tmp_path / "leaking.py").write_text(SOURCE[:start] + SOURCE[start:].replace(before, after, 1), "utf-8")
    report = audit_mechanism(f"{tmp_path}/leaking.py:{name}", n_embd=12, n_head=2, length=5)
    assert (report.verdict, set(report.faults)) == ("fail", {"future"})


def test_a_mask_buffer_has_the_length_of_the_audit_and_shorter_limits_are_said(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnlab.measure.audit.CHECKS", {"prefix": CHECKS["prefix"]})
    assert max(audit_mechanism(f"{file}:MinGPT", length=130).lengths) == 130
    short = SOURCE.replace("torch.ones(config.block_size, config.block_size)", "torch.ones(20, 20)")
    (tmp_path / "short.py").write_text(short, "utf-8")
    report = audit_mechanism(f"{tmp_path}/short.py:MinGPT", length=130)
    assert max(report.lengths) == 17
    assert report.notes[-1].startswith("refuses 31 tokens")


class Killed(Exception):
    """Ends a training as kill -9 would, since nothing catches it."""


def test_classes_are_trained_saved_resumed_and_loaded_with_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(SOURCE, "utf-8")
    names = ("MinGPT", "NanoGPT", "Infinite", "Annotated", "HuggingFace", "Torch")
    model = {"n_layer": len(names), "n_head": 2, "n_embd": 12, "block_size": 64, "vocab_size": 300}
    model |= {"mechanism": ",".join(f"{mine}:{name}" for name in names), "positions": "learned", "dropout": 0.1}
    train = {"epochs": 2.0, "tokens_per_batch": 512, "checkpoint_every": 2, "threads": 1}
    settings = resolve("small", given={"model": model, "train": train})
    lines: list[str] = []
    whole = stages.pretrain(settings, "people:30", out=tmp_path / "whole", show=progress.Show(line=lines.append))
    for name in names:
        assert f"{name}: {HANDS[name][2]}" in lines

    def stop(now: Step) -> None:
        if now.step == 3:
            raise Killed

    with suppress(Killed):
        stages.pretrain(settings, "people:30", out=tmp_path / "run", show=progress.Show(step=stop))
    mine.unlink()
    registry._executed.clear()
    resumed = stages.resume(stages.Run.open(tmp_path / "run"))
    losses = [[row.loss for row in run.metrics()] for run in (resumed, whole)]
    assert len(losses[0]) > 4
    assert losses[0] == losses[1]
    ids = torch.arange(20)[None]
    (one, _), (other, _) = load_model(resumed.path), load_model(whole.path)
    assert torch.equal(one(ids), other(ids))
    assert [type(part).__name__ for part in one.mechanisms] == list(names)
    monkeypatch.setattr("attnlab.measure.audit.CHECKS", {"repeat": CHECKS["repeat"]})
    assert audit_module(one, length=4).notes == tuple(f"{name}: {HANDS[name][2]}" for name in names)


@pytest.mark.processes
def test_a_class_in_the_sandbox_is_recognised() -> None:
    job = Job(12, 2, 9, seconds=60)
    for name in ("MinGPT", "Torch"):
        measured = measure(job, SOURCE.encode(), "attention.py", name, sandbox=not sandbox.missing())
        assert measured.report is not None
        assert (measured.report.verdict, measured.report.notes) == ("pass", (f"{name}: {HANDS[name][2]}",))
    ended = measure(job, ODD.encode(), "odd.py", "Fields", sandbox=not sandbox.missing()).ended
    assert ended.startswith("Fields cannot be built")
    assert "\nclass FieldsAdapter(Fields):\n" in ended


def test_a_bench_says_what_it_recognised(file: Path) -> None:
    with pytest.warns(AttnlabWarning, match=r"^Flagged: built from embed_dim=n_embd"):
        cases, _ = choose_cases([f"{file}:Flagged"], Case("", n_head=2, n_embd=12))
    assert cases[-1].whole


ODD = """
import torch
from torch import nn

class Parameters(nn.Module):
    def __init__(self, d_model, n_heads, window):
        super().__init__()
        self.proj, self.window = nn.Linear(d_model, d_model), window

    def forward(self, x):
        return self.proj(x) * self.window

class Fields(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj, self.scale = nn.Linear(config.n_embd, config.n_embd, bias=config.bias), config.scale

    def forward(self, x):
        return self.proj(x) * self.scale

class Angles(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, freqs):
        return self.proj(x) * freqs

class Wide(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask):
        assert mask.shape == (5, 5, 5), "five"
        return self.proj(x)

class Both(nn.Module):
    def __init__(self, config, rate, dropout, layer_idx):
        super().__init__()
        self.proj, self.scale = nn.Linear(config.n_embd, config.n_embd), rate + dropout + layer_idx

    def forward(self, x):
        return self.proj(x) * self.scale

class Indexed(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n_heads, self.proj = cfg["n_heads"], nn.Linear(cfg["emb_dim"], cfg["emb_dim"], bias=cfg["qkv_bias"])

    def forward(self, x, token_positions, freqs):
        return self.proj(x) * freqs

class Wider(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model + 1)

    def forward(self, x):
        return self.proj(x)

class Silent(Wider):
    def forward(self, x):
        self.proj(x)

class Wrong(Wider):
    def forward(self, x):
        return self.proj(self.proj(x))

class Whole(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.n_embd)

    def forward(self, idx, targets=None):
        return self.embed(idx), None

class Nothing(nn.Module):
    def __init__(self, num_heads):
        super().__init__()

    def forward(self, x):
        return x
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Parameters", "window cannot be recognised by name"),
        ("Fields", "config.scale cannot be recognised by name"),
        ("Angles", "freqs cannot be recognised by name"),
        ("Both", "rate cannot be recognised by name"),
        ("Indexed", "freqs cannot be recognised by name"),
    ],
)
def test_the_adapter_in_an_error_works_once_its_dots_are_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    monkeypatch.setattr("attnlab.measure.audit.CHECKS", {"future": CHECKS["future"]})
    (tmp_path / "odd.py").write_text(ODD, "utf-8")
    assert call("audit", f"{tmp_path}/odd.py:{name}", "--length=8") == 2
    message, _, adapter = capsys.readouterr().err.partition("\n")
    assert message.startswith(f"attnlab: {name} cannot be built as Mechanism(n_embd, n_head, block_size)")
    assert f": {reason}; add this adapter" in message
    (tmp_path / "adapted.py").write_text(ODD + adapter.replace("...", "2.0"), "utf-8")
    assert audit_mechanism(f"{tmp_path}/adapted.py:{name}Adapter", length=8).verdict == "pass"


def test_what_no_mask_fits_and_what_has_no_width_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD, "utf-8")
    for name, words in (("Wide", "forward raises AssertionError: five"), ("Nothing", "num_heads, the width")):
        with pytest.raises(ConfigError, match=re.escape(words.rpartition(", ")[2])) as raised:
            registry.find("mechanism", f"{tmp_path}/odd.py:{name}").make(SIZES)
        assert "super().forward(x" in raised.value.__notes__[0]
        compile(raised.value.__notes__[0], "adapter", "exec")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Wider", "forward turns vectors of shape [2, 7, 12] to a tensor of shape [2, 7, 13]: return a tensor shaped"),
        ("Silent", "the output must be a tensor, and is NoneType"),
        ("Wrong", "forward raises RuntimeError: mat1 and mat2 shapes cannot be multiplied (14x13 and 12x13) ("),
        (
            "Whole",
            "it is a whole model: name its attention class instead, or audit it in Python: attnlab.audit_module(",
        ),
    ],
)
def test_a_class_whose_call_fails_is_refused_without_an_adapter(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "odd.py").write_text(ODD, "utf-8")
    with pytest.raises(ConfigError, match=re.escape(words)) as raised:
        registry.find("mechanism", f"{tmp_path}/odd.py:{name}").make(SIZES)
    assert not hasattr(raised.value, "__notes__")


def test_a_base_of_angles_is_that_of_the_class_where_it_has_one() -> None:
    class Own(others.Rotated):
        def __init__(self, d_model: int, num_heads: int, theta: float = 500.0, max_seq_len: int = 9) -> None:
            super().__init__(d_model, num_heads, max_seq_len, theta)

    assert "theta=500.0" in adapt(Own)(*SIZES).attnlab_convention
    assert Config({"theta": 1.0}, [type("ModelArgs", (), {"rope_theta": 2.0})]).rope_theta == 2.0


def test_the_backbone_sets_what_a_class_takes() -> None:
    entries = {name: registry.Entry("mechanism", name, adapt(getattr(others, name))) for name in HANDS}
    assert all(not entry.options for entry in entries.values())
    taken = {
        name: {key for key in ("causal", "dropout", "bias", "rotary") if entries[name].accepts(key)} for name in HANDS
    }
    assert taken["MinGPT"] == {"dropout", "bias"}  # any config may
    assert taken["Lucid"] == {"causal", "dropout"}
    assert taken["Annotated"] == {"dropout"}
    assert taken["Flagged"] == set()  # causal in every call
    assert entries["NanoGPT"].make(SIZES, dropout=0.25, bias=True).dropout == 0.25
    assert entries["NanoGPT"].make(SIZES, bias=True).c_attn.bias is not None
    assert entries["Annotated"].make(SIZES).drop.p == 0.1  # its own default
    assert entries["Annotated"].make(SIZES, dropout=0.0).drop.p == 0.0
    x, later = torch.randn(2, 1, 5, 12)
    changed = torch.cat([x[:, :3], later[:, 3:]], 1)
    sees = {causal: entries["Lucid"].make(SIZES, causal=causal) for causal in (False, True)}
    assert torch.equal(sees[True](x)[:, :3], sees[True](changed)[:, :3])
    assert not torch.equal(sees[False](x)[:, :3], sees[False](changed)[:, :3])


class Native(nn.Module):
    def __init__(self, n_embd: int, n_head: int, size: int, *, scale: float = 1.0, causal: bool = True) -> None:
        super().__init__()
        self.proj, self.scale = nn.Linear(n_embd, n_embd), scale

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.scale * self.proj(x)


class Complete(Native):
    def forward(self, x: Tensor, padding: Tensor | None = None, cache: Any = None) -> Tensor:
        return self.proj(x)


class Tuple(Native):
    def forward(self, x: Tensor) -> tuple[None, Tensor]:
        return None, self.proj(x)


class Asleep(Native):
    """Its output is zero before training, under any mask."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.proj(x + (x.unsqueeze(1) * mask.float()[..., None]).sum(2))


def test_classes_that_keep_the_contract_are_left_as_they_are() -> None:
    assert adapt(Complete) is Complete
    entry = registry.Entry("mechanism", "Native", adapt(Native))
    assert list(entry.options) == ["scale"]
    assert entry.hints()["scale"] is float
    module = entry.make(SIZES, {"scale": 2.0}, causal=True)
    assert (module.attnlab_convention, module.scale) == ("", 2.0)
    assert adapt(Tuple)(*SIZES).attnlab_convention == f"Tuple: {FIRST}"


def test_what_is_zero_before_training_does_not_hide_the_mask() -> None:
    assert adapt(Asleep)(*SIZES).attnlab_convention.endswith("the mask is True where visible, [T, T]")


def test_recognising_a_class_draws_no_random_numbers() -> None:
    class Drawn(others.HuggingFace):
        pass

    states = []
    for _ in range(2):  # the mask is chosen at the first
        torch.manual_seed(1)
        adapt(Drawn)(*SIZES)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    with torch.device("meta"):

        class Weightless(Drawn):
            pass

        module = adapt(Weightless)(*SIZES)
    assert module.q_proj.weight.is_meta
    assert "-inf where hidden, [1, 1, T, T]" in module.attnlab_convention


def test_a_config_is_an_object_and_a_dictionary() -> None:
    values = {"n_embd": 12, "dropout": 0.5}
    one = Config(values, [others.GPTConfig])
    assert (one.d_model, one["n_embd"], one.get("attn_pdrop"), one.temperature) == (12, 12, 0.5, 1.0)
    assert not hasattr(one, "strange")
    assert one.get("strange", 3) == 3
    with pytest.raises(KeyError, match="strange"):
        one["strange"]
    one.strange = 4
    assert (one.strange, copy.deepcopy(one).d_model) == (4, 12)


def test_the_tensor_in_what_a_module_returns() -> None:
    one = torch.ones(1)
    for answer in (one, (one, None), [None, one], SimpleNamespace(logits=one), SimpleNamespace(last_hidden_state=one)):
        assert tensor_of(answer) is one


CORNERS = """
from dataclasses import dataclass
import torch
from torch import nn
from attnlab.mechanisms.dot import Dot

@dataclass
class TrainConfig:
    window: int = 100

@dataclass(slots=True)
class AttnConfig:
    n_embd: int = 8
    n_head: int = 2
    window: int = 4

class Windowed(nn.Module):
    def __init__(self, config: AttnConfig):
        super().__init__()
        self.mix, self.window = nn.Linear(config.n_embd, config.n_embd), config.window

    def forward(self, x):
        return self.mix(x)

class Grouped(nn.Module):
    def __init__(self, dim, n_heads=8, n_kv_heads=2):
        super().__init__()
        self.keys = nn.Linear(dim, dim // n_heads * n_kv_heads)
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads

    def forward(self, x):
        return x * self.keys(x).mean(-1, keepdim=True)

class TimeFirst(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, query, key, value):
        return self.attention(query, key, value)[0]

class Backwards(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.mix = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        return self.mix(x.flip(1))

class Ahead(Backwards):
    def forward(self, x):
        return self.mix(x.flip(1))

class Either(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, is_decoder=False):
        super().__init__()
        self.mix, self.is_decoder = nn.Linear(hidden_size, hidden_size), is_decoder

    def forward(self, x, key, value):
        return self.mix(x if self.is_decoder else x + x.flip(1))

class Typo(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.flash = getattr(config, "flash", False)
        self.mix = nn.Linear(config.n_embd, config.n_embd)
        self.nothing.weight = 1

    def forward(self, x):
        return self.mix(x)
"""


@pytest.fixture
def corner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "corners.py").write_text(CORNERS, "utf-8")
    return lambda name: registry.find("mechanism", f"{tmp_path}/corners.py:{name}")


def test_the_annotated_config_gives_its_defaults_and_they_are_said(corner: Any) -> None:
    module = corner("Windowed").make((12, 2, 9))
    assert module.window == 4
    assert module.attnlab_convention == "Windowed: built from config (n_embd, window=4)"


def test_heads_of_keys_are_those_of_the_class_where_they_fit(corner: Any) -> None:
    module = corner("Grouped").make((12, 4, 9))
    assert (module.n_heads, module.n_kv_heads) == (4, 2)
    assert module.attnlab_convention.endswith("n_heads=n_head, n_kv_heads=2")
    assert corner("Grouped").make((12, 3, 9)).n_kv_heads == 3


def test_a_class_that_reads_time_first_or_sees_the_future_is_said_to(corner: Any) -> None:
    assert "depend on the other texts of a batch" in corner("TimeFirst").make((12, 2, 9)).attnlab_convention
    leaking = corner("Backwards").make((12, 2, 9)).attnlab_convention
    assert leaking == (
        "Backwards: built from embed_dim=n_embd, num_heads=n_head; its outputs depend on later tokens under every mask"
    )
    assert corner("Ahead").make((12, 2, 9)).attnlab_convention.endswith("; its outputs depend on later tokens")


def test_a_setting_that_makes_a_class_causal_is_kept(corner: Any) -> None:
    entry = corner("Either")
    assert entry.accepts("causal")
    assert not entry.make((12, 2, 9), causal=False).is_decoder
    assert entry.make((12, 2, 9)).is_decoder


def test_errors_of_a_class_are_its_own(corner: Any) -> None:
    with pytest.raises(ConfigError, match=r"AttributeError: 'Typo' object has no attribute 'nothing' \(.*line \d+\)"):
        corner("Typo").make((12, 2, 9))
