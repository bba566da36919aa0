"""The memory of caches, counted in pages as the engine shares and copies them."""

from __future__ import annotations

PAGE = 64
"""Positions of a page."""

Table = list[int]
"""The pages of one cache, by number; a page may be in several tables."""


class Pages:
    """How many pages all caches take together: a shared one counts once.

    A mirror of the engine's caches that never touches them. A table is a cache's list of pages;
    sharing one copies the list, and whoever appends to a page that others have gets a copy first.
    Tables are in use by a running request, or idle: kept in case that somebody needs them.

    Args:
        total: Pages that there may be.

    Attributes:
        used: Pages in any table.
        busy: Pages in a table that is in use.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.most = 0  # that were in any table at once
        self._next = 0
        self._holders: dict[int, int] = {}  # tables of each page
        self._users: dict[int, int] = {}  # those of them that are in use

    @property
    def used(self) -> int:
        """Pages in any table."""
        return len(self._holders)

    @property
    def busy(self) -> int:
        """Pages in a table that is in use."""
        return len(self._users)

    def missing(self, table: Table, length: int, count: int) -> int:
        """Return how many pages more it takes to append `count` positions at `length`."""
        first, end = length // PAGE, -(-(length + count) // PAGE)
        if end == first + 1 <= len(table):  # nearly always: the page of the last position
            return int(self._holders[table[first]] > 1)
        shared = sum(self._holders[page] > 1 for page in table[first:end])
        return shared + max(0, end - max(first, len(table)))

    def grow(self, table: Table, length: int, count: int) -> None:
        """Append `count` positions at `length`, in a table that is in use."""
        for index in range(length // PAGE, -(-(length + count) // PAGE)):
            if index == len(table):
                table.append(self._new())
            elif self._holders[table[index]] > 1:
                self._drop(table[index], in_use=True)
                table[index] = self._new()

    def share(self, table: Table, length: int) -> Table:
        """Return an idle table with the first `length` positions of another one."""
        copy = table[: _kept(length)]
        for page in copy:
            self._holders[page] += 1
        return copy

    def use(self, table: Table) -> None:
        """Let an idle table be in use."""
        for page in table:
            self._users[page] = self._users.get(page, 0) + 1

    def idle(self, table: Table) -> None:
        """Let a table no longer be in use."""
        for page in table:
            self._leave(page)

    def cut(self, table: Table, length: int, *, in_use: bool = True) -> None:
        """Forget the positions from `length` on; 0 gives everything back."""
        keep = _kept(length) if length else 0
        for page in table[keep:]:
            self._drop(page, in_use=in_use)
        del table[keep:]

    def _new(self) -> int:
        page = self._next
        self._next += 1
        self._holders[page] = self._users[page] = 1
        self.most = max(self.most, len(self._holders))
        return page

    def _drop(self, page: int, *, in_use: bool) -> None:
        if in_use:
            self._leave(page)
        self._holders[page] -= 1
        if not self._holders[page]:
            del self._holders[page]

    def _leave(self, page: int) -> None:
        self._users[page] -= 1
        if not self._users[page]:
            del self._users[page]


def pages_of(positions: int) -> int:
    """Return how many pages hold so many positions."""
    return -(-positions // PAGE)


def _kept(length: int) -> int:
    """Pages that the engine keeps of a cache cut to `length`: one more than it needs."""
    return pages_of(length) + 1
