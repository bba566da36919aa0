//! GLM-4 (0414): norms before and after each branch, gate and up in one matrix, and half of a head rotated.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::tensors::{dense, post_norms, with_fused_gate, Tensor};

/// Like Llama but for the norms and the matrix that is two.
pub const FAMILY: Family = Family { name: "glm4", config: Config::dense, tensors };

fn tensors(config: &Config) -> Vec<Tensor> {
    with_fused_gate(config, dense(config)).into_iter().chain(post_norms(config)).collect()
}
