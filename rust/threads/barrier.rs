//! Where the workers of a run wait for each other.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Rounds that a barrier spins before it starts to yield the core to other processes.
const BARRIER_SPIN: usize = 4000;

/// Spins until `done`, then yields the core between looks; returns how long it yielded.
pub(super) fn wait_until(done: impl Fn() -> bool) -> Duration {
    for _ in 0..BARRIER_SPIN {
        if done() {
            return Duration::ZERO;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    while !done() {
        std::thread::yield_now();
    }
    start.elapsed()
}

/// Something with cache lines of its own (two, since they are fetched in pairs): who waits for one number does not slow
/// down those who change another.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Apart<T>(pub(super) T);

/// A spinning barrier that also carries the news of a panic.
pub(super) struct Barrier {
    pub(super) count: usize,
    arrived: Apart<AtomicUsize>,
    round: Apart<AtomicUsize>,
    pub(super) broken: AtomicBool,
    /// How many units workers have taken since the last round.
    pub(super) taken: Apart<AtomicUsize>,
    /// Nanoseconds that workers waited after they had spun in vain.
    pub(super) stalled: AtomicU64,
}

impl Barrier {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            arrived: Apart::default(),
            round: Apart::default(),
            broken: AtomicBool::new(false),
            taken: Apart::default(),
            stalled: AtomicU64::new(0),
        }
    }

    pub(super) fn wait(&self) {
        if self.count == 1 {
            self.taken.0.store(0, Ordering::Relaxed);
            return;
        }
        let round = self.round.0.load(Ordering::Acquire);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.taken.0.store(0, Ordering::Relaxed);
            self.round.0.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        let stalled = wait_until(|| {
            assert!(!self.broken.load(Ordering::Relaxed), "another worker of this run panicked");
            self.round.0.load(Ordering::Acquire) != round
        });
        // Waiting at the first barrier is for a parked helper to wake up.
        if !stalled.is_zero() && round > 0 {
            self.stalled.fetch_add(stalled.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}
