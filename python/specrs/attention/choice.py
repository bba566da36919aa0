"""What `attention=` takes, as text and as a value, and what of a session it lets a prompt reuse."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from .._specrs import Pattern as _Native
from .patterns import (
    Antidiagonal,
    BlockMean,
    DenseBelow,
    DenseLayers,
    DenseTail,
    LayerSplit,
    Pattern,
    SinkWindow,
    SinkWindowLog,
)

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
