"""The life of a server: it binds, loads, works, and ends in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn

from .app import create_app
from .connections import protocol
from .engine import Engine
from .settings import Settings

logger = logging.getLogger("specrs.server")

KEEP_ALIVE = 75
"""Seconds that an idle connection stays open; shorter, it closes under pools of clients."""

LAST_WORDS = 5
"""Seconds that cancelled requests have to say so."""


def serve(settings: Settings) -> int:
    """Run a server until it is told to end; return the exit code.

    Raises OSError if the address cannot be had, and what loading the model raises.
    """
    listener = bind(settings.host, settings.port)
    _log_to_stderr()
    server = Server(settings, listener)
    try:
        asyncio.run(server.live())
    finally:
        server.engine.close()
    if server.fault is not None:
        raise server.fault
    return 1 if server.engine.failure is not None else 0


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address, before anything that takes time."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    return listener


class Server(uvicorn.Server):
    """A uvicorn that loads the model first and lets requests finish at the end.

    Attributes:
        engine: The model and its batch.
        fault: Why the model could not be loaded.
    """

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self.engine = Engine(settings)
        self.fault: BaseException | None = None
        self._settings = settings
        self._listener = listener
        self._signals = 0
        super().__init__(
            uvicorn.Config(
                create_app(self.engine),
                http=protocol(settings.body_timeout, settings.stream_timeout),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=LAST_WORDS,
            )
        )

    @property
    def url(self) -> str:
        """Where the server is."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def live(self) -> None:
        """Load the model and serve until the end."""
        # A thread that does not hold up the end of the process.
        threading.Thread(target=self._load, name="specrs load", daemon=True).start()
        watching = asyncio.ensure_future(self._watch())
        try:
            await self.serve([self._listener])
        finally:
            watching.cancel()

    def _load(self) -> None:
        try:
            self.engine.load()
        except BaseException as error:  # a panic of the core as well: nobody else would hear of it
            self.fault = error
            self.should_exit = True
            return
        batch, llm = self.engine.batch, self.engine.model
        assert batch is not None
        print(
            f"ready: {self.url} model {self._settings.names[0]}, n_ctx {llm.n_ctx}, "
            f"{self._settings.max_requests} at once, {batch.cache_bytes / 1e6:.0f} MB of cache, "
            f"{llm.threads} threads",
            flush=True,
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        """Take a signal: the first lets requests finish, the second ends everything at once."""
        self._signals += 1
        if self._signals > 1:
            logging.shutdown()
            os._exit(128 + sig)

    async def _watch(self) -> None:
        """See to the end: after a signal, or where the engine has died."""
        engine, deadline = self.engine, float("inf")
        while not self.should_exit:
            await asyncio.sleep(0.1)
            if engine.failure is not None:
                logger.error("the engine has failed", exc_info=engine.failure)
                self.should_exit = True
            if self._signals and not engine.draining:
                engine.draining = True
                deadline = time.monotonic() + self._settings.drain
                logger.info("shutting down; %.0f s for what runs", self._settings.drain)
            late = time.monotonic() > deadline
            if late:
                engine.cancel()
            if engine.draining and (late or engine.idle):
                self.should_exit = True


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in (("specrs.server", logging.INFO), ("uvicorn", logging.WARNING)):
        log = logging.getLogger(name)
        log.handlers = [handler]
        log.propagate = False
        log.setLevel(level)
