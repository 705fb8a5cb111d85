"""Requests as one batch of rows, and the batch's quantiles as their forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toto2.request import PATCH, Forecast, ForecastRequest, UnusableRequest
from toto2.rows import Rows
from toto2.scaler import Bools, Floats
from toto2.series import Normalisation, fill_last_patch, in_patches, normalise


@dataclass(frozen=True)
class PreparedRequest:
    """One request in patches: values, observed (rows, context patches, 32), targets and past covariates first.

    future_values, future_observed (known, horizon patches, 32): those of the known covariates, the last rows.
    normalisation: that of the targets alone. context: steps used.
    """

    request: ForecastRequest
    values: Floats
    observed: Bools
    future_values: Floats
    future_observed: Bools
    normalisation: Normalisation
    context: int

    @property
    def known(self) -> int:
        """Rows with a known future."""
        return len(self.future_values)


def prepare(request: ForecastRequest, max_context: int) -> PreparedRequest:
    """Cut, normalise and fill a request. Raises `UnusableRequest`."""
    context = request.used_context(max_context)
    patches, horizon = request.patches(max_context)
    past = [part[:, -context:] for part in (request.target, request.past_covariates) if part is not None]
    target_z, normalisation = normalise(_seen(past[0], context))
    rows = [target_z, *(normalise(_seen(part, context, "past covariate"))[0] for part in past[1:])]
    values, observed = in_patches(np.concatenate(rows), PATCH, patches)
    fill_last_patch(values, observed)
    future = np.zeros((0, horizon, PATCH)), np.zeros((0, horizon, PATCH), np.bool_)
    if request.known_covariates is not None:
        steps = context + request.prediction_length
        known, _ = normalise(_seen(request.known_covariates[:, -steps:], steps, "known covariate"))
        known_values, known_observed = in_patches(known[:, :context], PATCH, patches)
        values, observed = np.concatenate((values, known_values)), np.concatenate((observed, known_observed))
        pad = horizon * PATCH - request.prediction_length
        later = np.pad(known[:, context:], ((0, 0), (0, pad)), constant_values=np.nan)
        future = in_patches(later, PATCH, horizon)
    return PreparedRequest(request, values, observed, *future, normalisation, context)


def _seen(values: Floats, steps: int, what: str = "variate") -> Floats:
    """The values themselves, where every row has an observed one."""
    nothing = np.flatnonzero(~np.isfinite(values).any(axis=1))
    if nothing.size:
        index = int(nothing[0])
        raise UnusableRequest(
            f"{what} {index} has no observed value in the {steps} steps that are used; expected at least one",
            index if what == "variate" else None,
        )
    return values


@dataclass(frozen=True)
class Batch:
    """Prepared requests and their rows, request after request."""

    requests: tuple[PreparedRequest, ...]
    rows: Rows

    @classmethod
    def of(cls, requests: Sequence[ForecastRequest], max_context: int) -> Batch:
        """Rows are left-padded by whole patches to the longest context. Raises `UnusableRequest`."""
        prepared = tuple(prepare(request, max_context) for request in requests)
        longest = max(item.values.shape[1] for item in prepared)
        counts = np.array([len(item.values) for item in prepared])
        horizons = np.array([-(-item.request.prediction_length // PATCH) for item in prepared])
        blocks = np.array([_block(item.request) for item in prepared])
        leading = np.array([longest - item.values.shape[1] for item in prepared])
        target = [np.arange(len(item.values)) < len(item.values) - item.known for item in prepared]
        values, observed = _stacked([(item.values, item.observed) for item in prepared], longest)
        rows = Rows(
            values,
            observed,
            np.concatenate(target),
            np.repeat(np.arange(len(prepared)), counts),
            np.repeat(leading, counts),
            np.repeat(horizons, counts),
            np.repeat(blocks, counts),
            *_future(prepared, int(horizons.max())),
        )
        return cls(prepared, rows)

    def forecasts(self, quantiles: Floats) -> list[Forecast]:
        """Answers from quantiles (9, rows, steps) of the normalised rows."""
        answers, row = [], 0
        for item in self.requests:
            variates, steps = item.request.target.shape[0], item.request.prediction_length
            z = quantiles[:, row : row + variates, :steps]
            truncated = item.context < item.request.used_context(item.request.target.shape[1])
            answers.append(Forecast(item.normalisation.undo(z), item.context, truncated))
            row += len(item.values)
        return answers


def _block(request: ForecastRequest) -> int:
    """Patches decoded in one pass."""
    horizon = -(-request.prediction_length // PATCH)
    return horizon if request.decode_block_size is None else min(horizon, request.decode_block_size // PATCH)


def _stacked(parts: list[tuple[Floats, Bools]], patches: int) -> tuple[Floats, Bools]:
    """Parts (rows, p, 32) one under another, right-aligned in `patches`."""
    count = sum(len(values) for values, _ in parts)
    values, observed = np.zeros((count, patches, PATCH)), np.zeros((count, patches, PATCH), np.bool_)
    row = 0
    for part, seen in parts:
        where = slice(row, row + len(part)), slice(patches - part.shape[1], None)
        values[where], observed[where] = part, seen
        row += len(part)
    return values, observed


def _future(prepared: Sequence[PreparedRequest], patches: int) -> tuple[Floats, Bools] | tuple[None, None]:
    """The known futures (rows, patches, 32) beside every row, left-aligned; None where no request has one."""
    if not any(item.known for item in prepared):
        return None, None
    count = sum(len(item.values) for item in prepared)
    values, observed = np.zeros((count, patches, PATCH)), np.zeros((count, patches, PATCH), np.bool_)
    row = 0
    for item in prepared:
        row += len(item.values)
        where = slice(row - item.known, row), slice(0, item.future_values.shape[1])
        values[where], observed[where] = item.future_values, item.future_observed
    return values, observed
