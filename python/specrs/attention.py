"""Sparse attention for long prompts: patterns choose which blocks of 64 positions are looked at.

Only the prompt is ever attended to sparsely. Decoding and the verification of drafts look at
everything, so speculation after a sparse prefill gives the tokens of plain decoding after it.

>>> pattern = DenseBelow(2048, SinkWindow(window=1024))
>>> llm.generate(long_prompt, attention=pattern)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ._specrs import Pattern as _Native
from ._specrs import Session
from .arguments import check_count, check_number, check_share

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .fidelity import Report

BLOCK = 64
"""Positions in a block."""

# Positions whose logits are held at once.
_PIECE = 256


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

    Blocks are judged by the mean of their keys, as in FlashPrefill, and by how far the keys spread
    around it: one key that fits well is not seen in the mean of 64.

    Args:
        alpha: Keep a block if its best key is thought to weigh at least this part of all keys;
            between 0 and 1. Less keeps more.
        spread: How far above the mean key the best one is thought to score, in standard deviations
            of the block's scores; at most 8, which no key of 64 exceeds. More keeps more.
        sink: Positions at the beginning that are always kept, a multiple of 64.
        window: Positions before the query's own block that are always kept, a multiple of 64.
        correct: Let the mean key and value of every block left out stand in for its positions.
    """

    alpha: float = 0.004
    spread: float = 3.0
    sink: int = 64
    window: int = 256
    correct: bool = True

    def __post_init__(self) -> None:
        check_share(self, "alpha")
        check_number(self, "spread")
        if not 0 <= self.spread <= 8:
            raise ValueError(f"spread must be between 0 and 8, not {self.spread!r}")
        if not isinstance(self.correct, bool):
            raise TypeError(f"correct must be True or False, not {self.correct!r}")
        _check_blocks(self, "sink", least=0)
        _check_blocks(self, "window", least=BLOCK)

    def _build(self) -> _Native:
        return _Native.block_mean(self.alpha, self.spread, self.sink, self.window, self.correct)


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
        stride = check_count(self, "stride", least=1)
        if BLOCK % stride:
            raise ValueError(f"stride must be 1, 2, 4, 8, 16, 32 or 64, not {stride}")
        check_share(self, "tau")
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
            checked = check_share if isinstance(getattr(self, name), float) else check_count
            checked(self, name)
        _check_inner(self)

    def _build(self) -> _Native:
        return self.inner.native.dense_layers(self.first, self.last)


@dataclass(frozen=True, repr=False, eq=False)
class DenseTail(Pattern):
    """Exact for at least the last `positions` of a prompt; the inner pattern before them.

    The one pattern that depends on where a prompt ends, and so on how it is cut into calls of
    `Session.prefill`.
    """

    positions: int
    inner: Pattern

    def __post_init__(self) -> None:
        check_count(self, "positions")
        _check_inner(self)

    def _build(self) -> _Native:
        return self.inner.native.dense_tail(self.positions)


Attention = Pattern | str
"""What `attention=` takes: "dense", "auto" or a pattern."""


def check(attention: Attention) -> Attention | None:
    """Return what `Session.prefill` is to be given: None for "dense".

    Raises ValueError or TypeError for what is neither "dense", "auto" nor a pattern.
    """
    if isinstance(attention, str) and attention not in ("dense", "auto"):
        raise ValueError(
            f"attention={attention!r} is unknown; use 'dense', 'auto' or a pattern of "
            "specrs.attention"
        )
    if not isinstance(attention, (str, Pattern)):
        raise TypeError(
            "attention must be 'dense', 'auto' or a pattern such as "
            f"specrs.attention.SinkWindow(), not {attention!r}"
        )
    return None if attention == "dense" else attention


def parse(text: str) -> Attention:
    """Return the pattern that `text` prints as, without evaluating any other code.

    >>> parse("DenseBelow(2048, SinkWindow(window=512))")

    Raises ValueError for anything else; a mask cannot be written down.
    """
    if text in ("dense", "auto"):
        return text
    known = (SinkWindow, SinkWindowLog, BlockMean, Antidiagonal, DenseBelow, DenseLayers, DenseTail)
    classes = {kind.__name__: kind for kind in known}

    def build(node: ast.AST) -> Any:
        match node:
            case ast.Call(func=ast.Name(id=kind), args=args, keywords=keywords):
                named = {str(keyword.arg): build(keyword.value) for keyword in keywords}
                return classes[kind](*map(build, args), **named)
        try:
            return ast.literal_eval(node)
        except ValueError:  # not one of a pattern, whose words say what is wrong with it
            raise SyntaxError(text) from None

    try:
        pattern = build(ast.parse(text, mode="eval").body)
    except (KeyError, SyntaxError, TypeError):
        pattern = None
    if not isinstance(pattern, Pattern):
        raise ValueError(
            f"attention={text!r} is no pattern; use 'auto' or for example 'SinkWindow(window=512)' "
            f"({', '.join(classes)})"
        )
    return pattern


def name(attention: Attention | None) -> str | None:
    """Return the name under which a session remembers a pattern; None for exact attention."""
    if attention is None:
        return None
    return repr(_Native.auto() if attention == "auto" else attention)


def reusable(spans: Iterable[tuple[int, int, str]], attention: Attention | None) -> int | None:
    """Return how many positions of a session may be reused for a prompt; None for all.

    What is cached must be exact or come from the same pattern: never less exact than asked for.
    """
    wanted = name(attention)
    return next((start for start, _, pattern in spans if pattern != wanted), None)


class _Llama(Protocol):
    """What `compare` needs of a `Llama`."""

    def session(self) -> Session: ...
    @property
    def generate(self) -> Callable[..., Any]: ...


def compare(
    llm: _Llama,
    tokens: Sequence[int],
    pattern: Attention,
    *,
    new_tokens: int = 32,
    progress: Callable[[int, int], object] | None = None,
) -> Report:
    """Prefill `tokens` exactly and with `pattern`, and measure what differs.

    Args:
        llm: The model, on a device that can run the pattern.
        tokens: A prompt that is long enough for the pattern to leave something out.
        pattern: "auto" or a pattern.
        new_tokens: Greedy tokens to generate after either prefill.
        progress: Called as `progress(done, total)`, in tokens of all the passes together.

    Raises ValueError for "dense", an empty prompt, or a pattern the device cannot run;
    ContextOverflow if the prompt does not fit.
    """
    import numpy as np

    from .fidelity import Report, buckets, differences

    attention = check(pattern)
    if attention is None:
        raise ValueError("there is nothing to compare: attention='dense' is the exact prefill")
    length, total = len(tokens), 4 * len(tokens)

    def report(done: int) -> None:
        if progress is not None:
            progress(done, total)

    made, seconds = [], []
    for i, chosen in enumerate((None, attention)):
        options = {"max_tokens": new_tokens, "ignore_eos": True}
        session = llm.session()
        start = perf_counter()

        def advance(done: int, _: int, offset: int = i * length) -> None:
            report(offset + done)

        session.prefill(tokens, attention=chosen, progress=advance)
        seconds.append(perf_counter() - start)
        # The last token of a prompt looks at everything; the rest is not evaluated again.
        out = llm.generate(tokens, session=session, attention=chosen or "dense", **options)
        made.append(out.tokens)

    dense, sparse = llm.session(), llm.session()
    kept = np.zeros(sparse.kept_shape(length), np.uint32)
    columns: list[npt.NDArray[np.float64]] = []
    for start in range(0, length, _PIECE):
        piece = tokens[start : start + _PIECE]
        exact = dense.prefill(piece, positions=len(piece))
        got = sparse.prefill(
            piece, attention=attention, positions=len(piece), prompt_length=length, kept=kept
        )
        columns.append(differences(exact, got, tokens[start + 1 : start + len(piece) + 1]))
        report(2 * (length + start + len(piece)))
    rows = np.concatenate(columns)
    queries = np.maximum(kept.diagonal(axis1=1, axis2=2), 1)[:, :, None]
    return Report(
        attention=name(attention) or "",
        buckets=buckets(rows),
        kept=(kept / queries).astype(np.float32),
        dense_seconds=seconds[0],
        sparse_seconds=seconds[1],
        dense_tokens=made[0],
        sparse_tokens=made[1],
    )


def _check_blocks(pattern: Any, name: str, least: int) -> None:
    count = check_count(pattern, name, least)
    if count % BLOCK:
        below = count - count % BLOCK
        raise ValueError(
            f"{name}={count} is no multiple of {BLOCK}, the positions of a block; "
            f"use {max(below, least)} or {below + BLOCK}"
        )


def _check_inner(pattern: Any) -> None:
    if not isinstance(pattern.inner, Pattern):
        raise TypeError(
            f"{type(pattern).__name__} wraps a pattern such as SinkWindow(), not {pattern.inner!r}"
        )
