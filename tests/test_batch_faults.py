"""Batches where something goes wrong: callbacks, threads, forks, interrupts, and what is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from batches import Gate, same, toy_of_batches
from specrs import Batch, Completion, FixedLength, Llama, Request, Sampling

ENDLESS: dict[str, Any] = {"max_tokens": 50, "ignore_eos": True, "draft_length": FixedLength(1)}


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_of_batches(monkeypatch, tmp_path)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt, also where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def threads_of_batches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "specrs batch"]


def test_so_does_a_report_of_progress(llm: Llama) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyError("enough")

    with llm.batch() as batch:
        bad, good = batch.add("abc", progress=stop), batch.add("abc")
        with pytest.raises(KeyError, match="enough"):
            bad.result()
        assert same(good.result(), llm.generate("abc"))


def test_what_can_never_fit_is_refused_at_once(llm: Llama) -> None:
    with llm.batch(cache_bytes=2 * 512) as batch:
        with pytest.raises(MemoryError, match="lower max_tokens or raise cache_bytes"):
            batch.add("a" * 100)
        assert batch.add("abc", max_tokens=9).result().finish_reason == "length"


def test_a_fork_is_told_that_the_thread_is_elsewhere(llm: Llama) -> None:
    gate = Gate(after=5)
    with llm.batch() as batch:
        running = batch.add("abc", drafter=gate, **ENDLESS)
        assert gate.reached.wait(60)
        told = 0
        if (child := os.fork()) == 0:
            for use in (lambda: batch.add("abc"), running.result, lambda: next(iter(running))):
                try:
                    use()
                except RuntimeError as error:
                    told += "fork" in str(error)
                except BaseException:
                    pass
            os._exit(told)
        gate.open.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_an_engine_that_fails_fails_the_request_at_fault(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward_many = llm._model.forward_many

    def failing(inputs: Any, *, choose: Any) -> Any:
        inputs = list(inputs)
        if any(7 in tokens for _, tokens, _ in inputs):
            raise MemoryError("no room for logits")
        return forward_many(inputs, choose=choose)

    monkeypatch.setattr(llm._model, "forward_many", failing)
    results = llm.generate_many([[5, 6], [7, 8], [9]], max_tokens=1, return_errors=True)
    assert [type(result) for result in results] == [Completion, MemoryError, Completion]


def test_a_batch_that_breaks_tells_everybody(llm: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise LookupError("a fault of ours")

    with llm.batch() as batch:
        monkeypatch.setattr(batch._steps, "step", broken)
        request = batch.add("abc")
        with pytest.raises(LookupError, match="a fault of ours"):
            request.result(60)
        with pytest.raises(RuntimeError, match="the batch has failed"):
            batch.add("abc")


def leave(*_: object) -> Any:
    raise SystemExit(3)


class Leaving:
    propose = leave


class LeavingMany(Leaving):
    propose_many = leave


@pytest.mark.parametrize(
    "options",
    [
        {"progress": leave},
        {"sampling": Sampling(logits_processor=leave)},
        {"drafter": Leaving()},
        {"drafter": LeavingMany()},
    ],
    ids=["progress", "logits_processor", "drafter", "drafter of many"],
)
def test_a_callback_that_would_leave_ends_its_own_request(
    llm: Llama, options: dict[str, Any]
) -> None:
    with llm.batch() as batch:
        bad = batch.add("abc", **options)
        good = batch.add("hello")
        with pytest.raises(RuntimeError, match="SystemExit"):
            bad.result()
        assert same(good.result(), llm.generate("hello"))
    assert (batch.stats.failed, batch.stats.finished) == (1, 1)


@pytest.mark.parametrize("wait", [Request.result, list], ids=["result", "iteration"])
def test_a_callback_cannot_wait_for_its_own_batch(
    llm: Llama, wait: Callable[[Request], object]
) -> None:
    with llm.batch() as batch:
        waiting = batch.add("abc", progress=lambda done, total: wait(batch.add("zz")))
        closing = batch.add("hello", progress=lambda done, total: batch.close())
        for request in (waiting, closing):
            with pytest.raises(RuntimeError, match="cannot wait for the batch"):
                request.result(60)
    assert batch.stats.finished == 1


def test_where_no_thread_can_start_nothing_is_added(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with llm.batch() as batch:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                batch.add("abc")
        assert same(batch.add("hello").result(60), llm.generate("hello"))
    assert batch.stats.requests == 1


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_of_the_wait_at_the_end_cancels_and_waits_on(llm: Llama) -> None:
    gate = Gate(after=5)
    batch, main = llm.batch(), threading.get_ident()
    request = batch.add("abc", drafter=gate, **ENDLESS)

    def interrupt() -> None:
        assert gate.reached.wait(60)
        while not batch._closing:
            time.sleep(0.001)
        time.sleep(0.1)  # it waits now
        signal.pthread_kill(main, signal.SIGINT)
        threading.Timer(0.2, gate.open.set).start()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        batch.close()
    assert request.result(0).finish_reason == "cancelled"
    assert batch.stats.cache_bytes == 0


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_wait_leaves_nothing_behind(llm: Llama) -> None:
    gate = Gate(after=5)
    with llm.batch() as batch:
        request = batch.add("abc", drafter=gate, **ENDLESS)
        assert gate.reached.wait(60)
        here = threading.get_ident()
        threading.Timer(0.1, signal.pthread_kill, (here, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            request.result()
        assert request._enders == []
        gate.open.set()
        assert len(request.result().tokens) == 50


UNCLOSED = """
import sys, time
import specrs
llm = specrs.Llama(sys.argv[1], threads=1)
batch = llm.batch()
requests = [batch.add([5, 6, 7 + i], max_tokens=None, ignore_eos=True) for i in range(3)]
next(iter(requests[0]))
print("running", flush=True)
"""


def test_the_program_may_end_in_the_middle(tiny: Callable[..., Path]) -> None:
    command = [sys.executable, "-c", UNCLOSED, str(tiny(n_ctx=100_000))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "running\n", "")


def test_an_idle_batch_has_no_thread_and_can_be_forgotten(llm: Llama) -> None:
    batch: Batch | None = llm.batch()
    assert batch is not None
    for prompt in ("abc", "hello"):
        assert same(batch.add(prompt).result(60), llm.generate(prompt))
    for thread in threads_of_batches():
        thread.join(60)
    assert not threads_of_batches()
    forgotten = weakref.ref(batch)
    batch = None
    assert forgotten() is None


def test_what_is_kept_goes_with_the_batch_at_once(llm: Llama) -> None:
    """Sessions are large, and the collector does not know it."""
    sessions: list[weakref.ref[Any]] = []
    make = llm._model.session

    def session() -> Any:
        made = make()
        fork = made.fork
        made.fork = lambda: noted(fork())  # type: ignore[method-assign]
        return made

    def noted(session: Any) -> Any:
        sessions.append(weakref.ref(session))
        return session

    llm._model.session = session  # type: ignore[method-assign]
    batch = llm.batch()
    for prompt in ("abc", "abd", "hello"):
        batch.add(prompt, max_tokens=5).result(60)
    for thread in threads_of_batches():
        thread.join(60)
    assert any(session() is not None for session in sessions)
    gc.disable()
    try:
        del batch
        assert [session() for session in sessions if session() is not None] == []
    finally:
        gc.enable()


def test_a_waiter_that_raises_keeps_nobody_waiting(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: told.append(kind))

    def fault() -> None:
        raise LookupError

    gate = Gate(after=5)
    with llm.batch() as batch:
        request = batch.add("abc", drafter=gate, **ENDLESS)
        assert gate.reached.wait(60)
        request.notify(fault, None)
        gate.open.set()
        assert request.result(60).finish_reason == "length"
        assert same(batch.add("hello").result(60), llm.generate("hello"))
    assert told == [LookupError]


class Coupled:
    """A drafter that has a state for each generation, and notes whether it is still there."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.states: list[weakref.ref[Any]] = []

    def coupled(self, sampling: Sampling, prompt_tokens: int) -> State:
        state = State(self.gate)
        self.states.append(weakref.ref(state))
        return state

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        raise AssertionError


class State:
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        return self.gate.propose(tokens, k)


def test_a_cancelled_request_lets_its_drafter_go(llm: Llama) -> None:
    drafter = Coupled(Gate(after=5))
    with llm.batch() as batch:
        request = batch.add("abc", drafter=drafter, **ENDLESS)
        assert drafter.gate.reached.wait(60)
        request.cancel()
        drafter.gate.open.set()
        assert request.result(60).finish_reason == "cancelled"
    assert drafter.states[0]() is None


def test_a_salt_must_be_hashable(llm: Llama) -> None:
    with llm.batch() as batch, pytest.raises(TypeError, match="cache_salt must be hashable"):
        batch.add("abc", cache_salt=[1])  # type: ignore[arg-type]


def test_with_hardly_any_memory_short_texts_run(
    llm: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specrs.serving.batch.available", lambda: 5)
    with llm.batch() as batch:
        assert same(batch.add("abc", max_tokens=5).result(), llm.generate("abc", max_tokens=5))
