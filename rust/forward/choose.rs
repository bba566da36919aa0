//! The most likely token of every wanted row, with the bits of the logits but without computing them all.
//!
//! A logit is the product with the quantised activations plus the product with what quantising took off them (see
//! [`super::output`]). The second is small: by the inequality of Cauchy and Schwarz no larger than the product of two
//! norms. So the first alone tells which few tokens can be the most likely one, and only for them is the second added.

use super::output::CLAIM;
use super::{Decoder, Pass};
use crate::distribution::argmax;
use crate::kernels::layout::TILE;
use crate::kernels::shared::Shared;
use crate::matmul::multiply;
use crate::threads::Worker;
use std::sync::{Mutex, PoisonError};

/// What the workers know of the choices of a pass.
pub(super) struct Choices {
    /// What each worker found.
    found: Vec<Mutex<Vec<Found>>>,
    /// The tokens, by wanted row; [`NONE`] if no logit is above -inf.
    tokens: Shared<u32>,
}

const NONE: u32 = u32::MAX;

/// What one worker found for one row.
#[derive(Clone)]
struct Found {
    /// At least one logit is no lower.
    low: f32,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy)]
struct Candidate {
    token: usize,
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
        let Decoder { config, kernels, weights } = &*self.decoder;
        let rows = self.buffers.output.rows();
        // As wide as the second part of a logit can be, and a little wider for the rounding of all that is summed.
        let errors: Vec<f32> = (0..self.task.wanted.len())
            .map(|row| 1.001 * self.buffers.output_rest.norm(row) + f32::MIN_POSITIVE)
            .collect();
        let mut found = vec![Found { low: f32::NEG_INFINITY, candidates: Vec::new() }; errors.len()];
        let norms = weights.output_norms();
        while let Some(tiles) = worker.claim(weights.output.tile_count(), CLAIM) {
            multiply(kernels, &weights.output, tiles, &rows, results, |row, columns, values| {
                let Found { low, candidates } = &mut found[row];
                let norms = &norms[columns.start / TILE];
                if columns.len() == TILE && !kernels.screen(values, norms, errors[row], low) {
                    return;
                }
                for (token, (&coarse, norm)) in columns.zip(values.iter().zip(norms)) {
                    let high = norm.mul_add(errors[row], coarse);
                    *low = low.max(norm.mul_add(-errors[row], coarse));
                    if high >= *low {
                        candidates.push(Candidate { token, coarse, high });
                    }
                }
            });
        }
        *lock(&choices.found[worker.index]) = found;
        worker.barrier();
        for row in (worker.index..self.task.wanted.len()).step_by(worker.count) {
            let found: Vec<Found> = choices.found.iter().filter_map(|found| lock(found).get(row).cloned()).collect();
            let low = found.iter().fold(f32::NEG_INFINITY, |low, found| low.max(found.low));
            let mut candidates: Vec<_> = found.into_iter().flat_map(|found| found.candidates).collect();
            candidates.retain(|candidate| candidate.high >= low);
            candidates.sort_unstable_by_key(|candidate| candidate.token);
            let rest = self.buffers.output_rest.rows();
            let mut logits = Vec::with_capacity(candidates.len());
            let mut tile = usize::MAX;
            for candidate in &candidates {
                if candidate.token / TILE != tile {
                    tile = candidate.token / TILE;
                    results.resize(rest.count, [0.0; TILE]);
                    kernels.dot(&weights.output.tiles(tile..tile + 1), &rest, results);
                }
                logits.push(candidate.coarse + results[row][candidate.token % TILE]);
            }
            debug_assert!(candidates.iter().all(|candidate| candidate.token < config.n_vocab));
            let token = argmax(&logits).map_or(NONE, |i| candidates[i as usize].token as u32);
            choices.tokens.write(row..row + 1)[0] = token;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
