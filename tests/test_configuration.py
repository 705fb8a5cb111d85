"""What a config.json may hold, what follows from it, and what the published sizes are."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from toto2.configuration import PUBLISHED, Toto2ModelConfig, parameter_count, state_dict_shapes

SMALL = {"d_model": 64, "num_heads": 4, "num_layers": 4}


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("4m", 4_144_448),
        ("22m", 21_915_584),
        ("313m", 312_684_608),
        ("1B", 1_041_033_024),
        ("2.5B", 2_454_281_792),
    ],
)
def test_a_published_size_has_its_published_number_of_parameters(size: str, parameters: int) -> None:
    assert parameter_count(PUBLISHED[size]) == parameters


@pytest.mark.parametrize(
    ("size", "digest"),
    [
        ("4m", "7a926d130e401ab0c5fdb3564f46c8d917bd05c7b3ae26b9c22d2da2ef01d2d8"),
        ("22m", "abeaf0fcd54aaac66757fde69ec3ddb4d3bfdcf96e0c8f767aefd03ab4c9e8d9"),
    ],
)
def test_the_text_of_a_configuration_is_that_of_the_published_file(size: str, digest: str) -> None:
    assert hashlib.sha256(PUBLISHED[size].to_json().encode()).hexdigest() == digest


@pytest.mark.parametrize("size", PUBLISHED)
def test_a_configuration_survives_being_written_and_read(size: str) -> None:
    assert Toto2ModelConfig.from_dict(json.loads(PUBLISHED[size].to_json())) == PUBLISHED[size]


def test_widths_that_are_left_out_follow_from_the_others() -> None:
    config = Toto2ModelConfig.from_dict({**SMALL, "num_groups": 2, "d_ff": None, "qk_dim": None})

    derived = config.d_ff, config.heads_per_group, config.qk_dim, config.v_dim, config.layer_group_size
    assert derived == (176, 2, 16, 16, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_modle": 64}, "unknown keys d_modle"),
        ({"num_heads": None}, "missing keys num_heads"),
        ({"d_model": "64"}, "d_model must be of type int, found '64'"),
        ({"d_model": True}, "d_model must be of type int, found True"),
        ({"d_model": 64.0}, "d_model must be of type int, found 64.0"),
        ({"attn_bias": 1}, "attn_bias must be of type bool, found 1"),
        ({"d_model": 0}, "d_model and num_heads must be at least 1, found 0 and 4"),
        ({"d_model": 2**60}, "d_ff must be from 1 to 1048576|d_model must be from 1 to 1048576"),
        ({"num_layers": 10**6}, "num_layers must be from 1 to 4096, found 1000000"),
        ({"qk_dim": 0}, "qk_dim must be at least 1, found 0"),
        ({"qk_dim": 18}, "qk_dim must be a multiple of 4, found 18"),
        ({"num_groups": 3}, "num_groups x heads_per_group must be num_heads, found 3 x 1 and 4"),
        ({"layer_group_size": 3}, "num_layers must be a multiple of layer_group_size, found 4 and 3"),
        ({"pre_norm": False}, "pre_norm must be true, found false"),
        ({"num_output_patches": 2}, "num_output_patches must be from 1 to 1, found 2"),
        ({"num_variate_layers_per_group": 5}, "num_variate_layers_per_group must be from 0 to 4, found 5"),
        ({"norm_eps": float("nan")}, "norm_eps must be a positive number, found nan"),
        ({"residual_mult": -1.0}, "residual_mult must be a positive number, found -1.0"),
        ({"dropout_p": 1.0}, "dropout_p must be at least 0 and below 1, found 1.0"),
    ],
)
def test_a_value_that_cannot_be_meant_is_named_with_what_was_expected(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Toto2ModelConfig.from_dict(SMALL | change)


def test_an_empty_configuration_names_what_is_missing() -> None:
    with pytest.raises(ValueError, match="missing keys d_model, num_heads, num_layers, found none"):
        Toto2ModelConfig.from_dict({})


def test_many_unknown_keys_do_not_flood_the_message() -> None:
    with pytest.raises(ValueError, match="and 990 more") as error:
        Toto2ModelConfig.from_dict({f"key{n}" * 99: 1 for n in range(1000)})
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("switch", "names"),
    [
        ({"mlp_bias": True}, {"ffn.fc1.bias", "ffn.fc2.bias"}),
        ({"norm_include_weight": True}, {"norm1.weight", "norm2.weight"}),
        ({"qk_norm": True, "qk_norm_include_weight": True}, {"attn.q_norm.weight", "attn.k_norm.weight"}),
    ],
)
def test_a_switch_adds_the_tensors_it_stands_for(switch: dict[str, bool], names: set[str]) -> None:
    plain = Toto2ModelConfig.from_dict(SMALL)

    added = state_dict_shapes(dataclasses.replace(plain, **switch)).keys() - state_dict_shapes(plain).keys()
    assert {name.removeprefix("transformer.layers.0.") for name in added} >= names
