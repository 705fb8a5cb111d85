"""Muon and the u-μP learning rates of AdamW."""

from __future__ import annotations

import pytest
import torch

from dd_unit_scaling import Linear, LinearReadout
from dd_unit_scaling.optim import UPDATE_RMS, AdamW, Muon, orthogonalise


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 24, 64), (2, 64, 24)])
def test_orthogonalising_brings_every_singular_value_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    made = orthogonalise(torch.randn(shape) @ torch.diag(torch.logspace(-1, 1, shape[-1])))
    values = torch.linalg.svdvals(made)
    assert made.shape == shape
    assert values.max() < 1.3
    assert values.median() > 0.6


def test_orthogonalising_keeps_the_singular_vectors() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(1, 12, 20)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.mT @ orthogonalise(matrix) @ right.mT
    assert (turned - torch.diag_embed(turned.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-4


def test_a_zero_matrix_stays_zero() -> None:
    assert (orthogonalise(torch.zeros(1, 4, 8)) == 0).all()


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_an_update_has_the_same_size_whatever_the_shape(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = torch.randn(shape) * 1e-3
    Muon([weight], lr=1.0).step()
    assert weight.detach().square().mean().sqrt() == pytest.approx(UPDATE_RMS, rel=0.25)


def test_pieces_are_orthogonalised_as_matrices_of_their_own() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(24, 8)
    whole = torch.nn.Parameter(torch.zeros(24, 8))
    parts = [torch.nn.Parameter(torch.zeros(8, 8)) for _ in range(3)]
    whole.grad = gradient
    for part, piece in zip(parts, gradient.chunk(3), strict=True):
        part.grad = piece.clone()
    Muon([whole], lr=1.0, pieces={whole: 3}).step()
    Muon(parts, lr=1.0).step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]))


def test_bfloat16_is_precise_enough_for_an_update() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(16, 24)
    weights = {dtype: torch.nn.Parameter(torch.zeros(16, 24)) for dtype in (torch.float32, torch.bfloat16)}
    for dtype, weight in weights.items():
        weight.grad = gradient.clone()
        Muon([weight], lr=1.0, dtype=dtype).step()
    exact, rough = (weight.detach() for weight in weights.values())
    assert 0 < (exact - rough).norm() < 0.1 * exact.norm()


def test_muon_descends_a_quadratic() -> None:
    torch.manual_seed(0)
    target = torch.randn(8, 8)
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    optimiser = Muon([weight], lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        (weight - target).square().mean().backward()
        optimiser.step()
    assert (weight - target).square().mean() < 0.05 * target.square().mean()


def test_weight_decay_shrinks_by_the_learning_rate() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.zeros(4, 4)
    Muon([weight], lr=0.5, weight_decay=0.1).step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 4), 0.95))


def test_muon_refuses_what_is_no_matrix_or_does_not_divide() -> None:
    with pytest.raises(ValueError, match=r"found \(4,\)"):
        Muon([torch.nn.Parameter(torch.zeros(4))], lr=1.0)
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(ValueError, match="3 equal blocks"):
        Muon([weight], lr=1.0, pieces={weight: 3})


def test_muon_goes_on_from_its_state() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(4, 6, 6)
    straight = torch.nn.Parameter(torch.zeros(6, 6))
    resumed = torch.nn.Parameter(torch.zeros(6, 6))
    one, two = Muon([straight], lr=0.1), Muon([resumed], lr=0.1)
    for index, gradient in enumerate(gradients):
        if index == 2:
            state = two.state_dict()
            two = Muon([resumed], lr=0.1)
            two.load_state_dict(state)
        straight.grad, resumed.grad = gradient.clone(), gradient.clone()
        one.step()
        two.step()
    assert torch.equal(straight, resumed)


def test_adamw_scales_learning_rates_by_kind_and_fan_in() -> None:
    hidden, readout = Linear(64, 8), LinearReadout(16, 4)
    optimiser = AdamW([*hidden.parameters(), *readout.parameters()], lr=1e-2)
    rates = {id(group["params"][0]): group["lr"] for group in optimiser.param_groups}
    assert rates[id(hidden.weight)] == pytest.approx(1e-2 / 8)
    assert rates[id(hidden.bias)] == pytest.approx(1e-2)
    assert rates[id(readout.weight)] == pytest.approx(1e-2)
