"""Many prompts through a batch: read as they are needed, done in any order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from contextlib import closing
from functools import partial
from itertools import chain, islice
from operator import index, itemgetter
from queue import Empty, SimpleQueue
from reprlib import repr as shortened
from time import monotonic
from typing import Any

from ..completion import Completion
from ..text import Chunk
from .batch import Batch
from .request import Request

PER_PROMPT = ("sampling", "drafter", "max_tokens", "grammar")
"""Options of which there may be a list, with a value for each prompt."""

WINDOW = 4
"""Prompts read ahead, for each request that may run; half of them are added to the batch."""

Result = Completion | Exception
"""What became of a prompt."""

News = tuple[int, list[Chunk], Result | None]
"""Index of a prompt, its new chunks if they are wanted, and its outcome if it is over."""

Results = list[Completion | None]
"""A completion for each prompt, None where there is none."""


class BatchError(Exception):
    """Some of many prompts failed; all others are done.

    Attributes:
        results: A completion for each prompt, None for those that failed. Empty after
            `stream_many`, which keeps nothing of what it gave.
        errors: What went wrong, by the index of the prompt.
    """

    def __init__(self, results: Results, errors: dict[int, Exception]) -> None:
        first = min(errors)
        of = f" of {len(results)}" if results else ""
        kept = "; the results of the others are in this exception's `results`" if results else ""
        super().__init__(
            f"{len(errors)}{of} prompts failed, the first of them prompts[{first}]: "
            f"{errors[first]}{kept}"
        )
        self.results = results
        self.errors = errors

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.results, self.errors)


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C ended many prompts.

    Attributes:
        results: A completion for each prompt that was read and done, None for the others. Empty
            after `stream_many`, which keeps nothing of what it gave.
        errors: What had gone wrong, by the index of the prompt.
    """

    def __init__(self, results: Results, errors: dict[int, Exception]) -> None:
        done = sum(result is not None for result in results)
        super().__init__(f"{done} completions are in this exception's `results`" if results else "")
        self.results = results
        self.errors = errors

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.results, self.errors)


def order(prompt: Any) -> str:
    """Return a key by which prompts that begin alike stand together."""
    if isinstance(prompt, str):
        return prompt
    return repr(prompt) if isinstance(prompt, (list, tuple)) else ""


class Many:
    """Prompts on their way through a batch.

    Those that were read and have to wait are added in the order of their texts: what begins alike
    runs one after the other, as long as the common beginning is kept.

    Args:
        batch: Where they run; it is closed at the end.
        add: Adds one of them to it.
        prompts: All of them.
        window: How many to have there at once.
        options: Of all of them; `PER_PROMPT` may be lists.
        kind: What they are called: "prompts" or "conversations".
        key: Gives their order.

    Attributes:
        count: How many were read.
    """

    def __init__(
        self,
        batch: Batch,
        add: Callable[..., Request],
        prompts: Iterable[Any],
        window: int,
        options: Mapping[str, Any],
        *,
        kind: str = "prompts",
        key: Callable[[Any], str] = order,
    ) -> None:
        self.count = 0
        self._batch = batch
        self._add = add
        self._prompts = _several(kind, prompts)
        self._window = window
        self._key = key
        self._options = dict(options)
        self._lists = {name: self._options.pop(name) for name in lists_of(options)}
        # A list is there already: all of the window can be read first, and be put in order. Other
        # iterables may take their time.
        self._listed = isinstance(prompts, Sized)
        if isinstance(prompts, Sized):
            self._check_lists(len(prompts))
        self._ahead: list[tuple[str, int, Any]] = []  # that were read: key, index and prompt
        self._last = ""  # the key of the last one that was added
        self._open: dict[int, Request | Exception] = {}  # that are not told to be over
        self._taken: dict[int, int] = {}  # chunks of theirs that were given
        self._news: SimpleQueue[int] = SimpleQueue()  # who has something to tell

    def run(self, *, chunks: bool = False) -> Generator[News]:
        """Run all prompts; give what comes of them. Closing it cancels those that are not over."""
        with self._batch:
            more = True
            while more or self._ahead or self._open:
                if more and len(self._ahead) + len(self._open) < self._window:
                    more = self._read()
                full = not more or len(self._ahead) + len(self._open) >= self._window
                while self._ahead and len(self._open) < self._window // 2:
                    if self._listed and not full:
                        break
                    self._add_next()
                try:
                    number = self._news.get(block=full and bool(self._open))
                except Empty:
                    continue
                yield from self._events(number, chunks)

    def rest(self) -> Iterator[tuple[int, Result]]:
        """Give the outcomes that were there when `run` was closed, and perhaps not given."""
        for number, request in self._open.items():
            outcome = _outcome(request)
            if outcome is not None:
                yield number, outcome

    def _events(self, number: int, chunks: bool) -> Iterator[News]:
        """Give what is new of a prompt, and see to it that more is heard of it."""
        request, new = self._open[number], []
        if isinstance(request, Request):
            taken = None
            if chunks:
                taken = self._taken.get(number, 0)
                new = request.chunks(taken)
                taken = self._taken[number] = taken + len(new)
            if not request.over(taken):
                request.notify(partial(self._news.put, number), taken)
                if new:
                    yield number, new, None
                return
        yield number, new, _outcome(request)
        # Not before: an interrupt may have kept it from whom it was given to.
        del self._open[number]
        self._taken.pop(number, None)

    def _read(self) -> bool:
        """Read the next prompt; False if there is none."""
        number = self.count
        try:
            prompt = next(self._prompts)
        except StopIteration:
            self._check_lists(number)
            return False
        for name, values in self._lists.items():
            if number == len(values):
                raise ValueError(f"{name} has {number} values, and there are more prompts")
        self._ahead.append((self._key(prompt), number, prompt))
        self._ahead.sort(key=itemgetter(0, 1))
        self.count += 1
        return True

    def _add_next(self) -> None:
        """Add the prompt that comes after the last one in their order, or one that waits long."""
        self._batch.check()
        after = (i for i, (key, _, _) in enumerate(self._ahead) if key >= self._last)
        at = next(after, 0)
        oldest = min(range(len(self._ahead)), key=lambda i: self._ahead[i][1])
        if self._ahead[oldest][1] < self.count - 2 * self._window:
            at = oldest
        self._last, number, prompt = self._ahead.pop(at)
        own = {name: values[number] for name, values in self._lists.items()}
        try:
            self._open[number] = self._add(prompt, **self._options, **own)
        except Exception as error:
            self._open[number] = error
        self._news.put(number)

    def _check_lists(self, count: int) -> None:
        for name, values in self._lists.items():
            if len(values) != count:
                raise ValueError(
                    f"{name} has {len(values)} values for {count} prompts; give one for each, or "
                    f"one for all"
                )


def _outcome(request: Request | Exception) -> Result | None:
    """Return how a request ended; None if it did not, or was cancelled."""
    if isinstance(request, Exception):
        return request
    if not request.done:
        return None
    error = request.exception()
    if error is not None:
        return error
    completion = request.result()
    return None if completion.finish_reason == "cancelled" else completion


def lists_of(options: Mapping[str, Any]) -> list[str]:
    """Name the options that have a value for each prompt."""
    return [name for name in PER_PROMPT if isinstance(options.get(name), (list, tuple))]


def _several(kind: str, prompts: Iterable[Any]) -> Iterator[Any]:
    """Iterate over `prompts`; TypeError if it is one alone, which the first item of it tells."""
    chats = kind == "conversations"
    kinds = "lists of messages" if chats else "texts, or lists of ids"
    if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
        raise TypeError(
            f"{kind} must be several {kinds}, not {shortened(prompts)}; for a single one pass a "
            f"list of it"
        )
    rest = iter(prompts)
    first = list(islice(rest, 1))
    if any(isinstance(one, Mapping) if chats else _is_id(one) for one in first):
        way = "[messages]" if chats else "[ids]"
        raise TypeError(f"{kind} must be several {kinds}; for a single one pass {way}")
    return chain(first, rest)


def _is_id(prompt: Any) -> bool:
    try:
        index(prompt)
    except TypeError:
        return False
    return True


def collected(many: Many, progress: Progress) -> tuple[Results, dict[int, Exception]]:
    """Run all prompts; return completions by index, and errors.

    Raises BatchInterrupted, which holds the same, on Ctrl-C.
    """
    outcomes: dict[int, Result] = {}

    def parts() -> tuple[Results, dict[int, Exception]]:
        results: Results = [None] * many.count
        errors: dict[int, Exception] = {}
        for number, outcome in sorted(outcomes.items()):
            if isinstance(outcome, Exception):
                errors[number] = outcome
            else:
                results[number] = outcome
        return results, errors

    try:
        with closing(many.run()) as events:
            for number, _, outcome in events:
                if outcome is not None:
                    outcomes[number] = outcome
                    progress.update(outcome)
    except KeyboardInterrupt:
        outcomes.update(many.rest())
        raise BatchInterrupted(*parts()) from None
    finally:
        progress.close()
    return parts()


class Progress:
    """A line on stderr, if that is a terminal: how many prompts are done, and how fast."""

    EVERY = 0.2  # seconds

    def __init__(self, total: int | None, *, shown: bool) -> None:
        self._shown = shown and sys.stderr is not None and sys.stderr.isatty()
        self._total = total
        self._started = self._written = monotonic()
        self._done = self._tokens = 0

    def update(self, outcome: Result) -> None:
        """Count one more."""
        self._done += 1
        self._tokens += 0 if isinstance(outcome, Exception) else len(outcome.tokens)
        now = monotonic()
        if self._shown and (now - self._written > self.EVERY or self._done == self._total):
            self._written = now
            of = "" if self._total is None else f" of {self._total}"
            speed = self._tokens / max(now - self._started, 1e-9)
            text = f"{self._done}{of} prompts, {speed:.0f} tokens/s"
            print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line."""
        if self._shown and self._done:
            print(file=sys.stderr)
