"""Forecasts of tensors: padding, blocks, groups, masks."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference_models import SMALL, folded_model, reference_model

from toto2 import Toto2Model
from toto2 import device as device_module
from toto2.device import Device
from toto2.folding import fold
from toto2.products import Int8Product, bfloat16_available

MODEL = folded_model()
TOLERANCE = 1e-4  # of the context's deviation


def series(variates: int, patches: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, variates, patches * 32, generator=generator).cumsum(-1)


def inputs(
    target: torch.Tensor, mask: torch.Tensor | None = None, ids: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    return {
        "target": target,
        "target_mask": torch.ones_like(target, dtype=torch.bool) if mask is None else mask,
        "series_ids": torch.zeros(target.shape[:2], dtype=torch.long) if ids is None else ids,
    }


def assert_same(got: torch.Tensor, expected: torch.Tensor, target: torch.Tensor) -> None:
    deviation = target.std(-1)[None, ..., None]
    assert ((got - expected).abs() / deviation).max() <= TOLERANCE


@pytest.mark.parametrize("block", [None, 64, 160])
@pytest.mark.parametrize("padding", [1, 2, 7])
def test_whole_missing_patches_in_front_change_nothing(padding: int, block: int | None) -> None:
    target = series(3, 9)
    mask = torch.ones_like(target, dtype=torch.bool)
    mask[0, 1, :100] = False  # patches that are missing in one variate only
    front = (32 * padding, 0)
    padded = inputs(torch.nn.functional.pad(target, front, value=7.0), torch.nn.functional.pad(mask, front))
    alone = MODEL.forecast(inputs(target, mask), 320, block)
    assert_same(MODEL.forecast(padded, 320, block), alone, target)


@pytest.mark.parametrize("horizon", [1, 33, 200, 256])
def test_a_block_as_long_as_the_horizon_is_one_pass(horizon: int) -> None:
    target = series(2, 5)
    one = MODEL.forecast(inputs(target), horizon, None)
    assert torch.equal(MODEL.forecast(inputs(target), horizon, -(-horizon // 32) * 32), one)
    assert torch.equal(MODEL.forecast(inputs(target), horizon, 4096), one)


def test_values_under_the_mask_change_nothing() -> None:
    target = series(2, 6)
    mask = torch.rand(target.shape, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[..., -32:] = True
    other = torch.where(mask, target, torch.tensor(1e30))
    assert torch.equal(MODEL.forecast(inputs(target, mask), 96), MODEL.forecast(inputs(other, mask), 96))


def test_a_series_does_not_see_another_group() -> None:
    target = series(4, 6)
    ids = torch.tensor([[5, 9, 5, 9]])
    together = MODEL.forecast(inputs(target, ids=ids), 128, 64)
    for group in ([0, 2], [1, 3]):
        part = target[:, group]
        assert_same(together[:, :, group], MODEL.forecast(inputs(part), 128, 64), part)


def test_variates_of_a_group_see_each_other() -> None:
    target = series(2, 6)
    changed = target.clone()
    changed[0, 1] *= -1
    one, other = MODEL.forecast(inputs(target), 32), MODEL.forecast(inputs(changed), 32)
    assert (one[:, 0, 0] - other[:, 0, 0]).abs().max() > 1e-3


def test_decoded_patches_belong_to_their_series_whatever_the_contexts_start() -> None:
    # Missing first patches in one variate must not cost it its neighbours in later blocks.
    target = series(2, 8)
    mask = torch.ones_like(target, dtype=torch.bool)
    mask[0, 1, :128] = False
    late = MODEL.forecast(inputs(target, mask), 256, 32)
    changed = torch.where(mask, target * torch.tensor([[[-1.0], [1.0]]]), target)
    other = MODEL.forecast(inputs(changed, mask), 256, 32)
    assert (late[:, 0, 1, -32:] - other[:, 0, 1, -32:]).abs().max() > 1e-3


@given(
    contexts=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    horizon=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_batch_elements_are_answered_as_alone(contexts: list[int], horizon: int, seed: int) -> None:
    longest = max(contexts)
    targets = [series(2, patches, seed + index) for index, patches in enumerate(contexts)]
    padded = [torch.nn.functional.pad(t, (32 * (longest - n), 0)) for t, n in zip(targets, contexts, strict=True)]
    masks = [
        torch.nn.functional.pad(torch.ones_like(t, dtype=torch.bool), (32 * (longest - n), 0))
        for t, n in zip(targets, contexts, strict=True)
    ]
    batch = MODEL.forecast(inputs(torch.cat(padded), torch.cat(masks)), 32 * horizon, 64)
    for index, target in enumerate(targets):
        alone = MODEL.forecast(inputs(target), 32 * horizon, 64)
        assert_same(batch[:, index : index + 1], alone, target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.zeros(1, 2, 33)}, "a multiple of 32"),
        ({"target": torch.zeros(2, 32)}, "must have shape"),
        ({"series_ids": torch.zeros(1, 3, dtype=torch.long)}, "series_ids must have shape"),
    ],
)
def test_shapes_that_do_not_fit_are_named(change: dict[str, torch.Tensor], message: str) -> None:
    target = change.get("target", torch.zeros(1, 2, 64))
    given_inputs = {"target": target, "target_mask": torch.ones_like(target, dtype=torch.bool)}
    given_inputs["series_ids"] = change.get("series_ids", torch.zeros(target.shape[:2], dtype=torch.long))
    with pytest.raises(ValueError, match=message):
        MODEL.forecast(given_inputs, 32)


@pytest.mark.parametrize("block", [0, 33, -32])
def test_a_block_that_is_no_multiple_of_a_patch_is_refused(block: int) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        MODEL.forecast(inputs(series(1, 2)), 64, block)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"qk_norm": True, "qk_norm_include_weight": True},
        {"norm_include_weight": True, "mlp_bias": True},
        {"num_groups": 2, "heads_per_group": 2, "use_xpos": False},
        {"per_dim_scale": False, "attn_bias": False, "layer_group_size": 2, "variate_layer_first": True},
    ],
    ids=lambda change: ",".join(change) or "published",
)
def test_folding_changes_nothing(change: dict[str, object]) -> None:
    config = dataclasses.replace(SMALL, **change)  # type: ignore[arg-type]
    target = series(3, 7)
    mask = torch.rand(target.shape, generator=torch.Generator().manual_seed(2)) > 0.2
    mask[0, 0, :64] = False
    plain: Toto2Model = reference_model(config)
    expected = plain.forecast(inputs(target, mask), 256, 96)
    assert_same(folded_model(config).forecast(inputs(target, mask), 256, 96), expected, target)


def test_bfloat16_is_refused_on_a_cpu_that_does_not_multiply_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "bfloat16_available", lambda: False)
    with pytest.raises(ValueError, match="does not multiply it; expected float32 or int8"):
        Device("cpu").placement("bfloat16")
    assert Device("cuda").placement("bfloat16").dtype == torch.bfloat16


def test_large_sums_do_not_saturate_in_int8() -> None:
    x, weight = torch.linspace(0.5, 1, 64).repeat(4, 1), torch.ones(8, 64)
    torch.testing.assert_close(Int8Product(weight, None)(x), x @ weight.T, rtol=0.01, atol=0)


@pytest.mark.parametrize(("vnni", "levels"), [(True, 256), (False, 128)])
def test_inputs_of_int8_have_seven_bits_without_vnni(monkeypatch: pytest.MonkeyPatch, vnni: bool, levels: int) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
    answer = Int8Product(torch.eye(64), None)(torch.linspace(0, 1, 1024).view(16, 64))
    assert levels / 2 < len(answer.unique()) <= levels


BFLOAT16 = pytest.mark.skipif(not bfloat16_available(), reason="this CPU does not multiply bfloat16")


@pytest.mark.parametrize(("dtype", "bound"), [pytest.param("bfloat16", 0.15, marks=BFLOAT16), ("int8", 0.3)])
def test_narrow_types_stay_near_float32(dtype: str, bound: float) -> None:
    target = series(3, 8)
    narrow = fold(reference_model(), Device("cpu").placement(dtype))
    difference = (narrow.forecast(inputs(target), 96) - MODEL.forecast(inputs(target), 96)).abs()
    mean = (difference / target.std(-1)[None, ..., None]).mean()
    assert 0 < mean < bound  # random weights: the README gives the error on trained ones


@pytest.mark.parametrize(
    ("device", "dtype", "useful"),
    [
        (Device("cpu"), "float16", "float32, bfloat16, int8"),
        (Device("cuda"), "int8", "float32, bfloat16, float16"),
    ],
)
def test_a_type_that_gains_nothing_on_a_device_is_refused(device: Device, dtype: str, useful: str) -> None:
    with pytest.raises(ValueError, match=f"gains nothing on {device.kind}; expected one of {useful}$"):
        device.placement(dtype)
