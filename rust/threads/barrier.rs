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
///
/// Performance note: a worker writes only to lines of its own, so that passing costs one line's way from core to core
/// and not the three of a counter that the last one resets (a decode step of SmolLM2-135M passes 200 barriers).
pub(super) struct Barrier {
    pub(super) count: usize,
    /// By worker.
    progress: Box<[Apart<Progress>]>,
    pub(super) broken: AtomicBool,
    /// Nanoseconds that workers waited after they had spun in vain.
    pub(super) stalled: AtomicU64,
}

#[derive(Default)]
struct Progress {
    /// How many barriers the worker has come to.
    round: AtomicUsize,
    taken: Taken,
}

impl Barrier {
    pub(super) fn new(count: usize) -> Self {
        let progress = (0..count).map(|_| Apart::default()).collect();
        Self { count, progress, broken: AtomicBool::new(false), stalled: AtomicU64::new(0) }
    }

    /// How many barriers `worker` has come to.
    fn round(&self, worker: usize) -> usize {
        self.progress[worker].0.round.load(Ordering::Acquire)
    }

    /// Waits until all other workers came as far as `worker`.
    pub(super) fn wait(&self, worker: usize) {
        let round = self.round(worker) + 1;
        self.progress[worker].0.round.store(round, Ordering::Release);
        let stalled = wait_until(|| {
            assert!(!self.broken.load(Ordering::Relaxed), "another worker of this run panicked");
            (0..self.count).all(|other| self.round(other) >= round)
        });
        // Waiting at the first barrier is for a parked helper to wake up.
        if !stalled.is_zero() && round > 1 {
            self.stalled.fetch_add(stalled.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Takes for `worker` some of the `len` pieces of what is `owner`'s share until the next barrier, `part(left)` of
    /// those left: from the front of its own, from the back of another's.
    pub(super) fn take(
        &self,
        worker: usize,
        owner: usize,
        len: usize,
        part: impl Fn(usize) -> usize,
    ) -> Option<Range<usize>> {
        self.progress[owner].0.taken.take(self.round(worker), len, worker == owner, part)
    }
}

/// How many pieces of a share were taken since a barrier: its number in the low 16 bits, then, in 24 bits each, how
/// many from the front and how many from the back. What older ones left counts as nothing.
#[derive(Default)]
struct Taken(AtomicU64);

impl Taken {
    fn take(&self, round: usize, len: usize, front: bool, part: impl Fn(usize) -> usize) -> Option<Range<usize>> {
        const PIECES: usize = (1 << 24) - 1;
        assert!(len <= PIECES, "a share of {len} pieces");
        let round = round as u64 & 0xffff;
        let mut found = self.0.load(Ordering::Relaxed);
        loop {
            let now = if found & 0xffff == round { found } else { round };
            let (start, end) = ((now >> 16) as usize & PIECES, len - (now >> 40) as usize);
            if start == end {
                return None;
            }
            let count = part(end - start).clamp(1, end - start);
            let (step, taken) = match front {
                true => ((count as u64) << 16, start..start + count),
                false => ((count as u64) << 40, end - count..end),
            };
            match self.0.compare_exchange_weak(found, now + step, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(other) => found = other,
            }
        }
    }
}
