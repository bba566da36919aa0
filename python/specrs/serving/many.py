"""Many prompts through a batch: read as they are needed, done in any order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import chain, islice
from operator import index
from queue import Empty, SimpleQueue
from reprlib import repr as shortened
from time import monotonic
from typing import Any

from ..completion import Completion
from ..options import ChatOptions
from ..text import Chunk
from .batch import Batch
from .request import Request

PER_PROMPT = ("sampling", "drafter", "max_tokens", "grammar")
"""Options of which there may be a list, with a value for each prompt."""

WINDOW = 4
"""Prompts read ahead, for each request that may run."""

Results = list[Completion | None]
"""A completion for each prompt, None where there is none."""


class BatchError(Exception):
    """Some of many prompts failed; all others are done.

    Attributes:
        results: A completion for each prompt, None for those that failed.
        errors: What went wrong, by the index of the prompt.
    """

    def __init__(self, results: Results, errors: dict[int, Exception]) -> None:
        first = min(errors)
        super().__init__(
            f"{len(errors)} of {len(results)} prompts failed, the first of them prompts[{first}]: "
            f"{errors[first]}; the results of the others are in this exception's `results`"
        )
        self.results = results
        self.errors = errors


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C ended many prompts.

    Attributes:
        results: A completion for each prompt that was read and done, None for the others.
        errors: What had gone wrong, by the index of the prompt.
    """

    def __init__(self, results: Results, errors: dict[int, Exception]) -> None:
        done = sum(result is not None for result in results)
        super().__init__(f"{done} completions are in this exception's `results`")
        self.results = results
        self.errors = errors


class Many:
    """Prompts on their way through a batch.

    Args:
        batch: Where they run.
        add: Adds one of them to it.
        prompts: All of them.
        window: How many to have there at once.
        options: Of all of them; `PER_PROMPT` may be lists.

    Attributes:
        results: What is done of those that were read.
        errors: What went wrong, by index.
    """

    def __init__(
        self,
        batch: Batch,
        add: Callable[..., Request],
        prompts: Iterable[Any],
        window: int,
        options: Mapping[str, Any],
    ) -> None:
        self.results: Results = []
        self.errors: dict[int, Exception] = {}
        self._batch = batch
        self._add = add
        self._prompts = _prompts(prompts)
        self._window = window
        self._options = dict(options)
        self._lists = {
            name: self._options.pop(name)
            for name in PER_PROMPT
            if isinstance(options.get(name), (list, tuple))
        }
        for name, values in self._lists.items():
            if isinstance(prompts, Sized) and len(values) != len(prompts):
                raise ValueError(
                    f"{name} has {len(values)} values for {len(prompts)} prompts; give one for "
                    f"each, or one for all"
                )
        self._open: dict[int, Request] = {}

    def check(self) -> None:
        """Raise at once what is wrong with the options of all, whatever the prompts."""
        chat = ChatOptions.__annotations__
        self._batch.check([0], {n: value for n, value in self._options.items() if n not in chat})

    def run(self, *, chunks: bool = False) -> Iterator[tuple[int, Chunk | None]]:
        """Run all prompts: give (index, None) when one is over, and its chunks if they are wanted.

        On an exception all that are not over are cancelled. KeyboardInterrupt becomes
        BatchInterrupted.
        """
        news: SimpleQueue[int] = SimpleQueue()
        try:
            with self._batch:
                yield from self._run(news, chunks)
        except KeyboardInterrupt:
            for number in list(self._open):
                self._note(number)
            raise BatchInterrupted(self.results, self.errors) from None

    def _run(self, news: SimpleQueue[int], chunks: bool) -> Iterator[tuple[int, Chunk | None]]:
        taken: dict[int, int] = {}  # chunks of those that are open
        more = True
        while more or self._open:
            full = not more or len(self._open) >= self._window
            if not full:
                more = self._read(news)
            try:
                number = news.get(block=full and bool(self._open))
            except Empty:
                continue
            request = self._open.get(number)
            if request is not None and chunks:
                new = request.chunks(taken.get(number, 0))
                taken[number] = taken.get(number, 0) + len(new)
                for chunk in new:
                    yield number, chunk
            if request is None or request.over(taken.get(number, 0) if chunks else None):
                taken.pop(number, None)
                self._note(number)
                yield number, None
            else:
                request.notify(
                    lambda number=number: news.put(number),  # type: ignore[misc]
                    taken.get(number, 0) if chunks else None,
                )

    def _read(self, news: SimpleQueue[int]) -> bool:
        """Add the next prompt; False if there is none."""
        number = len(self.results)
        try:
            prompt = next(self._prompts)
        except StopIteration:
            self._check_lists(number)
            return False
        options = self._options.copy()
        for name, values in self._lists.items():
            if number == len(values):
                raise ValueError(f"{name} has {number} values and there are more prompts")
            options[name] = values[number]
        self.results.append(None)
        try:
            self._open[number] = self._add(prompt, **options)
        except Exception as error:
            self.errors[number] = error
        news.put(number)
        return True

    def _check_lists(self, count: int) -> None:
        for name, values in self._lists.items():
            if len(values) != count:
                raise ValueError(f"{name} has {len(values)} values for {count} prompts")

    def _note(self, number: int) -> None:
        """Note how a request ended."""
        request = self._open.pop(number, None)
        if request is None or not request.done:
            return
        error = request.exception()
        if isinstance(error, Exception):
            self.errors[number] = error
        elif (completion := request.result()).finish_reason != "cancelled":
            self.results[number] = completion


def _prompts(prompts: Iterable[Any]) -> Iterator[Any]:
    """Check that these are several prompts, not one; the first of them tells."""
    if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
        raise TypeError(
            f"prompts must be several texts, or lists of ids, not {shortened(prompts)}; for one "
            f"prompt pass [prompt]"
        )
    rest = iter(prompts)
    first = list(islice(rest, 1))
    for prompt in first:
        try:
            index(prompt)
        except TypeError:
            continue
        raise TypeError("prompts must be several texts, or lists of ids; for one of ids pass [ids]")
    return chain(first, rest)


class Progress:
    """A line on stderr, if that is a terminal: how many prompts are done, and how fast."""

    EVERY = 0.2  # seconds

    def __init__(self, total: int | None, *, shown: bool) -> None:
        self._shown = shown and sys.stderr is not None and sys.stderr.isatty()
        self._total = total
        self._started = self._written = monotonic()
        self._done = self._tokens = 0

    def update(self, completion: Completion | None) -> None:
        """Count one more."""
        self._done += 1
        self._tokens += 0 if completion is None else len(completion.tokens)
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
