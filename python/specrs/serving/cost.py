"""What passes cost that several texts share: by their rows, and by how far these look back."""

from __future__ import annotations

import math
from typing import Protocol

from ..speculation.costs import ASSUMED_OF_PASSES, MeasuredCost


class Cost(Protocol):
    """What passes cost, in any unit of time."""

    def __call__(self, rows: int, seen: int = 0) -> float:
        """Return the expected time of a pass of `rows` that look at `seen` positions in all."""

    def update(self, rows: int, seen: int, seconds: float) -> None:
        """Take note of a pass."""


class PassCost:
    """The cost of a pass, measured as it runs.

    Beside the weights, which `MeasuredCost` follows by the number of rows, a row works with every
    position before it. In a long prompt that becomes as much as all the rest, so that a piece of
    it takes longer the further back it looks. That part is taken to grow with the number of
    positions that all rows look at together. A surprise is shared out between the two parts as the
    time is.
    """

    GAIN = 1.0  # how far the second part follows a measurement that it makes alone
    LARGEST_SURPRISE = 0.4
    # Positions that a row of a prompt looks at in the time that its weights take: at first.
    EVEN = 2048

    def __init__(self) -> None:
        self._weights = MeasuredCost(ASSUMED_OF_PASSES)
        self._most_rows = max(ASSUMED_OF_PASSES)
        # Cost of looking at one position; 1 is a row's share of the weights in the largest pass.
        self._per_position = 1 / self.EVEN

    def __call__(self, rows: int, seen: int = 0) -> float:
        """Return the expected seconds of a pass of `rows` that look at `seen` positions in all."""
        return self._weights(rows) + seen * self._unit()

    def _unit(self) -> float:
        """Seconds for a position that a row looks at."""
        return self._per_position * self._weights(self._most_rows) / self._most_rows

    def update(self, rows: int, seen: int, seconds: float) -> None:
        """Take note of a pass."""
        if seconds <= 0:
            return
        if not self._weights.measurements:  # nothing is known to be surprised against
            self._weights.update(rows, seconds)
            return
        expected = self(rows, seen)
        share = seen * self._unit() / expected
        surprise = math.log(seconds / expected)
        surprise = max(-self.LARGEST_SURPRISE, min(self.LARGEST_SURPRISE, surprise))
        self._per_position *= math.exp(self.GAIN * share * surprise)
        self._weights.update(rows, self._weights(rows) * math.exp((1 - share) * surprise))


def positions_seen(start: int, rows: int) -> int:
    """Return how many positions `rows` of one text look at, the first of them at `start`."""
    return rows * start + rows * (rows + 1) // 2
