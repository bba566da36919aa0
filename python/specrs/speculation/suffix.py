"""Drafting from everything that was said before, by how often it was."""

from __future__ import annotations

import json
import os
import sys
import zlib
from array import array
from collections.abc import Sequence
from operator import index
from pathlib import Path

from .._specrs import SuffixIndex, SuffixTree
from ..arguments import checked_int, checked_positive, checked_share
from ..files import replace_file
from .drafters import Draft, IndexedDrafter, LanguageModel


class SuffixCorpus:
    """Texts of the past, such as earlier replies, in which any number of drafters look things up.

    Nothing is added but by `add`. Adding and looking up may happen in several threads.

    Args:
        max_depth: Longest context and continuation together; memory and the cost of adding grow
            with it.

    >>> corpus = SuffixCorpus()
    >>> corpus.add([1, 2, 3, 4])
    >>> SuffixDecoding(corpus=corpus).propose([9, 2, 3], 1)
    [4]
    """

    def __init__(self, max_depth: int = 32) -> None:
        if checked_int("SuffixCorpus: max_depth", max_depth) < 2:
            raise ValueError(f"SuffixCorpus: max_depth must be at least 2, not {max_depth}")
        self.max_depth = max_depth
        self.max_token = -1
        self._tree = SuffixTree(max_depth)
        self._tokens = array("I")
        self._lengths: list[int] = []

    def add(self, tokens: Sequence[int]) -> None:
        """Add a text; what follows it in another text is not taken for its continuation."""
        try:
            ids = array("I", map(index, tokens))
        except OverflowError:
            raise ValueError(f"SuffixCorpus: token ids are from 0 to {2**32 - 1}") from None
        if ids:
            self._tree.add(ids)
            self.max_token = max(self.max_token, max(ids))
            self._tokens += ids
            self._lengths.append(len(ids))

    def __len__(self) -> int:
        return len(self._tokens)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the texts to a file, atomically."""
        ids = _little_endian(self._tokens)
        header = {
            "format": _FORMAT,
            "max_depth": self.max_depth,
            "lengths": self._lengths,
            "crc32": zlib.crc32(ids),
        }
        replace_file(path, [json.dumps(header).encode() + b"\n", ids])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SuffixCorpus:
        """Read what `save` wrote; OSError if it cannot be read, ValueError if it is damaged."""
        head, _, ids = Path(path).read_bytes().partition(b"\n")
        try:
            header = json.loads(head)
            known = header["format"] == _FORMAT
            depth, lengths, crc32 = header["max_depth"], header["lengths"], header["crc32"]
        except (KeyError, TypeError, ValueError):
            known = False
        if not known:
            raise ValueError(f"{os.fspath(path)} is no corpus, or of another version")
        if zlib.crc32(ids) != crc32 or 4 * sum(lengths) != len(ids):
            raise ValueError(f"{os.fspath(path)} is damaged; save the corpus again")
        tokens = array("I", _little_endian(array("I", ids)))
        corpus, start = cls(depth), 0
        for length in lengths:
            corpus.add(tokens[start : start + length])
            start += length
        return corpus

    def __repr__(self) -> str:
        return f"<SuffixCorpus of {len(self._lengths)} texts, {len(self):,} tokens>"


_FORMAT = "specrs corpus 1"


def _little_endian(ids: array[int]) -> bytes:
    """Swap the bytes where the machine is big-endian; the same in both directions."""
    if sys.byteorder == "big":
        ids = array("I", ids)
        ids.byteswap()
    return ids.tobytes()


class SuffixDecoding(IndexedDrafter):
    """Propose what most often followed the end of the history, here and in a corpus; no model.

    Every context that ends the history and occurred before is tried. From each, the most frequent
    next token is taken again and again, as long as all of it is likely enough to be right. The
    context whose guess promises the most right tokens wins. So drafts are as long as the past
    allows: short after a single word, long where a passage repeats. After SuffixDecoding (Oliaro
    et al., 2024).

    Args:
        num_draft_tokens: Most tokens proposed at once.
        min_probability: How likely a guess must be right up to its last token.
        max_depth: Longest context and guess together.
        corpus: Earlier texts to look things up in as well; only read.

    >>> SuffixDecoding().propose([1, 2, 3, 4, 1, 2], 1)
    [3]
    """

    def __init__(
        self,
        num_draft_tokens: int = 16,
        *,
        min_probability: float = 0.2,
        max_depth: int = 32,
        corpus: SuffixCorpus | None = None,
    ) -> None:
        if checked_int("SuffixDecoding: max_depth", max_depth) < 2:
            raise ValueError(f"SuffixDecoding: max_depth must be at least 2, not {max_depth}")
        if corpus is not None and not isinstance(corpus, SuffixCorpus):
            raise TypeError(f"SuffixDecoding: corpus must be a specrs.SuffixCorpus, not {corpus!r}")
        name = "SuffixDecoding: num_draft_tokens"
        self.num_draft_tokens = checked_positive(name, num_draft_tokens)
        self.min_probability = checked_share("SuffixDecoding: min_probability", min_probability)
        self.max_depth = max_depth
        self.corpus = corpus
        super().__init__()

    def _begin(self) -> None:
        tree = None if self.corpus is None else self.corpus._tree
        self._index = self._suffixes = SuffixIndex(self.max_depth, tree)

    def check_target(self, target: LanguageModel) -> None:
        """Raise ValueError if the corpus holds ids that the target does not have."""
        if self.corpus is not None and self.corpus.max_token >= target.n_vocab:
            raise ValueError(
                f"SuffixDecoding: the corpus holds token {self.corpus.max_token}, outside the "
                f"target's vocabulary of {target.n_vocab}; use a corpus made with its tokenizer"
            )

    def propose(self, tokens: Sequence[int], k: int) -> Draft:
        """Return up to min(k, num_draft_tokens) ids."""
        k = min(k, self.num_draft_tokens)
        if k <= 0:
            return Draft()
        with self._lock:
            self._follow(tokens)
            ids, matched, _ = self._suffixes.propose(k, self.min_probability)
        return Draft(ids, matched=matched)

    def __repr__(self) -> str:
        return (
            f"SuffixDecoding(num_draft_tokens={self.num_draft_tokens}, "
            f"min_probability={self.min_probability}, max_depth={self.max_depth}, "
            f"corpus={self.corpus!r})"
        )
