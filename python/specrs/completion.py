"""What a generation gives its user: a completion at once, or a stream of chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ._specrs import Session
from .decoding.generate import steps
from .decoding.loop import Generation
from .decoding.stats import Stats
from .decoding.step import FinishReason, Step
from .decoding.trace import Trace
from .sampling import TokenLogprob
from .text import Chunk, Piece, TextWriter, chunk, joined


@dataclass(frozen=True)
class ToolCall:
    """A call that a reply makes of a tool.

    Attributes:
        id: What the message with its result refers to as `tool_call_id`.
        name: The tool's.
        arguments: An object as JSON text.
    """

    id: str
    name: str
    arguments: str

    def as_dict(self) -> dict[str, Any]:
        """Give it as a message has it among its "tool_calls"."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class Completion:
    """A finished generation.

    Attributes:
        text: The text up to the end token or stop string, neither included. In chats it is without
            reasoning and calls of tools.
        tokens: The ids made, the one that ended the generation included.
        finish_reason: "stop" at an end token or stop string, "length" at `max_tokens` or a full
            context, "cancelled" where a request of a batch was cancelled.
        logprobs: One for each of `tokens`; None unless asked for.
        stats: What it cost.
        trace: The steps, if asked for.
        tool_calls: The tools that a reply calls, if the chat was given any.
        reasoning: What the model thought before it replied; None if it did not.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprob] | None
    stats: Stats
    trace: Trace | None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None


class Stream(Iterator[Chunk]):
    """A running generation: iterate over its chunks. Closing it early leaves its session in order.

    Attributes:
        stats: Counts and times so far.
        finish_reason: None while it runs.
        session: Where it runs.
        generation: What it does there.
    """

    def __init__(
        self,
        session: Session,
        generation: Generation,
        writer: TextWriter,
        stats: Stats,
        trace: Trace | None,
        finish_reason: FinishReason | None,
    ) -> None:
        self.stats = stats
        self.finish_reason = finish_reason
        self.session = session
        self.generation = generation
        self._events = steps(session, generation)
        self._writer = writer
        self._trace = trace
        self._ready: deque[Chunk] = deque()

    def __next__(self) -> Chunk:
        while not self._ready:
            self._ready.extend(self.take(next(self._events)))
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
        return self.completion(chunks)

    def take(self, step: Step) -> Iterator[Chunk]:
        """Take note of a step; return its chunks. For who drives the generation in our place."""
        self.stats.record(step)
        if self._trace is not None:
            self._trace.append(step)
        self.finish_reason = step.finish_reason
        return self._writer.chunks(step)

    def cancel(self) -> Chunk:
        """End after the steps so far; return the text that was held back."""
        self.finish_reason = "cancelled"
        return chunk(self._writer.finish(), [], False)

    def completion(self, chunks: Iterable[Chunk]) -> Completion:
        """Return what these chunks are together, at the end."""
        chunks = list(chunks)
        assert self.finish_reason is not None
        whole = joined([Piece(chunk.text, chunk.reasoning, chunk.tool_calls) for chunk in chunks])
        return Completion(
            text=whole.text,
            tokens=[token for chunk in chunks for token in chunk.tokens],
            finish_reason=self.finish_reason,
            logprobs=None
            if self.generation.logprobs is None
            else [of for chunk in chunks for of in chunk.logprobs or ()],
            stats=self.stats,
            trace=self._trace,
            tool_calls=tuple(ToolCall(of.id, of.name, of.arguments) for of in whole.tool_calls),
            reasoning=whole.reasoning or None,
        )
