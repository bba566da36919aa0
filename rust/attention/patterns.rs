//! Sparse attention: which blocks of 64 positions the queries of a prompt attend to.
//!
//! A pattern decides, the kernel of [`crate::attention::units`] runs any decision. What a query keeps depends on its position,
//! its own values and earlier keys alone, never on how a prompt is cut into calls or on what follows.

#[cfg(test)]
mod tests;

use crate::attention::cache::PAGE;
use crate::attention::kept::Kept;
use crate::attention::selection::{MeanRule, Selection};
use crate::attention::units::{Queries, Unit};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// A choice of blocks. Every query keeps its own block; sizes of parts are in blocks.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// The first blocks and the ones before the query's (StreamingLLM, Xiao et al., 2023), and with `log` also the
    /// blocks at distances 2, 4, 8 and so on.
    Window {
        /// Blocks at the beginning.
        sink: usize,
        /// Blocks before the query's own.
        window: usize,
        /// Whether to keep distances that are powers of two.
        log: bool,
    },
    /// The blocks with a key that scores high enough, for each query, of those that may have one, judged by the mean and
    /// the spread of their keys (after FlashPrefill, and SpargeAttn for the first).
    BlockMean {
        /// Least weight of a block's highest key relative to all.
        alpha: f32,
        /// How far above the mean key the highest is thought to score, in standard deviations.
        spread: f32,
        /// Least weight of a block's highest key once it is known, likewise; 0 for any.
        least: f32,
        /// Blocks at the beginning that are always scored.
        sink: usize,
        /// Blocks before the query's own that are always scored.
        window: usize,
        /// Whether the means of the other blocks stand in for them.
        correct: bool,
    },
    /// The blocks that hold most of each query's attention, as estimated from keys on antidiagonals of the scores
    /// (after XAttention, Xu et al., 2025).
    Antidiagonal {
        /// Distance of the sampled keys, a power of two up to 64.
        stride: usize,
        /// Least share of the estimated attention that the kept blocks hold.
        tau: f32,
        /// Blocks at the beginning that are always kept.
        sink: usize,
        /// Blocks before the query's own that are always kept.
        window: usize,
    },
    /// What a mask says, `[blocks][blocks]`, 0 for no; queries beyond it keep all.
    Mask {
        /// Rows and columns.
        blocks: usize,
        /// Row: block of the query; column: block of the key.
        kept: Vec<u8>,
    },
    /// Exact for queries at positions below.
    DenseBelow(usize, Box<Pattern>),
    /// Exact in the first and last layers.
    DenseLayers {
        /// Exact layers at the beginning.
        first: Layers,
        /// Exact layers at the end.
        last: Layers,
        /// In the other layers.
        inner: Box<Pattern>,
    },
    /// One pattern in the first layers and another in all others.
    LayerSplit {
        /// Layers at the beginning.
        first: Layers,
        /// In these.
        early: Box<Pattern>,
        /// In the others.
        late: Box<Pattern>,
    },
    /// Exact for at least so many positions at the end of a prompt.
    DenseTail(usize, Box<Pattern>),
}

/// Some of the layers of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layers {
    /// So many.
    Count(usize),
    /// A share of them, rounded.
    Share(f32),
}

impl Layers {
    /// How many of `n_layer` layers they are.
    pub fn of(self, n_layer: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Share(share) => (share * n_layer as f32).round() as usize,
        }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Share(share) => share.fmt(f),
        }
    }
}

/// How the tokens of a prompt attend.
#[derive(Clone)]
pub struct PromptAttention {
    /// What to keep.
    pub pattern: Arc<Pattern>,
    /// Positions when the prompt is complete.
    pub end: usize,
    /// Where to count what is kept.
    pub counts: Option<Arc<Counts>>,
}

/// For how many queries which block's values counted, `[layers][blocks of queries][blocks of keys]`.
pub struct Counts {
    blocks: usize,
    counts: Vec<AtomicU32>,
}

impl Counts {
    /// Zeros for `n_layer` layers and `blocks` blocks.
    pub fn new(n_layer: usize, blocks: usize) -> Self {
        Self { blocks, counts: (0..n_layer * blocks * blocks).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Counts the queries of a unit; without `kept` they attend to all blocks that their window shows.
    pub fn add(&self, unit: &Unit<'_>, kept: Option<&Kept>) {
        for block in unit.first_block()..=unit.own_block() {
            let queries = kept.map_or(unit.queries(), |kept| kept.block(block).iter().filter(|&&kept| kept).count());
            let at = (unit.layer * self.blocks + unit.own_block()) * self.blocks + block;
            self.counts[at].fetch_add(queries as u32, Ordering::Relaxed);
        }
    }

    /// The counts.
    pub fn values(&self) -> impl Iterator<Item = u32> + '_ {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed))
    }
}

impl PromptAttention {
    /// What rules block `own` of queries in `layer` of `n_layer`, never a pattern that wraps another; `None` is exact.
    pub fn rule(&self, n_layer: usize, layer: usize, own: usize) -> Option<&Pattern> {
        let mut pattern = &*self.pattern;
        loop {
            pattern = match pattern {
                Pattern::DenseBelow(positions, _) if own < positions.div_ceil(PAGE) => return None,
                Pattern::DenseTail(positions, _) if own >= self.end.saturating_sub(*positions) / PAGE => return None,
                Pattern::DenseLayers { first, last, .. }
                    if layer < first.of(n_layer) || layer + last.of(n_layer) >= n_layer =>
                {
                    return None
                }
                Pattern::LayerSplit { first, early, late } => match layer < first.of(n_layer) {
                    true => early,
                    false => late,
                },
                Pattern::DenseBelow(_, inner) | Pattern::DenseTail(_, inner) | Pattern::DenseLayers { inner, .. } => {
                    inner
                }
                Pattern::Window { .. }
                | Pattern::BlockMean { .. }
                | Pattern::Antidiagonal { .. }
                | Pattern::Mask { .. } => return Some(pattern),
            }
        }
    }

    /// Whether the query at `position` is known to attend to everything in every layer, and none of it is counted.
    pub fn is_exact(&self, position: usize) -> bool {
        self.counts.is_none() && position < self.pattern.dense_below()
    }

    /// The blocks that the queries of `unit` keep, `None` for all.
    pub fn select<'s>(
        &self,
        n_layer: usize,
        unit: &Unit<'_>,
        queries: &Queries,
        selection: &'s mut Selection,
    ) -> Option<&'s mut Selection> {
        let own = unit.own_block();
        let rule = self.rule(n_layer, unit.layer, own)?;
        selection.clear(unit);
        let always = |block: usize| rule.always_keeps(own, block);
        match *rule {
            Pattern::BlockMean { alpha, spread, least, correct, .. } => {
                selection.keep_by_means(unit, queries, MeanRule { alpha, spread, least }, correct, always);
            }
            Pattern::Antidiagonal { stride, tau, .. } => selection.keep_by_samples(unit, queries, stride, tau, always),
            _ => selection.keep(own, always),
        }
        Some(selection)
    }
}

impl Pattern {
    /// What `attention="auto"` stands for.
    pub fn auto() -> Self {
        let by_means = |[alpha, spread]: [f32; 2]| {
            Self::BlockMean { alpha, spread, least: 0.0005, sink: 1, window: 4, correct: true }.into()
        };
        // The first layers look around widely, and all the others build on what they make of it.
        let [early, late] = [[0.0005, 3.5], [0.004, 3.0]].map(by_means);
        Self::DenseBelow(4096, Self::LayerSplit { first: Layers::Share(0.4), early, late }.into())
    }

    /// Whether every query of block `own` keeps `block`, until it is scored, whatever its values; for patterns that wrap no
    /// other.
    pub fn always_keeps(&self, own: usize, block: usize) -> bool {
        match self {
            Self::Window { sink, window, .. }
            | Self::BlockMean { sink, window, .. }
            | Self::Antidiagonal { sink, window, .. }
                if block < *sink || own - block <= *window =>
            {
                true
            }
            Self::Window { log, .. } => *log && (own - block).is_power_of_two(),
            Self::Mask { blocks, kept } => block == own || own >= *blocks || kept[own * blocks + block] != 0,
            _ => false,
        }
    }

    /// Whether what a query keeps depends on its values.
    pub fn is_dynamic(&self) -> bool {
        match self {
            Self::DenseBelow(_, inner) | Self::DenseTail(_, inner) | Self::DenseLayers { inner, .. } => {
                inner.is_dynamic()
            }
            Self::LayerSplit { early, late, .. } => early.is_dynamic() || late.is_dynamic(),
            Self::BlockMean { .. } | Self::Antidiagonal { .. } => true,
            Self::Window { .. } | Self::Mask { .. } => false,
        }
    }

    /// Where the exact tail of a prompt that ends at `end` starts, in the layer where it starts first and in the one where
    /// it starts last.
    pub fn tail_starts(&self, end: usize) -> [usize; 2] {
        match self {
            Self::DenseTail(positions, inner) => {
                let start = end.saturating_sub(*positions) / PAGE * PAGE;
                inner.tail_starts(end).map(|inner| inner.min(start))
            }
            Self::DenseBelow(_, inner) | Self::DenseLayers { inner, .. } => inner.tail_starts(end),
            Self::LayerSplit { early, late, .. } => {
                let [[first, last], [late_first, late_last]] = [early, late].map(|pattern| pattern.tail_starts(end));
                [first.min(late_first), last.max(late_last)]
            }
            _ => [end, end],
        }
    }

    /// Positions below which a prompt is attended to exactly.
    pub fn dense_below(&self) -> usize {
        match self {
            Self::DenseBelow(positions, inner) => (*positions).max(inner.dense_below()),
            Self::DenseTail(_, inner) | Self::DenseLayers { inner, .. } => inner.dense_below(),
            Self::LayerSplit { early, late, .. } => early.dense_below().min(late.dense_below()),
            _ => 0,
        }
    }
}

/// The call that makes the pattern in Python; a mask by its hash.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window { sink, window, log } => {
                let name = if *log { "SinkWindowLog" } else { "SinkWindow" };
                write!(f, "{name}(sink={}, window={})", sink * PAGE, window * PAGE)
            }
            Self::BlockMean { alpha, spread, least, sink, window, correct } => {
                let correct = if *correct { "True" } else { "False" };
                let [sink, window] = [sink * PAGE, window * PAGE];
                write!(f, "BlockMean(alpha={alpha}, spread={spread}, least={least}, ")?;
                write!(f, "sink={sink}, window={window}, correct={correct})")
            }
            Self::Antidiagonal { stride, tau, sink, window } => {
                let [sink, window] = [sink * PAGE, window * PAGE];
                write!(f, "Antidiagonal(stride={stride}, tau={tau}, sink={sink}, window={window})")
            }
            Self::Mask { blocks, kept } => {
                write!(f, "Custom(<{blocks}x{blocks} blocks, {:016x}>)", xxh3_64(kept))
            }
            Self::DenseBelow(positions, inner) => write!(f, "DenseBelow({positions}, {inner})"),
            Self::DenseTail(positions, inner) => write!(f, "DenseTail({positions}, {inner})"),
            Self::DenseLayers { first, last, inner } => write!(f, "DenseLayers({first}, {last}, {inner})"),
            Self::LayerSplit { first, early, late } => write!(f, "LayerSplit({first}, {early}, {late})"),
        }
    }
}
