//! The attention phase of a pass.

use crate::attention::units::Unit;
use crate::forward::decoder::Decoder;
use crate::forward::matmul::ActivationWriter;
use crate::forward::plan::{Local, Pass};
use crate::forward::shares::{AttentionPlan, HeadPart, SharedHead, Split};
use crate::kernels::layout::GROUP;
use crate::workers::phase::Phase;
use crate::workers::writer::Writer;
use std::sync::atomic::Ordering;

impl Pass {
    /// Attention of all rows, a head of a unit at a time.
    pub(super) fn attend_units(&self, phase: &Phase<'_>, layer: usize, local: &mut Local) {
        let (plan, heads) = (self.attention(layer), self.decoder.config.n_head_kv);
        let qkv = phase.read(&self.buffers.qkv);
        let mut attended = self.attended(phase);
        while let Some(piece) = phase.next_piece() {
            if self.stops(phase) {
                return;
            }
            let index = piece / heads;
            let unit = self.unit(phase, layer, index, piece % heads);
            self.put_queries(qkv, &unit, index, local);
            let attention = self.task.sequence(plan.units[index].start).attention.as_ref();
            let Local { queries, selection, total, work, .. } = local;
            let n_layer = self.decoder.config.n_layer;
            // A window is exact.
            let mut selection = attention
                .filter(|_| unit.window.is_none())
                .and_then(|attention| attention.select(n_layer, &unit, queries, selection));
            unit.attend(queries, selection.as_mut().map(|selection| selection.kept_mut()), total, work);
            if let Some(counts) = attention.and_then(|attention| attention.counts.as_ref()) {
                counts.add(&unit, selection.as_ref().map(|selection| selection.kept()));
            }
            if let Some(selection) = selection {
                selection.correct(&unit, total);
            }
            self.put_attended(&mut attended, &unit, index, 0, local);
        }
    }

    /// Whether somebody wants the pass to end. Attending over a long cache takes up to tens of milliseconds for one head
    /// of a unit, and for all of them many times what a user would wait.
    fn stops(&self, phase: &Phase<'_>) -> bool {
        if phase.poll() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.is_stopped()
    }

    /// Attention of all rows, a part of a split at a time.
    pub(super) fn attend_parts(&self, phase: &Phase<'_>, split: &Split, layer: usize, local: &mut Local) {
        let qkv = phase.read(&self.buffers.qkv);
        let mut attended = self.attended(phase);
        let (mut states, mut sums) = (phase.writer(&split.states), phase.writer(&split.sums));
        while let Some(piece) = phase.next_piece() {
            if self.stops(phase) {
                return;
            }
            let HeadPart { unit: index, head, segments, results, .. } = &split.parts[piece];
            let unit = self.unit(phase, layer, *index, *head);
            self.put_queries(qkv, &unit, *index, local);
            if segments.start == Unit::segments(unit.position, unit.window).start {
                self.count_all(&unit, *index);
            }
            let Some(results) = results else {
                unit.attend(&local.queries, None, &mut local.total, &mut local.work);
                self.put_attended(&mut attended, &unit, *index, 0, local);
                continue;
            };
            for (segment, first) in segments.clone().zip((*results..).step_by(unit.queries())) {
                let (own_states, own_sums) =
                    unit.attend_segment(segment, &local.queries, None, &mut local.work).parts();
                for (row, (state, sum)) in (first..).zip(own_states.iter().zip(own_sums.chunks_exact(unit.width))) {
                    states.row(row)[0] = *state;
                    sums.row(row).copy_from_slice(sum);
                }
            }
        }
    }

    /// Counts a unit that attends to all that it sees, where its prompt counts.
    fn count_all(&self, unit: &Unit<'_>, index: usize) {
        let attention = &self.task.sequence(self.attention(unit.layer).units[index].start).attention;
        if let Some(counts) = attention.as_ref().and_then(|attention| attention.counts.as_ref()) {
            counts.add(unit, None);
        }
    }

    /// Merges the segments of heads that several workers attended to, some queries at a time.
    pub(super) fn merge_shared(&self, phase: &Phase<'_>, split: &Split, layer: usize, local: &mut Local) {
        let (states, sums) = (phase.read(&split.states), phase.read(&split.sums));
        let mut attended = self.attended(phase);
        while let Some(piece) = phase.next_piece() {
            let (shared, own) = &split.merged[piece];
            let SharedHead { unit: index, head, results } = &split.shared[*shared];
            let unit = self.unit(phase, layer, *index, *head);
            if self.is_stopped() || own.is_empty() {
                continue;
            }
            local.total.clear(own.len(), unit.width);
            for segment in results.clone().step_by(unit.queries()) {
                let results = segment + own.start..segment + own.end;
                let sums = &sums[results.start * unit.width..results.end * unit.width];
                local.total.merge(&self.decoder.kernels, &states[results], sums);
            }
            self.put_attended(&mut attended, &unit, *index, own.start, local);
        }
    }

    fn unit<'a>(&'a self, phase: &'a Phase<'a>, layer: usize, index: usize, head: usize) -> Unit<'a> {
        let config = &self.decoder.config;
        let rows = &self.attention(layer).units[index];
        Unit {
            kernels: &self.decoder.kernels,
            pages: &self.task.sequence(rows.start).pages,
            phase: Some(phase),
            layer,
            head,
            window: config.blocks[layer].window,
            cap: config.score_cap.map(|cap| cap * std::f32::consts::LOG2_E),
            position: self.task.rows[rows.start].position,
            rows: rows.len(),
            group: config.n_head / config.n_head_kv,
            width: config.head_dim.next_multiple_of(16),
        }
    }

    /// Who attends for whom in block `layer`.
    pub(super) fn attention(&self, layer: usize) -> &AttentionPlan {
        let window = self.decoder.config.blocks[layer].window;
        let plan = self.attention.iter().find(|(of, _)| *of == window);
        &plan.expect("a plan for every window").1
    }

    /// Puts the queries of a unit, scaled and rotated, into `local.queries`.
    fn put_queries(&self, qkv: &[f32], unit: &Unit<'_>, index: usize, local: &mut Local) {
        let Decoder { config, kernels, .. } = &*self.decoder;
        local.queries.clear();
        for row in self.attention(unit.layer).units[index].clone() {
            let scale = config.query_scale(self.task.rows[row].position);
            for i in 0..unit.group {
                let floats = &mut local.queries.floats;
                let at = floats.len();
                floats.extend_from_slice(&qkv[self.head(row, unit.head * unit.group + i)]);
                self.rotate(unit.layer, row, &mut floats[at..]);
                kernels.scale(&mut floats[at..], scale);
                floats.resize(at + unit.width, 0.0);
                local.queries.round_last(kernels, unit.width);
            }
        }
    }

    /// Begins to write what is attended: whole groups, or only floats that are quantised later.
    fn attended<'p>(&'p self, phase: &'p Phase<'_>) -> Attended<'p> {
        match self.decoder.heads_are_groups() {
            true => Attended::Groups(self.buffers.attended.writer(phase)),
            false => Attended::Floats(self.buffers.attended.floats_writer(phase).expect("floats are kept")),
        }
    }

    /// Divides `local.total`, of queries from the unit's `first` on, by its sums and puts it where the output product
    /// reads.
    fn put_attended(
        &self,
        attended: &mut Attended<'_>,
        unit: &Unit<'_>,
        index: usize,
        first: usize,
        local: &mut Local,
    ) {
        let Decoder { config, kernels, .. } = &*self.decoder;
        let out = local.total.finish(kernels);
        for (i, out) in (first..).zip(out.chunks_exact(unit.width)) {
            let at = (unit.head * unit.group + i % unit.group) * config.head_dim;
            let (row, out) = (self.attention(unit.layer).units[index].start + i / unit.group, &out[..config.head_dim]);
            match attended {
                Attended::Groups(groups) => groups.put(kernels, row, at / GROUP, out),
                Attended::Floats(floats) => floats.part(row, at..at + out.len()).copy_from_slice(out),
            }
        }
    }
}

/// See [`Pass::attended`].
enum Attended<'p> {
    Groups(ActivationWriter<'p>),
    Floats(Writer<'p, f32>),
}
