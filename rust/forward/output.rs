//! The last phases of a pass: from the residual of the wanted rows to their logits.
//!
//! Rounding activations to int8 matters most right before the logits: adding the product with what it took off them,
//! rounded likewise, takes a third off the divergence from exact arithmetic (0.0035 to 0.0023 nats on SmolLM2 Q4_1).
//! Float weights take activations as they are.

use crate::forward::buffers::Buffers;
use crate::forward::decoder::Decoder;
use crate::forward::matmul::multiply;
use crate::forward::plan::{Local, Output, Pass};
use crate::forward::project::{add, put, OUTPUT_PIECE};
use crate::workers::shared::Shared;
use crate::workers::threads::Worker;

impl Pass {
    /// Norms and quantises the residual of every wanted row.
    pub(super) fn output_norm(&self, worker: &Worker<'_>, local: &mut Local) {
        let Decoder { kernels, weights, .. } = &*self.decoder;
        let Buffers { output, output_rest, .. } = &self.buffers;
        for i in worker.share(self.task.wanted.len(), 1) {
            let values = self.normed(self.task.wanted[i], &weights.output_norm, &mut local.floats);
            output.put(kernels, i, 0, values);
            if self.decoder.splits_output() {
                output.subtract(i, values);
                match self.output {
                    Output::Logits(_) => output.put(kernels, self.task.wanted.len() + i, 0, values),
                    Output::Choices(_) => output_rest.put(kernels, i, 0, values),
                }
            }
        }
    }

    /// The logits; the rows of their second parts follow those of the first.
    pub(super) fn output_logits(&self, worker: &Worker<'_>, logits: &Shared<f32>, local: &mut Local) {
        let Decoder { config, kernels, weights } = &*self.decoder;
        let (count, rows) = (self.task.wanted.len(), self.buffers.output.rows());
        while let Some(tiles) = worker.take(weights.output.tile_count(), OUTPUT_PIECE) {
            multiply(kernels, &weights.output, tiles, &rows, &mut local.results, |row, columns, values| {
                let at = row % count * config.n_vocab;
                let logits = logits.write(at + columns.start..at + columns.end);
                match row / count {
                    0 => put(values, logits),
                    _ => add(values, logits),
                }
            });
        }
    }
}
