//! A phase: what all workers of a run do between two barriers, each with units of its own.
//!
//! ```text
//! const SCALE: Access = Access::named("scale").reads([FACTORS]).rows([VALUES]);
//!
//! let phase = worker.phase(SCALE, Units::Shares(count));   // waits until all workers are here
//! let factors = phase.read(&factors);                      // &[f32]: nobody writes them in this phase
//! let mut values = phase.writer(&values);                  // gives &mut [f32], but for units of this worker alone
//! while let Some(rows) = phase.next_units() {
//!     for row in rows {
//!         values.row(row).iter_mut().for_each(|value| *value *= factors[row]);
//!     }
//! }
//! ```
//!
//! Why nobody can write what another one touches:
//! - A phase ends where the next one begins, which the borrow checker sees; references do not outlive it.
//! - All workers begin it with the same [`Access`] and the same [`Units`], or panic: a buffer is read by all or written by
//!   all in one way, and no unit comes to two workers.
//! - Which elements belong to a unit is up to the [`Table`](super::shared::Table) of the buffer, which nobody changes
//!   meanwhile; a [`Writer`](super::writer::Writer) gives no others.
//! - A worker has one writer of a name at a time, and that gives one reference at a time.
//! - Two runs never have one buffer.

#[cfg(debug_assertions)]
use crate::workers::overlaps::Toucher;
use crate::workers::shared::{Name, Shared};
use crate::workers::threads::Worker;
use std::cell::Cell;
use std::ops::Range;

/// What a phase does with buffers, by their names.
#[derive(Clone, Copy)]
pub struct Access {
    pub(super) name: &'static str,
    /// A [`Use`] of each name, in [`USE_BITS`] bits.
    uses: u64,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Use {
    None,
    Read,
    Rows,
    Columns,
    Heads,
    Sides,
}

/// Bits of a [`Use`]: those of 21 names fit into a word.
const USE_BITS: u32 = 3;

impl Access {
    /// That of a phase which touches no buffers.
    pub const fn named(name: &'static str) -> Self {
        Self { name, uses: 0 }
    }

    /// It reads buffers of these names.
    pub const fn reads<const N: usize>(self, names: [Name; N]) -> Self {
        self.with(names, Use::Read)
    }

    /// It writes them, row by row; see [`Table::new`](super::shared::Table::new).
    pub const fn rows<const N: usize>(self, names: [Name; N]) -> Self {
        self.with(names, Use::Rows)
    }

    /// It writes them, some columns of all rows; see [`Table::by_columns`](super::shared::Table::by_columns).
    pub const fn columns<const N: usize>(self, names: [Name; N]) -> Self {
        self.with(names, Use::Columns)
    }

    /// It writes them, some columns of a row; see [`Table::by_heads`](super::shared::Table::by_heads).
    pub const fn heads<const N: usize>(self, names: [Name; N]) -> Self {
        self.with(names, Use::Heads)
    }

    /// It writes them, some columns of some rows; see [`Table::by_sides`](super::shared::Table::by_sides).
    pub const fn sides<const N: usize>(self, names: [Name; N]) -> Self {
        self.with(names, Use::Sides)
    }

    const fn with<const N: usize>(mut self, names: [Name; N], how: Use) -> Self {
        let mut i = 0;
        while i < N {
            assert!(matches!(self.of(names[i]), Use::None), "a phase does one thing with a buffer");
            self.uses |= (how as u64) << (USE_BITS * names[i].index);
            i += 1;
        }
        self
    }

    pub(super) const fn of(&self, name: Name) -> Use {
        match (self.uses >> (USE_BITS * name.index)) & ((1 << USE_BITS) - 1) {
            0 => Use::None,
            1 => Use::Read,
            2 => Use::Rows,
            3 => Use::Columns,
            4 => Use::Heads,
            _ => Use::Sides,
        }
    }
}

/// How the workers of a phase share out its units, `0..count`.
#[derive(Clone, Copy)]
pub enum Units<'a> {
    /// Every worker gets as many neighbours.
    Shares(usize),
    /// Workers take them as they come along, multiples of `step`.
    ///
    /// A worker goes through its own share from the front, so that it reads on where it stopped (hardware and kernels
    /// fetch ahead), and then helps others from the back of theirs. It takes fewer towards the end, so that workers end
    /// together even if one is slower.
    Taken {
        /// How many there are.
        count: usize,
        /// Of which those taken are multiples, but for the last ones.
        step: usize,
    },
    /// Workers take turns with pieces.
    Pieces(&'a Pieces),
}

impl Units<'_> {
    pub(super) fn count(&self) -> usize {
        match *self {
            Units::Shares(count) | Units::Taken { count, .. } => count,
            Units::Pieces(pieces) => pieces.count,
        }
    }

    /// The same for two workers only if they share out alike.
    fn word(&self) -> u64 {
        const STEP_BITS: u32 = 24;
        match *self {
            Units::Shares(count) => {
                assert!(count < 1 << (62 - STEP_BITS));
                (count as u64) << 2
            }
            Units::Taken { count, step } => {
                assert!(0 < step && step < 1 << STEP_BITS && count < 1 << (62 - STEP_BITS));
                ((count as u64) << STEP_BITS | step as u64) << 2 | 1
            }
            // A multiple of 4; no other pieces are there as long as these are borrowed.
            Units::Pieces(pieces) => std::ptr::from_ref(pieces) as u64 | 2,
        }
    }
}

/// Units in pieces of any length.
#[repr(align(8))]
pub struct Pieces {
    count: usize,
    /// Their units, none in two pieces, and whose turn each is.
    pieces: Vec<(Range<usize>, usize)>,
}

impl Pieces {
    /// Pieces of `0..count`, each with its turn: with `n` workers, those whose turns are `n` apart go to one.
    ///
    /// # Panics
    /// If two pieces overlap, or there are no such units.
    pub fn new(count: usize, pieces: Vec<(Range<usize>, usize)>) -> Self {
        let mut sorted: Vec<_> = pieces.iter().map(|(units, _)| units).filter(|units| !units.is_empty()).collect();
        sorted.sort_unstable_by_key(|units| units.start);
        assert!(sorted.is_sorted_by(|a, b| a.end <= b.start), "pieces overlap");
        assert!(sorted.last().is_none_or(|last| last.end <= count), "a piece of more than there is");
        assert!(count < 1 << 38, "products of units and columns do not wrap");
        Self { count, pieces }
    }
}

/// What a worker does between two barriers.
pub struct Phase<'w> {
    pub(super) worker: &'w Worker<'w>,
    pub(super) access: Access,
    pub(super) units: Units<'w>,
    /// The units that the worker got last.
    pub(super) own: Cell<(usize, usize)>,
    /// Pieces gone through, or whether the share is taken.
    next: Cell<usize>,
    /// A bit for each name of which there is a writer.
    pub(super) writing: Cell<u32>,
}

impl Worker<'_> {
    /// Waits until every worker of the run is here, and begins a phase with them; what they wrote before is visible.
    ///
    /// # Panics
    /// If they do not all begin it with the same access and units, or one of them panicked.
    pub fn phase<'w>(&'w mut self, access: Access, units: Units<'w>) -> Phase<'w> {
        self.barrier.wait(self.index, [access.uses, units.word()]);
        let (own, next, writing) = (Cell::new((0, 0)), Cell::new(0), Cell::new(0));
        Phase { worker: self, access, units, own, next, writing }
    }
}

impl<'w> Phase<'w> {
    /// Number of this worker.
    pub fn index(&self) -> usize {
        self.worker.index
    }

    /// Whether the caller wants the program to stop; only worker 0 is told.
    pub fn poll(&self) -> bool {
        self.worker.poll()
    }

    /// The next units of this worker; `None` when it got all.
    pub fn next_units(&self) -> Option<Range<usize>> {
        let units = match self.units {
            Units::Shares(count) => {
                let first = self.next.replace(1) == 0;
                first.then(|| self.worker.share(count)).filter(|share| !share.is_empty())
            }
            Units::Taken { count, step } => self.worker.take(count, step),
            Units::Pieces(pieces) => return self.next_piece().map(|piece| pieces.pieces[piece].0.clone()),
        };
        self.own.set(units.as_ref().map_or((0, 0), |units| (units.start, units.end)));
        units
    }

    /// Which is the next piece of this worker; `None` when it got all.
    pub fn next_piece(&self) -> Option<usize> {
        let Units::Pieces(Pieces { pieces, .. }) = self.units else { return None };
        let (index, count) = (self.worker.index, self.worker.count());
        let piece = (self.next.get()..pieces.len()).find(|&piece| pieces[piece].1 % count == index);
        self.next.set(piece.map_or(pieces.len(), |piece| piece + 1));
        self.own.set(piece.map_or((0, 0), |piece| (pieces[piece].0.start, pieces[piece].0.end)));
        piece
    }

    #[cfg(debug_assertions)]
    pub(super) fn toucher(&self) -> Toucher {
        let Worker { index, barrier, .. } = self.worker;
        Toucher { worker: *index, run: barrier.run.id(), round: barrier.round(*index), phase: self.access.name }
    }

    /// The elements of a buffer that this phase reads.
    ///
    /// # Panics
    /// If it does not, or the buffer belongs to another run.
    pub fn read<T>(&self, shared: &'w Shared<T>) -> &'w [T] {
        self.read_part(shared, 0..shared.len())
    }

    /// Some of them.
    ///
    /// # Panics
    /// As [`Phase::read`], and if there are no such elements.
    #[inline]
    pub fn read_part<T>(&self, shared: &'w Shared<T>, range: Range<usize>) -> &'w [T] {
        assert!(self.access.of(shared.name) == Use::Read, "{} does not read {}", self.access.name, shared.name.text);
        shared.claim(self.worker.barrier.run.id());
        #[cfg(debug_assertions)]
        shared.overlaps.touch(&self.toucher(), shared.name.text, range.clone(), false);
        // SAFETY: see the module's documentation: no worker writes the buffer in this phase; and no other run does.
        unsafe { shared.part(range) }
    }
}
