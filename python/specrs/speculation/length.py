"""How many tokens to draft in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..arguments import checked_int
from .drafters import Draft


@runtime_checkable
class LengthPolicy(Protocol):
    """Decides before each step how many tokens to draft, and learns from the outcome."""

    def next(self, drafter: str) -> int:
        """Return how many tokens to ask of `drafter`, 0 for none. The room left may lower it."""

    def keep(self, draft: Draft) -> int:
        """Return how many tokens of a proposal to verify; 0 drops it."""

    def update(self, outcome: Outcome) -> None:
        """Take note of how the step went."""


class Outcome(Protocol):
    """What a policy may learn from: the part of a generation's `Step` that concerns drafting."""

    @property
    def drafter(self) -> str | None:
        """Who drafted; None if nobody did."""

    @property
    def matched(self) -> int:
        """What the draft said of the context it rests on, see `Draft`."""

    @property
    def drafted(self) -> int:
        """Tokens proposed and verified."""

    @property
    def accepted(self) -> int:
        """Tokens of the proposal that were kept."""

    @property
    def evaluated(self) -> int:
        """Rows of the forward: those drafted and those not cached yet, at first the prompt."""

    @property
    def draft_seconds(self) -> float:
        """Time the drafter took."""

    @property
    def verify_seconds(self) -> float:
        """Time the forward and the verification took."""


@dataclass(frozen=True)
class FixedLength:
    """Always ask for `k` tokens."""

    k: int

    def __post_init__(self) -> None:
        if checked_int("FixedLength: k", self.k) < 1:
            raise ValueError(
                f"FixedLength: k must be at least 1, not {self.k}; pass no drafter for none"
            )

    def next(self, drafter: str) -> int:
        """Return `k`."""
        del drafter
        return self.k

    def keep(self, draft: Draft) -> int:
        """Return the length of the whole draft."""
        return len(draft)

    def update(self, outcome: Outcome) -> None:
        """Learn nothing."""
