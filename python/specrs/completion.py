"""What a generation gives its user: a completion at once, or a stream of chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from .decoding.stats import Stats
from .decoding.step import FinishReason, Step
from .decoding.trace import Trace
from .sampling import TokenLogprob
from .text import Chunk, TextWriter


@dataclass(frozen=True)
class Completion:
    """A finished generation.

    Attributes:
        text: The text up to the end token or stop string, neither included.
        tokens: The ids made, the one that ended the generation included.
        finish_reason: "stop" at an end token or stop string, "length" at `max_tokens` or a full
            context.
        logprobs: One for each of `tokens`; None unless asked for.
        stats: What it cost.
        trace: The steps, if asked for.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprob] | None
    stats: Stats
    trace: Trace | None


class Stream(Iterator[Chunk]):
    """A running generation: iterate over its chunks. Closing it early leaves its session in order.

    Attributes:
        stats: Counts and times so far.
        finish_reason: None while it runs.
    """

    def __init__(
        self,
        events: Generator[Step],
        writer: TextWriter,
        stats: Stats,
        trace: Trace | None,
        finish_reason: FinishReason | None,
        has_logprobs: bool,
    ) -> None:
        self.stats = stats
        self.finish_reason = finish_reason
        self._events = events
        self._writer = writer
        self._trace = trace
        self._has_logprobs = has_logprobs
        self._ready: deque[Chunk] = deque()

    def __next__(self) -> Chunk:
        while not self._ready:
            step = next(self._events)
            self.stats.record(step)
            if self._trace is not None:
                self._trace.append(step)
            self.finish_reason = step.finish_reason
            self._ready.extend(self._writer.chunks(step))
        return self._ready.popleft()

    def close(self) -> None:
        """Stop here; the session keeps what was generated and is free for other use."""
        self._events.close()
        self._ready.clear()

    def collect(self) -> Completion:
        """Run to the end and return what was not yet iterated over; the stats are of everything."""
        chunks = list(self)
        if self.finish_reason is None:
            raise RuntimeError("the stream was closed before its end; there is nothing to collect")
        return Completion(
            text="".join(chunk.text for chunk in chunks),
            tokens=[token for chunk in chunks for token in chunk.tokens],
            finish_reason=self.finish_reason,
            logprobs=[of for chunk in chunks for of in chunk.logprobs or ()]
            if self._has_logprobs
            else None,
            stats=self.stats,
            trace=self._trace,
        )
