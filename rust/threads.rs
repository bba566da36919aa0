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
//!   measured, and after a run that lost [`STALLED`] of its time to it runs use one worker for a while, which the
//!   system may put on whatever core is free. The result has the same bits.
//! - Between runs a helper spins for [`IDLE_SPIN`] and then parks: long enough for the Python code between two decode
//!   steps, short enough that an idle process uses no CPU.

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a helper without work spins before it parks.
const IDLE_SPIN: Duration = Duration::from_millis(2);
/// Rounds that a barrier spins before it starts to yield the core to other processes.
const BARRIER_SPIN: usize = 4000;

/// Share of a run that workers may wait, beyond what spinning covers, before the cores count as contended.
const STALLED: f64 = 0.25;
/// How long runs use one worker after that: at first, and at most while it keeps happening.
const ALONE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(1600));

/// A program that every worker of a run executes.
pub type Program = Arc<dyn Fn(&mut Worker<'_>) + Send + Sync>;

/// What a caller is asked while its program runs: whether to stop.
pub type Poll<'a> = dyn FnMut() -> bool + 'a;

/// One of the threads that run a program.
pub struct Worker<'a> {
    /// Number of this worker; 0 is the calling thread.
    pub index: usize,
    /// Number of workers.
    pub count: usize,
    barrier: &'a Barrier,
    poll: Option<&'a mut Poll<'a>>,
}

impl Worker<'_> {
    /// Waits until every worker of the run is here; what they wrote before is visible after.
    pub fn barrier(&self) {
        self.barrier.wait();
    }

    /// Whether the caller wants the program to stop; only worker 0 is told.
    pub fn poll(&mut self) -> bool {
        self.poll.as_mut().is_some_and(|poll| poll())
    }

    /// This worker's share of `0..units`, cut at multiples of `step`.
    pub fn share(&self, units: usize, step: usize) -> std::ops::Range<usize> {
        let steps = units.div_ceil(step);
        let cut = |i: usize| (steps * i / self.count * step).min(units);
        cut(self.index)..cut(self.index + 1)
    }
}

/// Spins until `done`, then yields the core between looks; returns how long it yielded.
fn wait_until(done: impl Fn() -> bool) -> Duration {
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

/// A spinning barrier that also carries the news of a panic.
struct Barrier {
    count: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
    /// Nanoseconds that workers waited after they had spun in vain.
    stalled: AtomicU64,
}

impl Barrier {
    fn new(count: usize) -> Self {
        Self {
            count,
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            stalled: AtomicU64::new(0),
        }
    }

    fn wait(&self) {
        if self.count == 1 {
            return;
        }
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        let stalled = wait_until(|| {
            assert!(!self.broken.load(Ordering::Relaxed), "another worker of this run panicked");
            self.round.load(Ordering::Acquire) != round
        });
        // Waiting at the first barrier is for a parked helper to wake up.
        if !stalled.is_zero() && round > 0 {
            self.stalled.fetch_add(stalled.as_nanos() as u64, Ordering::Relaxed);
        }
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
        let mut worker = Worker { index, count: self.barrier.count, barrier: &self.barrier, poll };
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
    /// CPU numbers, one of each physical core first.
    cpus: Vec<usize>,
    /// Which of them are claimed by a run.
    busy: Mutex<Vec<bool>>,
    freed: Condvar,
    helpers: Vec<Mutex<Option<Helper>>>,
    contention: Mutex<Contention>,
}

/// Physical cores in the affinity mask of the process: the default number of threads.
pub fn physical_cores() -> usize {
    affinity::allowed().1
}

/// CPUs in the affinity mask of the process: the largest number of threads.
pub fn allowed_cpus() -> usize {
    affinity::allowed().0.len()
}

/// Runs `program` on `threads` workers and waits for all of them.
///
/// `poll` is called by worker 0 where the program says so. At most [`allowed_cpus`] workers are used.
///
/// # Panics
/// If the program panicked on a worker.
pub fn run<'a>(threads: usize, program: Program, poll: &'a mut Poll<'a>) {
    let cores = Cores::of_this_process();
    let claimed = cores.claim(if lock(&cores.contention).active() { 1 } else { threads });
    let team = Arc::new(Team { program, barrier: Barrier::new(claimed.len()) });
    let running = Arc::new(AtomicUsize::new(claimed.len() - 1));
    for (index, &core) in claimed.iter().enumerate().skip(1) {
        cores.send(core, Job { team: team.clone(), index, running: running.clone() });
    }
    let start = Instant::now();
    let result = {
        let _pinned = (claimed.len() > 1).then(|| affinity::Pinned::to(cores.cpus[claimed[0]]));
        let result = team.work(0, Some(poll));
        wait_until(|| running.load(Ordering::Acquire) == 0);
        result
    };
    cores.release(&claimed);
    if claimed.len() > 1 {
        let stalled = Duration::from_nanos(team.barrier.stalled.load(Ordering::Relaxed));
        lock(&cores.contention).record(stalled.as_secs_f64() > STALLED * start.elapsed().as_secs_f64());
    }
    match result {
        Ok(()) => assert!(!team.barrier.broken.load(Ordering::Relaxed), "a worker of this run panicked"),
        Err(panic) => resume_unwind(panic),
    }
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

    fn record(&mut self, stalled: bool) {
        if stalled {
            self.until = Instant::now() + self.pause;
            self.pause = (2 * self.pause).min(ALONE.1);
        } else {
            self.pause = ALONE.0;
        }
    }
}

impl Cores {
    /// The cores of the current process; a fork gets its own, since threads do not survive it.
    fn of_this_process() -> Arc<Self> {
        static CORES: Mutex<Option<(u32, Arc<Cores>)>> = Mutex::new(None);
        let mut cores = lock(&CORES);
        let process = std::process::id();
        match &*cores {
            Some((owner, cores)) if *owner == process => cores.clone(),
            _ => {
                let cpus = affinity::allowed().0;
                let new = Arc::new(Self {
                    busy: Mutex::new(vec![false; cpus.len()]),
                    freed: Condvar::new(),
                    helpers: cpus.iter().map(|_| Mutex::new(None)).collect(),
                    contention: Mutex::new(Contention { until: Instant::now(), pause: ALONE.0 }),
                    cpus,
                });
                *cores = Some((process, new.clone()));
                new
            }
        }
    }

    /// Waits for `threads` free cores and takes them.
    fn claim(&self, threads: usize) -> Vec<usize> {
        let threads = threads.clamp(1, self.cpus.len());
        let mut busy = lock(&self.busy);
        loop {
            let free: Vec<usize> = (0..busy.len()).filter(|&i| !busy[i]).take(threads).collect();
            if free.len() == threads {
                free.iter().for_each(|&i| busy[i] = true);
                return free;
            }
            busy = self.freed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn release(&self, claimed: &[usize]) {
        let mut busy = lock(&self.busy);
        claimed.iter().for_each(|&i| busy[i] = false);
        self.freed.notify_all();
    }

    /// Hands a job to the helper of core `core`, which is started if need be.
    fn send(&self, core: usize, job: Job) {
        let mut helper = lock(&self.helpers[core]);
        let helper = helper.get_or_insert_with(|| {
            let (mailbox, cpu) = (Arc::new(Mailbox::default()), self.cpus[core]);
            let own = mailbox.clone();
            let thread = std::thread::Builder::new()
                .name(format!("specrs-{cpu}"))
                .spawn(move || own.serve(cpu))
                .expect("the system refused a thread");
            Helper { thread: thread.thread().clone(), mailbox }
        });
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

#[cfg(target_os = "linux")]
mod affinity {
    use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
    use std::collections::HashSet;

    /// The CPUs this process may use, one of each physical core first, and the number of physical cores.
    pub fn allowed() -> (Vec<usize>, usize) {
        let Ok(set) = sched_getaffinity(Some(rustix::process::getpid())) else { return (vec![0], 1) };
        let mut seen = HashSet::new();
        let (mut first, second): (Vec<_>, Vec<_>) =
            (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).partition(|&cpu| seen.insert(core_of(cpu)));
        let physical = first.len();
        first.extend(second);
        (first, physical)
    }

    /// What identifies the physical core of `cpu`; CPUs the system says nothing about count as cores of their own.
    fn core_of(cpu: usize) -> (String, String) {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}")).unwrap_or_default()
        };
        match read("core_id") {
            id if id.is_empty() => (cpu.to_string(), String::new()),
            id => (id, read("physical_package_id")),
        }
    }

    /// Keeps the calling thread on one CPU until dropped.
    pub struct Pinned {
        before: Option<CpuSet>,
    }

    impl Pinned {
        pub fn to(cpu: usize) -> Self {
            let before = sched_getaffinity(None).ok().filter(|set| set.is_set(cpu));
            if before.is_some() {
                let mut only = CpuSet::new();
                only.set(cpu);
                // A refusal only costs speed.
                let _ = sched_setaffinity(None, &only);
            }
            Self { before }
        }
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            if let Some(before) = &self.before {
                let _ = sched_setaffinity(None, before);
            }
        }
    }
}

/// Systems without an affinity interface schedule the threads themselves.
#[cfg(not(target_os = "linux"))]
mod affinity {
    pub fn allowed() -> (Vec<usize>, usize) {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        ((0..cpus).collect(), cpus)
    }

    pub struct Pinned;

    impl Pinned {
        pub fn to(_cpu: usize) -> Self {
            Self
        }
    }
}
