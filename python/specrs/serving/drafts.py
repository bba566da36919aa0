"""Drafts of many generations: as many tokens of each as pay for all of them together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ..decoding.step import Proposal
from ..speculation.adaptive import Acceptance, Source, class_of
from ..speculation.drafters import Draft, Drafter
from ..speculation.length import Outcome
from ..speculation.propose import checked_draft, how_many, kept, members_of, proposal_of
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
        if outcome.evaluated == 1 + outcome.drafted:  # a prompt says nothing of the next step
            self._drafts.note(1 + outcome.accepted)
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
        cost: Seconds of a pass by its rows, and by the positions that they look at in all.
        exploration: Part of the time that may be lost on trying what does not seem to pay.
        clock: Tells how long drafters take.
    """

    FADING = 0.99
    UNTRIED = 4  # tokens asked of a drafter as long as it is not known what they cost

    def __init__(
        self,
        cost: Callable[[int, int], float],
        exploration: float = 0.01,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._cost = cost
        self._clock = clock
        self._exploration = exploration
        self._rows = 1  # of the next pass, without drafts and prompts
        self._back = 0  # positions that each of them looks at, on average
        self._draft_costs: dict[str, float] = {}  # seconds per token
        self._total, self._explored = 0.0, 0.0
        self._made, self._spent = 0.0, 0.0  # lately: tokens, and the time of steps without drafts
        self._slower = 1.0  # how long the pass takes, in that unit

    def _time(self, rows: int) -> float:
        """Seconds of a pass of so many rows that look back as far as those of now."""
        return self._cost(rows, rows * self._back)

    def note(self, tokens: int) -> None:
        """Take note of how many tokens a step made."""
        self._made = self._made * self.FADING + tokens
        self._spent = self._spent * self.FADING + self._slower

    def none(self) -> None:
        """Take note that nobody drafts in the next pass."""
        self._slower = 1.0

    def ask(
        self, asking: list[Sequence], running: list[Sequence]
    ) -> Iterator[tuple[Sequence, Draft | BaseException]]:
        """Give the drafts to verify, or what went wrong, of the sequences that are `asking`."""
        going = [len(s.tokens) for s in running if not s.prefilling]
        self._rows = max(1, len(going))
        self._back = sum(going) // self._rows
        shared: list[tuple[Sequence, Draft, list[float]]] = []
        fixed = 0  # rows of drafts that are not to choose from
        for sequence, draft in self._proposals(asking).items():
            length = sequence.asked.length if sequence.asked is not None else None
            if isinstance(draft, Draft) and draft and isinstance(length, SharedLength):
                source = draft.drafter, class_of(draft.matched)
                shared.append((sequence, draft, length.acceptance(source).gains(len(draft))))
            else:
                fixed += 0 if isinstance(draft, BaseException) else len(draft)
                yield sequence, draft
        counts = self._chosen([gains for _, _, gains in shared], self._rows + fixed)
        self._slower = self._time(self._rows + fixed + sum(counts)) / self._time(self._rows)
        for (sequence, draft, _), count in zip(shared, counts, strict=True):
            del draft[count:]
            yield sequence, draft

    def _proposals(self, asking: list[Sequence]) -> dict[Sequence, Draft | BaseException]:
        """Ask everybody's drafter; of chains each member until one has a draft."""
        found: dict[Sequence, Draft | BaseException] = {sequence: Draft() for sequence in asking}
        open_ = [(s, s.asked, members_of(s.asked.drafter)) for s in asking if s.asked is not None]
        turn = 0
        while open_:
            together: dict[object, list[Asked]] = {}
            for sequence, proposal, members in open_:
                member = members[turn]
                try:
                    k = how_many(member, proposal.length, proposal.room)
                except BaseException as error:
                    found[sequence] = error
                    continue
                if k:
                    one = Asked(sequence, proposal, member, k)
                    # Drafters that propose for many do so for all generations of one origin.
                    many = hasattr(member, "propose_many")
                    group = getattr(member, "origin", member) if many else one
                    together.setdefault(id(group), []).append(one)
            for group in together.values():
                found.update(self._group(group))
            turn += 1
            open_ = [o for o in open_ if found[o[0]] == [] and turn < len(o[2])]
        return found

    def _group(self, group: list[Asked]) -> dict[Sequence, Draft | BaseException]:
        """Ask a drafter for all its generations."""
        started = self._clock()
        drafts: dict[Sequence, Draft | BaseException] = {}
        proposals = None
        alone = self._rows == len(group) == 1
        if not alone and hasattr(group[0].member, "propose_many"):
            proposals = _together(group)
        for i, one in enumerate(group):
            wanted = one.proposal
            try:
                if proposals is None:
                    draft = proposal_of(one.member, wanted.history, one.k, wanted.n_vocab)
                else:
                    draft = checked_draft(one.member, proposals[i], one.k, wanted.n_vocab)
                drafts[one.sequence] = kept(wanted.length, draft)
            except BaseException as error:
                drafts[one.sequence] = error
        count = sum(len(draft) for draft in drafts.values() if isinstance(draft, Draft))
        if count:
            self._note(type(group[0].member).__name__, (self._clock() - started) / count)
        return drafts

    def _note(self, drafter: str, seconds: float) -> None:
        """Follow what a drafted token costs."""
        known = self._draft_costs.get(drafter, seconds)
        # A drafter that has to take in a long text first is slow once.
        self._draft_costs[drafter] = known + 0.1 * (min(seconds, 2 * known) - known)

    def most(self, policy: SharedLength, drafter: str) -> int:
        """Return how much to ask of a drafter: all it has where that costs next to nothing."""
        per_token = self._draft_costs.get(drafter)
        if per_token is None:
            return min(self.UNTRIED, policy.max_length)
        if per_token < 0.01 * self._time(1):
            return policy.max_length
        gains = policy.acceptance((drafter, 0)).gains(policy.max_length)
        rows = self._rows
        plain, rate = self._time(rows), self._rate(rows)
        best = max(
            range(len(gains)),
            key=lambda k: gains[k] - rate * (self._time(rows + k) - plain + k * per_token),
        )
        return best or self._trial(self._time(rows + 1) - plain + per_token)

    def _rate(self, rows: int) -> float:
        """Tokens per second of late, at least those without drafts."""
        gain = self._made / self._spent if self._spent else 1.0
        return max(1.0, gain) * rows / self._time(rows)

    def _chosen(self, gains: list[list[float]], rows: int) -> list[int]:
        """Return how many tokens of each draft to verify.

        Args:
            gains: For each draft, how many right tokens to expect of its first 0, 1, … tokens.
            rows: Those that the pass has anyway.
        """
        if not gains:
            return []
        plain, rate = self._time(rows), self._rate(rows)
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
            slower = self._time(rows + taken) / plain
            value = expected - rate * plain * (slower - 1)
            if value > worth:
                # Who has no draft, or a short one, is slowed down by those of others.
                least = min(gained[n] for gained, n in zip(gains, counts, strict=True))
                if slower <= 1 + max(LOSS, least if len(gains) >= self._rows else 0.0):
                    worth, best = value, counts.copy()
            elif chance * 40 < 1:
                break
        if not any(best):
            best[likely[0][2]] = self._trial(self._time(rows + 1) - plain)
        return best

    def _trial(self, loss: float) -> int:
        """Return 1 where a token may be tried that does not seem to pay, else 0."""
        if self._explored + loss > self._exploration * self._total:
            return 0
        self._explored += loss
        return 1


@dataclass(slots=True, eq=False)
class Asked:
    """A drafter asked for up to `k` tokens of a sequence."""

    sequence: Sequence
    proposal: Proposal
    member: Drafter
    k: int


def _together(group: list[Asked]) -> list[Any] | None:
    """Return what a drafter proposes for several at once; None if it fails."""
    first = group[0].member
    origin: Any = getattr(first, "origin", first)
    histories, ks = [one.proposal.history for one in group], [one.k for one in group]
    lengths = [len(history) for history in histories]
    drafters = [[one.member for one in group]] if hasattr(first, "origin") else []
    try:
        proposals = list(origin.propose_many(histories, ks, *drafters))
    except BaseException:
        return None  # each alone will tell whose fault it was
    intact = lengths == [len(history) for history in histories]
    return proposals if intact and len(proposals) == len(group) else None
