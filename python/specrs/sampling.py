"""How the next token is chosen from the target's logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Sampling:
    """Settings of the choice, checked when they are made.

    Args:
        temperature: 0 takes the most likely token; above 0 draws, the flatter the higher.
        top_k: Draw among this many of the most likely tokens; 0 is no limit.
        top_p: Draw among the most likely tokens that together reach this probability; 1 is no
            limit.
        min_p: Draw among tokens at least this fraction as likely as the most likely one; 0 is no
            limit.
        seed: Fixes the draws: same seed and settings, same text, whatever is drafted.
        repetition_penalty: Divides positive and multiplies negative logits of seen tokens; 1 is
            none.
        frequency_penalty: Subtracted from a token's logit once for each time it was seen.
        presence_penalty: Subtracted from the logit of every seen token.
        logit_bias: Added to the logits of these token ids.

    Raises ValueError or TypeError naming the setting.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an int, not {value!r}")
        self._check("temperature", "0 or more", lambda value: value >= 0)
        self._check("top_k", "0 (no limit) or more", lambda value: value >= 0)
        self._check("top_p", "above 0 and at most 1", lambda value: 0 < value <= 1)
        self._check("min_p", "from 0 to 1", lambda value: 0 <= value <= 1)
        self._check("seed", "from 0 to 2**64 - 1", lambda value: 0 <= value < 2**64)
        self._check("repetition_penalty", "above 0", lambda value: value > 0)
        self._check("frequency_penalty", "finite", lambda _: True)
        self._check("presence_penalty", "finite", lambda _: True)
        biases: Mapping[Any, Any] = self.logit_bias or {}
        for token, bias in biases.items():
            if not isinstance(token, int) or token < 0:
                raise ValueError(f"logit_bias: {token!r} is not a token id")
            if not isinstance(bias, (int, float)) or math.isnan(bias) or bias == math.inf:
                raise ValueError(
                    f"logit_bias[{token}] must be a number below infinity, not {bias!r}"
                )

    def _check(self, name: str, wanted: str, accepts: Any) -> None:
        value = getattr(self, name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number, not {value!r}")
        # NaN fails every comparison but not `lambda _: True`, infinity some of them.
        if not math.isfinite(value) or not accepts(value):
            raise ValueError(f"{name} must be {wanted}, not {value!r}")

    def check_supported(self) -> None:
        """Raise NotImplementedError for settings that this version cannot honour.

        `top_k`, `top_p` and `min_p` never remove the most likely token: greedy choice ignores them
        rightly.
        """
        neutral = {
            "temperature": 0,
            "repetition_penalty": 1,
            "frequency_penalty": 0,
            "presence_penalty": 0,
        }
        for name, value in neutral.items():
            if getattr(self, name) != value:
                raise NotImplementedError(
                    f"{name}={getattr(self, name)!r} is not supported yet: this version decodes "
                    f"greedily; leave {name} at {value}"
                )
        if self.logit_bias:
            raise NotImplementedError("logit_bias is not supported yet; leave it at None")

    def picks(
        self, logits: npt.NDArray[np.float32], tokens: Sequence[int], draft: Sequence[int]
    ) -> Iterable[int]:
        """Give the target's own choice after `tokens`, after `tokens + draft[:1]`, and so on.

        Args:
            logits: float32 [len(draft) + 1, n_vocab], one row for each of these histories.
            tokens: The history the first row follows.
            draft: The ids that extend it row by row.
        """
        del tokens, draft  # the most likely token does not depend on what came before
        picks: list[int] = logits.argmax(axis=1).tolist()
        return picks
