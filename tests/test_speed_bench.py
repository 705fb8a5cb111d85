"""The speed bench counts the products that a forecast really makes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from reference_models import reference_model
from torch.utils.flop_counter import FlopCounterMode

from bench.speed import Shape, product_flops
from toto2.configuration import PUBLISHED


@pytest.mark.parametrize(
    "shape", [Shape(1, 3, 256, 96), Shape(2, 2, 128, 256, 64), Shape(1, 1, 64, 33, None), Shape(1, 1, 96, 320, 128)]
)
def test_operations_counted_are_those_made(shape: Shape) -> None:
    config = dataclasses.replace(PUBLISHED["4m"], d_model=64, num_heads=2, qk_dim=32, v_dim=32, num_groups=2, d_ff=176)
    model = reference_model(config)
    target = torch.randn(shape.batch, shape.variates, shape.context)
    inputs = {
        "target": target,
        "target_mask": torch.ones_like(target, dtype=torch.bool),
        "series_ids": torch.zeros(target.shape[:2], dtype=torch.long),
    }
    with FlopCounterMode(display=False) as counter:
        model.forecast(inputs, shape.horizon, shape.block)
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for operator, count in counts.items() if operator in (torch.ops.aten.mm, torch.ops.aten.addmm))
    assert product_flops(config, shape)[0] == pytest.approx(products)
