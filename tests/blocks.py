"""Random tensors of every type a model file may hold, the same bytes with every version of numpy.

Any bytes are valid blocks as long as their half-precision scales are, so blocks are random bytes
whose scales give the weights the wanted spread. Nothing depends on numpy's generators, which may
change from version to version, or on the order of a sum: numbers come from integers alone, and
each float from single operations of IEEE 754.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

FLOAT_TYPES = ("F32", "F16", "BF16")
SMALL_BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
QUANT_TYPES = (*FLOAT_TYPES, *SMALL_BLOCKS, *K_QUANTS)


@dataclass(frozen=True)
class _Scales:
    """Where a block keeps its scales, and what random quants are like before they are scaled."""

    scale_at: int
    deviation: float  # of weights whose scale is 1
    minimum_at: int | None = None
    minimum: float = 0.0  # centres the weights whose scale is 1


_SCALES = {
    "Q4_0": _Scales(0, 4.61),
    "Q4_1": _Scales(0, 4.61, 2, -7.5),
    "Q5_0": _Scales(0, 9.23),
    "Q5_1": _Scales(0, 9.23, 2, -15.5),
    "Q8_0": _Scales(0, 73.9),
    "Q2_K": _Scales(80, 13.9, 82, 1.5),
    "Q3_K": _Scales(108, 43.3),
    "Q4_K": _Scales(0, 258.0, 2, 7.5),
    "Q5_K": _Scales(0, 527.0, 2, 15.5),
    "Q6_K": _Scales(208, 1366.0),
    "IQ4_NL": _Scales(0, 67.2),
    "IQ4_XS": _Scales(0, 1246.0),
}


class Random:
    """The numbers that belong to a seed and a name (SplitMix64, Steele et al., 2014)."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        self.state = int.from_bytes(digest[:8], "little")

    def bytes(self, count: int) -> npt.NDArray[np.uint8]:
        """Draw `count` bytes."""
        step, words = 0x9E3779B97F4A7C15, -(-count // 8)
        z = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(step) + np.uint64(self.state)
        self.state = (self.state + words * step) % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray(z.astype("<u8").view(np.uint8)[:count])

    def normal(self, count: int) -> npt.NDArray[np.float64]:
        """Draw nearly normal numbers: the sum of twelve uniform ones has variance 1."""
        twelve = self.bytes(24 * count).view("<u2").reshape(-1, 12)
        return np.asarray((twelve.sum(1, dtype=np.int64) - 6 * 0xFFFF) / 2.0**16)


def tensor_type(name: str) -> gguf.GGMLQuantizationType:
    """Look up ggml's type by the name users know."""
    return gguf.GGMLQuantizationType[name]


def block_len(name: str) -> int:
    """Weights in one block of the type."""
    return int(gguf.GGML_QUANT_SIZES[tensor_type(name)][0])


def random_tensor(
    random: Random, shape: tuple[int, int], spread: float, name: str
) -> npt.NDArray[Any]:
    """Draw a matrix of type `name` whose values have about the standard deviation `spread`.

    Returns the array that `GGUFWriter.add_tensor` takes: floats, or bytes [rows, bytes per row].
    """
    if name in _SCALES:
        return _random_blocks(random, shape, spread, name)
    values = (random.normal(shape[0] * shape[1]) * spread).astype(np.float32).reshape(shape)
    if name == "F32":
        return values
    if name == "F16":
        return values.astype(np.float16)
    return np.ascontiguousarray(values.view("<u2")[:, 1::2]).view(np.uint8)  # upper halves


def _random_blocks(
    random: Random, shape: tuple[int, int], spread: float, name: str
) -> npt.NDArray[np.uint8]:
    rows, columns = shape
    length, size = gguf.GGML_QUANT_SIZES[tensor_type(name)]
    count, scales = rows * columns // length, _SCALES[name]
    blocks = random.bytes(count * size).reshape(count, size)
    # Scales differ by a factor of up to three.
    scale = (random.bytes(count) / 256.0 + 0.5) * (spread / scales.deviation)

    def put(offset: int, values: npt.NDArray[np.float64]) -> None:
        blocks[:, offset : offset + 2] = values.astype("<f2").reshape(-1, 1).view(np.uint8)

    put(scales.scale_at, scale)
    if scales.minimum_at is not None:
        put(scales.minimum_at, scale * scales.minimum)
    return blocks.reshape(rows, -1)
