//! OLMo 2 and 3: norms after each branch but none before, and of all queries and all keys together. OLMo 3 has windows in
//! three of four blocks, in which positions are not stretched.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::roles::BlockRole::{AttnNorm, FfnNorm};
use crate::arch::roles::Role;
use crate::arch::rope::{RopeTable, FREQ_BASE};
use crate::arch::tensors::{dense, head_norms, post_norms, without, Tensor};
use crate::arch::windows::SeesAll;
use crate::error::Result;

/// Like Llama but for the norms and windows.
pub const FAMILY: Family = Family { name: "olmo2", config, tensors };

fn config(keys: &Keys<'_>) -> Result<Config> {
    let config = Config::dense(keys)?.with_halves().with_windows(keys, None, SeesAll::LastOf(4))?;
    let rope = RopeTable::unscaled(keys, config.head_dim, FREQ_BASE)?;
    Ok(config.with_rope_in_windows(rope))
}

fn tensors(config: &Config) -> Vec<Tensor> {
    let mut tensors = without(&[AttnNorm, FfnNorm], dense(config));
    // Never tied.
    tensors.iter_mut().filter(|tensor| tensor.role == Role::Output).for_each(|tensor| tensor.optional = false);
    tensors.into_iter().chain(head_norms(config, true)).chain(post_norms(config)).collect()
}
