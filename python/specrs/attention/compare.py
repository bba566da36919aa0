"""Sparse attention for long prompts: patterns choose which blocks of 64 positions are looked at.

Only the prompt is ever attended to sparsely. Decoding and the verification of drafts look at
everything, so speculation after a sparse prefill gives the tokens of plain decoding after it.

>>> pattern = DenseBelow(2048, SinkWindow(window=1024))
>>> llm.generate(long_prompt, attention=pattern)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from .._specrs import Pattern as _Native
from .._specrs import Session
from ..arguments import checked_int
from .patterns import (
    Antidiagonal,
    BlockMean,
    Custom,
    DenseBelow,
    DenseLayers,
    DenseTail,
    LayerSplit,
    Pattern,
    SinkWindow,
    SinkWindowLog,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .fidelity import Report

__all__ = [
    "Antidiagonal",
    "Attention",
    "BlockMean",
    "Custom",
    "DenseBelow",
    "DenseLayers",
    "DenseTail",
    "LayerSplit",
    "Pattern",
    "SinkWindow",
    "SinkWindowLog",
    "compare",
    "parse",
]

# Positions whose logits are held at once.
_PIECE = 256


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
    patterns = (SinkWindow, SinkWindowLog, BlockMean, Antidiagonal)
    wrappers = (DenseBelow, DenseLayers, LayerSplit, DenseTail)
    classes = {kind.__name__: kind for kind in (*patterns, *wrappers)}

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
    except (KeyError, SyntaxError, TypeError, MemoryError, RecursionError):
        pattern = None
    if not isinstance(pattern, Pattern):
        raise ValueError(
            f"attention={text[:200]!r} is no pattern; use 'auto' or for example "
            f"'SinkWindow(window=512)' ({', '.join(classes)})"
        )
    return pattern


def name(attention: Attention | None) -> str | None:
    """Return the name under which a session remembers a pattern; None for exact attention."""
    native = _native_of(attention)
    return None if native is None else repr(native)


def reusable(
    spans: Iterable[tuple[int, int, str]], attention: Attention | None, end: int
) -> int | None:
    """Return how many positions of a session may be reused for a prompt to `end`; None for all.

    What is cached must be exact or come from the same pattern: never less exact than asked for.
    """
    native, wanted = _native_of(attention), name(attention)
    tail = end if native is None else native.tail_start(end)
    for start, stop, pattern in spans:
        if pattern != wanted:
            return start
        if stop > tail:
            return max(start, tail)
    return None


def _native_of(attention: Attention | None) -> _Native | None:
    """Return the engine's form of a pattern; None for exact attention."""
    if attention is None:
        return None
    return attention.native if isinstance(attention, Pattern) else _Native.auto()


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

    Raises ValueError for "dense", an empty prompt, negative `new_tokens`, or a pattern the device
    cannot run; ContextOverflow if the prompt does not fit.
    """
    import numpy as np

    from .fidelity import Report, buckets, differences

    attention = check(pattern)
    if checked_int("new_tokens", new_tokens) < 0:
        raise ValueError(f"new_tokens must be 0 or more, not {new_tokens}")
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
        # The last token is evaluated again, and a tail that only some layers have.
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
