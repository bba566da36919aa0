//! Where the workers of a run wait for each other, and see that all go on alike.

use crate::workers::runs::Run;
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

/// Something with cache lines of its own (two, since they are fetched in pairs): who waits for one worker does not slow
/// down another.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Apart<T>(pub(super) T);

/// A spinning barrier that also carries the news of a panic, and what each worker means to do after it.
///
/// Performance note: to pass it a worker writes to its own line and reads those of the others, which is quicker than a
/// counter that all write to and the last one resets (a decode step of SmolLM2-135M passes 240 barriers). What workers take
/// is on other lines: they go on taking while another one, who passes later, still compares plans.
pub(super) struct Barrier {
    pub(super) count: usize,
    pub(super) run: Run,
    /// By worker.
    progress: Box<[Apart<Progress>]>,
    /// By worker.
    taken: Box<[Apart<Taken>]>,
    pub(super) broken: AtomicBool,
    /// Nanoseconds that workers waited after they had spun in vain.
    pub(super) stalled: AtomicU64,
}

#[derive(Default)]
struct Progress {
    /// How many barriers the worker has come to.
    round: AtomicUsize,
    /// What it does after a barrier with an even number, and after one with an odd number: nobody comes to the next but
    /// one before all have seen it.
    plans: [[AtomicU64; 2]; 2],
}

/// What a worker does between two barriers: see [`super::phase`].
pub(super) type Plan = [u64; 2];

impl Barrier {
    pub(super) fn new(count: usize) -> Self {
        let progress = (0..count).map(|_| Apart::default()).collect();
        let taken = (0..count).map(|_| Apart::default()).collect();
        Self { count, run: Run::begin(), progress, taken, broken: AtomicBool::new(false), stalled: AtomicU64::new(0) }
    }

    /// How many barriers `worker` has come to.
    pub(super) fn round(&self, worker: usize) -> usize {
        self.progress[worker].0.round.load(Ordering::Acquire)
    }

    /// Waits until all other workers came as far as `worker`.
    ///
    /// # Panics
    /// If one of them has another plan, or panicked.
    pub(super) fn wait(&self, worker: usize, plan: Plan) {
        let own = &self.progress[worker].0;
        let round = own.round.load(Ordering::Relaxed) + 1;
        assert!(round < 1 << ROUND_BITS, "too many barriers for a run");
        own.plans[round % 2].iter().zip(plan).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        own.round.store(round, Ordering::Release);
        let stalled = wait_until(|| {
            assert!(!self.broken.load(Ordering::Relaxed), "another worker of this run panicked");
            (0..self.count).all(|other| self.round(other) >= round)
        });
        // Waiting at the first barrier is for a parked helper to wake up.
        if !stalled.is_zero() && round > 1 {
            self.stalled.fetch_add(stalled.as_nanos() as u64, Ordering::Relaxed);
        }
        let same = |other: &Apart<Progress>| {
            other.0.plans[round % 2].each_ref().map(|word| word.load(Ordering::Relaxed)) == plan
        };
        assert!(self.progress.iter().all(same), "the workers of a run begin different phases");
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
        self.taken[owner].0.take(self.round(worker), len, worker == owner, part)
    }
}

/// Bits of a barrier's number: a run of more than any pass through a model needs.
const ROUND_BITS: u32 = 24;
/// Bits of a number of pieces.
const PIECE_BITS: u32 = 20;

/// How many pieces of a share were taken since a barrier: its number in the low bits, then how many from the front, then
/// how many from the back. What was taken before an earlier one counts as nothing.
#[derive(Default)]
struct Taken(AtomicU64);

impl Taken {
    fn take(&self, round: usize, len: usize, front: bool, part: impl Fn(usize) -> usize) -> Option<Range<usize>> {
        const MOST_PIECES: usize = (1 << PIECE_BITS) - 1;
        const ROUNDS: u64 = (1 << ROUND_BITS) - 1;
        assert!(len <= MOST_PIECES, "a share of {len} pieces");
        let round = round as u64;
        let mut found = self.0.load(Ordering::Relaxed);
        loop {
            let now = if found & ROUNDS == round { found } else { round };
            let (start, back) =
                ((now >> ROUND_BITS) as usize & MOST_PIECES, (now >> (ROUND_BITS + PIECE_BITS)) as usize);
            let left = len.checked_sub(start + back).expect("one set of units between two barriers");
            if left == 0 {
                return None;
            }
            let count = part(left).clamp(1, left);
            let (step, taken) = match front {
                true => ((count as u64) << ROUND_BITS, start..start + count),
                false => ((count as u64) << (ROUND_BITS + PIECE_BITS), len - back - count..len - back),
            };
            match self.0.compare_exchange_weak(found, now + step, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(other) => found = other,
            }
        }
    }
}
