"""Connections that keep nobody waiting: those of uvicorn, with limits of time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

Base: Any = AutoHTTPProtocol


def protocol(head_timeout: float, write_timeout: float) -> type[asyncio.Protocol]:
    """Return a class of connections for uvicorn.

    Args:
        head_timeout: Seconds in which the head of a request must come, from the connection or its
            first byte on. Between requests uvicorn's own limit holds.
        write_timeout: Seconds that a reader may let full buffers wait.
    """

    class Connection(Base):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._limit(head_timeout)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._unlimit()
            elif self._timer is None:
                self._limit(head_timeout)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._limit(write_timeout)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unlimit()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unlimit()
            super().connection_lost(exc)

        def _limit(self, seconds: float) -> None:
            self._unlimit()
            self._timer = self.loop.call_later(seconds, self.transport.abort)

        def _unlimit(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Connection
