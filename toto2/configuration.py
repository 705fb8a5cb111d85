"""The model's configuration: the fields of a published ``config.json``, and what follows from them."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType

DERIVED = 0  # a width that is not given follows from the others

_LIMIT = 1 << 20  # far above any published width: a larger one is a damaged file, not a model


@dataclass(frozen=True)
class Toto2ModelConfig:
    """A Toto 2.0 model in numbers. Widths are in elements, ``patch_size`` in time steps.

    ``d_ff``, ``num_groups``, ``heads_per_group``, ``qk_dim``, ``v_dim`` and ``layer_group_size`` may be left
    out and are resolved on construction: 8/3 of ``d_model`` up to a multiple of 8, ``num_heads``,
    ``num_heads // num_groups``, ``d_model // num_heads`` (both) and ``num_layers``. Raises ``ValueError``
    where a value cannot be meant.
    """

    d_model: int
    num_heads: int
    num_layers: int
    d_ff: int = DERIVED
    num_groups: int = DERIVED  # key/value heads, each shared by heads_per_group query heads
    heads_per_group: int = DERIVED
    qk_dim: int = DERIVED
    v_dim: int = DERIVED
    layer_group_size: int = DERIVED
    num_variate_layers_per_group: int = 1
    variate_layer_first: bool = False
    patch_size: int = 32
    num_output_patches: int = 1
    pre_norm: bool = True
    attn_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_include_weight: bool = False
    qk_norm_include_weight: bool | None = None  # as norm_include_weight, where it is not given
    per_dim_scale: bool = True
    use_xpos: bool = True
    residual_mult: float = 0.75
    residual_attn_ratio: float = 5.136215466577748
    norm_eps: float = 5e-5
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        if self.qk_norm_include_weight is None:
            object.__setattr__(self, "qk_norm_include_weight", self.norm_include_weight)
        self._check_types()
        if self.d_model < 1 or self.num_heads < 1:
            raise ValueError(f"d_model and num_heads must be at least 1, found {self.d_model} and {self.num_heads}")
        derived = {
            "d_ff": 8 * math.ceil(self.d_model / 3),
            "num_groups": self.num_heads,
            "heads_per_group": self.num_heads // max(self.num_groups or self.num_heads, 1),
            "qk_dim": self.d_model // self.num_heads,
            "v_dim": self.d_model // self.num_heads,
            "layer_group_size": self.num_layers,
        }
        for name, value in derived.items():
            if getattr(self, name) == DERIVED:
                object.__setattr__(self, name, value)
        self._check_values()

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Toto2ModelConfig:
        """Configuration from the object in a ``config.json``; ``None`` stands for a derived width."""
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"unknown keys {_listed(unknown)}, expected only those of Toto2ModelConfig")
        missing = [name for name in _REQUIRED if values.get(name) is None]
        if missing:
            raise ValueError(f"missing keys {_listed(missing)}, found {_listed(values) or 'none'}")
        for name in _DERIVABLE:
            if values.get(name) == DERIVED and values[name] is not None:
                raise ValueError(f"{name} must be at least 1, found {reprlib.repr(values[name])}")
        given = {name: value for name, value in values.items() if value is not None or name not in _DERIVABLE}
        return cls(**given)  # type: ignore[arg-type]  # types are checked on construction

    def to_dict(self) -> dict[str, int | float | bool]:
        """Every field, resolved."""
        return asdict(self)

    def to_json(self) -> str:
        """The text of ``config.json``, byte for byte as the published checkpoints have it."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True)

    def _check_types(self) -> None:
        expected: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "bool": bool}
        for field in fields(self):
            value = getattr(self, field.name)
            kind = str(field.type).removesuffix(" | None")
            wrong_bool = isinstance(value, bool) and kind != "bool"
            if wrong_bool or not isinstance(value, expected[kind]):
                raise ValueError(f"{field.name} must be of type {kind}, found {reprlib.repr(value)}")

    def _check_values(self) -> None:
        for name in ("d_model", "num_heads", *_DERIVABLE, "patch_size"):
            _check_range(name, getattr(self, name), 1, _LIMIT)
        _check_range("num_layers", self.num_layers, 1, 4096)
        _check_range("num_output_patches", self.num_output_patches, 1, 1)  # what the output head here is made for
        _check_range("num_variate_layers_per_group", self.num_variate_layers_per_group, 0, self.layer_group_size)
        if not self.pre_norm:  # no published size has it, and nothing says how such a stack would end
            raise ValueError("pre_norm must be true, found false")
        if self.num_groups * self.heads_per_group != self.num_heads:
            raise ValueError(
                f"num_groups x heads_per_group must be num_heads, found {self.num_groups} x "
                f"{self.heads_per_group} and {self.num_heads}"
            )
        if self.num_layers % self.layer_group_size:
            raise ValueError(
                f"num_layers must be a multiple of layer_group_size, found {self.num_layers} and "
                f"{self.layer_group_size}"
            )
        if self.qk_dim % 4:  # rotary turns pairs within the first half of a head
            raise ValueError(f"qk_dim must be a multiple of 4, found {self.qk_dim}")
        for name in ("residual_mult", "residual_attn_ratio", "norm_eps"):
            value = getattr(self, name)
            if not (0 < value < math.inf):
                raise ValueError(f"{name} must be a positive number, found {reprlib.repr(value)}")
        if not 0 <= self.dropout_p < 1:
            raise ValueError(f"dropout_p must be at least 0 and below 1, found {self.dropout_p!r}")


_REQUIRED = ("d_model", "num_heads", "num_layers")
_DERIVABLE = ("d_ff", "num_groups", "heads_per_group", "qk_dim", "v_dim", "layer_group_size")


def state_dict_shapes(config: Toto2ModelConfig, num_quantiles: int = 9) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a checkpoint of this configuration; nothing is allocated."""
    d, patch = config.d_model, config.patch_size
    shapes = _residual_mlp("patch_proj", 2 * patch, 4 * d, d)
    for index in range(config.num_layers):
        shapes |= {f"transformer.layers.{index}.{name}": shape for name, shape in _layer(config).items()}
    if config.norm_include_weight:
        shapes["transformer.out_norm.weight"] = (d,)
    return shapes | _residual_mlp("output_head.param_projection.proj", d, 4 * d, patch * num_quantiles)


def parameter_count(config: Toto2ModelConfig) -> int:
    """Number of trained values: the state dict without the residual ratios, which are computed."""
    shapes = state_dict_shapes(config)
    return sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith("_tau"))


def _layer(config: Toto2ModelConfig) -> dict[str, tuple[int, ...]]:
    d, heads, groups = config.d_model, config.num_heads, config.num_groups
    projected = heads * config.qk_dim + groups * (config.qk_dim + config.v_dim)
    shapes: dict[str, tuple[int, ...]] = {"attn_tau": (), "mlp_tau": ()}
    shapes |= _linear("attn.in_proj", d, projected, config.attn_bias)
    shapes |= _linear("attn.out_proj", heads * config.v_dim, d, config.attn_bias)
    if config.per_dim_scale:
        shapes["attn._pds.per_dim_scale"] = (config.qk_dim,)
    if config.qk_norm and config.qk_norm_include_weight:
        shapes |= {"attn.q_norm.weight": (config.qk_dim,), "attn.k_norm.weight": (config.qk_dim,)}
    if config.norm_include_weight:
        shapes |= {"norm1.weight": (d,), "norm2.weight": (d,)}
    shapes |= _linear("ffn.fc1", d, 2 * config.d_ff, config.mlp_bias)
    return shapes | _linear("ffn.fc2", config.d_ff, d, config.mlp_bias)


def _residual_mlp(name: str, fan_in: int, hidden: int, fan_out: int) -> dict[str, tuple[int, ...]]:
    shapes = _linear(f"{name}.linear1", fan_in, hidden, bias=True)
    shapes |= _linear(f"{name}.linear2", hidden, fan_out, bias=True)
    return shapes | _linear(f"{name}.skip_proj", fan_in, fan_out, bias=True)


def _linear(name: str, fan_in: int, fan_out: int, bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (fan_out, fan_in)}
    return {**shapes, f"{name}.bias": (fan_out,)} if bias else shapes


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, found {value}")


def _listed(names: Iterable[object]) -> str:
    names = sorted(map(str, names))
    listed = ", ".join(name[:40] for name in names[:10])
    return listed if len(names) <= 10 else f"{listed} and {len(names) - 10} more"


def _published(d_model: int, d_ff: int, num_heads: int, num_layers: int, norm_eps: float) -> Toto2ModelConfig:
    return Toto2ModelConfig(
        d_model=d_model,
        d_ff=d_ff,
        num_heads=num_heads,
        num_layers=num_layers,
        norm_eps=norm_eps,
        attn_bias=True,
    )


PUBLISHED: Mapping[str, Toto2ModelConfig] = MappingProxyType(
    {
        "4m": _published(256, 688, 4, 4, 1e-4),
        "22m": _published(512, 1368, 8, 6, 1e-4),
        "313m": _published(1024, 2736, 16, 24, 1e-4),
        "1B": _published(1536, 4096, 24, 36, 5e-4),
        "2.5B": _published(2048, 5464, 32, 48, 5e-4),
    }
)
