//! Qwen 2 and 2.5: biases of queries, keys and values, which every family may have, and of the output.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::roles::Role;
use crate::arch::tensors::{dense, Tensor};
use crate::error::Result;

/// Like Llama but for the pairs of the rotation and the biases.
pub const FAMILY: Family = Family { name: "qwen2", config, tensors };

fn config(keys: &Keys<'_>) -> Result<Config> {
    Ok(Config::dense(keys)?.with_halves())
}

fn tensors(config: &Config) -> Vec<Tensor> {
    let mut tensors = dense(config);
    tensors.push(Tensor::new(Role::OutputBias, &[config.n_vocab]).optional());
    tensors
}
