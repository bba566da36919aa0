"""The rotary embedding of the oracle: how far each pair turns from one position to the next."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Config: TypeAlias = Callable[..., Any]  # looks up a key, with a default
Angles: TypeAlias = npt.NDArray[np.float64]


def plain(base: float, pairs: int) -> Angles:
    """Turn pair i by base^(-i / pairs)."""
    return np.asarray(base ** (-np.arange(pairs) / pairs))


def scaled(config: Config, frequencies: Angles, base: float) -> tuple[Angles, float]:
    """Slow down as `rope.scaling.type` says; also gives what queries and keys are multiplied by."""
    kind = config("rope.scaling.type", "linear")
    factor = float(config("rope.scaling.factor", config("rope.scale_linear", 1.0)))
    magnitude = float(config("rope.scaling.attn_factor", 1.0))
    if kind == "linear":
        return frequencies / factor, magnitude
    if kind == "yarn":
        kept = _kept(config, len(frequencies), base)
        mu = float(config("rope.scaling.yarn_log_multiplier", 0.0))
        longer = (1 + 0.1 * math.log(factor)) / (1 + 0.1 * mu * math.log(factor))
        return frequencies * (kept + (1 - kept) / factor), magnitude * longer
    return frequencies, magnitude  # "longrope", whose divisors are tensors; "none"


def _kept(config: Config, pairs: int, base: float) -> Angles:
    """Tell how much of each pair's frequency YaRN keeps: all of fast ones, none of slow ones.

    Fast are those that turn `yarn_beta_fast` times within the original context.
    """
    original = original_context(config)

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(original / (2 * math.pi * times)) / math.log(base)

    low = max(0, math.floor(pair_that_turns(config("rope.scaling.yarn_beta_fast", 32.0))))
    high = math.ceil(pair_that_turns(config("rope.scaling.yarn_beta_slow", 1.0)))
    high = min(2 * pairs - 1, high)
    return 1 - np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0, 1)


def original_context(config: Config) -> int:
    """Read for how many positions a model was trained before its context was extended."""
    return int(config("rope.scaling.original_context_length", config("context_length")))
