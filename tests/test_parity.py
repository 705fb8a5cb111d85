"""The model answers what the published package answers, plain and folded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_models import folded_model, reference_model

from toto2 import Toto2Model, Toto2ModelConfig

CASES = sorted(path.stem for path in (Path(__file__).parent / "parity").glob("*.npz"))
LARGEST_DIFFERENCE, COSINE = 1e-4, 0.9999999


def assert_parity(model: Toto2Model, case: dict[str, np.ndarray]) -> None:
    inputs = {k: torch.from_numpy(v) for k, v in case.items() if k.startswith(("target", "series_ids", "known"))}
    options = json.loads(str(case["options"]))
    answer = model.forecast(inputs, int(case["horizon"]), **options)
    expected = case["quantiles"]
    assert answer.shape == expected.shape
    assert answer.dtype == torch.float32
    got, expected = answer.double().numpy(), expected.astype(np.float64)
    mean, deviation = context_statistics(case["target"].astype(np.float64), case["target_mask"])
    step = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    difference = (np.abs(got - expected) - step) / np.maximum(deviation, 1e-6)
    assert difference.max() <= LARGEST_DIFFERENCE
    assert cosine(got - mean, expected - mean) >= COSINE


def context_statistics(target: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the observed context, [batch, n_variate, 1]."""
    count = np.maximum(mask.sum(-1, keepdims=True), 1)
    mean = np.where(mask, target, 0).sum(-1, keepdims=True) / count
    variance = (np.where(mask, target - mean, 0) ** 2).sum(-1, keepdims=True) / count
    return mean, np.sqrt(variance)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def load_case(name: str) -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "parity" / f"{name}.npz") as stored:
        return dict(stored)


def config_of(case: dict[str, np.ndarray]) -> Toto2ModelConfig:
    return Toto2ModelConfig.from_dict(json.loads(str(case["config"])))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("313m")])
def test_folded_model_equals_the_published_package(name: str) -> None:
    case = load_case(name)
    assert_parity(folded_model(config_of(case)), case)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("313m")])
def test_plain_model_equals_the_published_package(name: str) -> None:
    case = load_case(name)
    assert_parity(reference_model(config_of(case)), case)


@pytest.mark.slow
def test_313m_equals_the_published_package() -> None:
    names = [name for name in CASES if name.startswith("313m")]
    assert len(names) == 3
    model = folded_model(config_of(load_case(names[0])))
    for name in names:
        assert_parity(model, load_case(name))


def test_parity_notices_a_small_error() -> None:
    case = load_case("small_single_pass")
    case["quantiles"] = case["quantiles"] * np.float32(1.001)
    with pytest.raises(AssertionError):
        assert_parity(folded_model(config_of(case)), case)
