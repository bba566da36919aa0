"""Requests run together step by step, without threads, as a test says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specrs import Completion, Llama
from specrs.completion import Stream
from specrs.serving.cost import Cost
from specrs.serving.pages import Pages
from specrs.serving.sequence import Sequence as Running
from specrs.serving.step import Steps
from specrs.text import Chunk


@dataclass
class Costs:
    """What passes are said to cost: `rows` of a prompt fit beside those of others."""

    rows: int

    def __call__(self, rows: int, seen: int = 0) -> float:
        return max(1.0, 4.0 * rows / (self.rows + 8))

    def update(self, rows: int, seen: int, seconds: float) -> None:
        """Learn nothing."""


@dataclass
class Wish:
    """A request of a schedule.

    Attributes:
        prompt: Its ids.
        options: Those of `Llama.stream`.
        arrives: The step before which it is added.
        cancelled: The step before which it is cancelled, if it is.
        salt: See `Batch.add`.
    """

    prompt: Sequence[int]
    options: dict[str, Any] = field(default_factory=dict)
    arrives: int = 0
    cancelled: int | None = None
    salt: str | None = None


class Schedule:
    """Wishes on their way."""

    def __init__(
        self,
        llm: Llama,
        wishes: Sequence[Wish],
        *,
        pages: int = 1000,
        max_requests: int = 16,
        prefixes: bool = True,
        rows: int = 64,
        tick: float = 0.01,
        cost: Cost | None = None,
    ) -> None:
        self.llm = llm
        self.wishes = wishes
        self.pages = Pages(pages)
        self.now = 0.0
        self.steps = Steps(
            llm,
            self.pages,
            max_requests=max_requests,
            keep_prefixes=prefixes,
            cost=Costs(rows) if cost is None else cost,
            clock=lambda: self.now,
        )
        self.tick = tick
        self.taken = 0  # steps so far
        self.sequences: dict[int, Running] = {}
        self.streams: dict[int, Stream] = {}
        self.chunks: dict[int, list[Chunk]] = {}
        self.results: dict[int, Completion | Exception] = {}
        self.ended: list[int] = []

    def __iter__(self) -> Iterator[int]:
        """Take step after step; give how many there were."""
        left = set(range(len(self.wishes)))
        while left or self.steps.busy:
            for i in sorted(left):
                if self.wishes[i].arrives <= self.taken:
                    left.remove(i)
                    self._add(i)
            for i, wish in enumerate(self.wishes):
                late = wish.cancelled is not None and wish.cancelled <= self.taken
                if late and i in self.sequences:
                    self.sequences[i].cancelled = True
            self._step()
            self.now += self.tick
            self.taken += 1
            yield self.taken

    def run(self) -> dict[int, Completion | Exception]:
        """Take all steps; return what became of the wishes."""
        for _ in self:
            assert self.pages.used <= self.pages.total
        return self.results

    def _add(self, i: int) -> None:
        wish = self.wishes[i]
        stream = self.llm.stream(wish.prompt, **wish.options)
        self.streams[i], self.chunks[i] = stream, []
        try:
            sequence = self.steps.prepare(i, stream.generation, wish.salt)
        except MemoryError as error:
            self.results[i] = error
            return
        self.sequences[i] = sequence
        self.steps.add(sequence)

    def _step(self) -> None:
        for event in self.steps.step():
            i = event.sequence.number
            stream, chunks = self.streams[i], self.chunks[i]
            for step in event.steps:
                chunks += stream.take(step)
            if event.ended:
                assert i not in self.results
                self.ended.append(i)
                if event.error is not None:
                    self.results[i] = event.error
                    continue
                if stream.finish_reason is None:
                    chunks.append(stream.cancel())
                self.results[i] = stream.completion(chunks)
        for sequence in self.steps.scheduler.running:
            assert sequence.session is not None
            assert len(sequence.session) == sequence.computed
            assert sequence.session.tokens == known(sequence)[: sequence.computed]


def known(sequence: Running) -> list[int]:
    """Return the tokens of a sequence, with those that it wants evaluated."""
    wanted = sequence.wanted
    if wanted is None:
        return sequence.tokens
    return sequence.tokens[: wanted.start] + wanted.tokens
