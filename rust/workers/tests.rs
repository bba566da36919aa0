//! Phases: what each worker gets, what nobody gets, and overlaps that are planted to be found.

use super::phase::{Access, Phase, Pieces, Units, Use};
use super::shared::{Name, Shared, Table};
use super::threads::{tests::run_on, Program, Worker};
use super::writer::Writer;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

const X: Name = Name::new(1, "x");
const Y: Name = Name::new(2, "y");
const READS: Access = Access::named("read").reads([X]);
const ROWS: Access = Access::named("by rows").rows([X]);
const COLUMNS: Access = Access::named("by columns").columns([X]);
const HEADS: Access = Access::named("by heads").heads([X]);
const SIDES: Access = Access::named("by sides").sides([X]);
const NOTHING: Access = Access::named("nothing");
const WORKERS: [usize; 4] = [1, 2, 3, 5];

/// The message with which `f` panics.
fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("a panic");
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a message")
}

/// Runs `program` on `count` workers with a buffer; returns the buffer.
fn with(
    table: Table,
    count: usize,
    program: impl Fn(&mut Worker<'_>, &Shared<u32>) + Send + Sync + 'static,
) -> Shared<u32> {
    let shared = Arc::new(Shared::zeroed(X, table));
    let buffer = shared.clone();
    assert_eq!(run_on(count, Arc::new(move |worker: &mut Worker<'_>| program(worker, &buffer))), Some(count));
    Arc::into_inner(shared).expect("the run is over")
}

/// Fills a buffer: every worker counts up the elements that it gets; each was to come to one worker once.
fn filled(
    table: Table,
    access: Access,
    units: impl Fn() -> Units<'static> + Send + Sync + Copy + 'static,
    fill: impl Fn(&mut Writer<'_, u32>, usize) + Send + Sync + Copy + 'static,
) {
    for count in WORKERS {
        let shared = with(table.clone(), count, move |worker, shared| {
            for _ in 0..3 {
                let phase = worker.phase(access, units());
                let mut writer = phase.writer(shared);
                while let Some(units) = phase.next_units() {
                    units.for_each(|unit| fill(&mut writer, unit));
                }
                drop(writer);
                let phase = worker.phase(READS, units());
                assert!(phase.read(shared).iter().all(|&times| times == phase.read(shared)[0]));
            }
        });
        assert!(shared.read().iter().all(|&times| times == 3), "{} {count}", access.name);
        assert_eq!(shared.into_vec().len(), table.len());
    }
}

fn add(part: &mut [u32]) {
    part.iter_mut().for_each(|times| *times += 1);
}

#[test]
fn every_element_belongs_to_one_unit() {
    filled(Table::new(7, 5), ROWS, || Units::Shares(7), |writer, row| add(writer.row(row)));
    filled(Table::new(7, 5), ROWS, || Units::Taken { count: 7, step: 2 }, |writer, row| add(writer.row(row)));
    // Seven units, of which the last three have two rows.
    filled(
        Table::new(10, 5),
        ROWS,
        || Units::Shares(7),
        |writer, row| {
            add(writer.row(row));
            if row >= 4 {
                add(writer.row(row + 3));
            }
        },
    );
    filled(
        Table::new(3, 40).by_columns(32),
        COLUMNS,
        || Units::Taken { count: 3, step: 1 },
        |writer, tile| {
            let mut stripe = writer.columns(16 * tile..40.min(16 * (tile + 1)));
            (0..3).for_each(|row| add(stripe.row(row)));
        },
    );
    filled(
        Table::new(12, 3).alternating(4),
        ROWS,
        || Units::Shares(12),
        |writer, row| {
            let mut cells = writer.cells(row, 0..3);
            (0..3).for_each(|column| *cells.at(column) += 1);
        },
    );
    // A column belongs to two tiles, the last one to one.
    let groups = Table::new(12, 3).alternating(4).by_columns(1);
    filled(
        groups,
        COLUMNS,
        || Units::Taken { count: 5, step: 2 },
        |writer, tile| {
            if tile % 2 == 0 {
                (0..12).for_each(|row| add(writer.part(row, tile / 2..tile / 2 + 1)));
            }
        },
    );
    // Two groups of three heads of width 4, in five rows.
    let heads = Table::new(5, 24).by_heads(3, 4);
    filled(
        heads,
        HEADS,
        || Units::Shares(30),
        |writer, query| {
            let (head, row) = (query / 15 * 3 + query % 3, query / 3 % 5);
            add(writer.part(row, 4 * head..4 * head + 4));
        },
    );
    filled(
        Table::new(6, 10).by_sides(2, [3, 6, 7]),
        SIDES,
        || Units::Shares(4),
        |writer, unit| {
            for row in (unit / 2..6).step_by(2) {
                let spans = if unit % 2 == 0 { [0..3, 6..7] } else { [3..6, 7..10] };
                spans.into_iter().for_each(|span| add(writer.part(row, span)));
            }
        },
    );
}

#[test]
fn pieces_go_round_and_never_overlap() {
    let pieces = vec![(0..3, 0), (5..9, 2), (3..5, 1), (9..9, 0), (9..10, 2)];
    for count in WORKERS {
        let list = pieces.clone();
        let pieces = Arc::new(Pieces::new(12, pieces.clone()));
        let shared = with(Table::new(12, 1), count, move |worker, shared| {
            let phase = worker.phase(ROWS, Units::Pieces(&pieces));
            let mut writer = phase.writer(shared);
            while let Some(piece) = phase.next_piece() {
                let (units, turn) = list[piece].clone();
                assert_eq!(turn % phase.worker.count(), phase.index());
                units.for_each(|row| writer.row(row)[0] += 1);
            }
        });
        assert_eq!(shared.into_vec(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    }
    assert!(panic_of(|| Pieces::new(5, vec![(0..3, 0), (2..5, 1)])).contains("overlap"));
    assert!(panic_of(|| Pieces::new(5, vec![(0..5, 0), (1..2, 0)])).contains("overlap"));
    assert!(panic_of(|| Pieces::new(5, vec![(3..6, 0)])).contains("more than there is"));
}

#[test]
fn a_worker_gets_nothing_of_others() {
    let table = || Table::new(6, 32).by_columns(32).by_heads(2, 8).by_sides(3, [8, 16, 24]);
    for (access, count) in [(ROWS, 6), (COLUMNS, 2), (HEADS, 24), (SIDES, 6)] {
        let shared = with(table(), 2, move |worker, shared| {
            let phase = worker.phase(access, Units::Shares(count));
            let mut writer = phase.writer(shared);
            // Before it has units, everything is foreign.
            assert!(panic_of(|| writer.part(0, 0..1).len()).contains("of others"));
            let own = phase.next_units().unwrap();
            let elements = (0..6).flat_map(|row| (0..32).map(move |column| (row, column)));
            let (gets, others): (Vec<_>, Vec<_>) =
                elements.partition(|&(row, column)| writer.owns(row, column..column + 1));
            assert_eq!((gets.len(), own.len()), (6 * 32 / 2, count / 2), "{}", access.name);
            gets.iter().for_each(|&(row, column)| writer.part(row, column..column + 1)[0] += 1);
            let (row, column) = others[0];
            assert!(panic_of(|| writer.part(row, column..column + 1).len()).contains("of others"));
            // Not even together with its own.
            if let Some(&(row, column)) = gets.iter().find(|&&(row, column)| others.contains(&(row, column + 1))) {
                assert!(panic_of(|| writer.part(row, column..column + 2).len()).contains("of others"));
            }
            assert!(panic_of(|| *writer.cells(row, column..column + 1).at(0)).contains("of others"));
            let (row, column) = gets[0];
            assert!(panic_of(|| *writer.cells(row, column..column + 1).at(1)).contains("assertion failed"));
            for (row, columns) in [(6, 0..1), (0, 32..33), (0, 0..33), (usize::MAX, 0..1)] {
                assert!(panic_of(|| writer.part(row, columns).len()).contains("assertion failed"));
            }
            if access.of(X) != Use::Columns {
                assert!(panic_of(|| writer.columns(0..1).row(0).len()).contains("assertion failed"));
            }
        });
        // Together they got everything once.
        assert_eq!(shared.into_vec(), [1; 6 * 32]);
    }
}

#[test]
fn a_phase_does_only_what_it_says() {
    with(Table::new(4, 1), 2, |worker, shared| {
        let phase = worker.phase(READS, Units::Shares(4));
        assert!(panic_of(|| phase.writer(shared)).contains("read does not write x"));
        phase.read(shared);
        let phase = worker.phase(ROWS, Units::Shares(4));
        assert!(panic_of(|| phase.read(shared)).contains("by rows does not read x"));
        let writer = phase.writer(shared);
        assert!(panic_of(|| phase.writer(shared)).contains("has a writer of x"));
        drop(writer);
        phase.writer(shared);
        let phase = worker.phase(NOTHING, Units::Shares(4));
        assert!(panic_of(|| phase.read(shared)).contains("does not read"));
        assert!(panic_of(|| phase.writer(shared)).contains("does not write"));
    });
    assert!(panic_of(|| READS.rows([X])).contains("one thing"));
    assert!(panic_of(|| NOTHING.rows([Y, Y])).contains("one thing"));
}

#[test]
fn workers_that_disagree_go_no_further() {
    let pieces = [(); 2].map(|()| Pieces::new(4, vec![(0..4, 0)]));
    let pieces: &'static [Pieces; 2] = Box::leak(Box::new(pieces));
    let taken = |count, step| Units::Taken { count, step };
    for [(access, units), other] in [
        [(ROWS, Units::Shares(4)), (READS, Units::Shares(4))],
        [(ROWS, Units::Shares(4)), (COLUMNS, Units::Shares(4))],
        [(ROWS, Units::Shares(4)), (NOTHING, Units::Shares(4))],
        [(ROWS, Units::Shares(4)), (ROWS, Units::Shares(5))],
        [(ROWS, Units::Shares(4)), (ROWS, taken(4, 1))],
        [(ROWS, taken(4, 2)), (ROWS, taken(4, 1))],
        [(ROWS, taken(4, 1)), (ROWS, taken(5, 1))],
        [(ROWS, Units::Pieces(&pieces[0])), (ROWS, Units::Pieces(&pieces[1]))],
        [(ROWS, Units::Pieces(&pieces[0])), (ROWS, Units::Shares(4))],
    ] {
        for odd in 0..3 {
            with(Table::new(4, 4), 3, move |worker, _| {
                let (access, units) = if worker.index() == odd { other } else { (access, units) };
                assert!(panic_of(|| _ = worker.phase(access, units)).contains("begin different phases"));
            });
        }
    }
}

#[test]
fn a_buffer_is_that_of_one_run() {
    let shared = with(Table::new(4, 1), 2, |worker, shared| {
        let phase = worker.phase(ROWS, Units::Shares(4));
        phase.writer(shared);
        assert!(panic_of(|| shared.read()).contains("belongs to a run that goes on"));
    });
    // The next run has it.
    let shared = Arc::new(shared);
    let (inner, outer) = (shared.clone(), shared.clone());
    let inner: Program = Arc::new(move |worker: &mut Worker<'_>| {
        let phase = worker.phase(READS, Units::Shares(4));
        assert!(panic_of(|| phase.read(&inner)).contains("x belongs to another run"));
    });
    let program = move |worker: &mut Worker<'_>| {
        let phase = worker.phase(ROWS, Units::Shares(4));
        phase.writer(&outer);
        assert_eq!(run_on(1, inner.clone()), Some(1));
    };
    assert_eq!(run_on(1, Arc::new(program)), Some(1));

    // Once it is read outside of runs, it is only read, until somebody has it alone.
    assert_eq!(shared.read(), [0; 4]);
    let writes = |shared: &Arc<Shared<u32>>, refused| {
        let shared = shared.clone();
        let program = move |worker: &mut Worker<'_>| {
            phase_reads(worker, &shared);
            let phase = worker.phase(ROWS, Units::Shares(4));
            match refused {
                true => assert!(panic_of(|| phase.writer(&shared)).contains("x is only read")),
                false => drop(phase.writer(&shared)),
            }
        };
        assert_eq!(run_on(1, Arc::new(program)), Some(1));
    };
    fn phase_reads(worker: &mut Worker<'_>, shared: &Shared<u32>) {
        assert_eq!(worker.phase(READS, Units::Shares(4)).read(shared), [0; 4]);
    }
    writes(&shared, true);
    let mut shared = shared;
    Arc::get_mut(&mut shared).expect("all runs are over").get_mut();
    writes(&shared, false);
}

/// What a worker does with a buffer of 4 rows and 32 columns, with all units.
type Touch = fn(&Phase<'_>, &Shared<u32>);

/// Lets two workers touch a buffer in phase 2, one after the other, each with an access of its own, which no safe code can;
/// returns what was reported.
fn planted(touches: [(Access, Touch); 2]) -> Vec<String> {
    let turn = AtomicUsize::new(0);
    let shared = with(Table::new(4, 32).by_columns(32), 2, move |worker, shared| {
        worker.phase(NOTHING, Units::Shares(4));
        let mut phase = worker.phase(NOTHING, Units::Shares(4));
        let (access, touch) = touches[phase.index()];
        phase.access = access;
        phase.own.set((0, 4));
        while turn.load(Ordering::Acquire) != phase.index() {
            std::thread::yield_now();
        }
        let found = catch_unwind(AssertUnwindSafe(|| touch(&phase, shared)));
        turn.fetch_add(1, Ordering::Release);
        let reports = shared.overlaps.reports();
        match found {
            Ok(()) => assert!(reports.is_empty()),
            Err(panic) => assert_eq!(panic.downcast_ref::<String>(), reports.last()),
        }
    });
    shared.overlaps.reports()
}

#[test]
fn overlaps_are_found() {
    let row: Touch = |phase, shared| phase.writer(shared).row(2).fill(1);
    let element: Touch = |phase, shared| phase.writer(shared).part(2, 5..6).fill(1);
    let other: Touch = |phase, shared| phase.writer(shared).part(3, 0..32).fill(1);
    let columns: Touch = |phase, shared| (0..4).for_each(|row| phase.writer(shared).columns(16..32).row(row).fill(1));
    let read: Touch = |phase, shared| assert!(phase.read_part(shared, 70..90).len() == 20);

    // Two write one element.
    let report = "x, elements 69..70: worker 1 writes, workers [0] write and [] read, in phase 2 (by rows)";
    assert_eq!(planted([(ROWS, row), (ROWS, element)]), [report]);
    // One reads what another one wrote.
    let report = "x, elements 70..90: worker 1 reads, workers [0] write and [] read, in phase 2 (read)";
    assert_eq!(planted([(ROWS, row), (READS, read)]), [report]);
    // One writes what another one read.
    let report = "x, elements 70..90: worker 1 writes, workers [] write and [0] read, in phase 2 (by rows)";
    assert_eq!(planted([(READS, read), (ROWS, row)]), [report]);
    // Rows and columns cross.
    let report = "x, elements 80..96: worker 1 writes, workers [0] write and [] read, in phase 2 (by columns)";
    assert_eq!(planted([(ROWS, row), (COLUMNS, columns)]), [report]);
    let report = "x, elements 80..96: worker 1 writes, workers [0] write and [] read, in phase 2 (by rows)";
    assert_eq!(planted([(COLUMNS, columns), (ROWS, row)]), [report]);

    // These do not meet.
    for touches in [[(ROWS, row), (ROWS, other)], [(READS, read), (READS, read)], [(ROWS, element), (READS, read)]] {
        assert_eq!(planted(touches), [""; 0]);
    }
}
