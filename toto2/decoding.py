"""Block decoding: from observed rows to quantiles, a pass over the network for each block of patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toto2.cache import KVCache
from toto2.forward_pass import ForwardPass
from toto2.network import MEDIAN, QUANTILE_LEVELS, Toto2Network
from toto2.passes import PassColumns, Placement
from toto2.propagation import Propagation
from toto2.rows import Integers, Rows
from toto2.scaler import Bools, CausalScaler, Floats, Statistics
from toto2.transformer import time_layers


@dataclass(frozen=True)
class DecodingOptions:
    """How values become patches and back.

    scaler_fallback_min_obs: patches that have seen fewer values take the statistics of the first so many; 0 is off.
    quantile_real_cap_k: clip to the context's observed range ± so many times its last scale; 0 is off.
    real_dtype: float32 rounds statistics and answers as the published package does; float64 rounds nothing.
    propagate: later blocks inherit the uncertainty of earlier ones (`toto2.propagation`); as published, they do not.
    """

    scaler_fallback_min_obs: int = 0
    quantile_real_cap_k: float = 0.0
    real_dtype: type[np.floating[Any]] = np.float64
    propagate: bool = False


def decode(model: Toto2Network, rows: Rows, options: DecodingOptions, placement: Placement) -> Floats:
    """Quantiles float64 (9, R, H·p) of every row, sorted along the first axis and finite.

    H is the longest horizon; what lies past a row's own horizon is unspecified. Rows that are not
    targets are carried along and get no forecast. Raises `FloatingPointError` where the network gives NaN.
    """
    order = np.argsort(-rows.passes, kind="stable")  # rows still decoding are always the first ones
    answer = _Decoder(model, rows.take(order), options, placement).run()
    quantiles = np.empty_like(answer)
    quantiles[order] = answer
    return np.moveaxis(quantiles, -1, 0).reshape(len(QUANTILE_LEVELS), len(quantiles), -1)


class _Decoder:
    """The tape of one call: scaled patches (R, P + H, p) that passes read, and decoded medians extend."""

    def __init__(self, model: Toto2Network, rows: Rows, options: DecodingOptions, placement: Placement) -> None:
        self.model, self.rows, self.placement = model, rows, placement
        count, self.context, patch = rows.values.shape
        self.dtype = options.real_dtype
        self.columns = PassColumns(rows, model.config, options.propagate)
        self.propagation = Propagation(rows.block) if options.propagate else None
        total = self.context + int(rows.horizon.max())
        self.scaled = np.zeros((count, total, patch), np.float32)
        self.missing = np.ones((count, total, patch), np.float32)
        self.member = np.ones((count, total), np.bool_)  # False: nothing observed, belongs to no series
        self.scaler = CausalScaler(count, options.scaler_fallback_min_obs)
        self.last = self._read_context(options)
        self.cap = _cap(rows, self.last, options.quantile_real_cap_k)
        self.real = np.zeros((count, total - self.context, patch, len(QUANTILE_LEVELS)))

    def run(self) -> Floats:
        """Quantiles (R, H, p, 9)."""
        passes = int(self.rows.passes.max())
        cache = self._cache(passes) if passes > 1 else None
        for index in range(passes):
            self._decode_block(index, cache)
        return self.real

    def _read_context(self, options: DecodingOptions) -> Statistics:
        """Scale the context, and the future where it is known; the statistics at the context's end, (R,)."""
        rows, context = self.rows, self.context
        statistics = self.scaler.read(rows.values, rows.observed).rounded(self.dtype)
        everyone = np.arange(len(rows.values))
        self._write(everyone, slice(0, context), rows.values, rows.observed, statistics)
        known = np.flatnonzero(~rows.target)
        if rows.future_values is not None and rows.future_observed is not None and known.size:
            values = np.concatenate((rows.values, rows.future_values), axis=1)[known]
            observed = np.concatenate((rows.observed, rows.future_observed), axis=1)[known]
            scaler = CausalScaler(len(known), options.scaler_fallback_min_obs)
            known_statistics = scaler.read(values, observed).rounded(self.dtype)
            self._write(known, slice(0, values.shape[1]), values, observed, known_statistics)
        return statistics.last()

    def _write(self, rows: Integers, columns: slice, values: Floats, observed: Bools, statistics: Statistics) -> None:
        scaled = np.arcsinh((values - statistics.loc[..., None]) / statistics.scale[..., None])
        self.scaled[rows, columns] = np.where(observed, scaled, 0.0)
        self.missing[rows, columns] = ~observed
        self.member[rows, columns] = observed.any(-1)

    def _cache(self, passes: int) -> KVCache:
        config = self.model.config
        layers = sum(place is not None for place in time_layers(config))
        like = torch.empty(0, dtype=self.placement.dtype, device=self.placement.device)
        slots = self.columns.slots(passes)
        rows = len(self.rows.values)  # the first pass runs over every row
        return KVCache(layers, rows, config.num_groups, slots, config.qk_dim, config.v_dim, like)

    def _decode_block(self, index: int, cache: KVCache | None) -> None:
        layout = self.columns.layout(index, self.member)
        tape = layout.tape_columns  # (n, S)
        row = np.arange(layout.rows)[:, None]
        values, missing = self.scaled[row, tape], self.missing[row, tape]
        values[layout.padding], missing[layout.padding] = 0.0, 1.0
        inputs = torch.from_numpy(np.concatenate((values, missing), axis=-1))
        forward_pass = layout.forward_pass(self.placement, cache)
        answer = self._forward(inputs, forward_pass)
        if cache is not None:
            cache.keep(layout.observed_columns)
        self._store(index, answer)
        self._feed_back(index)

    def _forward(self, inputs: Tensor, forward_pass: ForwardPass) -> Floats:
        """Scaled quantiles float64 (n, wanted, p, 9), back on the host."""
        inputs = inputs.to(self.placement.dtype).to(self.placement.device)
        answer: Tensor = self.model(inputs, forward_pass)
        scaled = answer.float().cpu().numpy().astype(np.float64)
        if np.isnan(scaled).any():  # clamping it, as infinities are, would pass off a fault as a forecast
            raise FloatingPointError(f"the network answered NaN in {self.placement.dtype}; expected numbers")
        return scaled

    def _store(self, index: int, answer: Floats) -> None:
        """Unscale the block's quantiles into `real`."""
        rows = len(answer)
        with np.errstate(over="ignore", invalid="ignore"):
            real = np.sinh(answer.astype(self.dtype)) * self.last.scale[:rows, None, None, None]
            real = _finite((real + self.last.loc[:rows, None, None, None]).astype(np.float64))
        real = self._capped(real)
        real.sort(axis=-1)
        if self.propagation is not None:
            real = self._capped(self.propagation.widen(real, self.columns.active(index + 1), first=index == 0))
        start, decoded = index * self.rows.block[:rows], self.columns.decoded(index)
        for width in np.unique(decoded):
            who = np.flatnonzero(decoded == width)
            self.real[who[:, None], start[who][:, None] + np.arange(width)] = real[who, :width]

    def _capped(self, real: Floats) -> Floats:
        if self.cap is None:
            return real
        low, high = (bound[: len(real), None, None, None] for bound in self.cap)
        return np.clip(real, low, high)

    def _feed_back(self, index: int) -> None:
        """Append the block's medians to the tape as observed patches, for the rows that go on."""
        rows = self.columns.active(index + 1)
        if not rows:
            return
        block = self.rows.block[:rows]
        width = int(block.max())
        offset = np.arange(width) - (width - block[:, None])  # right-aligned; negative is padding
        own = offset >= 0
        column = index * block[:, None] + np.maximum(offset, 0)
        row = np.arange(rows)[:, None]
        medians = self.real[row, column, :, MEDIAN]
        target = self.rows.target[:rows, None] & own
        observed = np.broadcast_to(target[..., None], medians.shape)
        statistics = self.scaler.read(medians, observed).rounded(self.dtype)
        self.last = Statistics(
            np.concatenate((statistics.loc[:, -1], self.last.loc[rows:])),
            np.concatenate((statistics.scale[:, -1], self.last.scale[rows:])),
        )
        scaled = np.arcsinh((medians - statistics.loc[..., None]) / statistics.scale[..., None])
        who, where = np.nonzero(target)
        self.scaled[who, self.context + column[who, where]] = scaled[who, where]
        self.missing[who, self.context + column[who, where]] = 0.0


def _finite(real: Floats) -> Floats:
    """Non-finite values replaced by the largest finite one of their patch (zero where there is none)."""
    finite = np.isfinite(real)
    if finite.all():
        return real
    largest = np.where(finite, real, -np.inf).max(axis=(-2, -1), keepdims=True)
    return np.where(finite, real, np.where(np.isfinite(largest), largest, 0.0))


def _cap(rows: Rows, last: Statistics, k: float) -> tuple[Floats, Floats] | None:
    """(low, high), each (R,): the context's observed range ± k times the scale at its end."""
    if not k:
        return None
    flat_observed = rows.observed.reshape(len(rows.values), -1)
    flat = rows.values.reshape(len(rows.values), -1)
    nothing = ~flat_observed.any(-1)
    low = np.where(flat_observed, flat, np.inf).min(-1)
    high = np.where(flat_observed, flat, -np.inf).max(-1)
    low, high = np.where(nothing, 0.0, low), np.where(nothing, 0.0, high)
    return low - k * last.scale, high + k * last.scale
