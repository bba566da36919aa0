"""The families of models, for the oracle: one switch for each fact by which one differs from Llama.

Keys stand without the architecture in front. What else a file says (widths, epsilon, the kind of
rotary embedding, which biases there are and which matrices are in one) is read in any family.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

#: As `Family.window_period`: there are windows in all blocks.
EVERY_BLOCK = 0


@dataclass(frozen=True)
class Family:
    """What a decoder does; the defaults are Llama's.

    A number with a key is what a file without the key means, and None that the key is not read.
    """

    # The rotary embedding turns the pairs (i, i + r / 2), not (2i, 2i + 1), of the first r values.
    neox: bool = False
    # The last of so many blocks turns no queries and keys.
    no_rope_period: int | None = None
    # rope.scaling.finetuned = false: none does.
    rope_can_be_off: bool = False

    # RMSNorm of queries and keys, before they are turned: of each head or of all heads as one.
    query_key_norm: Literal["head", "vector"] | None = None
    # RMSNorm of what goes into attention and the feed-forward layer, and of what comes out.
    norms_before: bool = True
    norms_after: bool = False
    # The gate of the feed-forward layer: GELU in its tanh form, or SiLU.
    gelu: bool = False
    # What an expert gives is weighted with its share of those a position uses, not of all.
    shares_of_used: bool = True
    # Embeddings are multiplied by the root of their width.
    root_of_width: bool = False
    # Models of so many blocks divide scores by sqrt(embedding_length / head_count), not by the
    # root of a head's width.
    scores_by_embedding_at: int | None = None

    # attention.sliding_window: a position sees so many, itself the last; 0: all.
    window: int | None = None
    # attention.sliding_window_pattern: the last of so many blocks sees all.
    window_period: int = EVERY_BLOCK
    # Blocks with a window rotate without any scaling, ...
    plain_rope_in_windows: bool = False
    # ... and with the base rope.freq_base_swa; None: that of the others.
    window_rope_base: float | None = None

    # attn_logit_softcapping and final_logit_softcapping: scores and logits stay below; 0: any.
    score_cap: float | None = None
    logit_cap: float | None = None
    # embedding_scale, residual_scale, attention.scale, logit_scale.
    scales: bool = False
    # attention.temperature_scale: queries far out are longer.
    temperature: bool = False


_GEMMA = Family(neox=True, norms_after=True, gelu=True, root_of_width=True, window=0, logit_cap=0.0)

FAMILIES = {
    "llama": Family(),
    "mistral3": Family(temperature=True),
    "qwen2": Family(neox=True),
    "qwen3": Family(neox=True, query_key_norm="head"),
    "qwen3moe": Family(neox=True, query_key_norm="head"),
    "phi3": Family(neox=True, window=0),
    "granite": Family(scales=True, rope_can_be_off=True),
    "granitemoe": Family(scales=True, rope_can_be_off=True),
    "smollm3": Family(no_rope_period=4),
    "gemma2": replace(
        _GEMMA,
        window=4096,
        window_period=2,
        score_cap=50.0,
        logit_cap=30.0,
        scores_by_embedding_at=46,
    ),
    "gemma3": replace(
        _GEMMA,
        query_key_norm="head",
        window_period=6,
        plain_rope_in_windows=True,
        window_rope_base=10000.0,
        scores_by_embedding_at=62,
    ),
    "olmo2": Family(
        neox=True,
        query_key_norm="vector",
        norms_before=False,
        norms_after=True,
        window=0,
        window_period=4,
        plain_rope_in_windows=True,
    ),
    "glm4": Family(norms_after=True),
}
