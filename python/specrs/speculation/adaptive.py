"""Drafting as far as it pays, by what forwards cost and how many drafts were right."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from operator import mul

from ..arguments import checked_positive, checked_share
from .costs import ForwardCost, MeasuredCost
from .drafters import Draft
from .length import Outcome

# A drafter and a class of its drafts.
Source = tuple[str, int]


class Acceptance:
    """How often drafts of one source were right, by position; the past fades.

    A position's rate is that of the drafts that were right up to there. Without evidence it is the
    rate of the position before it, and at first one that suits the length of the matched context.
    """

    FADING = 0.97  # the weight of a draft once the next one of its source is known
    CONFIDENCE = 4.0  # how many drafts the assumption weighs as much as, before it fades too
    # By class of the matched context, see `class_of`; measured on Spec-Bench.
    ASSUMED = (0.75, 0.25, 0.5, 0.6, 0.75, 0.85, 0.95)

    def __init__(self, matched_class: int) -> None:
        self.drafts = 0
        self._assumed = self.ASSUMED[matched_class]
        # By position: drafts that were right before it, right at it, and weight of the assumption.
        self._tried: list[float] = []
        self._right: list[float] = []
        self._doubt: list[float] = []

    def update(self, drafted: int, accepted: int) -> None:
        """Take note of a draft."""
        self.drafts += 1
        tried, right, doubt = self._tried, self._right, self._doubt
        for _ in range(len(tried), drafted):
            tried.append(0.0)
            right.append(0.0)
            doubt.append(self.CONFIDENCE)
        for i in range(len(tried)):
            tried[i] *= self.FADING
            right[i] *= self.FADING
        for i in range(min(drafted, accepted + 1)):
            tried[i] += 1
            right[i] += i < accepted
            doubt[i] = max(1.0, doubt[i] * self.FADING)

    def rates(self, length: int) -> list[float]:
        """Return the expected rate of the first `length` positions."""
        rates, rate = [], self._assumed
        for i in range(length):
            if i < len(self._tried):
                doubt = self._doubt[i]
                rate = (self._right[i] + doubt * rate) / (self._tried[i] + doubt)
            rates.append(rate)
        return rates

    def gains(self, length: int) -> list[float]:
        """Return how many drafted tokens are expected to be right in drafts of 0, 1, … `length`."""
        return list(accumulate(accumulate(self.rates(length), mul), initial=0.0))


def class_of(matched: int) -> int:
    """Give contexts of about the same length the same class: 0, 1, 2, 3, 4–7, 8–15, 16 and more."""
    return matched if matched < 4 else min(matched.bit_length() + 1, 6)


class AdaptiveLength:
    """Draft as many tokens as pay, measured while it runs; none where nothing does.

    A draft of k tokens is worth what it is expected to gain, less what its time would yield
    otherwise: right tokens - rate * (cost of k more rows + cost of drafting them), where the rate
    is the tokens per second of the recent past. The k that is worth most is taken; maximising this
    maximises the tokens per second in the long run. What never gets tried is tried now and then,
    as long as that costs less than `exploration` of all time.

    Args:
        cost: Time of a forward by its rows; None measures it. An object with a method
            `update(rows, seconds)` is told of every forward.
        draft_cost: Time per drafted token in the unit of `cost`; None measures it, or is 0 if
            `cost` is given and not measured.
        max_length: Most tokens drafted in a step.
        exploration: Part of the time that may be lost on trying.

    One object may serve several generations: what it learned from one it uses in the next.
    """

    FADING = 0.97  # of the tokens and seconds whose quotient is the rate
    UNTRIED = 4  # tokens asked of a drafter as long as it is not known what they cost

    def __init__(
        self,
        cost: ForwardCost | None = None,
        *,
        draft_cost: float | None = None,
        max_length: int = 24,
        exploration: float = 0.01,
    ) -> None:
        max_length = checked_positive("AdaptiveLength: max_length", max_length)
        if checked_share("AdaptiveLength: exploration", exploration) == 1:
            raise ValueError(f"AdaptiveLength: exploration must be below 1, not {exploration}")
        if cost is not None and not callable(cost):
            raise TypeError(f"AdaptiveLength: cost must be a function of rows, not {cost!r}")
        self.cost: ForwardCost = MeasuredCost() if cost is None else cost
        self.max_length = max_length
        self.exploration = exploration
        self._observe = getattr(self.cost, "update", None)
        self._fixed_draft_cost = draft_cost
        if draft_cost is None and self._observe is None:
            self._fixed_draft_cost = 0.0
        self._draft_costs: dict[str, float] = {}
        self._accepted: dict[Source, Acceptance] = {}
        self._dropped: defaultdict[Source, int] = defaultdict(int)
        self._made, self._spent = 0.0, 0.0  # of the recent past
        self._total, self._explored = 0.0, 0.0
        self._on_trial = False  # whether the step drafts to try, not because it pays
        self._asked: set[str] = set()  # who was asked for this step
        self._caught_up: set[str] = set()  # and who for the step before, so knows the text
        self._proposed: tuple[str | None, int] | None = None  # the last proposal of this step

    def next(self, drafter: str) -> int:
        """Return how much to ask of `drafter`: all it has if its proposals cost next to nothing."""
        per_token = self._draft_cost(drafter)
        if per_token is None:
            length = min(self.UNTRIED, self.max_length)
        elif per_token < 0.01 * self.cost(1):
            length = self.max_length
        else:
            length = self._choose((drafter, 0), self.max_length, per_token)
        if length:
            self._asked.add(drafter)
        return length

    def keep(self, draft: Draft) -> int:
        """Return how many tokens of a proposal to verify; what they cost to draft is spent."""
        self._proposed = draft.drafter, len(draft)
        if not draft:
            return 0
        source = (draft.drafter, class_of(draft.matched))
        kept = self._choose(source, min(len(draft), self.max_length), 0.0)
        self._dropped[source] += kept == 0
        return kept

    def update(self, outcome: Outcome) -> None:
        """Learn from a step."""
        rows, drafted = outcome.evaluated, outcome.drafted
        drafter, proposed = self._proposed or (outcome.drafter, drafted)
        caught_up, self._caught_up = self._caught_up, self._asked | {drafter or ""}
        self._proposed, self._asked = None, set()
        on_trial, self._on_trial = self._on_trial, False
        if rows != 1 + drafted:
            # A prompt: neither its cost nor its speed says anything about the next step.
            return
        if self._observe is not None:
            self._observe(rows, outcome.verify_seconds)
        spent = self.cost(rows)
        if proposed and drafter is not None:
            if self._fixed_draft_cost is not None:
                spent += self._fixed_draft_cost * proposed
            else:
                spent += outcome.draft_seconds
                if drafter in caught_up:  # otherwise the text, or much of it, was new to it
                    self._note_draft_cost(drafter, outcome.draft_seconds / proposed)
        if drafted and outcome.drafter is not None:
            source = (outcome.drafter, class_of(outcome.matched))
            self._acceptance(source).update(drafted, outcome.accepted)
            if on_trial:
                self._explored += max(0.0, spent - (1 + outcome.accepted) / self.rate)
        self._total += spent
        self._made = self._made * self.FADING + 1 + outcome.accepted
        self._spent = self._spent * self.FADING + spent

    @property
    def rate(self) -> float:
        """Tokens per unit of time of the recent past, at least those of plain decoding."""
        plain = 1 / self.cost(1)
        return max(plain, self._made / self._spent) if self._spent else plain

    def _best(self, source: Source, longest: int, per_token: float) -> tuple[int, float]:
        """Return the length that is worth most, and what it is worth in tokens."""
        gains = self._acceptance(source).gains(longest)
        rate, plain = self.rate, self.cost(1)
        worth = [
            gain - rate * (self.cost(1 + k) - plain + k * per_token) for k, gain in enumerate(gains)
        ]
        best = max(range(longest + 1), key=worth.__getitem__)
        return best, worth[best]

    def _choose(self, source: Source, longest: int, per_token: float) -> int:
        best, _ = self._best(source, longest, per_token)
        if best == 0 and longest:
            # A short trial, if all trials together stay cheap; in its time, others would yield too.
            loss = self.cost(2) + per_token - 1 / self.rate
            if self._explored + loss <= self.exploration * self._total:
                self._on_trial = True
                return 1
        return best

    def _acceptance(self, source: Source) -> Acceptance:
        if source not in self._accepted:
            self._accepted[source] = Acceptance(source[1])
        return self._accepted[source]

    def _draft_cost(self, drafter: str) -> float | None:
        """Return the cost of a drafted token, None if it is not known yet."""
        if self._fixed_draft_cost is not None:
            return self._fixed_draft_cost
        return self._draft_costs.get(drafter)

    def _note_draft_cost(self, drafter: str, seconds: float) -> None:
        """Follow the cost of a drafted token in bounded steps, as `MeasuredCost` does."""
        known = self._draft_costs.get(drafter, seconds)
        surprise = math.log(max(seconds, 1e-9) / max(known, 1e-9))
        self._draft_costs[drafter] = known * math.exp(max(-0.4, min(0.4, surprise)) * 0.2)

    def explain(self) -> str:
        """Say in words what was measured and what follows from it."""
        if self._observe is not None and not getattr(self.cost, "measurements", 1):
            return "Nothing was measured yet."
        plain = self.cost(1)
        measured = f", measured {m} times" if (m := getattr(self.cost, "measurements", 0)) else ""
        curve = ", ".join(f"{rows}: {self.cost(rows) / plain:.2f}" for rows in (2, 4, 8, 16))
        lines = [
            f"A forward of one row costs {_time(plain, self._observe is not None)}{measured}; "
            f"relative to it, of more rows: {curve}.",
            f"Recent speed: {self.rate * plain:.2f} tokens in the time of a plain step.",
        ]
        for source, acceptance in sorted(self._accepted.items()):
            lines.append(self._explain_source(source, acceptance, plain))
        if len(lines) == 2:
            lines.append("Nothing was drafted yet.")
        return "\n".join(lines)

    def _explain_source(self, source: Source, acceptance: Acceptance, plain: float) -> str:
        name, matched = source
        per_token = self._draft_cost(name) or 0.0
        context = f" after {_MATCHED[matched]}" if matched else ""
        best, worth = self._best(source, self.max_length, per_token)
        rates = _percentages(acceptance.rates(min(4, self.max_length)))
        decision = (
            f"up to {best} tokens, worth {worth:.2f} more than a plain step"
            if best
            else "none, for the tokens that would be right do not pay for the rows"
        )
        dropped = f", {n} more not verified" if (n := self._dropped[source]) else ""
        return (
            f"{name}{context}: {acceptance.drafts} drafts{dropped}; a drafted token costs "
            f"{per_token / plain:.3f} plain steps; right at positions 1, 2, …: {rates}. "
            f"Next: {decision}."
        )


_MATCHED = ("", "1 token", "2 tokens", "3 tokens", "4–7 tokens", "8–15 tokens", "16 or more tokens")


def _percentages(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:.0%}" for rate in rates)


def _time(cost: float, in_seconds: bool) -> str:
    return f"{1000 * cost:.2f} ms" if in_seconds else f"{cost:g}"
