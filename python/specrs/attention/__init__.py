"""Sparse attention for long prompts: patterns choose which blocks of 64 positions are looked at.

Only the prompt is ever attended to sparsely. Decoding and the verification of drafts look at
everything, so speculation after a sparse prefill gives the tokens of plain decoding after it.

>>> pattern = DenseBelow(2048, SinkWindow(window=1024))
>>> llm.generate(long_prompt, attention=pattern)
"""

from .choice import Attention, parse
from .compare import compare
from .patterns import (
    Antidiagonal,
    BlockMean,
    Custom,
    DenseBelow,
    DenseLayers,
    DenseTail,
    LayerSplit,
    Pattern,
    SinkWindow,
    SinkWindowLog,
)

__all__ = [
    "Antidiagonal",
    "Attention",
    "BlockMean",
    "Custom",
    "DenseBelow",
    "DenseLayers",
    "DenseTail",
    "LayerSplit",
    "Pattern",
    "SinkWindow",
    "SinkWindowLog",
    "compare",
    "parse",
]
