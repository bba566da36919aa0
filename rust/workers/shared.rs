//! Buffers that the workers of a run fill together.
//!
//! A buffer is a table. In a [phase](super::phase) either everybody reads it, or every worker writes the cells that belong
//! to its units: rows, columns, or what else a [`Table`] says. Which cells these are follows from the table alone, and no cell
//! belongs to two units, so it cannot come to two workers. Outside a run, who has the buffer alone does what it likes, and
//! who shares it may [read](Shared::read) it from then on.

use crate::workers::memory::Memory;
#[cfg(debug_assertions)]
use crate::workers::overlaps::Overlaps;
use crate::workers::runs::is_over;
use bytemuck::Zeroable;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a buffer is called, by the workers when they agree on a phase, and in messages.
#[derive(Clone, Copy)]
pub struct Name {
    pub(super) index: u32,
    pub(super) text: &'static str,
}

/// So many names can be told apart.
pub(super) const NAMES: u32 = 21;

impl Name {
    /// The name of index `index`, below 21. Two buffers may have the same: then nobody writes both at once.
    pub const fn new(index: u32, text: &'static str) -> Self {
        assert!(index < NAMES);
        Self { index, text }
    }
}

/// How the elements of a buffer are arranged, and which belong to whom where it is written.
#[derive(Clone, Debug)]
pub struct Table {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Logarithm of how many rows alternate.
    pub(super) alternating: u32,
    /// Columns that belong to two units, where it is written by columns.
    pub(super) pair: usize,
    /// Unit of the first row, where it is written by rows.
    pub(super) first: usize,
    /// See [`Table::by_heads`].
    pub(super) group: usize,
    pub(super) head: usize,
    /// See [`Table::by_sides`].
    pub(super) period: usize,
    pub(super) spans: [usize; 3],
}

impl Table {
    /// Rows of elements. Where it is written by rows, unit `i` has row `i`; if there are more rows than units, the last
    /// units have another one each, in order.
    pub fn new(rows: usize, columns: usize) -> Self {
        Self { rows, columns, alternating: 0, pair: 1, first: 0, group: 1, head: 1, period: 1, spans: [columns; 3] }
    }

    /// With the elements of `count` rows, a power of two, side by side, column after column.
    pub fn alternating(self, count: usize) -> Self {
        assert!(count.is_power_of_two());
        Self { alternating: count.ilog2(), ..self }
    }

    /// Where it is written by columns, two units have `pair` of them, at most 65,536.
    pub fn by_columns(self, pair: usize) -> Self {
        assert!(pair <= 1 << 16, "products of units and columns do not wrap");
        Self { pair, ..self }
    }

    /// Where it is written by rows, the first one is that of unit `first`.
    pub fn from_unit(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Where it is written by heads, a unit has one head of a row, `head` columns. They count by groups of heads, then by
    /// rows, then by the `group` heads of a group.
    pub fn by_heads(self, group: usize, head: usize) -> Self {
        assert!(group > 0 && head > 0);
        Self { group, head, ..self }
    }

    /// Where it is written by sides, units `2 * i` and `2 * i + 1` have every `period`th row from row `i` on: the first the
    /// columns before those in `spans`, the other one those up to the second of them, and so on in turn.
    pub fn by_sides(self, period: usize, spans: [usize; 3]) -> Self {
        assert!(period > 0 && spans.is_sorted() && spans[2] <= self.columns);
        Self { period, spans, ..self }
    }

    /// How many elements it takes.
    pub fn len(&self) -> usize {
        self.checked_len().expect("a table fits into memory")
    }

    fn checked_len(&self) -> Option<usize> {
        self.rows.checked_next_multiple_of(1 << self.alternating)?.checked_mul(self.columns)
    }

    /// Whether it takes none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where an element stands. Two elements of the table never stand in one place.
    #[inline(always)]
    pub(super) fn at(&self, row: usize, column: usize) -> usize {
        let set = row >> self.alternating;
        ((set * self.columns + column) << self.alternating) + (row - (set << self.alternating))
    }

    /// Where some elements of a row stand.
    ///
    /// # Panics
    /// If they are not in the table or do not stand side by side.
    #[inline(always)]
    pub(super) fn range(&self, row: usize, columns: Range<usize>) -> Range<usize> {
        self.check(row, &columns);
        assert!(self.alternating == 0 || columns.len() <= 1);
        if columns.is_empty() {
            return 0..0;
        }
        let at = self.at(row, columns.start);
        at..at + columns.len()
    }

    /// Sees that there are such elements.
    #[inline(always)]
    pub(super) fn check(&self, row: usize, columns: &Range<usize>) {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
    }
}

/// A buffer that belongs to no run is that of this one.
const FREE: u64 = 0;
/// Of a buffer that is only read.
const FROZEN: u64 = u64::MAX;

/// A buffer that the workers of a run fill together.
pub struct Shared<T> {
    pub(super) name: Name,
    pub(super) table: Table,
    /// As long as the table, or longer.
    memory: Memory<T>,
    /// The run that touched it last, or [`FREE`] or [`FROZEN`].
    owner: AtomicU64,
    #[cfg(debug_assertions)]
    pub(super) overlaps: Overlaps,
}

impl<T: Copy + Zeroable> Shared<T> {
    fn new(name: Name, table: Table, memory: Memory<T>) -> Self {
        let owner = AtomicU64::new(FREE);
        #[cfg(debug_assertions)]
        let overlaps = Overlaps::default();
        #[cfg(debug_assertions)]
        return Self { name, table, memory, owner, overlaps };
        #[cfg(not(debug_assertions))]
        Self { name, table, memory, owner }
    }

    /// A table of zeros.
    pub fn zeroed(name: Name, table: Table) -> Self {
        let memory = Memory::zeroed(table.len());
        Self::new(name, table, memory)
    }

    /// The same; `None` if the system has no memory for it.
    pub fn try_zeroed(name: Name, table: Table) -> Option<Self> {
        let memory = Memory::try_zeroed(table.checked_len()?)?;
        Some(Self::new(name, table, memory))
    }

    /// `count` tables of zeros side by side; `None` if the system has no memory for them.
    pub fn several(name: Name, table: &Table, count: usize) -> Option<Vec<Self>> {
        let memories = Memory::several(table.len(), count)?;
        Some(memories.into_iter().map(|memory| Self::new(name, table.clone(), memory)).collect())
    }

    /// Arranges the elements as another table, with more of them if need be; their values are old ones
    /// or zeros.
    pub fn arrange(&mut self, table: Table) {
        if table.len() > self.memory.len() {
            self.memory = Memory::zeroed(table.len());
            #[cfg(debug_assertions)]
            self.overlaps.clear();
        }
        self.table = table;
    }

    /// The elements as a vector.
    pub fn into_vec(self) -> Vec<T> {
        let len = self.table.len();
        let mut elements = self.memory.into_vec();
        elements.truncate(len);
        elements
    }
}

impl<T> Shared<T> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.table.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.table.columns
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements; who has the buffer alone may change them, and runs may again.
    pub fn get_mut(&mut self) -> &mut [T] {
        *self.owner.get_mut() = FREE;
        let len = self.len();
        // SAFETY: the memory holds that many; nobody else has the buffer.
        unsafe { self.part_mut(0..len) }
    }

    /// The elements. From then on the buffer is only read, until somebody who has it alone asks for
    /// [`Shared::get_mut`].
    ///
    /// # Panics
    /// If it belongs to a run that goes on.
    pub fn read(&self) -> &[T] {
        let mut owner = self.owner.load(Ordering::Acquire);
        while owner != FROZEN {
            assert!(is_over(owner), "{} belongs to a run that goes on", self.name.text);
            match self.owner.compare_exchange(owner, FROZEN, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => owner = other,
            }
        }
        // SAFETY: no run gets the buffer before somebody has it alone.
        unsafe { self.part(0..self.len()) }
    }

    /// Makes this the buffer of run `run`, or leaves it to all who read it; whether the run may write it.
    ///
    /// # Panics
    /// If it belongs to another run that goes on.
    #[inline]
    pub(super) fn claim(&self, run: u64) -> bool {
        // Acquires what an older run wrote, from who saw that it is over.
        match self.owner.load(Ordering::Acquire) {
            owner if owner == run => true,
            FROZEN => false,
            owner => self.take_over(owner, run),
        }
    }

    #[cold]
    fn take_over(&self, owner: u64, run: u64) -> bool {
        assert!(is_over(owner), "{} belongs to another run", self.name.text);
        match self.owner.compare_exchange(owner, run, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            // Another worker of the run may have been quicker.
            Err(_) => self.claim(run),
        }
    }

    /// The first element.
    #[inline(always)]
    pub(super) fn start(&self) -> *mut T {
        self.memory.elements().cast()
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// Nobody writes any of them as long as the reference lives.
    ///
    /// # Panics
    /// If they are not in the table.
    #[inline(always)]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.table.len());
        // SAFETY: the memory holds the table and its elements are values; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.start().add(range.start), range.len()) }
    }

    /// The elements of `range`, to write.
    ///
    /// # Safety
    /// They are in the table, and nobody else touches any of them as long as the reference lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part_mut(&self, range: Range<usize>) -> &mut [T] {
        debug_assert!(range.start <= range.end && range.end <= self.table.len());
        // SAFETY: the memory holds the table and its elements are values; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start().add(range.start), range.len()) }
    }
}
