//! Which worker attends for which rows and heads.

use crate::arch::config::Config;
use crate::attention::cache::PAGE;
use crate::attention::units::Unit;
use crate::forward::task::Row;
use crate::kernels::softmax::SoftmaxState;
use crate::workers::shared::Shared;
use std::ops::Range;

/// Reading keys and values takes about as long as attending for so many queries.
const READING: usize = 4;
/// Queries of a unit that share the reading and judging of a block, where not all look at it.
///
/// Performance note: the last 512 of 8,000 tokens took 0.82 of the time with 48 queries, and 0.92 to 1.01 of that
/// with 96. More would keep a user waiting who wants the pass to end.
const JUDGING: usize = 256;
/// Pieces of work for each worker, so that the slowest does not decide.
const PIECES: usize = 4;

/// Who attends for whom.
pub(super) struct AttentionPlan {
    /// Rows of one sequence, in one block of positions, that attend together.
    pub(super) units: Vec<Range<usize>>,
    pub(super) split: Option<Split>,
}

/// Attention of few rows: workers share the segments of all heads evenly. Where they share a head, its segments are
/// merged after.
pub(super) struct Split {
    /// For each worker that the pass was planned for.
    pub(super) parts: Vec<Vec<Part>>,
    pub(super) shared: Vec<SharedHead>,
    pub(super) states: Shared<SoftmaxState>,
    pub(super) sums: Shared<f32>,
}

/// Segments of one head of a unit.
pub(super) struct Part {
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
    /// A plan for `rows`, which attend to everything if `dense`.
    pub fn new(config: &Config, rows: &[Row], dense: bool, workers: usize) -> Self {
        // A unit reads all keys and values of its head, so the more rows it has the better; but where it cannot be
        // split, every worker needs several.
        let group = config.n_head / config.n_head_kv;
        let most = Unit::rows(group, config.head_dim);
        let even = (rows.len() * config.n_head_kv).div_ceil(PIECES * workers);
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
        let few = units.len() * config.n_head_kv < PIECES * workers;
        let split = (workers > 1 && dense && few).then(|| Split::new(config, rows, &units, workers));
        Self { units, split }
    }
}

impl Split {
    fn new(config: &Config, rows: &[Row], units: &[Range<usize>], workers: usize) -> Self {
        let group = config.n_head / config.n_head_kv;
        // Work by segment: positions, as often as they are attended to.
        let works = |unit: &Range<usize>| -> Vec<usize> {
            let (first, past) = (rows[unit.start].position, rows[unit.end - 1].position + 1);
            let blocks = (0..Unit::segments_at(first)).map(Unit::segment_blocks);
            let positions = blocks.map(|blocks| past.min(blocks.end * PAGE) - blocks.start * PAGE);
            positions.map(|positions| positions * (unit.len() * group + READING)).collect()
        };
        let total = config.n_head_kv * units.iter().flat_map(works).sum::<usize>();

        let mut parts: Vec<Vec<Part>> = (0..workers).map(|_| Vec::new()).collect();
        let (mut shared, mut results, mut before) = (Vec::new(), 0, 0);
        for (unit, rows) in units.iter().enumerate() {
            let (works, queries) = (works(rows), rows.len() * group);
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
                    parts[same[0]].push(Part { unit, head, segments, results });
                }
                if several {
                    let start = results;
                    results += owners.len() * queries;
                    shared.push(SharedHead { unit, head, results: start..results });
                }
            }
        }
        let width = config.head_dim.next_multiple_of(16);
        Self { parts, shared, states: Shared::zeroed(results), sums: Shared::zeroed(results * width) }
    }
}

#[cfg(test)]
mod tests;
