//! The mixtures of experts of Qwen 3: 30B-A3B, Coder 30B-A3B, 235B-A22B.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::experts::with_experts;
use crate::arch::keys::{Keys, MAX_WIDTH};
use crate::arch::qwen3;
use crate::arch::tensors::Tensor;
use crate::error::Result;

/// Like Qwen 3 but for the experts.
pub const FAMILY: Family = Family { name: "qwen3moe", config, tensors };

fn config(keys: &Keys<'_>) -> Result<Config> {
    let config = Config::with_experts(keys)?.with_halves();
    // Older files say only how wide those of a row are together.
    let together = config.experts.map(|experts| experts.n_ff / experts.used);
    let own = keys.count("expert_feed_forward_length", MAX_WIDTH)?;
    Ok(config.with_expert_width(own.or(together)))
}

fn tensors(config: &Config) -> Vec<Tensor> {
    with_experts(config, (qwen3::FAMILY.tensors)(config))
}
