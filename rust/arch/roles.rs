//! What tensors are to a decoder, and what files call them: the one place with their names.

use std::fmt;

/// What names of tensors contain that change the result but that no supported decoder has: biases, more norms, gates of
/// experts, scales beside the weights, other encodings of positions.
const SIGNIFICANT: [&str; 7] = [".bias", "scale", "_norm", "_exps", "position_embd", "token_types", "rope_factors"];

/// What a tensor is to the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The embeddings, one row a token.
    Embedding,
    /// A tensor of a block, counted from 0.
    Block(usize, BlockRole),
    /// RMSNorm gains before the output.
    OutputNorm,
    /// The projection to the vocabulary; where it is absent the embedding serves (tied).
    Output,
    /// What the rotary frequencies are divided by.
    RopeDivisors,
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
    /// Attention output.
    AttnOutput,
    /// RMSNorm gains before the feed-forward layer.
    FfnNorm,
    /// Gate of the feed-forward layer.
    FfnGate,
    /// Its other input projection.
    FfnUp,
    /// Its output projection.
    FfnDown,
}

impl fmt::Display for Role {
    /// The name of the tensor in a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.write_str("token_embd.weight"),
            Self::Block(block, role) => write!(f, "blk.{block}.{}.weight", role.stem()),
            Self::OutputNorm => f.write_str("output_norm.weight"),
            Self::Output => f.write_str("output.weight"),
            Self::RopeDivisors => f.write_str("rope_freqs.weight"),
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
            Self::AttnOutput => "attn_output",
            Self::FfnNorm => "ffn_norm",
            Self::FfnGate => "ffn_gate",
            Self::FfnUp => "ffn_up",
            Self::FfnDown => "ffn_down",
        }
    }
}

/// Whether a tensor called `name` changes the result of a decoder that has no role for it: all of a block do that not
/// only repeat the rotary frequencies.
pub fn is_significant(name: &str) -> bool {
    let of_a_block = name.starts_with("blk.") && !name.contains("rope_freqs") && !name.contains("attn_rot_embd");
    of_a_block || SIGNIFICANT.iter().any(|part| name.contains(part))
}
