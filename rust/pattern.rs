//! Sparse attention: which blocks of 64 positions the queries of a prompt attend to.
//!
//! A pattern decides, the kernel of [`crate::attention`] runs any decision. What a query keeps depends on its position,
//! its own values and earlier keys alone, never on how a prompt is cut into calls or on what follows.

use crate::attention::{Accumulator, Kept, Unit};
use crate::cache::PAGE;
use half::f16;
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
    /// The blocks whose mean key scores high enough, for each query (after FlashPrefill).
    BlockMean {
        /// Least weight of a block's mean relative to the highest.
        alpha: f32,
        /// Blocks at the beginning that are always kept.
        sink: usize,
        /// Blocks before the query's own that are always kept.
        window: usize,
        /// Whether the means of the other blocks stand in for them.
        correct: bool,
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
        first: usize,
        /// Exact layers at the end.
        last: usize,
        /// In the other layers.
        inner: Box<Pattern>,
    },
    /// Exact for at least so many positions at the end of a prompt.
    DenseTail(usize, Box<Pattern>),
}

/// How the tokens of a prompt attend.
#[derive(Clone)]
pub struct Prompt {
    /// What to keep.
    pub pattern: Arc<Pattern>,
    /// Positions when the prompt is complete.
    pub end: usize,
    /// Where to count what is kept.
    pub counts: Option<Arc<Counts>>,
}

/// How many queries kept which block, `[layers][blocks of queries][blocks of keys]`.
pub struct Counts {
    blocks: usize,
    counts: Vec<AtomicU32>,
}

impl Counts {
    /// Zeros for `n_layer` layers and `blocks` blocks.
    pub fn new(n_layer: usize, blocks: usize) -> Self {
        Self { blocks, counts: (0..n_layer * blocks * blocks).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Counts the queries of a unit; without `kept` they attend to all blocks.
    pub fn add(&self, unit: &Unit<'_>, kept: Option<&Kept>) {
        for block in 0..=unit.own_block() {
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

/// What a unit attends to, and memory that calls reuse.
#[derive(Default)]
pub struct Selection {
    kept: Kept,
    /// Scores of the block means, `[chunks of 64 blocks][queries][64]`.
    scores: Vec<f32>,
    /// Means of 64 blocks, laid out like a page.
    keys: Vec<f16>,
    values: Vec<f16>,
    /// Blocks whose means stand in where they are left out.
    corrected: usize,
    indices: Vec<usize>,
    weights: Vec<f32>,
    factors: Vec<f32>,
    some: Accumulator,
}

impl Prompt {
    /// What rules block `own` of queries in `layer` of `n_layer`, never a pattern that wraps another; `None` is exact.
    pub fn rule(&self, n_layer: usize, layer: usize, own: usize) -> Option<&Pattern> {
        let mut pattern = &*self.pattern;
        loop {
            pattern = match pattern {
                Pattern::DenseBelow(positions, _) if own < positions.div_ceil(PAGE) => return None,
                Pattern::DenseTail(positions, _) if own >= self.end.saturating_sub(*positions) / PAGE => return None,
                Pattern::DenseLayers { first, last, .. } if layer < *first || layer + last >= n_layer => return None,
                Pattern::DenseBelow(_, inner) | Pattern::DenseTail(_, inner) | Pattern::DenseLayers { inner, .. } => {
                    inner
                }
                Pattern::Window { .. } | Pattern::BlockMean { .. } | Pattern::Mask { .. } => return Some(pattern),
            }
        }
    }

    /// The blocks that the queries of `unit` keep, `None` for all.
    pub fn select<'s>(
        &self,
        n_layer: usize,
        unit: &Unit<'_>,
        queries: &[f32],
        selection: &'s mut Selection,
    ) -> Option<&'s mut Selection> {
        let own = unit.own_block();
        let rule = self.rule(n_layer, unit.layer, own)?;
        selection.kept.clear(own + 1, unit.queries());
        selection.corrected = 0;
        if let Pattern::BlockMean { alpha, correct, .. } = rule {
            selection.score(unit, queries);
            selection.keep_above(unit, alpha.ln(), |block| rule.always_keeps(own, block));
            selection.corrected = if *correct { own } else { 0 };
        } else {
            let kept = (0..=own).filter(|&block| rule.always_keeps(own, block));
            kept.for_each(|block| selection.kept.block_mut(block).fill(true));
        }
        Some(selection)
    }
}

impl Selection {
    /// Which queries keep which blocks.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Scores every query against the means of all blocks before its own.
    fn score(&mut self, unit: &Unit<'_>, queries: &[f32]) {
        let count = unit.queries();
        self.scores.resize(unit.own_block().div_ceil(PAGE) * count * PAGE, 0.0);
        self.keys.resize(unit.width * PAGE, f16::ZERO);
        for (chunk, scores) in self.scores.chunks_exact_mut(count * PAGE).enumerate() {
            for i in 0..PAGE.min(unit.own_block() - chunk * PAGE) {
                let means = unit.pages[chunk * PAGE + i].means(unit.kernels, unit.layer, unit.head);
                for (d, &mean) in means[..unit.width].iter().enumerate() {
                    self.keys[d * PAGE + i] = mean;
                }
            }
            unit.kernels.multiply_f16(count, queries, &self.keys, PAGE, scores, false);
        }
    }

    /// Keeps the blocks that are `always` kept and those that score at most `-margin` below the best.
    fn keep_above(&mut self, unit: &Unit<'_>, margin: f32, always: impl Fn(usize) -> bool) {
        let (own, count) = (unit.own_block(), unit.queries());
        let score =
            |scores: &[f32], block: usize, query: usize| scores[(block / PAGE * count + query) * PAGE + block % PAGE];
        self.weights.clear();
        self.weights.resize(count, f32::NEG_INFINITY);
        for block in 0..own {
            for (query, best) in self.weights.iter_mut().enumerate() {
                *best = best.max(score(&self.scores, block, query));
            }
        }
        for block in 0..=own {
            let always = block == own || always(block);
            for (query, (kept, best)) in self.kept.block_mut(block).iter_mut().zip(&self.weights).enumerate() {
                *kept = always || score(&self.scores, block, query) >= best + margin;
            }
        }
    }

    /// Adds the means of the blocks that were left out to `total`, each with the weight of 64 positions.
    pub fn correct(&mut self, unit: &Unit<'_>, total: &mut Accumulator) {
        if self.corrected == 0 {
            return;
        }
        let (count, width) = (unit.queries(), unit.width);
        let bias = (PAGE as f32).ln();
        self.values.resize(PAGE * width, f16::ZERO);
        for (chunk, scores) in self.scores.chunks_exact(count * PAGE).enumerate() {
            let first = chunk * PAGE;
            let blocks = first..self.corrected.min(first + PAGE);
            self.indices.clear();
            self.weights.clear();
            for (query, scores) in scores.chunks_exact(PAGE).enumerate() {
                let left_out = |block: &usize| !self.kept.block(*block)[query];
                if blocks.clone().any(|block| left_out(&block)) {
                    self.indices.push(query);
                    let at = self.weights.len();
                    self.weights.resize(at + PAGE, f32::NEG_INFINITY);
                    for block in blocks.clone().filter(left_out) {
                        self.weights[at + block - first] = scores[block - first] + bias;
                    }
                }
            }
            if self.indices.is_empty() {
                continue;
            }
            for (block, values) in blocks.zip(self.values.chunks_exact_mut(width)) {
                let means = unit.pages[block].means(unit.kernels, unit.layer, unit.head);
                values.copy_from_slice(&means[width..]);
            }
            self.some.gather(total, &self.indices);
            self.some.add_weighted(unit, &mut self.weights, &self.values, PAGE, &mut self.factors);
            self.some.scatter(total, &self.indices);
        }
    }
}

impl Pattern {
    /// What `attention="auto"` stands for.
    pub fn auto() -> Self {
        let inner = Self::BlockMean { alpha: 0.05, sink: 1, window: 8, correct: true };
        Self::DenseBelow(4096, inner.into())
    }

    /// Whether every query of block `own` keeps `block`, whatever its values; for patterns that wrap no other.
    pub fn always_keeps(&self, own: usize, block: usize) -> bool {
        match self {
            Self::Window { sink, window, .. } | Self::BlockMean { sink, window, .. }
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
            Self::BlockMean { .. } => true,
            Self::Window { .. } | Self::Mask { .. } => false,
        }
    }

    /// Positions below which a prompt is attended to exactly.
    pub fn dense_below(&self) -> usize {
        match self {
            Self::DenseBelow(positions, inner) => (*positions).max(inner.dense_below()),
            Self::DenseTail(_, inner) | Self::DenseLayers { inner, .. } => inner.dense_below(),
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
            Self::BlockMean { alpha, sink, window, correct } => {
                let correct = if *correct { "True" } else { "False" };
                let [sink, window] = [sink * PAGE, window * PAGE];
                write!(f, "BlockMean(alpha={alpha}, sink={sink}, window={window}, correct={correct})")
            }
            Self::Mask { blocks, kept } => {
                write!(f, "Custom(<{blocks}x{blocks} blocks, {:016x}>)", xxh3_64(kept))
            }
            Self::DenseBelow(positions, inner) => write!(f, "DenseBelow({positions}, {inner})"),
            Self::DenseTail(positions, inner) => write!(f, "DenseTail({positions}, {inner})"),
            Self::DenseLayers { first, last, inner } => write!(f, "DenseLayers({first}, {last}, {inner})"),
        }
    }
}
