//! The phase of a pass that computes the hidden values of the feed-forward layer.

use crate::forward::buffers::Buffers;
use crate::forward::matmul::multiply_together;
use crate::forward::plan::{Local, Pass};
use crate::kernels::layout::{GROUP, TILE};
use crate::weights::load::Layer;
use crate::workers::threads::Worker;
use std::ops::Range;

impl Pass {
    /// The gated half of the feed-forward layer. A worker activates and quantises what it computed while that is in
    /// its cache.
    pub(super) fn activate(&self, worker: &Worker<'_>, layer: &Layer, local: &mut Local) {
        /// Tiles whose columns are a group of activations.
        const PAIR: usize = GROUP / TILE;
        let kernels = &self.decoder.kernels;
        let Buffers { normed, hidden, .. } = &self.buffers;
        let matrices = [&layer.ffn_gate, &layer.ffn_up];
        while let Some(share) = worker.take(layer.ffn_gate.tile_count(), self.step(PAIR)) {
            let activate = |tiles: Range<usize>, rows: Range<usize>, [gate, up]: [&mut [[f32; TILE]]; 2]| {
                kernels.swiglu(gate.as_flattened_mut(), up.as_flattened());
                let (pairs, last) = gate.split_at(tiles.len() / PAIR * PAIR * rows.len());
                let groups = pairs.chunks_exact(PAIR * rows.len()).map(|pair| pair.split_at(rows.len()));
                // The other half of a last group are columns past the end.
                let groups = groups.chain((!last.is_empty()).then_some((last, &last[..0])));
                for (g, (left, right)) in (tiles.start / PAIR..).zip(groups) {
                    for (i, row) in rows.clone().enumerate() {
                        hidden.put_group(kernels, row, g, [&left[i], right.get(i).unwrap_or(&[0.0; TILE])]);
                    }
                }
            };
            multiply_together(kernels, matrices, share, PAIR, &normed.rows(), &mut local.hidden, activate);
        }
    }
}
