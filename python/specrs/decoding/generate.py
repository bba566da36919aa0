"""The one decoding loop: plain decoding is speculation with an empty draft."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from reprlib import repr as shortened
from time import perf_counter
from typing import Literal

from .._specrs import ContextOverflow, Session
from ..arguments import NO_TOKEN_IDS, checked_int
from ..attention.choice import Attention, reusable
from ..sampling import Picker, Sampling, TokenLogprob
from ..speculation.drafters import Draft, Drafter, common_prefix
from ..speculation.length import LengthPolicy
from .verify import verify

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
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
        finish_reason: Set in the last step: "stop" at an end, "length" when no room is left.
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
    def seconds(self) -> float:
        """Time of the whole step."""
        return self.draft_seconds + self.verify_seconds


def room(
    prompt_tokens: int,
    n_ctx: int,
    max_tokens: int | None,
    n_ctx_train: int | None = None,
    *,
    more: bool = False,
) -> int:
    """Return how many tokens may follow a prompt of so many tokens, or `more`.

    The context holds `n_ctx`, at most `n_ctx_train`.

    Raises ValueError for an empty prompt or a negative limit, ContextOverflow if not even one token
    fits.
    """
    if not prompt_tokens:
        raise ValueError("the prompt is empty; give at least one token")
    if prompt_tokens >= n_ctx:
        error = ContextOverflow(
            f"the prompt has {'at least ' if more else ''}{prompt_tokens} tokens, which leaves no "
            f"room for a reply in a context of {n_ctx}; shorten the prompt"
            + (" or load the model with a larger n_ctx" if n_ctx < (n_ctx_train or n_ctx) else "")
        )
        error.needed, error.n_ctx = prompt_tokens + 1, n_ctx
        raise error
    if max_tokens is None:
        return n_ctx - prompt_tokens
    if max_tokens < 0:
        raise ValueError(f"max_tokens must be 0 or more, not {max_tokens}; None is no limit")
    return min(max_tokens, n_ctx - prompt_tokens)


def steps(
    session: Session,
    prompt: Sequence[int],
    *,
    n_ctx: int,
    n_vocab: int,
    max_tokens: int | None,
    sampling: Sampling,
    drafter: Drafter | None,
    length: LengthPolicy,
    ends: Callable[[int], bool],
    attention: Attention | None = None,
    progress: Callable[[int, int], object] | None = None,
    logprobs: int | None = None,
) -> Generator[Step]:
    """Generate after `prompt`, step by step.

    Whenever this yields, ends or is closed, the session holds every token but the last one. What
    it already shares with the prompt, as exact as it is wanted, is not evaluated again. The session
    belongs to the generation until it ends: another one on it meanwhile is a RuntimeError, and so
    is changing it otherwise: noticed at the next step if its length differs, else in place of the
    last step.

    Args:
        session: Where the tokens are evaluated; left as it was if nothing is to be generated.
        prompt: Ids, all below `n_vocab`.
        n_ctx: Positions the session can hold.
        n_vocab: Rows of logits.
        max_tokens: Most tokens to make; None goes on until the context is full.
        sampling: How the target picks.
        drafter: Who proposes; None decodes plainly.
        length: How much to ask of the drafter.
        ends: Asked once about every new id, in order; True makes this id the last.
        attention: What the prompt looks at, but for its last token, which like all that follows it
            looks at everything; None is everything.
        progress: Called as `progress(done, total)` while the prompt is evaluated, in tokens; its
            exceptions cancel the generation.
        logprobs: How many of the most likely tokens to tell with every new one; None tells nothing.
    """
    limit = len(prompt) + room(len(prompt), n_ctx, max_tokens)
    tokens = list(prompt)
    if len(tokens) == limit:
        return
    history = list(tokens)  # the drafter's own: what it does to it cannot change the text
    sampling = sampling.seeded()
    picker = Picker(sampling, prompt, logprobs)
    coupled = getattr(drafter, "coupled", None)
    if coupled is not None:
        drafter = coupled(sampling, len(prompt))
    with _exclusive(session):
        # Even a prompt that is cached whole needs its last token again: for its logits.
        kept = min(common_prefix(session.tokens, tokens), len(tokens) - 1)
        exact = reusable(session.sparse_spans, attention, len(tokens))
        session.truncate(kept if exact is None else min(kept, exact))
        finish_reason: FinishReason | None = None
        while finish_reason is None:
            started = perf_counter()
            draft = propose(drafter, length, history, limit - len(tokens) - 1, n_vocab)
            drafted = perf_counter()
            position, unseen = len(tokens), tokens[len(session) :]
            evaluated = len(unseen) + len(draft)
            try:
                wanted = 1 + len(draft)
                if len(unseen) > 1 and (attention is not None or progress is not None):
                    session.prefill(
                        unseen[:-1],
                        attention=attention,
                        progress=progress,
                        prompt_length=len(tokens),
                    )
                    unseen = unseen[-1:]
                rows = unseen + draft
                if picker.needs_logits:
                    picks = picker.picks(session.forward_last(rows, wanted))
                else:
                    picks = picker.known(session.choose_last(rows, wanted))
                made = verify(picks, draft)
                accepted = len(made) - 1
                for count, token in enumerate(made, 1):
                    if ends(token):
                        finish_reason = "stop"
                        del made[count:]
                        break
                tokens += made
                history += made
            finally:
                # Also after an interrupt: what was rejected, or never committed, is forgotten.
                session.truncate(min(len(session), len(tokens) - 1))
            assert len(session) == len(tokens) - 1
            if finish_reason is None and len(tokens) == limit:
                finish_reason = "length"
            step = Step(
                position=position,
                tokens=made,
                drafter=draft.drafter if draft else None,
                drafted=len(draft),
                accepted=min(accepted, len(made)),
                evaluated=evaluated,
                draft_seconds=drafted - started,
                verify_seconds=perf_counter() - drafted,
                finish_reason=finish_reason,
                matched=draft.matched,
                logprobs=None if picker.logprobs is None else picker.logprobs[: len(made)],
            )
            _asked(length, "update", step)
            if finish_reason is not None and session.tokens != tokens[:-1]:
                # Once at the end: it takes as long as the text is.
                raise RuntimeError(_CHANGED)
            yield step
            if len(session) != len(tokens) - 1:
                raise RuntimeError(
                    f"{_CHANGED}; it holds {len(session)} tokens instead of {len(tokens) - 1}"
                )


_CHANGED = "the session was changed during the generation; use session.fork() for other work"


def propose(
    drafter: Drafter | None, length: LengthPolicy, tokens: list[int], room: int, n_vocab: int
) -> Draft:
    """Ask for a draft of at most `room` ids; of a chain each member until one's draft is kept."""
    if drafter is None or room <= 0:
        return Draft()
    for member in getattr(drafter, "members", [drafter]):
        k = min(_asked_number(length, "next", type(member).__name__), room)
        if k == 0:
            continue
        draft = _checked_proposal(member, tokens, k, n_vocab)
        del draft[_asked_number(length, "keep", draft) :]
        if draft:
            return draft
    return Draft()


def _asked(length: LengthPolicy, method: str, argument: object) -> object:
    """Call a method of the user's policy."""
    try:
        return getattr(length, method)(argument)
    except Exception as error:
        raise RuntimeError(
            f"draft_length: {type(length).__name__}.{method}() failed: {error!r}"
        ) from error


def _asked_number(length: LengthPolicy, method: str, argument: object) -> int:
    """Ask the user's policy for a number of tokens."""
    name = f"draft_length: what {type(length).__name__}.{method}() returns"
    number = checked_int(name, _asked(length, method, argument))
    if number < 0:
        raise ValueError(f"{name} must be 0 or more, not {number}")
    return number


def _checked_proposal(drafter: Drafter, tokens: list[int], k: int, n_vocab: int) -> Draft:
    """Ask `drafter` for at most `k` ids, and take nothing on trust."""
    name, known = type(drafter).__name__, len(tokens)
    try:
        proposal = drafter.propose(tokens, k)
        if isinstance(proposal, Iterator):  # its work is only done now
            proposal = list(islice(proposal, k + 1))
    except Exception as error:
        raise RuntimeError(f"drafter {name} failed after {known} tokens: {error!r}") from error
    if len(tokens) != known:
        raise RuntimeError(f"drafter {name} changed the history it was given; it may only read it")
    try:
        if isinstance(proposal, NO_TOKEN_IDS):
            raise TypeError
        draft = Draft((checked_int("", token) for token in islice(proposal, k + 1)), drafter=name)
    except TypeError:
        raise TypeError(
            f"drafter {name} must propose a sequence of token ids, not {shortened(proposal)}"
        ) from None
    draft.matched = checked_int(
        f"drafter {name}: matched, of what it proposes,", getattr(proposal, "matched", 0)
    )
    if len(draft) > k:
        raise ValueError(f"drafter {name} proposed more than the {k} tokens it was asked for")
    for token in draft:
        if not 0 <= token < n_vocab:
            raise ValueError(
                f"drafter {name} proposed token {token}, outside the vocabulary of {n_vocab}"
            )
    return draft


_in_use: set[int] = set()
_in_use_lock = threading.Lock()


@contextmanager
def _exclusive(session: Session) -> Iterator[None]:
    """Keep other generations off `session`; the ids of objects are unique while these live."""
    key = id(session)
    with _in_use_lock:
        if key in _in_use:
            raise RuntimeError(
                "the session is in use by another generation; finish or close that one, "
                "or generate on session.fork()"
            )
        _in_use.add(key)
    try:
        yield
    finally:
        with _in_use_lock:
            _in_use.discard(key)
