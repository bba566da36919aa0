"""A small model that drafts for a large one."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from copy import copy
from itertools import zip_longest
from typing import NamedTuple

from ..arguments import checked_positive, checked_share
from ..sampling import Sampling
from .drafters import Follower, LanguageModel


class DraftModel:
    """Propose what a smaller model of the same vocabulary would write.

    It keeps a session of its own, which follows the history by the longest common prefix: what the
    target rejected is simply cut off there. Its context must hold what the target's does.

    Args:
        draft_llm: The loaded draft model, a `Llama`.
        num_draft_tokens: Most tokens proposed at once.
        p_min: Stop before a token to which the draft itself gives a lower probability, that of its
            logits without any settings; 0 never stops.
    """

    def __init__(
        self, draft_llm: LanguageModel, num_draft_tokens: int = 8, p_min: float = 0.0
    ) -> None:
        if isinstance(draft_llm, type) or not hasattr(draft_llm, "session"):
            raise TypeError(f"DraftModel: draft_llm must be a specrs.Llama, not {draft_llm!r}")
        self.draft_llm = draft_llm
        self.num_draft_tokens = checked_positive("DraftModel: num_draft_tokens", num_draft_tokens)
        self.p_min = checked_share("DraftModel: p_min", p_min)
        self._lock = threading.Lock()
        self._session = draft_llm.session()
        self._follower = Follower()  # its ids are those of the session
        self._sampler = Sampling().sampler(0)
        self._sampled = Follower()  # its ids are those of the sampler
        self._end_ids = frozenset(draft_llm.tokenizer.end_ids)
        self._padding = [i for i, row in enumerate(_vocabulary(draft_llm)) if row.is_padding]
        # Whether the token with the highest logit is all a guess takes to know.
        self._can_take_highest = self.p_min == 0 and not self._padding
        self._takes_highest = self._can_take_highest
        self._fits: LanguageModel | None = None

    def check_target(self, target: LanguageModel) -> None:
        """Raise ValueError unless the target has the same tokens and no larger context.

        The sizes of one family differ in rows that are only padding: those may be anything.
        """
        if target is self._fits:
            return
        draft = self.draft_llm
        ours, theirs = _vocabulary(draft), _vocabulary(target)
        for i, (our, their) in enumerate(zip_longest(ours, theirs, fillvalue=_Row(None, True))):
            if not our.agrees(their):
                raise ValueError(
                    f"DraftModel: the vocabularies differ: token {i} is {our} in the draft "
                    f"({len(ours)} rows) and {their} in the target ({len(theirs)} rows); use a "
                    f"draft model with the target's tokenizer"
                )
        for name in ("bos", "eos"):
            ours_id, theirs_id = getattr(draft.tokenizer, name), getattr(target.tokenizer, name)
            if ours_id != theirs_id:
                raise ValueError(
                    f"DraftModel: the {name} token is {ours_id} in the draft and {theirs_id} in "
                    f"the target; use a draft model of the target's family"
                )
        if draft.n_ctx < target.n_ctx:
            raise ValueError(
                f"DraftModel: the draft's context of {draft.n_ctx} is smaller than the target's of "
                f"{target.n_ctx}; load the target with n_ctx={draft.n_ctx}, or the draft with more"
            )
        self._fits = target

    def coupled(self, sampling: Sampling, prompt_tokens: int) -> DraftModel:
        """Return this drafter as it drafts in one generation: choosing as the target chooses.

        With the same settings and the same noise at each position, the two make the same choice
        wherever their distributions agree. The session stays shared. `logits_processor` has no part
        in this: it is to see the positions of the text once and in order.

        Args:
            sampling: The target's settings, with a seed.
            prompt_tokens: Length of the prompt.
        """
        twin = copy(self)
        twin._sampler, twin._sampled = sampling.sampler(prompt_tokens), Follower()
        twin._takes_highest = self._can_take_highest and sampling.takes_highest
        return twin

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Return up to min(k, num_draft_tokens) ids: how the draft would go on after `tokens`."""
        # The last proposed id is never evaluated, so it needs no position.
        k = min(k, self.num_draft_tokens, self.draft_llm.n_ctx - len(tokens) + 1)
        if k <= 0 or not tokens:
            return []
        with self._lock:
            fresh = self._fresh(tokens)
            if max(fresh) >= self.draft_llm.n_vocab:  # one of the target's padding rows
                return []
            if not self._takes_highest:
                self._follow(tokens)
            draft: list[int] = []
            while True:
                guess = self._guess(fresh)
                if guess is None:
                    break
                draft.append(guess)
                if len(draft) == k or guess in self._end_ids:
                    break
                fresh = [guess]
        return draft

    def _fresh(self, tokens: Sequence[int]) -> Sequence[int]:
        """Cut the session back to what it shares with `tokens`; return what it lacks of them."""
        session, ids = self._session, self._follower.ids
        if len(session) != len(ids):  # an interrupt fell between the two
            session.reset()
            self._follower.forget()
        # The last token is evaluated again even if it is cached: its logits are gone.
        common = min(self._follower.common(tokens), len(tokens) - 1)
        session.truncate(common)
        del ids[common:]
        return tokens[common:]

    def _follow(self, tokens: Sequence[int]) -> None:
        """Bring the sampler to `tokens`."""
        sampler, ids = self._sampler, self._sampled.ids
        if len(sampler) != len(ids):  # an interrupt fell between the two
            sampler.truncate(0)
            self._sampled.forget()
        common = self._sampled.common(tokens)
        sampler.truncate(common)
        del ids[common:]
        sampler.extend(tokens[common:])
        ids.extend(tokens[common:])

    def _guess(self, fresh: Sequence[int]) -> int | None:
        """Evaluate `fresh` and choose what follows; None if the draft is not sure of it."""
        if self._takes_highest:
            (highest,) = self._session.choose_last(fresh, 1)
            self._follower.ids.extend(fresh)
            return highest
        logits = self._session.forward(fresh)
        self._follower.ids.extend(fresh)
        if self._padding:
            logits[self._padding] = -math.inf
        guess = self._sampler.pick(logits)
        self._sampled.ids.append(guess)
        if self.p_min > 0:
            logprob, _ = self._sampler.log_probabilities(logits, guess, 0)
            if math.exp(logprob) < self.p_min:
                return None
        return guess

    def __repr__(self) -> str:
        return (
            f"DraftModel({self.draft_llm!r}, num_draft_tokens={self.num_draft_tokens}, "
            f"p_min={self.p_min})"
        )


class _Row(NamedTuple):
    """What a row of the logits stands for."""

    name: str | None  # None without an entry in the vocabulary
    is_padding: bool

    def agrees(self, other: _Row) -> bool:
        """Whether both stand for the same: one file may call unused what another does not."""
        return (self.is_padding and other.is_padding) or self.name == other.name

    def __str__(self) -> str:
        return "only padding" if self.is_padding else repr(self.name)


def _vocabulary(llm: LanguageModel) -> list[_Row]:
    """List what every row of the logits stands for."""
    tokenizer = llm.tokenizer
    real = min(tokenizer.n_vocab, llm.n_vocab)
    names = [tokenizer.token(i) for i in range(real)]
    # Converters fill up with such names, which early ones did not mark as unused.
    rows = [
        _Row(name, tokenizer.is_padding(i) or name == f"[PAD{i}]") for i, name in enumerate(names)
    ]
    return rows + [_Row(None, True)] * (llm.n_vocab - real)
