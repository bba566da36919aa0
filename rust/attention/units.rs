//! Attention over the paged cache, one block of 64 positions at a time (after FlashAttention, Dao et al., 2022).
//!
//! The arithmetic of a query depends on its position and on the blocks it attends to alone: blocks and segments lie at
//! fixed positions, a segment is accumulated block by block, segments are merged in order. How queries are grouped into
//! units, which thread runs a unit, and whether the segments of a query run one after the other or in parallel changes
//! no bit; and a query that attends to all blocks has the bits of exact attention, whatever the others leave out.
//!
//! Queries, keys, values and weights are multiplied in fixed point, see [`crate::kernels::fixed`]. The scale of a value
//! goes into the weight of its position, since a sum of integers can have one scale only.

use crate::attention::cache::{KvBlock, Page, PAGE};
use crate::attention::kept::Kept;
use crate::kernels::fixed::{largest_quant, Output, Shape, Step};
use crate::kernels::fixed_rows::FixedRows;
use crate::kernels::layout::TILE;
use crate::kernels::softmax::{CausalMask, Softmax, SoftmaxState};
use crate::kernels::table::Kernels;
use crate::workers::phase::Phase;
use std::ops::Range;
use std::sync::Arc;

/// Blocks of a segment, but for the first six.
const SEGMENT: usize = 4;
/// How many blocks ahead keys and values are prefetched.
const PREFETCH: usize = 3;
/// Of columns to which nothing is added.
pub const NO_BIASES: [f32; PAGE] = [0.0; PAGE];
/// Queries that an exact unit has at most, with heads that are no wider.
const QUERIES: usize = 64;

/// What one call of attention reads.
pub struct Unit<'a> {
    /// The kernels to use.
    pub kernels: &'a Kernels,
    /// Pages of the sequence.
    pub pages: &'a [Arc<Page>],
    /// The phase that reads them; `None` outside of runs.
    pub phase: Option<&'a Phase<'a>>,
    /// Layer of the model.
    pub layer: usize,
    /// Key/value head.
    pub head: usize,
    /// Position of the first query row.
    pub position: usize,
    /// Query rows at consecutive positions, all in one block; as many as [`Unit::rows`] are fast for exact attention.
    pub rows: usize,
    /// Query heads that share the key/value head.
    pub group: usize,
    /// Width of a head as stored.
    pub width: usize,
    /// How many positions a query sees, its own included; `None` is all.
    pub window: Option<usize>,
    /// `c` of `c * tanh(score / c)`, which scores to base 2 become.
    pub cap: Option<f32>,
}

/// Queries of a unit, scaled and rotated, `[rows][group][width]`.
#[derive(Default)]
pub struct Queries {
    /// As they are.
    pub floats: Vec<f32>,
    /// As they are multiplied with keys.
    pub fixed: FixedRows,
    /// Indices of all, which are as many as the unit has.
    pub all: Vec<usize>,
}

impl Queries {
    /// Forgets all queries.
    pub fn clear(&mut self) {
        self.floats.clear();
        self.fixed.clear();
        self.all.clear();
    }

    /// Rounds the last query of `floats`, which has `width` values.
    pub fn round_last(&mut self, kernels: &Kernels, width: usize) {
        let at = self.floats.len() - width;
        self.all.push(self.all.len());
        self.fixed.push(kernels, &self.floats[at..], largest_quant(width));
    }
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
    segment: Accumulator,
    scores: Vec<f32>,
    weighing: Weighing,
    /// Queries that attend to a block.
    some: Vec<usize>,
}

/// What turning scores into weights gives.
#[derive(Default)]
pub struct Weighing {
    /// How to add the block, for each query.
    pub steps: Vec<Step>,
    /// `[queries][64]`.
    pub weights: Vec<i16>,
}

impl Weighing {
    /// Weighs the keys of a block for the queries at `indices` by their scores, `[queries][64]`; see [`Softmax`].
    pub fn weigh(
        &mut self,
        kernels: &Kernels,
        indices: &[usize],
        scores: &mut [f32],
        inverses: &[f32],
        mask: CausalMask,
        states: &mut [SoftmaxState],
    ) {
        self.steps.resize(states.len(), Step::default());
        self.weights.resize(states.len() * PAGE, 0);
        let Self { steps, weights } = self;
        kernels.softmax_rows(Softmax { rows: indices, scores, inverses, mask, states, steps, weights });
    }
}

/// Values of 64 positions.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    /// Laid out as in [`KvBlock::values`].
    pub quants: &'a [i16],
    /// Inverses of their scales.
    pub inverses: &'a [f32],
    /// Quants that will be read soon.
    pub later: &'a [i16],
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
        kernels.merge(&mut self.states, &mut self.out, states, out);
    }

    /// Adds 64 values for the queries at `indices` by their scores, `[queries][64]`, to which the logarithms of the values'
    /// scales were added. Those beyond what the last row sees are left out. `weighing` is memory to work in.
    pub fn add_weighted(
        &mut self,
        unit: &Unit<'_>,
        indices: &[usize],
        scores: &mut [f32],
        values: Values<'_>,
        mask: CausalMask,
        weighing: &mut Weighing,
    ) {
        let Unit { kernels, width, .. } = *unit;
        weighing.weigh(kernels, indices, scores, values.inverses, mask, &mut self.states);
        let (shape, quants) = (Shape::new(indices, PAGE, width), &values.quants[..seen(mask.valid, unit) * width]);
        let output = Output::Sums(&weighing.steps);
        kernels.fixed_matmul(shape, &weighing.weights, quants, output, values.later, &mut self.out);
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

impl<'a> Unit<'a> {
    /// Most rows of an exact unit for `group` heads of `width` values: a power of two, which cuts a block evenly.
    ///
    /// Performance note: queries, scores and weights of 64 share the first-level cache with a block, and attend 4 to 6 %
    /// faster than 128. Blocks of wider heads fill it alone, so that more queries for each gain 6 %.
    pub fn rows(group: usize, width: usize) -> usize {
        let most = (QUERIES.max(width) / group).clamp(1, PAGE);
        1 << most.ilog2()
    }

    /// Number of queries: rows times heads.
    pub fn queries(&self) -> usize {
        self.rows * self.group
    }

    /// The blocks of a segment. Workers may attend to segments in parallel; later they are merged in order.
    ///
    /// Performance note: with few rows, workers share segments out evenly, so a short cache needs short ones. Merging one
    /// takes about a tenth of attending to a block, by the operations it needs, so the others are longer.
    pub fn segment_blocks(segment: usize) -> Range<usize> {
        let first = |segment: usize| match segment {
            0..=4 => segment,
            5 => 6,
            _ => 8 + (segment - 6) * SEGMENT,
        };
        first(segment)..first(segment + 1)
    }

    /// Number of segments that a query at `position` attends to.
    pub fn segments_at(position: usize) -> usize {
        match position / PAGE {
            block @ 0..=3 => block + 1,
            4 | 5 => 5,
            6 | 7 => 6,
            block => 7 + (block - 8) / SEGMENT,
        }
    }

    /// Segments with what a query at `position` sees through a window, if there is one.
    pub fn segments(position: usize, window: Option<usize>) -> Range<usize> {
        let first = first_seen(position, window) / PAGE * PAGE;
        Self::segments_at(first) - 1..Self::segments_at(position)
    }

    /// The block of the unit's own positions: the last one it attends to.
    pub fn own_block(&self) -> usize {
        self.position / PAGE
    }

    /// The first block that the unit attends to. Those before it would change no bit: of no query they have a weight.
    pub fn first_block(&self) -> usize {
        first_seen(self.position, self.window) / PAGE
    }

    /// Which keys of `block` the rows see.
    fn mask(&self, block: usize) -> CausalMask {
        let mask = CausalMask::new(PAGE.min(self.position + 1 - block * PAGE), self.group);
        match self.window {
            None => mask,
            Some(window) => {
                let [seen, begin] = [self.position + 1, window + block * PAGE].map(|n| n as isize);
                CausalMask { gone: seen - begin, ..mask }
            }
        }
    }

    /// Attends to the `kept` blocks, or to all, up to each query's own position; see [`Queries`]. Every query keeps its
    /// own block. What is found to score too low is then no longer kept.
    pub fn attend(
        &self,
        queries: &Queries,
        mut kept: Option<&mut Kept>,
        total: &mut Accumulator,
        work: &mut Workspace,
    ) {
        total.clear(self.queries(), self.width);
        for segment in Self::segments(self.position, self.window) {
            self.attend_segment(segment, queries, kept.as_deref_mut(), work);
            total.merge(self.kernels, &work.segment.states, &work.segment.out);
        }
    }

    /// This unit's head of a page.
    pub fn block(&self, page: &'a Page) -> KvBlock<'a> {
        page.block(self.phase, self.layer, self.head)
    }

    /// What [`Page::statistics`] says of it.
    pub fn statistics(&self, page: &'a Page) -> &'a FixedRows {
        page.statistics(self.kernels, self.phase, self.layer, self.head)
    }

    /// Attends to the positions of one segment; the result is in the returned accumulator.
    ///
    /// Performance note: a few queries take less time than it takes to fetch a block from memory, and the processor
    /// does not foresee jumps from page to page: prefetching [`PREFETCH`] blocks makes 1 to 8 rows at 1,500 positions 5 to 10 % faster.
    pub fn attend_segment<'w>(
        &self,
        segment: usize,
        queries: &Queries,
        mut kept: Option<&mut Kept>,
        work: &'w mut Workspace,
    ) -> &'w Accumulator {
        let Workspace { segment: acc, scores, weighing, some } = work;
        debug_assert_eq!(queries.all.len(), self.queries());
        acc.clear(self.queries(), self.width);
        scores.resize(self.queries() * PAGE, 0.0);
        let Range { start, end } = Self::segment_blocks(segment);
        for block in start.max(self.first_block())..end.min(self.own_block() + 1) {
            let later = self.pages[..=self.own_block()].get(block + PREFETCH).map(|page| self.block(page));
            let [keys, values] = later.map_or([&[][..]; 2], |later| [later.keys, later.values]);
            let mask = self.mask(block);
            let own = self.block(&self.pages[block]);
            let indices = match kept.as_deref_mut().filter(|kept| !kept.is_whole(block)) {
                None => {
                    self.score(&queries.all, &queries.fixed, own, keys, mask.valid, scores);
                    &queries.all
                }
                Some(kept) => {
                    kept.list(block, some);
                    self.score(some, &queries.fixed, own, keys, mask.valid, scores);
                    if kept.is_judged(block) {
                        self.kernels.drop_low_rows(some, scores, own.value_logarithms, &kept.least_scores);
                        kept.set(block, some);
                    }
                    &*some
                }
            };
            let values = Values { quants: own.values, inverses: own.value_inverses, later: values };
            acc.add_weighted(self, indices, scores, values, mask, weighing);
        }
        acc
    }

    /// Multiplies the queries at `indices` with the keys of a block, `[queries][64]`, and adds the logarithms of the values'
    /// scales. The first query row sees `valid` positions, each later row one more; `later` are keys that will be read soon.
    fn score(
        &self,
        indices: &[usize],
        queries: &FixedRows,
        block: KvBlock<'_>,
        later: &[i16],
        valid: usize,
        scores: &mut [f32],
    ) {
        let shape = Shape { wanted: seen(valid, self), ..Shape::new(indices, self.width, PAGE) };
        let biases = if self.cap.is_some() { &NO_BIASES } else { block.value_logarithms };
        let output = Output::Scores { rows: &queries.scales, columns: block.key_scales, biases };
        self.kernels.fixed_matmul(shape, &queries.quants, block.keys, output, later, scores);
        self.cap(indices, scores, block.value_logarithms);
    }

    /// Caps the scores of the queries at `indices`, `[queries][64]`, if there is a cap, and then adds the `biases` of columns.
    pub fn cap(&self, indices: &[usize], scores: &mut [f32], biases: &[f32]) {
        if let Some(cap) = self.cap {
            self.kernels.cap_rows(indices, scores, cap, biases);
        }
    }
}

/// The first position that a query at `position` sees.
pub fn first_seen(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// How many positions of a block a unit sees whose first query row sees `valid`, in whole registers.
fn seen(valid: usize, unit: &Unit<'_>) -> usize {
    (valid + unit.rows - 1).min(PAGE).next_multiple_of(TILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_each_other_and_the_last_one_has_the_position() {
        for segment in 0..100 {
            assert_eq!(Unit::segment_blocks(segment).end, Unit::segment_blocks(segment + 1).start);
        }
        for block in 0..300 {
            let last = Unit::segments_at(block * PAGE + PAGE - 1) - 1;
            assert!(Unit::segment_blocks(last).contains(&block), "{block}");
            assert_eq!(Unit::segments_at(block * PAGE), last + 1);
        }
    }
}
