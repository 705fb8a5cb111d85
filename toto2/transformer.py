"""The layer stack: pre-norm attention and gated feed-forward, with unit-scaled residuals."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dd_unit_scaling import Linear, RMSNorm
from dd_unit_scaling.functional import residual_taus
from toto2.attention import Attention
from toto2.configuration import Toto2ModelConfig
from toto2.forward_pass import ForwardPass


class FeedForward(nn.Module):
    """fc2(gate · silu(value)), where fc1 gives gate and value (Shazeer, 2020)."""

    def __init__(self, config: Toto2ModelConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.d_model, 2 * config.d_ff, bias=config.mlp_bias)
        self.fc2 = Linear(config.d_ff, config.d_model, bias=config.mlp_bias)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)), each residual weighted by its τ."""

    def __init__(self, config: Toto2ModelConfig, taus: tuple[float, float], time_layer: int | None) -> None:
        super().__init__()
        self.attn = Attention(config, time_layer)
        self.ffn = FeedForward(config)
        self.norm1 = RMSNorm(config.d_model, config.norm_eps, config.norm_include_weight)
        self.norm2 = RMSNorm(config.d_model, config.norm_eps, config.norm_include_weight)
        self.taus = taus  # what `attn_tau` and `mlp_tau` hold, as numbers of the host
        self.register_buffer("attn_tau", torch.tensor(taus[0]))
        self.register_buffer("mlp_tau", torch.tensor(taus[1]))

    def forward(self, x: Tensor, forward_pass: ForwardPass, queries: int) -> Tensor:
        """x (R, S, d_model) → (R, queries, d_model): the last `queries` columns."""
        attention_tau, mlp_tau = self.taus
        branch, skip = self.attn.out_proj.residual_split(x, attention_tau)
        heads = self.attn(self.norm1(branch), forward_pass, queries)
        x = self.attn.out_proj.residual_add(heads, skip[:, -queries:], attention_tau)
        branch, skip = self.ffn.fc2.residual_split(x, mlp_tau)
        hidden = self.ffn.fc1.gated_silu(self.norm2(branch))
        return self.ffn.fc2.residual_add(hidden, skip, mlp_tau)


class Transformer(nn.Module):
    """The layers in order, each over time or over variates, and the closing norm."""

    def __init__(self, config: Toto2ModelConfig) -> None:
        super().__init__()
        taus = residual_taus(config.num_layers, config.residual_mult, config.residual_attn_ratio)
        places = time_layers(config)
        self.layers = nn.ModuleList(Layer(config, tau, place) for tau, place in zip(taus, places, strict=True))
        self.out_norm = RMSNorm(config.d_model, config.norm_eps, config.norm_include_weight)
        self.last_time_layer = max((i for i, place in enumerate(places) if place is not None), default=-1)

    def forward(self, x: Tensor, forward_pass: ForwardPass) -> Tensor:
        """x (R, S, d_model) → (R, wanted, d_model).

        From the last time layer on, a column's output depends on no other column's: only wanted ones are made.
        """
        for index, layer in enumerate(self.layers):
            cut = index >= self.last_time_layer
            x = layer(x, forward_pass, queries=forward_pass.wanted if cut else x.shape[1])
        return self.out_norm(x)


def time_layers(config: Toto2ModelConfig) -> list[int | None]:
    """For each layer its index among the time layers, or None where it runs over variates."""
    places: list[int | None] = []
    size, variate_layers = config.layer_group_size, config.num_variate_layers_per_group
    for index in range(config.num_layers):
        within = index % size
        over_variates = within < variate_layers if config.variate_layer_first else within >= size - variate_layers
        places.append(None if over_variates else sum(place is not None for place in places))
    return places
