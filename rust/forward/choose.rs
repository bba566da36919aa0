//! The most likely token of every wanted row, with the bits of the logits but without computing them all.
//!
//! A logit is the product with the quantised activations plus the product with what quantising took off them (see
//! [`super::output`]). The second is small: by the inequality of Cauchy and Schwarz no larger than the product of two
//! norms. So the first alone tells which few tokens can be the most likely one, and only for them is the second added.

use crate::forward::candidates::{lock, Candidate, Choices, Found, NONE};
use crate::forward::decoder::Decoder;
use crate::forward::matmul::multiply;
use crate::forward::plan::Pass;
use crate::forward::project::OUTPUT_PIECE;
use crate::kernels::layout::TILE;
use crate::sampling::distribution::argmax;
use crate::workers::threads::Worker;

impl Pass {
    /// Chooses the most likely token of every wanted row.
    pub(super) fn choose(&self, worker: &Worker<'_>, choices: &Choices, results: &mut Vec<[f32; TILE]>) {
        self.find(worker, choices, results);
        worker.barrier();
        let Decoder { kernels, weights, .. } = &*self.decoder;
        let rest = self.buffers.output_rest.rows();
        for row in (worker.index..self.task.wanted.len()).step_by(worker.count) {
            let found = choices.found.iter().filter_map(|found| Some(std::mem::take(lock(found).get_mut(row)?)));
            let found: Vec<Found> = found.collect();
            let low = found.iter().fold(f32::NEG_INFINITY, |low, found| low.max(found.low));
            let mut candidates: Vec<_> = found.into_iter().flat_map(|found| found.candidates).collect();
            candidates.retain(|candidate| candidate.reaches(low));
            candidates.sort_unstable_by_key(|candidate| candidate.token);
            // The rows that are interleaved with this one.
            let first = row / rest.interleaved * rest.interleaved;
            let some = rest.slice(first, rest.interleaved.min(rest.count - first));
            results.resize(some.count, [0.0; TILE]);
            let mut logits = Vec::with_capacity(candidates.len());
            let mut tile = usize::MAX;
            for candidate in &candidates {
                let token = candidate.token as usize;
                if token / TILE != tile {
                    tile = token / TILE;
                    kernels.matmul(&weights.output.tiles(tile..tile + 1), &some, results);
                }
                logits.push(candidate.coarse + results[row - first][token % TILE]);
            }
            choices.tokens.write(row..row + 1)[0] = argmax(&logits).map_or(NONE, |i| candidates[i as usize].token);
        }
    }

    /// Finds the tokens that can be the most likely ones among the tiles this worker takes.
    fn find(&self, worker: &Worker<'_>, choices: &Choices, results: &mut Vec<[f32; TILE]>) {
        let Decoder { kernels, weights, .. } = &*self.decoder;
        let wanted = 0..self.task.wanted.len();
        // How large the second part of a logit can be, by the norm of its weights.
        let errors: Vec<f32> =
            wanted.map(|row| 1.001 * self.buffers.output_rest.norm(row) + f32::MIN_POSITIVE).collect();
        let mut found: Vec<Found> = errors.iter().map(|_| Found::default()).collect();
        let rows = self.buffers.output.rows();
        while let Some(tiles) = worker.take(weights.output.tile_count(), OUTPUT_PIECE) {
            multiply(kernels, &weights.output, tiles, &rows, results, |row, columns, values| {
                let Found { low, candidates } = &mut found[row];
                let bounds = &weights.output_bounds[columns.start / TILE];
                if columns.len() == TILE && !kernels.screen(values, bounds, errors[row], low) {
                    return;
                }
                for (token, (&coarse, bound)) in columns.zip(values.iter().zip(bounds)) {
                    let candidate = Candidate { token: token as u32, coarse, high: bound.mul_add(errors[row], coarse) };
                    *low = low.max(bound.mul_add(-errors[row], coarse));
                    if candidate.reaches(*low) {
                        candidates.push(candidate);
                    }
                }
            });
        }
        for Found { low, candidates } in &mut found {
            candidates.retain(|candidate| candidate.reaches(*low));
        }
        *lock(&choices.found[worker.index]) = found;
    }
}
