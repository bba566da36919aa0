"""The one decoding loop: plain decoding is speculation with an empty draft."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from .._specrs import ContextOverflow
from ..attention.choice import Attention
from ..sampling import Picker, Sampling
from ..speculation.drafters import Chain, Draft, Drafter, common_prefix
from ..speculation.length import LengthPolicy
from ..speculation.propose import call_policy, members_of
from .step import Answer, Evaluation, FinishReason, Proposal, Step
from .verify import verify

if TYPE_CHECKING:
    from ..structured.compiler import Compiled


def room(
    prompt_tokens: int,
    n_ctx: int,
    max_tokens: int | None,
    n_ctx_train: int | None = None,
    *,
    more: bool = False,
) -> int:
    """Return how many tokens may follow a prompt of `prompt_tokens`.

    The context holds `n_ctx`, at most `n_ctx_train`. With `more` the prompt may have more tokens,
    which only changes the message.

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


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A text to generate, and the loop that does it; it never touches a session.

    Attributes:
        prompt: Ids, all below `n_vocab`.
        n_ctx: Positions a session can hold.
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
        grammar: What the text may be; None is anything.
    """

    prompt: Sequence[int]
    n_ctx: int
    n_vocab: int
    max_tokens: int | None
    sampling: Sampling
    drafter: Drafter | None
    length: LengthPolicy
    ends: Callable[[int], bool]
    attention: Attention | None = None
    progress: Callable[[int, int], object] | None = None
    logprobs: int | None = None
    grammar: Compiled | None = None

    def run(self, cached: int) -> Generator[Proposal | Evaluation | Step, Answer]:
        """Generate: yield what is to be drafted and evaluated, and step after step.

        Each `Proposal` and `Evaluation` wants its answer sent; an exception thrown in its place
        ends the generation. A `Step` wants none. At any time the session may be cut back to the
        `settled` positions of the last evaluation or step without losing anything of the text.

        Args:
            cached: How many tokens of the prompt the session holds, all but the last at most.
        """
        tokens = list(self.prompt)
        limit = len(tokens) + room(len(tokens), self.n_ctx, self.max_tokens)
        history = list(tokens)  # the drafter's own: what it does to it cannot change the text
        sampling = self.sampling.seeded()
        constraint = None if self.grammar is None else self.grammar.begin()
        picker = Picker(sampling, tokens, self.logprobs, constraint)
        length, drafter = self.length, self.drafter
        coupled = getattr(drafter, "coupled", None)
        if coupled is not None:
            drafter = coupled(sampling, len(tokens))
        if drafter is not None and constraint is not None:
            from ..speculation.forced import ForcedTokens

            drafter = Chain(ForcedTokens(constraint), *members_of(drafter))
        start = cached
        finish_reason: FinishReason | None = None if len(tokens) < limit else "length"
        while finish_reason is None:
            started = perf_counter()
            room_left = limit - len(tokens) - 1
            draft = Draft()
            if drafter is not None and room_left > 0:
                draft = yield Proposal(drafter, length, history, room_left, self.n_vocab)
                if constraint is not None:
                    del draft[constraint.allowed(draft) :]
            drafted = perf_counter()
            position, unseen = len(tokens), tokens[start:]
            evaluated = len(unseen) + len(draft)
            if len(unseen) > 1 and (self.attention is not None or self.progress is not None):
                yield Evaluation(
                    start,
                    unseen[:-1],
                    0,
                    attention=self.attention,
                    progress=self.progress,
                    prompt_length=position,
                )
                start, unseen = position - 1, unseen[-1:]
            logits = picker.needs_logits(1 + len(draft))
            answer = yield Evaluation(start, unseen + draft, 1 + len(draft), logits)
            made = verify(picker.picks(answer) if logits else picker.known(answer), draft)
            for count, token in enumerate(made, 1):
                if self.ends(token):
                    finish_reason = "stop"
                    del made[count:]
                    break
            if finish_reason is None and constraint is not None and constraint.complete:
                finish_reason = "stop"
            tokens += made
            history += made
            start = len(tokens) - 1
            if finish_reason is None and len(tokens) == limit:
                finish_reason = "length"
            step = Step(
                position=position,
                tokens=made,
                drafter=draft.drafter if draft else None,
                drafted=len(draft),
                accepted=common_prefix(made, draft),
                evaluated=evaluated,
                draft_seconds=drafted - started,
                verify_seconds=perf_counter() - drafted,
                finish_reason=finish_reason,
                matched=draft.matched,
                logprobs=None if picker.logprobs is None else picker.logprobs[: len(made)],
            )
            call_policy(length, "update", step)
            yield step
