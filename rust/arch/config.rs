//! Shapes and constants of a decoder, and what its blocks do.

use crate::arch::keys::{Keys, MAX_WIDTH};
use crate::arch::roles::Role;
use crate::arch::rope::RopeTable;
use crate::error::Result;
use crate::identity::Identity;

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
    /// The rotations in use.
    pub ropes: Vec<RopeTable>,
    /// What each of the `n_layer` blocks does.
    pub blocks: Vec<Block>,
}

/// What may differ from block to block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// The rotation of queries and keys, an index into [`Config::ropes`]; `None` leaves them as they are.
    pub rope: Option<usize>,
}

/// Blocks; no model has a tenth of it.
const MAX_LAYERS: u64 = 1 << 12;
/// As many positions can be told apart by the rotary angles.
const MAX_POSITIONS: u64 = i32::MAX as u64;

impl Config {
    /// What the keys say of a decoder without experts whose blocks are all alike.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) names what is missing, contradictory or not supported.
    pub fn dense(keys: &Keys<'_>) -> Result<Self> {
        keys.check_dense()?;
        let n_embd = keys.required_count("embedding_length", MAX_WIDTH)?;
        let n_head = keys.required_count("attention.head_count", MAX_WIDTH)?;
        let n_head_kv = keys.count("attention.head_count_kv", MAX_WIDTH)?.unwrap_or(n_head);
        if n_head % n_head_kv != 0 {
            return Err(
                keys.error(format_args!("{n_head} query heads cannot share {n_head_kv} key/value heads evenly"))
            );
        }
        let head_dim = head_dim(keys, n_embd, n_head)?;
        let n_layer = keys.required_count("block_count", MAX_LAYERS)?;
        Ok(Self {
            n_vocab: keys.tensor(Role::Embedding)?.rows(),
            n_embd,
            n_layer,
            n_head,
            n_head_kv,
            head_dim,
            n_ff: keys.required_count("feed_forward_length", MAX_WIDTH)?,
            n_ctx_train: keys.required_count("context_length", MAX_POSITIONS)?,
            rms_eps: keys.required_positive("attention.layer_norm_rms_epsilon")?,
            ropes: vec![RopeTable::read(keys, head_dim)?],
            blocks: vec![Block { rope: Some(0) }; n_layer],
        })
    }

    /// Sets every value that the numbers of the model depend on.
    pub fn identify(&self, identity: &mut Identity) {
        // All fields are named, so that a new one is not forgotten here.
        let Self { n_vocab, n_embd, n_layer, n_head, n_head_kv, head_dim, n_ff, n_ctx_train, rms_eps, ropes, blocks } =
            self;
        let counts = [
            ("n_vocab", n_vocab),
            ("n_embd", n_embd),
            ("n_layer", n_layer),
            ("n_head", n_head),
            ("n_head_kv", n_head_kv),
            ("head_dim", head_dim),
            ("n_ff", n_ff),
            ("n_ctx_train", n_ctx_train),
        ];
        for (name, count) in counts {
            identity.set(name, count);
        }
        identity.set("rms_eps", rms_eps);
        for (i, RopeTable { freqs }) in ropes.iter().enumerate() {
            let freqs: Vec<String> = freqs.iter().map(f64::to_string).collect();
            identity.set(format_args!("ropes.{i}"), freqs.join(" "));
        }
        for (i, Block { rope }) in blocks.iter().enumerate() {
            match rope {
                Some(0) => (),
                Some(rope) => identity.set(format_args!("blocks.{i}.rope"), rope),
                None => identity.set(format_args!("blocks.{i}.rope"), "none"),
            }
        }
    }
}

fn head_dim(keys: &Keys<'_>, n_embd: usize, n_head: usize) -> Result<usize> {
    const KEYS: &str = "attention.key_length";
    const VALUES: &str = "attention.value_length";
    match (keys.count(KEYS, MAX_WIDTH)?, keys.count(VALUES, MAX_WIDTH)?) {
        (Some(width), Some(values)) if width != values => Err(keys.error(format_args!(
            "heads with keys of {width} and values of {values} are not supported: `{}` and `{}` must be equal",
            keys.name(KEYS),
            keys.name(VALUES)
        ))),
        (Some(width), _) | (None, Some(width)) => Ok(width),
        (None, None) if n_embd.is_multiple_of(n_head) => Ok(n_embd / n_head),
        (None, None) => Err(keys.error(format_args!(
            "{n_head} heads do not divide the width {n_embd} evenly and `{}` is missing",
            keys.name(KEYS)
        ))),
    }
}

#[cfg(test)]
mod tests;
