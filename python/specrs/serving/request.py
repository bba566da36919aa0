"""A request of a batch, as its user sees it."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ..completion import Completion, Stream
from ..decoding.stats import Stats
from ..text import Chunk
from .sequence import Sequence

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

Waiter = Callable[[], object]
"""Called once when something has happened, in the thread of the batch: it must be quick."""


class Request:
    """One text of a batch: iterate over its chunks, also with `async for`; `await` its completion.

    Any number of readers may do so, from any thread, and each gets everything from the beginning.
    """

    def __init__(self, stream: Stream, sequence: Sequence, check: Callable[[], None]) -> None:
        self._stream = stream
        self._sequence = sequence
        self._check = check  # raises where whoever waits would do so for ever
        self._lock = threading.Lock()
        self._chunks: list[Chunk] = []
        self._completion: Completion | None = None
        self._error: Exception | None = None
        self._done = False
        self._waiters: list[Waiter] = []  # for the next chunk, or the end
        self._enders: list[Waiter] = []  # for the end

    @property
    def stats(self) -> Stats:
        """Counts and times so far: queued, prefill, decode, and what was cached of the prompt."""
        return self._stream.stats

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._done

    def cancel(self) -> None:
        """End it before its next step; what is there stays. Nothing happens if it is over."""
        self._sequence.cancelled = True

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the completion; raise what went wrong.

        Args:
            timeout: Seconds to wait at most; None is for ever.

        Raises TimeoutError where that was too short; the request goes on.
        """
        if not self._wait(self._enders, None, timeout):
            raise TimeoutError(f"the request is not done after {timeout} s; it goes on")
        return self._outcome()

    def exception(self) -> Exception | None:
        """Return what went wrong with a request that is over; None if nothing did."""
        return self._error

    def chunks(self, start: int = 0) -> list[Chunk]:
        """Return the chunks so far, from the one of index `start` on."""
        return self._chunks[start:]

    def over(self, taken: int | None) -> bool:
        """Whether nothing comes after the first `taken` chunks; None is whether it is over."""
        return self._done and taken in (None, len(self._chunks))

    def notify(self, waiter: Waiter, taken: int | None) -> None:
        """Call `waiter` once: when there are more than `taken` chunks, or at the end."""
        waiters = self._enders if taken is None else self._waiters
        if not self._enlist(waiters, taken, waiter):
            waiter()

    def __iter__(self) -> Iterator[Chunk]:
        at = 0
        while True:
            self._wait(self._waiters, at, None)
            chunks = self.chunks(at)
            at += len(chunks)
            yield from chunks
            if self.over(at):
                self._outcome()
                return

    def __await__(self) -> Generator[Any, None, Completion]:
        yield from self._wait_async(self._enders, None).__await__()
        return self._outcome()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        at = 0
        while True:
            await self._wait_async(self._waiters, at)
            chunks = self.chunks(at)
            at += len(chunks)
            for chunk in chunks:
                yield chunk
            if self.over(at):
                self._outcome()
                return

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<Request, failed: {self._error!r}>"
        if self._completion is not None:
            return f"<Request, done: {self._completion!r}>"
        return f"<Request, {self.stats.tokens_generated} tokens so far>"

    def _outcome(self) -> Completion:
        if self._error is not None:
            raise self._error
        assert self._completion is not None
        return self._completion

    def _enlist(self, waiters: list[Waiter], at: int | None, waiter: Waiter) -> bool:
        """Have `waiter` called at the next change; False if there is something to take already."""
        with self._lock:
            if self._done or (at is not None and len(self._chunks) > at):
                return False
            waiters.append(waiter)
            return True

    def _wait(self, waiters: list[Waiter], at: int | None, timeout: float | None) -> bool:
        """Wait for more than `at` chunks, or the end; False if that took too long."""
        if self._done:
            return True
        self._check()
        waiter = threading.Event()
        if not self._enlist(waiters, at, waiter.set):
            return True
        try:
            return waiter.wait(timeout) or self._done
        finally:
            with self._lock:
                if waiter.set in waiters:
                    waiters.remove(waiter.set)

    async def _wait_async(self, waiters: list[Waiter], at: int | None) -> None:
        from asyncio import get_running_loop

        if self._done:
            return
        self._check()
        loop = get_running_loop()
        waiter = _Future(loop, loop.create_future())
        if self._enlist(waiters, at, waiter):
            await waiter.future

    def _take(self, chunks: list[Chunk]) -> list[Waiter]:
        """Add chunks; return whom to call."""
        if not chunks:
            return []
        with self._lock:
            self._chunks += chunks
            called = self._waiters.copy()
            self._waiters.clear()
            return called

    def _end(self, error: Exception | None = None) -> list[Waiter]:
        """End; return whom to call."""
        with self._lock:
            if self._done:
                return []
            if error is None:
                if self._stream.finish_reason is None:
                    self._chunks.append(self._stream.cancel())
                self._completion = self._stream.completion(self._chunks)
            self._error, self._done = error, True
            called = [*self._waiters, *self._enders]
            self._waiters.clear()
            self._enders.clear()
            return called


class _Future:
    """A waiter in an event loop."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: AbstractEventLoop, future: Future[None]) -> None:
        self.loop = loop
        self.future = future

    def __call__(self) -> None:
        wake([self])


def wake(waiters: list[Waiter]) -> None:
    """Call waiters; those of one event loop wake it once."""
    loops: dict[AbstractEventLoop, list[Future[None]]] = {}
    for waiter in waiters:
        if isinstance(waiter, _Future):
            loops.setdefault(waiter.loop, []).append(waiter.future)
        else:
            try:
                waiter()
            except Exception as error:  # its fault keeps nobody else waiting
                sys.excepthook(type(error), error, error.__traceback__)
    for loop, futures in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, futures)
        except RuntimeError:  # the loop was closed: nobody waits any more
            continue


def _resolve(futures: list[Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
