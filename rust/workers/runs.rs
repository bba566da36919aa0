//! Which runs are going on, so that a buffer is touched by the workers of one at a time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Runs that can go on at once; more wait for each other.
const PLACES: usize = 256;

/// Ids of the runs that go on, each in its place; 0 where there is none.
static RUNNING: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// A run, which goes on until this is dropped.
pub(super) struct Run {
    id: u64,
}

impl Run {
    /// Begins a run.
    pub(super) fn begin() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let number = COUNT.fetch_add(1, Ordering::Relaxed) * PLACES as u64;
        loop {
            for (place, running) in (0..).zip(&RUNNING) {
                let id = number + place;
                if running.compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Self { id };
                }
            }
            std::thread::yield_now();
        }
    }

    /// A number that no other run has or had; neither 0 nor the largest.
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        place(self.id).store(0, Ordering::Release);
    }
}

fn place(id: u64) -> &'static AtomicU64 {
    &RUNNING[(id % PLACES as u64) as usize]
}

/// Whether the run `id` is over, or never was, if 0. What its workers did is then visible.
pub(super) fn is_over(id: u64) -> bool {
    id == 0 || place(id).load(Ordering::Acquire) != id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_over_once_dropped_and_its_id_does_not_come_back() {
        assert!(is_over(0));
        let mut ids = Vec::new();
        for _ in 0..2 * PLACES {
            let (one, other) = (Run::begin(), Run::begin());
            assert!(one.id() != other.id() && !is_over(one.id()) && !is_over(other.id()));
            ids.extend([one.id(), other.id()]);
            drop(one);
            assert!(is_over(ids[ids.len() - 2]) && !is_over(ids[ids.len() - 1]));
        }
        assert!(ids.iter().all(|&id| is_over(id)));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4 * PLACES);
    }
}
