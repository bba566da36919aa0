//! Gemma 3: Gemma 2 with norms of queries and keys in place of the cap on scores, and windows in five of six blocks, which
//! have a rotation of their own.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::gemma2::gemma;
use crate::arch::keys::Keys;
use crate::arch::rope::RopeTable;
use crate::arch::tensors::{dense, head_norms, post_norms, Tensor};
use crate::arch::windows::SeesAll;
use crate::error::Result;

/// Like Gemma 2 but for norms of queries and keys, no cap on scores, and the rotation in windowed blocks.
pub const FAMILY: Family = Family { name: "gemma3", config, tensors };

/// Blocks of the 27B model.
const BLOCKS_OF_27B: usize = 62;

fn config(keys: &Keys<'_>) -> Result<Config> {
    let mut config = gemma(keys, BLOCKS_OF_27B)?.with_windows(keys, None, SeesAll::LastOf(6))?;
    config.logit_cap = keys.switch("final_logit_softcapping")?;
    let rope = RopeTable::unscaled(keys, config.head_dim, "rope.freq_base_swa")?;
    Ok(config.with_rope_in_windows(rope))
}

fn tensors(config: &Config) -> Vec<Tensor> {
    dense(config).into_iter().chain(head_norms(config, false)).chain(post_norms(config)).collect()
}
