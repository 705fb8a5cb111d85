"""Rotary tables follow their formula, as complex or real factors."""

from __future__ import annotations

import numpy as np
import torch

from toto2.rotary import on_device, rotate, rotation


def test_tables_follow_the_formula_of_position_and_centre() -> None:
    first, centres, qk_dim, columns = np.array([3, 700]), np.array([40, 9]), 16, 5
    query, key = rotation(first, columns, centres, qk_dim, use_xpos=True)
    width = qk_dim // 2
    for row in range(2):
        for column in range(columns):
            position = first[row] + column
            for pair in range(width // 2):
                turn = np.exp(1j * position * 10_000.0 ** (-2 * pair / width))
                scale = ((2 * pair + 0.4 * width) / (1.4 * width)) ** ((position - centres[row]) / 256)
                np.testing.assert_allclose(query[row, column, 0, pair], turn * scale, rtol=2e-6)
                np.testing.assert_allclose(key[row, column, 0, pair], turn / scale, rtol=2e-6)


def test_real_and_complex_factors_turn_alike_and_leave_the_second_half_alone() -> None:
    origin = np.zeros(1, np.int64)
    query, _ = rotation(origin, 7, origin, 16, use_xpos=True)
    x = torch.randn(2, 7, 3, 16)
    cpu = torch.device("cpu")
    real = rotate(x, on_device(query, cpu, use_complex=False))
    assert torch.equal(real[..., 8:], x[..., 8:])
    torch.testing.assert_close(rotate(x.clone(), on_device(query, cpu, use_complex=True)), real)


def test_scores_depend_on_distance_alone() -> None:
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)
    scores = []
    for start in (0, 500):
        first, centre = np.array([start]), np.array([start // 2])
        query, key = rotation(first, 12, centre, 16, use_xpos=True)
        factors = [on_device(table, torch.device("cpu"), use_complex=False) for table in (query, key)]
        scores.append((rotate(q, factors[0][:, 9:10]) * rotate(k, factors[1][:, 2:3])).sum())
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-3, atol=1e-4)
