//! What tensors are to a decoder, and what files call them: the one place with their names.

use std::fmt;

/// What names of tensors contain that change the result of a decoder, whether it has a role for them or not: biases, norms,
/// gates of experts, scales beside the weights, other encodings of positions.
const SIGNIFICANT: [&str; 7] = [".bias", "scale", "_norm", "_exps", "position_embd", "token_types", "rope_factors"];

/// How names begin of what sees and hears, beside a decoder that reads text without it.
const OTHER_SENSES: [&str; 3] = ["v.", "mm.", "a."];

/// What a tensor is to the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The embeddings, one row a token.
    Embedding,
    /// A tensor of a block, counted from 0.
    Block(usize, BlockRole),
    /// What is added to the product with a matrix of a block.
    Bias(usize, BlockRole),
    /// RMSNorm gains before the output.
    OutputNorm,
    /// The projection to the vocabulary; where it is absent the embedding serves (tied).
    Output,
    /// What is added to its product.
    OutputBias,
    /// What the rotary frequencies are divided by.
    RopeDivisors,
    /// The same where sessions are no longer than the model was first trained for.
    ShortRopeDivisors,
    /// The same where they are longer.
    LongRopeDivisors,
}

/// What a tensor is to its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockRole {
    /// RMSNorm gains before attention.
    AttnNorm,
    /// Queries.
    AttnQ,
    /// Keys.
    AttnK,
    /// Values.
    AttnV,
    /// Queries, keys and values in one matrix, from which they are cut.
    AttnQkv,
    /// RMSNorm gains of queries, for one head or for all.
    AttnQNorm,
    /// RMSNorm gains of keys, likewise.
    AttnKNorm,
    /// Attention output.
    AttnOutput,
    /// RMSNorm gains after attention.
    PostAttnNorm,
    /// RMSNorm gains before the feed-forward layer.
    FfnNorm,
    /// Gate of the feed-forward layer.
    FfnGate,
    /// Its other input projection.
    FfnUp,
    /// Its output projection.
    FfnDown,
    /// What gives each expert a logit.
    FfnRouter,
    /// Gates of the experts, one after the other.
    FfnGateExperts,
    /// Their other input projections.
    FfnUpExperts,
    /// Their output projections.
    FfnDownExperts,
    /// Where files have the gate of the expert that all rows use.
    FfnGateShared,
    /// Its other input projection, likewise.
    FfnUpShared,
    /// Its output projection.
    FfnDownShared,
    /// RMSNorm gains after the feed-forward layer.
    PostFfnNorm,
}

impl fmt::Display for Role {
    /// The name of the tensor in a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.write_str("token_embd.weight"),
            Self::Block(block, role) => write!(f, "blk.{block}.{}.weight", role.stem()),
            Self::Bias(block, role) => write!(f, "blk.{block}.{}.bias", role.stem()),
            Self::OutputNorm => f.write_str("output_norm.weight"),
            Self::Output => f.write_str("output.weight"),
            Self::OutputBias => f.write_str("output.bias"),
            Self::RopeDivisors => f.write_str("rope_freqs.weight"),
            Self::ShortRopeDivisors => f.write_str("rope_factors_short.weight"),
            Self::LongRopeDivisors => f.write_str("rope_factors_long.weight"),
        }
    }
}

impl BlockRole {
    fn stem(self) -> &'static str {
        match self {
            Self::AttnNorm => "attn_norm",
            Self::AttnQ => "attn_q",
            Self::AttnK => "attn_k",
            Self::AttnV => "attn_v",
            Self::AttnQkv => "attn_qkv",
            Self::AttnQNorm => "attn_q_norm",
            Self::AttnKNorm => "attn_k_norm",
            Self::AttnOutput => "attn_output",
            Self::PostAttnNorm => "post_attention_norm",
            Self::FfnNorm => "ffn_norm",
            Self::FfnGate => "ffn_gate",
            Self::FfnUp => "ffn_up",
            Self::FfnDown => "ffn_down",
            Self::FfnRouter => "ffn_gate_inp",
            Self::FfnGateExperts => "ffn_gate_exps",
            Self::FfnUpExperts => "ffn_up_exps",
            Self::FfnDownExperts => "ffn_down_exps",
            Self::FfnGateShared => "ffn_gate_shexp",
            Self::FfnUpShared => "ffn_up_shexp",
            Self::FfnDownShared => "ffn_down_shexp",
            Self::PostFfnNorm => "post_ffw_norm",
        }
    }
}

/// Whether a tensor called `name` changes the result of a decoder of `n_layer` blocks that has no role for it: all of a
/// block do that not only repeat the rotary frequencies. `drafting` blocks after these only draft.
pub fn is_significant(name: &str, n_layer: usize, drafting: usize) -> bool {
    if OTHER_SENSES.iter().any(|sense| name.starts_with(sense)) || name.contains("deepstack") {
        return false;
    }
    if let Some((block, rest)) = name.strip_prefix("blk.").and_then(|name| name.split_once('.')) {
        let drafts = block.parse().is_ok_and(|block| (n_layer..n_layer + drafting).contains(&block));
        return !drafts && !rest.contains("rope_freqs") && !rest.contains("attn_rot_embd");
    }
    SIGNIFICANT.iter().any(|part| name.contains(part))
}
