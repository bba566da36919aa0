//! The most likely tokens, with the bits of the logits but without computing them all.
//!
//! A logit is the product with the quantised activations plus the product with what quantising took off them (see
//! [`super::output`]). The second is small: by the inequality of Cauchy and Schwarz no larger than the product of two
//! norms. So the first alone tells which few tokens can be the most likely one, and only for them is the second added.
//! Where the output projection is floats, the first part is the logit.

use crate::forward::candidates::{Found, NONE};
use crate::forward::decoder::Decoder;
use crate::forward::finish::Finish;
use crate::forward::matmul::norm;
use crate::forward::plan::Pass;
use crate::kernels::layout::TILE;
use crate::sampling::distribution::argmax;
use crate::workers::phase::Phase;

impl Pass {
    /// No candidates yet, for each row of which the most likely token is wanted.
    pub(super) fn no_candidates(&self, phase: &Phase<'_>) -> Vec<Found> {
        let rest = self.buffers.output_rest.read(phase);
        let error = |row| match self.decoder.splits_output() {
            true => 1.001 * norm(&rest, row) + f32::MIN_POSITIVE,
            false => 0.0,
        };
        (0..self.chosen).map(|row| Found::new(error(row))).collect()
    }

    /// Keeps the candidates of this worker that no other one of its own rules out.
    pub(super) fn keep_candidates(&self, phase: &Phase<'_>, mut found: Vec<Found>) {
        for Found { floor, candidates, .. } in &mut found {
            candidates.retain(|candidate| candidate.reaches(*floor));
        }
        self.choices.keep(phase.index(), found);
    }

    /// Chooses among the candidates of all workers.
    pub(super) fn choose(&self, phase: &Phase<'_>, results: &mut Vec<[f32; TILE]>) {
        let Decoder { config, kernels, weights } = &*self.decoder;
        let finish = Finish::new(config, kernels);
        let rest = self.buffers.output_rest.read(phase);
        let mut tokens = phase.writer(&self.choices.tokens);
        for row in std::iter::from_fn(|| phase.next_units()).flatten() {
            let found = self.choices.take(row);
            let floor = found.iter().fold(f32::NEG_INFINITY, |floor, found| floor.max(found.floor));
            let mut candidates: Vec<_> = found.into_iter().flat_map(|found| found.candidates).collect();
            candidates.retain(|candidate| candidate.reaches(floor));
            candidates.sort_unstable_by_key(|candidate| candidate.token);
            let mut logits: Vec<f32> = candidates.iter().map(|candidate| candidate.coarse).collect();
            if self.decoder.splits_output() {
                // The rows that are interleaved with this one.
                let first = row / rest.interleaved * rest.interleaved;
                let some = rest.slice(first, rest.interleaved.min(rest.count - first));
                results.resize(some.count, [0.0; TILE]);
                let mut tile = usize::MAX;
                for (logit, candidate) in logits.iter_mut().zip(&candidates) {
                    let token = candidate.token as usize;
                    if token / TILE != tile {
                        tile = token / TILE;
                        kernels.matmul(&weights.output.tiles(tile..tile + 1), &some, results);
                    }
                    *logit += results[row - first][token % TILE];
                }
            }
            finish.apply(&mut logits);
            tokens.row(row)[0] = argmax(&logits).map_or(NONE, |i| candidates[i as usize].token);
        }
    }
}
