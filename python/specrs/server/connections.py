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
        _head_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._limit_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._unlimit_head()
            elif self._head_timer is None:
                self._limit_head()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unlimit_writing()
            self._write_timer = self.loop.call_later(write_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unlimit_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unlimit_head()
            self._unlimit_writing()
            super().connection_lost(exc)

        def _limit_head(self) -> None:
            self._head_timer = self.loop.call_later(head_timeout, self.transport.abort)

        def _unlimit_head(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _unlimit_writing(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

    return Connection
