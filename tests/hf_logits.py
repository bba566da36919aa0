"""Logits by Hugging Face's transformers, the models' own definition, for the oracle to be held to.

`python tests/hf_logits.py` writes `data/hf_logits.npz` anew, in an environment with `torch`,
`transformers` 5 (5.24 and torch 2.15 made it), `gguf` and `numpy`. It builds each model twice from
the same random arrays: as a GGUF file, in F32, and as a model of transformers in float32 with eager
attention. What is stored is the logits of some rows and a hash of the file.
`test_hf_logits.py` compares, without transformers.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from blocks import Random
from family_models import FAMILY_MODELS, QKV
from hf_modules import MODULES, MODULES_OF
from models import model_hash, write_model
from tensors import EMBEDDING, OUTPUT, Stem

FILE = Path(__file__).parent / "data" / "hf_logits.npz"
LENGTH = 250
#: The rows that are kept of a sequence: as many as there are, from its first to its last.
ROWS = (0, 1, 5, 31, 63, 64, 65, 128, 249)

Weights: TypeAlias = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Entry:
    """A model, and what it is to transformers."""

    model_class: str
    options: dict[str, Any]  # of `write_model`
    config: dict[str, Any] = field(default_factory=dict)  # more than `_config` reads from the file
    length: int = LENGTH
    n_ctx: int | None = None  # positions of a session of the oracle's
    permuted: bool = False  # the file has pairs of rows as neighbours, which are halves there
    gains_less_one: bool = False  # gains are stored less one
    fused: bool = False  # gate and up are one matrix, and queries, keys and values of phi3


def _yarn(theta: float, **more: float) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        **more,
    }


def _default(theta: float = 10000.0) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def _layers(*windowed: bool) -> list[str]:
    return ["sliding_attention" if window else "full_attention" for window in windowed]


_M = FAMILY_MODELS
_BIASES = (*QKV, Stem.ATTN_OUTPUT, Stem.FFN_GATE, Stem.FFN_UP, Stem.FFN_DOWN)
_LLAMA_BIASES = {"attention_bias": True, "mlp_bias": True}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.6,
    "logits_scaling": 2.5,
}
_PHI3 = {
    "original_max_position_embeddings": 64,
    "sliding_window": 100,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "attention_factor": 1.19,
        "original_max_position_embeddings": 64,
        "short_factor": list(_M["phi3"]["rope_divisors_short"]),
        "long_factor": list(_M["phi3"]["rope_divisors_long"]),
    },
}
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
    "sliding_attention": _default(50.0),
}

ENTRIES = {
    "mistral": Entry(
        "Mistral",
        _M["llama"],
        {"sliding_window": None, "rope_parameters": _default()},
        permuted=True,
    ),
    "llama with biases": Entry(
        "Llama",
        _M["llama with biases"] | {"rope_dims": None},
        {
            **_LLAMA_BIASES,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        },
        permuted=True,
    ),
    "ministral3": Entry(
        "Ministral3",
        _M["mistral3"],
        {
            "rope_parameters": _yarn(
                10000.0,
                original_max_position_embeddings=32,
                beta_fast=2.0,
                beta_slow=0.5,
                mscale=1.0,
                mscale_all_dim=0.5,
                llama_4_scaling_beta=0.5,
            )
        },
        permuted=True,
    ),
    "qwen2": Entry("Qwen2", _M["qwen2"] | {"biases": QKV}, {"rope_parameters": _default(1e5)}),
    "qwen2 with yarn": Entry("Qwen2", _M["qwen2 with yarn"], {"rope_parameters": _yarn(10000.0)}),
    "qwen3": Entry("Qwen3", _M["qwen3"], {"rope_parameters": _default()}),
    "mixtral": Entry(
        "Mixtral",
        _M["llama with experts"],
        {"num_local_experts": 5, "num_experts_per_tok": 2, "rope_parameters": _default()},
        permuted=True,
    ),
    "qwen3moe": Entry(
        "Qwen3Moe",
        _M["qwen3moe"],
        {
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "rope_parameters": _default(),
        },
    ),
    "phi3, long": Entry("Phi3", _M["phi3"], _PHI3, fused=True),
    "phi3, short": Entry("Phi3", _M["phi3"], _PHI3, length=64, n_ctx=64, fused=True),
    "granite": Entry(
        "Granite", _M["granite"], {**_GRANITE, "rope_parameters": _default()}, permuted=True
    ),
    "granitemoe": Entry(
        "GraniteMoeShared",
        _M["granitemoe"],
        {
            **_GRANITE,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "shared_intermediate_size": 32,
            "rope_parameters": _default(),
        },
        permuted=True,
    ),
    "granite with biases": Entry(
        "Granite",
        _M["granite"] | {"biases": _BIASES},
        {**_GRANITE, **_LLAMA_BIASES, "rope_parameters": _default()},
        permuted=True,
    ),
    "granite without rope": Entry(
        "GraniteMoeHybrid",
        _M["granite without rope"] | {"biases": ()},
        {
            "attention_multiplier": 0.25,  # what it is where the file is silent
            "logits_scaling": 1.25,
            "position_embedding_type": "nope",
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
            "layer_types": ["attention", "attention"],
        },
        permuted=True,
    ),
    "smollm3": Entry("SmolLM3", _M["smollm3"], {"rope_parameters": _default(5e6)}, permuted=True),
    "gemma2": Entry(
        "Gemma2",
        _M["gemma2"],
        {
            "query_pre_attn_scalar": 24,
            "sliding_window": 65,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
            "rope_parameters": _default(),
        },
        gains_less_one=True,
    ),
    "gemma2 with 46 blocks": Entry(
        "Gemma2",
        _M["gemma2 with 46 blocks"],
        {
            "query_pre_attn_scalar": 64 // 4,
            "sliding_window": 5,
            "final_logit_softcapping": 5.0,
            "rope_parameters": _default(),
        },
        gains_less_one=True,
    ),
    "gemma3": Entry(
        "Gemma3",
        _M["gemma3"],
        {"query_pre_attn_scalar": 40, "sliding_window": 64, "rope_parameters": _GEMMA3_ROPE},
        gains_less_one=True,
    ),
    "gemma3 with a pattern": Entry(
        "Gemma3",
        _M["gemma3 with a pattern"],
        {
            "query_pre_attn_scalar": 48,
            "sliding_window": 5,
            "layer_types": _layers(True, False, True),
            "final_logit_softcapping": 4.0,
            "rope_parameters": {"full_attention": _default(), "sliding_attention": _default(50.0)},
        },
        gains_less_one=True,
    ),
    "gemma3 without windows": Entry(
        "Gemma3",
        _M["gemma3 without windows"],
        {
            "query_pre_attn_scalar": 256,
            "layer_types": _layers(False, False),
            "rope_parameters": {"full_attention": _default()},
        },
        gains_less_one=True,
    ),
    "gemma3 with 62 blocks": Entry(
        "Gemma3",
        _M["gemma3 with 62 blocks"],
        {
            "query_pre_attn_scalar": 64 // 4,
            "sliding_window": 100,
            "rope_parameters": {"full_attention": _default(), "sliding_attention": _default(50.0)},
        },
        gains_less_one=True,
    ),
    "olmo2": Entry("Olmo2", _M["olmo2"], {"rope_parameters": _default()}),
    "olmo3": Entry(
        "Olmo3",
        _M["olmo2 with windows"],
        {
            "sliding_window": 5,
            "rope_parameters": {
                "full_attention": _yarn(10000.0),
                "sliding_attention": _default(),
            },
        },
    ),
    "glm4": Entry(
        "Glm4",
        _M["glm4"],
        {
            "attention_bias": True,
            "rope_parameters": _default() | {"partial_rotary_factor": 0.5},
        },
        fused=True,
    ),
}


def prompt(n_vocab: int, length: int) -> list[int]:
    """Give the ids of which logits are stored."""
    ids: list[int] = (Random(0, "hf").bytes(2 * length).view("<u2") % n_vocab).tolist()
    return ids


def kept(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Pick the rows that are stored."""
    return rows[[row for row in ROWS if row < len(rows)]]


def main() -> None:
    """Write the file."""
    stored: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, entry in ENTRIES.items():
            path = write_model(Path(folder) / "model.gguf", **entry.options)
            logits = hf_logits(path, entry)
            print(f"{name}: standard deviation {logits.std():.2f}")
            stored[name] = kept(logits)
            stored[f"{name}: model"] = np.array(model_hash(path))
    np.savez_compressed(FILE, **stored)
    print(f"wrote {FILE}, {FILE.stat().st_size:,} bytes")


def hf_logits(path: Path, entry: Entry) -> npt.NDArray[np.float32]:
    """Compute the logits of the prompt: [length, n_vocab]."""
    import torch
    import transformers

    reader = GGUFReader(path)
    keys = {key.partition(".")[2]: value.contents() for key, value in reader.fields.items()}
    weights = {str(tensor.name): np.array(tensor.data) for tensor in reader.tensors}
    config_class = "Gemma3Text" if entry.model_class == "Gemma3" else entry.model_class
    config = getattr(transformers, f"{config_class}Config")(
        **_config(keys, weights), **entry.config
    )
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{entry.model_class}ForCausalLM")(config).float().eval()
    state = {
        name: torch.from_numpy(np.ascontiguousarray(array))
        for name, array in hf_weights(weights, keys, entry).items()
    }
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    tokens = torch.tensor([prompt(len(weights[EMBEDDING]), entry.length)])
    with torch.no_grad():
        return np.asarray(model(tokens).logits[0].numpy())


def _config(keys: dict[str, Any], weights: Weights) -> dict[str, Any]:
    width, n_head = keys["embedding_length"], keys["attention.head_count"]
    return {
        "vocab_size": len(weights[EMBEDDING]),
        "hidden_size": width,
        "intermediate_size": keys["feed_forward_length"],
        "num_hidden_layers": keys["block_count"],
        "num_attention_heads": n_head,
        "num_key_value_heads": keys["attention.head_count_kv"],
        "head_dim": keys.get("attention.key_length", width // n_head),
        "max_position_embeddings": keys["context_length"],
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": OUTPUT not in weights,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }


def hf_weights(weights: Weights, keys: dict[str, Any], entry: Entry) -> Weights:
    """Name and order the arrays of a file as transformers does."""
    n_head, n_head_kv = keys["attention.head_count"], keys["attention.head_count_kv"]
    head_dim = keys.get("attention.key_length", keys["embedding_length"] // n_head)
    modules = MODULES | MODULES_OF.get(entry.model_class, {})
    if entry.fused:
        modules = modules | {Stem.FFN_UP: "mlp.gate_up_proj"}
    found: Weights = {}
    for name, array in weights.items():
        *block, stem, kind = name.split(".")
        if stem.startswith("rope_"):
            continue
        place = f"model.layers.{block[1]}." if block else "model."
        if stem == Stem.OUTPUT:
            found[f"lm_head.{kind}"] = array
        elif stem == Stem.ATTN_QKV and entry.model_class != "Phi3":
            rows = np.split(array, [n_head * head_dim, (n_head + n_head_kv) * head_dim])
            for letter, part in zip("qkv", rows, strict=True):
                found[f"{place}self_attn.{letter}_proj.{kind}"] = part
        else:
            if stem.endswith("norm") and entry.gains_less_one:
                array = array - 1
            if stem in (Stem.ATTN_Q, Stem.ATTN_K) and entry.permuted:
                array = _halves(array, head_dim)
            # Experts are no modules of their own.
            ending = "" if "experts" in modules[stem] else f".{kind}"
            found[f"{place}{modules[stem]}{ending}"] = array
    _join_gates(found)
    return found


def _halves(rows: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Undo what converters do: rows 2i and 2i + 1 of a head become rows i and i + head_dim / 2."""
    heads = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.asarray(heads.swapaxes(1, 2).reshape(rows.shape))


def _join_gates(found: Weights) -> None:
    """Make one of gate and up where they have a name together."""
    for part, whole in (
        ("experts.gate_proj", "experts.gate_up_proj"),
        ("shared_mlp.gate_proj", "shared_mlp.input_linear"),
    ):
        for gate in [name for name in found if part in name]:
            both = gate.replace(part, whole)
            found[both] = np.concatenate([found.pop(gate), found[both]], axis=-2)


if __name__ == "__main__":
    main()
