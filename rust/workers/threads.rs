//! The worker threads that run one program together.
//!
//! There is one helper thread for each core the process may use, pinned to it and shared by all models, so that
//! several models or sessions never oversubscribe the machine. A run claims as many cores as it wants, waits while
//! they are busy, and uses the calling thread as its first worker, pinned for the time of the run.
//!
//! Performance notes:
//! - On small virtual machines two spinning threads that are not pinned can end up on one core, and decode falls to a
//!   tenth; pinning costs two system calls a run.
//! - A run can go on only while all its workers do. When other processes take cores away, workers wait for each other
//!   most of the time (decode was 5 to 10 times slower than alone on a machine with both cores busy). So waiting is
//!   measured, and after a run that lost so much that it had the worth of [`BREAK_EVEN`] workers left, runs use one
//!   worker for a while, which the system may put on whatever core is free. The result has the same bits. Shares of
//!   work that differ by a tile cost less than that, however many workers there are. [`run`] returns how many it used.
//! - Between runs a helper spins for [`IDLE_SPIN`] and then parks: long enough for the Python code between two decode
//!   steps, short enough that an idle process uses no CPU.

use crate::workers::affinity;
use crate::workers::barrier::{wait_until, Barrier};
use std::cell::RefCell;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a helper without work spins before it parks.
const IDLE_SPIN: Duration = Duration::from_millis(2);

/// With less progress than so many undisturbed workers would make, the cores of a run count as contended: then one
/// worker is about as fast, and leaves the other cores alone.
const BREAK_EVEN: f64 = 1.5;
/// How long runs use one worker after that: at first, and at most while it keeps happening.
const ALONE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(1600));

/// How often a caller that waits for cores is polled.
const CLAIM_POLL: Duration = Duration::from_millis(10);
/// Bytes of a helper's stack.
const HELPER_STACK: usize = 2 << 20;

/// A program that every worker of a run executes.
pub type Program = Arc<dyn Fn(&mut Worker<'_>) + Send + Sync>;

/// What a caller is asked while its program runs: whether to stop.
pub type Poll<'a> = dyn FnMut() -> bool + 'a;

/// One of the threads that run a program. What it does in common with others it does in a [`Phase`](super::phase::Phase).
pub struct Worker<'a> {
    /// Number of this worker; 0 is the calling thread.
    pub(super) index: usize,
    pub(super) barrier: &'a Barrier,
    poll: &'a dyn Fn() -> bool,
}

impl Worker<'_> {
    /// Number of this worker; 0 is the calling thread.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of workers.
    pub fn count(&self) -> usize {
        self.barrier.count
    }

    /// Whether the caller wants the program to stop; only worker 0 is told.
    pub fn poll(&self) -> bool {
        (self.poll)()
    }

    /// This worker's share of `0..units`.
    pub fn share(&self, units: usize) -> Range<usize> {
        self.share_of(self.index, units)
    }

    fn share_of(&self, worker: usize, pieces: usize) -> Range<usize> {
        let cut = |i: usize| pieces * i / self.count();
        cut(worker)..cut(worker + 1)
    }

    /// Some of `0..units` that no worker has taken since the last barrier, or `None` when all are; every worker gives the
    /// same `units` and `step`. See [`Units::Taken`](super::phase::Units::Taken).
    pub(super) fn take(&self, units: usize, step: usize) -> Option<Range<usize>> {
        let (pieces, count) = (units.div_ceil(step), self.count());
        (self.index..self.index + count).map(|i| i % count).find_map(|worker| {
            let share = self.share_of(worker, pieces);
            let part = |left: usize| match worker == self.index {
                // A single worker has nobody to wait for.
                true if count == 1 => left,
                true => 3 * left / 4,
                false => left / 2,
            };
            let taken = self.barrier.take(self.index, worker, share.len(), part)?;
            Some((share.start + taken.start) * step..units.min((share.start + taken.end) * step))
        })
    }
}

/// What a run shares with its helpers.
struct Team {
    program: Program,
    barrier: Barrier,
}

impl Team {
    /// Runs the program as worker `index`; a panic breaks the barrier so that the others stop too.
    fn work<'a>(&'a self, index: usize, poll: Option<&'a mut Poll<'a>>) -> std::thread::Result<()> {
        let poll = RefCell::new(poll);
        let poll = || poll.borrow_mut().as_mut().is_some_and(|poll| poll());
        let mut worker = Worker { index, barrier: &self.barrier, poll: &poll };
        let result = catch_unwind(AssertUnwindSafe(|| (self.program)(&mut worker)));
        if result.is_err() {
            self.barrier.broken.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// A helper thread's letter box.
struct Helper {
    thread: std::thread::Thread,
    mailbox: Arc<Mailbox>,
}

#[derive(Default)]
struct Mailbox {
    /// Whether `job` is filled; what the helper spins on.
    full: AtomicBool,
    job: Mutex<Option<Job>>,
}

/// One worker's part in a run.
struct Job {
    team: Arc<Team>,
    index: usize,
    /// Helpers of the run that are not done.
    running: Arc<AtomicUsize>,
}

/// The cores of the process and their helpers.
struct Cores {
    /// CPU numbers, one of each physical core first; asked for before any thread was pinned.
    cpus: Vec<usize>,
    /// How many physical cores they belong to.
    physical: usize,
    /// Which of them are claimed by a run.
    busy: Mutex<Vec<bool>>,
    freed: Condvar,
    helpers: Vec<Mutex<Option<Helper>>>,
    /// Bytes of a helper's stack.
    helper_stack: usize,
    contention: Mutex<Contention>,
}

/// Physical cores in the affinity mask that the process had at its first model: the default number of threads.
pub fn physical_cores() -> usize {
    Cores::of_this_process().physical
}

/// CPUs in that affinity mask: the largest number of threads.
pub fn allowed_cpus() -> usize {
    Cores::of_this_process().cpus.len()
}

/// Runs `program` on `threads` workers and waits for all of them; returns how many there were.
///
/// There are fewer while other processes hold the cores and where the system refuses threads; at most
/// [`allowed_cpus`]. `poll` is called while cores are waited for, and by worker 0 where the program says so. `None`
/// if it asked to stop before the program began.
///
/// # Panics
/// If the program panicked on a worker.
pub fn run<'a>(threads: usize, program: Program, poll: &'a mut Poll<'a>) -> Option<usize> {
    Cores::of_this_process().run(threads, program, poll)
}

/// Whether other processes were seen to take cores away.
struct Contention {
    /// Until when runs use one worker.
    until: Instant,
    /// For how long they will if the next attempt stalls too.
    pause: Duration,
}

impl Contention {
    fn active(&self) -> bool {
        Instant::now() < self.until
    }

    /// Whether `workers` that together waited for `waited` in a run of length `wall` lost too much by it.
    fn stalled(workers: usize, waited: Duration, wall: Duration) -> bool {
        let left = workers as f64 * (1.0 - waited.as_secs_f64() / (wall.as_secs_f64() * (workers - 1) as f64));
        left < BREAK_EVEN
    }

    fn record(&mut self, stalled: bool) {
        if stalled {
            self.until = Instant::now() + self.pause;
            self.pause = (2 * self.pause).min(ALONE.1);
        } else {
            self.pause = ALONE.0;
        }
    }
}

/// Cores that a run has to itself until this is dropped.
struct Claim<'a> {
    cores: &'a Cores,
    claimed: Vec<usize>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.cores.release(&self.claimed);
    }
}

impl Cores {
    fn new((cpus, physical): (Vec<usize>, usize)) -> Self {
        Self {
            busy: Mutex::new(vec![false; cpus.len()]),
            freed: Condvar::new(),
            helpers: cpus.iter().map(|_| Mutex::new(None)).collect(),
            helper_stack: HELPER_STACK,
            contention: Mutex::new(Contention { until: Instant::now(), pause: ALONE.0 }),
            cpus,
            physical,
        }
    }

    /// The cores of the current process; a fork gets its own, since threads do not survive it.
    fn of_this_process() -> Arc<Self> {
        static CORES: Mutex<Option<(u32, Arc<Cores>)>> = Mutex::new(None);
        let mut cores = lock(&CORES);
        let process = std::process::id();
        match &*cores {
            Some((owner, cores)) if *owner == process => cores.clone(),
            _ => {
                let new = Arc::new(Self::new(affinity::allowed()));
                *cores = Some((process, new.clone()));
                new
            }
        }
    }

    /// See [`run`].
    fn run<'a>(&self, threads: usize, program: Program, poll: &'a mut Poll<'a>) -> Option<usize> {
        let threads = if lock(&self.contention).active() { 1 } else { threads };
        let claim = self.claim(threads, poll)?;
        let workers = claim.claimed.len();
        let team = Arc::new(Team { program, barrier: Barrier::new(workers) });
        let running = Arc::new(AtomicUsize::new(workers - 1));
        for (index, &core) in claim.claimed.iter().enumerate().skip(1) {
            self.send(core, Job { team: team.clone(), index, running: running.clone() });
        }
        let start = Instant::now();
        let result = {
            let _pinned = (workers > 1).then(|| affinity::Pinned::to(self.cpus[claim.claimed[0]]));
            let result = team.work(0, Some(poll));
            wait_until(|| running.load(Ordering::Acquire) == 0);
            result
        };
        drop(claim);
        if workers > 1 {
            let waited = Duration::from_nanos(team.barrier.stalled.load(Ordering::Relaxed));
            lock(&self.contention).record(Contention::stalled(workers, waited, start.elapsed()));
        }
        match result {
            Ok(()) => assert!(!team.barrier.broken.load(Ordering::Relaxed), "a worker of this run panicked"),
            Err(panic) => resume_unwind(panic),
        }
        Some(workers)
    }

    /// Waits for `threads` free cores and takes them; fewer if there are no helpers for all. `None` if `poll` asked to
    /// stop.
    fn claim(&self, threads: usize, poll: &mut Poll<'_>) -> Option<Claim<'_>> {
        let threads = threads.clamp(1, self.cpus.len());
        let mut busy = lock(&self.busy);
        let free = loop {
            let free: Vec<usize> = (0..busy.len()).filter(|&i| !busy[i]).take(threads).collect();
            if free.len() == threads {
                break free;
            }
            busy = self.freed.wait_timeout(busy, CLAIM_POLL).unwrap_or_else(PoisonError::into_inner).0;
            // Not under the lock: the poll may wait for the interpreter.
            drop(busy);
            if poll() {
                return None;
            }
            busy = lock(&self.busy);
        };
        free.iter().for_each(|&i| busy[i] = true);
        drop(busy);
        let mut claim = Claim { cores: self, claimed: free };
        // Before any job is handed out: a run cannot lose workers any more.
        let without: Vec<usize> = claim.claimed.iter().skip(1).copied().filter(|&core| !self.start(core)).collect();
        claim.claimed.retain(|core| !without.contains(core));
        self.release(&without);
        Some(claim)
    }

    fn release(&self, claimed: &[usize]) {
        let mut busy = lock(&self.busy);
        claimed.iter().for_each(|&i| busy[i] = false);
        self.freed.notify_all();
    }

    /// Starts the helper of core `core` unless it runs already; whether it runs now.
    fn start(&self, core: usize) -> bool {
        let mut helper = lock(&self.helpers[core]);
        if helper.is_none() {
            let (mailbox, cpu) = (Arc::new(Mailbox::default()), self.cpus[core]);
            let own = mailbox.clone();
            let builder = std::thread::Builder::new().name(format!("specrs-{cpu}")).stack_size(self.helper_stack);
            let thread = builder.spawn(move || own.serve(cpu));
            *helper = thread.ok().map(|thread| Helper { thread: thread.thread().clone(), mailbox });
        }
        helper.is_some()
    }

    /// Hands a job to the helper of core `core`, which was started.
    fn send(&self, core: usize, job: Job) {
        let helper = lock(&self.helpers[core]);
        let helper = helper.as_ref().expect("a claim starts its helpers");
        *lock(&helper.mailbox.job) = Some(job);
        helper.mailbox.full.store(true, Ordering::Release);
        helper.thread.unpark();
    }
}

impl Mailbox {
    /// The life of a helper.
    fn serve(&self, cpu: usize) {
        std::mem::forget(affinity::Pinned::to(cpu));
        let mut idle_since = Instant::now();
        loop {
            if self.full.swap(false, Ordering::AcqRel) {
                let job = lock(&self.job).take();
                if let Some(Job { team, index, running }) = job {
                    // The caller learns of a panic from the broken barrier.
                    let _ = team.work(index, None);
                    // Dropped first: when the run is over, nothing but the caller holds the program.
                    drop(team);
                    running.fetch_sub(1, Ordering::Release);
                }
                idle_since = Instant::now();
            } else if idle_since.elapsed() < IDLE_SPIN {
                (0..16).for_each(|_| std::hint::spin_loop());
            } else {
                std::thread::park();
            }
        }
    }
}

/// A lock that outlives panics: the state it guards is valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests;
