"""One HTTP request and its answer: the body, JSON or a stream of events, a client that leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from .errors import ApiError, internal
from .settings import Settings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger("specrs.server")

CLOSING = {"Connection": "close"}
"""Where the rest of a body is not read."""

Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """A request that is being answered.

    Attributes:
        id: Names it in the log and in the header X-Request-Id.
        key: Names who asks; empty without API keys.
        scope: As ASGI has it.
        arrived: When it came, in seconds of the monotonic clock.
        status: Of the answer; 0 before it begins.
        ended: Whether all of it is sent, or just being sent.
        notes: What the log tells of it, by name.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self.scope = scope
        self.id: str = scope["state"]["request_id"]
        self.key: str = scope["state"]["key"]
        self.arrived = time.monotonic()
        self.status = 0
        self.ended = False
        self.notes: dict[str, Any] = {}
        self._settings = settings
        self._receive = receive
        self._send = send
        self._sent = self.arrived  # when something was sent last

    async def body(self) -> bytes:
        """Return the whole body; ApiError if it is too large or takes too long."""
        most = self._settings.max_body
        for name, value in self.scope["headers"]:
            if name == b"content-length" and int(value) > most:
                raise self._too_large()
        pieces, size = [], 0
        deadline = time.monotonic() + self._settings.body_timeout
        while True:
            try:
                left = max(0.0, deadline - time.monotonic())
                message = await asyncio.wait_for(self._receive(), left)
            except asyncio.TimeoutError:
                late = "the body did not come in time"
                raise ApiError(408, "invalid_request_error", late, headers=CLOSING) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > most:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(pieces)

    def _too_large(self) -> ApiError:
        most = self._settings.max_body
        message = f"a body may have at most {most} bytes"
        return ApiError(413, "invalid_request_error", message, headers=CLOSING)

    async def gone(self) -> None:
        """Return when the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(
        self, value: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Send an object as JSON."""
        await self.reply_bytes(msgspec.json.encode(value), "application/json", status, headers)

    async def reply_bytes(
        self, body: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Send a whole body."""
        length = {"Content-Length": str(len(body))}
        await self._start(status, {"Content-Type": kind, **length, **(headers or {})})
        self.ended = True
        await self._body(body, more=False)

    async def event(self, value: Any) -> None:
        """Send an event with an object; the first one begins the stream."""
        await self._piece(b"data: " + msgspec.json.encode(value) + b"\n\n")

    async def end(self, *, done: bool = True) -> None:
        """End the stream, with the mark that it is whole if it is `done`."""
        if done:
            await self._piece(b"data: [DONE]\n\n")
        self.ended = True
        await self._body(b"", more=False)

    async def fail(self, error: ApiError) -> None:
        """Answer with an error, by whatever means are left."""
        if not self.status:
            await self.reply(error.body(), error.status, error.headers)
        elif not self.ended:
            await self.event(error.body())
            await self.end(done=False)

    async def _piece(self, piece: bytes) -> None:
        if not self.status:
            await self._start(
                200,
                {
                    "Content-Type": "text/event-stream; charset=utf-8",
                    "Cache-Control": "no-cache",
                    "X-Accel-Buffering": "no",
                },
            )
        await self._body(piece, more=True)

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.status = status  # before anybody else can begin
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _body(self, body: bytes, more: bool) -> None:
        self._sent = time.monotonic()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Send comments into a stream as long as nothing else comes.

        The first one begins the stream; an error before it is plain HTTP.
        """
        pinging = asyncio.ensure_future(self._ping())
        try:
            yield
        finally:
            pinging.cancel()

    async def _ping(self) -> None:
        while not self.ended:
            silent = time.monotonic() - self._sent
            if silent < self._settings.ping:
                await asyncio.sleep(self._settings.ping - silent)
            else:
                await self._piece(b": ping\n\n")


class ClientGone(Exception):
    """The client has left; there is nobody to answer."""


class Endpoint:
    """An ASGI application that answers requests with a function of an `Exchange`.

    It ends the work as soon as the client leaves, turns errors into answers, and writes a line to
    the log. What it does not know is a fault of ours: the log has it, and the client no word of it.
    """

    def __init__(self, handler: Handler, settings: Settings) -> None:
        self._handler = handler
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        exchange = Exchange(scope, receive, send, self._settings)
        try:
            await self._handler(exchange)
        except ApiError as error:
            exchange.notes["error"] = error.code or error.kind
            exchange.notes["param"] = error.param  # the message may quote what was sent
            await exchange.fail(error)
        except ClientGone:
            exchange.notes.setdefault("finish", "client gone")
        except Exception:
            logger.exception("%s failed", exchange.id)
            with contextlib.suppress(Exception):
                await exchange.fail(internal())
        finally:
            _log(exchange)


async def while_connected(exchange: Exchange, work: Awaitable[None]) -> None:
    """Do `work` as long as the client is there; ClientGone once it has left."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(exchange.gone())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not (working.done() or exchange.ended):
            raise ClientGone
        await working
    finally:
        gone.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await working


def _log(exchange: Exchange) -> None:
    path = exchange.scope["path"]
    seconds = time.monotonic() - exchange.arrived
    notes = "".join(f" {name}={_shown(value)}" for name, value in exchange.notes.items())
    logger.log(
        logging.DEBUG if exchange.scope["method"] == "GET" else logging.INFO,
        "%s %s %s %d %.3fs%s",
        exchange.id,
        exchange.scope["method"],
        ascii(path)[1:-1],
        exchange.status,
        seconds,
        notes,
    )


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return ascii(text) if " " in text or not text.isprintable() else text
