"""How to switch off, in the oracle, each fact of the models in `family_models.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from family_models import QKV
from reference import Array, Reference
from tensors import ROPE_DIVISORS_LONG, ROPE_DIVISORS_SHORT, Block, Stem, bias

Switch: TypeAlias = Callable[[Reference], None]


def family(**changes: Any) -> Switch:
    """Make it another family in some respect."""

    def switch(oracle: Reference) -> None:
        oracle.family = replace(oracle.family, **changes)

    return switch


def key(name: str, value: Any = None) -> Switch:
    """Let the file say something else, or nothing."""

    def switch(oracle: Reference) -> None:
        full = f"{oracle.metadata['general.architecture']}.{name}"
        assert full in oracle.metadata, full
        del oracle.metadata[full]
        if value is not None:
            oracle.metadata[full] = value

    return switch


def without_bias(stem: str) -> Switch:
    """Leave out the bias of a matrix, in every block."""

    def switch(oracle: Reference) -> None:
        names = [name for name in oracle.weights if name.endswith(f"{stem}.bias")]
        assert names, stem
        for name in names:
            del oracle.weights[name]

    return switch


def exchanged(first: str, second: str) -> Switch:
    """Take one matrix of a block for the other, with what is added to it."""

    def switch(oracle: Reference) -> None:
        for block in map(Block, range(oracle.n_layer)):
            one, other = getattr(block, first), getattr(block, second)
            for a, b in ((one, other), (bias(one), bias(other))):
                if a in oracle.weights:
                    weights = oracle.weights
                    weights[a], weights[b] = weights[b], weights[a]

    return switch


def scores_by_head_width(oracle: Reference) -> None:
    oracle.score_scale = oracle.head_dim**-0.5


def usual_epsilon(oracle: Reference) -> None:
    oracle.rms_eps = 1e-5


def short_divisors(oracle: Reference) -> None:
    oracle.n_ctx = 64


def whole_heads_turn(oracle: Reference) -> None:
    """Let the rotary embedding turn every value, with no divisors for what was not turned."""
    key("rope.dimension_count")(oracle)
    for name in (ROPE_DIVISORS_SHORT, ROPE_DIVISORS_LONG):
        if name in oracle.weights:
            more = oracle.head_dim // 2 - len(oracle.weights[name])
            oracle.weights[name] = np.pad(oracle.weights[name], (0, more), constant_values=1)


def gates_and_inputs_of_experts(oracle: Reference) -> None:
    """Take the gates of experts for their other input projections."""
    for block in map(Block, range(oracle.n_layer)):
        for expert in range(len(oracle.weights[block.router])):
            gate, up, _ = block.experts.expert(expert)
            weights = oracle.weights
            weights[gate], weights[up] = weights[up], weights[gate]


def equal_shares(oracle: Reference) -> None:
    """Choose by the router, but weigh all that are used alike."""
    oracle._shares = lambda logits, used: np.full((len(logits), used), 1 / used)  # type: ignore[method-assign]


def without_shared_expert(oracle: Reference) -> None:
    for block in map(Block, range(oracle.n_layer)):
        del oracle.weights[block.shared_expert.gate]


def norms_before(oracle: Reference) -> None:
    """Norm what goes into attention and the feed-forward layer, with gains of one."""
    oracle.family = replace(oracle.family, norms_before=True)
    for block in map(Block, range(oracle.n_layer)):
        oracle.weights[block.attn_norm] = oracle.weights[block.ffn_norm] = np.ones(
            oracle.width, oracle.dtype
        )


def norm_of_each_head(oracle: Reference) -> None:
    """Norm the heads of queries and keys one by one, with the gains of the whole."""

    def norm_heads(x: Array, name: str) -> Array:
        heads = x.reshape(len(x), -1, oracle.head_dim)
        squares = np.square(heads).mean(-1, keepdims=True)
        gains = oracle.weights[name].reshape(-1, oracle.head_dim)
        return np.asarray(heads / np.sqrt(squares + oracle.rms_eps) * gains)

    oracle._norm_heads = norm_heads  # type: ignore[method-assign]


NEIGHBOURS = {"pairs of halves": family(neox=False)}
HALVES = {"pairs of neighbours": family(neox=True)}
NORMS_AFTER = {"norms after": family(norms_after=False)}
GEMMA = {
    **NEIGHBOURS,
    **NORMS_AFTER,
    "GELU": family(gelu=False),
    "root of the width": family(root_of_width=False),
}


def experts(used: int) -> dict[str, Switch]:
    """Switch off what is true of experts, of which a position uses so many."""
    return {
        "expert_used_count": key("expert_used_count", used - 1),
        "shares of those used": family(shares_of_used=False),
        "shares by logits": equal_shares,
        "gates of experts": gates_and_inputs_of_experts,
    }


def biases(*stems: str) -> dict[str, Switch]:
    """Switch off each of these biases."""
    return {f"{stem}.bias": without_bias(stem) for stem in stems}


def keys(*names: str) -> dict[str, Switch]:
    """Leave out each of these keys."""
    return {name: key(name) for name in names}


FACTS: dict[str, dict[str, Switch]] = {
    "llama": HALVES,
    "llama with biases": {
        **biases(*QKV, Stem.ATTN_OUTPUT, Stem.FFN_GATE, Stem.FFN_UP, Stem.FFN_DOWN),
        "rope.dimension_count": whole_heads_turn,
        **keys("rope.scale_linear"),
    },
    "mistral3": {
        **HALVES,
        "attention.temperature_scale": key("attention.temperature_scale"),
        "temperature by the original context": key("rope.scaling.original_context_length"),
        "yarn": key("rope.scaling.type", "linear"),
        **keys(
            "rope.scaling.yarn_beta_fast",
            "rope.scaling.yarn_beta_slow",
            "rope.scaling.yarn_log_multiplier",
        ),
    },
    "qwen2": {**NEIGHBOURS, **biases(*QKV, Stem.OUTPUT)},
    "qwen2 with yarn": {
        **NEIGHBOURS,
        **biases(*QKV),
        "keys before values": exchanged(Stem.ATTN_K, Stem.ATTN_V),
        "yarn": key("rope.scaling.type", "linear"),
        "rope.scaling.factor": key("rope.scaling.factor", 1.0),
    },
    "qwen3": {
        **NEIGHBOURS,
        "norm of heads": family(query_key_norm=None),
        "epsilon": usual_epsilon,
    },
    "llama with experts": {**HALVES, **experts(2)},
    "qwen3moe": {**NEIGHBOURS, "norm of heads": family(query_key_norm=None), **experts(8)},
    "phi3": {
        **NEIGHBOURS,
        "gate before up": exchanged(Stem.FFN_GATE, Stem.FFN_UP),
        "keys before values": exchanged(Stem.ATTN_K, Stem.ATTN_V),
        "long divisors": short_divisors,
        "rope.dimension_count": whole_heads_turn,
        **keys("rope.scaling.attn_factor", "attention.sliding_window"),
    },
    "granite": {
        **HALVES,
        **keys("embedding_scale", "residual_scale", "logit_scale"),
        "attention.scale": scores_by_head_width,
    },
    "granite without rope": {
        "rope.scaling.finetuned": key("rope.scaling.finetuned"),
        **biases(
            Stem.ATTN_Q, Stem.ATTN_V, Stem.ATTN_OUTPUT, Stem.FFN_GATE, Stem.FFN_UP, Stem.FFN_DOWN
        ),
    },
    "granitemoe": {
        **HALVES,
        **keys("embedding_scale", "residual_scale", "logit_scale"),
        "attention.scale": scores_by_head_width,
        "shared expert": without_shared_expert,
        **experts(3),
    },
    "smollm3": {**HALVES, "blocks without rope": family(no_rope_period=None)},
    "gemma2": {
        **GEMMA,
        "windows": key("attention.sliding_window", 0),
        "every second block": family(window_period=0),
        "the last of two blocks": family(window_period=3),
        "attn_logit_softcapping": key("attn_logit_softcapping", 0.0),
        "final_logit_softcapping": key("final_logit_softcapping", 0.0),
    },
    "gemma2 with 46 blocks": {"width of a head": scores_by_head_width},
    "gemma3": {
        **GEMMA,
        "norm of heads": family(query_key_norm=None),
        "windows": key("attention.sliding_window", 0),
        "every sixth block": family(window_period=4),
        "rope.freq_base_swa": key("rope.freq_base_swa"),
        "rope.scaling": key("rope.scaling.factor", 1.0),
        "no scaling in windows": family(plain_rope_in_windows=False),
    },
    "gemma3 with a pattern": {
        "attention.sliding_window_pattern": key("attention.sliding_window_pattern"),
        "final_logit_softcapping": key("final_logit_softcapping"),
    },
    "gemma3 without windows": {**GEMMA, "norm of heads": family(query_key_norm=None)},
    "gemma3 with 62 blocks": {"width of a head": scores_by_head_width},
    "olmo2": {
        **NEIGHBOURS,
        **NORMS_AFTER,
        "no norms before": norms_before,
        "norm of queries and keys": family(query_key_norm=None),
        "norm of all heads as one": norm_of_each_head,
    },
    "olmo2 with windows": {
        **keys("attention.sliding_window"),
        "every fourth block": family(window_period=3),
        "yarn": key("rope.scaling.type", "linear"),
        "no yarn in windows": family(plain_rope_in_windows=False),
    },
    "glm4": {
        **HALVES,
        **NORMS_AFTER,
        **biases(*QKV),
        "gate before up": exchanged(Stem.FFN_GATE, Stem.FFN_UP),
        "rope.dimension_count": whole_heads_turn,
    },
}
