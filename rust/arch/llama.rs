//! Llama 1 to 3 and what was made in their image: Mistral, SmolLM2, TinyLlama.

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::tensors::dense_with_biases;

/// The decoder that other families vary.
pub const FAMILY: Family = Family { name: "llama", config: Config::dense, tensors: dense_with_biases };
