"""Drafters: cheap guesses of the tokens to come."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import index
from typing import Protocol, runtime_checkable


@runtime_checkable
class Drafter(Protocol):
    """Anything that guesses how a sequence of tokens goes on. Guesses cost time, never correctness.

    A drafter may also have `num_draft_tokens`, how much to ask of it unless the user says
    otherwise, and `check_target(target)`, which is called with the target `Llama` before a
    generation begins and raises ValueError if the two do not fit. A drafter that makes choices of
    its own may have `coupled(sampling, prompt_tokens)`: it returns the drafter to use in one
    generation, which then chooses with the target's settings and noise (see `Sampling.sampler`).
    """

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        """Return at most `k` ids that may follow `tokens`; none is a fine answer.

        `tokens` is the generation's own list, handed over without a copy: read it, neither change
        nor keep it.
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
    alone; any other history is compared in full.
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


class PromptLookup:
    """Propose what followed the last earlier occurrence of the final n-gram; needs no model.

    The longest n-gram that has an earlier occurrence decides, the most recent occurrence wins, and
    nothing beyond the end of the history is proposed. The method is prompt lookup decoding (Saxena,
    2023). One object may serve any number of generations: a proposal depends on the given history
    alone.

    Args:
        max_ngram_size: Longest n-gram looked for.
        min_ngram_size: Shortest n-gram that may decide; larger values propose less and hit more
            often.
        num_draft_tokens: Most tokens proposed at once.

    >>> PromptLookup().propose([1, 2, 3, 4, 1, 2], 2)
    [3, 4]
    """

    def __init__(
        self, max_ngram_size: int = 3, min_ngram_size: int = 1, num_draft_tokens: int = 8
    ) -> None:
        if not 1 <= index(min_ngram_size) <= index(max_ngram_size):
            raise ValueError(
                f"PromptLookup: 1 <= min_ngram_size <= max_ngram_size is needed, "
                f"not {min_ngram_size} and {max_ngram_size}"
            )
        if index(num_draft_tokens) < 1:
            raise ValueError(
                f"PromptLookup: num_draft_tokens must be at least 1, not {num_draft_tokens}"
            )
        self.max_ngram_size = max_ngram_size
        self.min_ngram_size = min_ngram_size
        self.num_draft_tokens = num_draft_tokens
        self._lock = threading.Lock()
        self._follower = Follower()
        self._indexes = [_NgramIndex(n) for n in range(max_ngram_size, min_ngram_size - 1, -1)]

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Return up to min(k, num_draft_tokens) ids, copied from `tokens`."""
        k = min(k, self.num_draft_tokens)
        if k <= 0 or not len(tokens):
            return []
        with self._lock:
            ids = self._follow(tokens)
            for ngrams in self._indexes:
                end = ngrams.last_end.get(tuple(ids[-ngrams.n :]))
                if end is not None:
                    return ids[end : end + k]
        return []

    def _follow(self, tokens: Sequence[int]) -> list[int]:
        """Bring the indexes to `tokens`; return these as a list of our own."""
        ids = self._follower.ids
        common = self._follower.common(tokens)
        # The n-gram at the very end is the one looked for: it is no earlier occurrence.
        end = len(tokens) - 1
        if common < len(ids):
            for ngrams in self._indexes:
                ngrams.cut(ids, min(common, end))
            del ids[common:]
        ids.extend(tokens[common:])
        for ngrams in self._indexes:
            ngrams.extend(ids, end)
        return ids

    def __repr__(self) -> str:
        return (
            f"PromptLookup(max_ngram_size={self.max_ngram_size}, "
            f"min_ngram_size={self.min_ngram_size}, num_draft_tokens={self.num_draft_tokens})"
        )


class _NgramIndex:
    """Where each n-gram of a sequence last ended; can be extended, and cut back by undoing."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.last_end: dict[tuple[int, ...], int] = {}
        # What each entry replaced, for every end from n on.
        self._replaced: list[int | None] = []

    def extend(self, ids: list[int], end: int) -> None:
        """Index every n-gram of `ids` that ends at `end` or before."""
        n, last_end, replaced = self.n, self.last_end, self._replaced
        for stop in range(n + len(replaced), end + 1):
            ngram = tuple(ids[stop - n : stop])
            replaced.append(last_end.get(ngram))
            last_end[ngram] = stop

    def cut(self, ids: list[int], end: int) -> None:
        """Forget every n-gram that ends after `end`; `ids` still holds what was indexed."""
        n, last_end, replaced = self.n, self.last_end, self._replaced
        for stop in range(n + len(replaced) - 1, max(end, n - 1), -1):
            ngram = tuple(ids[stop - n : stop])
            before = replaced.pop()
            if before is None:
                del last_end[ngram]
            else:
                last_end[ngram] = before
