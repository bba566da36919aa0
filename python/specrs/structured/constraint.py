"""What a grammar still allows in one generation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from llguidance import LLMatcher


class Constraint:
    """Follows the tokens of one generation and tells which may come next.

    What it tells is a function of the tokens taken, never of what it was asked before.

    Args:
        matcher: The compiled grammar, at its beginning. Its token `n_vocab` stands for the end.
        n_vocab: Ids of the model are below.
        end_ids: Ids that end the generation. They are allowed where the text may end, and where the
            grammar itself has them.

    Attributes:
        complete: Whether nothing can follow.

    Its methods raise ValueError where the grammar turns out to be too complex to follow.
    """

    def __init__(self, matcher: LLMatcher, n_vocab: int, end_ids: Collection[int]) -> None:
        self.complete = False
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._end_ids = frozenset(end_ids)
        # What was asked for, as long as nothing more is taken.
        self._forced: list[int] | None = None
        self._mask: npt.NDArray[np.bool_] | None = None

    def forced(self) -> list[int]:
        """Return the ids that come next whatever the model holds likely; empty if it may choose."""
        if self._forced is None:
            self._forced = [] if self.complete else self._matcher.compute_ff_tokens()
            self._check()
        return self._forced

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""
        if self.complete:
            return False
        forced = self.forced()
        if forced:
            return token == forced[0]
        if token in self._end_ids and self._matcher.is_accepting():
            return True
        return self._matcher.validate_tokens([token]) == 1

    def allowed(self, draft: Sequence[int]) -> int:
        """Return how many of the first ids of `draft` may come next, one after the other.

        Of what is forced only later on, other tokens of the same text pass as well.
        """
        if self.complete or not draft:
            return 0
        pairs = zip(draft, self.forced(), strict=False)
        other = next((i for i, (token, forced) in enumerate(pairs) if token != forced), None)
        return self._matcher.validate_tokens(list(draft)) if other is None else other

    def masked(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return `logits` [n_vocab] with -inf for every token that may not come next."""
        import numpy as np

        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            self._check()
            mask = np.unpackbits(bits, count=self._n_vocab + 1, bitorder="little").view(np.bool_)
            if mask[self._n_vocab]:
                mask[list(self._end_ids)] = True
            self._mask = mask[: self._n_vocab]
        return np.where(self._mask, logits, np.float32(-np.inf))

    def take(self, token: int) -> None:
        """Take the next token, one that is allowed."""
        if token in self._end_ids:
            self.complete = True
            return
        self._forced = self._mask = None
        self._matcher.consume_token(token)
        self._check()
        self.complete = self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"the grammar cannot be followed: {self._matcher.get_error()}")
