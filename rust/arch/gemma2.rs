//! Gemma 2: norms before and after each branch, GELU, windows in every other block, and caps on scores and logits.
//!
//! Files hold the gains of the norms with the 1 that the model adds to them.

use crate::arch::config::{Activation, Config};
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::tensors::{dense, post_norms, Tensor};
use crate::arch::windows::SeesAll;
use crate::error::Result;

/// Like Llama but for norms, GELU, windows, caps and the scale of embeddings.
pub const FAMILY: Family = Family { name: "gemma2", config, tensors };

/// Blocks of the 27B model, whose scores are scaled by the width of the stream; no key says it.
const BLOCKS_OF_27B: usize = 46;

fn config(keys: &Keys<'_>) -> Result<Config> {
    let config = gemma(keys, BLOCKS_OF_27B)?.with_windows(keys, Some(4096), SeesAll::LastOf(2))?;
    let cap = |key, default| Ok(keys.switch(key)?.or(keys.is_silent(key).then_some(default)));
    Ok(Config {
        score_cap: cap("attn_logit_softcapping", 50.0)?,
        logit_cap: cap("final_logit_softcapping", 30.0)?,
        ..config
    })
}

/// What all of Gemma has; the scores of the model with `wide` blocks are scaled by the width of the stream.
pub(super) fn gemma(keys: &Keys<'_>, wide: usize) -> Result<Config> {
    let config = Config::dense(keys)?.with_halves();
    let score_divisor = match config.n_layer == wide {
        true => (config.n_embd as f32 / config.n_head as f32).sqrt(),
        false => config.score_divisor,
    };
    let embedding_scale = (config.n_embd as f32).sqrt();
    Ok(Config { activation: Activation::Gelu, embedding_scale, score_divisor, ..config })
}

fn tensors(config: &Config) -> Vec<Tensor> {
    dense(config).into_iter().chain(post_norms(config)).collect()
}
