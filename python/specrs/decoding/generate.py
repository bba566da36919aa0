"""Generations on sessions: who evaluates what the loop wants."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from .._specrs import Lease, Session
from ..attention.choice import Attention, reusable
from ..speculation.drafters import common_prefix
from .loop import Generation
from .step import Answer, Evaluation, Step


def steps(session: Session, generation: Generation) -> Generator[Step]:
    """Run one generation on one session, step by step.

    What the session shares with the prompt, as exact as it is wanted, is not evaluated again.
    Nobody else can change the session meanwhile, nor start on one that is leased: RuntimeError.
    Whenever this yields, ends, fails or is closed, the session holds every token but the last one;
    if nothing is to be generated, it is left as it was.
    """
    with session.lease() as lease:
        settled = len(session)
        loop = generation.run(
            cached(session.tokens, session.sparse_spans, generation.prompt, generation.attention)
        )
        answer: Answer = None
        try:
            while (wanted := _next(loop, answer)) is not None:
                settled = wanted.settled
                if isinstance(wanted, Step):
                    lease.truncate(settled)
                    answer = None
                    yield wanted
                else:
                    lease.truncate(wanted.start)
                    answer = evaluate(lease, wanted)
        finally:
            # What was rejected, or never taken into the text, is forgotten.
            lease.truncate(min(len(session), settled))


def evaluate(lease: Lease, wanted: Evaluation) -> Answer:
    """Append the tokens to the session; return the answer that is wanted."""
    if not wanted.positions:
        lease.prefill(
            wanted.tokens,
            attention=wanted.attention,
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


def _next(loop: Generator[Evaluation | Step, Answer], answer: Answer) -> Evaluation | Step | None:
    """Return what the loop yields next, None at its end."""
    try:
        return loop.send(answer)
    except StopIteration:
        return None
