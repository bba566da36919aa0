//! The memory that a pass works in.

use crate::arch::config::{Config, Experts};
use crate::forward::decoder::Decoder;
use crate::forward::matmul::{Activations, Names};
use crate::forward::routes::slots;
use crate::kernels::layout::{interleaved, GROUP, TILE};
use crate::weights::load::Layer;
use crate::workers::shared::{Name, Shared, Table};
use std::sync::atomic::{AtomicU64, Ordering};

// Their names, beside those of the pages of the cache and of logits, which have index 0 and 15.
pub(super) const X: Name = Name::new(1, "the residual stream");
pub(super) const QKV: Name = Name::new(2, "queries, keys and values");
pub(super) const NORMED: Names = [Name::new(3, "normed floats"), Name::new(4, "normed values")];
pub(super) const ATTENDED: Names = [Name::new(5, "attended floats"), Name::new(6, "attended values")];
pub(super) const HIDDEN: Names = [Name::new(7, "hidden floats"), Name::new(8, "hidden values")];
pub(super) const OUTPUT: Names = [Name::new(9, "output floats"), Name::new(10, "output values")];
pub(super) const REST: Names = [Name::new(11, "floats of the output rest"), Name::new(12, "the output rest")];
pub(super) const STATES: Name = Name::new(13, "states of segments");
pub(super) const SUMS: Name = Name::new(14, "sums of segments");
pub(super) const TOKENS: Name = Name::new(16, "tokens");
pub(super) const BRANCH: Name = Name::new(17, "a branch");
pub(super) const ROUTED: Name = Name::new(18, "router logits");
pub(super) const GATHERED: Names = [Name::new(19, "gathered floats"), Name::new(20, "gathered values")];

/// Intermediate results of a pass, reused from one to the next.
pub struct Buffers {
    /// Rows there is room for.
    pub rows: usize,
    /// The residual stream.
    pub(super) x: Shared<f32>,
    /// What a branch will add to it, where that is normed before.
    pub(super) branch: Shared<f32>,
    /// Queries, keys and values, each padded to whole tiles.
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
    /// What experts need.
    pub(super) experts: Option<ExpertBuffers>,
}

/// Intermediate results of experts.
pub(super) struct ExpertBuffers {
    pub(super) experts: Experts,
    /// A logit of every expert for every row.
    pub(super) logits: Shared<f32>,
    /// Normed rows, by experts: see [`Routes`](crate::forward::routes::Routes).
    pub(super) gathered: Activations,
    /// Their activated feed-forward values.
    pub(super) hidden: Activations,
    /// How many rows of the pass went to each expert, `[layers][experts]`.
    pub(super) counts: Vec<AtomicU64>,
}

impl ExpertBuffers {
    fn new(config: &Config, experts: Experts, floats: bool) -> Self {
        Self {
            experts,
            logits: Shared::zeroed(ROUTED, Table::new(0, experts.count)),
            gathered: Activations::new(GATHERED, config.n_embd, floats),
            // In no phase beside the values of the feed-forward layer that every row goes through.
            hidden: Activations::new(HIDDEN, experts.n_ff, floats),
            counts: (0..config.n_layer * experts.count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn reset(&mut self, rows: usize) {
        self.logits.arrange(Table::new(rows, self.experts.count).by_columns(GROUP));
        let slots = slots(rows, self.experts, interleaved(rows));
        for activations in [&mut self.gathered, &mut self.hidden] {
            activations.arrange(slots, interleaved(rows));
        }
        self.counts.iter_mut().for_each(|count| *count.get_mut() = 0);
    }
}

impl Buffers {
    /// Room for `rows` rows.
    pub fn new(decoder: &Decoder, rows: usize) -> Self {
        let Decoder { config, weights, .. } = decoder;
        let Config { n_embd, n_head, n_head_kv, head_dim, n_ff, .. } = *config;
        let floats = weights.layers.iter().flat_map(Layer::matrices).any(|matrix| matrix.dtype.is_float());
        let attended = Activations::new(ATTENDED, n_head * head_dim, floats || !decoder.heads_are_groups());
        let mut new = Self {
            rows,
            x: Shared::zeroed(X, Table::new(0, n_embd)),
            branch: Shared::zeroed(BRANCH, Table::new(0, n_embd)),
            qkv: Shared::zeroed(QKV, Table::new(0, qkv_columns(config).iter().sum())),
            normed: Activations::new(NORMED, n_embd, floats || config.experts.is_some()),
            output: Activations::new(OUTPUT, n_embd, weights.output.dtype.is_float()),
            output_rest: Activations::new(REST, n_embd, false),
            attended: attended.of_heads(n_head / n_head_kv, head_dim),
            hidden: Activations::new(HIDDEN, n_ff, floats),
            experts: config.experts.map(|experts| ExpertBuffers::new(config, experts, floats)),
        };
        new.reset(rows);
        new
    }

    /// Adds to `totals` how many rows of the last pass went to each expert, `[layers][experts]`.
    pub fn count_experts(&self, totals: &[AtomicU64]) {
        for (total, count) in totals.iter().zip(self.experts.iter().flat_map(|experts| &experts.counts)) {
            total.fetch_add(count.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Lays out those whose rows are the rows of a pass.
    pub(super) fn reset(&mut self, rows: usize) {
        for floats in [&mut self.x, &mut self.branch, &mut self.qkv] {
            floats.arrange(Table::new(rows, floats.columns()).by_columns(GROUP));
        }
        for activations in [&mut self.normed, &mut self.attended, &mut self.hidden] {
            activations.reset(rows);
        }
        if let Some(experts) = &mut self.experts {
            experts.reset(rows);
        }
    }
}

/// Columns of the queries, the keys and the values of a row.
pub(super) fn qkv_columns(config: &Config) -> [usize; 3] {
    let Config { n_head, n_head_kv, head_dim, .. } = *config;
    [n_head, n_head_kv, n_head_kv].map(|heads| (heads * head_dim).next_multiple_of(TILE))
}
