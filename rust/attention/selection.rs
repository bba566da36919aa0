//! How the queries of a unit choose blocks by their values, and what stands in for the blocks left out.

use crate::attention::cache::{put_key, put_value, PAGE};
use crate::attention::kept::Kept;
use crate::attention::units::{Accumulator, Queries, Unit, Values, Weighing, NO_BIASES};
use crate::kernels::fixed::{largest_quant, Output, Shape, ONE};
use crate::kernels::fixed_rows::FixedRows;
use crate::kernels::softmax::{CausalMask, SoftmaxState};
use std::cmp::Ordering;

/// Inverses of the scales of values that do not count.
const ONES: [f32; PAGE] = [1.0; PAGE];

/// A block counts if its best key is thought to weigh at least `alpha` of all keys, provided that it scores `spread`
/// standard deviations above the mean; once it is scored, if the best key weighs at least `least`.
#[derive(Clone, Copy)]
pub(super) struct MeanRule {
    pub alpha: f32,
    pub spread: f32,
    pub least: f32,
}

/// What a unit attends to, and memory that calls reuse.
#[derive(Default)]
pub struct Selection {
    kept: Kept,
    /// Scores of the block means, `[chunks of 64 blocks][queries][64]`.
    scores: Vec<f32>,
    /// Variances of the blocks' scores, then what their best keys may score, likewise.
    spreads: Vec<f32>,
    squares: FixedRows,
    /// Means of 64 blocks, or sampled keys, laid out like a block.
    keys: Keys,
    values: Vec<i16>,
    /// Blocks whose means stand in where they are left out.
    corrected: usize,
    /// Queries that sample the same keys, or that left out a block.
    some: Vec<usize>,
    /// Scores to be weighed, or the squares of a query.
    scratch: Vec<f32>,
    /// What the bound of a block must reach, for each query.
    thresholds: Vec<f32>,
    weighing: Weighing,
    sample: Sample,
}

/// Keys and their scales, laid out like a block's.
#[derive(Default)]
struct Keys {
    quants: Vec<i16>,
    scales: Vec<f32>,
}

impl Keys {
    /// Makes room for 64 keys of `width` values.
    fn resize(&mut self, width: usize) {
        self.quants.resize(width * PAGE, 0);
        self.scales.resize(PAGE, 0.0);
    }
}

/// Attention to some keys of every block.
#[derive(Default)]
struct Sample {
    /// Sums of the blocks' sampled weights, `[queries][blocks]`.
    masses: Vec<f32>,
    states: Vec<SoftmaxState>,
    order: Vec<usize>,
}

impl Selection {
    /// Which queries keep which blocks.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// The same, to be changed.
    pub fn kept_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }

    /// Starts over: the queries of `unit` keep nothing.
    pub(super) fn clear(&mut self, unit: &Unit<'_>) {
        self.kept.clear(unit.own_block() + 1, unit.queries());
        self.corrected = 0;
    }

    /// Keeps the blocks that are `always` kept.
    pub(super) fn keep(&mut self, own: usize, always: impl Fn(usize) -> bool) {
        (0..=own).filter(|&block| always(block)).for_each(|block| self.kept.block_mut(block).fill(true));
    }

    /// Keeps the blocks that the rule does. What all keys weigh is thought to be what the first block and the means of the
    /// others do.
    pub(super) fn keep_by_means(
        &mut self,
        unit: &Unit<'_>,
        queries: &Queries,
        rule: MeanRule,
        correct: bool,
        always: impl Fn(usize) -> bool,
    ) {
        let MeanRule { alpha, spread, least } = rule;
        let (own, count) = (unit.own_block(), unit.queries());
        self.keep(own, &always);
        self.corrected = if correct { own } else { 0 };
        if own == 0 {
            return;
        }
        let length = own.div_ceil(PAGE) * count * PAGE;
        self.scores.resize(length, 0.0);
        multiply_statistics(unit, &queries.all, &queries.fixed, 0, &mut self.keys, &mut self.scores);
        self.weigh_all(unit, queries);
        let shares = |share: f32| self.sample.states.iter().map(move |all| all.max + (share * all.sum).log2());
        if least > 0.0 {
            self.kept.judge(shares(least));
        }
        self.thresholds.clear();
        self.thresholds.extend(shares(alpha));
        self.squares.clear();
        for query in queries.floats.chunks_exact(unit.width) {
            self.scratch.clear();
            self.scratch.extend(query.iter().map(|x| x * x));
            self.squares.push(unit.kernels, &self.scratch, largest_quant(unit.width));
        }
        self.spreads.resize(length, 0.0);
        multiply_statistics(unit, &queries.all, &self.squares, 2, &mut self.keys, &mut self.spreads);
        for (bound, &score) in self.spreads.iter_mut().zip(&self.scores) {
            // Not fused, which is a call of a function where the compiler may not assume FMA.
            *bound = score + spread * if *bound < 0.0 { 0.0 } else { bound.sqrt() };
        }
        for block in (0..own).filter(|&block| !always(block)) {
            let bounds = self.spreads[block / PAGE * count * PAGE + block % PAGE..].iter().step_by(PAGE);
            for ((kept, &threshold), &bound) in self.kept.block_mut(block).iter_mut().zip(&self.thresholds).zip(bounds)
            {
                // A NaN leaves nothing out.
                *kept = bound.partial_cmp(&threshold) != Some(Ordering::Less);
            }
        }
    }

    /// Estimates what all keys weigh for each query: the first block exactly, the others by their means.
    fn weigh_all(&mut self, unit: &Unit<'_>, queries: &Queries) {
        let count = unit.queries();
        let Self { scores, scratch, weighing, sample, .. } = self;
        sample.states.clear();
        sample.states.resize(count, SoftmaxState::EMPTY);
        for (chunk, scores) in scores.chunks_exact(count * PAGE).enumerate() {
            scratch.clear();
            scratch.extend_from_slice(scores);
            if chunk == 0 {
                scratch.iter_mut().step_by(PAGE).for_each(|first| *first = f32::NEG_INFINITY);
            }
            let means = PAGE.min(unit.own_block() - chunk * PAGE);
            weighing.weigh(
                unit.kernels,
                &queries.all,
                scratch,
                &ONES,
                CausalMask::new(means, usize::MAX),
                &mut sample.states,
            );
        }
        sample.states.iter_mut().for_each(|state| state.sum *= PAGE as f32);
        let block = unit.block(&unit.pages[0]);
        scratch.resize(count * PAGE, 0.0);
        score(unit, &queries.all, &queries.fixed, block.keys, block.key_scales, scratch);
        weighing.weigh(
            unit.kernels,
            &queries.all,
            scratch,
            &ONES,
            CausalMask::new(PAGE, usize::MAX),
            &mut sample.states,
        );
    }

    /// Keeps, for each query, the heaviest blocks until they hold the share `tau` of what every `stride`th key of all
    /// blocks weighs.
    ///
    /// A query at position `p` samples the keys at positions `k` with `p + k + 1` divisible by the stride, so that a
    /// block of queries looks along antidiagonals and a vertical or diagonal line of large scores cannot slip through.
    pub(super) fn keep_by_samples(
        &mut self,
        unit: &Unit<'_>,
        queries: &Queries,
        stride: usize,
        tau: f32,
        always: impl Fn(usize) -> bool,
    ) {
        let own = unit.own_block();
        self.keep(own, &always);
        if (0..=own).all(always) {
            return;
        }
        self.sample(unit, queries, stride);
        let Sample { masses, order, .. } = &mut self.sample;
        for (query, masses) in masses.chunks_exact(own + 1).enumerate() {
            order.clear();
            order.extend((0..=own).filter(|&block| !self.kept.block(block)[query]));
            order.sort_unstable_by(|&a, &b| masses[b].total_cmp(&masses[a]).then(a.cmp(&b)));
            let mut left_out: f32 = order.iter().map(|&block| masses[block]).sum();
            let most = (1.0 - tau) * masses.iter().sum::<f32>();
            for &block in &*order {
                if left_out <= most {
                    break;
                }
                self.kept.block_mut(block)[query] = true;
                left_out -= masses[block];
            }
        }
    }

    /// Weighs every `stride`th key of all blocks up to the unit's own, which is not the first.
    fn sample(&mut self, unit: &Unit<'_>, queries: &Queries, stride: usize) {
        let Unit { kernels, group, width, .. } = *unit;
        let Self { keys, scores, weighing, some, sample, .. } = self;
        let blocks = unit.own_block() + 1;
        sample.masses.clear();
        sample.masses.resize(unit.queries() * blocks, 0.0);
        sample.states.clear();
        sample.states.resize(unit.queries(), SoftmaxState::EMPTY);
        scores.resize(unit.queries() * PAGE, 0.0);
        keys.resize(width);
        // Queries at a multiple of the stride from each other share their keys; a page of those spans `stride` blocks.
        for first in 0..stride.min(unit.rows) {
            some.clear();
            some.extend((first..unit.rows).step_by(stride).flat_map(|row| row * group..(row + 1) * group));
            let offset = stride - 1 - (unit.position + first) % stride;
            for start in (0..blocks).step_by(stride) {
                let count = stride.min(blocks - start);
                for (i, page) in unit.pages[start..start + count].iter().enumerate() {
                    let (block, at) = (unit.block(page), i * (PAGE / stride));
                    let to = keys.quants.chunks_exact_mut(2 * PAGE).map(|row| &mut row.as_chunks_mut::<2>().0[at..]);
                    for (from, to) in block.keys.chunks_exact(2 * PAGE).zip(to) {
                        for (to, pair) in to.iter_mut().zip(from.as_chunks().0[offset..].iter().step_by(stride)) {
                            *to = *pair;
                        }
                    }
                    for (to, &scale) in
                        keys.scales[at..].iter_mut().zip(block.key_scales[offset..].iter().step_by(stride))
                    {
                        *to = scale;
                    }
                }
                score(unit, some, &queries.fixed, &keys.quants, &keys.scales, scores);
                for &query in &*some {
                    let past = unit.position + query / group + 1;
                    let visible = past.saturating_sub(start * PAGE + offset).div_ceil(stride);
                    scores[query * PAGE..(query + 1) * PAGE][visible.min(PAGE)..].fill(f32::NEG_INFINITY);
                }
                weighing.weigh(kernels, some, scores, &ONES, CausalMask::new(PAGE, group), &mut sample.states);
                for &query in &*some {
                    let (step, weights) = (weighing.steps[query], &weighing.weights[query * PAGE..(query + 1) * PAGE]);
                    let masses = &mut sample.masses[query * blocks..(query + 1) * blocks];
                    if step.keep != 1.0 {
                        masses[..start].iter_mut().for_each(|mass| *mass *= step.keep);
                    }
                    for (mass, weights) in masses[start..].iter_mut().zip(weights.chunks_exact(PAGE / stride)) {
                        let sum: i32 = weights.iter().map(|&weight| i32::from(weight)).sum();
                        *mass = sum as f32 * (step.add / ONE);
                    }
                }
            }
        }
    }

    /// Adds the means of the blocks that were left out to `total`, each with the weight of 64 positions.
    pub fn correct(&mut self, unit: &Unit<'_>, total: &mut Accumulator) {
        if self.corrected == 0 {
            return;
        }
        let Self { kept, scores, values, corrected, some, weighing, .. } = self;
        values.resize(PAGE * unit.width, 0);
        let chunks = scores.chunks_exact_mut(unit.queries() * PAGE);
        for (scores, first) in chunks.zip((0..*corrected).step_by(PAGE)) {
            let blocks = first..PAGE.min(*corrected - first) + first;
            some.clear();
            some.extend((0..unit.queries()).filter(|&query| blocks.clone().any(|block| !kept.block(block)[query])));
            if some.is_empty() {
                continue;
            }
            let mut inverses = ONES;
            for (i, block) in blocks.clone().enumerate() {
                let means = unit.statistics(&unit.pages[block]);
                put_value(values, i, means.row(1));
                inverses[i] = 1.0 / means.scales[1];
                let bias = (PAGE as f32 * means.scales[1]).log2();
                for (scores, &kept) in scores.chunks_exact_mut(PAGE).zip(kept.block(block)) {
                    scores[i] = if kept { f32::NEG_INFINITY } else { scores[i] + bias };
                }
            }
            scores.chunks_exact_mut(PAGE).for_each(|scores| scores[blocks.len()..].fill(f32::NEG_INFINITY));
            let values = Values { quants: values, inverses: &inverses, later: &[] };
            total.add_weighted(unit, some, scores, values, CausalMask::new(PAGE, unit.group), weighing);
        }
    }
}

/// Multiplies the queries at `indices` with 64 keys, `[queries][64]`.
fn score(unit: &Unit<'_>, indices: &[usize], queries: &FixedRows, keys: &[i16], scales: &[f32], out: &mut [f32]) {
    let output = Output::Scores { rows: &queries.scales, columns: scales, biases: &NO_BIASES };
    let shape = Shape::new(indices, unit.width, PAGE);
    unit.kernels.fixed_matmul(shape, &queries.quants, keys, output, &[], out);
    unit.cap(indices, out, &NO_BIASES);
}

/// Multiplies `all` queries with one of the statistics of all blocks before the unit's own, `[chunks of 64
/// blocks][queries][64]`.
fn multiply_statistics(
    unit: &Unit<'_>,
    all: &[usize],
    queries: &FixedRows,
    which: usize,
    keys: &mut Keys,
    out: &mut [f32],
) {
    keys.resize(unit.width);
    for (pages, out) in unit.pages[..unit.own_block()].chunks(PAGE).zip(out.chunks_exact_mut(unit.queries() * PAGE)) {
        for (i, page) in pages.iter().enumerate() {
            let statistics = unit.statistics(page);
            put_key(&mut keys.quants, i, statistics.row(which));
            keys.scales[i] = statistics.scales[which];
        }
        score(unit, all, queries, &keys.quants, &keys.scales, out);
    }
}
