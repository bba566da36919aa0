"""A server on a real socket, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from specrs import Llama
from specrs.server.engine import Engine
from specrs.server.process import Server, bind
from specrs.server.settings import Settings

DEADLINE = 60.0
"""Seconds after which a test gives up waiting."""


@dataclass
class Running:
    """A server that runs.

    Attributes:
        url: Where it is.
        server: The object.
        client: For requests to it.
    """

    url: str
    server: Server
    client: httpx.Client

    @property
    def engine(self) -> Engine:
        """Its engine."""
        return self.server.engine

    @property
    def llm(self) -> Llama:
        """Its model."""
        return self.engine.model

    @property
    def port(self) -> int:
        """The port it listens at."""
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """Send a body as JSON."""
        return self.client.post(path, json=body, **options)

    def chat(self, **body: Any) -> dict[str, Any]:
        """Return the answer to a chat, which must be well."""
        return self._well("/v1/chat/completions", body)

    def text(self, **body: Any) -> dict[str, Any]:
        """Return the answer to a completion, which must be well."""
        return self._well("/v1/completions", body)

    def _well(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Return the events of a stream that is whole."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        found, done = events_of(answer.text)
        assert done
        return found

    def error(self, path: str, body: Any, status: int) -> dict[str, Any]:
        """Return the error that a body is answered with."""
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert {"message", "type", "param", "code"} <= error.keys()
        assert "Traceback" not in answer.text
        return dict(error)


def events_of(text: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the events of a stream, and whether it says that it is whole."""
    data = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    done = data[-1:] == ["[DONE]"]
    return [json.loads(one) for one in data[: len(data) - done]], done


def until(happened: Callable[[], object]) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@contextmanager
def running(model: Path, **settings: Any) -> Iterator[Running]:
    """Run a server with a model, called "tiny"."""
    chosen: dict[str, Any] = {"names": ("tiny", "other"), "max_requests": 4, "threads": 1}
    chosen |= {"cache_bytes": 1 << 24, **settings}
    listener = bind("127.0.0.1", 0)
    server = Server(Settings(model=model, port=0, **chosen), listener)
    thread = threading.Thread(target=lambda: asyncio.run(server.live()))
    thread.start()
    try:
        until(lambda: (server.started and server.engine.llm) or server.fault)
        assert server.fault is None, server.fault
        with httpx.Client(base_url=server.url, timeout=DEADLINE) as client:
            yield Running(server.url, server, client)
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
        server.engine.close()
