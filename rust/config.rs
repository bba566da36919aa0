//! The hyper-parameters of a Llama model, read from the metadata of its file.

/// Shapes and constants of the decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding table, padding rows included.
    pub n_vocab: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Transformer blocks.
    pub n_layer: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Width of one head, of queries, keys and values alike.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub n_ff: usize,
    /// Context length the model was trained for.
    pub n_ctx_train: usize,
    /// Epsilon of RMSNorm.
    pub rms_eps: f32,
    /// Rotation per position of each pair `(2i, 2i+1)` of a head, in radians; at most `head_dim / 2` long.
    ///
    /// Linear scaling and the factors of `rope_freqs.weight` are already in it.
    pub rope_freqs: Vec<f64>,
}
