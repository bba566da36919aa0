"""Who evaluates how many tokens in the next pass."""

from __future__ import annotations

from collections.abc import Callable

from .._specrs import Session
from ..speculation.costs import ForwardCost
from ..speculation.drafters import common_prefix
from .pages import PAGE, Pages, pages_of
from .prefixes import Prefixes
from .sequence import Piece, Sequence

PASS = 256
"""Rows of the largest pass over the weights."""

PATIENCE = 0.05
"""Seconds that a pass with prompts may take where somebody waits for the next token, at least."""

STEPS = 4.0
"""The same in passes without prompts."""


class Scheduler:
    """Admits sequences, shares the passes out among them, and pauses some where memory ends.

    It decides by what it is told alone, time included, and never touches the model: a session is
    something to hand on. Running sequences get a row each for the next token, and rows for drafts.
    What time is left goes to prompts, the shortest rest first; who waits gains on the others.

    Args:
        new_session: Makes an empty session.
        cost: Seconds of a pass by its rows.
        pages: Memory of the caches.
        prefixes: What is kept of others; None keeps nothing.
        max_requests: Most sequences that run at once.

    Attributes:
        waiting: Those not running, in the order in which they are admitted.
        running: The others.
        paused: How often one was paused.
        failed: Those that turned out not to fit, and why; they are still in their list.
    """

    def __init__(
        self,
        new_session: Callable[[], Session],
        cost: ForwardCost,
        pages: Pages,
        prefixes: Prefixes | None,
        max_requests: int,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.paused = 0
        self.failed: list[tuple[Sequence, MemoryError]] = []
        self._new_session = new_session
        self._cost = cost
        self._pages = pages
        self._prefixes = prefixes
        self._max_requests = max_requests

    def check(self, sequence: Sequence) -> None:
        """Raise MemoryError for a sequence that does not fit even alone."""
        need, total = pages_of(sequence.most()) + 1 + sequence.extra_pages, self._pages.total
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
            elif self._start(sequence, now):
                del self.waiting[index]
                admitted.append(sequence)
            else:
                break  # nobody overtakes who needs more room, or it might never get it
        return admitted

    def plan(self, now: float) -> list[Piece]:
        """Return what the next pass evaluates; those that cannot grow are paused."""
        decoding = [s for s in self.running if not s.prefilling]
        pieces = [s.piece(s.missing) for s in decoding if self._grow(s, s.missing)]
        rows = sum(len(piece.tokens) for piece in pieces)
        left = self._prompt_rows(rows) if rows else PASS
        prompts = [s for s in self.running if s.prefilling]
        prompts.sort(key=lambda s: s.missing * self._cost(PASS) / PASS - (now - s.admitted))
        for sequence in prompts:
            count = self._cut(sequence, left)
            if count and sequence.session is not None and self._grow(sequence, count):
                piece = sequence.piece(count)
                pieces.append(piece)
                left -= len(piece.tokens)
        # Whoever was paused for one that came later in the list is not there any more.
        return [piece for piece in pieces if piece.sequence.session is not None]

    def leave(self, sequence: Sequence, keep: int = 0) -> None:
        """Take a sequence out, and keep the first `keep` of its tokens for others."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        session, table = sequence.session, sequence.table
        keep = min(keep, sequence.computed)
        if session is not None and sequence.lease is not None:
            if self._prefixes is None or not sequence.shareable or not keep:
                self._give_back(sequence)
                return
            sequence.lease.truncate(keep)
            self._pages.cut(table, keep)
            sequence.lease.release()
            self._pages.idle(table)
            self._prefixes.keep(sequence.tokens[:keep], session, table, sequence.salt)
            sequence.table, sequence.session, sequence.lease = [], None, None
            self._pages.cut(sequence.extra, 0)

    def forget(self) -> None:
        """Forget what is kept of others."""
        while self._prefixes is not None and self._prefixes.evict():
            pass

    def share(self, sequence: Sequence) -> None:
        """Let others begin with what a running sequence has computed of its prompt."""
        session, length = sequence.session, min(sequence.computed, len(sequence.generation.prompt))
        if self._prefixes is None or not sequence.shareable or session is None or not length:
            return
        fork = session.fork()
        fork.truncate(length)
        table = self._pages.share(sequence.table, length)
        self._prefixes.keep(sequence.tokens[:length], fork, table, sequence.salt)

    def settle(self, sequence: Sequence, length: int) -> None:
        """Forget what a sequence computed from `length` on."""
        if sequence.computed > length and sequence.lease is not None:
            sequence.lease.truncate(length)
            self._pages.cut(sequence.table, length)
            sequence.computed = length

    def _awaits(self, sequence: Sequence) -> bool:
        """Whether a running one is about to compute much of what this one begins with."""
        if self._prefixes is None or not sequence.shareable or sequence.loop is not None:
            return False
        other = sequence.waits_for
        if other is not None and other.session is not None and other.prefilling:
            return True
        sequence.waits_for = None
        prompt = sequence.generation.prompt
        found = -1
        for other in self.running:
            if other.number <= sequence.compared or other.salt != sequence.salt:
                continue
            if not (other.prefilling and other.shareable):
                continue
            if found < 0:
                found, _ = self._prefixes.find(sequence.tokens, sequence.salt)
            common = common_prefix(prompt, other.generation.prompt)
            if common >= found + PAGE:
                sequence.waits_for = other
                return True
        sequence.compared = max((s.number for s in self.running), default=-1)
        return False

    def _promised(self) -> int:
        """Pages that those who run may still take."""
        return sum(max(0, pages_of(s.most()) + 1 - len(s.table)) for s in self.running)

    def _make_room(self, count: int) -> bool:
        """Whether there are `count` more pages, once enough of what is kept is forgotten."""
        pages = self._pages
        if pages.busy + count > pages.total:
            return False
        while pages.used + count > pages.total:
            if self._prefixes is None or not self._prefixes.evict():
                return False
        return True

    def _start(self, sequence: Sequence, now: float) -> bool:
        """Give a sequence a session with what is kept of its tokens; False if there is no room."""
        found, node = 0, None
        if self._prefixes is not None and sequence.shareable:
            found, node = self._prefixes.find(sequence.tokens, sequence.salt)
            found = min(found, len(sequence.tokens) - 1)
        # Taken first, so that it cannot be forgotten to make room for the rest.
        if node is not None and found and self._prefixes is not None:
            session, table = self._prefixes.take(node, found)
        else:
            session, table, found = self._new_session(), [], 0
        rest = 1 + sequence.extra_pages - found // PAGE
        room = self._make_room(pages_of(sequence.most()) + rest + self._promised())
        if not room and not self.running:  # what is not sure to suffice is better than nothing
            room = self._make_room(pages_of(len(sequence.tokens) + 1) + rest)
            if not room:
                self.failed.append((sequence, _outgrown(sequence, self._pages.total)))
        if not room:
            self._pages.cut(table, 0)
            return False
        self._pages.grow(sequence.extra, 0, sequence.extra_pages * PAGE)
        sequence.session, sequence.table, sequence.lease = session, table, session.lease()
        sequence.computed, sequence.admitted = found, now
        if sequence.began is None:
            sequence.began = now
        self.running.append(sequence)
        return True

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Let a sequence have room for `count` more positions; False if it was paused instead."""
        pages = self._pages
        while sequence.session is not None:
            need = pages.missing(sequence.table, sequence.computed, count)
            if pages.used + need <= pages.total:
                pages.grow(sequence.table, sequence.computed, count)
                return True
            if self._prefixes is not None and self._prefixes.evict():
                continue
            if len(self.running) == 1:
                self.failed.append((sequence, _outgrown(sequence, pages.total)))
                return False
            self._pause(max(self.running, key=lambda s: s.number))
        return False

    def _pause(self, sequence: Sequence) -> None:
        """Take a sequence's memory; it goes on from its tokens later."""
        self.paused += 1
        self.running.remove(sequence)
        self._give_back(sequence)
        at = next(
            (i for i, s in enumerate(self.waiting) if s.number > sequence.number),
            len(self.waiting),
        )
        self.waiting.insert(at, sequence)

    def _give_back(self, sequence: Sequence) -> None:
        if sequence.lease is not None:
            sequence.lease.release()
        self._pages.cut(sequence.table, 0)
        self._pages.cut(sequence.extra, 0)
        sequence.session, sequence.lease, sequence.computed = None, None, 0

    def _prompt_rows(self, rows: int) -> int:
        """How many rows of prompts fit into a pass of `rows` others without stalling these."""
        most = max(STEPS * self._cost(rows), PATIENCE)
        low, high = 1, max(1, PASS - rows)
        while low < high:
            middle = (low + high + 1) // 2
            if self._cost(rows + middle) <= most:
                low = middle
            else:
                high = middle - 1
        return low

    def _cut(self, sequence: Sequence, left: int) -> int:
        """How many missing tokens of a prompt to evaluate in at most `left` rows."""
        missing = sequence.missing
        if missing <= left:
            return missing
        assert sequence.wanted is not None
        # What is wanted is answered at once.
        return max(0, min(left, missing - max(1, sequence.wanted.positions)))


def _outgrown(sequence: Sequence, total: int) -> MemoryError:
    return MemoryError(
        f"a text of {len(sequence.tokens)} tokens has outgrown the budget of {total * PAGE} "
        f"positions of cache; lower max_tokens or raise cache_bytes"
    )
