//! The attention phase of a pass.

use crate::attention::units::Unit;
use crate::forward::decoder::Decoder;
use crate::forward::plan::{Local, Pass};
use crate::forward::shares::{Part, SharedHead, Split};
use crate::kernels::layout::GROUP;
use crate::workers::threads::Worker;
use std::sync::atomic::Ordering;

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
            let attention = self.task.sequence(self.attention.units[index].start).attention.as_ref();
            let Local { queries, selection, total, work, .. } = local;
            let n_layer = self.decoder.config.n_layer;
            let mut selection = attention.and_then(|attention| attention.select(n_layer, &unit, queries, selection));
            unit.attend(queries, selection.as_mut().map(|selection| selection.kept_mut()), total, work);
            if let Some(counts) = attention.and_then(|attention| attention.counts.as_ref()) {
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
        Unit {
            kernels: &self.decoder.kernels,
            pages: &self.task.sequence(rows.start).pages,
            layer,
            head,
            position: self.task.rows[rows.start].position,
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
                self.rotate(unit.layer, row, &mut floats[at..]);
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
