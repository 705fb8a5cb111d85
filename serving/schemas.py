"""The shapes of requests and answers as OpenAPI shows them. `parsing.py` checks the same rules faster."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from inference import QUANTILE_LEVELS

LONGEST_HORIZON = 4096
DEFAULT_HORIZON = 96
DEFAULT_BLOCK = 768
BLOCK_STEP = 32
LEVELS = tuple(f"{level:.1f}" for level in QUANTILE_LEVELS)

Row = Annotated[list[float | None], Field(min_length=1)]
Rows = Annotated[list[Row], Field(min_length=1)]


class ForecastBody(BaseModel):
    """A series of one or more variates, and how far to forecast it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"series": [[12.0, 15.5, None, 14.1, 18.3, 21.0]], "prediction_length": 4},
                {"series": [3, 5, 4, 6, 5, 7], "prediction_length": 3, "decode_block_size": None},
            ]
        },
    )

    series: Rows | Row = Field(
        description="[variate][time] numbers, or [time] for one variate, oldest first; null (or the token "
        "NaN) is missing. Rows have the same length, and at least one value each."
    )
    prediction_length: int = Field(DEFAULT_HORIZON, ge=1, le=LONGEST_HORIZON, description="steps to forecast")
    decode_block_size: Annotated[int, Field(ge=BLOCK_STEP, le=LONGEST_HORIZON, multiple_of=BLOCK_STEP)] | None = Field(
        DEFAULT_BLOCK,
        description="steps decoded in one pass; null, or a block as long as the horizon, is one pass. A block follows "
        "the medians before it, and inherits their uncertainty.",
    )
    has_missing_values: bool = Field(
        True, description="a hint; false with a missing value in the data is refused, naming the first one"
    )


class ForecastAnswer(BaseModel):
    """Nine quantiles of every variate and step, in rising order; then how they were made."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "quantiles": {level: [[20.0 + i, 21.5 + i]] for i, level in enumerate(LEVELS)},
                    "median": [[24.0, 25.5]],
                    "prediction_length": 2,
                    "n_variates": 1,
                    "latency_ms": 12.7,
                    "model": "toto2-nano",
                    "context_length": 6,
                    "truncated": False,
                    "device": "cpu",
                    "dtype": "float32",
                }
            ]
        }
    )

    quantiles: dict[str, list[list[float]]] = Field(description='"0.1" ... "0.9", each [variate][step]')
    median: list[list[float]] = Field(description='quantiles["0.5"], [variate][step]')
    prediction_length: int
    n_variates: int
    latency_ms: float = Field(description="milliseconds in the service, waiting included")
    model: str = Field(description="the checkpoint that forecast")
    context_length: int = Field(description="steps of context used, leading missing ones not counted")
    truncated: bool = Field(description="whether the front of the context was cut at MAX_SEQ_LENGTH")
    device: str
    dtype: str


class ProblemAnswer(BaseModel):
    """One thing that is wrong."""

    loc: list[str | int] = Field(description="where: the part of the request, the field, the variate, the position")
    msg: str = Field(description="what was expected, and what was found")
    type: str


class ErrorAnswer(BaseModel):
    """At most ten problems, and how many there are beyond them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "detail": [
                        {
                            "loc": ["body", "prediction_length"],
                            "msg": "expected an integer from 1 to 4096, found a string",
                            "type": "integer_type",
                        }
                    ]
                }
            ]
        }
    )

    detail: list[ProblemAnswer]
    more: int | None = Field(None, description="problems beyond those listed; absent when there are none")


class StatusAnswer(BaseModel):
    """Whether the process, or its model, is well."""

    status: str = Field(description="ok; or stalled, loading, draining, failed")


class ModelLimits(BaseModel):
    """What a request may ask for."""

    max_seq_length: int
    max_prediction_length: int
    max_request_tokens: int
    max_batch_tokens: int
    max_body_bytes: int
    max_concurrent_requests: int
    request_timeout_s: float


class ModelCard(BaseModel):
    """A model that is loaded."""

    id: str
    object: str = "model"
    sha256: str = Field(description="of the weights' file")
    parameters: int
    device: str
    dtype: str
    patch_size: int
    limits: ModelLimits


class ModelsAnswer(BaseModel):
    """The models that are loaded: one."""

    object: str = "list"
    data: list[ModelCard]


HEADERS: list[dict[str, Any]] = [
    {
        "name": "X-Request-Timeout",
        "in": "header",
        "description": "seconds that the request may wait, where fewer than REQUEST_TIMEOUT_S",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    {
        "name": "X-Request-ID",
        "in": "header",
        "description": "comes back with the answer and stands in the log; another is given where it is absent or odd",
        "schema": {"type": "string", "maxLength": 128},
    },
]
KEYS: dict[str, dict[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "a key of API_KEYS_FILE, where one is configured"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same key"},
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for error statuses."""
    return {status: {"model": ErrorAnswer, "description": DESCRIPTIONS[status]} for status in statuses}


DESCRIPTIONS = {
    400: "the body is not JSON, or does not decompress",
    401: "a key is configured and none of them was given",
    405: "another method is expected",
    408: "the body did not arrive in time",
    413: "the body, or the work asked for, is over a limit that the answer names",
    415: "another content type, charset or content encoding is expected",
    422: "the request is wrong: which field, and what is expected",
    429: "the queue is full; Retry-After is computed from the work ahead",
    500: "an internal error",
    503: "loading, draining, or the device has failed",
    504: "the request's deadline passed in the queue",
}
