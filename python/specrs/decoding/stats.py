"""What a generation cost and what speculation brought."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .step import Step


@dataclass
class Stats:
    """Counts and times of one generation; rates are computed from them when asked for.

    The first step evaluates the prompt, and all its time is `prefill_seconds`; the other times are
    of the steps after it. `draft_seconds` and `verify_seconds` are the two parts of
    `decode_seconds`. Time in which a stream waits for its reader counts nowhere.

    Attributes:
        prompt_tokens: Length of the prompt.
        cached_tokens: Tokens of the prompt that the session held already.
        tokens_generated: Tokens made, the one that ended the generation included.
        forward_calls: Forwards of the target.
        num_drafts: Steps that drafted.
        num_draft_tokens: Tokens proposed.
        num_accepted_tokens: Proposed tokens that were kept.
        accepted_per_position: How many drafts were accepted up to their 1st, 2nd, … token.
        prefill_seconds: Time to the first token.
        decode_seconds: Time of all later steps.
        draft_seconds: Time the drafter took of it.
        verify_seconds: Time the target took of it.
        seed: What fixed the draws; None where nothing was drawn.
        queued_seconds: Time before the prompt was begun, in a batch.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    tokens_generated: int = 0
    forward_calls: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    seed: int | None = None
    queued_seconds: float = 0.0
    _first_tokens: int = field(default=0, repr=False)

    def record(self, step: Step) -> None:
        """Add a step."""
        if self.forward_calls == 0:
            self.cached_tokens = self.prompt_tokens - (step.evaluated - step.drafted)
            self.prefill_seconds = step.seconds
            self._first_tokens = len(step.tokens)
        else:
            self.decode_seconds += step.seconds
            self.draft_seconds += step.draft_seconds
            self.verify_seconds += step.verify_seconds
        self.forward_calls += 1
        self.tokens_generated += len(step.tokens)
        if not step.drafted:
            return
        self.num_drafts += 1
        self.num_draft_tokens += step.drafted
        self.num_accepted_tokens += step.accepted
        counts = self.accepted_per_position
        counts.extend([0] * (step.drafted - len(counts)))
        for i in range(step.accepted):
            counts[i] += 1

    @property
    def tokens_per_call(self) -> float:
        """Tokens made per forward of the target; 1 in plain decoding."""
        return _ratio(self.tokens_generated, self.forward_calls)

    @property
    def acceptance_rate(self) -> float:
        """Share of the proposed tokens that were kept."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens of a step with a draft on average, the target's own included; 1 without drafts."""
        return 1.0 + _ratio(self.num_accepted_tokens, self.num_drafts)

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens evaluated per second, cached ones not counted."""
        return _ratio(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Speed after the first step; 0 if there was none."""
        return _ratio(self.tokens_generated - self._first_tokens, self.decode_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Give every figure by its name."""
        names = [
            "prompt_tokens",
            "cached_tokens",
            "tokens_generated",
            "forward_calls",
            "tokens_per_call",
            "num_drafts",
            "num_draft_tokens",
            "num_accepted_tokens",
            "acceptance_rate",
            "mean_acceptance_length",
            "accepted_per_position",
            "prefill_seconds",
            "decode_seconds",
            "draft_seconds",
            "verify_seconds",
            "prefill_tokens_per_second",
            "tokens_per_second",
            "seed",
            "queued_seconds",
        ]
        return {name: getattr(self, name) for name in names}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
