"""The names of the tensors in a model file: the one list of them in Python."""

from __future__ import annotations

EMBEDDING = "token_embd.weight"
OUTPUT_NORM = "output_norm.weight"
OUTPUT = "output.weight"  # absent: the embedding serves
ROPE_DIVISORS = "rope_freqs.weight"
ROPE_DIVISORS_SHORT = "rope_factors_short.weight"  # for sessions within the original context
ROPE_DIVISORS_LONG = "rope_factors_long.weight"  # for those beyond it


def bias(matrix: str) -> str:
    """Name what is added to the products with a matrix."""
    return matrix.removesuffix("weight") + "bias"


class Block:
    """The names of the tensors of one block, by what they are to it."""

    def __init__(self, index: int) -> None:
        def name(stem: str) -> str:
            return f"blk.{index}.{stem}.weight"

        self.attn_norm = name("attn_norm")
        self.attn_q = name("attn_q")
        self.attn_k = name("attn_k")
        self.attn_v = name("attn_v")
        self.attn_qkv = name("attn_qkv")  # the rows of these three
        self.attn_q_norm = name("attn_q_norm")
        self.attn_k_norm = name("attn_k_norm")
        self.attn_output = name("attn_output")
        self.post_attention_norm = name("post_attention_norm")
        self.ffn_norm = name("ffn_norm")
        self.ffn_gate = name("ffn_gate")  # absent: its rows come first in ffn_up
        self.ffn_up = name("ffn_up")
        self.ffn_down = name("ffn_down")
        self.post_ffw_norm = name("post_ffw_norm")
