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
        let mut found = self.no_candidates(phase);
        let targets = self.targets();
        let input = self.buffers.output.read(phase);
        while let Some(tiles) = phase.next_units() {
            multiply(kernels, &weights.output, tiles, &input, &mut local.results, |columns, rows, results| {
                let bounds = weights.output_bounds.get(columns.start / TILE).unwrap_or(&NO_BOUNDS);
                let bias = weights.output_bias.as_ref().map(|bias| &bias[columns.start..]);
                let [first, end] = [rows.start, rows.end].map(|row| row.min(self.chosen));
                let (sought, products) = results.split_at(end - first);
                for (found, values) in found[first..end].iter_mut().zip(sought) {
                    found.look(&finish, columns.clone(), plus(values, bias, &mut [0.0; TILE]), bounds);
                }
                let mut products = products.iter();
                let targets = &targets[rows.start - first..rows.end - end];
                // One writer for the rows of a sequence: making one costs as much as storing several tiles.
                for targets in targets.chunk_by(|a, b| (a.sequence, a.second) == (b.sequence, b.second)) {
                    let mut logits = phase.writer(&self.task.sequences[targets[0].sequence].logits);
                    let mut tile = logits.columns(columns.clone());
                    for (target, values) in targets.iter().zip(products.by_ref()) {
                        let to = tile.row(target.result);
                        match target.second {
                            false => put(plus(values, bias, &mut [0.0; TILE]), to),
                            true => add(values, 1.0, to),
                        }
                        if target.second || !self.decoder.splits_output() {
                            finish.apply(to);
                        }
                    }
                }
            });
        }
        self.keep_candidates(phase, found);
    }

    /// Where the products of the rows go of which logits are wanted.
    fn targets(&self) -> Vec<Target> {
        let target = |second| {
            self.wanted[self.chosen..].iter().map(move |&WantedRow { row, result }| Target {
                sequence: self.task.rows[row].sequence,
                result,
                second,
            })
        };
        let second = self.decoder.splits_output().then(|| target(true));
        target(false).chain(second.into_iter().flatten()).collect()
    }
}

/// Where a product goes.
struct Target {
    /// Index into the task's sequences.
    sequence: usize,
    /// Which of its results.
    result: usize,
    /// Whether it is the second part of a logit.
    second: bool,
}

/// The values plus their bias, which are put into `sum`; without one the values, since a copy of each tile costs 2 % of a
/// pass of few rows.
#[inline(always)]
fn plus<'v>(values: &'v [f32; TILE], bias: Option<&[f32]>, sum: &'v mut [f32; TILE]) -> &'v [f32; TILE] {
    let Some(bias) = bias else { return values };
    *sum = std::array::from_fn(|i| values[i] + bias[i]);
    sum
}
