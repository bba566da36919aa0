"""Who evaluates how many tokens in the next pass."""

from __future__ import annotations

import math

from ..speculation.drafters import common_prefix
from .caches import Caches
from .cost import Cost, positions_seen
from .pages import PAGE
from .sequence import Piece, Sequence

PASS = 256
"""Rows of the largest pass over the weights."""

PATIENCE = 0.05
"""Seconds that a pass with prompts may take where somebody waits for the next token, at least."""

STEPS = 4.0
"""The same in passes without prompts."""


class Scheduler:
    """Admits sequences, shares the passes out among them, and pauses some where memory ends.

    It decides by what it is told alone, time included, and never touches the model. Running
    sequences get a row each for the next token, and rows for drafts. What time is left goes to
    prompts, the shortest rest first; who waits gains on the others.

    Args:
        caches: Who gives out sessions and memory.
        cost: Seconds of a pass.
        max_requests: Most sequences that run at once.

    Attributes:
        waiting: Those not running, in the order in which they are admitted.
        running: The others.
        paused: How often one was paused.
        failed: Those that turned out not to fit, and why; they are still in their list.
    """

    def __init__(self, caches: Caches, cost: Cost, max_requests: int) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.paused = 0
        self.failed: list[tuple[Sequence, MemoryError]] = []
        self._caches = caches
        self._cost = cost
        self._max_requests = max_requests

    def check(self, sequence: Sequence) -> None:
        """Raise MemoryError for a sequence that does not fit even alone."""
        need, total = self._caches.most(sequence), self._caches.total
        if need > total:
            raise MemoryError(
                f"the prompt of {len(sequence.generation.prompt)} tokens and its reply may take "
                f"{need * PAGE} positions of cache, its drafter's included, and the budget has "
                f"{total * PAGE}; lower max_tokens or raise cache_bytes"
            )

    def admit(self, now: float) -> list[Sequence]:
        """Let waiting sequences run, as far as there is room; return them."""
        admitted: list[Sequence] = []
        index = 0
        while len(self.running) < self._max_requests and index < len(self.waiting):
            sequence = self.waiting[index]
            if self._awaits(sequence):
                index += 1
            elif self._caches.open(sequence, self.running):
                del self.waiting[index]
                self.running.append(sequence)
                admitted.append(sequence)
                sequence.admitted = now
                sequence.began = now if sequence.began is None else sequence.began
            else:
                if not self.running:
                    self._fail(sequence)
                break  # nobody overtakes who needs more room, or it might never get it
        return admitted

    def plan(self, now: float) -> list[Piece]:
        """Return what the next pass evaluates; those that cannot grow are paused."""
        decoding: list[Sequence] = []
        prompts: list[Sequence] = []
        for sequence in self.running:
            (prompts if sequence.prefilling else decoding).append(sequence)
        pieces = [s.piece(s.missing) for s in decoding if self._grow(s, s.missing)]
        if prompts:
            rows = sum(len(piece.tokens) for piece in pieces)
            seen = sum(positions_seen(p.sequence.computed, len(p.tokens)) for p in pieces)
            most = max(STEPS * self._cost(rows, seen), PATIENCE) if pieces else math.inf
            least = 1  # somebody's prompt goes on, whatever it costs
            per_row = self._cost(PASS) / PASS
            prompts.sort(key=lambda s: s.missing * per_row - (now - s.admitted))
            for sequence in prompts:
                start = sequence.computed
                count = _cut(sequence, max(least, self._fitting(rows, seen, start, most)))
                if count and self._grow(sequence, count):
                    piece = sequence.piece(count)
                    piece.prompt = True
                    pieces.append(piece)
                    rows += len(piece.tokens)
                    seen += positions_seen(start, len(piece.tokens))
                    least = 0
        # Some may have been paused for others that came after them.
        return [piece for piece in pieces if piece.sequence.session is not None]

    def leave(self, sequence: Sequence, keep: int = 0) -> None:
        """Take a sequence out, and keep the first `keep` of its tokens for others."""
        for those in (self.running, self.waiting):
            if sequence in those:
                those.remove(sequence)
        self._caches.close(sequence, keep)

    def _awaits(self, sequence: Sequence) -> bool:
        """Whether a running one is about to compute much of what this one begins with."""
        if not self._caches.keeps or not sequence.shareable or sequence.loop is not None:
            return False
        other = sequence.waits_for
        if other is not None and other.session is not None and other.prefilling:
            return True
        sequence.waits_for = None
        kept: int | None = None
        for other in self.running:
            new = other.number > sequence.compared and other.salt == sequence.salt
            if not (new and other.prefilling and other.shareable):
                continue
            kept = self._caches.kept(sequence) if kept is None else kept
            if common_prefix(sequence.tokens, other.generation.prompt) >= kept + PAGE:
                sequence.waits_for = other
                return True
        sequence.compared = max((s.number for s in self.running), default=-1)
        return False

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Let a sequence have `count` more positions; False if it was paused, or has failed."""
        while sequence.session is not None:
            if self._caches.grow(sequence, count):
                return True
            if len(self.running) == 1:
                self._fail(sequence)
                return False
            self._pause(max(self.running, key=lambda s: s.number))
        return False

    def _pause(self, sequence: Sequence) -> None:
        """Take a sequence's memory; it goes on from its tokens later."""
        self.paused += 1
        self.running.remove(sequence)
        self._caches.close(sequence)
        earlier = sum(waiting.number < sequence.number for waiting in self.waiting)
        self.waiting.insert(earlier, sequence)

    def _fail(self, sequence: Sequence) -> None:
        positions = self._caches.total * PAGE
        message = (
            f"a text of {len(sequence.tokens)} tokens has outgrown the budget of {positions} "
            f"positions of cache; lower max_tokens or raise cache_bytes"
        )
        self.failed.append((sequence, MemoryError(message)))

    def _fitting(self, rows: int, seen: int, start: int, most: float) -> int:
        """How many rows of a prompt fit into a pass of `most` seconds.

        Args:
            rows: Those of others.
            seen: Positions that these look at.
            start: Where the prompt goes on.
            most: Seconds of the pass.
        """
        low, high = 0, PASS - rows
        while low < high:
            middle = (low + high + 1) // 2
            if self._cost(rows + middle, seen + positions_seen(start, middle)) <= most:
                low = middle
            else:
                high = middle - 1
        return low


def _cut(sequence: Sequence, left: int) -> int:
    """How many missing tokens of a prompt to evaluate in at most `left` rows."""
    missing, wanted = sequence.missing, sequence.wanted
    if missing <= left or wanted is None:
        return min(missing, left)
    # What is wanted is answered in one pass.
    return max(0, min(left, missing - max(1, wanted.positions)))
