"""Prompts and replies that are kept, so that what begins alike is evaluated once."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from weakref import ref

from .._specrs import Session
from ..speculation.drafters import common_prefix
from .pages import Pages, Table


class Node:
    """A text that is kept: that of its parent and `tokens` after it.

    Attributes:
        tokens: The ids that lead here from the parent.
        end: Length of the whole text.
        session: It holds at least the whole text.
        table: The session's pages.
        used: When somebody looked it up last.
    """

    __slots__ = ("__weakref__", "_parent", "children", "end", "session", "table", "tokens", "used")

    def __init__(
        self,
        tokens: list[int],
        end: int,
        parent: Node | None,
        session: Session | None,
        table: Table,
    ) -> None:
        self.tokens = tokens
        self.end = end
        self.parent = parent
        self.session = session
        self.table = table
        self.children: dict[int, Node] = {}  # by their first id
        self.used = 0

    @property
    def parent(self) -> Node | None:
        """The node above; not held, so that sessions go with the tree, not with the collector."""
        return None if self._parent is None else self._parent()

    @parent.setter
    def parent(self, parent: Node | None) -> None:
        self._parent = None if parent is None else ref(parent)


class Prefixes:
    """A radix tree of texts with a fork of a session at every node.

    Texts with different salts do not know of each other. The leaf that was used longest ago goes
    first; forks that were taken of it stay what they are.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._roots: dict[Hashable, Node] = {}
        self._clock = count(1)
        # What was a leaf when it was put here, by the time of its use, which may be later by now.
        self._leaves: list[tuple[int, int, Node]] = []
        self._order = count()

    def find(self, tokens: list[int], salt: Hashable = None) -> tuple[int, Node | None]:
        """Return how many of the first `tokens` are kept, and a node that holds them."""
        node = self._roots.get(salt)
        if node is None:
            return 0, None
        now, at = next(self._clock), 0
        while True:
            node.used = now
            child = node.children.get(tokens[at]) if at < len(tokens) else None
            if child is None:
                return at, node if at else None
            shared = common_prefix(child.tokens, tokens[at : at + len(child.tokens)])
            at += shared
            if shared < len(child.tokens):
                child.used = now
                return at, child
            node = child

    def take(self, node: Node, length: int) -> tuple[Session, Table]:
        """Return a session with the first `length` tokens of a node, and its pages, in use."""
        session, table = self._fork(node, length)
        self._pages.use(table)
        return session, table

    def keep(
        self, tokens: list[int], session: Session, table: Table, salt: Hashable = None
    ) -> None:
        """Keep a text.

        Args:
            tokens: The text; at least one id.
            session: It holds just this text and belongs to the tree from now on.
            table: The session's pages; idle, and of the tree.
            salt: Whose text it is.
        """
        node = self._roots.setdefault(salt, Node([], 0, None, None, []))
        now, at = next(self._clock), 0
        while True:
            node.used = now
            child = node.children.get(tokens[at])
            if child is None:
                node = self._add(Node(tokens[at:], len(tokens), node, session, table))
                node.used = now
                return
            shared = common_prefix(child.tokens, tokens[at : at + len(child.tokens)])
            at += shared
            if shared < len(child.tokens):
                child = self._split(child, shared)
            child.used = now
            if at == len(tokens):  # it is there already
                self._pages.cut(table, 0, in_use=False)
                return
            node = child

    def evict(self) -> bool:
        """Forget the leaf that was used longest ago; False if there is none."""
        while self._leaves:
            used, _, node = heappop(self._leaves)
            if node.children or node.session is None:  # no leaf, or gone
                continue
            if used < node.used:
                self._push(node)
                continue
            parent = node.parent
            assert parent is not None
            del parent.children[node.tokens[0]]
            self._pages.cut(node.table, 0, in_use=False)
            node.session = None
            if not parent.children and parent.session is not None:
                self._push(parent)
            elif not parent.children:
                self._roots = {salt: root for salt, root in self._roots.items() if root.children}
            return True
        return False

    def _fork(self, node: Node, length: int) -> tuple[Session, Table]:
        assert node.session is not None
        session = node.session.fork()
        session.truncate(length)
        return session, self._pages.share(node.table, length)

    def _split(self, node: Node, at: int) -> Node:
        """Put a node between `node` and its parent that holds the first `at` of its tokens."""
        parent, end = node.parent, node.end - len(node.tokens) + at
        assert parent is not None
        session, table = self._fork(node, end)
        middle = self._add(Node(node.tokens[:at], end, parent, session, table))
        node.tokens, node.parent = node.tokens[at:], middle
        middle.children[node.tokens[0]] = node
        return middle

    def _add(self, node: Node) -> Node:
        assert node.parent is not None
        node.parent.children[node.tokens[0]] = node
        self._push(node)
        return node

    def _push(self, node: Node) -> None:
        heappush(self._leaves, (node.used, next(self._order), node))
