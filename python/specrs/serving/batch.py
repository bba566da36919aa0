"""A batch: requests from any thread, and one thread that runs them together."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from .._specrs import Session
from ..arguments import checked_bool, checked_count, checked_positive
from ..completion import Stream
from ..decoding.loop import Generation
from ..options import RequestOptionsOfChat, RequestOptionsOfText, check_options
from .cost import Cost
from .memory import available
from .pages import PAGE, Pages, pages_of
from .request import Request, Waiter, wake
from .sequence import Sequence, most_positions
from .step import Event, Steps, as_exception

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Source(Protocol):
    """The part of `Llama` that a batch needs."""

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of a position in the cache."""

    def session(self) -> Session:
        """Return a new, empty session."""

    def forward_many(self, inputs: Any, *, choose: Any) -> Any:
        """Append tokens to several sessions."""

    def stream(self, prompt: Any, **options: Any) -> Stream:
        """Check everything and prepare a generation."""

    def stream_chat(self, messages: Any, **options: Any) -> Stream:
        """Do the same for the reply to a conversation."""


@dataclass
class BatchStats:
    """Counts and times of a batch so far.

    Attributes:
        requests: Requests taken.
        finished: Those that came to their end.
        failed: Those that went wrong.
        cancelled: Those that were cancelled.
        paused: How often one gave its memory to others.
        prompt_tokens: Tokens of all prompts that were begun.
        cached_tokens: Those of them that others had evaluated.
        tokens_generated: Tokens made.
        passes: Passes over the weights that requests shared.
        rows: Rows of these passes.
        prefill_rows: Rows of prompts among them.
        seconds: Time of these passes.
        cache_bytes: What caches and kept prefixes take now.
        peak_cache_bytes: The most they took.
    """

    requests: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    paused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens_generated: int = 0
    passes: int = 0
    rows: int = 0
    prefill_rows: int = 0
    seconds: float = 0.0
    cache_bytes: int = 0
    peak_cache_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Give every figure by its name."""
        return asdict(self)


class Batch:
    """Requests that run together; `Llama.batch` makes one.

    Leaving `with` waits for all requests; if an exception leaves it, they are cancelled. Without
    `with`, the end of the program cancels them.

    Attributes:
        max_requests: Most requests that run at once.
        cache_bytes: Memory for caches and what is kept, in whole pages.
    """

    def __init__(
        self,
        llm: Source,
        cost: Cost,
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        prefix_cache: bool = True,
    ) -> None:
        self.max_requests = checked_positive("max_requests", max_requests)
        keep = checked_bool("prefix_cache", prefix_cache)
        page_bytes = PAGE * llm.cache_bytes_per_token
        if cache_bytes is None:
            total = max(2, available() // 2 // page_bytes)
        else:
            total = checked_count("cache_bytes", cache_bytes, 0, most=1 << 62) // page_bytes
            if total < 2:
                raise ValueError(
                    f"cache_bytes must be at least {2 * page_bytes}, two pages of the cache, "
                    f"not {cache_bytes}"
                )
        self.cache_bytes = total * page_bytes
        self._llm = llm
        self._page_bytes = page_bytes
        self._pages = Pages(total)
        self._steps = Steps(
            llm, self._pages, max_requests=self.max_requests, keep_prefixes=keep, cost=cost
        )
        self._process = os.getpid()
        self._numbers = count()
        self._stats = BatchStats()
        # Of all that follows; told when the thread ends.
        self._changed = threading.Condition()
        self._added: list[Sequence] = []
        self._requests: dict[Sequence, Request] = {}
        self._thread: threading.Thread | None = None  # there is one while there is work
        self._closing = False
        self._failure: BaseException | None = None

    def add(
        self,
        prompt: str | Iterable[int],
        *,
        cache_salt: Hashable = None,
        **options: Unpack[RequestOptionsOfText],
    ) -> Request:
        """Add a prompt; from any thread. Its arguments are checked here.

        Args:
            prompt: Text or token ids.
            cache_salt: Nothing of the prompt is shared with requests of another salt, so that their
                times tell them nothing of it.
            **options: As for `Llama.stream`, without `session`. `draft_length=AdaptiveLength(...)`,
                the default, is decided for all requests together, up to its `max_length`.

        Raises what `Llama.stream` does, MemoryError for what can never fit into `cache_bytes`, and
        RuntimeError once the batch is closed.
        """
        check_request_options("add", options, RequestOptionsOfText)
        return self._add(self._llm.stream, prompt, cache_salt, dict(options))

    def add_chat(
        self, messages: Any, *, cache_salt: Hashable = None, **options: Unpack[RequestOptionsOfChat]
    ) -> Request:
        """Add a conversation to reply to; otherwise as `add`."""
        check_request_options("add_chat", options, RequestOptionsOfChat)
        return self._add(self._llm.stream_chat, messages, cache_salt, dict(options))

    @property
    def stats(self) -> BatchStats:
        """Counts and times so far."""
        steps, pages = self._steps, self._pages
        return replace(
            self._stats,
            paused=steps.scheduler.paused,
            passes=steps.passes,
            rows=steps.rows,
            prefill_rows=steps.prefill_rows,
            seconds=steps.seconds,
            cache_bytes=pages.used * self._page_bytes,
            peak_cache_bytes=pages.most * self._page_bytes,
        )

    def cancel(self) -> None:
        """Cancel all requests that are not over."""
        if self._process != os.getpid():
            return  # a fork: the thread, and who may hold the lock, are elsewhere
        with self._changed:
            for sequence in self._requests:
                sequence.cancelled = True

    def close(self) -> None:
        """Take no more requests, and wait for those that are there; an exception cancels them."""
        if self._process != os.getpid():
            return
        self._check_thread()
        with self._changed:
            self._closing = True
            try:
                self._changed.wait_for(lambda: self._thread is None)
            except BaseException:
                self.cancel()
                self._changed.wait_for(lambda: self._thread is None)
                raise
            finally:
                if self._thread is None:
                    self._steps.forget()

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        self.close()

    def __repr__(self) -> str:
        stats = self.stats
        over = stats.finished + stats.failed + stats.cancelled
        cache = f"{stats.cache_bytes / 1e6:,.0f} of {self.cache_bytes / 1e6:,.0f} MB of cache"
        closed = ", closed" if self._closing else ""
        return f"<Batch of {stats.requests} requests, {over} over, {cache}{closed}>"

    def _add(
        self, prepare: Callable[..., Stream], prompt: Any, salt: Hashable, options: dict[str, Any]
    ) -> Request:
        self.check()
        try:
            hash(salt)
        except TypeError:
            raise TypeError(f"cache_salt must be hashable, such as text, not {salt!r}") from None
        stream = prepare(prompt, **options)
        generation = stream.generation
        extra = self._extra_pages(generation)
        with self._changed:
            self.check()
            if self._closing:
                raise RuntimeError("the batch is closed; make a new one with llm.batch()")
            sequence = self._steps.prepare(next(self._numbers), generation, salt, extra)
            request = Request(stream, sequence, self._check_waiting)
            if stream.finish_reason is not None:  # there is nothing to do
                request._end()
                self._stats.finished += 1
            else:
                self._start()
                self._requests[sequence] = request
                self._added.append(sequence)
            self._stats.requests += 1
        return request

    def _start(self) -> None:
        """Start the thread if there is none; called with the lock, which it waits for."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="specrs batch", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # the system refuses, or an interrupt: if it runs, it will see
            self._thread = None
            raise
        # A thread in the middle of a pass must not see the interpreter go.
        atexit.register(self._leave)

    def _leave(self) -> None:
        """Cancel everything at the end of the program."""
        self.cancel()
        self.close()

    def _extra_pages(self, generation: Generation) -> int:
        """Pages of the size of ours that the models of a drafter need for one generation."""
        members = getattr(generation.drafter, "members", [generation.drafter])
        models = [member.draft_llm for member in members if hasattr(member, "draft_llm")]
        per_token: int = sum(model.cache_bytes_per_token for model in models)
        positions = most_positions(generation, len(generation.prompt))
        return -(-pages_of(positions) * PAGE * per_token // self._page_bytes)

    def check(self) -> None:
        """Raise RuntimeError where nobody would answer: in a fork, or after a fault of ours."""
        if self._process != os.getpid():
            raise RuntimeError(
                "the batch belongs to the process that made it, and its thread is not in this "
                "fork; make a new one here"
            )
        if self._failure is not None:
            raise RuntimeError(f"the batch has failed: {self._failure!r}") from self._failure

    def _check_thread(self) -> None:
        """Raise where the thread would wait for itself."""
        if self._thread is threading.current_thread():
            raise RuntimeError(
                "what a batch calls, such as a drafter or progress=, cannot wait for the batch"
            )

    def _check_waiting(self) -> None:
        """Raise where whoever waits for a request would do so for ever."""
        self.check()
        self._check_thread()

    def _run(self) -> None:
        """Run requests until none is left."""
        try:
            while self._more():
                self._deliver(self._steps.step())
        except BaseException as error:  # a fault of ours
            with self._changed:
                self._failure = as_exception(error)
                left = list(self._requests.values())
                self._end_thread()
            wake([waiter for request in left for waiter in request._end(self._failure)])

    def _more(self) -> bool:
        """Take what was added; if there is nothing to do, end."""
        with self._changed:
            if self._thread is not threading.current_thread():  # its start was interrupted
                return False
            added, self._added = self._added, []
            for sequence in added:
                self._steps.add(sequence)
            if not self._steps.busy:
                self._end_thread()
                return False
            return True

    def _end_thread(self) -> None:
        """Say that this thread ends; the next request starts another."""
        self._thread = None
        atexit.unregister(self._leave)
        self._changed.notify_all()

    def _deliver(self, events: list[Event]) -> None:
        """Tell the requests what a step brought them."""
        called: list[Waiter] = []
        for event in events:
            sequence = event.sequence
            request = self._requests[sequence]
            stream = request._stream
            stats = self._stats
            if sequence.began is not None:
                stream.stats.queued_seconds = sequence.began - sequence.arrived
            for step in event.steps:
                if not stream.stats.forward_calls:
                    stats.prompt_tokens += len(sequence.generation.prompt)
                chunks = list(stream.take(step))
                if stream.stats.forward_calls == 1:
                    stats.cached_tokens += stream.stats.cached_tokens
                stats.tokens_generated += len(step.tokens)
                called += request._take(chunks)
            if event.ended:
                cancelled = event.error is None and stream.finish_reason is None
                stats.failed += event.error is not None
                stats.cancelled += cancelled
                stats.finished += event.error is None and not cancelled
                called += request._end(event.error)
                with self._changed:
                    del self._requests[sequence]
        wake(called)


def check_request_options(method: str, options: Mapping[str, Any], known: type) -> None:
    """Raise TypeError for options that a request cannot have."""
    if "session" in options:
        raise TypeError(f"{method}(): requests have sessions of their own; leave session= out")
    check_options(method, options, known)
