"""The names of the tensors in a model file: the one list of them in Python."""

from __future__ import annotations

from typing import NamedTuple


class Stem:
    """The middles of names: `blk.3.attn_q.weight` is the matrix of queries of block 3."""

    EMBEDDING = "token_embd"
    ATTN_NORM = "attn_norm"
    ATTN_Q = "attn_q"
    ATTN_K = "attn_k"
    ATTN_V = "attn_v"
    ATTN_QKV = "attn_qkv"  # the rows of these three
    ATTN_Q_NORM = "attn_q_norm"
    ATTN_K_NORM = "attn_k_norm"
    ATTN_OUTPUT = "attn_output"
    POST_ATTENTION_NORM = "post_attention_norm"
    FFN_NORM = "ffn_norm"
    FFN_GATE = "ffn_gate"  # absent: its rows come first in ffn_up
    FFN_UP = "ffn_up"
    FFN_DOWN = "ffn_down"
    FFN_ROUTER = "ffn_gate_inp"
    FFN_GATE_EXPERTS = "ffn_gate_exps"
    FFN_UP_EXPERTS = "ffn_up_exps"
    FFN_DOWN_EXPERTS = "ffn_down_exps"
    FFN_GATE_SHARED = "ffn_gate_shexp"
    FFN_UP_SHARED = "ffn_up_shexp"
    FFN_DOWN_SHARED = "ffn_down_shexp"
    POST_FFW_NORM = "post_ffw_norm"
    OUTPUT_NORM = "output_norm"
    OUTPUT = "output"  # absent: the embedding serves


def weight(stem: str) -> str:
    """Name the tensor of a stem that belongs to no block."""
    return f"{stem}.weight"


def bias(matrix: str) -> str:
    """Name what is added to the products with a matrix."""
    return matrix.removesuffix("weight") + "bias"


def stem_of(name: str) -> str:
    """Take the block and the ending off the name of a tensor."""
    return name.split(".")[-2]


EMBEDDING = weight(Stem.EMBEDDING)
OUTPUT_NORM = weight(Stem.OUTPUT_NORM)
OUTPUT = weight(Stem.OUTPUT)
ROPE_DIVISORS = "rope_freqs.weight"
ROPE_DIVISORS_SHORT = "rope_factors_short.weight"  # for sessions within the original context
ROPE_DIVISORS_LONG = "rope_factors_long.weight"  # for those beyond it


class FeedForward(NamedTuple):
    """The names of the matrices of a feed-forward layer, or of stacks of them."""

    gate: str
    up: str
    down: str

    def expert(self, index: int) -> FeedForward:
        """Name one of a stack, which files do not."""
        return FeedForward(*(f"{name.removesuffix('weight')}{index}.weight" for name in self))


class Block:
    """The names of the tensors of one block, by what they are to it."""

    def __init__(self, index: int) -> None:
        def name(stem: str) -> str:
            return f"blk.{index}.{weight(stem)}"

        self.attn_norm = name(Stem.ATTN_NORM)
        self.attn_q = name(Stem.ATTN_Q)
        self.attn_k = name(Stem.ATTN_K)
        self.attn_v = name(Stem.ATTN_V)
        self.attn_qkv = name(Stem.ATTN_QKV)
        self.attn_q_norm = name(Stem.ATTN_Q_NORM)
        self.attn_k_norm = name(Stem.ATTN_K_NORM)
        self.attn_output = name(Stem.ATTN_OUTPUT)
        self.post_attention_norm = name(Stem.POST_ATTENTION_NORM)
        self.ffn_norm = name(Stem.FFN_NORM)
        self.ffn_gate = name(Stem.FFN_GATE)
        self.ffn_up = name(Stem.FFN_UP)
        self.ffn_down = name(Stem.FFN_DOWN)
        self.router = name(Stem.FFN_ROUTER)
        self.experts = FeedForward(
            name(Stem.FFN_GATE_EXPERTS), name(Stem.FFN_UP_EXPERTS), name(Stem.FFN_DOWN_EXPERTS)
        )
        self.shared_expert = FeedForward(
            name(Stem.FFN_GATE_SHARED), name(Stem.FFN_UP_SHARED), name(Stem.FFN_DOWN_SHARED)
        )
        self.post_ffw_norm = name(Stem.POST_FFW_NORM)

    @property
    def feed_forward(self) -> FeedForward:
        """The matrices of the feed-forward layer."""
        return FeedForward(self.ffn_gate, self.ffn_up, self.ffn_down)
