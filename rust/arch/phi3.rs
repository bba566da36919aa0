//! Phi-3, Phi-3.5 and Phi-4: gate and up in one matrix, and two sets of frequencies, for short sessions and long ones.
//!
//! Where the file has a window, all blocks have it, as in the model's own definition (`transformers`); llama.cpp leaves it
//! out. Of Phi-3-mini-4k a query so sees 2,047 positions.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::roles::Role;
use crate::arch::rope::RopeTable;
use crate::arch::tensors::{dense, with_fused_gate, Tensor};
use crate::arch::windows::SeesAll;
use crate::error::Result;

/// Like Llama but for the rotation, the matrices that are one, and the windows.
pub const FAMILY: Family = Family { name: "phi3", config, tensors };

fn config(keys: &Keys<'_>) -> Result<Config> {
    Config::dense_with(keys, RopeTable::long)?.with_halves().with_windows(keys, None, SeesAll::Never)
}

fn tensors(config: &Config) -> Vec<Tensor> {
    let divisors = config.ropes.iter().filter(|rope| rope.long.is_some()).flat_map(|rope| {
        let shape = [rope.freqs.len()];
        [Role::ShortRopeDivisors, Role::LongRopeDivisors].map(|role| Tensor::new(role, &shape))
    });
    with_fused_gate(config, dense(config)).into_iter().chain(divisors).collect()
}
