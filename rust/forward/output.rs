//! The last phases of a pass: from the residual of the wanted rows to their logits, or to candidates for the most likely
//! token, in one reading of the weights.
//!
//! Rounding activations to int8 matters most right before the logits: adding the product with what it took off them,
//! rounded likewise, takes a third off the divergence from exact arithmetic (0.0035 to 0.0023 nats on SmolLM2 Q4_1).
//! Float weights take activations as they are.

use crate::forward::buffers::Buffers;
use crate::forward::decoder::Decoder;
use crate::forward::finish::Finish;
use crate::forward::matmul::multiply;
use crate::forward::plan::{Local, Pass, WantedRow};
use crate::forward::project::{add, put};
use crate::kernels::layout::TILE;
use crate::workers::phase::Phase;

/// Of weights whose products have no second part.
const NO_BOUNDS: [f32; TILE] = [0.0; TILE];

impl Pass {
    /// Norms and quantises the residual of every wanted row.
    pub(super) fn output_norm(&self, phase: &Phase<'_>, local: &mut Local) {
        let Decoder { kernels, weights, .. } = &*self.decoder;
        let Buffers { x, output, output_rest, .. } = &self.buffers;
        let x = phase.read(x);
        let [mut output, mut output_rest] = [output, output_rest].map(|activations| activations.writer(phase));
        for i in std::iter::from_fn(|| phase.next_units()).flatten() {
            let values = self.normed(x, self.wanted[i].row, Some(&weights.output_norm), &mut local.floats);
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
    pub(super) fn output_product(&self, phase: &Phase<'_>, local: &mut Local) {
        let Decoder { config, kernels, weights } = &*self.decoder;
        let finish = Finish::new(config, kernels);
        let logits = &self.wanted[self.chosen..];
        let mut found = self.no_candidates(phase);
        let input = self.buffers.output.read(phase);
        while let Some(tiles) = phase.next_units() {
            multiply(kernels, &weights.output, tiles, &input, &mut local.results, |columns, rows, results| {
                let bounds = weights.output_bounds.get(columns.start / TILE).unwrap_or(&NO_BOUNDS);
                for (row, values) in rows.zip(results) {
                    let second = row >= self.wanted.len();
                    let biased;
                    let values = match &weights.output_bias {
                        Some(bias) if !second => {
                            biased = plus(values, &bias[columns.start..]);
                            &biased
                        }
                        _ => values,
                    };
                    let Some(i) = row.checked_sub(found.len()) else {
                        found[row].look(&finish, columns.clone(), values, bounds);
                        continue;
                    };
                    let WantedRow { row, result } = logits[if second { i - logits.len() } else { i }];
                    let mut to = phase.writer(&self.task.sequence(row).logits);
                    let to = to.part(result, columns.clone());
                    match second {
                        false => put(values, to),
                        true => add(values, 1.0, to),
                    }
                    if second || !self.decoder.splits_output() {
                        finish.apply(to);
                    }
                }
            });
        }
        self.keep_candidates(phase, found);
    }
}

fn plus(values: &[f32; TILE], bias: &[f32]) -> [f32; TILE] {
    std::array::from_fn(|i| values[i] + bias[i])
}
