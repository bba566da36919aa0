"""What a drafter would have done in a generation of the past, without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from time import perf_counter

from ..speculation.adaptive import AdaptiveLength
from ..speculation.costs import ForwardCost, MeasuredCost
from ..speculation.drafters import Drafter, common_prefix
from ..speculation.length import LengthPolicy
from ..speculation.propose import propose
from .stats import Stats
from .step import Step
from .trace import Trace


@dataclass(frozen=True)
class Replay:
    """A generation as it would have gone, the first step apart.

    Attributes:
        stats: Counts, and times in the unit of the cost; the first step costs nothing.
        trace: The steps.
        plain_seconds: Time of plain decoding in the same unit.
    """

    stats: Stats
    trace: Trace
    plain_seconds: float

    @property
    def speedup(self) -> float:
        """How much faster than plain decoding."""
        spent = self.stats.decode_seconds
        return self.plain_seconds / spent if spent else 1.0


def replay(
    recorded: Trace | Sequence[int],
    drafter: Drafter,
    *,
    prompt: Sequence[int] | None = None,
    draft_length: LengthPolicy | None = None,
    cost: ForwardCost | None = None,
    draft_cost: float | None = None,
) -> Replay:
    """Run a drafter against recorded tokens, and predict its acceptance and speed.

    What is predicted is exact but for the times: the tokens of a generation do not depend on who
    drafts, so the tokens recorded with one drafter, or none, are those of any other.

    Args:
        recorded: A trace, or the ids of a text.
        drafter: Who proposes.
        prompt: The ids before a recorded text; None takes the text's first id for the prompt.
        draft_length: How far to guess; None is `AdaptiveLength(cost)`.
        cost: Time of a forward by its rows, in any unit. None takes the times of the trace, or a
            usual curve in units of one row where there are none.
        draft_cost: Time per drafted token in that unit; None takes the time the drafter really
            needs here if `cost` is in seconds, which is so if it comes from a trace, otherwise 0.
    """
    if isinstance(recorded, Trace):
        if prompt is not None:
            raise ValueError("replay: a trace has its own prompt; pass no other")
        prompt, future = recorded.prompt, recorded.tokens
    else:
        future = [index(token) for token in recorded]
        if prompt is None:
            prompt, future = future[:1], future[1:]
    if not prompt:
        raise ValueError("replay: the prompt is empty; at least one token is needed")
    timed = cost is None and isinstance(recorded, Trace) and len(recorded) > 1
    if cost is None:
        cost = cost_of(recorded) if isinstance(recorded, Trace) else MeasuredCost()
    measured = draft_cost is None and timed
    if draft_length is None:
        known = cost  # what is injected is fixed: nothing here takes real time
        draft_length = AdaptiveLength(
            lambda rows: known(rows), draft_cost=None if measured else draft_cost or 0.0
        )
    tokens, truth = list(prompt), [*prompt, *future]
    n_vocab = 2**32
    steps, stats = Trace(prompt), Stats(prompt_tokens=len(prompt))
    while len(tokens) < len(truth):
        started = perf_counter()
        draft = propose(drafter, draft_length, tokens, len(truth) - len(tokens) - 1, n_vocab)
        drafting = perf_counter() - started
        if not measured:
            drafting = len(draft) * (draft_cost or 0.0)
        position = len(tokens)
        accepted = common_prefix(draft, truth[position : position + len(draft)])
        tokens += truth[position : position + accepted + 1]
        first = position == len(prompt)
        step = Step(
            position=position,
            tokens=tokens[position:],
            drafter=draft.drafter if draft else None,
            drafted=len(draft),
            accepted=accepted,
            evaluated=(len(prompt) if first else 1) + len(draft),
            draft_seconds=0.0 if first else drafting,
            verify_seconds=0.0 if first else cost(1 + len(draft)),
            finish_reason="length" if len(tokens) == len(truth) else None,
            matched=draft.matched,
        )
        draft_length.update(step)
        steps.append(step)
        stats.record(step)
    decoded = stats.tokens_generated - (len(steps[0].tokens) if steps else 0)
    return Replay(stats=stats, trace=steps, plain_seconds=decoded * cost(1))


def cost_of(trace: Trace) -> MeasuredCost:
    """Learn the cost of forwards from the times of a trace."""
    cost = MeasuredCost()
    for step in trace[1:]:
        cost.update(step.evaluated, step.verify_seconds)
    return cost
