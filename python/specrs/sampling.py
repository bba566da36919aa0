"""How the next token is chosen from the target's logits."""

from __future__ import annotations

import copy
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

from ._specrs import Sampler

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .structured.constraint import Constraint

    LogitsProcessor = Callable[[list[int], npt.NDArray[np.float32]], npt.NDArray[Any]]


@dataclass(frozen=True)
class Sampling:
    """Settings of the choice, checked when they are made.

    Tokens that a `grammar=` forbids are out before all of this. The logits at a position go through
    the settings in this order. It is that of Hugging Face
    transformers, and of vLLM but for `min_p`, which stands before `top_k` there; only `logit_bias`,
    which both add first, comes after the penalties here: a bias is worth what it says.

    1. `repetition_penalty`, then `frequency_penalty` and `presence_penalty`. As there and in
       OpenAI's API, the first concerns every token of prompt and result, the other two only tokens
       of the result;
    2. `logit_bias`, then `logits_processor`;
    3. `temperature`; 0 takes the most likely token here, the lowest id among equals;
    4. `top_k`, then `top_p` on what that left, with its probabilities scaled to a sum of 1, then
       `min_p`. Among equally likely tokens the lower ids are kept;
    5. the draw: the token with the largest `log p + g`, where the Gumbel noise `g` is a hash of
       `seed`, position and token id. That picks each token with probability `p` (Gumbel, 1954), and
       it makes the text a function of the seed: nothing changes with the drafter, the length of the
       drafts, threads, or a session that holds part of the prompt already.

    Args:
        temperature: 0 takes the most likely token; above 0 draws, the flatter the higher.
        top_k: Draw among this many of the most likely tokens; 0 is no limit.
        top_p: Draw among the fewest most likely tokens that together reach this probability; 1 is
            no limit.
        min_p: Draw among tokens at least this fraction as likely as the most likely one; 0 is no
            limit.
        seed: Fixes the draws: same seed and settings, same text. None takes a fresh one for every
            generation; `Stats.seed` tells which.
        repetition_penalty: Divides positive and multiplies negative logits of seen tokens; 1 is
            none (Keskar et al., 2019).
        frequency_penalty: Subtracted from a token's logit once for each time it was generated.
        presence_penalty: Subtracted from the logit of every token that was generated.
        logit_bias: Added to the logits of these token ids; -inf forbids a token.
        logits_processor: Called as `logits_processor(tokens, logits)` with the ids so far, which it
            may only read, and float32 logits [n_vocab], which it may change; returns the logits to
            use; what float32 cannot hold is infinite. It sees every position of the text once, in
            order and with its true history, whatever is drafted. What it raises ends the
            generation.

    Raises ValueError or TypeError naming the setting. Warns of settings of the draw at temperature
    0, where nothing is drawn.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    logits_processor: LogitsProcessor | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if value is None and name == "seed":
                continue
            if not isinstance(value, Integral) or isinstance(value, bool):
                wanted = "an int or None" if name == "seed" else "an int"
                raise TypeError(f"{name} must be {wanted}, not {value!r}")
        self._check("temperature", "0 or more", lambda value: value >= 0)
        self._check("top_k", "0 (no limit) or more", lambda value: value >= 0)
        self._check("top_p", "above 0 and at most 1", lambda value: 0 < value <= 1)
        self._check("min_p", "from 0 to 1", lambda value: 0 <= value <= 1)
        if self.seed is not None:
            self._check("seed", "from 0 to 2**64 - 1", lambda value: 0 <= value < 2**64)
        self._check("repetition_penalty", "above 0", lambda value: value > 0)
        self._check("frequency_penalty", "finite", lambda _: True)
        self._check("presence_penalty", "finite", lambda _: True)
        self._check_bias()
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise TypeError(
                f"logits_processor must be callable with (tokens, logits), "
                f"not {self.logits_processor!r}"
            )
        if self.temperature == 0:
            self._warn_of_no_draw()

    def _warn_of_no_draw(self) -> None:
        names = [
            field.name
            for field in fields(self)
            if field.name in _OF_THE_DRAW and getattr(self, field.name) not in (field.default, None)
        ]
        if names:
            warnings.warn(
                f"nothing is drawn at temperature 0, so {' and '.join(names)} will do nothing; "
                f"set a temperature",
                stacklevel=4,  # who makes the settings
            )

    def _check(self, name: str, wanted: str, accepts: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        if not isinstance(value, Real) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number, not {value!r}")
        try:
            finite = math.isfinite(value)
        except OverflowError:  # an int above all floats
            finite = False
        # NaN fails every comparison but not `lambda _: True`, infinity some of them.
        if not finite or not accepts(value):
            raise ValueError(f"{name} must be {wanted}, not {value!r}")

    def _check_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise TypeError(
                f"logit_bias must map token ids to numbers, such as {{42: -1.5}}, "
                f"not {self.logit_bias!r}"
            )
        for token, bias in self.logit_bias.items():
            if not isinstance(token, Integral) or isinstance(token, bool) or token < 0:
                raise ValueError(f"logit_bias: {token!r} is not a token id")
            if not isinstance(bias, Real) or isinstance(bias, bool):
                raise TypeError(f"logit_bias[{token}] must be a number, not {bias!r}")
            if math.isnan(bias) or bias == math.inf:
                raise ValueError(f"logit_bias[{token}] must be below infinity, not {bias!r}")
        # A copy: what was checked stays what is used.
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    @property
    def takes_highest(self) -> bool:
        """Whether every choice is the token with the highest of the model's own logits."""
        return (
            self.temperature == 0
            and self.repetition_penalty == 1
            and self.frequency_penalty == self.presence_penalty == 0
            and not self.logit_bias
            and self.logits_processor is None
        )

    def check_vocabulary(self, n_vocab: int) -> None:
        """Raise ValueError if a bias concerns no token of a vocabulary of `n_vocab`."""
        for token in self.logit_bias or ():
            if token >= n_vocab:
                raise ValueError(
                    f"logit_bias: token {token} is outside the vocabulary of {n_vocab}"
                )

    def seeded(self) -> Sampling:
        """Return the same settings with a fresh seed if there is none."""
        if self.seed is not None:
            return self
        seeded = copy.copy(self)  # what was checked, and warned of, is not so again
        object.__setattr__(seeded, "seed", int.from_bytes(os.urandom(8), "little"))
        return seeded

    def sampler(self, prompt_tokens: int) -> Sampler:
        """Return the engine's sampler with these settings, all but `logits_processor`.

        Args:
            prompt_tokens: How many ids at the beginning were not generated.
        """
        settings = self.seeded()
        assert settings.seed is not None
        return Sampler(
            prompt_tokens=prompt_tokens,
            seed=int(settings.seed),
            temperature=float(self.temperature),
            top_k=min(int(self.top_k), sys.maxsize),
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            repetition_penalty=float(self.repetition_penalty),
            frequency_penalty=float(self.frequency_penalty),
            presence_penalty=float(self.presence_penalty),
            logit_bias=[(int(token), float(b)) for token, b in (self.logit_bias or {}).items()],
        )


_OF_THE_DRAW = ("top_k", "top_p", "min_p", "seed")
"""Settings that say nothing where nothing is drawn."""


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the model held one token to be, before all settings of `Sampling`.

    The log-probabilities are those of the softmax of the model's own logits, as in OpenAI's API and
    vLLM. They are the same bits whether the token was drafted or not.

    Attributes:
        token: The id that was chosen.
        logprob: Natural logarithm of its probability.
        top: The most likely ids with theirs, from the most likely on.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Picker:
    """The target's choices in one generation, one after the other.

    A choice is made only once all before it stand, so it always follows the true history, accepted
    draft tokens included, and no count of tokens ever has to be taken back.

    Args:
        sampling: The settings.
        prompt: The ids before the first choice.
        logprobs: How many of the most likely tokens to tell with every choice; None tells nothing.
        constraint: What a grammar allows; it is told of every choice. None allows everything.

    Attributes:
        logprobs: One for each choice of the last call of `picks`; None if not asked for.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        logprobs: int | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.logprobs: list[TokenLogprob] | None = None
        self._top = logprobs
        self._sampler = sampling.sampler(len(prompt))
        self._sampler.extend(prompt)
        self._processor = sampling.logits_processor
        self._history = [] if self._processor is None else list(prompt)
        self._constraint = constraint
        self._greedy = sampling.temperature == 0 and self._processor is None
        self._only_highest = logprobs is None and sampling.takes_highest

    def needs_logits(self, choices: int) -> bool:
        """Whether so many choices take more than to know the tokens with the highest logits."""
        if not self._only_highest:
            return True
        # Which other token to take where the likeliest is forbidden, only logits tell.
        return self._constraint is not None and len(self._constraint.forced()) < choices

    def picks(self, logits: npt.NDArray[np.float32]) -> Iterator[int]:
        """Give choice after choice, each of which is history for the next.

        Args:
            logits: float32 [rows, n_vocab]: a row for the history so far, and one for each further
                token of a draft. Stop asking when a choice is not the token its successor's row was
                computed for. Ends early where a grammar leaves nothing to choose.
        """
        if self._top is not None:
            self.logprobs = []
        for row in logits:
            if self._constraint is None:
                token = self._pick(row)
            elif self._constraint.complete:
                return
            else:
                token = self._allowed(row, self._constraint)
                self._constraint.take(token)
            if self.logprobs is not None:
                logprob, top = self._sampler.log_probabilities(row, token, self._top or 0)
                self.logprobs.append(TokenLogprob(token, logprob, tuple(top)))
            yield token

    def known(self, highest: Iterable[int | None]) -> Iterator[int]:
        """Give choice after choice where these are the tokens with the `highest` logits.

        With a grammar those that it forces; ends early where it forces none.
        """
        for token in highest:
            if self._constraint is not None:
                forced = self._constraint.forced()
                if not forced:
                    return
                self._constraint.take(forced[0])
                yield forced[0]
            elif token is None:
                raise ValueError("no token can be chosen: every logit is -inf or NaN")
            else:
                yield token

    def _pick(self, row: npt.NDArray[np.float32]) -> int:
        if self._processor is None:
            return self._sampler.pick(row)
        row = self._processed(self._processor, row)
        if self._constraint is not None:  # it may have let in what the grammar forbids
            row = self._constraint.masked(row)
        token = self._sampler.pick(row, adjusted=True)
        self._history.append(token)
        return token

    def _allowed(self, row: npt.NDArray[np.float32], constraint: Constraint) -> int:
        """Pick among the tokens that the grammar allows."""
        forced = constraint.forced()
        if forced:
            if self._processor is not None:  # it sees every position
                self._processed(self._processor, constraint.masked(row))
                self._history.append(forced[0])
            self._sampler.extend(forced[:1])
            return forced[0]
        if self._greedy:  # the highest of all, if it is allowed, is the highest of those allowed
            token = self._sampler.pick(row)
            if constraint.allows(token):
                return token
            self._sampler.truncate(len(self._sampler) - 1)
        return self._pick(constraint.masked(row))

    def _processed(
        self, processor: LogitsProcessor, row: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Give what the user's function makes of `row`, with nothing taken on trust."""
        import numpy as np

        known = len(self._history)
        result: object = processor(self._history, self._sampler.adjust(row))
        if len(self._history) != known:
            raise RuntimeError(
                "logits_processor changed the tokens it was given; it may only read them"
            )
        if not isinstance(result, np.ndarray) or result.dtype.kind != "f":
            have = (
                f"an array of {result.dtype}"
                if isinstance(result, np.ndarray)
                else shortened(result)
            )
            raise TypeError(
                f"logits_processor must return a float array of shape {row.shape}, not {have}"
            )
        if result.shape != row.shape:
            raise ValueError(
                f"logits_processor must return a float array of shape {row.shape}, "
                f"not of shape {result.shape}"
            )
        with np.errstate(over="ignore"):  # what is too large becomes infinite, as it should
            return np.ascontiguousarray(result, dtype=np.float32)
