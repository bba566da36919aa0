//! The mixtures of experts of Granite 3: 1B-A400M and 3B-A800M, and those of Granite 4 that have an expert which all rows use.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::experts::with_experts;
use crate::arch::granite::with_factors;
use crate::arch::keys::Keys;
use crate::arch::tensors::{dense, Tensor};
use crate::error::Result;

/// Like Granite but for the experts.
pub const FAMILY: Family = Family { name: "granitemoe", config, tensors };

fn config(keys: &Keys<'_>) -> Result<Config> {
    with_factors(keys, Config::with_experts(keys)?.with_shared_expert(keys)?)
}

fn tensors(config: &Config) -> Vec<Tensor> {
    with_experts(config, dense(config))
}
