"""A small model that drafts for a large one."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from copy import copy
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arguments import checked_positive, checked_share
from ..sampling import Sampling
from .drafters import Follower, LanguageModel, common_prefix

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._specrs import Session


class DraftModel:
    """Propose what a smaller model of the same vocabulary would write.

    Each generation has a session of the draft model, which follows the history by the longest
    common prefix: what the target rejected is simply cut off there. A later generation takes over
    what it shares with an earlier one. The draft's context must hold what the target's does. The
    generations of a batch share every pass of the draft model.

    Args:
        draft_llm: The loaded draft model, a `Llama`.
        num_draft_tokens: Most tokens proposed at once.
        p_min: Stop before a token to which the draft itself gives a lower probability, that of its
            logits without any settings; 0 never stops.
    """

    CATCH_UP = 64  # tokens of a text that are taken in at once, where others wait

    def __init__(
        self, draft_llm: LanguageModel, num_draft_tokens: int = 8, p_min: float = 0.0
    ) -> None:
        if isinstance(draft_llm, type) or not hasattr(draft_llm, "session"):
            raise TypeError(f"DraftModel: draft_llm must be a specrs.Llama, not {draft_llm!r}")
        self.draft_llm = draft_llm
        self.num_draft_tokens = checked_positive("DraftModel: num_draft_tokens", num_draft_tokens)
        self.p_min = checked_share("DraftModel: p_min", p_min)
        self._lock = threading.Lock()
        self._caches = _Caches(draft_llm)
        self._cache: _Cache | None = None
        self._origin: DraftModel | None = None
        self._sampler = Sampling().sampler(0)
        self._sampled = Follower()  # its ids are those of the sampler
        self._end_ids = frozenset(draft_llm.tokenizer.end_ids)
        self._padding = [i for i, row in enumerate(_vocabulary(draft_llm)) if row.is_padding]
        # Whether the token with the highest logit is all a guess takes to know.
        self._can_take_highest = self.p_min == 0 and not self._padding
        self._takes_highest = self._can_take_highest
        self._fits: LanguageModel | None = None

    @property
    def origin(self) -> DraftModel:
        """The drafter that `coupled` was called of; this one if it was not made so."""
        return self if self._origin is None else self._origin

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
        wherever their distributions agree. `logits_processor` has no part in this: it is to see the
        positions of the text once and in order.

        Args:
            sampling: The target's settings, with a seed.
            prompt_tokens: Length of the prompt.
        """
        twin = copy(self)
        twin._origin = self.origin
        twin._lock, twin._cache = threading.Lock(), None
        twin._sampler, twin._sampled = sampling.sampler(prompt_tokens), Follower()
        twin._takes_highest = self._can_take_highest and sampling.takes_highest
        return twin

    def __del__(self) -> None:
        cache = getattr(self, "_cache", None)  # there is none if the arguments were refused
        if cache is not None:
            self._caches.give(cache)

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Return up to min(k, num_draft_tokens) ids: how the draft would go on after `tokens`."""
        with self._lock:
            (draft,) = self._together([self], [tokens], [k])
        return draft

    def propose_many(
        self,
        histories: Sequence[Sequence[int]],
        ks: Sequence[int],
        drafters: Sequence[DraftModel] | None = None,
    ) -> list[list[int]]:
        """Return what `propose` would for each history, evaluated together.

        A history of which the draft model does not know much yet is taken in by pieces, so that
        those of others need not wait for it; until then nothing is proposed for it.

        Args:
            histories: The ids so far of each generation.
            ks: Most ids to propose for each.
            drafters: What `coupled` returned for each; None is new ones that choose greedily.
        """
        if drafters is None:
            drafters = [self.coupled(Sampling(), len(tokens)) for tokens in histories]
        return self._together(drafters, histories, ks, most=self.CATCH_UP)

    def _together(
        self,
        drafters: Sequence[DraftModel],
        histories: Sequence[Sequence[int]],
        ks: Sequence[int],
        most: int | None = None,
    ) -> list[list[int]]:
        """Draft for several histories; what is new of each is at most `most`, or it must wait."""
        llm = self.draft_llm
        drafts: list[list[int]] = [[] for _ in drafters]
        going: list[tuple[int, Sequence[int], int]] = []  # number, what is new, how much to draft
        for i, (drafter, tokens, k) in enumerate(zip(drafters, histories, ks, strict=True)):
            # The last proposed id is never evaluated, so it needs no position.
            k = min(k, self.num_draft_tokens, llm.n_ctx - len(tokens) + 1)
            if k <= 0 or not tokens:
                continue
            fresh = drafter._fresh(tokens)
            if max(fresh) >= llm.n_vocab:  # one of the target's padding rows
                continue
            if most is not None and len(fresh) > most:
                fresh, k = fresh[:most], 0
            elif not drafter._takes_highest:
                drafter._follow(tokens)
            going.append((i, fresh, k))
        while going:
            caches = [drafters[i].cache(histories[i]) for i, _, _ in going]
            inputs = [
                (cache.session, fresh, min(k, 1))
                for cache, (_, fresh, k) in zip(caches, going, strict=True)
            ]
            choose = [drafters[i]._takes_highest for i, _, _ in going]
            answers = llm.forward_many(inputs, choose=choose)
            on: list[tuple[int, Sequence[int], int]] = []
            for cache, (i, fresh, k), answer in zip(caches, going, answers, strict=True):
                cache.follower.ids.extend(fresh)
                guess = drafters[i]._guess(answer[0]) if k else None
                if guess is not None:
                    drafts[i].append(guess)
                    if len(drafts[i]) < k and guess not in self._end_ids:
                        on.append((i, [guess], k))
            going = on
        return drafts

    def cache(self, tokens: Sequence[int]) -> _Cache:
        """Return the session of this generation; at first the one that suits its `tokens` best."""
        if self._cache is None:
            self._cache = self._caches.take(tokens)
        return self._cache

    def _fresh(self, tokens: Sequence[int]) -> Sequence[int]:
        """Cut the session back to what it shares with `tokens`; return what it lacks of them."""
        cache = self.cache(tokens)
        session, ids = cache.session, cache.follower.ids
        if len(session) != len(ids):  # an interrupt fell between the two
            session.reset()
            cache.follower.forget()
        # The last token is evaluated again even if it is cached: its logits are gone.
        common = min(cache.follower.common(tokens), len(tokens) - 1)
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

    def _guess(self, answer: Any) -> int | None:
        """Choose what follows, by its logits or as the likeliest; None if it is not sure of it."""
        if self._takes_highest:
            highest: int | None = answer
            return highest
        logits: npt.NDArray[np.float32] = answer
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


class _Cache:
    """A session of the draft model, and whose ids are in it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.follower = Follower()  # its ids are those of the session


class _Caches:
    """Sessions of the draft model that no generation uses at the moment."""

    MOST = 2

    def __init__(self, draft_llm: LanguageModel) -> None:
        self._draft_llm = draft_llm
        self._lock = threading.Lock()
        self._idle: list[_Cache] = []

    def take(self, tokens: Sequence[int]) -> _Cache:
        """Return the session that shares most with `tokens`, or a new one."""
        with self._lock:
            if not self._idle:
                return _Cache(self._draft_llm.session())
            tokens = list(tokens)
            best = max(self._idle, key=lambda cache: common_prefix(cache.follower.ids, tokens))
            self._idle.remove(best)
            return best

    def give(self, cache: _Cache) -> None:
        """Keep a session for others; the one that waits longest makes room for it."""
        with self._lock:
            self._idle = [*self._idle, cache][-self.MOST :]


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
