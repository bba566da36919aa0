"""The oracle: a forward in numpy on dequantised weights, written to be read.

It shares nothing with the engine: the `gguf` package reads the file and dequantises, every position
is computed at once, and nothing is cached or fused. Slow; keep to a few hundred tokens.
`families.py` says what differs between families, `rotation.py` by how much pairs are turned;
`rounded.py` has the same forward with the roundings of an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

import rotation
from families import EVERY_BLOCK, FAMILIES
from tensors import (
    EMBEDDING,
    OUTPUT,
    OUTPUT_NORM,
    ROPE_DIVISORS,
    ROPE_DIVISORS_LONG,
    ROPE_DIVISORS_SHORT,
    Block,
    FeedForward,
    bias,
)

Array: TypeAlias = npt.NDArray[np.floating[Any]]


class Reference:
    """An exact model of the file at `path` (the only part, if it is split), computed in `dtype`.

    `n_ctx` is how many positions a session holds, by default as many as the file says: files may
    have one rotary embedding for short sessions and one for long ones.
    """

    def __init__(
        self, path: Path, dtype: type[np.floating[Any]] = np.float32, n_ctx: int | None = None
    ) -> None:
        reader = GGUFReader(path)
        self.dtype = dtype
        self.metadata = {key: field.contents() for key, field in reader.fields.items()}
        self.types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
        self.weights: dict[str, Array] = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(dtype)
            for tensor in reader.tensors
        }
        self.family = FAMILIES[self.metadata["general.architecture"]]
        self.n_ctx = n_ctx or int(self._config("context_length"))
        self.n_layer = int(self._config("block_count"))
        self.n_head = int(self._config("attention.head_count"))
        self.n_head_kv = int(self._config("attention.head_count_kv", self.n_head))
        self.rms_eps = float(self._config("attention.layer_norm_rms_epsilon"))
        self.width = int(self._config("embedding_length"))
        self.head_dim = int(self._config("attention.key_length", self.width // self.n_head))
        self.score_scale = self._score_scale()
        #: How far the first expert that was not used was behind the last that was, at least.
        self.smallest_gap = np.inf
        for layer in range(self.n_layer):
            self._take_apart(Block(layer))

    def _config(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.metadata['general.architecture']}.{key}", default)

    def _scale(self, key: str) -> float:
        """Read one of granite's scales; 1 where the file has none, or 0."""
        return float(self._config(key) or 1) if self.family.scales else 1.0

    def _score_scale(self) -> float:
        if self.family.scales and self._config("attention.scale"):
            return float(self._config("attention.scale"))
        if self.n_layer == self.family.scores_by_embedding_at:
            return float((self.width / self.n_head) ** -0.5)
        return float(self.head_dim**-0.5)

    def _take_apart(self, block: Block) -> None:
        """Make matrices of their own of those that a file has as one: nothing else knows of it."""
        kv_rows = self.n_head_kv * self.head_dim
        qkv = (block.attn_q, block.attn_k, block.attn_v)
        if block.attn_qkv in self.weights:
            self._cut(block.attn_qkv, qkv, [-2 * kv_rows, -kv_rows])
        if bias(block.attn_qkv) in self.weights:
            self._cut(bias(block.attn_qkv), tuple(map(bias, qkv)), [-2 * kv_rows, -kv_rows])
        if block.router in self.weights:
            self._take_stacks_apart(block)
        elif block.ffn_gate not in self.weights:
            n_ff = len(self.weights[block.ffn_up]) // 2
            self._cut(block.ffn_up, (block.ffn_gate, block.ffn_up), [n_ff])

    def _take_stacks_apart(self, block: Block) -> None:
        count = len(self.weights[block.router])
        for name, *experts in zip(
            block.experts, *(block.experts.expert(index) for index in range(count)), strict=True
        ):
            dtype, stack = self.types.pop(name), self.weights.pop(name)
            for expert, weights in zip(experts, stack, strict=True):
                self.types[expert], self.weights[expert] = dtype, weights

    def _cut(self, name: str, parts: Sequence[str], rows: list[int]) -> None:
        dtype, whole = self.types.pop(name), self.weights.pop(name)
        for part, weights in zip(parts, np.split(whole, rows), strict=True):
            self.types[part], self.weights[part] = dtype, weights

    def logits(self, tokens: Sequence[int]) -> Array:
        """Compute the logits after each of `tokens`: [len(tokens), n_vocab]."""
        x = self.weights[EMBEDDING][list(tokens)] * self.dtype(self._embedding_scale())
        residual_scale = self.dtype(self._scale("residual_scale"))
        for layer in range(self.n_layer):
            block = Block(layer)
            mixed = self._attention(self._norm_before(x, block.attn_norm), layer)
            x = x + residual_scale * self._norm_after(mixed, block.post_attention_norm)
            changed = self._feed_forward(self._norm_before(x, block.ffn_norm), block)
            x = x + residual_scale * self._norm_after(changed, block.post_ffw_norm)
        output = OUTPUT if OUTPUT in self.weights else EMBEDDING
        logits = self._add_bias(self._output(self._norm(x, OUTPUT_NORM), output), OUTPUT)
        logits = logits / self.dtype(self._scale("logit_scale"))
        return capped(logits, self._logit_cap())

    def _embedding_scale(self) -> float:
        return (
            float(self.width**0.5) if self.family.root_of_width else self._scale("embedding_scale")
        )

    def _logit_cap(self) -> float:
        default = self.family.logit_cap
        return 0.0 if default is None else float(self._config("final_logit_softcapping", default))

    def _score_cap(self) -> float:
        default = self.family.score_cap
        return 0.0 if default is None else float(self._config("attn_logit_softcapping", default))

    def _matmul(self, x: Array, name: str) -> Array:
        return x @ self.weights[name].T

    def _output(self, x: Array, name: str) -> Array:
        return self._matmul(x, name)

    def _linear(self, x: Array, name: str) -> Array:
        return self._add_bias(self._matmul(x, name), name)

    def _add_bias(self, product: Array, name: str) -> Array:
        return product + self.weights[bias(name)] if bias(name) in self.weights else product

    def _norm(self, x: Array, name: str) -> Array:
        mean_square = np.square(x, dtype=np.float64).mean(-1, keepdims=True)
        normed = (x / np.sqrt(mean_square + self.rms_eps)).astype(self.dtype)
        return normed * self.weights[name]

    def _norm_before(self, x: Array, name: str) -> Array:
        return self._norm(x, name) if self.family.norms_before else x

    def _norm_after(self, x: Array, name: str) -> Array:
        return self._norm(x, name) if self.family.norms_after else x

    def _attention(self, x: Array, layer: int) -> Array:
        block = Block(layer)
        queries = self._norm_heads(self._linear(x, block.attn_q), block.attn_q_norm)
        keys = self._norm_heads(self._linear(x, block.attn_k), block.attn_k_norm)
        values = self._heads(self._linear(x, block.attn_v))
        queries = self._rotate(queries, layer) * self._temperatures(len(x))
        keys = self._rotate(keys, layer)
        seen = visible(len(x), self._window(layer))
        mixed = np.empty_like(queries)
        for head in range(self.n_head):
            kv = self._kv_head(head)
            mixed[:, head] = self._mix(queries[:, head], keys[:, kv], values[:, kv], seen)
        return self._linear(mixed.reshape(len(x), -1), block.attn_output)

    def _heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self.head_dim)

    def _norm_heads(self, x: Array, name: str) -> Array:
        """Cut queries or keys into heads, and norm those or the whole before."""
        if self.family.query_key_norm == "vector":
            x = self._norm(x, name)
        heads = self._heads(x)
        return self._norm(heads, name) if self.family.query_key_norm == "head" else heads

    def _kv_head(self, head: int) -> int:
        """Which key/value head a query head attends to: neighbours share one."""
        return head * self.n_head_kv // self.n_head

    def _rotate(self, heads: Array, layer: int) -> Array:
        """Turn pairs among the first values of every head, and leave the others."""
        if not self._rotates(layer):
            return heads
        frequencies, magnitude = self._rotation(layer)
        angles = np.outer(np.arange(len(heads)), frequencies)[:, None, :]
        cos = (magnitude * np.cos(angles)).astype(self.dtype)
        sin = (magnitude * np.sin(angles)).astype(self.dtype)
        r = 2 * len(frequencies)
        halves = slice(r // 2), slice(r // 2, r)
        neighbours = slice(0, r, 2), slice(1, r, 2)
        first, second = halves if self.family.neox else neighbours
        turned = heads.copy()
        turned[..., first] = heads[..., first] * cos - heads[..., second] * sin
        turned[..., second] = heads[..., first] * sin + heads[..., second] * cos
        return turned

    def _rotates(self, layer: int) -> bool:
        """Whether a block turns queries and keys at all."""
        if self.family.rope_can_be_off and not self._config("rope.scaling.finetuned", True):
            return False
        period = self.family.no_rope_period
        return period is None or (layer + 1) % period != 0

    def _rotation(self, layer: int) -> tuple[rotation.Angles, float]:
        """By how much a block turns each pair per position, and what it multiplies them by."""
        base = float(self._config("rope.freq_base", 10000.0))
        pairs = int(self._config("rope.dimension_count", self.head_dim)) // 2
        if self.family.plain_rope_in_windows and self._window(layer):
            default = self.family.window_rope_base or base
            return rotation.plain(float(self._config("rope.freq_base_swa", default)), pairs), 1.0
        frequencies, magnitude = rotation.scaled(self._config, rotation.plain(base, pairs), base)
        beyond = self.n_ctx > rotation.original_context(self._config)
        for name in (ROPE_DIVISORS, ROPE_DIVISORS_LONG if beyond else ROPE_DIVISORS_SHORT):
            frequencies = frequencies / self.weights.get(name, 1.0)
        return frequencies, magnitude

    def _temperatures(self, length: int) -> Array:
        """By what queries are multiplied at each position: [length, 1, 1]."""
        factors = np.ones(length)
        if self.family.temperature:
            original = rotation.original_context(self._config)
            beta = float(self._config("attention.temperature_scale", 0.0))
            factors += beta * np.log(1 + np.arange(length) // original)
        return factors.astype(self.dtype)[:, None, None]

    def _window(self, layer: int) -> int:
        """How many positions a block sees; 0: all that came."""
        if self.family.window is None:
            return 0
        window = int(self._config("attention.sliding_window", self.family.window))
        pattern = self._config("attention.sliding_window_pattern", self.family.window_period)
        if isinstance(pattern, list):
            return window if pattern[layer] else 0
        return window if pattern == EVERY_BLOCK or layer % pattern < pattern - 1 else 0

    def _mix(
        self, queries: Array, keys: Array, values: Array, seen: npt.NDArray[np.bool_]
    ) -> Array:
        """Mix the values of one head as its queries and keys say: all [length, head_dim]."""
        scores = capped(queries @ keys.T * self.dtype(self.score_scale), self._score_cap())
        scores = np.where(seen, scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return (powers / powers.sum(-1, keepdims=True)).astype(self.dtype) @ values

    def _feed_forward(self, x: Array, block: Block) -> Array:
        if block.router not in self.weights:
            return self._gated(x, block.feed_forward)
        mixed = self._experts(x, block)
        if block.shared_expert.gate in self.weights:
            mixed += self._gated(x, block.shared_expert)
        return mixed

    def _gated(self, x: Array, names: FeedForward) -> Array:
        gate, up = self._linear(x, names.gate), self._linear(x, names.up)
        return self._linear(self._activation(gate) * up, names.down)

    def _experts(self, x: Array, block: Block) -> Array:
        """Mix what the experts with the highest logits give, of equal ones the first."""
        used = int(self._config("expert_used_count"))
        logits = self._matmul(x, block.router)
        ranked = np.argsort(-logits, axis=-1, kind="stable")
        sorted_logits = np.take_along_axis(logits, ranked, -1)
        if used < logits.shape[-1]:
            gap = (sorted_logits[:, used - 1] - sorted_logits[:, used]).min()
            self.smallest_gap = min(self.smallest_gap, float(gap))
        shares = self._shares(sorted_logits, used)
        mixed = np.zeros_like(x)
        for expert in np.unique(ranked[:, :used]):
            rows, ranks = np.nonzero(ranked[:, :used] == expert)
            names = block.experts.expert(expert)
            mixed[rows] += shares[rows, ranks, None] * self._gated(x[rows], names)
        return mixed

    def _shares(self, logits: Array, used: int) -> Array:
        """Weigh the experts of each position, whose logits fall."""
        powers = np.exp(logits - logits[:, :1])
        counted = powers[:, :used] if self.family.shares_of_used else powers
        return np.asarray(powers[:, :used] / counted.sum(-1, keepdims=True))

    def _activation(self, x: Array) -> Array:
        if self.family.gelu:
            inner = np.sqrt(2 / np.pi).astype(self.dtype) * (x + self.dtype(0.044715) * x**3)
            return self.dtype(0.5) * x * (1 + np.tanh(inner))
        return x / (1 + np.exp(-x))


def visible(length: int, window: int) -> npt.NDArray[np.bool_]:
    """Tell what each position sees: not what comes after it, and of the rest `window` (0: all)."""
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    return (distance >= 0) & (distance < (window or length))


def capped(x: Array, cap: float) -> Array:
    """Bend `x` so that it stays between -cap and cap; 0: leave it."""
    return (x.dtype.type(cap) * np.tanh(x / x.dtype.type(cap))) if cap else x


def kl(exact: Array, logits: Array) -> npt.NDArray[np.float64]:
    """Compute KL(exact || logits) of each row, in nats."""
    p, q = _log_softmax(exact), _log_softmax(logits)
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def _log_softmax(logits: Array) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
