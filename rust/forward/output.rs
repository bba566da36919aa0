//! The last phases of a pass: from the residual of the wanted rows to their logits, or to candidates for the most likely
//! token, in one reading of the weights.
//!
//! Rounding activations to int8 matters most right before the logits: adding the product with what it took off them,
//! rounded likewise, takes a third off the divergence from exact arithmetic (0.0035 to 0.0023 nats on SmolLM2 Q4_1).
//! Float weights take activations as they are.

use crate::forward::buffers::Buffers;
use crate::forward::decoder::Decoder;
use crate::forward::matmul::multiply;
use crate::forward::plan::{Local, Pass, WantedRow};
use crate::forward::project::{add, put, OUTPUT_PIECE};
use crate::kernels::layout::TILE;
use crate::workers::shared::Shared;
use crate::workers::threads::Worker;

/// Of weights whose products have no second part.
const NO_BOUNDS: [f32; TILE] = [0.0; TILE];

impl Pass {
    /// Norms and quantises the residual of every wanted row.
    pub(super) fn output_norm(&self, worker: &Worker<'_>, local: &mut Local) {
        let Decoder { kernels, weights, .. } = &*self.decoder;
        let Buffers { output, output_rest, .. } = &self.buffers;
        for i in worker.share(self.wanted.len(), 1) {
            let values = self.normed(self.wanted[i].row, &weights.output_norm, &mut local.floats);
            output.put(kernels, i, 0, values);
            if self.decoder.splits_output() {
                output.subtract(i, values);
                match i.checked_sub(self.chosen) {
                    None => output_rest.put(kernels, i, 0, values),
                    Some(logits) => output.put(kernels, self.wanted.len() + logits, 0, values),
                }
            }
        }
    }

    /// Finds candidates for the first rows and computes the logits of the others; the second parts of these follow below.
    pub(super) fn output_product(&self, worker: &Worker<'_>, local: &mut Local) {
        let Decoder { config, kernels, weights } = &*self.decoder;
        let logits = |wanted: &WantedRow| (&self.task.sequence(wanted.row).logits, wanted.result * config.n_vocab);
        let logits: Vec<(&Shared<f32>, usize)> = self.wanted[self.chosen..].iter().map(logits).collect();
        let mut found = self.no_candidates();
        let rows = self.buffers.output.rows();
        while let Some(tiles) = worker.take(weights.output.tile_count(), OUTPUT_PIECE) {
            multiply(kernels, &weights.output, tiles, &rows, &mut local.results, |row, columns, values| {
                let Some(i) = row.checked_sub(found.len()) else {
                    let bounds = weights.output_bounds.get(columns.start / TILE).unwrap_or(&NO_BOUNDS);
                    return found[row].look(kernels, columns, values, bounds);
                };
                let (to, at) = logits[if i < logits.len() { i } else { i - logits.len() }];
                let to = to.write(at + columns.start..at + columns.end);
                match i < logits.len() {
                    true => put(values, to),
                    false => add(values, to),
                }
            });
        }
        self.keep_candidates(worker, found);
    }
}
