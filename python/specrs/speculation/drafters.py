"""Drafters: cheap guesses of the tokens to come."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from .._specrs import NgramIndex, SuffixIndex
from ..arguments import checked_int, checked_positive

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._specrs import Session, Tokenizer
    from ..sampling import Sampling


class LanguageModel(Protocol):
    """The part of `Llama` that drafting needs."""

    @property
    def n_ctx(self) -> int:
        """Positions of a session."""

    @property
    def n_vocab(self) -> int:
        """Rows of logits, padding included."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary."""

    def session(self) -> Session:
        """Return a new, empty session."""

    def forward_many(
        self, inputs: Iterable[tuple[Session, Sequence[int], int]], *, choose: Sequence[bool]
    ) -> Sequence[Any]:
        """Append tokens to several sessions; see `Llama.forward_many`."""


class Draft(list[int]):
    """Proposed ids that say what they rest on; a drafter may propose any other sequence as well.

    Attributes:
        drafter: Who proposed them; the generation fills it in.
        matched: Length of the context that led to them; 0 if that means nothing here. Drafts with
            equal `matched` are taken to be about equally good.
    """

    def __init__(self, ids: Iterable[int] = (), *, drafter: str = "", matched: int = 0) -> None:
        super().__init__(ids)
        self.drafter = drafter
        self.matched = matched


@runtime_checkable
class Drafter(Protocol):
    """Anything that guesses how a sequence of tokens goes on. Guesses cost time, never correctness.

    A drafter may also have `check_target(target)`, which is called with the target `Llama` before
    a generation begins and raises ValueError if the two do not fit; `coupled(sampling,
    prompt_tokens)`, which returns the drafter to use in one generation, with a state of its own or
    one that draws the same random numbers as the target; `members`, several drafters that are asked
    in its place, one after the other; and `propose_many(histories, ks)`, which proposes for several
    generations of a batch in one go. Where `coupled` returned another object for each of them, that
    has an attribute `origin`, whose `propose_many(histories, ks, drafters)` is told which.
    """

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        """Return at most `k` ids that may follow `tokens`; none is a fine answer.

        `tokens` is one list that grows with the generation: read it, neither change nor keep it.
        """


def common_prefix(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Return how many leading ids `a` and `b` share; the first `start` are known to agree."""
    end = min(len(a), len(b))
    if a[start:end] == b[start:end]:
        return end
    return next((i for i in range(start, end) if a[i] != b[i]), end)


class Follower:
    """The ids a drafter has taken in so far, and how many of them hold for the history of today.

    A history is recognised by its list object: one that was seen before is taken to have changed at
    its end only, by growing or by being cut. So following a generation costs a call the new ids
    alone; any other history is compared in full. The assumption is checked for the last `TAIL`
    known ids: ids changed in place before these go unnoticed, and what is proposed then rests on
    the old ones. That can cost a generation speed, never correctness.
    """

    # Ids at the end of the known part that are compared even in a list that was seen before: they
    # tell a list that was cut and has grown again since.
    TAIL = 16

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._source: Sequence[int] | None = None
        self._checked = 0

    def common(self, tokens: Sequence[int]) -> int:
        """Return the length of the common prefix of `ids` and `tokens`.

        The caller must then bring `ids` in line: cut it there and append the rest of `tokens`.
        """
        if not isinstance(tokens, list):
            tokens = list(tokens)  # lists compare at once
        known, tail = self._checked, max(0, self._checked - self.TAIL)
        trusted = (
            tokens is self._source
            and len(tokens) >= known
            and self.ids[tail:known] == tokens[tail:known]
        )
        self._source, self._checked = tokens, len(tokens)
        if trusted and len(self.ids) == known:
            return known
        return common_prefix(self.ids, tokens, known if trusted else 0)

    def forget(self) -> None:
        """Know nothing again."""
        self.ids.clear()
        self._source, self._checked = None, 0


Occurrence = Literal["last", "first", "most_frequent"]

PIECE = 1 << 14
"""Most ids that an index takes in one call, some milliseconds."""


class IndexedDrafter:
    """What drafters share that look up the end of the history in an index of the whole of it.

    One object may serve any number of generations, one after the other or at once: a proposal
    depends on the given history alone, and each generation has an index of its own. That costs new
    ids only; a history that is no continuation of the last one is indexed anew.
    """

    _index: NgramIndex | SuffixIndex

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._follower = Follower()
        self._begin()

    def _begin(self) -> None:
        """Make an empty `_index`."""
        raise NotImplementedError

    def coupled(self, sampling: Sampling, prompt_tokens: int) -> Self:
        """Return this drafter with an index of its own, for one generation."""
        del sampling, prompt_tokens
        twin = copy(self)
        IndexedDrafter.__init__(twin)
        return twin

    def _follow(self, tokens: Sequence[int]) -> None:
        """Bring the index to `tokens`."""
        follower, index = self._follower, self._index
        common = follower.common(tokens)
        if common < len(follower.ids) or len(index) != len(follower.ids):
            # Another history, or an interrupt fell between the two.
            index.clear()
            follower.ids.clear()
            common = 0
        for start in range(common, len(tokens), PIECE):  # in between, Ctrl-C is heard
            new = tokens[start : start + PIECE]
            index.extend(new)
            follower.ids.extend(new)


class PromptLookup(IndexedDrafter):
    """Propose what followed an earlier occurrence of the final n-gram; needs no model.

    The longest n-gram that has an earlier occurrence decides, and nothing beyond the end of the
    history is proposed. The method is prompt lookup decoding (Saxena, 2023).

    A list that comes back is taken to have changed at its end only, by growing or by being cut, as
    the list of a generation does. After changing ids further back in place, pass a copy.

    Args:
        max_ngram_size: Longest n-gram looked for, at most 64: each size has an index of its own.
        min_ngram_size: Shortest n-gram that may decide; larger values propose less and hit more
            often.
        num_draft_tokens: Most tokens proposed at once.
        occurrence: Which earlier occurrence counts: the "last", the "first", or the last of those
            before the id that followed "most_frequent".
        min_hits: Earlier occurrences an n-gram needs to decide.

    >>> PromptLookup().propose([1, 2, 3, 4, 1, 2], 2)
    [3, 4]
    """

    LONGEST_NGRAM = 64

    def __init__(
        self,
        max_ngram_size: int = 3,
        min_ngram_size: int = 1,
        num_draft_tokens: int = 16,
        *,
        occurrence: Occurrence = "last",
        min_hits: int = 1,
    ) -> None:
        self.max_ngram_size = checked_int("PromptLookup: max_ngram_size", max_ngram_size)
        self.min_ngram_size = checked_int("PromptLookup: min_ngram_size", min_ngram_size)
        if not 1 <= self.min_ngram_size <= self.max_ngram_size <= self.LONGEST_NGRAM:
            raise ValueError(
                f"PromptLookup: 1 <= min_ngram_size <= max_ngram_size <= {self.LONGEST_NGRAM} is "
                f"needed, not {min_ngram_size} and {max_ngram_size}"
            )
        self.num_draft_tokens = checked_positive("PromptLookup: num_draft_tokens", num_draft_tokens)
        self.min_hits = checked_positive("PromptLookup: min_hits", min_hits)
        if occurrence not in ("last", "first", "most_frequent"):
            raise ValueError(
                "PromptLookup: occurrence must be 'last', 'first' or 'most_frequent', "
                f"not {occurrence!r}"
            )
        self.occurrence: Occurrence = occurrence
        super().__init__()

    def _begin(self) -> None:
        self._index = self._ngrams = NgramIndex(
            self.min_ngram_size, self.max_ngram_size, self.occurrence, self.min_hits
        )

    def propose(self, tokens: Sequence[int], k: int) -> Draft:
        """Return up to min(k, num_draft_tokens) ids, copied from `tokens`."""
        k = min(k, self.num_draft_tokens)
        if k <= 0:
            return Draft()
        with self._lock:
            self._follow(tokens)
            ids, matched = self._ngrams.propose(k)
        return Draft(ids, matched=matched)

    def __repr__(self) -> str:
        return (
            f"PromptLookup(max_ngram_size={self.max_ngram_size}, "
            f"min_ngram_size={self.min_ngram_size}, num_draft_tokens={self.num_draft_tokens}, "
            f"occurrence={self.occurrence!r}, min_hits={self.min_hits})"
        )


class Chain:
    """Ask several drafters in turn: the first that proposes wins.

    Put what costs nothing before what does: `Chain(SuffixDecoding(), DraftModel(small))` runs the
    model only where the text offers nothing to copy, or nothing that pays.
    """

    def __init__(self, *drafters: Drafter) -> None:
        if not drafters:
            raise ValueError("Chain: at least one drafter is needed")
        self.members: list[Drafter] = []
        for drafter in drafters:
            if isinstance(drafter, type) or not isinstance(drafter, Drafter):
                raise TypeError(
                    "Chain: every member must be an object with a method propose(tokens, k), "
                    f"not {drafter!r}"
                )
            self.members += drafter.members if isinstance(drafter, Chain) else [drafter]

    def check_target(self, target: LanguageModel) -> None:
        """Raise ValueError if a member does not fit the target."""
        for member in self.members:
            check = getattr(member, "check_target", None)
            if check is not None:
                check(target)

    def coupled(self, sampling: Sampling, prompt_tokens: int) -> Chain:
        """Return the chain with every member that draws random numbers drawing the target's."""
        coupled = [getattr(member, "coupled", None) for member in self.members]
        pairs = zip(self.members, coupled, strict=True)
        return Chain(*(couple(sampling, prompt_tokens) if couple else m for m, couple in pairs))

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        """Return the first proposal that is not empty."""
        for member in self.members:
            proposal = member.propose(tokens, k)
            if len(proposal):
                return proposal
        return []

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.members))})"
