"""What passes between the decoding loop and whoever drives it: plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..attention.choice import Attention
from ..sampling import TokenLogprob
from ..speculation.drafters import Draft, Drafter
from ..speculation.length import LengthPolicy
from ..speculation.propose import propose

# The classes are not frozen: that would take three times as long to make, and a token makes two.

FinishReason = Literal["stop", "length", "cancelled"]

Answer = Any
"""What a proposal gives: a draft; and an evaluation: logits [positions, n_vocab], or an id or None
for each position."""


@dataclass(slots=True)
class Proposal:
    """A draft that a generation would like before its next evaluation.

    Attributes:
        drafter: Who is to propose.
        length: How much to ask for, and how much of it to keep.
        history: The ids so far; the drafter's own list.
        room: Most ids that still fit.
        n_vocab: Ids are below.
    """

    drafter: Drafter
    length: LengthPolicy
    history: list[int]
    room: int
    n_vocab: int

    def ask(self) -> Draft:
        """Return what the drafter proposes, as much of it as its policy keeps."""
        return propose(self.drafter, self.length, self.history, self.room, self.n_vocab)


@dataclass(slots=True)
class Evaluation:
    """Tokens that a generation wants the target to evaluate before it goes on.

    Attributes:
        start: How many positions the session keeps; what it holds beyond them is cut off first.
        tokens: The ids to append there.
        positions: How many of the last of them need an answer; 0 if none does.
        logits: Whether the answer is their logits, or else the ids with the highest ones.
        attention: What a prompt looks at; None is everything.
        progress: Called as `progress(done, total)` while a prompt is evaluated, in tokens.
        prompt_length: Length of the prompt that the tokens are a part of; None if it does not
            matter.
    """

    start: int
    tokens: list[int]
    positions: int
    logits: bool = False
    attention: Attention | None = None
    progress: Callable[[int, int], object] | None = None
    prompt_length: int | None = None

    @property
    def settled(self) -> int:
        """How many positions belong to the text, whatever the answer is."""
        return self.start + len(self.tokens) - self.positions


@dataclass(slots=True)
class Step:
    """One forward of the target and what came of it.

    Attributes:
        position: Place of the first new id in the whole sequence, prompt included.
        tokens: The ids the step made; the first `accepted` of them had been drafted.
        drafter: Who drafted, of a chain the member that did; None if nothing was drafted.
        drafted: Ids proposed and verified.
        accepted: Proposed ids that were kept.
        evaluated: Rows of the forward; in the first step most are the prompt's.
        draft_seconds: Time the drafter took.
        verify_seconds: Time of the forward, the picks and the comparison.
        finish_reason: Set in the last step: "stop" at an end, "length" when no room is left. Never
            "cancelled": nobody takes a step after that.
        matched: Length of the context the draft rests on, 0 if it has none.
        logprobs: One for each of `tokens`; None unless asked for.
    """

    position: int
    tokens: list[int]
    drafter: str | None
    drafted: int
    accepted: int
    evaluated: int
    draft_seconds: float
    verify_seconds: float
    finish_reason: FinishReason | None
    matched: int = 0
    logprobs: list[TokenLogprob] | None = None

    @property
    def settled(self) -> int:
        """How many positions of the session belong to the text: all but the last token."""
        return self.position + len(self.tokens) - 1

    @property
    def seconds(self) -> float:
        """Time of the whole step."""
        return self.draft_seconds + self.verify_seconds
