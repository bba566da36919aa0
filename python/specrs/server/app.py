"""The ASGI application: which path is answered by whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from .access import Access
from .chat import chat_completions
from .completions import completions
from .engine import Engine
from .errors import ApiError, not_offered, unavailable
from .exchange import Endpoint, Exchange
from .metrics import CONTENT_TYPE
from .native import completion, completions_of_either
from .tokens import detokenize, model, models, tokenize, tokenizer_info

Answer = Callable[[Engine, Exchange], Awaitable[None]]

NOT_OFFERED = (
    "/embeddings",
    "/rerank",
    "/score",
    "/infill",
    "/lora-adapters",
    "/audio/speech",
    "/audio/transcriptions",
    "/images/generations",
    "/responses",
    "/messages",
)


def create_app(engine: Engine) -> ASGIApp:
    """Return the application that answers with an engine's model."""
    answers: list[tuple[str, str, Answer]] = [
        *_both("POST", "/chat/completions", chat_completions),
        ("POST", "/v1/completions", completions),
        ("POST", "/completions", completions_of_either),
        ("POST", "/completion", completion),
        *_both("POST", "/tokenize", tokenize),
        *_both("POST", "/detokenize", detokenize),
        *_both("GET", "/tokenizer_info", tokenizer_info),
        *_both("GET", "/models", models),
        *_both("GET", "/models/{model:path}", model),
        *_both("GET", "/health", health),
        *_both("GET", "/ready", ready),
        ("GET", "/metrics", metrics),
        *(row for path in NOT_OFFERED for row in _both("POST", path, refuse)),
    ]
    routes = [
        Route(path, Endpoint(partial(answer, engine), engine.settings), methods=[method])
        for method, path, answer in answers
    ]
    handlers: Any = {HTTPException: _http_error}
    return Access(Starlette(routes=routes, exception_handlers=handlers), engine.settings)


def _both(method: str, path: str, answer: Answer) -> list[tuple[str, str, Answer]]:
    """Return the rows of a path and of the same below /v1."""
    return [(method, path, answer), (method, f"/v1{path}", answer)]


async def health(engine: Engine, exchange: Exchange) -> None:
    """Say whether the server can work."""
    engine.model  # noqa: B018 - raises while it is loaded
    if engine.failure is not None:
        raise unavailable("the engine has failed")
    if engine.stalled:
        raise unavailable("the engine has stalled")
    await exchange.reply({"status": "ok"})


async def ready(engine: Engine, exchange: Exchange) -> None:
    """Say whether the server takes new work."""
    if engine.draining:
        raise unavailable("the server is shutting down")
    await health(engine, exchange)


async def metrics(engine: Engine, exchange: Exchange) -> None:
    """Tell counts and times."""
    await exchange.reply_bytes(engine.metrics.text(), CONTENT_TYPE)


async def refuse(_: Engine, exchange: Exchange) -> None:
    """Answer for what is known and not offered."""
    raise not_offered(f"{exchange.scope['path']} is not offered by this server")


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Word what the router says: no such path, or not by this method."""
    assert isinstance(error, HTTPException)
    path = ascii(request.url.path)[1:-1][:200]
    what = f"{request.method} {path}: {error.detail.lower()}"
    kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
    answer = ApiError(error.status_code, kind, what)
    return JSONResponse(answer.body(), error.status_code, headers=error.headers)
