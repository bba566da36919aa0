//! The phases of a pass that send rows through experts.

use crate::forward::buffers::ExpertBuffers;
use crate::forward::feed_forward::activate;
use crate::forward::matmul::multiply;
use crate::forward::plan::{Local, Pass};
use crate::forward::project::{add, put};
use crate::kernels::layout::{interleaved, TILE};
use crate::weights::load::Experts;
use crate::weights::matrix::Matrix;
use crate::workers::phase::Phase;
use std::sync::atomic::Ordering;

/// Products of a tile and a row that a worker keeps until it sums them up: a megabyte, which stays in the second cache.
const KEPT_PRODUCTS: usize = 1 << 14;

impl Pass {
    /// Gives every expert a logit of every row.
    pub(super) fn route(&self, phase: &Phase<'_>, router: &Matrix, buffers: &ExpertBuffers, local: &mut Local) {
        let input = self.buffers.normed.read(phase);
        let mut logits = phase.writer(&buffers.logits);
        while let Some(tiles) = phase.next_units() {
            multiply(&self.decoder.kernels, router, tiles, &input, &mut local.results, |columns, rows, results| {
                let mut tile = logits.columns(columns);
                rows.zip(results).for_each(|(row, values)| put(values, tile.row(row)));
            });
        }
    }

    /// Puts the rows of every expert together. All workers find out which these are.
    pub(super) fn gather(&self, phase: &Phase<'_>, layer: usize, buffers: &ExpertBuffers, local: &mut Local) {
        let input = self.buffers.normed.read(phase);
        local.routes.find(phase.read(&buffers.logits), buffers.experts, interleaved(input.count));
        for group in local.routes.groups().iter().filter(|_| phase.index() == 0) {
            let count = &buffers.counts[layer * buffers.experts.count + group.expert];
            count.store(group.slots.len() as u64, Ordering::Relaxed);
        }
        let mut gathered = buffers.gathered.writer(phase);
        while let Some(slots) = phase.next_units() {
            local.routes.filled(slots).for_each(|(slot, row)| gathered.copy(slot, &input, row));
        }
    }

    /// The gated half of the experts.
    pub(super) fn activate_experts(
        &self,
        phase: &Phase<'_>,
        experts: &Experts,
        buffers: &ExpertBuffers,
        local: &mut Local,
    ) {
        let input = buffers.gathered.read(phase);
        let mut hidden = buffers.hidden.writer(phase);
        while let Some(tiles) = phase.next_units() {
            for group in local.routes.groups() {
                let rows = input.slice(group.slots.start, group.slots.len());
                let expert = &experts.each[group.expert];
                activate(
                    &self.decoder,
                    expert,
                    tiles.clone(),
                    &rows,
                    group.slots.start,
                    &mut hidden,
                    &mut local.hidden,
                );
            }
        }
    }

    /// Adds to the residual stream of every row what its experts give, times their weights.
    pub(super) fn add_experts(&self, phase: &Phase<'_>, experts: &Experts, buffers: &ExpertBuffers, local: &mut Local) {
        let Local { routes, results, products, .. } = local;
        let input = buffers.hidden.read(phase);
        let mut x = phase.writer(&self.buffers.x);
        let (slots, scale) = (routes.slots(), self.decoder.config.residual_scale);
        let step = (KEPT_PRODUCTS / slots).max(1);
        while let Some(share) = phase.next_units() {
            for first in share.clone().step_by(step) {
                let tiles = first..share.end.min(first + step);
                products.resize(products.len().max(tiles.len() * slots), [0.0; TILE]);
                for group in routes.groups() {
                    let rows = input.slice(group.slots.start, group.slots.len());
                    let down = &experts.each[group.expert].down;
                    multiply(&self.decoder.kernels, down, tiles.clone(), &rows, results, |columns, rows, results| {
                        let at = (columns.start / TILE - first) * slots + group.slots.start + rows.start;
                        products[at..at + rows.len()].copy_from_slice(results);
                    });
                }
                for (tile, products) in tiles.zip(products.chunks_exact(slots)) {
                    let columns = tile * TILE..self.decoder.config.n_embd.min((tile + 1) * TILE);
                    let mut x = x.columns(columns);
                    for row in 0..self.task.rows.len() {
                        let mut sum = [0.0; TILE];
                        for pick in routes.of(row) {
                            let products = &products[pick.slot];
                            sum.iter_mut().zip(products).for_each(|(sum, product)| *sum += pick.weight * product);
                        }
                        add(&sum, scale, x.row(row));
                    }
                }
            }
        }
    }
}
