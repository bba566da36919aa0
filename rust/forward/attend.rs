//! The attention phase of a pass: which worker attends for which rows and heads.

use super::{Decoder, Local, Pass, Row};
use crate::attention::Unit;
use crate::cache::PAGE;
use crate::config::Config;
use crate::kernels::layout::GROUP;
use crate::kernels::shared::Shared;
use crate::kernels::softmax::SoftmaxState;
use crate::threads::Worker;
use std::ops::Range;
use std::sync::atomic::Ordering;

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
    units: Vec<Range<usize>>,
    split: Option<Split>,
}

/// Attention of few rows: workers share the segments of all heads evenly. Where they share a head, its segments are
/// merged after.
struct Split {
    /// For each worker that the pass was planned for.
    parts: Vec<Vec<Part>>,
    shared: Vec<SharedHead>,
    states: Shared<SoftmaxState>,
    sums: Shared<f32>,
}

/// Segments of one head of a unit.
struct Part {
    unit: usize,
    head: usize,
    segments: Range<usize>,
    /// Where their results start, in queries; `None` if these are all the segments, which are merged at once.
    results: Option<usize>,
}

/// A head of a unit that several workers attend to, and where the results of all its segments are, in queries.
struct SharedHead {
    unit: usize,
    head: usize,
    results: Range<usize>,
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

impl Pass {
    /// Attention of all rows.
    pub(super) fn attend(&self, worker: &mut Worker<'_>, layer: usize, local: &mut Local) {
        match &self.attention.split {
            None => self.attend_units(worker, layer, local),
            Some(split) => {
                self.attend_parts(split, worker, layer, local);
                if split.shared.is_empty() {
                    return;
                }
                worker.barrier();
                if !self.stopped.load(Ordering::Relaxed) {
                    self.merge_shared(split, worker, layer, local);
                }
            }
        }
    }

    fn attend_units(&self, worker: &mut Worker<'_>, layer: usize, local: &mut Local) {
        let heads = self.decoder.config.n_head_kv;
        for item in (worker.index..self.attention.units.len() * heads).step_by(worker.count) {
            if self.stops(worker) {
                return;
            }
            let index = item / heads;
            let unit = self.unit(layer, index, item % heads);
            self.put_queries(&unit, index, local);
            let prompt = self.task.prompts[self.task.rows[self.attention.units[index].start].sequence].as_ref();
            let Local { queries, selection, total, work, .. } = local;
            let n_layer = self.decoder.config.n_layer;
            let mut selection = prompt.and_then(|prompt| prompt.select(n_layer, &unit, queries, selection));
            unit.attend(queries, selection.as_mut().map(|selection| selection.kept_mut()), total, work);
            if let Some(counts) = prompt.and_then(|prompt| prompt.counts.as_ref()) {
                counts.add(&unit, selection.as_ref().map(|selection| selection.kept()));
            }
            if let Some(selection) = selection {
                selection.correct(&unit, total);
            }
            self.put_attended(&unit, index, 0, local);
        }
    }

    /// Whether somebody wants the pass to end. Attending over a long cache takes up to tens of milliseconds for one head
    /// of a unit, and for all of them many times what a user would wait.
    fn stops(&self, worker: &mut Worker<'_>) -> bool {
        if worker.poll() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// A worker's parts of a split.
    fn attend_parts(&self, split: &Split, worker: &mut Worker<'_>, layer: usize, local: &mut Local) {
        // A pass may get fewer workers than it was planned for.
        let own = split.parts.iter().skip(worker.index).step_by(worker.count).flatten();
        for Part { unit: index, head, segments, results } in own {
            if self.stops(worker) {
                return;
            }
            let unit = self.unit(layer, *index, *head);
            self.put_queries(&unit, *index, local);
            let Some(results) = results else {
                unit.attend(&local.queries, None, &mut local.total, &mut local.work);
                self.put_attended(&unit, *index, 0, local);
                continue;
            };
            for (segment, at) in segments.clone().zip((*results..).step_by(unit.queries())) {
                let (states, sums) = unit.attend_segment(segment, &local.queries, None, &mut local.work).parts();
                split.states.write(at..at + states.len()).copy_from_slice(states);
                split.sums.write(at * unit.width..at * unit.width + sums.len()).copy_from_slice(sums);
            }
        }
    }

    /// Merges a worker's share of the queries of each head that several attended to.
    fn merge_shared(&self, split: &Split, worker: &Worker<'_>, layer: usize, local: &mut Local) {
        for SharedHead { unit: index, head, results } in &split.shared {
            let unit = self.unit(layer, *index, *head);
            let own = worker.share(unit.queries(), 1);
            if own.is_empty() {
                continue;
            }
            local.total.clear(own.len(), unit.width);
            for segment in results.clone().step_by(unit.queries()) {
                let results = segment + own.start..segment + own.end;
                let sums = split.sums.read(results.start * unit.width..results.end * unit.width);
                local.total.merge(&self.decoder.kernels, split.states.read(results), sums);
            }
            self.put_attended(&unit, *index, own.start, local);
        }
    }

    fn unit(&self, layer: usize, index: usize, head: usize) -> Unit<'_> {
        let config = &self.decoder.config;
        let rows = &self.attention.units[index];
        let Row { sequence, position, .. } = self.task.rows[rows.start];
        Unit {
            kernels: &self.decoder.kernels,
            pages: &self.task.sequences[sequence],
            layer,
            head,
            position,
            rows: rows.len(),
            group: config.n_head / config.n_head_kv,
            width: config.head_dim.next_multiple_of(16),
        }
    }

    /// Puts the queries of a unit, scaled and rotated, into `local.queries`.
    fn put_queries(&self, unit: &Unit<'_>, index: usize, local: &mut Local) {
        let Decoder { config, kernels, .. } = &*self.decoder;
        // Scores are logarithms to base 2.
        let scale = std::f32::consts::LOG2_E / (config.head_dim as f32).sqrt();
        local.queries.clear();
        for row in self.attention.units[index].clone() {
            for i in 0..unit.group {
                let floats = &mut local.queries.floats;
                let at = floats.len();
                floats.extend_from_slice(self.buffers.qkv.read(self.head(row, unit.head * unit.group + i)));
                self.rotate(row, &mut floats[at..]);
                kernels.scale(&mut floats[at..], scale);
                floats.resize(at + unit.width, 0.0);
                local.queries.round_last(kernels, unit.width);
            }
        }
    }

    /// Divides `local.total`, of queries from the unit's `first` on, by its sums and puts it where the output product
    /// reads.
    fn put_attended(&self, unit: &Unit<'_>, index: usize, first: usize, local: &mut Local) {
        let Decoder { config, kernels, .. } = &*self.decoder;
        let out = local.total.finish(kernels);
        let whole = self.decoder.heads_are_groups();
        for (i, out) in (first..).zip(out.chunks_exact(unit.width)) {
            let at = (unit.head * unit.group + i % unit.group) * config.head_dim;
            let (row, out) = (self.attention.units[index].start + i / unit.group, &out[..config.head_dim]);
            match whole {
                true => self.buffers.attended.put(kernels, row, at / GROUP, out),
                false => self.buffers.attended.put_floats(row, at, out),
            }
        }
    }
}

#[cfg(test)]
mod tests;
