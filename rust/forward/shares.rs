//! Which worker attends for which rows and heads.

use crate::arch::config::Config;
use crate::attention::cache::PAGE;
use crate::attention::units::{first_seen, Unit};
use crate::forward::buffers::{STATES, SUMS};
use crate::forward::task::Row;
use crate::kernels::softmax::SoftmaxState;
use crate::workers::phase::Pieces;
use crate::workers::shared::{Shared, Table};
use std::ops::Range;

/// Reading keys and values takes about as long as attending for so many queries.
const READING: usize = 4;
/// Queries of a unit that share the reading and judging of a block, where not all look at it.
///
/// Performance note: the last 512 of 8,000 tokens took 0.82 of the time with 48 queries, and 0.92 to 1.01 of that
/// with 96. More would keep a user waiting who wants the pass to end.
const JUDGING: usize = 256;
/// Pieces of work for each worker, so that the slowest does not decide.
const PIECES_PER_WORKER: usize = 4;

/// Who attends for whom.
pub(super) struct AttentionPlan {
    /// Rows of one sequence, in one block of positions, that attend together.
    pub(super) units: Vec<Range<usize>>,
    /// What a worker takes at a time: heads of units, or parts of them. The queries of all rows count by heads of keys, then
    /// by rows, then by heads of queries; the results of segments come after them.
    pub(super) pieces: Pieces,
    pub(super) split: Option<Split>,
}

/// Attention of few rows: workers share the segments of all heads evenly. Where they share a head, its segments are
/// merged after.
pub(super) struct Split {
    /// In the order of the workers that the pass was planned for.
    pub(super) parts: Vec<HeadPart>,
    pub(super) shared: Vec<SharedHead>,
    /// Which queries of which shared head are merged at a time.
    pub(super) merged: Vec<(usize, Range<usize>)>,
    pub(super) merging: Pieces,
    pub(super) states: Shared<SoftmaxState>,
    pub(super) sums: Shared<f32>,
}

/// Segments of one head of a unit.
pub(super) struct HeadPart {
    pub(super) worker: usize,
    pub(super) unit: usize,
    pub(super) head: usize,
    pub(super) segments: Range<usize>,
    /// Where their results start, in queries; `None` if these are all the segments, which are merged at once.
    pub(super) results: Option<usize>,
}

/// A head of a unit that several workers attend to, and where the results of all its segments are, in queries.
pub(super) struct SharedHead {
    pub(super) unit: usize,
    pub(super) head: usize,
    pub(super) results: Range<usize>,
}

impl AttentionPlan {
    /// A plan for `rows`, which attend to everything that their `window` shows if `dense`.
    pub fn new(config: &Config, rows: &[Row], window: Option<usize>, dense: bool, workers: usize) -> Self {
        // A unit reads all keys and values of its head, so the more rows it has the better; but where it cannot be
        // split, every worker needs several.
        let group = config.n_head / config.n_head_kv;
        let most = Unit::rows(group, config.head_dim);
        let even = (rows.len() * config.n_head_kv).div_ceil(PIECES_PER_WORKER * workers);
        let most = if dense { most } else { even.clamp(1, JUDGING.div_ceil(group).clamp(most, PAGE)) };
        let mut units: Vec<Range<usize>> = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            match units.last_mut() {
                Some(unit)
                    if row.position % PAGE != 0 && unit.len() < most && rows[unit.start].sequence == row.sequence =>
                {
                    unit.end = i + 1;
                }
                _ => units.push(i..i + 1),
            }
        }
        let few = units.len() * config.n_head_kv < PIECES_PER_WORKER * workers;
        let queries = QueryOrder { rows: rows.len(), group, heads: config.n_head_kv };
        if workers > 1 && dense && few {
            let (split, pieces) = Split::new(config, rows, window, &units, queries, workers);
            return Self { units, pieces, split: Some(split) };
        }
        let pieces = units.iter().flat_map(|unit| (0..config.n_head_kv).map(|head| queries.of(head, unit)));
        let pieces = Pieces::new(queries.count(), pieces.zip(0..).collect());
        Self { units, pieces, split: None }
    }
}

/// How the queries of a pass are numbered: by heads of keys, then by rows, then by the query heads of a group.
#[derive(Clone, Copy)]
struct QueryOrder {
    rows: usize,
    group: usize,
    heads: usize,
}

impl QueryOrder {
    fn count(self) -> usize {
        self.heads * self.rows * self.group
    }

    /// Those of some rows that attend to a head of keys.
    fn of(self, head: usize, rows: &Range<usize>) -> Range<usize> {
        (head * self.rows + rows.start) * self.group..(head * self.rows + rows.end) * self.group
    }
}

impl Split {
    fn new(
        config: &Config,
        rows: &[Row],
        window: Option<usize>,
        units: &[Range<usize>],
        all: QueryOrder,
        workers: usize,
    ) -> (Self, Pieces) {
        let group = all.group;
        let segments = |unit: &Range<usize>| Unit::segments(rows[unit.start].position, window);
        // Work by segment: positions, as often as they are attended to.
        let works = |unit: &Range<usize>| -> Vec<usize> {
            let (first, past) = (rows[unit.start].position, rows[unit.end - 1].position + 1);
            let first = first_seen(first, window) / PAGE * PAGE;
            let blocks = segments(unit).map(Unit::segment_blocks);
            let positions = blocks.map(|blocks| past.min(blocks.end * PAGE) - first.max(blocks.start * PAGE));
            positions.map(|positions| positions * (unit.len() * group + READING)).collect()
        };
        let total = config.n_head_kv * units.iter().flat_map(works).sum::<usize>();

        let (mut parts, mut shared, mut merged, mut merging) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut results, mut before) = (0, 0);
        for (unit, rows) in units.iter().enumerate() {
            let (works, queries) = (works(rows), rows.len() * group);
            let first_segment = segments(rows).start;
            for head in 0..config.n_head_kv {
                // A segment goes to the worker in whose share of the work its middle is.
                let owner = |work: &usize| {
                    let middle = 2 * before + work;
                    before += work;
                    middle * workers / (2 * total)
                };
                let owners: Vec<usize> = works.iter().map(owner).collect();
                let several = owners.first() != owners.last();
                let mut end = 0;
                for same in owners.chunk_by(|a, b| a == b) {
                    let segments = end..end + same.len();
                    end = segments.end;
                    let results = several.then_some(results + segments.start * queries);
                    let segments = first_segment + segments.start..first_segment + segments.end;
                    parts.push(HeadPart { worker: same[0], unit, head, segments, results });
                }
                if several {
                    let start = results;
                    results += owners.len() * queries;
                    let own = |worker: usize| queries * worker / workers..queries * (worker + 1) / workers;
                    let at = all.of(head, rows).start;
                    for (worker, own) in (0..workers).map(|worker| (worker, own(worker))) {
                        merging.push((at + own.start..at + own.end, worker));
                        merged.push((shared.len(), own));
                    }
                    shared.push(SharedHead { unit, head, results: start..results });
                }
            }
        }
        let piece = |part: &HeadPart| {
            let rows = &units[part.unit];
            let queries = match part.results {
                None => all.of(part.head, rows),
                Some(start) => {
                    let start = all.count() + start;
                    start..start + part.segments.len() * rows.len() * group
                }
            };
            (queries, part.worker)
        };
        let pieces = Pieces::new(all.count() + results, parts.iter().map(piece).collect());
        let merging = Pieces::new(all.count(), merging);
        let width = config.head_dim.next_multiple_of(16);
        let [states, sums] = [1, width].map(|columns| Table::new(results, columns).from_unit(all.count()));
        let (states, sums) = (Shared::zeroed(STATES, states), Shared::zeroed(SUMS, sums));
        (Self { parts, shared, merged, merging, states, sums }, pieces)
    }
}

#[cfg(test)]
mod tests;
