"""What a batch tells and takes for a server: its steps, its failure, and who goes first."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from fake_engine import toy_llama
from specrs import Llama
from specrs.serving.step import Event


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Llama:
    return toy_llama(monkeypatch, tmp_path / "toy", n_ctx=200, order=2)


class Gate:
    """A drafter that holds up the batch."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def propose(self, tokens: Any, k: int) -> list[int]:
        self.reached.set()
        assert self.open.wait(60)
        return []


def test_every_step_is_told(llm: Llama) -> None:
    made, ended = 0, 0

    def note(events: Collection[Event]) -> None:
        nonlocal made, ended
        made += sum(len(step.tokens) for event in events for step in event.steps)
        ended += sum(event.ended for event in events)

    with llm.batch(on_step=note) as batch:
        for prompt in ("abc", "hello"):
            batch.add(prompt, max_tokens=9)
    assert ended == 2
    assert made == batch.stats.tokens_generated > 2


def test_what_is_called_after_a_step_may_not_raise(llm: Llama) -> None:
    def fail(events: Collection[Event]) -> None:
        raise KeyError("no")

    batch = llm.batch(on_step=fail)
    assert batch.failure is None
    request = batch.add("abc", ignore_eos=True)
    with pytest.raises(KeyError):
        request.result(60)
    assert isinstance(batch.failure, KeyError)
    with pytest.raises(RuntimeError, match="the batch has failed"):
        batch.add("abc")


def test_who_has_priority_is_begun_first(llm: Llama) -> None:
    gate = Gate()
    order: list[int] = []

    def note(events: Collection[Event]) -> None:
        order.extend(event.sequence.number for event in events if event.ended)

    with llm.batch(max_requests=1, on_step=note) as batch:
        batch.add("abc", drafter=gate, ignore_eos=True, max_tokens=3)
        assert gate.reached.wait(60)
        for priority in (5, 0, -1, 0):
            batch.add("abc", priority=priority, max_tokens=2)
        assert (batch.stats.running, batch.stats.waiting) == (1, 4)
        with pytest.raises(TypeError, match="priority"):
            batch.add("abc", priority="high")  # type: ignore[arg-type]
        gate.open.set()
    assert order == [0, 3, 2, 4, 1]
    assert (batch.stats.running, batch.stats.waiting) == (0, 0)
