"""The oracle: a forward in float32 numpy on dequantised weights, written to be read.

It shares nothing with the engine: the `gguf` package reads the file and dequantises, every position
is computed at once, and nothing is cached or fused. Slow; keep to a few hundred tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

from blocks import FLOAT_TYPES
from tensors import EMBEDDING, OUTPUT, OUTPUT_NORM, ROPE_DIVISORS, Block

Array: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Family:
    """The facts by which a family of models differs from Llama: one switch for each."""

    no_rope_period: int | None = None  # the last of so many blocks turns no queries and keys


FAMILIES = {"llama": Family(), "smollm3": Family(no_rope_period=4)}


class Reference:
    """An exact model of the file at `path` (the only part, if it is split).

    With `rounded`, numbers are rounded where the engine rounds them by design: the inputs of
    quantised matrices to int8 per 32 columns, cached keys and values to float16. The distance of
    the rounded from the exact oracle is the error the engine may make; see `test_logits.py`.
    """

    def __init__(self, path: Path, *, rounded: bool = False) -> None:
        reader = GGUFReader(path)
        self.rounded = rounded
        self.quantised = {
            tensor.name for tensor in reader.tensors if tensor.tensor_type.name not in FLOAT_TYPES
        }
        self.metadata = {key: field.contents() for key, field in reader.fields.items()}
        self.weights: dict[str, Array] = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in reader.tensors
        }
        self.family = FAMILIES[self.metadata["general.architecture"]]
        self.n_layer = int(self._config("block_count"))
        self.n_head = int(self._config("attention.head_count"))
        self.n_head_kv = int(self._config("attention.head_count_kv", self.n_head))
        self.rms_eps = float(self._config("attention.layer_norm_rms_epsilon"))
        width = int(self._config("embedding_length"))
        self.head_dim = int(self._config("attention.key_length", width // self.n_head))

    def _config(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.metadata['general.architecture']}.{key}", default)

    def logits(self, tokens: Sequence[int]) -> Array:
        """Compute the logits after each of `tokens`: float32 [len(tokens), n_vocab]."""
        embedding = self.weights[EMBEDDING]
        x = embedding[list(tokens)]
        rotation = self._rotation(len(tokens))
        for layer in range(self.n_layer):
            block = Block(layer)
            turn = rotation if self._rotates(layer) else np.ones_like(rotation)
            x = x + self._attention(self._norm(x, block.attn_norm), block, turn)
            x = x + self._feed_forward(self._norm(x, block.ffn_norm), block)
        x = self._norm(x, OUTPUT_NORM)
        return self._matmul(x, OUTPUT if OUTPUT in self.weights else EMBEDDING)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """Continue `tokens` by `count` greedy ids."""
        ids = list(tokens)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(tokens) :]

    def _matmul(self, x: Array, name: str) -> Array:
        if self.rounded and name in self.quantised:
            x = _to_int8(x)
        return x @ self.weights[name].T

    def _norm(self, x: Array, name: str) -> Array:
        mean_square = np.square(x, dtype=np.float64).mean(-1, keepdims=True)
        normed = (x / np.sqrt(mean_square + self.rms_eps)).astype(np.float32)
        return normed * self.weights[name]

    def _rotation(self, length: int) -> npt.NDArray[np.complex64]:
        """The turn of each pair at each position: unit complex [length, 1, head_dim / 2]."""
        pairs = np.arange(0, self.head_dim, 2, dtype=np.float64)
        frequency = float(self._config("rope.freq_base", 10000.0)) ** (-pairs / self.head_dim)
        if self._config("rope.scaling.type") == "linear":
            frequency = frequency / float(self._config("rope.scaling.factor"))
        if ROPE_DIVISORS in self.weights:
            frequency = frequency / self.weights[ROPE_DIVISORS]
        angle = np.outer(np.arange(length), frequency)
        return np.exp(1j * angle).astype(np.complex64)[:, None, :]

    def _rotates(self, layer: int) -> bool:
        """Whether a block turns queries and keys at all."""
        period = self.family.no_rope_period
        return period is None or (layer + 1) % period != 0

    def _attention(self, x: Array, block: Block, rotation: npt.NDArray[np.complex64]) -> Array:
        def heads(name: str, count: int) -> Array:
            return self._matmul(x, name).reshape(len(x), count, self.head_dim)

        q = _rotate(heads(block.attn_q, self.n_head), rotation)
        k = _rotate(heads(block.attn_k, self.n_head_kv), rotation)
        v = heads(block.attn_v, self.n_head_kv)
        if self.rounded:
            k, v = (cached.astype(np.float16).astype(np.float32) for cached in (k, v))
        queries_per_kv = self.n_head // self.n_head_kv
        k, v = k.repeat(queries_per_kv, axis=1), v.repeat(queries_per_kv, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k, optimize=True) / np.float32(self.head_dim**0.5)
        future = np.triu(np.ones((len(x), len(x)), bool), 1)
        probabilities = _softmax(np.where(future, np.float32(-np.inf), scores))
        mixed = np.einsum("hqk,khd->qhd", probabilities, v, optimize=True)
        return self._matmul(mixed.reshape(len(x), -1), block.attn_output)

    def _feed_forward(self, x: Array, block: Block) -> Array:
        gate, up = self._matmul(x, block.ffn_gate), self._matmul(x, block.ffn_up)
        return self._matmul(gate / (1 + np.exp(-gate)) * up, block.ffn_down)


def _rotate(heads: Array, rotation: npt.NDArray[np.complex64]) -> Array:
    """Turn the pairs (2i, 2i + 1) of every head: the layout of llama files."""
    turned = np.ascontiguousarray(heads).view(np.complex64) * rotation
    return turned.view(np.float32)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _to_int8(x: Array) -> Array:
    """Round to the nearest of 255 steps that span the largest magnitude of each 32 columns."""
    blocks = x.reshape(len(x), -1, 32)
    step = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    step[step == 0] = 1
    return (np.rint(blocks / step) * step).reshape(x.shape)


def kl(exact: Array, logits: Array) -> npt.NDArray[np.float64]:
    """Compute KL(exact || logits) of each row, in nats."""
    p, q = _log_softmax(exact), _log_softmax(logits)
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def _log_softmax(logits: Array) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
