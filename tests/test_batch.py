"""Batches and their requests: what users call."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from batches import PROMPTS, Gate, same, toy_of_batches
from specrs import Batch, Completion, FixedLength, Llama, Request

ENDLESS: dict[str, Any] = {"max_tokens": 50, "ignore_eos": True, "draft_length": FixedLength(1)}


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_of_batches(monkeypatch, tmp_path)


def test_requests_from_many_threads(llm: Llama) -> None:
    wanted = [llm.generate(prompt) for prompt in PROMPTS]
    results: dict[tuple[int, int], Completion] = {}
    with llm.batch(max_requests=3) as batch:

        def work(number: int) -> None:
            for i, prompt in enumerate(PROMPTS):
                results[number, i] = batch.add(prompt).result(60)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 30
    assert all(same(result, wanted[i]) for (_, i), result in results.items())
    assert batch.stats.requests == batch.stats.finished == 30
    assert batch.stats.tokens_generated == sum(len(r.tokens) for r in results.values())


def test_a_request_can_be_read_in_every_way(llm: Llama) -> None:
    wanted = llm.generate("abc", stop="q")

    async def read(batch: Batch, request: Request) -> tuple[str, Completion]:
        text = ""
        async for chunk in request:
            text += chunk.text
        return text, await request

    with llm.batch() as batch:
        request = batch.add("abc", stop="q")
        text, completion = asyncio.run(read(batch, request))
        assert text == completion.text == "".join(chunk.text for chunk in request) == wanted.text
        assert same(completion, wanted)
        assert request.result() is completion
        assert request.done


def test_many_requests_in_one_event_loop(llm: Llama) -> None:
    async def all_of(batch: Batch) -> list[Completion]:
        return list(await asyncio.gather(*map(waited, map(batch.add, PROMPTS))))

    async def waited(request: Request) -> Completion:
        return await request

    with llm.batch(max_requests=2) as batch:
        results = asyncio.run(all_of(batch))
    assert all(same(r, llm.generate(p)) for r, p in zip(results, PROMPTS, strict=True))


def test_cancelling_keeps_what_there_is(llm: Llama) -> None:
    wanted = llm.generate("abc", max_tokens=50, ignore_eos=True)
    gate = Gate(after=10)
    with llm.batch() as batch:
        request, other = batch.add("abc", drafter=gate, **ENDLESS), batch.add("hello")
        assert gate.reached.wait(60)
        request.cancel()
        gate.open.set()
        result = request.result()
        assert result.finish_reason == "cancelled"
        assert 7 <= len(result.tokens) <= 9
        assert result.tokens == wanted.tokens[: len(result.tokens)]
        assert result.text == wanted.text[: len(result.text)]
        assert same(other.result(), llm.generate("hello"))
        request.cancel()
    assert batch.stats.cancelled == 1


def test_waiting_has_its_limit(llm: Llama) -> None:
    gate = Gate(after=0)
    with llm.batch() as batch:
        request = batch.add("abc", drafter=gate, **ENDLESS)
        with pytest.raises(TimeoutError, match="not done"):
            request.result(timeout=0.01)
        gate.open.set()
        assert request.result(timeout=60).finish_reason == "length"


def test_an_exception_in_with_cancels(llm: Llama) -> None:
    gate = Gate(after=5)

    def leave() -> Request:
        with llm.batch() as batch:
            requests.append(batch.add("abc", drafter=gate, **ENDLESS))
            assert gate.reached.wait(60)
            threading.Timer(0.05, gate.open.set).start()
            raise ZeroDivisionError
        raise AssertionError

    requests: list[Request] = []
    with pytest.raises(ZeroDivisionError):
        leave()
    assert requests[0].result(0).finish_reason == "cancelled"


def test_a_closed_batch_takes_nothing(llm: Llama) -> None:
    with llm.batch() as batch:
        request = batch.add("abc")
    with pytest.raises(RuntimeError, match="the batch is closed"):
        batch.add("abc")
    assert same(request.result(), llm.generate("abc"))
    batch.close()


def test_a_request_tells_what_it_cost(llm: Llama) -> None:
    with llm.batch(max_requests=1) as batch:
        batch.add("a" * 100, max_tokens=9).result()
        request = batch.add("a" * 100 + "b", max_tokens=9)
        stats = request.result().stats
        assert request.stats is stats
    assert stats.prompt_tokens == 101
    assert stats.cached_tokens == 100
    assert stats.queued_seconds > 0
    assert batch.stats.cached_tokens == 100
    assert batch.stats.cache_bytes == 0
    assert 0 < batch.stats.peak_cache_bytes <= batch.cache_bytes
