"""Generations on sessions: who evaluates what the loop wants."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from .._specrs import Lease, Session
from ..attention.choice import Attention, reusable
from ..speculation.drafters import common_prefix
from .loop import Generation
from .step import Answer, Evaluation, Proposal, Step


def steps(session: Session, generation: Generation) -> Generator[Step]:
    """Run one generation on one session, step by step.

    What the session shares with the prompt, as exact as it is wanted, is not evaluated again.
    Nobody else can change the session meanwhile, nor start on one that is leased: RuntimeError.
    Whenever this yields, ends or is closed, the session holds every token but the last one; a
    failure before the first token leaves it with what it shared with the prompt.
    """
    with session.lease() as lease:
        held = cached(session.tokens, session.sparse_spans, generation.prompt, generation.attention)
        loop = generation.run(held)
        settled: int | None = None
        try:
            for event in loop:
                while not isinstance(event, Step):
                    if isinstance(event, Proposal):
                        event = loop.send(event.ask())
                        continue
                    settled = event.settled
                    lease.truncate(event.start)
                    event = loop.send(evaluate(lease, event))
                settled = event.settled
                lease.truncate(settled)
                yield event
        finally:
            # What was rejected, or never taken into the text, is forgotten.
            if settled is not None:
                lease.truncate(min(len(session), settled))


def evaluate(lease: Lease, wanted: Evaluation) -> Answer:
    """Append the tokens to the session; return the answer that is wanted."""
    if not wanted.positions:
        lease.prefill(
            wanted.tokens,
            attention=wanted.attention,
            positions=0,
            progress=wanted.progress,
            prompt_length=wanted.prompt_length,
        )
        return None
    forward = lease.forward_last if wanted.logits else lease.choose_last
    return forward(wanted.tokens, wanted.positions)


def cached(
    tokens: Sequence[int],
    sparse_spans: Iterable[tuple[int, int, str]],
    prompt: Sequence[int],
    attention: Attention | None,
) -> int:
    """Return how many positions of a session of `tokens` a prompt may take over.

    They hold the same ids and are as exact as `attention` wants them.
    """
    # Even a prompt that is cached whole needs its last token again: for its logits.
    shared = min(common_prefix(tokens, prompt), len(prompt) - 1)
    exact = reusable(sparse_spans, attention, len(prompt))
    return shared if exact is None else min(shared, exact)
