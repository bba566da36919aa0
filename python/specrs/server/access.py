"""Who may ask: names of requests, origins of web pages, names of the host, and keys."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import uuid
from typing import TYPE_CHECKING

import msgspec

from .errors import ApiError
from .settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ready", "/v1/health", "/v1/ready"})
"""What needs no key."""


class Access:
    """Lets a request through to `app`, or answers it itself.

    A server at a loopback address answers to the names of such addresses only: else any web page
    could reach it by a name of its own that resolves to 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._keys = [_digest(key) for key in settings.api_keys]
        self._cors = frozenset(settings.cors)
        self._hosts = frozenset(settings.allowed_hosts)
        self._loopback = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if re.fullmatch(r"[\w.:-]{1,64}", given, re.A) else uuid.uuid4().hex
        added = [(b"x-request-id", request_id.encode()), *self._cors_headers(headers)]

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        scope.setdefault("state", {})
        scope["state"] |= {"request_id": request_id, "key": ""}
        if scope["method"] == "OPTIONS":
            await _send(named, 200, b"")
            return
        try:
            self._check_host(headers)
            if scope["path"] not in OPEN_PATHS:
                scope["state"]["key"] = self._key(headers)
        except ApiError as error:
            await _send(named, error.status, msgspec.json.encode(error.body()))
            return
        await self._app(scope, receive, named)

    def _cors_headers(self, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        origin = headers.get(b"origin")
        anybody = "*" in self._cors
        if origin is None or not (anybody or origin.decode("latin-1") in self._cors):
            return []
        # A named origin may send what it says that it will send; to all others a star must do.
        wanted = headers.get(b"access-control-request-headers", b"*")
        return [
            (b"Access-Control-Allow-Origin", origin),
            (b"Access-Control-Allow-Credentials", b"true"),
            (b"Access-Control-Allow-Methods", b"GET, POST, DELETE, OPTIONS"),
            (b"Access-Control-Allow-Headers", b"*" if anybody else wanted),
            (b"Vary", b"Origin"),
        ]

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        if not self._loopback or "*" in self._hosts:
            return
        host = headers.get(b"host", b"").decode("latin-1")
        name = re.sub(r":\d*$", "", host)
        if not (is_loopback(name.strip("[]")) or name in self._hosts):
            raise ApiError(
                403,
                "permission_error",
                f"this server is not called {ascii(name)[:100]}; "
                "allow the name with --allowed-host",
            )

    def _key(self, headers: dict[bytes, bytes]) -> str:
        """Return a name of the key that was given; ApiError if it is none of ours."""
        if not self._keys:
            return ""
        given = headers.get(b"x-api-key", b"")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            given = token.strip()
        digest = hashlib.sha256(given).digest()
        # All of them, so that the time tells nothing.
        if not sum(hmac.compare_digest(digest, key) for key in self._keys):
            raise ApiError(
                401,
                "authentication_error",
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )
        return digest.hex()[:16]


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is that of this machine alone."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
