"""What transformers call the tensors of a block: its modules."""

from __future__ import annotations

from tensors import Stem

#: By the stem of a tensor's name; norms differ between families.
MODULES = {
    Stem.EMBEDDING: "embed_tokens",
    Stem.OUTPUT_NORM: "norm",
    Stem.ATTN_NORM: "input_layernorm",
    Stem.ATTN_Q: "self_attn.q_proj",
    Stem.ATTN_K: "self_attn.k_proj",
    Stem.ATTN_V: "self_attn.v_proj",
    Stem.ATTN_QKV: "self_attn.qkv_proj",
    Stem.ATTN_Q_NORM: "self_attn.q_norm",
    Stem.ATTN_K_NORM: "self_attn.k_norm",
    Stem.ATTN_OUTPUT: "self_attn.o_proj",
    Stem.FFN_NORM: "post_attention_layernorm",
    Stem.FFN_GATE: "mlp.gate_proj",
    Stem.FFN_UP: "mlp.up_proj",
    Stem.FFN_DOWN: "mlp.down_proj",
    Stem.FFN_ROUTER: "mlp.gate",
    Stem.FFN_GATE_EXPERTS: "mlp.experts.gate_proj",
    Stem.FFN_UP_EXPERTS: "mlp.experts.gate_up_proj",
    Stem.FFN_DOWN_EXPERTS: "mlp.experts.down_proj",
}
_GEMMA = {
    Stem.POST_ATTENTION_NORM: "post_attention_layernorm",
    Stem.FFN_NORM: "pre_feedforward_layernorm",
    Stem.POST_FFW_NORM: "post_feedforward_layernorm",
}
#: Those that a class of models has instead.
MODULES_OF: dict[str, dict[str, str]] = {
    "Gemma2": _GEMMA,
    "Gemma3": _GEMMA,
    "Olmo2": _GEMMA,
    "Olmo3": _GEMMA,
    "Glm4": {
        Stem.POST_ATTENTION_NORM: "post_self_attn_layernorm",
        Stem.POST_FFW_NORM: "post_mlp_layernorm",
    },
    "GraniteMoeShared": {
        Stem.FFN_ROUTER: "block_sparse_moe.router",
        Stem.FFN_GATE_EXPERTS: "block_sparse_moe.experts.gate_proj",
        Stem.FFN_UP_EXPERTS: "block_sparse_moe.experts.gate_up_proj",
        Stem.FFN_DOWN_EXPERTS: "block_sparse_moe.experts.down_proj",
        Stem.FFN_GATE_SHARED: "shared_mlp.gate_proj",
        Stem.FFN_UP_SHARED: "shared_mlp.input_linear",
        Stem.FFN_DOWN_SHARED: "shared_mlp.output_linear",
    },
    "GraniteMoeHybrid": {
        Stem.FFN_GATE: "shared_mlp.gate_proj",
        Stem.FFN_UP: "shared_mlp.input_linear",
        Stem.FFN_DOWN: "shared_mlp.output_linear",
    },
}
