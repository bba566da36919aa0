//! Granite 3 and the dense ones of Granite 4: a Llama with four factors.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::tensors::dense_with_biases;
use crate::error::Result;

/// Like Llama but for the factors.
pub const FAMILY: Family = Family { name: "granite", config, tensors: dense_with_biases };

fn config(keys: &Keys<'_>) -> Result<Config> {
    with_factors(keys, Config::dense(keys)?)
}

/// `config` with the factors of Granite.
pub(super) fn with_factors(keys: &Keys<'_>, mut config: Config) -> Result<Config> {
    config.embedding_scale = keys.switch("embedding_scale")?.unwrap_or(1.0);
    if let Some(scale) = keys.switch("attention.scale")? {
        config.score_divisor = 1.0 / scale;
    }
    config.residual_scale = keys.switch("residual_scale")?.unwrap_or(1.0);
    config.logit_divisor = keys.required_positive("logit_scale")?;
    if keys.flag("rope.scaling.finetuned")? == Some(false) {
        config.blocks.iter_mut().for_each(|block| block.rope = None);
    }
    Ok(config)
}
