"""The oracle with the numbers rounded that an engine rounds by design, and nothing else.

What is left between an engine and its oracle here is the noise of float32, and what becomes of it
where it tips a number over the boundary between two steps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from blocks import FLOAT_TYPES, block_len
from reference import Array, Reference, capped

PAGE = 64  # positions whose weights have one scale


class RoundedReference(Reference):
    """Rounds as the CPU engine does: `rust/kernels/` is the specification.

    - Inputs of quantised matrices become int8 with a scale per 32 columns; those of the output
      matrix in two parts, the second being what the first leaves.
    - Queries, keys, values and attention weights become integers: queries, keys and values with a
      scale per head and position, the weights of a page with the scale of its largest.
    """

    #: Largest quant of a value and of a weight: 64 products of them fit 31 bits.
    largest_value = 8191
    largest_weight = 4096

    @property
    def largest_key(self) -> int:
        """Largest quant of a query or key: products over a head, in whole 16s, fit 31 bits."""
        width = -(-self.head_dim // 16) * 16
        return min(math.isqrt((2**31 - 1) // width), 2**15 - 1)

    def _is_quantised(self, name: str) -> bool:
        return self.types[name] not in FLOAT_TYPES

    def _matmul(self, x: Array, name: str) -> Array:
        return super()._matmul(to_int8(x, 32) if self._is_quantised(name) else x, name)

    def _output(self, x: Array, name: str) -> Array:
        if not self._is_quantised(name):
            return self._matmul(x, name)
        return self._matmul(x, name) + self._matmul(x - to_int8(x, 32), name)

    def _mix(
        self, queries: Array, keys: Array, values: Array, seen: npt.NDArray[np.bool_]
    ) -> Array:
        log2_e = math.log2(math.e)
        to_log2 = self.dtype(log2_e * self.score_scale)
        queries, query_scales = to_fixed(queries * to_log2, self.largest_key)
        keys, key_scales = to_fixed(keys, self.largest_key)
        values, value_scales = to_fixed(values, self.largest_value)
        # The scale of a value is a part of its weight.
        biases = np.log2(value_scales).T
        scores = (queries @ keys.T) * (query_scales @ key_scales.T)
        scores = np.where(seen, capped(scores, log2_e * self._score_cap()) + biases, -np.inf)
        scores, inverses = by_page(scores, -np.inf), by_page(1 / value_scales.T, 0)

        maxima = np.maximum(scores.max(-1, keepdims=True), -1e30)  # of a page out of sight
        powers = np.exp2(scores - maxima)
        shares = np.exp2(maxima - maxima.max(1, keepdims=True))
        sums = (powers * inverses * shares).sum((1, 2))[:, None]
        weights = np.rint(powers * self.largest_weight) / self.largest_weight * shares
        weights = weights.reshape(len(weights), -1)[:, : len(values)]
        return np.asarray((weights @ values / sums).astype(self.dtype))


class CandleReference(Reference):
    """Rounds as candle does: inputs to int8, with a scale for as many columns as a block has."""

    def _matmul(self, x: Array, name: str) -> Array:
        dtype = self.types[name]
        return super()._matmul(x if dtype in FLOAT_TYPES else to_int8(x, block_len(dtype)), name)


def to_int8(x: Array, columns: int) -> Array:
    """Round to the nearest of 255 steps that span the largest magnitude of each so many columns."""
    blocks = x.reshape(len(x), -1, columns)
    quants, scales = to_steps(blocks, np.abs(blocks).max(-1, keepdims=True), 127)
    return np.asarray((quants * scales).reshape(x.shape))


def to_fixed(rows: Array, largest: int) -> tuple[Array, Array]:
    """Quants up to `largest`, and the scale of each row; next to zero steps are no finer."""
    return to_steps(rows, np.maximum(np.abs(rows).max(-1, keepdims=True), 2.0**-11), largest)


def to_steps(x: Array, most: Any, largest: int) -> tuple[Array, Array]:
    """Quants of `x`, `largest` for `most`, and their scales: computed in float32, as engines do."""
    most = np.where(most == 0, 1, most).astype(np.float32)
    quants = np.rint(x.astype(np.float64) * (np.float32(largest) / most))
    scales = most / np.float32(largest)
    return quants.astype(x.dtype), scales.astype(x.dtype)


def by_page(columns: Array, filling: float) -> npt.NDArray[Any]:
    """Cut columns into pages, of which the last is filled up: [rows, pages, PAGE]."""
    missing = -columns.shape[1] % PAGE
    padded = np.pad(columns, ((0, 0), (0, missing)), constant_values=filling)
    return padded.reshape(len(columns), -1, PAGE)
