//! The tokens that can be the most likely ones, as [`super::choose`] finds them.

use crate::workers::shared::Shared;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the workers know of the choices of a pass.
pub(super) struct Choices {
    /// What each worker found.
    pub(super) found: Vec<Mutex<Vec<Found>>>,
    /// The tokens, by wanted row; [`NONE`] if no logit is above -inf.
    pub(super) tokens: Shared<u32>,
}

pub(super) const NONE: u32 = u32::MAX;

/// What one worker found for one row.
pub(super) struct Found {
    /// At least one logit is no lower.
    pub(super) low: f32,
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
        Self { found: (0..workers).map(|_| Mutex::default()).collect(), tokens: Shared::zeroed(rows) }
    }

    pub(super) fn into_tokens(self) -> Vec<Option<u32>> {
        self.tokens.into_vec().into_iter().map(|token| (token != NONE).then_some(token)).collect()
    }
}

impl Candidate {
    /// Whether its logit can be as high as `low`. One that is not a number may: its logit tells.
    pub(super) fn reaches(&self, low: f32) -> bool {
        self.high >= low || self.high.is_nan()
    }
}

impl Default for Found {
    fn default() -> Self {
        Self { low: f32::NEG_INFINITY, candidates: Vec::new() }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
