"""Keys, names of hosts, web pages of other origins, and how full the house may be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from http_server import Running, events_of, running, until

pytestmark = pytest.mark.once

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
LONG = {**BODY, "max_tokens": 450, "ignore_eos": True, "stream": True, "speculation": "off"}


@pytest.fixture(scope="module")
def locked(tiny: Callable[..., Path]) -> Iterator[Running]:
    origins = ("https://page.example",)
    with running(tiny(), api_keys=("sesame", "other key"), cors=origins) as server:
        yield server


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer sesame"},
        {"Authorization": "bearer other key"},
        {"X-Api-Key": "sesame"},
    ],
)
def test_a_key_opens(locked: Running, headers: dict[str, str]) -> None:
    assert locked.post(CHAT, BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer sesam"},
        {"Authorization": "Basic sesame"},
        {"Authorization": "Bearer"},
        {"X-Api-Key": ""},
        {"X-Api-Key": "ÿ"},
    ],
)
def test_no_other_key_does(locked: Running, headers: dict[str, str]) -> None:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    for path in (CHAT, "/v1/completions", "/tokenize", "/nothing"):
        answer = locked.client.post(path, json=BODY, headers=encoded)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
    assert locked.client.get("/metrics", headers=encoded).status_code == 401
    assert locked.client.get("/v1/models", headers=encoded).status_code == 401


def test_health_needs_no_key(locked: Running) -> None:
    assert locked.client.get("/health").json() == {"status": "ok"}
    assert locked.client.get("/ready").json() == {"status": "ok"}


def test_pages_of_a_named_origin_may_ask(locked: Running) -> None:
    asked = {
        "Origin": "https://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    answer = locked.client.options(CHAT, headers=asked)
    assert answer.status_code == 200, "no key is needed to ask whether one may ask"
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    answer = locked.post(
        CHAT, BODY, headers={"Origin": "https://page.example", "X-Api-Key": "sesame"}
    )
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    answer = locked.client.options(CHAT, headers={**asked, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_requests_have_names(locked: Running) -> None:
    key = {"X-Api-Key": "sesame"}
    answer = locked.post(CHAT, BODY, headers={**key, "X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    first, second = (
        locked.post(CHAT, BODY, headers={**key, "X-Request-Id": given}).headers["x-request-id"]
        for given in ("a b", "x" * 500)
    )
    assert len(first) == len(second) == 32
    assert first != second
    assert len(locked.client.get("/nothing").headers["x-request-id"]) == 32


def test_another_key_shares_no_prefix(locked: Running) -> None:
    body = {"messages": [{"role": "user", "content": "the cat sat " * 30}], "max_tokens": 1}

    def cached(key: str, **more: str) -> int:
        answer = locked.post(CHAT, {**body, **more}, headers={"X-Api-Key": key}).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("sesame") < 10, "the beginning of the template may be there"
    assert cached("other key") < 10
    assert cached("sesame") > 100
    assert cached("sesame", cache_salt="secret") == 0


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", ""])
def test_a_loopback_server_has_loopback_names(tiny: Callable[..., Path], host: str) -> None:
    with running(tiny(), allowed_hosts=("box.example",)) as server:
        answer = server.post(CHAT, BODY, headers={"Host": host})
        assert answer.status_code == 403
        assert answer.json()["error"]["type"] == "permission_error"
        for name in ("localhost", "127.0.0.1:1", "[::1]:80", "app.localhost", "box.example:80"):
            assert server.client.get("/health", headers={"Host": name}).status_code == 200
        headers = {"Origin": "https://page.example"}
        answer = server.client.options(CHAT, headers=headers)
        assert "access-control-allow-origin" not in answer.headers, "CORS is off"


def test_any_origin_may_be_let_in(tiny: Callable[..., Path]) -> None:
    with running(tiny(), cors=("*",)) as server:
        answer = server.client.options(CHAT, headers={"Origin": "web.mydomain.fr"})
        assert answer.headers["access-control-allow-origin"] == "web.mydomain.fr"
        assert answer.headers["access-control-allow-headers"] == "*"
        assert answer.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"


def test_a_full_house_says_when_to_come_back(tiny: Callable[..., Path]) -> None:
    with running(tiny(), max_requests=1, max_queue=1) as server:
        answers: list[str] = []

        def ask() -> None:
            answers.append(server.post(CHAT, LONG).text)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: server.engine._places == 2)
        refused = server.post(CHAT, BODY)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        for thread in threads:
            thread.join()
        assert all(events_of(answer)[1] for answer in answers)
        assert "specrs:admission_rejections_total 1.0" in server.client.get("/metrics").text
        assert server.error(CHAT, {**BODY, "n": 3}, 400)["param"] == "n"
    with running(tiny(), max_queue_tokens=100) as server:
        started = threading.Event()

        def hold() -> None:
            with server.client.stream("POST", CHAT, json=LONG) as stream:
                for _ in stream.iter_raw():
                    started.set()

        thread = threading.Thread(target=hold)
        thread.start()
        assert started.wait(60)
        body = {**BODY, "messages": [{"role": "user", "content": "x" * 200}]}
        assert server.post(CHAT, body).status_code == 429
        thread.join()
        assert server.post(CHAT, body).status_code == 200, "who is alone always fits"


def test_metrics_count(tiny: Callable[..., Path]) -> None:
    with running(tiny()) as server:
        for _ in range(2):
            server.chat(**BODY, seed=1, ignore_eos=True)
        rows = server.client.get("/metrics").text.splitlines()
        values = dict(row.rsplit(" ", 1) for row in rows if not row.startswith("#"))
        prompt = len(server.llm.chat_tokens(BODY["messages"]))  # type: ignore[arg-type]
        assert float(values["specrs:prompt_tokens_total"]) == 2 * prompt
        assert float(values["specrs:generation_tokens_total"]) == 4
        assert float(values['specrs:request_success_total{finished_reason="length"}']) == 2
        assert float(values["specrs:time_to_first_token_seconds_count"]) == 2
        assert float(values["specrs:e2e_request_latency_seconds_count"]) == 2
        assert float(values["specrs:inter_token_latency_seconds_count"]) == 2
        assert float(values["specrs:num_requests_running"]) == 0
        assert 0 < float(values["specrs:kv_cache_usage_perc"]) <= 1
