"""Measuring what a pattern costs and changes against the exact prefill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from .._specrs import Session
from ..arguments import checked_int
from .choice import Attention, check, name

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .fidelity import Report

# Positions whose logits are held at once.
_PIECE = 256


class _Llama(Protocol):
    """What `compare` needs of a `Llama`."""

    windows: list[int | None]

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
        windowed=[i for i, window in enumerate(llm.windows) if window is not None],
        dense_seconds=seconds[0],
        sparse_seconds=seconds[1],
        dense_tokens=made[0],
        sparse_tokens=made[1],
    )
