//! Finds elements that one worker writes and another one touches in the same phase, in builds with debug assertions.
//!
//! That cannot be if what [`super::phase`] says is right. So this is a check of that folder, not of those who use it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Who touched the elements of a buffer last.
#[derive(Default)]
pub(super) struct Overlaps {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    marks: Vec<Mark>,
    reports: Vec<String>,
}

/// Who touched an element in the last phase in which somebody did.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Run and barrier.
    phase: (u64, usize),
    readers: Workers,
    writers: Workers,
}

/// Who touches elements, and when.
pub(super) struct Toucher {
    pub(super) worker: usize,
    pub(super) run: u64,
    /// Number of the barrier before.
    pub(super) round: usize,
    /// What the phase is called.
    pub(super) phase: &'static str,
}

/// A set of workers, of which those past the 15th count as one.
type Workers = u16;

impl Overlaps {
    /// Forgets who touched what.
    pub(super) fn clear(&mut self) {
        self.seen.get_mut().unwrap_or_else(PoisonError::into_inner).marks.clear();
    }

    /// `by` touches the elements of `range` of the buffer `name`.
    ///
    /// # Panics
    /// If one of them overlaps with what another worker does in this phase.
    pub(super) fn touch(&self, by: &Toucher, name: &str, range: Range<usize>, writes: bool) {
        let own: Workers = 1 << by.worker.min(15);
        let now = (by.run, by.round);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.marks.len() < range.end {
            seen.marks.resize(range.end, Mark::default());
        }
        let mut overlap: Option<(Range<usize>, Mark)> = None;
        for (i, mark) in range.clone().zip(&mut seen.marks[range]) {
            if mark.phase != now {
                *mark = Mark { phase: now, ..Mark::default() };
            }
            let others = mark.writers | if writes { mark.readers } else { 0 };
            if others & !own != 0 {
                overlap.get_or_insert((i..i, *mark)).0.end = i + 1;
            }
            *if writes { &mut mark.writers } else { &mut mark.readers } |= own;
        }
        if let Some((range, mark)) = overlap {
            let others = |all: Workers| (0..16).filter(|&i| (all & !own) >> i & 1 == 1).collect::<Vec<_>>();
            let report = format!(
                "{name}, elements {range:?}: worker {} {}, workers {:?} write and {:?} read, in phase {} ({})",
                by.worker,
                if writes { "writes" } else { "reads" },
                others(mark.writers),
                others(mark.readers),
                by.round,
                by.phase,
            );
            seen.reports.push(report.clone());
            drop(seen);
            panic!("{report}");
        }
    }

    /// What was found.
    #[cfg(test)]
    pub(super) fn reports(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).reports.clone()
    }
}
