//! The most likely token of every wanted row, with the bits of the logits but without computing them all.
//!
//! A logit is the product with the quantised activations plus the product with what quantising took off them (see
//! [`super::output`]). The second is small: by the inequality of Cauchy and Schwarz no larger than the product of two
//! norms. So the first alone tells which few tokens can be the most likely one, and only for them is the second added.

use super::{Decoder, Pass, OUTPUT_PIECE};
use crate::distribution::argmax;
use crate::kernels::layout::TILE;
use crate::kernels::shared::Shared;
use crate::matmul::multiply;
use crate::threads::Worker;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the workers know of the choices of a pass.
pub(super) struct Choices {
    /// What each worker found.
    found: Vec<Mutex<Vec<Found>>>,
    /// The tokens, by wanted row; [`NONE`] if no logit is above -inf.
    tokens: Shared<u32>,
}

const NONE: u32 = u32::MAX;

/// What one worker found for one row.
struct Found {
    /// At least one logit is no lower.
    low: f32,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy)]
struct Candidate {
    token: u32,
    /// The first part of its logit.
    coarse: f32,
    /// Its logit is no higher.
    high: f32,
}

impl Choices {
    pub(super) fn new(workers: usize, rows: usize) -> Self {
        Self { found: (0..workers).map(|_| Mutex::default()).collect(), tokens: Shared::zeroed(rows) }
    }

    pub(super) fn into_tokens(self) -> Vec<Option<u32>> {
        self.tokens.into_vec().into_iter().map(|token| (token != NONE).then_some(token)).collect()
    }
}

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
                    kernels.dot(&weights.output.tiles(tile..tile + 1), &some, results);
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
                let norms = &weights.output_norms[columns.start / TILE];
                if columns.len() == TILE && !kernels.screen(values, norms, errors[row], low) {
                    return;
                }
                for (token, (&coarse, norm)) in columns.zip(values.iter().zip(norms)) {
                    let candidate = Candidate { token: token as u32, coarse, high: norm.mul_add(errors[row], coarse) };
                    *low = low.max(norm.mul_add(-errors[row], coarse));
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

impl Candidate {
    /// Whether its logit can be as high as `low`. One that is not a number may: its logit tells.
    fn reaches(&self, low: f32) -> bool {
        self.high >= low || self.high.is_nan()
    }
}

impl Default for Found {
    fn default() -> Self {
        Self { low: f32::NEG_INFINITY, candidates: Vec::new() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
