"""One step of many generations: drafts, one pass over the weights, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

from .._specrs import Lease, Session
from ..decoding.loop import Generation
from ..decoding.step import Answer, Proposal, Step
from ..speculation.adaptive import AdaptiveLength
from .caches import Caches
from .cost import Cost, positions_seen
from .drafts import Drafts, SharedLength
from .pages import Pages
from .prefixes import Prefixes
from .scheduler import Scheduler
from .sequence import Piece, Sequence


class Target(Protocol):
    """The part of a model that a step needs."""

    def session(self) -> Session:
        """Return a new, empty session."""

    def forward_many(
        self, inputs: Iterable[tuple[Lease, list[int], int]], *, choose: Many[bool]
    ) -> Many[Any]:
        """Append tokens to several sessions; see `Llama.forward_many`."""


@dataclass(slots=True)
class Event:
    """What a step brought to a sequence.

    Attributes:
        sequence: Whose it is.
        steps: Steps of its generation.
        ended: Whether it is over.
        error: Why, if it failed.
    """

    sequence: Sequence
    steps: list[Step] = field(default_factory=list)
    ended: bool = False
    error: Exception | None = None


class Steps:
    """Runs sequences together, step by step; for one thread.

    Attributes:
        scheduler: Who is there.
        drafts: What is verified of their drafts.
        passes: Passes over the weights that requests shared.
        rows: Rows of these passes.
        prefill_rows: Those of prompts among them.
        seconds: Time of these passes.
    """

    def __init__(
        self,
        model: Target,
        pages: Pages,
        *,
        max_requests: int,
        keep_prefixes: bool,
        cost: Cost,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        prefixes = Prefixes(pages) if keep_prefixes else None
        self._caches = Caches(model.session, pages, prefixes)
        self.scheduler = Scheduler(self._caches, cost, max_requests)
        self.passes = self.rows = self.prefill_rows = 0
        self.seconds = 0.0
        self._model = model
        self._cost = cost
        self._clock = clock
        self.drafts = Drafts(cost, clock=clock)
        self._events: dict[Sequence, Event] = {}

    @property
    def busy(self) -> bool:
        """Whether anybody runs or waits."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def prepare(
        self, number: int, generation: Generation, salt: Hashable = None, extra_pages: int = 0
    ) -> Sequence:
        """Return a sequence to `add`; from any thread.

        How far to guess, where it is decided by what pays, is decided for all together.

        Raises MemoryError if it can never fit.
        """
        if isinstance(generation.length, AdaptiveLength):
            length = SharedLength(self.drafts, generation.length.max_length)
            generation = replace(generation, length=length)
        sequence = Sequence(number, generation, self._clock(), salt, extra_pages)
        self.scheduler.check(sequence)
        return sequence

    def add(self, sequence: Sequence) -> None:
        """Take a sequence."""
        self.scheduler.waiting.append(sequence)

    def forget(self) -> None:
        """Give back everything."""
        for sequence in (*self.scheduler.running, *self.scheduler.waiting):
            self.scheduler.leave(sequence)
        self._caches.forget()

    def step(self) -> list[Event]:
        """Do what is next, for all who are there; return what it brought, by order of arrival."""
        scheduler, self._events = self.scheduler, {}
        for sequence in [s for s in (*scheduler.running, *scheduler.waiting) if s.cancelled]:
            self._end(sequence, keep=len(sequence.tokens) - 1)
        now = self._clock()
        for sequence in scheduler.admit(now):
            if sequence.loop is None:
                sequence.loop = sequence.generation.run(sequence.computed)
                self._advance(sequence, None)
        asking = [s for s in scheduler.running if s.asked is not None]
        if asking:
            for sequence, answer in self.drafts.ask(asking, scheduler.running):
                if isinstance(answer, BaseException):
                    self._end(sequence, answer)
                else:
                    self._advance(sequence, answer)
        else:
            self.drafts.none()
        pieces = scheduler.plan(now)
        failed, scheduler.failed = scheduler.failed, []
        for sequence, error in failed:
            self._end(sequence, error)
        for piece, answer in zip(pieces, self._evaluate(pieces), strict=True):
            self._take(piece, answer)
        return sorted(self._events.values(), key=lambda event: event.sequence.number)

    def _evaluate(self, pieces: list[Piece]) -> list[Answer | BaseException]:
        """Evaluate all pieces; what is wanted of each, or why there is none."""
        together = [piece for piece in pieces if piece.attention is None]
        answers = iter(self._together(together)) if together else iter(())
        return [next(answers) if p.attention is None else self._alone(p) for p in pieces]

    def _together(self, pieces: list[Piece]) -> Many[Answer | BaseException]:
        inputs, choose = [], []
        rows = seen = of_prompts = 0
        for piece in pieces:
            sequence, count = piece.sequence, len(piece.tokens)
            wanted, lease = sequence.wanted, sequence.lease
            assert wanted is not None
            assert lease is not None
            inputs.append((lease, piece.tokens, piece.positions))
            choose.append(not wanted.logits)
            rows += count
            seen += positions_seen(sequence.computed, count)
            of_prompts += count if piece.prompt else 0
        started = self._clock()
        try:
            answers = self._model.forward_many(inputs, choose=choose)
        except BaseException as error:
            if len(pieces) == 1:
                return [error]
            # Nobody's session has changed; alone, only the one at fault fails.
            return [self._together([piece])[0] for piece in pieces]
        seconds = self._clock() - started
        self._cost.update(rows, seen, seconds)
        self.passes += 1
        self.rows += rows
        self.prefill_rows += of_prompts
        self.seconds += seconds
        return answers

    def _alone(self, piece: Piece) -> BaseException | None:
        """Evaluate a piece of a prompt that does not look at everything."""
        lease = piece.sequence.lease
        assert lease is not None
        try:
            prompt_length = len(piece.sequence.generation.prompt)
            lease.prefill(
                piece.tokens, attention=piece.attention, positions=0, prompt_length=prompt_length
            )
        except BaseException as error:
            return error
        return None

    def _take(self, piece: Piece, answer: Answer | BaseException) -> None:
        """Give a sequence what came of its piece."""
        sequence, wanted = piece.sequence, piece.sequence.wanted
        if isinstance(answer, BaseException):
            self._end(sequence, answer)
            return
        sequence.computed += len(piece.tokens)
        if wanted is not None and wanted.progress is not None:
            try:
                wanted.progress(max(0, sequence.computed - wanted.start), len(wanted.tokens))
            except BaseException as error:
                self._end(sequence, error)
                return
        if piece.last:
            self._advance(sequence, answer if piece.positions else None)

    def _advance(self, sequence: Sequence, answer: Answer) -> None:
        """Let a generation go on until it wants something again."""
        loop = sequence.loop
        assert loop is not None
        sequence.asked = sequence.wanted = None
        try:
            event = loop.send(answer)
            while isinstance(event, Step):
                first = len(sequence.tokens) == len(sequence.generation.prompt)
                self._event(sequence).steps.append(event)
                sequence.tokens += event.tokens
                self._caches.settle(sequence, event.settled)
                if first and event.finish_reason is None:
                    self._caches.share(sequence)
                event = next(loop)
        except StopIteration:
            self._end(sequence, keep=len(sequence.tokens) - 1)
        except BaseException as error:
            self._end(sequence, error)
        else:
            if isinstance(event, Proposal):
                sequence.asked = event
            else:
                sequence.wanted = event

    def _end(self, sequence: Sequence, error: BaseException | None = None, keep: int = 0) -> None:
        if sequence.loop is not None:
            sequence.loop.close()
        # What its drafter has in memory goes with them.
        sequence.asked = sequence.wanted = None
        event = self._event(sequence)
        event.ended = True
        event.error = None if error is None else as_exception(error)
        self.scheduler.leave(sequence, keep)

    def _event(self, sequence: Sequence) -> Event:
        event = self._events.get(sequence)
        if event is None:
            event = self._events[sequence] = Event(sequence)
        return event


def as_exception(error: BaseException) -> Exception:
    """Return what a request fails with: the SystemExit of a callback is to end nobody else."""
    if isinstance(error, Exception):
        return error
    failed = RuntimeError(f"what was called for the request raised {error!r}")
    failed.__cause__ = error
    return failed
