"""The service: `python server.py --port 8040 --device cpu`. Builds the application and holds the routes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from serving.settings import Settings, read

if __name__ == "__main__":
    SETTINGS = read(sys.argv[1:])  # before the web framework is imported: --help and mistakes are answered at once

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from inference import PATCH, Engine, default_model_path
from serving import errors, logs, process, schemas
from serving.auth import Keys, KeysError
from serving.exchange import Exchanges
from serving.metrics import VERSION
from serving.service import Service
from serving.worker import ForecastEngine

DOCS = Path(__file__).parent / "serving" / "docs.html"
FORECAST_REQUEST = {
    "parameters": schemas.HEADERS,
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ForecastBody"}}},
    },
}
router = APIRouter()


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.post(
    "/v1/forecast",
    response_model=schemas.ForecastAnswer,
    responses=schemas.errors(400, 401, 408, 413, 415, 422, 429, 500, 503, 504),
    openapi_extra=FORECAST_REQUEST,
)
async def forecast(request: Request) -> Response:
    """Nine quantiles of the next steps of every variate of a series."""
    return await service_of(request).forecast(request)


@router.get("/v1/models", response_model=schemas.ModelsAnswer, responses=schemas.errors(401, 503))
async def models(request: Request) -> schemas.ModelsAnswer:
    """What is loaded, and what may be asked of it."""
    service = service_of(request)
    info, settings = service.info, service.settings
    limits = schemas.ModelLimits(
        max_seq_length=settings.max_seq_length,
        max_prediction_length=schemas.LONGEST_HORIZON,
        max_request_tokens=settings.max_request_tokens,
        max_batch_tokens=service.queue.most_tokens,
        max_body_bytes=settings.max_body_bytes,
        max_concurrent_requests=settings.max_concurrent_requests,
        request_timeout_s=settings.request_timeout_s,
    )
    card = schemas.ModelCard(
        id=info.name, sha256=info.sha256, parameters=info.parameters, device=info.device, dtype=info.dtype,
        patch_size=PATCH, limits=limits,
    )  # fmt: skip
    return schemas.ModelsAnswer(data=[card])


STALLED: dict[int | str, dict[str, Any]] = {
    503: {"model": schemas.StatusAnswer, "description": "the device's thread makes no progress"}
}
NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": schemas.StatusAnswer, "description": "loading, draining or failed"}
}


@router.get("/health", response_model=schemas.StatusAnswer, responses=STALLED)
@router.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)  # asked first, so that Allow has both
async def health(request: Request) -> Response:
    """200 while the process lives and its device thread makes progress."""
    service = service_of(request)
    stalled = service.worker.stalled(service.settings.stall_timeout_s)
    return JSONResponse({"status": "stalled" if stalled else "ok"}, 503 if stalled else 200)


@router.get("/ready", response_model=schemas.StatusAnswer, responses=NOT_READY)
@router.api_route("/ready", methods=["GET", "HEAD"], include_in_schema=False)
async def ready(request: Request) -> Response:
    """200 once the model is loaded and warmed up."""
    phase = service_of(request).lifecycle.phase
    if phase == "ready":
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": phase}, 503, errors.wait(5))


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    service = service_of(request)
    service.metrics.ready.set(service.lifecycle.phase == "ready")
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return HTMLResponse(DOCS.read_text(encoding="utf-8"))


async def answer_error(_: Request, error: Exception) -> Response:
    return errors.response(error)


def create_app(settings: Settings, load: Callable[[], ForecastEngine]) -> FastAPI:
    """The application. `load` is called on the thread that owns the device, once the application has started.

    Raises `serving.auth.KeysError` where the key file cannot be used.
    """
    keys = Keys(settings.api_keys_file) if settings.api_keys_file else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = Service(settings, load)
        yield
        app.state.service.close()

    app = FastAPI(
        title="Toto forecasts",
        description="Quantile forecasts of time series by a model that needs no training on them.",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: answer_error},
    )
    app.add_middleware(Exchanges, keys=keys)
    app.include_router(router)
    make_openapi = app.openapi

    def openapi() -> dict[str, object]:
        schema = make_openapi()
        schema["components"]["schemas"].setdefault("ForecastBody", schemas.ForecastBody.model_json_schema())
        schema["components"]["securitySchemes"] = schemas.KEYS
        for path in (path for path in schema["paths"] if path.startswith("/v1/")):
            for operation in schema["paths"][path].values():
                operation["security"] = [{name: []} for name in schemas.KEYS] + ([] if keys else [{}])
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def load_engine(settings: Settings) -> ForecastEngine:
    """The engine of the settings. Raises `ValueError` with a line that says what is wrong and what to do."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "128")  # kernels for 1024 shapes, the default, hold 400 MiB under a mixed load
    path = settings.model_path or default_model_path()
    logs.get().info("loading", model_path=str(path), chosen="set" if settings.model_path else "default")
    return Engine.load(
        path,
        settings.device,
        settings.dtype,
        settings.max_seq_length,
        settings.threads,
        settings.attention,
        settings.propagate_uncertainty,
    )


def run(settings: Settings, load: Callable[[], ForecastEngine]) -> int:
    """Serves until the end; returns the exit status."""
    if not settings.loopback and settings.api_keys_file is None and not settings.allow_unauthenticated:
        print(
            f"server.py: refusing to listen on {settings.host} without API keys: set API_KEYS_FILE, "
            "or ALLOW_UNAUTHENTICATED=true where everyone who can reach it may ask",
            file=sys.stderr,
        )
        return 2
    logs.configure(settings.log_format, settings.log_level)
    try:
        listener = process.bind(settings.host, settings.port)
        app = create_app(settings, load)
    except (OSError, KeysError) as error:
        print(f"server.py: {error}", file=sys.stderr)
        return 1
    return process.run(app, settings, listener)


if __name__ == "__main__":
    STATUS = run(SETTINGS, lambda: load_engine(SETTINGS))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(STATUS)  # the device's thread may still be at work; nothing is left to do
