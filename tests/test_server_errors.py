"""Bad input: every answer is an error that names what is wrong, and the server goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_server import Running, running

pytestmark = pytest.mark.once

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Running]:
    with running(tiny(), max_body=1 << 20, body_timeout=1.0) as server:
        yield server


@pytest.fixture(autouse=True)
def alive(server: Running) -> Iterator[None]:
    """After every test the server still answers, and nobody is left in the house."""
    yield
    assert server.chat(messages=MESSAGES, max_tokens=1)["choices"]
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("messages", None),
        ("messages", "hi"),
        ("messages", []),
        ("messages", [1]),
        ("messages", [{}]),
        ("messages", [{"role": 1, "content": "x"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "input_audio"}]}]),
        ("messages", [*MESSAGES, *([{"role": "assistant", "content": "x"}] * 2)]),
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 2),
        ("top_p", -0.5),
        ("top_k", -2),
        ("min_p", 3),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_completion_tokens", 0),
        ("max_tokens", 1.5),
        ("seed", 1 << 64),
        ("seed", "x"),
        ("n", 0),
        ("n", 17),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("stop", [f"stop {i}" for i in range(10_000)]),
        ("stop", "x" * 5000),
        ("stream", "yes"),
        ("stream_options", []),
        ("logprobs", 5),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("logit_bias", {"999999": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "x"}),
        ("logit_bias", []),
        ("response_format", {"type": "sound"}),
        ("response_format", {}),
        ("response_format", "json"),
        ("tools", {}),
        ("prediction", {"type": "content"}),
        ("prediction", {"type": "content", "content": [1]}),
        ("speculation", "fast"),
        ("speculation", -1),
        ("speculation", 1000),
        ("stop_token_ids", [1 << 30]),
        ("chat_template_kwargs", {"no_such_variable": 1}),
        ("functions", [{}]),
        ("store", True),
        ("web_search_options", {}),
        ("audio", {}),
        ("modalities", ["audio"]),
    ],
)
def test_a_wrong_parameter_is_named(server: Running, param: str, value: Any) -> None:
    error = server.error(CHAT, {"messages": MESSAGES, param: value}, 400)
    assert error["type"] == "invalid_request_error"
    named = {"stop_token_ids": None, "chat_template_kwargs": "messages"}
    assert error["param"] == named.get(param, param)


@pytest.mark.parametrize("name", ["functions", "store", "audio", "web_search_options"])
def test_what_is_refused_says_so(server: Running, name: str) -> None:
    error = server.error(CHAT, {"messages": MESSAGES, name: True}, 400)
    assert error["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("prompt", {}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [[]]}),
        ("prompt", {"prompt": 5}),
        ("prompt", {"prompt": ["x", 5]}),
        ("prompt", {"prompt": [1.5]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": [1 << 40]}),
        ("prompt", {"prompt": {"a": 1}}),
        ("best_of", {"prompt": "x", "best_of": 2}),
        ("suffix", {"prompt": "x", "suffix": "y"}),
        ("logprobs", {"prompt": "x", "logprobs": 21}),
        ("logprobs", {"prompt": "x", "logprobs": True}),
        ("max_tokens", {"prompt": "x", "max_tokens": 0}),
        ("max_tokens", {"prompt": "x", "max_tokens": -1, "echo": True}),
        ("n", {"prompt": ["x"] * 300, "n": 1}),
    ],
)
def test_a_wrong_completion_is_named(server: Running, param: str, body: Any) -> None:
    assert server.error(TEXT, body, 400)["param"] == param


def test_both_turns_exclude_each_other(server: Running) -> None:
    body = {"messages": MESSAGES, "add_generation_prompt": True, "continue_final_message": True}
    assert server.error(CHAT, body, 400)["param"] == "continue_final_message"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(server: Running, stream: bool) -> None:
    messages = [{"role": "user", "content": "x" * 4000}]
    error = server.error(CHAT, {"messages": messages, "stream": stream}, 400)
    assert error["code"] == "context_length_exceeded"
    assert error["n_prompt_tokens"] == len(server.llm.tokenize("x" * 4000)) + len(
        server.llm.chat_tokens([{"role": "user", "content": ""}])
    )
    assert error["n_ctx"] == server.llm.n_ctx


def test_prompts_that_can_never_fit_are_not_tokenised(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * 300_000
    monkeypatch.setattr(type(server.llm), "tokenize", None)
    monkeypatch.setattr(type(server.llm), "chat_tokens", None)
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        (TEXT, {"prompt": ["hi", text]}),
        ("/tokenize", {"prompt": text}),
        ("/completion", {"prompt": text}),
        (CHAT, {"messages": MESSAGES, "prediction": {"type": "content", "content": text}}),
    ):
        assert server.error(path, body, 400)["code"] == "context_length_exceeded"
    monkeypatch.undo()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"{'a': 1}",
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"prompt": "\\udfff", "messages": NaN}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"seed": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda content: repr(content[:40]),
)
@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/completion", "/completions"])
def test_bodies_that_are_none(server: Running, path: str, content: bytes) -> None:
    answer = server.client.post(path, content=content)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "Traceback" not in answer.text


def test_numbers_that_are_none(server: Running) -> None:
    for value in ("1e999", "NaN", "-Infinity", "1e400"):
        body = f'{{"temperature": {value}, "messages": [{{"role": "user", "content": "x"}}]}}'
        assert server.client.post(CHAT, content=body).status_code == 400


def test_a_body_that_is_too_large(server: Running) -> None:
    large = b'{"messages": "' + b"x" * (2 << 20) + b'"}'
    answer = httpx.post(server.url + CHAT, content=large)
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"
    # Without a length, counted as it comes.
    answer = httpx.post(server.url + CHAT, content=iter([large[: 1 << 19]] * 4))
    assert answer.status_code == 413


def test_unknown_models_and_paths(server: Running) -> None:
    error = server.error(CHAT, {"messages": MESSAGES, "model": "gpt-9"}, 404)
    assert (error["type"], error["code"]) == ("not_found_error", "model_not_found")
    assert server.chat(messages=MESSAGES, model="other", max_tokens=1)["model"] == "tiny"
    assert server.client.get("/v1/models/tiny").json()["id"] == "tiny"
    assert server.client.get("/v1/models/none").json()["error"]["code"] == "model_not_found"
    answer = server.client.get("/v1/nothing")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
    answer = server.client.get(CHAT)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    for path in ("/v1/embeddings", "/rerank", "/v1/audio/speech", "/infill", "/v1/responses"):
        assert server.error(path, {}, 501)["type"] == "not_supported_error"


def talk(server: Running, sent: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes and return all that comes until the connection ends."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(sent)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def request(body: bytes, length: int | None = None) -> bytes:
    """Return the bytes of a request."""
    size = len(body) if length is None else length
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def test_slow_heads_and_bodies_are_not_waited_for(server: Running) -> None:
    assert talk(server, b"") == b""
    assert talk(server, b"POST /v1/chat/completions HTTP/1.1\r\nHost: local") == b""
    answer = talk(server, request(b'{"mess', 1000))
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\0" * 100])
def test_what_is_no_http(server: Running, sent: bytes) -> None:
    answer = talk(server, sent)
    assert b"Traceback" not in answer
    assert not answer or answer.startswith(b"HTTP/1.1 4")


def test_a_half_closed_connection_has_left(server: Running) -> None:
    body = json.dumps({"messages": MESSAGES, "max_tokens": 400, "ignore_eos": True}).encode()
    talk(server, request(body), half_close=True)
    from http_server import until

    until(lambda: server.engine.idle)
