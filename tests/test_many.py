"""Many prompts in one call: what users call, and what goes wrong there."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from batches import PROMPTS, same, toy_of_batches
from fake_engine import Scripted
from specrs import (
    BatchError,
    BatchInterrupted,
    Completion,
    ContextOverflow,
    Llama,
    PromptLookup,
    Sampling,
)
from specrs.serving.many import Many, Progress


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_of_batches(monkeypatch, tmp_path)


def test_many_are_what_one_by_one_is_in_their_order(llm: Llama) -> None:
    options: dict[str, Any] = {"sampling": Sampling(temperature=1, seed=4), "logprobs": 2}
    many = llm.generate_many(PROMPTS, max_requests=2, **options)
    assert all(same(m, llm.generate(p, **options)) for m, p in zip(many, PROMPTS, strict=True))
    ids = [llm.tokenize(prompt) for prompt in PROMPTS]
    again = llm.generate_many(ids, **options)
    assert all(same(a, m) for a, m in zip(again, many, strict=True))


def test_chats(llm: Llama) -> None:
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    many = llm.chat_many(chats, max_tokens=9)
    assert all(same(m, llm.chat(c, max_tokens=9)) for m, c in zip(many, chats, strict=True))
    with llm.batch() as batch:
        reply = batch.add_chat(chats[0], max_tokens=9)
        assert same(reply.result(), many[0])


def test_chunks_of_many_join_to_their_texts(llm: Llama) -> None:
    wanted = llm.generate_many(PROMPTS)
    parts: dict[int, list[Any]] = {}
    for number, chunk in llm.stream_many(PROMPTS, max_requests=3):
        parts.setdefault(number, []).append(chunk)
    for number, chunks in parts.items():
        assert "".join(chunk.text for chunk in chunks) == wanted[number].text
        assert [t for chunk in chunks for t in chunk.tokens] == wanted[number].tokens
    assert len(parts) == len(PROMPTS)


def test_some_options_may_differ_from_prompt_to_prompt(llm: Llama) -> None:
    samplings = [Sampling(temperature=1.0, seed=seed) for seed in range(5)]
    drafters = [None, PromptLookup(), Scripted([9] * 99), None, PromptLookup()]
    limits = [1, 2, 30, None, 5]
    many = llm.generate_many(PROMPTS, sampling=samplings, drafter=drafters, max_tokens=limits)
    for i, prompt in enumerate(PROMPTS):
        assert same(many[i], llm.generate(prompt, sampling=samplings[i], max_tokens=limits[i]))


def test_a_seed_is_that_of_the_request_wherever_it_stands(llm: Llama) -> None:
    one, two = llm.generate_many(["abc", "abc"], sampling=Sampling(temperature=1.0, seed=9))
    assert same(one, two)
    one, two = llm.generate_many(["abc"] * 2, sampling=Sampling(temperature=1.0, seed=None))
    assert one.stats.seed != two.stats.seed


@pytest.mark.parametrize("prompts", [[5, 6, 7], iter([5, 6])], ids=["list", "iterator"])
def test_ids_of_one_prompt_are_not_many(llm: Llama, prompts: Any) -> None:
    with pytest.raises(TypeError, match=r"pass \[ids\]"):
        llm.generate_many(prompts)


@pytest.mark.parametrize("prompts", ["abc", b"abc", {"a": 1}, 3, None])
def test_what_is_not_many_prompts(llm: Llama, prompts: Any) -> None:
    with pytest.raises(TypeError, match="several texts"):
        llm.generate_many(prompts)


def test_one_conversation_is_not_many(llm: Llama) -> None:
    with pytest.raises(TypeError, match=r"pass \[messages\]"):
        llm.chat_many([{"role": "user", "content": "abc"}])
    with pytest.raises(TypeError, match="conversations must be several lists of messages, not 'a'"):
        llm.chat_many("a")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"session": None}, TypeError, r"generate_many\(\): .*leave session= out"),
        ({"temperature": 1}, TypeError, r"generate_many\(\) got .*'temperature'; it belongs to"),
        ({"tools": []}, TypeError, r"generate_many\(\) got an unexpected .*'tools'"),
        ({"max_requests": 0}, ValueError, "max_requests must be at least 1"),
        ({"max_requests": 1.5}, TypeError, "max_requests must be an int"),
        ({"cache_bytes": 5}, ValueError, "cache_bytes must be at least 1024"),
        ({"cache_bytes": -1}, ValueError, "cache_bytes must be between"),
        ({"cache_bytes": True}, TypeError, "cache_bytes must be an int"),
        ({"cache_bytes": "1G"}, TypeError, "cache_bytes must be an int"),
        ({"show_progress": 1}, TypeError, "show_progress must be True or False"),
        ({"return_errors": 1}, TypeError, "return_errors must be True or False"),
        ({"max_tokens": [1, 2]}, ValueError, "max_tokens has 2 values for 5 prompts"),
        ({"sampling": [Sampling()] * 6}, ValueError, "sampling has 6 values for 5"),
        ({"max_tokens": -1}, ValueError, "max_tokens must be 0 or more"),
        ({"stop": [1]}, TypeError, "stop must be text"),
    ],
)
def test_what_is_wrong_for_all_is_wrong_at_once(
    llm: Llama, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        llm.generate_many(PROMPTS, **options)


def test_lists_for_an_iterator_must_have_its_length(llm: Llama) -> None:
    for limits in ([1] * 4, [1] * 6):
        with pytest.raises(ValueError, match="max_tokens has"):
            llm.generate_many(iter(PROMPTS), max_tokens=limits)


def test_bad_prompts_among_good_ones(llm: Llama) -> None:
    prompts: list[Any] = ["abc", "", [999], "b" * 300, "hello", 5]
    with pytest.raises(
        BatchError, match=r"4 of 6 prompts failed, the first of them prompts\[1\]"
    ) as info:
        llm.generate_many(prompts)
    error = info.value
    assert set(error.errors) == {1, 2, 3, 5}
    assert isinstance(error.errors[3], ContextOverflow)
    assert isinstance(error.errors[5], TypeError)
    for i in (0, 4):
        result = error.results[i]
        assert result is not None
        assert same(result, llm.generate(prompts[i]))
    in_place = llm.generate_many(prompts, return_errors=True)
    assert [isinstance(one, Exception) for one in in_place] == [i in error.errors for i in range(6)]
    with pytest.raises(BatchError, match="4 prompts failed") as info:
        list(llm.stream_many(prompts))
    assert set(info.value.errors) == {1, 2, 3, 5}
    assert info.value.results == []  # it may have been endless


def test_failures_at_the_very_end_are_told(llm: Llama) -> None:
    """Also where others are over before the last prompts are read."""
    with llm.batch() as batch:

        def prompts() -> Iterator[str]:
            yield "abc"
            yield "hello"
            for request in list(many._open.values()):
                assert not isinstance(request, Exception)
                request.result(60)
            yield ""
            yield ""

        many = Many(batch, batch.add, prompts(), 9, {"max_tokens": 3})
        told = {number: type(outcome) for number, _, outcome in many.run()}
    assert told == {0: Completion, 1: Completion, 2: ValueError, 3: ValueError}


def test_a_batch_that_breaks_ends_the_reading(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise LookupError("a fault of ours")

    batch = llm.batch(max_requests=1)
    monkeypatch.setattr(batch._steps, "step", broken)
    many = Many(batch, batch.add, iter(lambda: "abc", None), 4, {})
    with pytest.raises(RuntimeError, match="the batch has failed: LookupError"):
        list(many.run())


def test_errors_can_be_sent_to_other_processes(llm: Llama) -> None:
    with pytest.raises(BatchError) as info:
        llm.generate_many(["abc", ""])
    error = pickle.loads(pickle.dumps(info.value))
    assert str(error) == str(info.value)
    assert error.results == info.value.results
    assert [str(one) for one in error.errors.values()] == [
        str(one) for one in info.value.errors.values()
    ]
    interrupted = pickle.loads(pickle.dumps(BatchInterrupted([None], {})))
    assert interrupted.results == [None]


class Raising:
    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        raise RuntimeError("no idea")


def test_a_drafter_that_raises_fails_its_own_request_only(llm: Llama) -> None:
    drafters = [None, Raising(), PromptLookup(), None, None]
    with pytest.raises(BatchError, match="drafter Raising failed") as info:
        llm.generate_many(PROMPTS, drafter=drafters)
    assert set(info.value.errors) == {1}


def test_nothing_to_do(llm: Llama) -> None:
    assert llm.generate_many([]) == []
    assert list(llm.stream_many([])) == []
    (empty,) = llm.generate_many(["abc"], max_tokens=0)
    assert same(empty, llm.generate("abc", max_tokens=0))
    with llm.batch():
        pass


def test_any_iterable_is_read_in_a_window(llm: Llama) -> None:
    read, done = 0, 0

    def prompts() -> Iterator[str]:
        nonlocal read
        for i in range(60):
            read += 1
            assert read - done <= 2 * 4 + 1
            yield "abc"[: 1 + i % 3]

    ended = 0
    for _, chunk in llm.stream_many(prompts(), max_requests=2, max_tokens=1):
        done += chunk is not None
        ended += 1
    assert (read, ended) == (60, 60)


@pytest.mark.parametrize("sort", [True, False])
def test_what_begins_alike_runs_one_after_the_other(llm: Llama, sort: bool) -> None:
    """Questions on six texts in turns, where memory holds three of the texts."""
    texts = [[5 + i] * 128 for i in range(6)]
    prompts = [[*text, question] for question in range(5, 9) for text in texts]
    batch = llm.batch(max_requests=6, cache_bytes=13 * 512)
    keys: dict[str, Any] = {} if sort else {"key": lambda prompt: ""}
    many = Many(batch, batch.add, prompts, 24, {"max_tokens": 1}, **keys)
    done = [number for number, _, _ in many.run()]
    assert sorted(done) == list(range(24))
    assert batch.stats.prompt_tokens == 24 * 129
    evaluated = batch.stats.prompt_tokens - batch.stats.cached_tokens
    assert (evaluated < 8 * 129) == sort


def test_nobody_is_passed_over_for_ever(llm: Llama) -> None:
    """Where prompts keep coming that stand after the last one in their order."""
    added: list[str] = []

    def add(prompt: str, **options: Any) -> Any:
        added.append(prompt)
        return batch.add(prompt, **options)

    def prompts() -> Iterator[str]:
        for i in range(60):
            yield "a" if i == 9 else "b" * (1 + i)

    batch = llm.batch(max_requests=2)
    list(Many(batch, add, prompts(), 8, {"max_tokens": 1}).run())
    assert 9 < added.index("a") <= 9 + 2 * 8 + 8
    assert len(added) == 60


def test_ctrl_c_keeps_what_is_done(llm: Llama) -> None:
    def prompts() -> Iterator[str]:
        yield "abc"
        yield "hello"
        time.sleep(0.2)
        raise KeyboardInterrupt

    with pytest.raises(BatchInterrupted) as info:
        llm.generate_many(prompts(), max_tokens=9)
    done = [result for result in info.value.results if result is not None]
    assert len(info.value.results) == 2
    assert all(
        same(d, llm.generate(p, max_tokens=9)) for d, p in zip(done, ["abc", "hello"], strict=False)
    )


def test_so_it_does_between_two_of_them(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the main thread is not waiting just now, but tells of its progress."""
    told = 0

    def update(progress: Progress, outcome: object) -> None:
        nonlocal told
        told += 1
        if told == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "update", update)
    with pytest.raises(BatchInterrupted) as info:
        llm.generate_many(PROMPTS, max_requests=1)
    results = info.value.results
    assert sum(result is not None for result in results) >= 2
    for result, prompt in zip(results, PROMPTS, strict=False):
        assert result is None or same(result, llm.generate(prompt))


def test_an_iterable_that_raises_ends_it_all(llm: Llama) -> None:
    def prompts() -> Iterator[str]:
        yield "abc"
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        llm.generate_many(prompts())


def test_progress_is_shown_on_a_terminal_only(
    llm: Llama, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.generate_many(PROMPTS, show_progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    llm.generate_many(PROMPTS, show_progress=True)
    assert "5 of 5 prompts" in capsys.readouterr().err


ENDLESS_PROMPTS = """
import signal, sys, time
import specrs
signal.signal(signal.SIGINT, signal.default_int_handler)
llm = specrs.Llama(sys.argv[1], threads=1)

def prompts():
    for i in range(10**9):
        if i == 100:
            print("ready", flush=True)
        yield [5 + i % 40, 6, 7]

try:
    llm.generate_many(prompts(), max_tokens=5, ignore_eos=True)
except specrs.BatchInterrupted as interrupted:
    done = {i: result for i, result in enumerate(interrupted.results) if result is not None}
    assert len(done) >= 100 - 4 * 16
    for i in list(done)[:40]:
        alone = llm.generate([5 + i % 40, 6, 7], max_tokens=5, ignore_eos=True)
        assert done[i].tokens == alone.tokens
    print("kept", flush=True)
"""


def test_a_signal_ends_many_and_keeps_what_is_done(tiny: Callable[..., Path]) -> None:
    command = [sys.executable, "-c", ENDLESS_PROMPTS, str(tiny())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "kept\n")
