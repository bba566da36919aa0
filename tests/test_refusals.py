"""What cannot be run is refused by name: one row for each kind of file, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctored import Doctor
from specrs._specrs import GgufError, GgufFile, Model
from tensors import Block

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "hybrid": ({"architecture": "qwen35"}, '"qwen35" keeps a recurrent state.*supported: "llama"'),
    "recurrent": ({"architecture": "mamba2"}, '"mamba2" keeps a recurrent state'),
    "diffusion": ({"architecture": "dream"}, '"dream" is a diffusion model'),
    "encoder": ({"architecture": "bert"}, '"bert" is an encoder .*no causal text model'),
    "sound": ({"architecture": "wavtokenizer-dec"}, "made for sound"),
    "projector": ({"architecture": "clip"}, "belongs to another file: open the model's"),
    "adapter": ({"metadata": {"general.type": "adapter"}}, '"adapter".*open the "model"'),
    "of Ollama": ({"architecture": "gptoss"}, r"Ollama's own.*convert_hf_to_gguf\.py"),
    "other": ({"architecture": "deepseek2"}, '"deepseek2" is not supported .supported: "llama"'),
    "embedding": ({"metadata": {"llama.pooling_type": 3}}, "for vectors.*pooling_type` is 3"),
    "not causal": ({"metadata": {"llama.attention.causal": False}}, "vectors.*causal` is false"),
    "reranker": ({"extra_tensors": ("cls.weight",)}, "vectors.*cls.weight"),
    "experts": (
        {"architecture": "qwen3", "metadata": {"qwen3.expert_count": 8}},
        '.qwen3.expert_count.. is not supported for architecture "qwen3"',
    ),
    "used experts": (
        {"experts": 3, "experts_used": 4},
        "expert_used_count` is 4, but there are only 3 experts",
    ),
    "expert count": (
        {"experts": 3, "metadata": {"llama.expert_count": 4}},
        r"ffn_gate_inp.weight` has shape .64, 3. but the metadata demands .64, 4.",
    ),
    "extra experts": ({"extra_tensors": ("blk.0.ffn_gate_exps.weight",)}, "belongs to a variant"),
    "weights of experts": ({"metadata": {"llama.expert_weights_norm": False}}, "norm` = false"),
    "gating": ({"metadata": {"llama.expert_gating_func": 2}}, "expert_gating_func` = 2"),
    "groups": ({"metadata": {"llama.expert_group_count": 4}}, "expert_group_count` = 4"),
    "expert scale": ({"metadata": {"llama.expert_weights_scale": 2.5}}, "weights_scale` = 2.5"),
    "expert bias": ({"extra_tensors": ("blk.0.exp_probs_b.bias",)}, "router.*exp_probs_b"),
    "shared experts": ({"extra_tensors": ("blk.0.ffn_up_shexp.weight",)}, "router.*_shexp"),
    "2023 experts": ({"extra_tensors": ("blk.0.ffn_gate.0.weight",)}, "one expert.*convert"),
    "rope scaling": ({"metadata": {"llama.rope.scaling.type": "spiral"}}, 'type` "spiral" is not'),
    "rope alpha": ({"metadata": {"llama.rope.scaling.alpha": 1000.0}}, "scaling.alpha` = 1000"),
    "images": (
        {"architecture": "glm4", "metadata": {"glm4.rope.dimension_sections": [8, 12, 12, 0]}},
        r"dimension_sections` = \[8, 12, 12, 0\] is not supported",
    ),
    "clamp": ({"metadata": {"llama.attention.clamp_kqv": 8.0}}, "clamp_kqv` = 8"),
    "alibi": ({"metadata": {"llama.attention.max_alibi_bias": 8.0}}, "max_alibi_bias` = 8"),
    "head widths": (
        {"head_dim": 16, "metadata": {"llama.attention.value_length": 32}},
        "keys of 16 and values of 32",
    ),
    "window period": (
        {"architecture": "gemma3", "keys": {"attention.sliding_window_pattern": 3}},
        "sliding_window_pattern` must be from 1 to the 2 blocks.*is 3",
    ),
    "scaled weights": ({"extra_tensors": ("blk.0.attn_q.scale",)}, "NVFP4 or FP8.*take.*Q4_K_M"),
    "scaled inputs": ({"extra_tensors": ("blk.0.attn_q.input_scale",)}, "NVFP4 or FP8"),
    "tokenizer": ({"metadata": {"tokenizer.ggml.model": "rwkv"}}, '"rwkv" is not supported'),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_run_is_refused_by_name(tiny: Callable[..., Path], kind: str) -> None:
    options, words = REFUSED[kind]
    path = tiny(**options)
    for refuse in (lambda: Model(path), lambda: GgufFile(path).plan()):
        with pytest.raises(GgufError, match=words) as raised:
            refuse()
        assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("number", "name"),
    [(4, "Q4_2"), (16, "IQ2_XXS"), (31, "Q4_0_4_4"), (34, "TQ1_0"), (40, "NVFP4"), (41, "Q1_0")],
)
def test_tensor_types_are_refused_by_name(
    tiny: Callable[..., Path], tmp_path: Path, number: int, name: str
) -> None:
    doctor = Doctor(tiny(quant="Q4_0"), tmp_path)
    tensor = Block(0).attn_k
    path = doctor.patch("type", (doctor.layout.tensors[tensor].type_at, "I", number))
    with pytest.raises(
        GgufError, match=rf"{tensor}` is of type {name}, .*Q4_K.*; take a file in Q4_K_M or Q8_0"
    ):
        Model(path)


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv"])
def test_arrays_over_blocks_fit_their_number(tiny: Callable[..., Path], key: str) -> None:
    for entries, words in [
        ([2], r"has 1 entries but `llama.block_count` is 2"),
        ([2, 2, 2], r"has 3 entries but `llama.block_count` is 2"),
        ([2, 1], "differs between blocks"),
    ]:
        with pytest.raises(GgufError, match=rf"`llama\.{key}` {words}"):
            Model(tiny(metadata={f"llama.{key}": entries}))
