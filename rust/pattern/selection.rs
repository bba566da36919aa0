//! How the queries of a unit choose blocks by their values, and what stands in for the blocks left out.

use crate::attention::{gather_rows, Accumulator, Kept, Unit};
use crate::cache::PAGE;
use crate::kernels::scalar::Shape;
use crate::kernels::vector::SoftmaxState;
use half::f16;

/// What a unit attends to, and memory that calls reuse.
#[derive(Default)]
pub struct Selection {
    kept: Kept,
    /// Scores of the block means, `[chunks of 64 blocks][queries][64]`.
    scores: Vec<f32>,
    /// Variances of the blocks' scores, then what their best keys may score, likewise.
    spreads: Vec<f32>,
    squares: Vec<f32>,
    /// Means of 64 blocks, or sampled keys, laid out like a page.
    keys: Vec<f16>,
    values: Vec<f16>,
    /// Blocks whose means stand in where they are left out.
    corrected: usize,
    indices: Vec<usize>,
    weights: Vec<f32>,
    factors: Vec<f32>,
    some: Accumulator,
    sample: Sample,
}

/// Attention to some keys of every block.
#[derive(Default)]
struct Sample {
    /// Sums of the blocks' sampled weights, `[queries][blocks]`.
    masses: Vec<f32>,
    queries: Vec<f32>,
    states: Vec<SoftmaxState>,
    order: Vec<usize>,
}

impl Selection {
    /// Which queries keep which blocks.
    pub fn kept(&self) -> &Kept {
        &self.kept
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

    /// Keeps the blocks whose best key is thought to weigh at least `alpha` of all keys, if it scores `spread` standard
    /// deviations above the mean.
    pub(super) fn keep_by_means(
        &mut self,
        unit: &Unit<'_>,
        queries: &[f32],
        [alpha, spread]: [f32; 2],
        correct: bool,
        always: impl Fn(usize) -> bool,
    ) {
        let (own, count) = (unit.own_block(), unit.queries());
        self.keep(own, &always);
        self.corrected = if correct { own } else { 0 };
        if own == 0 {
            return;
        }
        self.squares.clear();
        self.squares.extend(queries.iter().map(|x| x * x));
        let length = own.div_ceil(PAGE) * count * PAGE;
        self.scores.resize(length, 0.0);
        self.spreads.resize(length, 0.0);
        multiply_statistics(unit, queries, 0, &mut self.keys, &mut self.scores);
        multiply_statistics(unit, &self.squares, 2, &mut self.keys, &mut self.spreads);
        self.weigh_all(unit, queries);
        self.weights.clear();
        self.weights.extend(self.sample.states.iter().map(|all| all.max + (alpha * all.sum).ln()));
        for (bound, &score) in self.spreads.iter_mut().zip(&self.scores) {
            // Not fused, which is a call of a function where the compiler may not assume AVX.
            *bound = score + spread * bound.max(0.0).sqrt();
        }
        for block in (0..own).filter(|&block| !always(block)) {
            let bounds = self.spreads[block / PAGE * count * PAGE + block % PAGE..].iter().step_by(PAGE);
            for ((kept, &least), &bound) in self.kept.block_mut(block).iter_mut().zip(&self.weights).zip(bounds) {
                *kept = bound >= least;
            }
        }
    }

    /// Estimates what all keys weigh for each query: the first block exactly, the others by their means.
    fn weigh_all(&mut self, unit: &Unit<'_>, queries: &[f32]) {
        let count = unit.queries();
        let Self { scores, weights, factors, sample, .. } = self;
        sample.states.clear();
        sample.states.resize(count, SoftmaxState::EMPTY);
        factors.resize(count, 0.0);
        for (chunk, scores) in scores.chunks_exact(count * PAGE).enumerate() {
            weights.clear();
            weights.extend_from_slice(scores);
            let means = PAGE.min(unit.own_block() - chunk * PAGE);
            unit.kernels.softmax_rows(weights, means, usize::MAX, &mut sample.states, factors);
        }
        sample.states.iter_mut().for_each(|state| state.sum *= PAGE as f32);
        let keys = unit.pages[0].keys(unit.layer, unit.head);
        weights.resize(count * PAGE, 0.0);
        unit.kernels.multiply_f16(Shape::whole(count, unit.width, PAGE), queries, keys, &[], weights, false);
        unit.kernels.softmax_rows(weights, PAGE, usize::MAX, &mut sample.states, factors);
    }

    /// Keeps, for each query, the heaviest blocks until they hold the share `tau` of what every `stride`th key of all
    /// blocks weighs.
    ///
    /// A query at position `p` samples the keys at positions `k` with `p + k + 1` divisible by the stride, so that a
    /// block of queries looks along antidiagonals and a vertical or diagonal line of large scores cannot slip through.
    pub(super) fn keep_by_samples(
        &mut self,
        unit: &Unit<'_>,
        queries: &[f32],
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
    fn sample(&mut self, unit: &Unit<'_>, queries: &[f32], stride: usize) {
        let Unit { kernels, group, width, .. } = *unit;
        let Self { keys, scores, factors, indices, sample, .. } = self;
        let blocks = unit.own_block() + 1;
        sample.masses.clear();
        sample.masses.resize(unit.queries() * blocks, 0.0);
        keys.resize(width * PAGE, f16::ZERO);
        // Queries at a multiple of the stride from each other share their keys; a page of those spans `stride` blocks.
        for first in 0..stride.min(unit.rows) {
            indices.clear();
            indices.extend((first..unit.rows).step_by(stride).flat_map(|row| row * group..(row + 1) * group));
            gather_rows(queries, width, indices, &mut sample.queries);
            sample.states.clear();
            sample.states.resize(indices.len(), SoftmaxState::EMPTY);
            factors.resize(indices.len(), 0.0);
            scores.resize(indices.len() * PAGE, 0.0);
            let offset = stride - 1 - (unit.position + first) % stride;
            for start in (0..blocks).step_by(stride) {
                let count = stride.min(blocks - start);
                for (i, page) in unit.pages[start..start + count].iter().enumerate() {
                    let to = keys[i * (PAGE / stride)..].chunks_mut(PAGE);
                    for (from, to) in page.keys(unit.layer, unit.head).chunks_exact(PAGE).zip(to) {
                        for (to, &key) in to.iter_mut().zip(from[offset..].iter().step_by(stride)) {
                            *to = key;
                        }
                    }
                }
                kernels.multiply_f16(
                    Shape::whole(indices.len(), width, PAGE),
                    &sample.queries,
                    keys,
                    &[],
                    scores,
                    false,
                );
                for (&query, scores) in indices.iter().zip(scores.chunks_exact_mut(PAGE)) {
                    let past = unit.position + query / group + 1;
                    let visible = past.saturating_sub(start * PAGE + offset).div_ceil(stride);
                    scores[visible.min(PAGE)..].fill(f32::NEG_INFINITY);
                }
                kernels.softmax_rows(scores, PAGE, group, &mut sample.states, factors);
                for ((&query, scores), &factor) in indices.iter().zip(scores.chunks_exact(PAGE)).zip(&*factors) {
                    let masses = &mut sample.masses[query * blocks..(query + 1) * blocks];
                    if factor != 1.0 {
                        masses[..start].iter_mut().for_each(|mass| *mass *= factor);
                    }
                    for (mass, weights) in masses[start..].iter_mut().zip(scores.chunks_exact(PAGE / stride)) {
                        *mass = weights.iter().sum();
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
                values.copy_from_slice(&means[width..2 * width]);
            }
            self.some.gather(total, &self.indices);
            self.some.add_weighted(unit, &mut self.weights, &self.values, &[], PAGE, &mut self.factors);
            self.some.scatter(total, &self.indices);
        }
    }
}

/// Multiplies every query with one of the statistics of all blocks before the unit's own, `[chunks of 64
/// blocks][queries][64]`.
fn multiply_statistics(unit: &Unit<'_>, queries: &[f32], which: usize, columns: &mut Vec<f16>, out: &mut [f32]) {
    let Unit { kernels, width, .. } = *unit;
    columns.resize(width * PAGE, f16::ZERO);
    for (pages, out) in unit.pages[..unit.own_block()].chunks(PAGE).zip(out.chunks_exact_mut(unit.queries() * PAGE)) {
        for (i, page) in pages.iter().enumerate() {
            let statistics = &page.means(kernels, unit.layer, unit.head)[which * width..][..width];
            for (d, &value) in statistics.iter().enumerate() {
                columns[d * PAGE + i] = value;
            }
        }
        kernels.multiply_f16(Shape::whole(unit.queries(), width, PAGE), queries, columns, &[], out, false);
    }
}
