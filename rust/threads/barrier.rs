//! Where the workers of a run wait for each other.

use std::ops::Range;
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
    /// What was taken of each worker's share since the last round.
    pub(super) taken: Box<[Apart<Taken>]>,
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
            taken: (0..count).map(|_| Apart::default()).collect(),
            stalled: AtomicU64::new(0),
        }
    }

    pub(super) fn wait(&self) {
        if self.count == 1 {
            self.give_back();
            return;
        }
        let round = self.round.0.load(Ordering::Acquire);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.give_back();
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

    /// Nothing of the next round's work is taken.
    fn give_back(&self) {
        self.taken.iter().for_each(|taken| taken.0.clear());
    }
}

/// How many pieces of a share were taken: from its front in the low half, from its back in the high one.
#[derive(Default)]
pub(super) struct Taken(AtomicU64);

impl Taken {
    /// Takes some of the `len` pieces of a share, `part(left)` of those left: from the front, or else from the back.
    pub(super) fn take(&self, len: usize, front: bool, part: impl Fn(usize) -> usize) -> Option<Range<usize>> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let (start, end) = (now as u32 as usize, len - (now >> 32) as usize);
            if start >= end {
                return None;
            }
            let count = part(end - start).clamp(1, end - start);
            let (step, taken) = match front {
                true => (count as u64, start..start + count),
                false => ((count as u64) << 32, end - count..end),
            };
            match self.0.compare_exchange_weak(now, now + step, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(other) => now = other,
            }
        }
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
