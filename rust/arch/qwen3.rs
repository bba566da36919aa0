//! Qwen 3: every head of queries and keys is normed.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::tensors::{dense, head_norms, Tensor};
use crate::error::Result;

/// Like Llama but for the pairs of the rotation and the norms.
pub const FAMILY: Family = Family { name: "qwen3", config, tensors };

fn config(keys: &Keys<'_>) -> Result<Config> {
    Ok(Config::dense(keys)?.with_halves())
}

fn tensors(config: &Config) -> Vec<Tensor> {
    dense(config).into_iter().chain(head_norms(config, false)).collect()
}
