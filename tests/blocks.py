"""Random tensors of every type a model file may hold.

The `gguf` package quantises the simple types. For the others any bytes are a valid block as long as
its half-precision scales are, so random bytes get scales that give the values the wanted spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize, quantize

FLOAT_TYPES = ("F32", "F16", "BF16")
SMALL_BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
QUANT_TYPES = (*FLOAT_TYPES, *SMALL_BLOCKS, *K_QUANTS)


@dataclass(frozen=True)
class _Scales:
    """Where a block keeps its scales, and how large its minimum must be to centre the values."""

    scale_at: int
    minimum_at: int | None = None
    middle: float = 0.0  # mean of the unsigned quants: minimum = scale x middle centres them


_RANDOM_BLOCKS = {
    "Q2_K": _Scales(80, 82, 1.5),
    "Q3_K": _Scales(108),
    "Q4_K": _Scales(0, 2, 7.5),
    "Q5_K": _Scales(0, 2, 15.5),
    "Q6_K": _Scales(208),
    "IQ4_NL": _Scales(0),
    "IQ4_XS": _Scales(0),
}


def tensor_type(name: str) -> gguf.GGMLQuantizationType:
    """Look up ggml's type by the name users know."""
    return gguf.GGMLQuantizationType[name]


def block_len(name: str) -> int:
    """Weights in one block of the type."""
    return int(gguf.GGML_QUANT_SIZES[tensor_type(name)][0])


def random_tensor(
    rng: np.random.Generator, shape: tuple[int, int], spread: float, name: str
) -> npt.NDArray[Any]:
    """Draw a matrix of type `name` whose values have standard deviation `spread`.

    Returns the array that `GGUFWriter.add_tensor` takes: floats, or bytes [rows, bytes per row].
    """
    if name in _RANDOM_BLOCKS:
        return _random_blocks(rng, shape, spread, name)
    values = rng.normal(0, spread, shape).astype(np.float32)
    if name == "F32":
        return values
    if name == "F16":
        return values.astype(np.float16)
    return np.asarray(quantize(values, tensor_type(name)))


def _random_blocks(
    rng: np.random.Generator, shape: tuple[int, int], spread: float, name: str
) -> npt.NDArray[np.uint8]:
    rows, columns = shape
    length, size = gguf.GGML_QUANT_SIZES[tensor_type(name)]
    blocks = rng.integers(0, 256, (rows * columns // length, size), dtype=np.uint8)
    where = _RANDOM_BLOCKS[name]

    def set_scale(scale: npt.NDArray[np.float64]) -> None:
        def put(offset: int, value: npt.NDArray[np.float64]) -> None:
            halves = value.astype("<f2").reshape(-1, 1)
            blocks[:, offset : offset + 2] = halves.view(np.uint8)

        put(where.scale_at, scale)
        if where.minimum_at is not None:
            put(where.minimum_at, scale * where.middle)

    jitter = rng.uniform(0.5, 1.5, len(blocks))
    set_scale(jitter)
    set_scale(jitter * spread / dequantize(blocks, tensor_type(name)).std())
    return blocks.reshape(rows, -1)
