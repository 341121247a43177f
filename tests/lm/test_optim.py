from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnlab import registry
from attnlab.config import RunConfig, TrainConfig, resolve
from attnlab.errors import CheckpointError
from attnlab.lm import optim
from attnlab.lm.batches import make_rows
from attnlab.lm.model import LanguageModel


@pytest.mark.parametrize("shape", [(16, 16), (16, 24), (16, 64), (64, 16)])
def test_rounds_agree_with_the_decomposition(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.linalg.qr(torch.randn(64, 64))[0][: shape[0], : shape[1]] * 3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    exact = u @ v
    found = optim.orthogonalize(matrix[None])[0]
    overlap = (exact * found).sum() / (exact.norm() * found.norm())
    assert overlap > 0.95
    singular = torch.linalg.svdvals(found)
    assert singular.max() < 1.25
    assert (singular > 0.6).float().mean() >= 0.85


def test_the_long_matrix_path_equals_the_plain_rounds() -> None:
    torch.manual_seed(0)
    wide = torch.randn(2, 16, 64)
    plain = wide / wide.flatten(1).norm(dim=1)[:, None, None]
    a, b, c = optim.QUINTIC
    for _ in range(5):
        gram = plain @ plain.transpose(1, 2)
        plain = a * plain + (b * gram + c * gram @ gram) @ plain
    assert torch.allclose(optim.orthogonalize(wide), plain, atol=1e-5)
    assert torch.allclose(optim.orthogonalize(wide.transpose(1, 2)), plain.transpose(1, 2), atol=1e-5)


def test_every_parameter_has_exactly_one_optimizer() -> None:
    for preset in ("small", "mingpt"):
        config = resolve(preset, given={"model": {"n_layer": 1, "n_embd": 32}})
        model = LanguageModel(config.model)
        owned = [
            id(p)
            for o in optim.make_optimizers(model, config.train).values()
            for g in o.param_groups
            for p in g["params"]
        ]
        assert sorted(owned) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_tied_head_is_updated_once_and_not_by_muon(optimizer: str) -> None:
    given = {"model": {"n_layer": 1, "n_embd": 32, "tied_head": True}}
    given |= {"train": {"optimizer": optimizer, "weight_decay": 0.1}}
    config = resolve("small", given=given)
    model = LanguageModel(config.model)
    made = optim.make_optimizers(model, config.train)
    groups = {name: [[id(p) for p in group["params"]] for group in one.param_groups] for name, one in made.items()}
    owned = [p for lists in groups.values() for group in lists for p in group]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
    assert id(model.tokens.weight) == id(model.head.weight) == groups["adamw"][0][0]
    assert made["adamw"].param_groups[0]["weight_decay"] == 0.1


def test_decay_falls_on_matrices_only() -> None:
    config = resolve("mingpt", given={"model": {"n_layer": 1, "n_embd": 32}})
    model = LanguageModel(config.model)
    decayed, free = optim.make_optimizers(model, config.train)["adamw"].param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(p.ndim == 2 for p in decayed["params"])
    assert decayed["weight_decay"] == 0.1
    assert free["weight_decay"] == 0.0
    assert {"tokens.weight", "positions.weight", "norm.weight", "blocks.0.mlp.up.bias"} <= {
        names[id(p)] for p in free["params"]
    }


def test_schedules() -> None:
    linear = TrainConfig(warmup=0.1, decay=0.5, schedule="linear")
    assert [optim.rate_at(p, linear) for p in (0.0, 0.05, 0.1, 0.5, 0.75, 1.0)] == pytest.approx([0, 0.5, 1, 1, 0.5, 0])
    cosine = TrainConfig(warmup=0.0, decay=1.0, schedule="cosine")
    assert [optim.rate_at(p, cosine) for p in (0.0, 0.5, 1.0)] == pytest.approx([1, 0.5, 0.1])


def test_the_reports_schedule_swings() -> None:
    train = resolve("mingpt").train
    rates = [optim.rate_at(epoch / 650, train) for epoch in (0.03, 100, 200, 300, 400, 600)]
    assert rates == pytest.approx([1, 0.5, 0.1, 0.5, 1, 0.1], abs=1e-3)
    assert optim.rate_at(0.015 / 650, train) == pytest.approx(0.55, abs=0.02)
    assert optim.rate_at(0.99, resolve("mingpt", "finetune").train) > 0.99
    in_steps = replace(train, steps=14_950)
    assert optim.rate_at(200 / 650, in_steps, epochs=200.0) == pytest.approx(0.1)


@pytest.mark.parametrize("preset", ["mingpt", "mingpt-perceiver"])
def test_batches_are_those_of_the_reports(preset: str) -> None:
    rows = [resolve(preset, stage).train.rows_per_batch for stage in ("pretrain", "finetune", "scratch")]
    assert rows == [128, 256, 256]
    assert len(make_rows(2937, 128, np.random.default_rng(0))) * 650 == 14_950


def test_state_goes_through_named_tensors(tiny: RunConfig) -> None:
    def trained(steps: int, carry: bool) -> LanguageModel:
        torch.manual_seed(0)
        model = LanguageModel(tiny.model)
        optimizers = optim.make_optimizers(model, tiny.train)
        for step in range(steps):
            model(torch.arange(8)[None] + step).square().mean().backward()
            for one in optimizers.values():
                one.step()
                one.zero_grad()
            if carry:
                tensors = {key: value.clone() for key, value in optim.state_tensors(optimizers).items()}
                optimizers = optim.make_optimizers(model, tiny.train)
                optim.load_state(optimizers, tensors)
        return model

    for left, right in zip(trained(3, True).parameters(), trained(3, False).parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_state_of_another_optimizer_is_refused(tiny: RunConfig) -> None:
    optimizers = optim.make_optimizers(LanguageModel(tiny.model), tiny.train)
    with pytest.raises(CheckpointError, match="do not fit the model"):
        optim.load_state(optimizers, {"lion/0/momentum": torch.zeros(1)})


@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_only_linear_maps_are_made_orthogonal(name: str) -> None:
    config = resolve("small", given={"model": {"n_layer": 1, "n_embd": 32, "n_head": 4, "mechanism": name}})
    model = LanguageModel(config.model)
    (group,) = optim.make_optimizers(model, config.train)["muon"].param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    ours = {names[id(p)] for p in group["params"]}
    assert {"blocks.0.mlp.up.weight", "blocks.0.attn.out.weight"} <= ours
    assert all(one.endswith(".weight") for one in ours)


def quintic(matrix: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz by singular values, each of which goes through 3.4445 x - 4.775 x^3 + 2.0315 x^5 five times."""
    u, sizes, v = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        sizes = 3.4445 * sizes - 4.775 * sizes**3 + 2.0315 * sizes**5
    return u * sizes @ v


@pytest.mark.parametrize("shape", [(6, 6), (6, 9), (4, 8), (4, 16), (9, 6), (8, 4), (16, 4)])
def test_orthogonalising_is_the_quintic_of_the_singular_values(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape) * torch.tensor([1e-2, 1.0, 50.0])[:, None, None]
    expected = torch.stack([quintic(matrix) for matrix in matrices])
    assert torch.allclose(optim.orthogonalize(matrices), expected, atol=2e-4)
    assert optim.orthogonalize(torch.zeros(1, *shape)).abs().max() == 0


@pytest.mark.parametrize("shape", [(6, 6), (16, 4), (4, 16)])
def test_two_steps_of_muon_by_hand(shape: tuple[int, int]) -> None:
    """Decay shrinks weights; Nesterov momentum, orthogonalised, moves them against the gradient, tall ones faster."""
    lr, momentum, decay = 0.02, 0.9, 0.5
    parameter, unused = (torch.nn.Parameter(torch.randn(shape)) for _ in range(2))
    expected, average, kept = parameter.detach().clone(), torch.zeros(shape), unused.detach().clone()
    muon = optim.Muon([parameter, unused], lr, momentum, decay)
    for _ in range(2):
        gradient = torch.randn(shape)
        parameter.grad = gradient.clone()
        muon.step()
        average = momentum * average + (1 - momentum) * gradient
        update = quintic(momentum * average + (1 - momentum) * gradient)
        faster = max(1.0, shape[0] / shape[1]) ** 0.5
        expected = expected * (1 - lr * decay) - lr * faster * update
        assert torch.allclose(parameter, expected, atol=1e-5)
    assert torch.equal(unused, kept)  # without a gradient


def test_weight_decay_alone_shrinks_the_weights() -> None:
    parameter = torch.nn.Parameter(torch.ones(4, 4))
    parameter.grad = torch.zeros(4, 4)
    optim.Muon([parameter], lr=0.1, weight_decay=0.2).step()
    assert torch.allclose(parameter, torch.full((4, 4), 0.98))


@pytest.mark.parametrize("warmup", [0.01, 0.3, 1.0])
def test_inverse_sqrt_rises_to_its_peak_and_falls_from_there(warmup: float) -> None:
    config = TrainConfig(schedule="inverse_sqrt", warmup=warmup)
    places = [step / 1000 for step in range(1001)]
    rates = [optim.rate_at(at, config) for at in places]
    assert rates == pytest.approx([at / warmup if at < warmup else (warmup / at) ** 0.5 for at in places])
    assert max(rates) == pytest.approx(1)


def test_schedules_by_hand() -> None:
    def rates(**settings: Any) -> list[float]:
        config = TrainConfig(**{"warmup": 0.1, "decay": 0.5, **settings})
        return [optim.rate_at(at, config) for at in (0.0, 0.05, 0.3, 0.75, 1.0)]

    assert rates(schedule="constant") == pytest.approx([0, 0.5, 1, 1, 1])
    assert rates(schedule="linear") == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert rates(schedule="sqrt") == pytest.approx([0, 0.5, 1, 1 - 0.5**0.5, 0])
    assert rates(schedule="inverse_sqrt") == pytest.approx([0, 0.5, (1 / 3) ** 0.5, (0.1 / 0.75) ** 0.5, 0.1**0.5])
    assert rates(schedule="linear", decay=0.0) == pytest.approx([0, 0.5, 1, 1, 1])
    assert rates(schedule="linear", warmup=0.0) == pytest.approx([1, 1, 1, 0.5, 0])


def test_a_cosine_with_a_horizon_counts_epochs() -> None:
    """After half of its horizon it is at a half, at the horizon at a tenth, and after twice the horizon at its peak."""
    config = TrainConfig(warmup=0.0, schedule="cosine", horizon=4.0, epochs=8.0)
    assert [optim.rate_at(at, config) for at in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1, 0.5, 0.1, 1])
    assert optim.rate_at(0.25, config, epochs=4.0) == pytest.approx(0.5)  # only a run in steps is told its epochs
    in_steps = replace(config, steps=100)
    assert optim.rate_at(0.25, in_steps, epochs=4.0) == pytest.approx(0.1)
    assert optim.rate_at(0.25, in_steps) == pytest.approx(0.5)


def test_rates_are_shares_of_each_groups_peak() -> None:
    config = resolve("small", given={"model": {"n_layer": 1, "n_embd": 32}})
    optimizers = optim.make_optimizers(LanguageModel(config.model), config.train)
    for share in (0.5, 0.25):
        optim.set_rates(optimizers, share)
        assert [group["lr"] for group in optimizers["muon"].param_groups] == [share * config.train.muon_lr]
        assert [group["lr"] for group in optimizers["adamw"].param_groups] == [share * config.train.lr] * 2


def test_the_moving_average_by_hand(tiny: RunConfig) -> None:
    model = LanguageModel(tiny.model)
    name, weight = next(iter(model.named_parameters()))
    average = optim.Average(model, decay=0.5)
    expected = weight.detach().clone()
    for step, decay in ((1, 2 / 11), (2, 3 / 12), (20, 0.5)):  # early steps forget faster
        with torch.no_grad():
            weight.normal_()
        expected = decay * expected + (1 - decay) * weight.detach()
        average.update(step)
        assert torch.allclose(average.tensors[name], expected, atol=1e-6)
    current = weight.detach().clone()
    average.swap()
    assert torch.allclose(weight, expected, atol=1e-6)
    assert torch.equal(average.tensors[name], current)
    stored = {key: torch.full_like(value, 2.0) for key, value in average.tensors.items()}
    average.load(stored)
    assert average.tensors[name].eq(2).all()
    with pytest.raises(CheckpointError, match="the averaged weights"):
        average.load({name: stored[name]})


def test_a_pair_of_optimizers_steps_as_each_alone() -> None:
    def parameters() -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.full((2, 2), size)) for size in (1.0, 2.0)]

    pair, alone = parameters(), parameters()
    both = optim.OptimizerPair(torch.optim.SGD([pair[0]], lr=0.1), torch.optim.SGD([pair[1]], lr=0.2))
    assert [group["lr"] for group in both.param_groups] == [0.1, 0.2]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(both, gamma=0.5)
    for share in (1.0, 0.5):
        for parameter in pair:
            parameter.grad = torch.ones(2, 2)
        both.step()
        scheduler.step()
        with torch.no_grad():
            for parameter, rate in zip(alone, (0.1, 0.2), strict=True):
                parameter -= share * rate
        assert all(torch.allclose(a, b) for a, b in zip(pair, alone, strict=True))


def test_the_state_of_parameters_that_were_never_used_is_zero(tiny: RunConfig) -> None:
    optimizers = optim.make_optimizers(LanguageModel(tiny.model), tiny.train)
    tensors = optim.state_tensors(optimizers)
    count = {name: sum(len(group["params"]) for group in one.param_groups) for name, one in optimizers.items()}
    assert len(tensors) == count["muon"] + 3 * count["adamw"]
    assert all(tensor.abs().max() == 0 for tensor in tensors.values())
    assert {key.rsplit("/", 1)[1] for key in tensors} == {"momentum", "step", "exp_avg", "exp_avg_sq"}
    assert tensors["adamw/0/step"].shape == ()


@pytest.mark.parametrize(("outputs", "kind"), [(1, "adamw"), (2, "muon")])
def test_a_linear_map_to_one_number_is_not_made_orthogonal(outputs: int, kind: str) -> None:
    config = resolve("small", given={"model": {"n_layer": 1, "n_embd": 32}})
    model = LanguageModel(config.model)
    model.blocks[0].gate = torch.nn.Linear(32, outputs)
    optimizers = optim.make_optimizers(model, config.train)
    owned = {name: {id(p) for group in one.param_groups for p in group["params"]} for name, one in optimizers.items()}
    assert [name for name in owned if id(model.blocks[0].gate.weight) in owned[name]] == [kind]
