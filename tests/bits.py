"""Bit equality of logits, and a count of how many values have been compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specrs._specrs import Model, Session

#: Values that were found equal so far in this run; shown in pytest's summary.
compared = 0


def assert_same_bits(got: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> None:
    """Fail unless both arrays have one shape and the same bits everywhere."""
    global compared
    assert got.dtype == wanted.dtype == np.float32
    assert got.shape == wanted.shape
    same = np.ascontiguousarray(got).view(np.uint32) == np.ascontiguousarray(wanted).view(np.uint32)
    if not same.all():
        where = tuple(int(axis) for axis in np.argwhere(~same)[0])
        raise AssertionError(
            f"{np.count_nonzero(~same)} of {same.size} values differ in their bits; "
            f"the first at {where}: {got[where]!r}, not {wanted[where]!r}"
        )
    compared += same.size


def cold(model: Model, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Compute the logits after each of `tokens` in one call on a new session."""
    return model.session().forward_all_positions(tokens)


def in_pieces(
    session: Session, tokens: Sequence[int], lengths: Iterable[int]
) -> npt.NDArray[np.float32]:
    """Append `tokens` in calls of these lengths, over and over; the logits after each of them."""
    rows: list[npt.NDArray[np.float32]] = []
    start = 0
    for length in itertools.cycle(lengths):
        if start >= len(tokens):
            return np.concatenate(rows)
        rows.append(session.forward_all_positions(tokens[start : start + length]))
        start += length
    raise ValueError("lengths is empty")


def random_ids(model: Model, count: int, seed: int = 0) -> list[int]:
    """Draw `count` ids of the model's vocabulary."""
    ids: list[Any] = np.random.default_rng(seed).integers(0, model.n_vocab, count).tolist()
    return ids
