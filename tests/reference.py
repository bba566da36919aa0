"""The oracle: a forward in numpy on dequantised weights, written to be read.

It shares nothing with the engine: the `gguf` package reads the file and dequantises, every position
is computed at once, and nothing is cached or fused. Slow; keep to a few hundred tokens.
`rounded.py` has the same forward with the roundings of an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

from tensors import EMBEDDING, OUTPUT, OUTPUT_NORM, ROPE_DIVISORS, Block

Array: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Family:
    """The facts by which a family of models differs from Llama: one switch for each."""

    no_rope_period: int | None = None  # the last of so many blocks turns no queries and keys


FAMILIES = {"llama": Family(), "smollm3": Family(no_rope_period=4)}


class Reference:
    """An exact model of the file at `path` (the only part, if it is split), computed in `dtype`."""

    def __init__(self, path: Path, dtype: type[np.floating[Any]] = np.float32) -> None:
        reader = GGUFReader(path)
        self.dtype = dtype
        self.metadata = {key: field.contents() for key, field in reader.fields.items()}
        self.types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
        self.weights: dict[str, Array] = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(dtype)
            for tensor in reader.tensors
        }
        self.family = FAMILIES[self.metadata["general.architecture"]]
        self.n_layer = int(self._config("block_count"))
        self.n_head = int(self._config("attention.head_count"))
        self.n_head_kv = int(self._config("attention.head_count_kv", self.n_head))
        self.rms_eps = float(self._config("attention.layer_norm_rms_epsilon"))
        width = int(self._config("embedding_length"))
        self.head_dim = int(self._config("attention.key_length", width // self.n_head))
        self.score_scale = self.head_dim**-0.5

    def _config(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.metadata['general.architecture']}.{key}", default)

    def logits(self, tokens: Sequence[int]) -> Array:
        """Compute the logits after each of `tokens`: [len(tokens), n_vocab]."""
        x = self.weights[EMBEDDING][list(tokens)]
        angles = self._angles(len(tokens))
        for layer in range(self.n_layer):
            block = Block(layer)
            turns = angles if self._rotates(layer) else np.zeros_like(angles)
            x = x + self._attention(self._norm(x, block.attn_norm), block, turns)
            x = x + self._feed_forward(self._norm(x, block.ffn_norm), block)
        output = OUTPUT if OUTPUT in self.weights else EMBEDDING
        return self._output(self._norm(x, OUTPUT_NORM), output)

    def _matmul(self, x: Array, name: str) -> Array:
        return x @ self.weights[name].T

    def _output(self, x: Array, name: str) -> Array:
        return self._matmul(x, name)

    def _norm(self, x: Array, name: str) -> Array:
        mean_square = np.square(x, dtype=np.float64).mean(-1, keepdims=True)
        normed = (x / np.sqrt(mean_square + self.rms_eps)).astype(self.dtype)
        return normed * self.weights[name]

    def _angles(self, length: int) -> npt.NDArray[np.float64]:
        """By how much each pair is turned at each position: [length, 1, head_dim / 2]."""
        pairs = np.arange(0, self.head_dim, 2, dtype=np.float64)
        frequency = float(self._config("rope.freq_base", 10000.0)) ** (-pairs / self.head_dim)
        if self._config("rope.scaling.type") == "linear":
            frequency = frequency / float(self._config("rope.scaling.factor"))
        if ROPE_DIVISORS in self.weights:
            frequency = frequency / self.weights[ROPE_DIVISORS]
        return np.outer(np.arange(length), frequency)[:, None, :]

    def _rotates(self, layer: int) -> bool:
        """Whether a block turns queries and keys at all."""
        period = self.family.no_rope_period
        return period is None or (layer + 1) % period != 0

    def _rotate(self, heads: Array, angles: npt.NDArray[np.float64]) -> Array:
        """Turn the pairs (2i, 2i + 1) of every head: the layout of llama files."""
        cos, sin = np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)
        even, odd = heads[..., 0::2], heads[..., 1::2]
        turned = np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
        return turned.reshape(heads.shape)

    def _attention(self, x: Array, block: Block, angles: npt.NDArray[np.float64]) -> Array:
        def heads(name: str, count: int) -> Array:
            return self._matmul(x, name).reshape(len(x), count, self.head_dim)

        queries = self._rotate(heads(block.attn_q, self.n_head), angles)
        keys = self._rotate(heads(block.attn_k, self.n_head_kv), angles)
        values = heads(block.attn_v, self.n_head_kv)
        mixed = np.empty_like(queries)
        for head in range(self.n_head):
            kv = self._kv_head(head)
            mixed[:, head] = self._mix(queries[:, head], keys[:, kv], values[:, kv])
        return self._matmul(mixed.reshape(len(x), -1), block.attn_output)

    def _kv_head(self, head: int) -> int:
        """Which key/value head a query head attends to: neighbours share one."""
        return head * self.n_head_kv // self.n_head

    def _mix(self, queries: Array, keys: Array, values: Array) -> Array:
        """Mix the values of one head as its queries and keys say: all [length, head_dim]."""
        scores = causal(queries @ keys.T * self.dtype(self.score_scale))
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return (powers / powers.sum(-1, keepdims=True)) @ values

    def _feed_forward(self, x: Array, block: Block) -> Array:
        gate, up = self._matmul(x, block.ffn_gate), self._matmul(x, block.ffn_up)
        return self._matmul(gate / (1 + np.exp(-gate)) * up, block.ffn_down)


def causal(scores: Array) -> Array:
    """Hide from every position what comes after it."""
    return np.where(np.tri(*scores.shape) > 0, scores, scores.dtype.type(-np.inf))


def kl(exact: Array, logits: Array) -> npt.NDArray[np.float64]:
    """Compute KL(exact || logits) of each row, in nats."""
    p, q = _log_softmax(exact), _log_softmax(logits)
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def _log_softmax(logits: Array) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
