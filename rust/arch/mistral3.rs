//! Ministral 3 (2025): a Llama whose queries grow with their position.

use crate::arch::config::{Config, QueryGrowth};
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::rope::original;
use crate::arch::tensors::dense_with_biases;
use crate::error::Result;

/// Like Llama but for the queries.
pub const FAMILY: Family = Family { name: "mistral3", config, tensors: dense_with_biases };

fn config(keys: &Keys<'_>) -> Result<Config> {
    let query_growth = match keys.switch("attention.temperature_scale")? {
        None => None,
        Some(scale) => Some(QueryGrowth { scale: scale.into(), length: original(keys)? }),
    };
    Ok(Config { query_growth, ..Config::dense(keys)? })
}
