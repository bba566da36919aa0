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
    /// Transformer blocks that are run.
    pub n_layer: usize,
    /// Blocks that files have after these, to draft with; they are not run.
    pub n_draft_layer: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Width of one head, of queries, keys and values alike.
    pub head_dim: usize,
    /// Width of the feed-forward layer that every row goes through; 0 if there is none beside experts.
    pub n_ff: usize,
    /// Of which a row uses some.
    pub experts: Option<Experts>,
    /// Context length the model was trained for.
    pub n_ctx_train: usize,
    /// Epsilon of RMSNorm.
    pub rms_eps: f32,
    /// The rotations in use.
    pub ropes: Vec<RopeTable>,
    /// Which values of a head are rotated together, as files have them.
    pub pairs: Pairs,
    /// What each of the `n_layer` blocks does.
    pub blocks: Vec<Block>,
    /// What is taken of a gate.
    pub activation: Activation,
    /// What embeddings are multiplied with.
    pub embedding_scale: f32,
    /// What products of queries and keys are divided by.
    pub score_divisor: f32,
    /// `c` of `c * tanh(score / c)`, which scores become.
    pub score_cap: Option<f32>,
    /// How queries grow with their position.
    pub query_growth: Option<QueryGrowth>,
    /// What both branches of a block are multiplied with before they are added to the residual stream.
    pub residual_scale: f32,
    /// What logits are divided by.
    pub logit_divisor: f32,
    /// `c` of `c * tanh(logit / c)`, which logits become then.
    pub logit_cap: Option<f32>,
}

/// Nothing, and no fact by which a family differs from Llama.
impl Default for Config {
    fn default() -> Self {
        Self {
            n_vocab: 0,
            n_embd: 0,
            n_layer: 0,
            n_draft_layer: 0,
            n_head: 0,
            n_head_kv: 0,
            head_dim: 0,
            n_ff: 0,
            experts: None,
            n_ctx_train: 0,
            rms_eps: 0.0,
            ropes: Vec::new(),
            pairs: Pairs::Neighbours,
            blocks: Vec::new(),
            activation: Activation::Silu,
            embedding_scale: 1.0,
            score_divisor: 1.0,
            score_cap: None,
            query_growth: None,
            residual_scale: 1.0,
            logit_divisor: 1.0,
            logit_cap: None,
        }
    }
}

/// Which values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pairs {
    /// `2i` and `2i + 1`, as the engine has them.
    Neighbours,
    /// `i` and `i + n / 2` of the `n` that are rotated; loading turns them into neighbours.
    Halves,
}

/// What may differ from block to block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// The rotation of queries and keys, an index into [`Config::ropes`]; `None` leaves them as they are.
    pub rope: Option<usize>,
    /// How many positions a query sees, its own included; `None` is all.
    pub window: Option<usize>,
    /// What the file says of that, even if no session is so long.
    pub window_in_file: Option<usize>,
}

impl Block {
    /// A block that turns queries and keys by the first rotation and sees all positions.
    pub const PLAIN: Self = Self { rope: Some(0), window: None, window_in_file: None };
}

/// The experts of every block. A row uses those with the highest router logits, the first among equals, and weighs them by
/// the softmax over these logits alone: the same as that over all, divided by the sum of what is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many a block has.
    pub count: usize,
    /// How many of them a row uses.
    pub used: usize,
    /// Width of the hidden layer of one.
    pub n_ff: usize,
}

/// What a gate lets through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)` (SwiGLU, Shazeer, 2020).
    Silu,
    /// GELU in its form with tanh (GEGLU, Shazeer, 2020).
    Gelu,
}

/// A query at position `p` is multiplied with `1 + scale * ln(1 + floor(p / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// By how much.
    pub scale: f64,
    /// Every how many positions.
    pub length: usize,
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
        Self::dense_with(keys, RopeTable::read)
    }

    /// The same with a rotation that `rope` reads, for heads of a width.
    ///
    /// # Errors
    /// As [`Config::dense`].
    pub fn dense_with(keys: &Keys<'_>, rope: fn(&Keys<'_>, usize) -> Result<RopeTable>) -> Result<Self> {
        keys.check_dense()?;
        Self::common_with(keys, rope)
    }

    /// What the keys say of any decoder whose blocks are all alike.
    ///
    /// # Errors
    /// As [`Config::dense`].
    pub(super) fn common(keys: &Keys<'_>) -> Result<Self> {
        Self::common_with(keys, RopeTable::read)
    }

    fn common_with(keys: &Keys<'_>, rope: fn(&Keys<'_>, usize) -> Result<RopeTable>) -> Result<Self> {
        let n_embd = keys.required_count("embedding_length", MAX_WIDTH)?;
        let n_head = keys.required_count("attention.head_count", MAX_WIDTH)?;
        let n_head_kv = keys.count("attention.head_count_kv", MAX_WIDTH)?.unwrap_or(n_head);
        if n_head % n_head_kv != 0 {
            return Err(
                keys.error(format_args!("{n_head} query heads cannot share {n_head_kv} key/value heads evenly"))
            );
        }
        let head_dim = head_dim(keys, n_embd, n_head)?;
        let (n_layer, n_draft_layer) = layers(keys)?;
        Ok(Self {
            n_vocab: keys.tensor(Role::Embedding)?.rows(),
            n_embd,
            n_layer,
            n_draft_layer,
            n_head,
            n_head_kv,
            head_dim,
            n_ff: keys.required_count("feed_forward_length", MAX_WIDTH)?,
            n_ctx_train: keys.required_count("context_length", MAX_POSITIONS)?,
            rms_eps: keys.required_positive("attention.layer_norm_rms_epsilon")?,
            ropes: vec![rope(keys, head_dim)?],
            blocks: vec![Block::PLAIN; n_layer],
            score_divisor: (head_dim as f32).sqrt(),
            ..Self::default()
        })
    }

    /// The same with pairs as most families have them.
    pub fn with_halves(self) -> Self {
        Self { pairs: Pairs::Halves, ..self }
    }

    /// Fixes what depends on how many positions a session has. Returns notes for the user.
    pub fn settle(&mut self, n_ctx: usize) -> Vec<String> {
        let mut notes: Vec<String> = self.ropes.iter_mut().filter_map(|rope| rope.settle(n_ctx)).collect();
        for block in &mut self.blocks {
            block.window = block.window_in_file.filter(|&window| window < n_ctx);
        }
        let windows: Vec<usize> = self.blocks.iter().filter_map(|block| block.window).collect();
        if let Some(window) = windows.first() {
            let (count, all) = (windows.len(), self.n_layer);
            notes.push(format!("{count} of {all} blocks see only the last {window} positions"));
        }
        notes
    }

    /// What scores, which are logarithms to base 2, are multiplied with in the row of a query at `position`.
    pub fn query_scale(&self, position: usize) -> f32 {
        let scale = std::f32::consts::LOG2_E / self.score_divisor;
        match self.query_growth {
            None => scale,
            Some(QueryGrowth { scale: by, length }) => scale * (1.0 + by * ((position / length) as f64).ln_1p()) as f32,
        }
    }

    /// Sets every value that the numbers of the model depend on.
    pub fn identify(&self, identity: &mut Identity) {
        // All fields are named, so that a new one is not forgotten here.
        let Self { n_vocab, n_embd, n_layer, n_draft_layer: _, n_head, n_head_kv, head_dim, n_ff, n_ctx_train, .. } =
            self;
        let Self { rms_eps, ropes, pairs, blocks, activation, embedding_scale, score_divisor, score_cap, .. } = self;
        let Self { query_growth, residual_scale, logit_divisor, logit_cap, experts, .. } = self;
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
        for (i, RopeTable { freqs, magnitude, long: _ }) in ropes.iter().enumerate() {
            let freqs: Vec<String> = freqs.iter().map(f64::to_string).collect();
            identity.set(format_args!("ropes.{i}"), freqs.join(" "));
            identity.set_unless(format_args!("ropes.{i}.magnitude"), *magnitude, 1.0);
        }
        if *pairs == Pairs::Halves {
            identity.set("pairs", "halves");
        }
        for (i, Block { rope, window: _, window_in_file }) in blocks.iter().enumerate() {
            match rope {
                Some(0) => (),
                Some(rope) => identity.set(format_args!("blocks.{i}.rope"), rope),
                None => identity.set(format_args!("blocks.{i}.rope"), "none"),
            }
            identity.set_some(format_args!("blocks.{i}.window"), *window_in_file);
        }
        if *activation == Activation::Gelu {
            identity.set("activation", "gelu");
        }
        identity.set_unless("embedding_scale", *embedding_scale, 1.0);
        identity.set_unless("score_divisor", *score_divisor, (*head_dim as f32).sqrt());
        identity.set_some("score_cap", *score_cap);
        identity.set_some("query_growth", query_growth.map(|growth| format!("{} {}", growth.scale, growth.length)));
        identity.set_unless("residual_scale", *residual_scale, 1.0);
        identity.set_unless("logit_divisor", *logit_divisor, 1.0);
        identity.set_some("logit_cap", *logit_cap);
        identity.set_some("experts", experts.map(|Experts { count, used, n_ff }| format!("{count} {used} {n_ff}")));
    }
}

/// Blocks that are run, and blocks after them that draft.
fn layers(keys: &Keys<'_>) -> Result<(usize, usize)> {
    const DRAFTING: &str = "nextn_predict_layers";
    let all = keys.required_count("block_count", MAX_LAYERS)?;
    let drafting = keys.file().metadata().get_u64(&keys.name(DRAFTING))?.unwrap_or(0);
    match usize::try_from(drafting) {
        Ok(drafting) if drafting < all => Ok((all - drafting, drafting)),
        _ => Err(keys.error(format_args!(
            "metadata `{}` is {drafting} but must be less than the {all} blocks of `{}`",
            keys.name(DRAFTING),
            keys.name("block_count")
        ))),
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
