//! The last phases of a pass: from the residual of the wanted rows to their logits.

use super::{add, put, Decoder, Local, Pass};
use crate::threads::Worker;

impl Pass {
    /// Rows that each wanted row takes in the output product.
    ///
    /// Rounding activations to int8 matters most right before the logits: a second row with what the first one lost
    /// takes a third off the divergence from exact arithmetic (0.0035 to 0.0023 nats on SmolLM2 Q4_1).
    fn output_rows(&self) -> usize {
        match self.decoder.weights.output.dtype.is_float() {
            true => 1,
            false => 2,
        }
    }

    /// Norms and quantises the residual of every wanted row.
    pub(super) fn output_norm(&self, worker: &Worker<'_>) {
        let Decoder { config, kernels, weights } = &*self.decoder;
        let output = &self.buffers.output;
        for i in worker.share(self.wanted.len(), 1) {
            let x = self.buffers.x.read(self.residual(self.wanted[i]));
            let row = i * self.output_rows();
            kernels.rms_norm(x, &weights.output_norm, config.rms_eps, output.values(row, 0..config.n_embd));
            output.quantize(kernels, row, 0..output.groups());
            if self.output_rows() == 2 {
                output.quantize_rest(kernels, row, row + 1);
            }
        }
    }

    /// The logits.
    pub(super) fn output(&self, worker: &Worker<'_>, local: &mut Local) {
        let n_vocab = self.decoder.config.n_vocab;
        let matrix = &self.decoder.weights.output;
        let tiles = worker.share(matrix.tiles(), 1);
        let parts = self.output_rows();
        self.multiply(matrix, tiles, &self.buffers.output, parts * self.wanted.len(), local, |row, columns, values| {
            let at = row / parts * n_vocab;
            let logits = self.logits.write(at + columns.start..at + columns.end);
            match row % parts {
                0 => put(values, logits),
                _ => add(values, logits),
            }
        });
    }
}
