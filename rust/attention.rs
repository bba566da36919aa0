//! Exact attention over the paged cache, one block of 64 positions at a time (after FlashAttention, Dao et al., 2022).
//!
//! The arithmetic of a query depends on its position alone: blocks and segments lie at fixed positions, a segment is
//! accumulated block by block, segments are merged in order. How queries are grouped into units, which thread runs a
//! unit, and whether the segments of a query run one after the other or in parallel changes no bit.

use crate::cache::{Page, PAGE};
use crate::kernels::vector::{exp, SoftmaxState};
use crate::kernels::Kernels;
use std::sync::Arc;

/// Blocks in a segment, the unit of parallel work over a long cache.
pub const SEGMENT: usize = 4;

/// What one call of attention reads.
pub struct Unit<'a> {
    /// The kernels to use.
    pub kernels: &'a Kernels,
    /// Pages of the sequence.
    pub pages: &'a [Arc<Page>],
    /// Layer of the model.
    pub layer: usize,
    /// Key/value head.
    pub head: usize,
    /// Position of the first query row.
    pub position: usize,
    /// Query rows at consecutive positions.
    pub rows: usize,
    /// Query heads that share the key/value head.
    pub group: usize,
    /// Width of a head as stored.
    pub width: usize,
}

/// Accumulated attention of a unit's queries, `rows * group` of them, not yet divided by the sums.
#[derive(Clone, Default)]
pub struct Accumulator {
    states: Vec<SoftmaxState>,
    out: Vec<f32>,
}

/// Memory that calls reuse.
#[derive(Default)]
pub struct Workspace {
    scores: Vec<f32>,
    segment: Accumulator,
}

impl Accumulator {
    /// Starts over for `queries` queries of `width` values.
    pub fn clear(&mut self, queries: usize, width: usize) {
        self.states.clear();
        self.states.resize(queries, SoftmaxState::EMPTY);
        self.out.clear();
        self.out.resize(queries * width, 0.0);
    }

    /// Adds what `other` accumulated over later positions.
    pub fn merge(&mut self, kernels: &Kernels, states: &[SoftmaxState], out: &[f32]) {
        let width = self.out.len() / self.states.len();
        for (i, (state, other)) in self.states.iter_mut().zip(states).enumerate() {
            if other.sum == 0.0 {
                continue;
            }
            let max = state.max.max(other.max);
            let (a, b) = (exp(state.max - max), exp(other.max - max));
            let span = i * width..(i + 1) * width;
            kernels.blend(&mut self.out[span.clone()], a, &out[span], b);
            *state = SoftmaxState { max, sum: state.sum.mul_add(a, other.sum * b) };
        }
    }

    /// Divides by the sums and returns the result, `[queries][width]`.
    pub fn finish(&mut self, kernels: &Kernels) -> &[f32] {
        let width = self.out.len() / self.states.len();
        for (state, out) in self.states.iter().zip(self.out.chunks_exact_mut(width)) {
            kernels.scale(out, 1.0 / state.sum);
        }
        &self.out
    }

    /// The raw state, to be merged elsewhere.
    pub fn parts(&self) -> (&[SoftmaxState], &[f32]) {
        (&self.states, &self.out)
    }
}

impl Unit<'_> {
    /// Number of queries: rows times heads.
    pub fn queries(&self) -> usize {
        self.rows * self.group
    }

    /// Number of segments that a query at `position` attends to.
    pub fn segments_at(position: usize) -> usize {
        position / (PAGE * SEGMENT) + 1
    }

    /// Attends to all positions up to each query's own; `queries` are scaled and rotated, `[rows][group][width]`.
    pub fn attend(&self, queries: &[f32], total: &mut Accumulator, work: &mut Workspace) {
        total.clear(self.queries(), self.width);
        for segment in 0..Self::segments_at(self.position + self.rows - 1) {
            self.attend_segment(segment, queries, work);
            total.merge(self.kernels, &work.segment.states, &work.segment.out);
        }
    }

    /// Attends to the positions of one segment; the result is in the returned accumulator.
    pub fn attend_segment<'w>(&self, segment: usize, queries: &[f32], work: &'w mut Workspace) -> &'w Accumulator {
        let Workspace { scores, segment: acc } = work;
        let last_block = (self.position + self.rows - 1) / PAGE;
        acc.clear(self.queries(), self.width);
        for block in segment * SEGMENT..(last_block + 1).min((segment + 1) * SEGMENT) {
            let start = block * PAGE;
            let skipped = start.saturating_sub(self.position) * self.group;
            let count = self.queries() - skipped;
            let page = &self.pages[block];
            scores.clear();
            scores.resize(count * PAGE, 0.0);
            let keys = page.keys(self.layer, self.head);
            self.kernels.multiply_f16(count, &queries[skipped * self.width..], keys, PAGE, scores);
            let out = &mut acc.out[skipped * self.width..];
            for (i, scores) in scores.chunks_exact_mut(PAGE).enumerate() {
                let position = self.position + (skipped + i) / self.group;
                let valid = PAGE.min(position + 1 - start);
                let state = &mut acc.states[skipped + i];
                let (new, factor) = self.kernels.softmax_block(scores, valid, *state);
                *state = new;
                if factor != 1.0 {
                    self.kernels.scale(&mut out[i * self.width..(i + 1) * self.width], factor);
                }
            }
            let values = page.values(self.layer, self.head);
            self.kernels.multiply_f16(count, scores, values, self.width, out);
        }
        acc
    }
}
