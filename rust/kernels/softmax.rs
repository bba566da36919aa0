//! The softmax of attention, over blocks of positions, and what is decided by its scores.
//!
//! Scores are logarithms to base 2, whose powers take fewer steps. Written as [`super::vector`] is: once over 16 lanes,
//! with the same bits from every instruction set.

use crate::kernels::fixed::{Step, ONE};
use crate::kernels::vector::{cap_values, exp2_to_one, largest_lane, rounded, sum_of_lanes, LANES};

/// Keys of a block, and so scores in a row.
const KEYS: usize = 64;

/// Running state of a softmax over blocks of positions (Milakov and Gimelshein, 2018).
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Zeroable)]
pub struct SoftmaxState {
    /// Largest score so far.
    pub max: f32,
    /// Sum of `2^(score - max)` so far.
    pub sum: f32,
}

impl SoftmaxState {
    /// Nothing seen yet.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Which keys of a block rows see: row `i` the first `valid + i / group` but for the first `gone + i / group`.
#[derive(Clone, Copy, Debug)]
pub struct CausalMask {
    /// Keys that the first rows see.
    pub valid: usize,
    /// Keys at the beginning that the first rows see no more; as many below 0 as later rows still see all of.
    pub gone: isize,
    /// Neighbouring rows that see the same keys.
    pub group: usize,
}

impl CausalMask {
    /// One that hides no keys at the beginning.
    pub fn new(valid: usize, group: usize) -> Self {
        Self { valid, gone: isize::MIN / 2, group }
    }
}

/// Rows of [`KEYS`] scores to be turned into weights.
///
/// Scores are those of keys plus the logarithms of the scales of their values, so weights are ready to be multiplied with
/// the values' quants; the sum of a state, without those scales, takes their `inverses`.
pub struct Softmax<'a> {
    /// Which rows.
    pub rows: &'a [usize],
    /// `[rows][64]`; of each row, those that it has not are overwritten.
    pub scores: &'a mut [f32],
    /// Inverses of the values' scales.
    pub inverses: &'a [f32],
    /// The scores that rows have; the weights of the others are zero.
    pub mask: CausalMask,
    /// What the rows have seen before.
    pub states: &'a mut [SoftmaxState],
    /// How the block is to be added, for each row.
    pub steps: &'a mut [Step],
    /// `[rows][64]`, `2^(score - max)` with the block's own maximum.
    pub weights: &'a mut [i16],
}

/// Turns scores into weights, brings the states up to date and tells how the block is to be added.
#[inline(always)]
pub fn softmax_rows(task: Softmax<'_>) {
    softmax_rows_with(task, largest_lane, sum_of_lanes);
}

/// [`softmax_rows`] with an instruction set's own `largest_lane` and `sum_of_lanes`.
#[inline(always)]
pub fn softmax_rows_with(
    task: Softmax<'_>,
    largest_lane: impl Fn([f32; LANES]) -> f32,
    sum_of_lanes: impl Fn([f32; LANES]) -> f32,
) {
    let Softmax { rows, scores, inverses, mask: CausalMask { valid, gone, group }, states, steps, weights } = task;
    let (scores, _) = scores.as_chunks_mut::<KEYS>();
    // Three passes, so that the chains of one row's maximum, factors and sum do not wait for each other.
    for &i in rows {
        let (scores, state) = (&mut scores[i], &mut states[i]);
        let (valid, gone) = (valid.saturating_add(i / group), gone + (i / group) as isize);
        if valid < KEYS {
            scores[valid..].fill(f32::NEG_INFINITY);
        }
        if gone > 0 {
            scores[..KEYS.min(gone as usize)].fill(f32::NEG_INFINITY);
        }
        // Not infinite, so that a row without scores gets weights of zero.
        let max = largest_lane(largest_by_lane(f32::MIN, scores, |score, _| score));
        let all = if max > state.max { max } else { state.max };
        steps[i] = Step { max, keep: state.max - all, add: max - all };
        state.max = all;
    }
    for &i in rows {
        steps[i].keep = exp2_to_one(steps[i].keep);
        steps[i].add = exp2_to_one(steps[i].add);
    }
    let (inverses, _) = inverses.as_chunks::<LANES>();
    let weights = weights.as_chunks_mut::<KEYS>().0;
    for &i in rows {
        let (step, state) = (&steps[i], &mut states[i]);
        let mut lanes = [0.0f32; LANES];
        let chunks = scores[i].as_chunks::<LANES>().0.iter().zip(weights[i].as_chunks_mut::<LANES>().0);
        for ((scores, weights), inverses) in chunks.zip(inverses) {
            for lane in 0..LANES {
                let weight = exp2_to_one(scores[lane] - step.max);
                lanes[lane] = weight.mul_add(inverses[lane], lanes[lane]);
                weights[lane] = rounded(weight, ONE);
            }
        }
        state.sum = state.sum.mul_add(step.keep, sum_of_lanes(lanes) * step.add);
    }
}

/// Makes the [`KEYS`] scores of every row in `rows` `cap * tanh(score / cap)` and adds the `biases` of its columns.
#[inline(always)]
pub fn cap_rows(rows: &[usize], scores: &mut [f32], cap: f32, biases: &[f32]) {
    let biases: &[f32; KEYS] = biases.first_chunk().expect("a block of biases");
    let (scores, _) = scores.as_chunks_mut::<KEYS>();
    for &row in rows {
        cap_values(&mut scores[row], cap);
        scores[row].iter_mut().zip(biases).for_each(|(score, bias)| *score += bias);
    }
}

/// Takes the rows of [`KEYS`] scores off `rows` none of whose scores, less the `biases` that were added to its columns,
/// is as high as its `least`. Rows stay whose `least` is NaN.
#[inline(always)]
pub fn drop_low_rows(rows: &mut Vec<usize>, scores: &[f32], biases: &[f32], least: &[f32]) {
    drop_low_rows_with(rows, scores, biases, least, largest_lane);
}

/// [`drop_low_rows`] with an instruction set's own `largest_lane`.
#[inline(always)]
pub fn drop_low_rows_with(
    rows: &mut Vec<usize>,
    scores: &[f32],
    biases: &[f32],
    least: &[f32],
    largest_lane: impl Fn([f32; LANES]) -> f32,
) {
    let biases: &[f32; KEYS] = biases.first_chunk().expect("a block of biases");
    let scores = scores.as_chunks::<KEYS>().0;
    let mut kept = 0;
    for i in 0..rows.len() {
        let row = rows[i];
        let lanes = largest_by_lane(f32::NEG_INFINITY, &scores[row], |score, at| score - biases[at]);
        // Without a branch, which could not be foreseen.
        rows[kept] = row;
        kept += usize::from(least[row].is_nan() | (largest_lane(lanes) >= least[row]));
    }
    rows.truncate(kept);
}

/// For each lane, the largest `of(score, column)`, at least `least`; NaN is passed over.
#[inline(always)]
fn largest_by_lane(least: f32, scores: &[f32; KEYS], of: impl Fn(f32, usize) -> f32) -> [f32; LANES] {
    let mut lanes = [least; LANES];
    for (chunk, scores) in scores.as_chunks::<LANES>().0.iter().enumerate() {
        for lane in 0..LANES {
            let score = of(scores[lane], chunk * LANES + lane);
            lanes[lane] = if score > lanes[lane] { score } else { lanes[lane] };
        }
    }
    lanes
}

/// Adds to rows of sums, and to the states of their softmax, what others hold for later positions.
#[inline(always)]
pub fn merge(states: &mut [SoftmaxState], sums: &mut [f32], others: &[SoftmaxState], other_sums: &[f32]) {
    let width = sums.len() / states.len();
    let rows = sums.chunks_exact_mut(width).zip(other_sums.chunks_exact(width));
    for ((state, other), (sums, other_sums)) in states.iter_mut().zip(others).zip(rows) {
        if other.sum == 0.0 {
            continue;
        }
        // One of the factors is 2^0.
        let (max, factor, other_factor) = match other.max > state.max {
            true => (other.max, exp2_to_one(state.max - other.max), 1.0),
            false => (state.max, 1.0, exp2_to_one(other.max - state.max)),
        };
        for (sum, &other) in sums.iter_mut().zip(other_sums) {
            *sum = (*sum).mul_add(factor, other * other_factor);
        }
        *state = SoftmaxState { max, sum: state.sum.mul_add(factor, other.sum * other_factor) };
    }
}

#[cfg(test)]
mod tests;
