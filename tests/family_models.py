"""Random models of every family that say something: each of its facts changes what they predict.

Gains differ and have either sign, biases are as large as what they are added to, branches as large
as the residual stream, scores and logits so large that caps act. Widths are those of real files
only in being odd: heads of 24 to 256 values, of which some are not turned, up to 7 to a key/value
head, windows that end inside a page of 64 positions, at its end and one after it.
"""

from __future__ import annotations

from typing import Any

from tensors import EMBEDDING, Block, Stem


def divisors(pairs: int, most: float) -> tuple[float, ...]:
    """Make rope divisors that rise from 1 to `most` over so many pairs."""
    return tuple(most ** (pair / (pairs - 1)) for pair in range(pairs))


QKV = (Stem.ATTN_Q, Stem.ATTN_K, Stem.ATTN_V)
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}

# Embeddings are multiplied by the root of the width and serve as the output too.
_GEMMA_GAINS = {Stem.EMBEDDING: 1.0, Stem.OUTPUT_NORM: 3.0}
# Of so many branches each may add a little only, or noise grows as it does in no real model.
_DEEP_GAINS = _GEMMA_GAINS | {Stem.POST_ATTENTION_NORM: 0.15, Stem.POST_FFW_NORM: 0.15}

#: The main model of each family, and others of some, as options of `write_model`.
FAMILY_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"n_embd": 96, "n_head": 6, "n_head_kv": 2, "head_dim": 80},
    "llama with biases": {
        "architecture": "llama",
        "biases": (*QKV, Stem.ATTN_OUTPUT, Stem.FFN_GATE, Stem.FFN_UP, Stem.FFN_DOWN),
        "n_head_kv": 4,
        "rope_dims": 8,
        "keys": {"rope.scale_linear": 2.0},
    },
    "mistral3": {
        "n_embd": 96,
        "n_head": 3,
        "n_head_kv": 1,
        "head_dim": 64,
        "keys": _YARN
        | {
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_beta_fast": 2.0,
            "rope.scaling.yarn_beta_slow": 0.5,
            "rope.scaling.yarn_log_multiplier": 0.5,
            "attention.temperature_scale": 0.5,
        },
    },
    "qwen2": {
        "n_embd": 224,
        "n_head": 7,
        "n_head_kv": 1,
        "biases": (*QKV, Stem.OUTPUT),
        "rope_base": 1e5,
    },
    "qwen2 with yarn": {
        "architecture": "qwen2",
        "n_head": 2,
        "n_head_kv": 2,
        "biases": (Stem.ATTN_QKV,),
        "fused": (Stem.ATTN_QKV,),
        "tied": True,
        "keys": _YARN,
    },
    "qwen3": {"n_head": 3, "n_head_kv": 1, "head_dim": 128, "rms_eps": 0.05, "tied": True},
    "llama with experts": {  # Mixtral
        "architecture": "llama",
        "n_embd": 96,
        "experts": 5,
        "experts_used": 2,
        "seed": 1,
    },
    "qwen3moe": {
        "n_head": 3,
        "n_head_kv": 1,
        "head_dim": 64,
        "experts": 128,
        "experts_used": 8,
        "n_ff": 256,
        "expert_ff": 64,
        "seed": 23,
        "gains": {Stem.FFN_DOWN_EXPERTS: 6.0},
    },
    "phi3": {
        "n_embd": 192,
        "n_head": 2,
        "n_head_kv": 2,
        "rope_dims": 72,
        "fused": (Stem.ATTN_QKV, Stem.FFN_UP),
        "rope_divisors_short": divisors(36, 2.0),
        "rope_divisors_long": divisors(36, 8.0)[::-1],
        "keys": {
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.19,
            "attention.sliding_window": 100,
        },
    },
    "granite": {
        "n_head": 4,
        "n_head_kv": 4,
        "tied": True,
        "gains": {Stem.ATTN_OUTPUT: 5.0, Stem.FFN_DOWN: 6.0, Stem.OUTPUT_NORM: 2.5},
        "keys": {
            "embedding_scale": 3.0,
            "residual_scale": 0.3,
            "attention.scale": 0.6,
            "logit_scale": 2.5,
        },
    },
    "granite without rope": {
        "architecture": "granite",
        "biases": (*QKV, Stem.ATTN_OUTPUT, Stem.FFN_GATE, Stem.FFN_UP, Stem.FFN_DOWN),
        "keys": {"rope.scaling.finetuned": False, "logit_scale": 1.25},
    },
    "granitemoe": {
        "n_head": 4,
        "n_head_kv": 4,
        "tied": True,
        "experts": 6,
        "experts_used": 3,
        "n_ff": 64,
        "shared_expert_ff": 32,
        "seed": 1,
        "gains": {
            Stem.ATTN_OUTPUT: 5.0,
            Stem.FFN_DOWN_EXPERTS: 9.0,
            Stem.FFN_DOWN_SHARED: 5.0,
            Stem.OUTPUT_NORM: 2.5,
        },
        "keys": {
            "embedding_scale": 3.0,
            "residual_scale": 0.3,
            "attention.scale": 0.6,
            "logit_scale": 2.5,
        },
    },
    "smollm3": {"n_layer": 9, "tied": True, "rope_base": 5e6},
    "gemma2": {
        "n_layer": 5,
        "n_head": 4,
        "n_head_kv": 4,
        "head_dim": 24,
        "tied": True,
        "gains": _GEMMA_GAINS | {Stem.OUTPUT_NORM: 6.0, Stem.ATTN_Q: 1.7, Stem.ATTN_K: 1.7},
        "keys": {
            "attention.sliding_window": 65,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    },
    "gemma2 with 46 blocks": {
        "architecture": "gemma2",
        "n_layer": 46,
        "n_head": 4,
        "n_head_kv": 2,
        "head_dim": 40,
        "tied": True,
        "gains": _DEEP_GAINS | {Stem.OUTPUT_NORM: 6.0},
        "keys": {"attention.sliding_window": 5, "final_logit_softcapping": 5.0},
    },
    "gemma3": {
        "n_layer": 7,
        "n_head": 4,
        "n_head_kv": 1,
        "head_dim": 40,
        "tied": True,
        "gains": _GEMMA_GAINS | {Stem.ATTN_Q_NORM: 2.0},
        "keys": {
            "attention.sliding_window": 64,
            "rope.freq_base_swa": 50.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    },
    "gemma3 with a pattern": {
        "architecture": "gemma3",
        "n_layer": 3,
        "n_head": 2,
        "n_head_kv": 1,
        "head_dim": 48,
        "gains": {Stem.ATTN_Q_NORM: 2.0, Stem.EMBEDDING: 1.0},
        "keys": {
            "attention.sliding_window": 5,
            "attention.sliding_window_pattern": [True, False, True],
            "rope.freq_base_swa": 50.0,
            "final_logit_softcapping": 4.0,
        },
    },
    "gemma3 without windows": {
        "architecture": "gemma3",
        "n_head": 2,
        "n_head_kv": 1,
        "head_dim": 256,
        "tied": True,
        "gains": _GEMMA_GAINS | {Stem.ATTN_Q_NORM: 2.0},
    },
    "gemma3 with 62 blocks": {
        "architecture": "gemma3",
        "n_layer": 62,
        "n_head": 4,
        "n_head_kv": 2,
        "head_dim": 40,
        "tied": True,
        "gains": _DEEP_GAINS | {Stem.ATTN_Q_NORM: 1.5},
        "keys": {"attention.sliding_window": 100, "rope.freq_base_swa": 50.0},
    },
    "olmo2": {
        "n_head": 4,
        "n_head_kv": 4,
        "gains": {Stem.EMBEDDING: 8.0, Stem.ATTN_Q_NORM: 2.0},
    },
    "olmo2 with windows": {  # OLMo 3
        "architecture": "olmo2",
        "n_layer": 6,
        "n_embd": 128,
        "n_head": 4,
        "n_head_kv": 2,
        "gains": {Stem.EMBEDDING: 11.0, Stem.ATTN_Q_NORM: 2.0},
        "keys": _YARN | {"attention.sliding_window": 5},
    },
    "glm4": {
        "n_embd": 96,
        "n_head": 2,
        "n_head_kv": 1,
        "head_dim": 80,
        "rope_dims": 40,
        "biases": QKV,
        "fused": (Stem.FFN_UP,),
        "gains": {Stem.EMBEDDING: 10.0},
    },
}

for _name, _options in FAMILY_MODELS.items():
    _options.setdefault("architecture", _name)
    _options["varied_gains"] = True

#: The main models: those that are called as their family is.
MAIN = [name for name, options in FAMILY_MODELS.items() if name == options["architecture"]]

#: Those with experts.
MIXTURES = [name for name, options in FAMILY_MODELS.items() if options.get("experts")]

#: Their types where one will do, so that every kind of matrix meets every kind of block.
QUANTS = {
    "llama": "Q8_0",
    "mistral3": "Q4_0",
    "qwen2": "Q5_0",
    "qwen3": "Q8_0",
    "qwen3moe": "Q4_0",
    "phi3": "Q4_1",
    "granite": "IQ4_NL",
    "granitemoe": "Q8_0",
    "smollm3": "Q5_1",
    "gemma2": "Q8_0",
    "gemma3": "Q4_0",
    "olmo2": "F16",
    "glm4": "Q8_0",
}

#: Models with matrices of several types: rows of whole blocks of 32 weights only, as where widths
#: are no multiples of 256, and of 256.
MIXED: dict[str, dict[str, Any]] = {
    **{
        f"{name}, blocks of 32": FAMILY_MODELS[name]
        | {
            "quant": "Q5_0",
            "types": {
                EMBEDDING: "Q8_0",
                Block(0).attn_q: "F16",
                Block(0).attn_k: "Q5_1",
                Block(0).attn_v: "Q8_0",
                Block(1).ffn_up: "IQ4_NL",
                Block(1).ffn_down: "Q4_1",
                Block(0).experts.up: "Q8_0",
                Block(1).experts.down: "F16",
            },
        }
        for name in MAIN
    },
    **{
        f"{name}, blocks of 256": FAMILY_MODELS[name]
        | {
            "quant": "Q4_K",
            "n_embd": 256,
            "n_head": 4,
            "n_head_kv": 2,
            "head_dim": 64,
            "types": {
                EMBEDDING: "Q6_K",
                Block(0).attn_v: "Q6_K",
                Block(1).attn_qkv: "Q5_K",
                Block(1).ffn_down: "Q6_K",
            },
        }
        for name in ("qwen3", "granite", "gemma2", "olmo2")
    },
    "phi3, blocks of 256": FAMILY_MODELS["phi3"]
    | {
        "quant": "Q4_K",
        "types": {Block(1).attn_qkv: "Q5_K", Block(0).ffn_down: "Q6_K"},
        "n_embd": 256,
        "rope_dims": 96,
        "rope_divisors_short": divisors(48, 2.0),
        "rope_divisors_long": divisors(48, 8.0)[::-1],
    },
}


def with_keys(name: str, **more: Any) -> dict[str, Any]:
    """Change keys of a model, which are written here with `__` for a dot."""
    options = FAMILY_MODELS[name]
    keys = {key.replace("__", "."): value for key, value in more.items()}
    return options | {"keys": options.get("keys", {}) | keys}


def with_window(name: str, window: int, **more: Any) -> dict[str, Any]:
    """Change the window of a model, and other keys."""
    return with_keys(name, attention__sliding_window=window, **more)
