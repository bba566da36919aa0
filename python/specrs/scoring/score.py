"""The result: how likely a text is, token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Score:
    """How likely a text is to the model, token by token; logarithms are natural.

    Attributes:
        tokens: The ids of the text, without a beginning-of-sequence token.
        logprobs: The log-probability of each, given all before it; None for the first one if
            nothing stands before it.
        is_greedy: Whether each token that has a log-probability is a most likely one at its place.
        num_bytes: Bytes of the text of the tokens that have a log-probability.
        top_logprobs: For each token, the most likely ids at its place with their log-probabilities,
            the likeliest first, or None as above; None unless asked for.
    """

    tokens: list[int]
    logprobs: list[float | None]
    is_greedy: bool
    num_bytes: int
    top_logprobs: list[TopLogprobs | None] | None = None

    @property
    def total(self) -> float:
        """The log-probability of the text: the sum of those of its tokens."""
        return math.fsum(one for one in self.logprobs if one is not None)

    @property
    def bits_per_byte(self) -> float:
        """Bits that an ideal compressor needs for a byte; nan for an empty text."""
        return -self.total / math.log(2) / self.num_bytes if self.num_bytes else math.nan

    @property
    def perplexity(self) -> float:
        """The exponential of the mean surprise of a token; nan where no token has one."""
        count = sum(one is not None for one in self.logprobs)
        try:
            return math.exp(-self.total / count) if count else math.nan
        except OverflowError:
            return math.inf

    def as_dict(self) -> dict[str, Any]:
        """Give every figure by its name, as JSON can hold it: None for what is no finite number."""
        names = "tokens logprobs is_greedy num_bytes top_logprobs total bits_per_byte perplexity"
        values = {name: getattr(self, name) for name in names.split()}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
