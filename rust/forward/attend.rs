//! The attention phase of a pass: which worker attends for which rows and heads.

use super::{Decoder, Local, Pass, Row, UnitRows};
use crate::attention::Unit;
use crate::kernels::layout::GROUP;
use crate::threads::Worker;
use std::sync::atomic::Ordering;

impl Pass {
    /// Attention of all rows; with `partials` the segments of a unit are spread over the workers and merged after.
    pub(super) fn attend(&self, worker: &mut Worker<'_>, layer: usize, local: &mut Local) {
        let heads = self.decoder.config.n_head_kv;
        let Some((states, sums)) = &self.partials else {
            for item in (worker.index..self.units.len() * heads).step_by(worker.count) {
                // A unit over a long cache takes milliseconds, all of them many times what a user would wait.
                if worker.poll() {
                    self.stopped.store(true, Ordering::Relaxed);
                }
                if self.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let rows = &self.units[item / heads];
                let unit = self.unit(layer, rows, item % heads, local);
                let prompt = self.task.prompts[self.task.rows[rows.rows.start].sequence].as_ref();
                let Local { queries, selection, total, work, .. } = local;
                let n_layer = self.decoder.config.n_layer;
                let selection = prompt.and_then(|prompt| prompt.select(n_layer, &unit, queries, selection));
                let kept = selection.as_ref().map(|selection| selection.kept());
                unit.attend(queries, kept, total, work);
                if let Some(counts) = prompt.and_then(|prompt| prompt.counts.as_ref()) {
                    counts.add(&unit, kept);
                }
                if let Some(selection) = selection {
                    selection.correct(&unit, total);
                }
                self.put_attended(rows, item % heads, local);
            }
            return;
        };
        let items = |rows: &UnitRows| heads * rows.segments;
        let span = |rows: &UnitRows, unit: &Unit<'_>, segment: usize| {
            let at = rows.partial + (unit.head * rows.segments + segment) * unit.queries();
            at..at + unit.queries()
        };
        let mut number = 0;
        for rows in &self.units {
            for item in 0..items(rows) {
                number += 1;
                if number % worker.count != worker.index {
                    continue;
                }
                let unit = self.unit(layer, rows, item / rows.segments, local);
                let segment = item % rows.segments;
                let (new_states, new_sums) =
                    unit.attend_segment(segment, &local.queries, None, &mut local.work).parts();
                let span = span(rows, &unit, segment);
                states.write(span.clone()).copy_from_slice(new_states);
                sums.write(span.start * unit.width..span.end * unit.width).copy_from_slice(new_sums);
            }
        }
        worker.barrier();
        for item in (worker.index..self.units.len() * heads).step_by(worker.count) {
            let rows = &self.units[item / heads];
            let unit = self.unit_without_queries(layer, rows, item % heads);
            local.total.clear(unit.queries(), unit.width);
            for segment in 0..rows.segments {
                let span = span(rows, &unit, segment);
                let sums = sums.read(span.start * unit.width..span.end * unit.width);
                local.total.merge(&self.decoder.kernels, states.read(span), sums);
            }
            self.put_attended(rows, item % heads, local);
        }
    }

    fn unit_without_queries(&self, layer: usize, rows: &UnitRows, head: usize) -> Unit<'_> {
        let config = &self.decoder.config;
        let Row { sequence, position, .. } = self.task.rows[rows.rows.start];
        Unit {
            kernels: &self.decoder.kernels,
            pages: &self.task.sequences[sequence],
            layer,
            head,
            position,
            rows: rows.rows.len(),
            group: config.n_head / config.n_head_kv,
            width: config.head_dim.next_multiple_of(16),
        }
    }

    /// The unit of `rows` and one key/value head; its queries, scaled and rotated, go to `local.queries`.
    fn unit(&self, layer: usize, rows: &UnitRows, head: usize, local: &mut Local) -> Unit<'_> {
        let unit = self.unit_without_queries(layer, rows, head);
        let scale = 1.0 / (self.decoder.config.head_dim as f32).sqrt();
        local.queries.clear();
        for row in rows.rows.clone() {
            for i in 0..unit.group {
                let at = local.queries.len();
                local.queries.extend_from_slice(self.buffers.qkv.read(self.head(row, head * unit.group + i)));
                self.rotate(row, &mut local.queries[at..]);
                self.decoder.kernels.scale(&mut local.queries[at..], scale);
                local.queries.resize(at + unit.width, 0.0);
            }
        }
        unit
    }

    /// Divides `local.total` by its sums and puts it where the output product reads.
    fn put_attended(&self, rows: &UnitRows, head: usize, local: &mut Local) {
        let Decoder { config, kernels, .. } = &*self.decoder;
        let group = config.n_head / config.n_head_kv;
        let width = config.head_dim.next_multiple_of(16);
        let out = local.total.finish(kernels);
        let whole = self.decoder.heads_are_groups();
        for (i, out) in out.chunks_exact(width).enumerate() {
            let at = (head * group + i % group) * config.head_dim;
            let (row, out) = (rows.rows.start + i / group, &out[..config.head_dim]);
            match whole {
                true => self.buffers.attended.put(kernels, row, at / GROUP, out),
                false => self.buffers.attended.put_floats(row, at, out),
            }
        }
    }
}
