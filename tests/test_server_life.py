"""From the first line of a server to its last: loading, streams that break off, and the end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_server import DEADLINE, events_of, running, until
from specrs.server.exchange import Exchange
from specrs.server.settings import Settings

pytestmark = pytest.mark.once

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
LONG: dict[str, Any] = {
    "messages": MESSAGES,
    "max_tokens": 450,
    "ignore_eos": True,
    "stream": True,
    "speculation": "off",
}


@contextmanager
def process(model: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `specrs serve` and give the process and its address."""
    command = [sys.executable, "-m", "specrs", "serve", str(model), "--port", "0"]
    child = subprocess.Popen(
        [*command, "--threads", "1", "--cache-mb", "20", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line.startswith("ready: http://127.0.0.1:"), (line, child.poll())
        assert "n_ctx " in line
        yield child, line.split()[1]
    finally:
        child.kill()
        child.communicate()


def ends(child: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end; return exit code and log."""
    _, log = child.communicate(timeout=DEADLINE)
    assert "Traceback" not in log
    return child.returncode, log


def test_a_server_that_has_nothing_to_do_ends_at_once(tiny: Callable[..., Path]) -> None:
    with process(tiny(), "--alias", "a", "--alias", "b") as (child, url):
        assert httpx.get(url + "/health").json() == {"status": "ok"}
        (model,) = httpx.get(url + "/v1/models").json()["data"]
        assert (model["id"], model["aliases"]) == ("a", ["b"])
        body = {"messages": [{"role": "user", "content": "top secret"}], "max_tokens": 3}
        assert httpx.post(url + CHAT, json=body, headers={"X-Request-Id": "q7"}).status_code == 200
        child.send_signal(signal.SIGTERM)
        code, log = ends(child)
        assert code == 0
        (line,) = [line for line in log.splitlines() if "q7" in line]
        assert f"POST {CHAT} 200" in line
        for name in ("prompt=", "cached=", "out=", "queue=", "ttft=", "drafted=", "finish="):
            assert name in line
        assert "secret" not in log


def test_what_runs_may_finish(tiny: Callable[..., Path]) -> None:
    model = tiny(n_ctx=8192)
    with process(model) as (child, url), httpx.Client(base_url=url, timeout=DEADLINE) as client:
        with client.stream("POST", CHAT, json={**LONG, "max_tokens": 7000}) as stream:
            pieces = stream.iter_text()
            text = next(pieces)
            child.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(url + "/ready").status_code == 503)
            refused = httpx.post(url + CHAT, json=LONG)
            assert refused.status_code == 503
            assert refused.json()["error"]["type"] == "unavailable_error"
            assert httpx.get(url + "/health").status_code == 200
            text += "".join(pieces)
        assert events_of(text)[1], "the stream came to its end"
        assert ends(child)[0] == 0


def test_after_the_time_to_drain_streams_end_with_an_error(tiny: Callable[..., Path]) -> None:
    with (
        process(tiny(n_ctx=8192), "--drain", "0") as (child, url),
        httpx.Client(base_url=url, timeout=DEADLINE) as client,
        client.stream("POST", CHAT, json={**LONG, "max_tokens": 7000}) as stream,
    ):
        pieces = stream.iter_text()
        text = next(pieces)
        child.send_signal(signal.SIGTERM)
        text += "".join(pieces)
        events, done = events_of(text)
        assert not done
        assert events[-1]["error"]["type"] == "unavailable_error"
        assert ends(child)[0] == 0


def test_a_second_signal_ends_it_at_once(tiny: Callable[..., Path]) -> None:
    with (
        process(tiny(n_ctx=8192), "--drain", "1000") as (child, url),
        httpx.Client(base_url=url, timeout=DEADLINE) as client,
        client.stream("POST", CHAT, json={**LONG, "max_tokens": 7000}),
    ):
        child.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(url + "/ready").status_code == 503)
        child.send_signal(signal.SIGINT)
        assert ends(child)[0] == 128 + signal.SIGINT


def test_mistakes_are_one_line(tiny: Callable[..., Path], tmp_path: Path) -> None:
    def mistake(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "specrs", "serve", *options],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("specrs: ")]
        assert "Traceback" not in done.stderr
        return line

    model = str(tiny())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "cannot listen" in mistake(model, "--port", port)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    mistake(str(broken), "--port", "0")
    assert "--max-requests" in mistake(model, "--max-requests", "0")
    assert "temperature" in mistake(model, "--temperature", "-1")
    empty = tmp_path / "keys"
    empty.write_text("\n")
    assert "holds no key" in mistake(model, "--api-key-file", str(empty))
    assert "holds no key" in mistake(model, "--api-key", "k", "--api-key-file", str(empty))
    assert "--api-key is empty" in mistake(model, "--api-key", "")
    assert "--max-queue-tokens must be 1 or more" in mistake(model, "--max-queue-tokens", "0")


def test_keys_come_from_file_and_environment(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\ntwo\n")
    monkeypatch.setenv("SPECRS_API_KEY", "three")
    with process(tiny(), "--api-key-file", str(keys), "--api-key", "four") as (_, url):
        for key in ("one", "two", "three", "four", "five"):
            answer = httpx.get(url + "/v1/models", headers={"X-Api-Key": key})
            assert answer.status_code == (401 if key == "five" else 200)
        assert httpx.get(url + "/v1/models", headers={"X-Api-Key": ""}).status_code == 401


def test_while_it_loads_it_says_so(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specrs.server.engine import Engine

    go, load = threading.Event(), Engine.load

    def wait(engine: Engine) -> None:
        assert go.wait(DEADLINE)
        load(engine)

    def look(url: str) -> None:
        try:
            for path in ("/health", "/ready", "/v1/models"):
                answer = httpx.get(url + path)
                assert answer.status_code == 503
                assert answer.json()["error"]["type"] == "unavailable_error"
            assert httpx.post(url + CHAT, json={"messages": MESSAGES}).status_code == 503
            seen.append(True)
        finally:
            go.set()

    from specrs.server import process as module

    seen: list[bool] = []
    serve = module.Server.live

    async def live(server: module.Server) -> None:
        threading.Thread(target=look, args=(server.url,)).start()
        await serve(server)

    monkeypatch.setattr(Engine, "load", wait)
    monkeypatch.setattr(module.Server, "live", live)
    with running(tiny()) as server:
        assert seen
        assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_is_not_worked_for(tiny: Callable[..., Path], stream: bool) -> None:
    with running(tiny()) as server:
        body = json.dumps({**LONG, "stream": stream, "n": 4}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + body)
            until(lambda: server.engine.batch and server.engine.batch.stats.running)
        until(lambda: server.engine.idle)
        stats = server.engine.batch.stats if server.engine.batch else None
        assert stats is not None
        until(lambda: not server.engine.batch.stats.running)  # type: ignore[union-attr]
        assert server.engine.batch.stats.cancelled > 0  # type: ignore[union-attr]


def test_who_does_not_read_is_dropped(tiny: Callable[..., Path]) -> None:
    """Nobody waits for a slow reader, and its text does not pile up."""
    model = tiny(n_ctx=8192)
    with running(model, stream_timeout=0.5) as server:
        body = json.dumps({**LONG, "max_tokens": 8000, "logprobs": True, "top_logprobs": 20})
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(head.encode() + body.encode())
            until(lambda: server.engine.batch and server.engine.batch.stats.cancelled)
            assert server.chat(messages=MESSAGES, max_tokens=2)
        until(lambda: server.engine.idle)


def test_a_silent_stream_is_kept_alive(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tiny(), ping=0.05, max_requests=1) as server:
        gate = threading.Event()
        step = server.engine.batch._steps.step  # type: ignore[union-attr]

        def slow() -> Any:
            assert gate.wait(DEADLINE)
            return step()

        monkeypatch.setattr(server.engine.batch._steps, "step", slow)  # type: ignore[union-attr]
        body = {**LONG, "max_tokens": 5}
        with server.client.stream("POST", CHAT, json=body) as answer:
            pieces = answer.iter_text()
            assert next(pieces) == ": ping\n\n"
            gate.set()
            events, done = events_of("".join(pieces))
        assert done
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"


def test_the_last_event_may_take_its_time(tmp_path: Path) -> None:
    """Where only the end is left to send, to a reader that is slow, there is nothing to ping."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if not message.get("more_body", True):
            await asyncio.sleep(0.1)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def answer() -> None:
        scope: Any = {"state": {"request_id": "a", "key": ""}}
        settings = Settings(model=tmp_path, names=("a",), ping=0.01)
        exchange = Exchange(scope, receive, send, settings)
        with exchange.kept_alive():
            await exchange.event({})
            await exchange.end()

    asyncio.run(answer())
    assert sent[-1]["more_body"] is False


def test_an_engine_that_dies_takes_the_server_with_it(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tiny()) as server:

        def fail() -> Any:
            raise OSError("the roof is on fire")

        monkeypatch.setattr(server.engine.batch._steps, "step", fail)  # type: ignore[union-attr]
        error = server.error(CHAT, {"messages": MESSAGES}, 500)
        assert error["type"] == "server_error"
        assert "roof" not in json.dumps(error)
        until(lambda: server.server.should_exit)
        assert server.engine.failure is not None


def test_then_the_process_ends_with_an_error(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specrs.server.engine import Engine
    from specrs.server.process import serve

    load = Engine.load

    def fail() -> Any:
        raise OSError("the roof is on fire")

    def break_down(engine: Engine) -> None:
        load(engine)
        assert engine.batch is not None
        monkeypatch.setattr(engine.batch._steps, "step", fail)
        with pytest.raises(OSError, match="roof"):
            engine.batch.add("hello").result(DEADLINE)

    monkeypatch.setattr(Engine, "load", break_down)
    settings = Settings(model=tiny(), names=("tiny",), port=0, threads=1, cache_bytes=1 << 24)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(serve(settings)))
    thread.start()
    thread.join(DEADLINE)
    assert codes == [1]


def test_a_stalled_engine_is_unwell(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tiny(), stall=0.1) as server:
        gate = threading.Event()
        step = server.engine.batch._steps.step  # type: ignore[union-attr]

        def stuck() -> Any:
            assert gate.wait(DEADLINE)
            return step()

        monkeypatch.setattr(server.engine.batch._steps, "step", stuck)  # type: ignore[union-attr]
        thread = threading.Thread(target=lambda: server.post(CHAT, {**LONG, "max_tokens": 2}))
        thread.start()
        until(lambda: httpx.get(server.url + "/health").status_code == 503)
        gate.set()
        thread.join()
        until(lambda: httpx.get(server.url + "/health").status_code == 200)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files are counted in /proc")
def test_nothing_is_left_behind(tiny: Callable[..., Path]) -> None:
    with running(tiny()) as server:
        server.chat(messages=MESSAGES, max_tokens=2)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(20):
            server.chat(messages=MESSAGES, max_tokens=2)
            server.events(CHAT, messages=MESSAGES, max_tokens=2)
        until(lambda: server.engine.idle)
        assert not server.engine._requests
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
