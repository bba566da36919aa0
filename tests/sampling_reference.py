"""The sampler written down from its definition: full sorts, float64, Gumbel noise, no haste."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15

Floats = npt.NDArray[np.floating[Any]]


def mix(z: int) -> int:
    """SplitMix64's finaliser."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def gumbel(seed: int, position: int, token: int) -> float:
    """Noise of one token at one position."""
    state = mix(mix(seed) + STEP * (position + 1) & MASK)
    u = ((mix(state + STEP * (token + 1) & MASK) >> 12) + 0.5) / 2**52
    return float(-np.log(-np.log1p(-u)))


class Sampler:
    """Stands in for the native one; same methods, same choices but for ties in the last bits."""

    def __init__(
        self,
        *,
        prompt_tokens: int = 0,
        seed: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = (),
    ) -> None:
        self.prompt_tokens, self.seed, self.temperature = prompt_tokens, seed, temperature
        self.top_k, self.top_p, self.min_p = top_k, top_p, min_p
        self.penalties = repetition_penalty, frequency_penalty, presence_penalty
        self.logit_bias = logit_bias
        self.history: list[int] = []

    def __len__(self) -> int:
        return len(self.history)

    def extend(self, tokens: Sequence[int]) -> None:
        self.history += tokens

    def truncate(self, length: int) -> None:
        if length > len(self):
            raise ValueError(f"cannot cut a history of {len(self)} tokens to {length}")
        del self.history[length:]

    def adjust(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        row = logits.astype(np.float64)
        repetition, frequency, presence = self.penalties
        for token in set(self.history):
            if token < len(row):
                row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        for token, count in Counter(self.history[self.prompt_tokens :]).items():
            if token < len(row):
                row[token] -= frequency * count + presence
        adjusted = row.astype(np.float32)
        for token, bias in self.logit_bias:
            if token < len(row):
                adjusted[token] += np.float32(bias)
        return adjusted

    def distribution(self, adjusted: npt.NDArray[np.float32]) -> dict[int, float]:
        """Probability of every token that can be drawn."""
        row = adjusted.astype(np.float64)
        order = [int(i) for i in np.argsort(-row, kind="stable") if row[i] > -np.inf]
        if self.temperature == 0:
            return {order[0]: 1.0}
        order = order[: self.top_k or None]
        p = softmax(row[order] / self.temperature)
        if self.top_p < 1:
            order = order[: int(np.searchsorted(np.cumsum(p), self.top_p * (1 - 1e-12))) + 1]
        p = p[: len(order)]
        kept = p >= self.min_p * p[0]
        return dict(zip(np.array(order)[kept].tolist(), p[kept] / p[kept].sum(), strict=True))

    def pick(self, logits: npt.NDArray[np.float32], *, adjusted: bool = False) -> int:
        row = logits if adjusted else self.adjust(logits)
        if not (row > -np.inf).any():
            raise ValueError(
                f"no token can be chosen at position {len(self)}: every logit is -inf or NaN; "
                f"a logit_bias or logits_processor must leave at least one token possible"
            )
        position = len(self)
        left = self.distribution(row)
        token = max(left, key=lambda i: np.log(left[i]) + gumbel(self.seed, position, i))
        self.history.append(token)
        return token

    def log_probabilities(
        self, logits: npt.NDArray[np.float32], token: int, count: int
    ) -> tuple[float, list[tuple[int, float]]]:
        row = logits.astype(np.float64)
        logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        order = np.argsort(-row, kind="stable")[:count].tolist()
        return float(logprobs[token]), [(i, float(logprobs[i])) for i in order]


def softmax(x: Floats) -> npt.NDArray[np.float64]:
    weights = np.exp(x - x.max())
    return np.asarray(weights / weights.sum())
