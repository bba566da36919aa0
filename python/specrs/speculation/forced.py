"""What a grammar leaves no choice about, as drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .drafters import Draft

if TYPE_CHECKING:
    from ..structured.constraint import Constraint


class ForcedTokens:
    """Propose what the grammar of a generation forces, and nothing else; without one nothing.

    Such drafts are always right. Any other drafter gets them as well: they are proposed in its
    place wherever there are some. A JSON schema forces keys, quotes and colons.

    Args:
        constraint: That of one generation, which sets it.
    """

    def __init__(self, constraint: Constraint | None = None) -> None:
        self._constraint = constraint

    def propose(self, tokens: Sequence[int], k: int) -> Draft:
        """Return up to `k` ids that must follow."""
        del tokens
        forced = [] if self._constraint is None else self._constraint.forced()
        # What is forced counts as the surest of contexts.
        return Draft(forced[:k], matched=len(forced) and self.SURE)

    SURE = 16

    def __repr__(self) -> str:
        return "ForcedTokens()"
