"""The sessions of sequences and the memory that they take."""

from __future__ import annotations

from collections.abc import Callable

from .._specrs import Session
from .pages import PAGE, Pages, pages_of
from .prefixes import Prefixes
from .sequence import Sequence

AHEAD = 1
"""Pages of a running sequence that the system may have given memory for before they are needed: it
does so in large pieces."""


class Caches:
    """Gives sessions to sequences and takes them back, within a budget of pages.

    What is kept of earlier texts may fill the budget; it is forgotten as soon as somebody needs the
    room.

    Args:
        new_session: Makes an empty session.
        pages: The budget.
        prefixes: What is kept of others; None keeps nothing.
    """

    def __init__(
        self, new_session: Callable[[], Session], pages: Pages, prefixes: Prefixes | None
    ) -> None:
        self.total = pages.total
        self._new_session = new_session
        self._pages = pages
        self._prefixes = prefixes

    @property
    def keeps(self) -> bool:
        """Whether anything is kept for others."""
        return self._prefixes is not None

    def most(self, sequence: Sequence) -> int:
        """Return how many pages a sequence may come to take."""
        return pages_of(sequence.most()) + AHEAD + sequence.extra_pages

    def kept(self, sequence: Sequence) -> int:
        """Return how many of the first tokens of a sequence are kept."""
        if self._prefixes is None or not sequence.shareable:
            return 0
        return self._prefixes.find(sequence.tokens, sequence.salt)[0]

    def open(self, sequence: Sequence, others: list[Sequence]) -> bool:
        """Give a sequence a session with what is kept of its tokens.

        False if there is no room beside the `others` that run; what was promised to them counts.
        """
        found, node = 0, None
        if self._prefixes is not None and sequence.shareable:
            found, node = self._prefixes.find(sequence.tokens, sequence.salt)
            found = min(found, sequence.reusable)
        promised = sum(max(0, pages_of(s.most()) - len(s.table)) for s in others)
        need = self.most(sequence) - found // PAGE + promised
        if others and self._pages.busy + need > self.total:
            return False
        # Taken first, so that it cannot be forgotten to make room for the rest.
        if node is not None and found and self._prefixes is not None:
            session, table = self._prefixes.take(node, found)
        else:
            session, table, found = self._new_session(), [], 0
        room = self._make_room(need)
        if not room and not others:  # what is not sure to suffice is better than nothing
            least = pages_of(len(sequence.tokens) + 1) + AHEAD + sequence.extra_pages
            room = self._make_room(least - found // PAGE)
        if not room:
            self._pages.cut(table, 0)
            return False
        self._pages.grow(sequence.extra, 0, (AHEAD + sequence.extra_pages) * PAGE)
        sequence.session, sequence.table, sequence.lease = session, table, session.lease()
        sequence.computed = found
        return True

    def grow(self, sequence: Sequence, count: int) -> bool:
        """Let a sequence have `count` more positions; False if there is no room."""
        pages = self._pages
        while True:
            need = pages.missing(sequence.table, sequence.computed, count)
            if not need:
                return True
            if pages.used + need <= pages.total:
                pages.grow(sequence.table, sequence.computed, count)
                return True
            if self._prefixes is None or not self._prefixes.evict():
                return False

    def settle(self, sequence: Sequence, length: int) -> None:
        """Forget what a sequence computed from `length` on."""
        if sequence.computed > length and sequence.lease is not None:
            sequence.lease.truncate(length)
            self._pages.cut(sequence.table, length)
            sequence.computed = length

    def share(self, sequence: Sequence) -> None:
        """Let others begin with what a running sequence has computed of its prompt."""
        session, length = sequence.session, min(sequence.computed, len(sequence.generation.prompt))
        if self._prefixes is None or not sequence.shareable or session is None or not length:
            return
        fork = session.fork()
        fork.truncate(length)
        table = self._pages.share(sequence.table, length)
        self._prefixes.keep(sequence.tokens[:length], fork, table, sequence.salt)

    def close(self, sequence: Sequence, keep: int = 0) -> None:
        """Take the session of a sequence back; keep the first `keep` of its tokens for others."""
        session, lease, table = sequence.session, sequence.lease, sequence.table
        keep = min(keep, sequence.computed)
        if session is not None and lease is not None:
            if keep and self._prefixes is not None and sequence.shareable:
                self.settle(sequence, keep)
                self._pages.idle(table)
                # A fork has no memory ahead.
                self._prefixes.keep(sequence.tokens[:keep], session.fork(), table, sequence.salt)
            else:
                self._pages.cut(table, 0)
            lease.release()
            self._pages.cut(sequence.extra, 0)
        sequence.session, sequence.lease, sequence.table, sequence.computed = None, None, [], 0

    def forget(self) -> None:
        """Forget what is kept."""
        while self._prefixes is not None and self._prefixes.evict():
            pass

    def _make_room(self, count: int) -> bool:
        """Whether there are `count` more pages, once enough of what is kept is forgotten."""
        pages = self._pages
        if pages.busy + count > pages.total:
            return False
        while pages.used + count > pages.total:
            if self._prefixes is None or not self._prefixes.evict():
                return False
        return True
