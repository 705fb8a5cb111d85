"""The model as a user of the published package knows it: load a directory, forecast tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toto2.checkpoint import CheckpointError, read_config, read_state_dict
from toto2.configuration import state_dict_shapes
from toto2.decoding import DecodingOptions, decode
from toto2.network import QUANTILE_LEVELS, Toto2Network
from toto2.passes import Placement
from toto2.rows import Rows
from toto2.transformer import Layer

__all__ = ["QUANTILE_LEVELS", "Toto2Model"]

DEFAULT_PLACEMENT = Placement()


class Toto2Model(Toto2Network):
    """Toto 2.0 with its weights."""

    placement = DEFAULT_PLACEMENT  # where `forecast` runs; `toto2.folding.fold` sets it

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Toto2Model:
        """The model in `directory` (`config.json` and `model.safetensors`, or a sharded index), float32.

        Loads strictly, and makes no weight that the file overwrites. Raises `CheckpointError`, in one line.
        """
        config = read_config(directory)
        state = read_state_dict(directory, state_dict_shapes(config))
        with torch.device("meta"):
            model = cls(config)
        model.load_state_dict(state, strict=True, assign=True)
        model._check_taus(directory)
        return model.eval()

    def _check_taus(self, directory: str | Path) -> None:
        """The residual weights in the file are those of its configuration: the layers use the latter."""
        for index, layer in enumerate(self.transformer.layers):
            assert isinstance(layer, Layer)
            found = (float(layer.attn_tau), float(layer.mlp_tau))  # type: ignore[arg-type]
            if not np.allclose(found, layer.taus, rtol=1e-4):
                wrong = f"layer {index} has residual weights {found}, expected {layer.taus} from config.json"
                raise CheckpointError(Path(directory), wrong, "put both files of the same checkpoint there")

    @torch.inference_mode()
    def forecast(
        self,
        inputs: Mapping[str, Tensor],
        horizon: int,
        decode_block_size: int | None = None,
        has_missing_values: bool = True,
        scaler_fallback_min_obs: int = 0,
        quantile_real_cap_k: float = 0.0,
    ) -> Tensor:
        """Quantiles 0.1 … 0.9 of the next `horizon` steps, [9, batch, n_variate, horizon], of the target's dtype.

        inputs: `target` [batch, n_variate, time] with time a multiple of the patch size, `target_mask`
        (True where observed) and `series_ids` [batch, n_variate]; variates with the same id in a batch
        element attend to each other. Optionally `known_dynamic` and `known_dynamic_mask`
        [batch, n_known, time + horizon] with `known_dynamic_series_ids` [batch, n_known].
        decode_block_size: steps decoded in one pass, a multiple of the patch size; None is one pass.
        has_missing_values: False takes every value of the target as observed.
        The last context patch is read as observed whatever the mask says. Raises `ValueError` on shapes
        that do not fit.
        """
        target = inputs["target"]
        rows = _Rows(self.config.patch_size, horizon).build(inputs, decode_block_size, has_missing_values)
        real_dtype = np.float64 if target.dtype == torch.float64 else np.float32
        options = DecodingOptions(scaler_fallback_min_obs, quantile_real_cap_k, real_dtype)
        quantiles = decode(self, rows, options, self.placement)
        batch, variates = target.shape[:2]
        quantiles = quantiles[:, : batch * variates, :horizon]
        return torch.from_numpy(quantiles).unflatten(1, (batch, variates)).to(target.dtype).to(target.device)


class _Rows:
    """Tensors of a forecast call as rows of patches."""

    def __init__(self, patch: int, horizon: int) -> None:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1, found {horizon}")
        self.patch, self.steps = patch, horizon
        self.horizon = -(-horizon // patch)

    def build(self, inputs: Mapping[str, Tensor], block_size: int | None, has_missing: bool) -> Rows:
        values, observed = self._patches(inputs, "target")
        if not has_missing:
            observed = np.ones_like(observed)
        batch, variates, context = observed.shape[:3]
        observed[:, :, -1] = True  # as published: the last patch counts as observed, values as given
        series = _series(inputs, "series_ids", (batch, variates))
        rows = values.reshape(-1, context, self.patch), observed.reshape(-1, context, self.patch)
        target = np.ones(batch * variates, np.bool_)
        future: tuple[Any, Any] = (None, None)
        if "known_dynamic" in inputs:
            known_values, known_observed = self._patches(inputs, "known_dynamic", context + self.horizon)
            known = known_values.shape[1]
            known_series = _series(inputs, "known_dynamic_series_ids", (batch, known))
            known_rows = known_values.reshape(-1, *known_values.shape[2:])
            known_seen = known_observed.reshape(known_rows.shape)
            blank = np.zeros((len(target), self.horizon, self.patch))
            future = (
                np.concatenate((blank, known_rows[:, context:])),
                np.concatenate((blank.astype(np.bool_), known_seen[:, context:])),
            )
            rows = (
                np.concatenate((rows[0], known_rows[:, :context])),
                np.concatenate((rows[1], known_seen[:, :context])),
            )
            target = np.concatenate((target, np.zeros(len(known_rows), np.bool_)))
            series = np.concatenate((series, known_series))
        count = len(series)
        return Rows(
            rows[0], rows[1], target, series, _leading(rows[1], series),
            np.full(count, self.horizon), np.full(count, self._block(block_size)), *future,
        )  # fmt: skip

    def _block(self, block_size: int | None) -> int:
        if block_size is None:
            return self.horizon
        if block_size < self.patch or block_size % self.patch:
            raise ValueError(f"decode_block_size must be a multiple of {self.patch}, found {block_size}")
        return min(self.horizon, block_size // self.patch)

    def _patches(
        self, inputs: Mapping[str, Tensor], name: str, patches: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Values and mask [batch, n, patches, patch_size]; a known future is padded to whole patches."""
        values, mask = inputs[name], inputs[f"{name}_mask"]
        if values.ndim != 3 or mask.shape != values.shape:
            raise ValueError(
                f"{name} and its mask must have shape [batch, n, time], found {list(values.shape)} and "
                f"{list(mask.shape)}"
            )
        steps = values.shape[2]
        expected = steps if patches is None else (patches - self.horizon) * self.patch + self.steps
        if steps != expected or not steps or (patches is None and steps % self.patch):
            whole = f"a multiple of {self.patch}" if patches is None else f"{expected} (time + horizon)"
            raise ValueError(f"{name} must have {whole} steps, found {steps}")
        padding = (0, -steps % self.patch)
        seen = torch.nn.functional.pad(mask.bool(), padding).cpu().numpy()
        padded = torch.nn.functional.pad(values.detach().cpu().double(), padding).numpy()
        shape = (*values.shape[:2], -1, self.patch)
        return np.where(seen | (patches is None), padded, 0.0).reshape(shape), seen.reshape(shape).copy()


def _series(inputs: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Row ids (batch · n,), distinct between batch elements."""
    ids = inputs[name].cpu().numpy()
    if ids.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, found {list(ids.shape)}")
    _, dense = np.unique(ids, return_inverse=True)
    stride = int(dense.max()) + 1
    return (dense.reshape(shape) + stride * np.arange(shape[0])[:, None]).ravel().astype(np.int64)


def _leading(observed: NDArray[np.bool_], series: NDArray[np.int64]) -> NDArray[np.int64]:
    """Patches (R,) in front of the first one in which any row of the same series has a value."""
    first = observed.any(-1).argmax(-1)
    least = np.full(int(series.max()) + 1, observed.shape[1])
    np.minimum.at(least, series, first)
    return least[series].astype(np.int64)
