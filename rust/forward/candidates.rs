//! The tokens that can be the most likely ones, as [`super::choose`] finds them.

use crate::forward::buffers::TOKENS;
use crate::forward::finish::Finish;
use crate::kernels::layout::TILE;
use crate::workers::shared::{Shared, Table};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the workers know of the choices of a pass.
pub(super) struct Choices {
    /// What each worker found.
    found: Vec<Mutex<Vec<Found>>>,
    /// The tokens, by row; [`NONE`] if no logit is above -inf.
    pub(super) tokens: Shared<u32>,
}

pub(super) const NONE: u32 = u32::MAX;

/// What one worker found for one row.
pub(super) struct Found {
    /// How large the second part of a logit can be, by the bound of its weights.
    pub(super) error: f32,
    /// At least one logit is no lower.
    pub(super) low: f32,
    /// See [`Finish::floor`].
    pub(super) floor: f32,
    pub(super) candidates: Vec<Candidate>,
}

#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) token: u32,
    /// The first part of its logit.
    pub(super) coarse: f32,
    /// Its logit is no higher.
    pub(super) high: f32,
}

impl Choices {
    pub(super) fn new(workers: usize, rows: usize) -> Self {
        Self {
            found: (0..workers).map(|_| Mutex::default()).collect(),
            tokens: Shared::zeroed(TOKENS, Table::new(rows, 1)),
        }
    }

    /// Keeps what `worker` found.
    pub(super) fn keep(&self, worker: usize, found: Vec<Found>) {
        *lock(&self.found[worker]) = found;
    }

    /// What all workers found for `row`; it is theirs no longer.
    pub(super) fn take(&self, row: usize) -> Vec<Found> {
        let take = |found: &mut Found| Found { candidates: std::mem::take(&mut found.candidates), ..*found };
        self.found.iter().filter_map(|worker| lock(worker).get_mut(row).map(take)).collect()
    }

    pub(super) fn into_tokens(self) -> impl Iterator<Item = Option<u32>> {
        self.tokens.into_vec().into_iter().map(|token| (token != NONE).then_some(token))
    }
}

impl Found {
    /// Nothing yet.
    pub(super) fn new(error: f32) -> Self {
        Self { error, low: f32::NEG_INFINITY, floor: f32::NEG_INFINITY, candidates: Vec::new() }
    }

    /// Looks at the first parts of the logits of `tokens`, whose weights have these bounds.
    pub(super) fn look(
        &mut self,
        finish: &Finish<'_>,
        tokens: Range<usize>,
        coarse: &[f32; TILE],
        bounds: &[f32; TILE],
    ) {
        let Self { error, low, floor, candidates } = self;
        let mut least = *low;
        if tokens.len() == TILE {
            let mut reached = *floor;
            if !finish.kernels.screen(coarse, bounds, *error, &mut reached) {
                return;
            }
            least = least.max(reached);
        } else {
            let some = coarse.iter().zip(bounds).take(tokens.len());
            least = some.fold(least, |least, (&coarse, bound)| least.max(bound.mul_add(-*error, coarse)));
        }
        if least > *low {
            *low = least;
            *floor = finish.floor(least);
        }
        for (token, (&coarse, bound)) in tokens.zip(coarse.iter().zip(bounds)) {
            let candidate = Candidate { token: token as u32, coarse, high: bound.mul_add(*error, coarse) };
            if candidate.reaches(*floor) {
                candidates.push(candidate);
            }
        }
    }
}

impl Candidate {
    /// Whether its logit can be as high as one of at least `floor`. A NaN stays a candidate until its logit is known.
    pub(super) fn reaches(&self, floor: f32) -> bool {
        self.high >= floor || self.high.is_nan()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
