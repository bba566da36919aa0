"""The patterns of `specrs.attention`: which blocks of 64 positions are looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .._specrs import Pattern as _Native
from ..arguments import checked_count, checked_number, checked_proper_share

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BLOCK = 64
"""Positions in a block."""

# Characters that a pattern prints at most: those that hold one pattern twice grow fast.
_LONGEST = 2000


class Pattern:
    """A choice of blocks; every query looks at its own block whatever the pattern says.

    Two patterns are equal if they print the same.
    """

    @cached_property
    def native(self) -> _Native:
        """The engine's own form."""
        return self._build()

    def _build(self) -> _Native:
        raise NotImplementedError(f"{type(self).__name__} is not a pattern by itself")

    def __repr__(self) -> str:
        return repr(self.native)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True, repr=False, eq=False)
class SinkWindow(Pattern):
    """The first positions and the latest ones (StreamingLLM, Xiao et al., 2023).

    Args:
        sink: Positions at the beginning, a multiple of 64.
        window: Positions before the query's own block, a multiple of 64, at least 64.
    """

    sink: int = 64
    window: int = 1024

    def __post_init__(self) -> None:
        _check_blocks(self, "sink", least=0)
        _check_blocks(self, "window", least=BLOCK)

    def _build(self) -> _Native:
        return _Native.window(self.sink, self.window, False)


@dataclass(frozen=True, repr=False, eq=False)
class SinkWindowLog(SinkWindow):
    """As `SinkWindow`, and the blocks 2, 4, 8, 16 … blocks before the query's own."""

    def _build(self) -> _Native:
        return _Native.window(self.sink, self.window, True)


@dataclass(frozen=True, repr=False, eq=False)
class BlockMean(Pattern):
    """For each query the blocks with a key that may fit it well, the others by their means.

    Blocks are judged twice. First by the mean of their keys, as in FlashPrefill, and by how far the
    keys spread around it: one key that fits well is not seen in the mean of 64. Those that may
    matter are scored, and their values count where the best score is high enough (after SpargeAttn,
    Zhang et al., 2025, and BLASST, Yuan et al., 2025), which saves more than half of the work where
    it is not.

    Args:
        alpha: Score a block if its best key is thought to weigh at least this part of all keys;
            between 0 and 1. Less keeps more.
        spread: How far above the mean key the best one is thought to score, in standard deviations
            of the block's scores, as estimated without correlations; at most 8. More keeps more.
            A tiny alpha, 1e-30, scores every block.
        least: Keep a scored block if its best key weighs at least this part of what all keys are
            thought to weigh; below 1, and 0 keeps all that are scored. Less keeps more.
        sink: Positions at the beginning that are always scored, a multiple of 64.
        window: Positions before the query's own block that are always scored, a multiple of 64.
        correct: Let the mean key and value of every block left out stand in for its positions.
    """

    alpha: float = 0.004
    spread: float = 3.0
    least: float = 0.0005
    sink: int = 64
    window: int = 256
    correct: bool = True

    def __post_init__(self) -> None:
        checked_proper_share("alpha", self.alpha)
        checked_number("spread", self.spread)
        if not 0 <= self.spread <= 8:
            raise ValueError(f"spread must be between 0 and 8, not {self.spread!r}")
        if checked_number("least", self.least) != 0:
            checked_proper_share("least", self.least)
        if not isinstance(self.correct, bool):
            raise TypeError(f"correct must be True or False, not {self.correct!r}")
        _check_blocks(self, "sink", least=0)
        _check_blocks(self, "window", least=BLOCK)

    def _build(self) -> _Native:
        return _Native.block_mean(
            self.alpha, self.spread, self.least, self.sink, self.window, self.correct
        )


@dataclass(frozen=True, repr=False, eq=False)
class Antidiagonal(Pattern):
    """For each query the blocks that hold most of what it looks at (XAttention, Xu et al., 2025).

    What a block holds is estimated from every `stride`th of its keys, starting one later for each
    query, so that the queries of a block look along antidiagonals of the scores
    (https://arxiv.org/abs/2503.16428). Unlike there every query decides for itself, and so alike in
    every split of a prompt.

    Args:
        stride: Distance of the sampled keys: 1, 2, 4, 8, 16, 32 or 64. Less is surer and dearer.
        tau: Share of the estimated attention that the kept blocks hold at least; between 0 and 1.
            More keeps more.
        sink: Positions at the beginning that are always kept, a multiple of 64.
        window: Positions before the query's own block that are always kept, a multiple of 64.
    """

    stride: int = 8
    tau: float = 0.95
    sink: int = 64
    window: int = 512

    def __post_init__(self) -> None:
        stride = checked_count("stride", self.stride, least=1)
        if BLOCK % stride:
            raise ValueError(f"stride must be 1, 2, 4, 8, 16, 32 or 64, not {stride}")
        checked_proper_share("tau", self.tau)
        _check_blocks(self, "sink", least=0)
        _check_blocks(self, "window", least=BLOCK)

    def _build(self) -> _Native:
        return _Native.antidiagonal(self.stride, self.tau, self.sink, self.window)


@dataclass(frozen=True, repr=False, eq=False)
class Custom(Pattern):
    """The blocks of a mask; queries beyond it look at everything.

    Args:
        mask: bool, [blocks, blocks]: whether the queries of the row's block look at the column's.
            The diagonal must be kept; what is above it lies in the future and is not looked at.
    """

    mask: npt.NDArray[np.bool_] = field(compare=False)

    def __post_init__(self) -> None:
        import numpy as np

        mask = np.asarray(self.mask)
        if mask.ndim != 2 or mask.shape[0] != mask.shape[1] or not mask.size:
            raise ValueError(
                f"mask must be square, [blocks, blocks] of {BLOCK} positions, not {mask.shape}"
            )
        if mask.dtype != np.bool_:
            raise TypeError(f"mask must be an array of bool, not {mask.dtype}")
        hidden = np.flatnonzero(~mask.diagonal())
        if len(hidden):
            raise ValueError(
                f"mask hides block {hidden[0]} from itself; every block must keep the diagonal"
            )
        mask = mask.copy()
        mask.flags.writeable = False
        object.__setattr__(self, "mask", mask)

    def _build(self) -> _Native:
        return _Native.custom(self.mask)


@dataclass(frozen=True, repr=False, eq=False)
class DenseBelow(Pattern):
    """Exact for the first `positions`, a multiple of 64; the inner pattern after them."""

    positions: int
    inner: Pattern

    def __post_init__(self) -> None:
        _check_blocks(self, "positions", least=0)
        _check_inner(self)
        _check_size(self)

    def _build(self) -> _Native:
        return self.inner.native.dense_below(self.positions)


@dataclass(frozen=True, repr=False, eq=False)
class DenseLayers(Pattern):
    """Exact in the `first` and the `last` layers; the inner pattern between them.

    An int is a number of layers, a float a share of the model's: 0.4 is 9 layers of 22.
    """

    first: int | float
    last: int | float
    inner: Pattern

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            _check_layers(self, name)
        _check_inner(self)
        _check_size(self)

    def _build(self) -> _Native:
        return self.inner.native.dense_layers(self.first, self.last)


@dataclass(frozen=True, repr=False, eq=False)
class LayerSplit(Pattern):
    """`early` in the `first` layers and `late` in the others; `first` as in `DenseLayers`."""

    first: int | float
    early: Pattern
    late: Pattern

    def __post_init__(self) -> None:
        _check_layers(self, "first")
        for name in ("early", "late"):
            _check_inner(self, name)
        _check_size(self)

    def _build(self) -> _Native:
        return _Native.layer_split(self.first, self.early.native, self.late.native)


@dataclass(frozen=True, repr=False, eq=False)
class DenseTail(Pattern):
    """Exact for at least the last `positions` of a prompt; the inner pattern before them.

    The one pattern that depends on where a prompt ends, and so on how it is cut into calls of
    `Session.prefill`.
    """

    positions: int
    inner: Pattern

    def __post_init__(self) -> None:
        checked_count("positions", self.positions)
        _check_inner(self)
        _check_size(self)

    def _build(self) -> _Native:
        return self.inner.native.dense_tail(self.positions)


def _check_blocks(pattern: Any, name: str, least: int) -> None:
    count = checked_count(name, getattr(pattern, name), least)
    if count % BLOCK:
        below = count - count % BLOCK
        raise ValueError(
            f"{name}={count} is no multiple of {BLOCK}, the positions of a block; "
            f"use {max(below, least)} or {below + BLOCK}"
        )


def _check_layers(pattern: Any, name: str) -> None:
    value = getattr(pattern, name)
    checked = checked_proper_share if isinstance(value, float) else checked_count
    checked(name, value)


def _check_inner(pattern: Any, name: str = "inner") -> None:
    inner = getattr(pattern, name)
    if not isinstance(inner, Pattern):
        raise TypeError(
            f"{type(pattern).__name__} wraps a pattern such as SinkWindow(), not {inner!r}"
        )


def _check_size(pattern: Pattern) -> None:
    if len(repr(pattern)) > _LONGEST:
        raise ValueError(f"{type(pattern).__name__} wraps too many patterns; nest fewer of them")
