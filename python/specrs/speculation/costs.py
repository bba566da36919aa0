"""What a forward costs, learned from the forwards that are run anyway."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Protocol


class ForwardCost(Protocol):
    """How long a forward takes; any function will do, in any unit of time."""

    def __call__(self, rows: int, /) -> float:
        """Return the time of a forward of `rows` tokens."""


# What is assumed at first, by rows: between the curves of small and of large models.
ASSUMED = {1: 1.0, 2: 1.12, 3: 1.2, 4: 1.3, 6: 1.5, 8: 1.75, 12: 2.4, 16: 3.1, 40: 7.5}
# The same with the rows of prompts, for passes that several texts share.
ASSUMED_OF_PASSES = {**ASSUMED, 64: 11.0, 128: 20.0, 256: 38.0}


class MeasuredCost:
    """The cost of a forward of so many rows on this machine and model, measured as it runs.

    It is a level, in seconds, times a curve relative to one row. Other work on the machine changes
    the level within a few forwards; the curve hardly: both follow the logarithm of what is
    measured, in steps that no outlier can make large. A surprise where the curve rests on few
    measurements is the curve's, elsewhere the level's. One object may be shared by all generations
    of a model.

    Args:
        assumed: The curve at first. Forwards of more rows than it has are ignored.
    """

    # How far level and curve follow a measurement at last, and the largest surprise that counts.
    LEVEL_GAIN, CURVE_GAIN, LARGEST_SURPRISE = 0.2, 0.06, 0.4
    PRIOR = 3.0  # how many measurements the assumed curve weighs as much as

    def __init__(self, assumed: Mapping[int, float] = ASSUMED) -> None:
        self.measurements = 0
        self._most_rows = max(assumed)
        self._level = 1.0
        self._curve = [0.0] + [1.0] * self._most_rows
        self._seen = [0.0] * (self._most_rows + 1)  # measurements that the curve rests on, by rows
        for (left, low), (right, high) in pairwise(assumed.items()):
            for rows in range(left, right + 1):
                self._curve[rows] = low + (high - low) * (rows - left) / (right - left)

    def __call__(self, rows: int) -> float:
        """Return the expected seconds of a forward of `rows` tokens."""
        most = self._most_rows
        if rows <= most:
            return self._level * self._curve[rows]
        return self._level * self._curve[most] * rows / most

    def update(self, rows: int, seconds: float) -> None:
        """Take note of a forward."""
        if seconds <= 0 or not 1 <= rows <= self._most_rows:
            return
        self.measurements += 1
        if self.measurements == 1:
            self._level = seconds / self._curve[rows]
            return
        surprise = math.log(seconds / self(rows))
        surprise = max(-self.LARGEST_SURPRISE, min(self.LARGEST_SURPRISE, surprise))
        # The first measurements count equally: before the level is known, no surprise says much.
        level_gain = max(self.LEVEL_GAIN, 1 / self.measurements)
        if rows == 1:  # the curve is relative to it
            self._level *= math.exp(surprise * level_gain)
            return
        # The less the curve is known here, the less a surprise says of the level.
        seen = self._seen[rows]
        self._level *= math.exp(surprise * level_gain * seen / (self.PRIOR + seen))
        for near, nearness in _neighbours(rows, self._most_rows):
            seen = self._seen[near]
            curve_gain = max(self.CURVE_GAIN, 1 / (self.PRIOR + seen))
            self._curve[near] *= math.exp(surprise * curve_gain * nearness)
            self._seen[near] = seen + nearness


@cache
def _neighbours(rows: int, most: int) -> list[tuple[int, float]]:
    """Return the numbers of rows that are close by, which cost about as much, and how close."""
    close = range(max(2, rows // 2 + 1), min(2 * rows, most + 1))
    return [(near, 1 - abs(math.log2(near / rows))) for near in close]
