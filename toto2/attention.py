"""Attention over time and over variates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dd_unit_scaling import Linear, PerDimScale, RMSNorm
from toto2.configuration import Toto2ModelConfig
from toto2.forward_pass import ForwardPass, VariateGroups
from toto2.rotary import rotate


class Attention(nn.Module):
    """Grouped-query attention whose scores are scaled by 1 / qk_dim (u-μP), not by its root."""

    def __init__(self, config: Toto2ModelConfig, time_layer: int | None) -> None:
        """`time_layer`: this layer's place in the cache; None for a layer over variates."""
        super().__init__()
        self.heads, self.groups = config.num_heads, config.num_groups
        self.qk_dim, self.v_dim = config.qk_dim, config.v_dim
        self.time_layer = time_layer
        self.query_width = self.heads * self.qk_dim
        self.key_width = self.groups * self.qk_dim
        width = self.query_width + self.key_width + self.groups * self.v_dim
        self.in_proj = Linear(config.d_model, width, bias=config.attn_bias)
        self.out_proj = Linear(self.heads * self.v_dim, config.d_model, bias=config.attn_bias)
        self._pds = PerDimScale(self.qk_dim) if config.per_dim_scale else None
        norm = (config.norm_eps, bool(config.qk_norm_include_weight))
        self.q_norm = RMSNorm(self.qk_dim, *norm) if config.qk_norm else None
        self.k_norm = RMSNorm(self.qk_dim, *norm) if config.qk_norm else None
        self.score_scale = 1 / self.qk_dim

    def forward(self, x: Tensor, forward_pass: ForwardPass, queries: int) -> Tensor:
        """Normed x (R, S, d_model) → (R, queries, heads · v_dim) of the last `queries` columns."""
        q, k, v = self._project(x, queries)
        if self.time_layer is not None:
            return self._over_time(q, k, v, forward_pass)
        k, v = k[:, -queries:], v[:, -queries:]
        return self._over_variates(q, k, v, forward_pass)

    def _project(self, x: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (R, queries, heads, qk_dim), keys and values (R, S, groups, …)."""
        width = self.query_width
        q = self.in_proj.rows(x[:, -queries:], 0, width).unflatten(-1, (self.heads, self.qk_dim))
        kv = self.in_proj.rows(x, width, self.in_proj.out_features)
        k = kv[..., : self.key_width].unflatten(-1, (self.groups, self.qk_dim))
        v = kv[..., self.key_width :].unflatten(-1, (self.groups, self.v_dim))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self._pds is not None:
            q = self._pds(q)
        return q, k, v

    def _over_time(self, q: Tensor, k: Tensor, v: Tensor, forward_pass: ForwardPass) -> Tensor:
        columns, queries = k.shape[1], q.shape[1]
        rotation = forward_pass.rotation
        q = rotate(q, rotation.query[:, -queries:]).transpose(1, 2)  # (R, heads, queries, qk_dim)
        k = rotate(k, rotation.key).transpose(1, 2)
        v = v.transpose(1, 2)
        if forward_pass.cache is not None and self.time_layer is not None:
            k, v = forward_pass.cache.append(self.time_layer, k, v)
        mask = forward_pass.time_mask if queries == columns else forward_pass.wanted_mask
        return self._attend(q, k, v, mask, causal=mask is None, forward_pass=forward_pass).transpose(1, 2).flatten(2)

    def _over_variates(self, q: Tensor, k: Tensor, v: Tensor, forward_pass: ForwardPass) -> Tensor:
        if len(forward_pass.variates) == 1 and forward_pass.variates[0].rows is None:
            return self._within_groups(q, k, v, forward_pass.variates[0], forward_pass).flatten(2)
        out = q.new_empty(*q.shape[:3], self.v_dim)
        for group in forward_pass.variates:
            assert group.rows is not None, "variate groups out of order name their rows"
            out.index_copy_(0, group.rows, self._within_groups(q, k, v, group, forward_pass))
        return out.flatten(2)

    def _within_groups(
        self, q: Tensor, k: Tensor, v: Tensor, group: VariateGroups, forward_pass: ForwardPass
    ) -> Tensor:
        columns = q.shape[1]
        if group.rows is not None:
            q, k, v = (t.index_select(0, group.rows) for t in (q, k, v))
        # A patch of a group is one sequence of variates: (G·columns, heads, V, dim).
        q, k, v = (
            t.unflatten(0, (group.groups, group.variates)).permute(0, 2, 3, 1, 4).flatten(0, 1) for t in (q, k, v)
        )
        mask = None if group.mask is None else group.mask[:, -columns:].flatten(0, 1)[:, None]
        out = self._attend(q, k, v, mask, causal=False, forward_pass=forward_pass)
        out = out.unflatten(0, (group.groups, columns)).permute(0, 3, 1, 2, 4)  # (G, V, columns, heads, v_dim)
        return out.flatten(0, 1)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, forward_pass: ForwardPass
    ) -> Tensor:
        """Attention of q (B, heads, Q, dim) over k, v (B, groups, K, dim) → (B, heads, Q, v_dim)."""
        grouped = self.groups != self.heads
        if not forward_pass.composite_attention:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=self.score_scale, enable_gqa=grouped
            )
        if grouped:
            k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        if self.score_scale != 1:
            q = q * self.score_scale
        scores = q @ k.transpose(-1, -2)
        if mask is not None:  # one to add; a causal pass has one too
            if mask.dtype == torch.bool:  # adding it would mask nothing, without a word
                raise TypeError("composite attention adds its mask: expected 0 and -inf, found bool")
            scores = scores + mask
        return scores.softmax(dim=-1) @ v
