use super::*;
use crate::workers::phase::{Access, Units};

/// Runs a program on `count` workers, whatever the machine has; returns how many there were.
pub(crate) fn run_on(count: usize, program: Program) -> Option<usize> {
    cores(count).run(count, program, &mut || false)
}

const NOTHING: Access = Access::named("nothing");

fn cores(count: usize) -> Cores {
    let cpus = affinity::allowed().0;
    // On a machine with fewer CPUs some are used twice; the programs here do not mind.
    Cores::new(((0..count).map(|i| cpus[i % cpus.len()]).collect(), count))
}

/// A program that counts its workers.
fn counting() -> (Arc<AtomicUsize>, Program) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let program = Arc::new(move |worker: &mut Worker<'_>| {
        worker.phase(NOTHING, Units::Shares(0));
        counter.fetch_add(1, Ordering::Relaxed);
    });
    (count, program)
}

#[test]
fn refused_threads_leave_fewer_workers() {
    let mut cores = cores(3);
    cores.helper_stack = 1 << 60;
    let (count, program) = counting();
    assert_eq!(cores.run(3, program, &mut || false), Some(1));
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(*lock(&cores.busy), [false; 3]);

    cores.helper_stack = HELPER_STACK;
    let (count, program) = counting();
    assert_eq!(cores.run(3, program, &mut || false), Some(3));
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[test]
fn waiting_for_cores_can_be_stopped() {
    let cores = cores(2);
    let held = cores.claim(2, &mut || false).unwrap();
    let start = Instant::now();
    let (count, program) = counting();
    let mut polls = 0;
    let mut poll = || {
        polls += 1;
        polls == 3
    };
    assert_eq!(cores.run(1, program.clone(), &mut poll), None);
    assert!(start.elapsed() >= 2 * CLAIM_POLL);
    assert_eq!(count.load(Ordering::Relaxed), 0);
    drop(held);
    assert_eq!(cores.run(2, program, &mut || false), Some(2));
}

#[test]
fn cores_are_free_again_after_a_panic() {
    let cores = cores(2);
    let program: Program = Arc::new(|worker: &mut Worker<'_>| {
        assert!(worker.index() != 0, "this panic is part of the test");
        worker.phase(NOTHING, Units::Shares(0));
    });
    let result = catch_unwind(AssertUnwindSafe(|| cores.run(2, program, &mut || false)));
    assert!(result.is_err());
    assert_eq!(*lock(&cores.busy), [false; 2]);
}

#[test]
fn only_what_costs_more_than_it_brings_counts_as_contention() {
    let wall = Duration::from_millis(100);
    let stalled = |workers: usize, share: f64| Contention::stalled(workers, wall.mul_f64(share), wall);
    assert!(!stalled(2, 0.2));
    assert!(stalled(2, 0.3));
    // Nine tiles for eight workers: all but one wait for half of the time.
    assert!(!stalled(8, 7.0 * 0.5));
    assert!(!stalled(64, 63.0 * 0.5));
    assert!(stalled(8, 7.0 * 0.9));
}

#[test]
fn every_unit_is_taken_once() {
    // Fewer pieces than workers, none, a last one that is smaller; in some rounds nobody takes, in some one is late.
    const ROUNDS: [(usize, usize); 8] = [(100, 1), (0, 4), (1, 1), (37, 8), (3072, 16), (0, 0), (5, 2), (1000, 3)];
    for count in [1, 2, 3, 8] {
        let taken: Arc<Vec<Vec<AtomicUsize>>> =
            Arc::new(ROUNDS.iter().map(|&(units, _)| (0..units).map(|_| AtomicUsize::new(0)).collect()).collect());
        let marks = taken.clone();
        let program: Program = Arc::new(move |worker: &mut Worker<'_>| {
            for (round, &(units, step)) in ROUNDS.iter().enumerate() {
                if worker.index() == round % worker.count() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let phase = worker.phase(NOTHING, Units::Taken { count: units, step: step.max(1) });
                while let Some(some) = (step > 0).then(|| phase.next_units()).flatten() {
                    assert!(some.start.is_multiple_of(step) && (some.end.is_multiple_of(step) || some.end == units));
                    some.for_each(|unit| _ = marks[round][unit].fetch_add(1, Ordering::Relaxed));
                }
                worker.phase(NOTHING, Units::Shares(0));
                assert!(marks[round].iter().all(|mark| mark.load(Ordering::Relaxed) == 1));
            }
        });
        for _ in 0..5 {
            taken.iter().flatten().for_each(|mark| mark.store(0, Ordering::Relaxed));
            assert_eq!(cores(count).run(count, program.clone(), &mut || false), Some(count));
        }
    }
}
