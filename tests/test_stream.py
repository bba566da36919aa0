"""Streams, and what a completion tells: where it ended, as JSON, in one line."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_engine import Scripted, toy_llama
from specrs import Llama, Sampling, Stream
from specrs.text import Chunk

# What the toy says after "abc": letters, a control token at the end.
SCRIPT = {i: 2 + i for i in range(3, 12)} | {12: 1}


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", n_ctx=256, script=SCRIPT)


@pytest.mark.parametrize(
    ("options", "reason", "matched"),
    [
        ({}, "stop", 1),
        ({"stop": ["zz", "ghi"]}, "stop", "ghi"),
        ({"stop": ["gh", "ghi", "hi"]}, "stop", "gh"),  # the first place, then the shortest
        ({"stop": "l", "stop_token_ids": [9]}, "stop", 9),
        ({"stop_token_ids": {0, 1}, "ignore_eos": True}, "stop", 1),
        ({"stop": "</s>", "ignore_eos": True}, "stop", 1),
        ({"max_tokens": 3, "stop": "ghi"}, "length", None),
        ({"max_tokens": 0}, "length", None),
    ],
)
def test_what_ended_a_text_is_told(
    llm: Llama, options: dict[str, Any], reason: str, matched: object
) -> None:
    stream = llm.stream("abc", **options)
    out = stream.collect()
    assert (out.finish_reason, out.matched_stop) == (reason, matched)
    assert stream.matched_stop == matched
    (many,) = llm.generate_many(["abc"], **options)
    assert (many.matched_stop, many.text) == (matched, out.text)
    drafted = llm.generate("abc", drafter=Scripted([0, 0, 0, *SCRIPT.values()]), **options)
    assert drafted.matched_stop == matched


def test_text_held_back_is_released_at_an_end_token(llm: Llama) -> None:
    assert llm.generate("abc", stop="lmn").text == "defghijkl"


def test_a_completion_becomes_json(llm: Llama) -> None:
    sampling = Sampling(temperature=0.5, seed=3)
    out = llm.generate("abc", stop="ghi", sampling=sampling, logprobs=2, trace=True)
    values = json.loads(json.dumps(out.as_dict(), allow_nan=False))
    assert set(values) == {
        *("text", "tokens", "finish_reason", "matched_stop", "logprobs", "stats"),
    } | (set(vars(out)) - {"trace"})
    assert (values["text"], values["tokens"]) == (out.text, out.tokens)
    assert values["matched_stop"] == out.matched_stop
    assert values["stats"]["seed"] == 3
    assert out.logprobs is not None
    assert values["logprobs"][0]["logprob"] == out.logprobs[0].logprob
    assert len(values["logprobs"][0]["top"]) == 2
    assert llm.generate("abc", max_tokens=1).as_dict()["logprobs"] is None


def test_reprs_are_one_short_line(llm: Llama) -> None:
    stream = llm.stream("abc", stop="ghi")
    assert repr(stream) == "<Stream of 0 tokens so far, running>"
    out = stream.collect()
    assert repr(out) == "<Completion 'def', 6 tokens, stop at 'ghi'>"
    assert repr(stream) == "<Stream of 6 tokens so far, stop at 'ghi'>"
    assert repr(llm.generate("abc", max_tokens=2)) == "<Completion 'de', 2 tokens, length>"
    closed = llm.stream("abc")
    next(closed)
    closed.close()
    assert repr(closed) == "<Stream of 1 tokens so far, closed>"
    with llm.batch(cache_bytes=10**6) as batch:
        assert repr(batch) == "<Batch of 0 requests, 0 over, 0 of 1 MB of cache>"
        request = batch.add("abc", stop="ghi")
        request.result()
        assert repr(request) == "<Request, done: <Completion 'def', 6 tokens, stop at 'ghi'>>"
        assert repr(batch).startswith("<Batch of 1 requests, 1 over, ")
    assert repr(batch).endswith(", closed>")
    assert len(repr(llm.generate("abc", max_tokens=99, ignore_eos=True))) < 100


def test_async_for_gives_the_same_chunks(llm: Llama) -> None:
    async def collect(stream: Stream) -> list[Chunk]:
        return [chunk async for chunk in stream]

    wanted = list(llm.stream("abc"))
    stream = llm.stream("abc")
    assert asyncio.run(collect(stream)) == wanted
    assert stream.finish_reason == "stop"


def test_a_cancelled_task_loses_no_chunk(llm: Llama) -> None:
    """The step that ran goes on in its thread, and its chunk is there for the next reader."""
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def propose(self, tokens: Sequence[int], k: int) -> list[int]:
            if len(tokens) == 5:
                entered.set()
                leave.wait(20)
            return []

    stream = llm.stream("abc", drafter=Slow())
    seen: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            seen.append(chunk.text)

    async def main() -> None:
        task = asyncio.create_task(read())
        while not entered.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        leave.set()

    asyncio.run(main())
    assert "".join(seen) + stream.collect().text == "defghijkl"


def test_close_from_another_thread_ends_the_reply_within_a_token(llm: Llama) -> None:
    entered, leave = threading.Event(), threading.Event()
    session = llm.session()

    class Slow:
        def propose(self, tokens: Sequence[int], k: int) -> list[int]:
            if len(tokens) == 6:
                entered.set()
                leave.wait(20)
            return []

    stream = llm.stream("abc", drafter=Slow(), session=session, ignore_eos=True, max_tokens=None)
    chunks: list[Chunk] = []
    reader = threading.Thread(target=lambda: chunks.extend(stream))
    reader.start()
    assert entered.wait(20)
    closer = threading.Thread(target=stream.close)
    closer.start()
    while not stream._closed:
        pass
    leave.set()  # the token that was being made is the last one
    closer.join(20)
    reader.join(20)
    assert not reader.is_alive()
    assert [chunk.text for chunk in chunks] == ["d", "e", "f"]
    assert stream.finish_reason is None
    assert list(stream) == []
    with pytest.raises(RuntimeError, match="closed before its end"):
        stream.collect()
    # The session is free, and holds what was made but for the last token.
    assert len(session) == 3 + 3
    assert llm.generate("abc", session=session, max_tokens=2).text == "de"


@pytest.mark.parametrize("who", ["drafter", "progress"])
def test_a_callback_may_close_its_own_stream(llm: Llama, who: str) -> None:
    def close(*_: object) -> list[int]:
        stream.close()
        return []

    class Closing:
        propose = staticmethod(close)

    options: Any = {"drafter": Closing()} if who == "drafter" else {"progress": close}
    session = llm.session()
    stream = llm.stream("abc", session=session, **options)
    assert len(list(stream)) <= 1
    assert llm.generate("abc", session=session, max_tokens=2).text == "de"


def test_several_readers_share_a_stream(llm: Llama) -> None:
    stream = llm.stream("abc", ignore_eos=True, max_tokens=200)
    wanted = llm.generate("abc", ignore_eos=True, max_tokens=200)
    taken: list[Chunk] = []
    readers = [threading.Thread(target=lambda: taken.extend(stream)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
    assert sorted(t for chunk in taken for t in chunk.tokens) == sorted(wanted.tokens)
