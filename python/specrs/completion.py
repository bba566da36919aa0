"""What a generation gives its user: a completion at once, or a stream of chunks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from reprlib import repr as shortened
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


@dataclass(frozen=True, repr=False)
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
        matched_stop: What ended it: the stop string, or the id of the end token; None where it
            ended otherwise.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprob] | None
    stats: Stats
    trace: Trace | None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    matched_stop: str | int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give everything but the trace, which has a file of its own, as JSON can hold it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["trace"]
        values["stats"] = self.stats.as_dict()
        values["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        if self.logprobs is not None:
            values["logprobs"] = [asdict(one) for one in self.logprobs]
        return values

    def __repr__(self) -> str:
        calls = f"{len(self.tool_calls)} tool calls, " if self.tool_calls else ""
        return (
            f"<Completion {shortened(self.text)}, {len(self.tokens)} tokens, {calls}"
            f"{_ending(self.finish_reason, self.matched_stop)}>"
        )


class Stream(Iterator[Chunk]):
    """A running generation: iterate over its chunks, also with `async for`.

    Closing it early leaves its session in order. Any thread may close it, and several may take
    chunks from it.

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
        self._lock = threading.RLock()  # of a step, and of who takes chunks
        self._stepping = False
        self._closed = False

    @property
    def matched_stop(self) -> str | int | None:
        """What ended it: the stop string, or the id of the end token; None if nothing did."""
        return self._writer.matched_stop

    def __next__(self) -> Chunk:
        with self._lock:
            if not self._ready_or_over():
                return self._ready.popleft()
        raise StopIteration

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        from asyncio import to_thread

        # The thread takes nothing away: if the task is cancelled meanwhile, no chunk is lost.
        while not await to_thread(self._ready_or_over):
            chunk = next(self, None)
            if chunk is None:  # another reader took it
                return
            yield chunk

    def close(self) -> None:
        """Stop here; the session keeps what was generated and is free for other use.

        A step that is running, in another thread say, is finished first.
        """
        self._closed = True
        with self._lock:
            # Called by a drafter or a callback of the step itself, the end of the step closes.
            if not self._stepping:
                self._end()

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

    def _ready_or_over(self) -> bool:
        """Go on until there is a chunk; return whether there will be none."""
        with self._lock:
            while not self._ready and not self._closed:
                self._stepping = True
                try:
                    step = next(self._events, None)
                finally:
                    self._stepping = False
                if step is None:
                    return True
                self._ready.extend(self.take(step))
            if self._closed:
                self._end()
            return not self._ready

    def _end(self) -> None:
        self._events.close()
        self._ready.clear()

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
            matched_stop=self.matched_stop,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running"
        if self.finish_reason is not None:
            state = _ending(self.finish_reason, self.matched_stop)
        return f"<Stream of {self.stats.tokens_generated} tokens so far, {state}>"


def _ending(finish_reason: FinishReason, matched_stop: str | int | None) -> str:
    """Say how a generation ended."""
    if matched_stop is None:
        return finish_reason
    return f"{finish_reason} at {shortened(matched_stop)}"
