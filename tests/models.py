"""Small random model files, written by the `gguf` package: a writer that is not ours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from blocks import K_QUANTS, Random, random_tensor, tensor_type
from families import FAMILIES, Family
from tensors import (
    EMBEDDING,
    OUTPUT,
    OUTPUT_NORM,
    ROPE_DIVISORS,
    ROPE_DIVISORS_LONG,
    ROPE_DIVISORS_SHORT,
    Block,
    Stem,
    bias,
    stem_of,
)
from vocabulary import CHAT_TEMPLATE, Vocabulary, bpe, spm, vocabulary_of

#: Standard deviation of what a matrix makes of numbers whose own is one, by the stem of its name.
GAINS = {
    Stem.EMBEDDING: 3.0,
    Stem.ATTN_Q: 1.5,
    Stem.ATTN_K: 1.5,
    Stem.ATTN_V: 1.0,
    Stem.ATTN_QKV: 1.5,
    Stem.ATTN_OUTPUT: 2.0,
    Stem.FFN_GATE: 1.0,
    Stem.FFN_UP: 1.5,
    Stem.FFN_DOWN: 2.0,
    Stem.FFN_ROUTER: 2.0,
    Stem.FFN_GATE_EXPERTS: 1.0,
    Stem.FFN_UP_EXPERTS: 1.5,
    Stem.FFN_DOWN_EXPERTS: 3.0,
    Stem.FFN_GATE_SHARED: 1.0,
    Stem.FFN_UP_SHARED: 1.5,
    Stem.FFN_DOWN_SHARED: 1.5,
    Stem.OUTPUT: 3.0,
}


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What a test model is like; every option of `write_model` with its default.

    Widths are 64 (256 for the K-quants, whose rows are whole blocks of 256 weights); the
    feed-forward width is no power of two.
    """

    quant: str = "F32"
    types: Mapping[str, str] = field(default_factory=dict)  # tensor name -> type, over `quant`
    n_layer: int = 2
    n_embd: int | None = None
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int | None = None  # None: n_embd / n_head, and no attention.key_length in the file
    n_ff: int | None = None
    experts: int = 0  # in place of the feed-forward layer
    experts_used: int = 2
    expert_ff: int | None = None  # None: n_ff, and no expert_feed_forward_length in the file
    shared_expert_ff: int = 0  # 0: there is no expert that every position uses
    n_vocab: int | None = None  # None: as many as there are tokens; more: padded with unused ones
    n_ctx: int = 512
    rms_eps: float = 0.01  # large, so that it makes a difference
    rope_base: float = 10000.0
    rope_dims: int | None = None  # None: the whole head
    rope_linear: float | None = None
    rope_divisors: tuple[float, ...] | None = None
    rope_divisors_short: tuple[float, ...] | None = None
    rope_divisors_long: tuple[float, ...] | None = None
    biases: tuple[str, ...] = ()  # stems of matrices, such as Stem.ATTN_Q, that have a bias
    fused: tuple[str, ...] = ()  # Stem.ATTN_QKV: with keys, values; FFN_UP: with the gate
    varied_gains: bool = False  # those of norms from 0.5 to 1.5, of either sign; else about 1
    gains: Mapping[str, float] = field(default_factory=dict)  # over GAINS; norms are multiplied
    tied: bool = False  # no output.weight: the embedding serves
    copied: bool = False  # output.weight is a copy of the embedding
    tokenizer: str | Path | Vocabulary = "bpe"  # "bpe", "spm", or a GGUF file to take it from
    chat_template: str | None = CHAT_TEMPLATE
    architecture: str = "llama"
    keys: Mapping[str, Any] = field(default_factory=dict)  # more, without the architecture
    metadata: Mapping[str, Any] = field(default_factory=dict)  # more keys, written last
    extra_tensors: tuple[str, ...] = ()  # names of tensors no decoder knows
    split: int = 0  # tensors per part; 0: one file
    shared: bool = False  # matrices of one shape and type hold the same weights: large files fast
    seed: int = 0

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self.n_embd or (256 if self.needs_wide_rows else 64)

    @property
    def ff_width(self) -> int:
        """Width of the feed-forward layer."""
        return self.n_ff or (256 if self.needs_wide_rows else 96)

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.head_dim or self.width // self.n_head

    @property
    def family(self) -> Family:
        """What the architecture's decoder does; that of an unknown one is written as a Llama."""
        return FAMILIES.get(self.architecture, Family())

    @property
    def needs_wide_rows(self) -> bool:
        """Whether some tensor has blocks of 256 weights."""
        return any(name in K_QUANTS for name in (self.quant, *self.types.values()))

    def vocabulary(self) -> Vocabulary:
        """Build the tokenizer section, padded to the rows of the embedding."""
        if isinstance(self.tokenizer, Vocabulary):
            vocabulary = self.tokenizer
        elif isinstance(self.tokenizer, Path):
            vocabulary = vocabulary_of(self.tokenizer)
        else:
            vocabulary = {"bpe": bpe, "spm": spm}[self.tokenizer]()
        vocabulary.pad(self.n_vocab or len(vocabulary.tokens))
        return vocabulary


def write_model(path: Path, **options: Any) -> Path:
    """Write the model that `ModelSpec(**options)` describes; the same options give the same bytes.

    Returns the file to open: `path`, or the first part of a split model.
    """
    spec = ModelSpec(**options)
    vocabulary = spec.vocabulary()
    writer = gguf.GGUFWriter(path, spec.architecture, split_max_tensors=spec.split)
    _write_config(writer, spec, len(vocabulary.tokens))
    vocabulary.write(writer)
    if spec.chat_template is not None:
        writer.add_chat_template(spec.chat_template)
    keys = {f"{spec.architecture}.{key}": value for key, value in spec.keys.items()}
    for key, value in (keys | dict(spec.metadata)).items():
        _write_value(writer, key, value)
    for name, (tensor, type_name) in _tensors(spec, len(vocabulary.tokens)).items():
        raw = tensor_type(type_name) if tensor.dtype == np.uint8 else None
        writer.add_tensor(name, tensor, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(path.parent.glob(f"{path.stem}-00001-of-*.gguf")) if spec.split else path


def model_hash(path: Path) -> str:
    """Hash what a decoder reads of a file: tensors and architecture, in whatever order."""
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    architecture = f"{fields['general.architecture']}."
    digest = hashlib.sha256()
    for key in sorted(key for key in fields if key.startswith(architecture)):
        digest.update(json.dumps([key, fields[key]]).encode())
    for tensor in sorted(reader.tensors, key=lambda tensor: str(tensor.name)):
        description = [tensor.name, tensor.tensor_type.name, tensor.shape.tolist()]
        digest.update(json.dumps(description).encode())
        digest.update(tensor.data.tobytes())
    return digest.hexdigest()[:16]


def _write_config(writer: gguf.GGUFWriter, spec: ModelSpec, n_vocab: int) -> None:
    writer.add_context_length(spec.n_ctx)
    writer.add_embedding_length(spec.width)
    writer.add_block_count(spec.n_layer)
    writer.add_feed_forward_length(spec.ff_width)
    writer.add_head_count(spec.n_head)
    writer.add_head_count_kv(spec.n_head_kv)
    writer.add_layer_norm_rms_eps(spec.rms_eps)
    writer.add_rope_freq_base(spec.rope_base)
    writer.add_rope_dimension_count(spec.rope_dims or spec.head_width)
    writer.add_vocab_size(n_vocab)
    if spec.head_dim is not None:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    if spec.experts:
        writer.add_expert_count(spec.experts)
        writer.add_expert_used_count(spec.experts_used)
        if spec.expert_ff is not None:
            writer.add_expert_feed_forward_length(spec.expert_ff)
        if spec.shared_expert_ff:
            writer.add_expert_shared_feed_forward_length(spec.shared_expert_ff)
    if spec.rope_linear is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.rope_linear)


def _write_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: no rule for {type(value).__name__}")


def _tensors(spec: ModelSpec, n_vocab: int) -> dict[str, tuple[npt.NDArray[Any], str]]:
    """Draw every tensor, by name, with its type.

    Blocks add about as much to the residual stream as it held, and logits have a standard
    deviation of about three: the context decides the next token, through every part of the model.
    """
    width, ff = spec.width, spec.ff_width
    q_rows, kv_rows = spec.n_head * spec.head_width, spec.n_head_kv * spec.head_width
    tensors: dict[str, tuple[npt.NDArray[Any], str]] = {}
    drawn: dict[tuple[int, int, str], npt.NDArray[Any]] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        type_name = spec.types.get(name, spec.quant)
        spread = (GAINS | dict(spec.gains))[stem_of(name)] / np.sqrt(columns)
        key = (rows, columns, type_name)
        if not spec.shared or key not in drawn:
            drawn[key] = random_tensor(Random(spec.seed, name), (rows, columns), spread, type_name)
        tensors[name] = (drawn[key], type_name)
        if stem_of(name) in spec.biases:
            vector(bias(name), 0.7 * Random(spec.seed, bias(name)).normal(rows))

    def stack(name: str, rows: int, columns: int) -> None:
        matrix(name, spec.experts * rows, columns)
        stacked, type_name = tensors[name]
        tensors[name] = (stacked.reshape(spec.experts, rows, -1), type_name)

    def vector(name: str, values: npt.NDArray[np.float64]) -> None:
        tensors[name] = (values.astype(np.float32), "F32")

    def norm(name: str, length: int) -> None:
        random = Random(spec.seed, name)
        if spec.varied_gains:
            gains = 0.5 + random.bytes(2 * length).view("<u2") / 65535.0
            gains = np.where(random.bytes(length) % 2, gains, -gains)
        else:
            gains = 1.0 + 0.1 * random.normal(length)
        vector(name, gains * spec.gains.get(stem_of(name), 1.0))

    def block_tensors(block: Block) -> None:
        if spec.family.norms_before:
            norm(block.attn_norm, width)
        if Stem.ATTN_QKV in spec.fused:
            matrix(block.attn_qkv, q_rows + 2 * kv_rows, width)
        else:
            matrix(block.attn_q, q_rows, width)
            matrix(block.attn_k, kv_rows, width)
            matrix(block.attn_v, kv_rows, width)
        if spec.family.query_key_norm:
            whole = spec.family.query_key_norm == "vector"
            norm(block.attn_q_norm, q_rows if whole else spec.head_width)
            norm(block.attn_k_norm, kv_rows if whole else spec.head_width)
        matrix(block.attn_output, width, q_rows)
        if spec.family.norms_after:
            norm(block.post_attention_norm, width)
        if spec.family.norms_before:
            norm(block.ffn_norm, width)
        if spec.experts:
            expert_tensors(block)
        else:
            if Stem.FFN_UP not in spec.fused:
                matrix(block.ffn_gate, ff, width)
            matrix(block.ffn_up, 2 * ff if Stem.FFN_UP in spec.fused else ff, width)
            matrix(block.ffn_down, width, ff)
        if spec.family.norms_after:
            norm(block.post_ffw_norm, width)

    def expert_tensors(block: Block) -> None:
        spread = (GAINS | dict(spec.gains))[Stem.FFN_ROUTER] / np.sqrt(width)
        random = Random(spec.seed, block.router)
        router = spread * random.normal(spec.experts * width).reshape(spec.experts, width)
        vector(block.router, router)
        expert_ff = spec.expert_ff or ff
        stack(block.experts.gate, expert_ff, width)
        stack(block.experts.up, expert_ff, width)
        stack(block.experts.down, width, expert_ff)
        if spec.shared_expert_ff:
            matrix(block.shared_expert.gate, spec.shared_expert_ff, width)
            matrix(block.shared_expert.up, spec.shared_expert_ff, width)
            matrix(block.shared_expert.down, width, spec.shared_expert_ff)

    matrix(EMBEDDING, n_vocab, width)
    for layer in range(spec.n_layer):
        block_tensors(Block(layer))
    norm(OUTPUT_NORM, width)
    if spec.copied:
        tensors[OUTPUT] = tensors[EMBEDDING]
    elif not spec.tied:
        matrix(OUTPUT, n_vocab, width)
    for name, divisors in (
        (ROPE_DIVISORS, spec.rope_divisors),
        (ROPE_DIVISORS_SHORT, spec.rope_divisors_short),
        (ROPE_DIVISORS_LONG, spec.rope_divisors_long),
    ):
        if divisors is not None:
            vector(name, np.array(divisors))
    for name in spec.extra_tensors:
        vector(name, 0.1 * Random(spec.seed, name).normal(32))
    return tensors
