//! The memory that a pass works in.

use crate::arch::config::Config;
use crate::forward::decoder::Decoder;
use crate::forward::matmul::Activations;
use crate::weights::load::Layer;
use crate::workers::shared::Shared;

/// Intermediate results of a pass, reused from one to the next.
pub struct Buffers {
    /// Rows there is room for.
    pub rows: usize,
    /// The residual stream.
    pub(super) x: Shared<f32>,
    /// Queries, keys and values.
    pub(super) qkv: Shared<f32>,
    /// Normed input of the layers' products.
    pub(super) normed: Activations,
    /// Normed input of the output product; where logits are wanted, below it what quantising took off each row.
    pub(super) output: Activations,
    /// What quantising took off `output`, where only the most likely tokens are wanted.
    pub(super) output_rest: Activations,
    /// Attention output.
    pub(super) attended: Activations,
    /// Activated feed-forward values.
    pub(super) hidden: Activations,
}

impl Buffers {
    /// Room for `rows` rows.
    pub fn new(decoder: &Decoder, rows: usize) -> Self {
        let Decoder { config, weights, .. } = decoder;
        let Config { n_embd, n_head, n_head_kv, head_dim, n_ff, .. } = *config;
        let floats = weights.layers.iter().flat_map(Layer::matrices).any(|matrix| matrix.dtype.is_float());
        Self {
            rows,
            x: Shared::zeroed(rows * n_embd),
            qkv: Shared::zeroed(rows * (n_head + 2 * n_head_kv) * head_dim),
            normed: Activations::new(n_embd, floats),
            output: Activations::new(n_embd, weights.output.dtype.is_float()),
            output_rest: Activations::new(n_embd, false),
            attended: Activations::new(n_head * head_dim, floats || !decoder.heads_are_groups()),
            hidden: Activations::new(n_ff, floats),
        }
    }
}
