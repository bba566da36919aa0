"""How many tokens to draft in a step."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Protocol, runtime_checkable


@runtime_checkable
class LengthPolicy(Protocol):
    """Decides before each step how many tokens to draft, and learns from the outcome."""

    def next(self) -> int:
        """Return the most tokens to draft now; 0 is a plain step. The room left may lower it."""

    def update(self, outcome: Outcome) -> None:
        """Take note of how the step went."""


class Outcome(Protocol):
    """What a policy may learn from: the part of a generation's `Step` that concerns drafting."""

    @property
    def drafted(self) -> int:
        """Tokens proposed."""

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
        if index(self.k) < 1:
            raise ValueError(
                f"FixedLength: k must be at least 1, not {self.k}; pass no drafter for none"
            )

    def next(self) -> int:
        """Return `k`."""
        return self.k

    def update(self, outcome: Outcome) -> None:
        """Learn nothing."""
