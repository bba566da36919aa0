//! Llama 1 to 3 and what was made in their image: Mistral, SmolLM2, TinyLlama, and with experts Mixtral.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::experts::with_experts;
use crate::arch::keys::Keys;
use crate::arch::tensors::{dense_with_biases, Tensor};
use crate::error::Result;

/// The decoder that other families vary.
pub const FAMILY: Family = Family { name: "llama", config, tensors };

fn config(keys: &Keys<'_>) -> Result<Config> {
    match keys.has_experts()? {
        true => Config::with_experts(keys),
        false => Config::dense(keys),
    }
}

fn tensors(config: &Config) -> Vec<Tensor> {
    with_experts(config, dense_with_biases(config))
}
