"""Drafts of many generations: as many tokens of each as pay for all of them together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from time import perf_counter

from ..decoding.step import Proposal
from ..speculation.adaptive import Acceptance, Source, class_of
from ..speculation.costs import ForwardCost
from ..speculation.drafters import Draft
from ..speculation.length import Outcome
from .sequence import Sequence

LOSS = 0.1
"""Part of its own speed that a sequence may lose to the drafts of others."""


class SharedLength:
    """How far to guess in one of many generations: asks for all that may pay.

    What of it is verified is chosen for all generations together; this remembers how many drafts
    of its own generation were right.

    Args:
        drafts: Who chooses.
        max_length: Most tokens drafted in a step.
    """

    def __init__(self, drafts: Drafts, max_length: int) -> None:
        self.max_length = max_length
        self._drafts = drafts
        self._accepted: dict[Source, Acceptance] = {}

    def next(self, drafter: str) -> int:
        """Return how much to ask of `drafter`."""
        return self._drafts.most(self, drafter)

    def keep(self, draft: Draft) -> int:
        """Keep all of it for now."""
        return len(draft)

    def update(self, outcome: Outcome) -> None:
        """Learn how much of a draft was right."""
        if outcome.drafted and outcome.drafter is not None:
            source = outcome.drafter, class_of(outcome.matched)
            self.acceptance(source).update(outcome.drafted, outcome.accepted)

    def acceptance(self, source: Source) -> Acceptance:
        """Return how often drafts of a source were right."""
        if source not in self._accepted:
            self._accepted[source] = Acceptance(source[1])
        return self._accepted[source]


class Drafts:
    """Chooses which drafted tokens the next pass verifies.

    Tokens are taken in the order of how likely they are to be right, up to the number that is worth
    most: right tokens to expect, less those that the time of more rows would yield otherwise
    (goodput, as in SmartSpec: Liu et al., 2024). No sequence is to lose much of its own speed for
    the drafts of others.

    Args:
        cost: Seconds of a pass by its rows.
        exploration: Part of the time that may be lost on trying what does not seem to pay.
    """

    UNTRIED = 4  # tokens asked of a drafter as long as it is not known what they cost

    def __init__(self, cost: ForwardCost, exploration: float = 0.01) -> None:
        self._cost = cost
        self._exploration = exploration
        self._rows = 1  # of the next pass, without drafts and prompts
        self._draft_costs: dict[str, float] = {}  # seconds per token
        self._total, self._explored = 0.0, 0.0

    def ask(
        self, asking: list[Sequence], running: list[Sequence]
    ) -> Iterator[tuple[Sequence, Draft | Exception]]:
        """Give the drafts to verify, or what went wrong, of the sequences that are `asking`."""
        self._rows = max(1, sum(not s.prefilling for s in running))
        shared: list[tuple[Sequence, Draft, list[float]]] = []
        for sequence in asking:
            proposal = sequence.asked
            assert proposal is not None
            try:
                draft = self._asked(proposal)
            except Exception as error:
                yield sequence, error
                continue
            if draft and isinstance(proposal.length, SharedLength):
                source = draft.drafter, class_of(draft.matched)
                rates = proposal.length.acceptance(source).gains(len(draft))
                shared.append((sequence, draft, rates))
            else:
                yield sequence, draft
        kept = self._chosen([gains for _, _, gains in shared], self._rows)
        for (sequence, draft, _), count in zip(shared, kept, strict=True):
            del draft[count:]
            yield sequence, draft

    def most(self, policy: SharedLength, drafter: str) -> int:
        """Return how much to ask of a drafter: all it has where that costs next to nothing."""
        per_token = self._draft_costs.get(drafter)
        if per_token is None:
            return min(self.UNTRIED, policy.max_length)
        if per_token < 0.01 * self._cost(1):
            return policy.max_length
        gains = policy.acceptance((drafter, 0)).gains(policy.max_length)
        plain, rate = self._cost(self._rows), self._rate(self._rows)
        return max(
            range(len(gains)),
            key=lambda k: gains[k] - rate * (self._cost(self._rows + k) - plain + k * per_token),
        )

    def _asked(self, proposal: Proposal) -> Draft:
        started = perf_counter()
        draft = proposal.ask()
        if draft:
            seconds = (perf_counter() - started) / len(draft)
            known = self._draft_costs.get(draft.drafter, seconds)
            # A drafter that has to take in a long text first is slow once.
            self._draft_costs[draft.drafter] = known + 0.1 * (min(seconds, 2 * known) - known)
        return draft

    def _rate(self, rows: int) -> float:
        """Tokens per second without drafts: what more time for drafts is measured by."""
        return rows / self._cost(rows)

    def _chosen(self, gains: list[list[float]], rows: int) -> list[int]:
        """Return how many tokens of each draft to verify, beside `rows` rows of a pass.

        Args:
            gains: For each draft, how many right tokens to expect of its first 0, 1, … tokens.
            rows: Sequences that decode.
        """
        if not gains:
            return []
        plain, rate = self._cost(rows), self._rate(rows)
        self._total += plain
        likely = sorted(
            (
                (high - low, -index, draft)
                for draft, gained in enumerate(gains)
                for index, (low, high) in enumerate(itertools.pairwise(gained))
            ),
            reverse=True,
        )
        counts, best = [0] * len(gains), [0] * len(gains)
        expected, worth = 0.0, 0.0
        for taken, (chance, _, draft) in enumerate(likely, 1):
            counts[draft] += 1
            expected += chance
            slower = self._cost(rows + taken) / plain
            value = expected - rate * plain * (slower - 1)
            if value > worth:
                # Who has no draft, or a short one, is slowed down by those of others.
                least = min(gains[i][counts[i]] for i in range(len(gains)))
                alone = len(gains) == rows
                if slower <= 1 + max(LOSS, least if alone else 0.0):
                    worth, best = value, counts.copy()
            elif chance * 40 < 1:
                break
        if not any(best):
            loss = self._cost(rows + 1) / plain - 1
            if (self._explored + loss * plain) <= self._exploration * self._total:
                self._explored += loss * plain
                best[likely[0][2]] = 1
        return best
