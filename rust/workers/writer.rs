//! Writing the part of a buffer that belongs to a worker's units.

use crate::workers::phase::{Phase, Use};
use crate::workers::shared::Shared;
use std::ops::Range;

/// Gives a worker those elements of a buffer that belong to the units it got last.
pub struct Writer<'p, T> {
    phase: &'p Phase<'p>,
    shared: &'p Shared<T>,
    how: Use,
}

impl<'w> Phase<'w> {
    /// Begins to write a buffer that this phase writes.
    ///
    /// # Panics
    /// If it does not, the buffer is only read or belongs to another run, or there is a writer of its name already.
    #[inline]
    pub fn writer<'p, T>(&'p self, shared: &'p Shared<T>) -> Writer<'p, T> {
        let how = self.access.of(shared.name);
        let (bit, name) = (1 << shared.name.index, shared.name.text);
        assert!(!matches!(how, Use::None | Use::Read), "{} does not write {name}", self.access.name);
        assert!(shared.claim(self.worker.barrier.run.id()), "{name} is only read");
        assert!(self.writing.get() & bit == 0, "{} has a writer of {name}", self.access.name);
        self.writing.set(self.writing.get() | bit);
        Writer { phase: self, shared, how }
    }
}

impl<T> Drop for Writer<'_, T> {
    fn drop(&mut self) {
        self.phase.writing.set(self.phase.writing.get() & !(1 << self.shared.name.index));
    }
}

impl<T> Writer<'_, T> {
    /// Some elements of a row that stand side by side.
    ///
    /// # Panics
    /// If they are not all in the table, or some belong to units of another worker.
    #[inline]
    pub fn part(&mut self, row: usize, columns: Range<usize>) -> &mut [T] {
        let range = self.shared.table.range(row, columns.clone());
        assert!(self.owns(row, columns), "{} writes {} of others", self.phase.access.name, self.shared.name.text);
        #[cfg(debug_assertions)]
        self.touch(range.clone());
        // SAFETY: the elements are in the table and belong to units that this worker alone got, and this is its only writer;
        // see [`super::phase`].
        unsafe { self.shared.part_mut(range) }
    }

    /// A whole row.
    ///
    /// # Panics
    /// As [`Writer::part`].
    pub fn row(&mut self, row: usize) -> &mut [T] {
        self.part(row, 0..self.shared.table.columns)
    }

    /// Some elements of a row, one by one: where rows alternate, they do not stand side by side.
    ///
    /// # Panics
    /// If they are not all in the table, or some belong to units of another worker.
    #[inline]
    pub fn cells(&mut self, row: usize, columns: Range<usize>) -> Cells<'_, T> {
        let table = &self.shared.table;
        table.check(row, &columns);
        assert!(
            self.owns(row, columns.clone()),
            "{} writes {} of others",
            self.phase.access.name,
            self.shared.name.text
        );
        let start = self.shared.start().wrapping_add(table.at(row, columns.start));
        Cells { writer: self, start, first: columns.start, row, len: columns.len() }
    }

    /// Some columns of all rows, in a phase that writes by columns.
    ///
    /// # Panics
    /// If they are not all in the table, do not stand side by side, or some belong to units of another worker.
    #[inline]
    pub fn columns(&mut self, columns: Range<usize>) -> Stripe<'_, T> {
        let table = &self.shared.table;
        let own = matches!(self.how, Use::Columns) && self.owns_columns(&columns);
        assert!(own && columns.start < columns.end && columns.end <= table.columns);
        assert!(table.alternating == 0 || columns.len() == 1);
        let (rows, shift, set) = (table.rows, table.alternating, table.columns << table.alternating);
        // What a loop over rows needs, so that it is not read from memory again for every row.
        Stripe {
            start: self.shared.start(),
            first: columns.start << shift,
            len: columns.len(),
            rows,
            shift,
            set,
            writer: self,
        }
    }

    #[cfg(debug_assertions)]
    fn touch(&self, range: Range<usize>) {
        self.shared.overlaps.touch(&self.phase.toucher(), self.shared.name.text, range, true);
    }

    fn owns_columns(&self, columns: &Range<usize>) -> bool {
        let (pair, (start, end)) = (self.shared.table.pair, self.phase.own.get());
        // The last columns may be fewer.
        let end = if end == self.phase.units.count() { usize::MAX } else { end * pair / 2 };
        start < self.phase.own.get().1 && (start * pair).div_ceil(2) <= columns.start && columns.end <= end
    }

    /// Whether elements that are in the table belong to the units that the worker got last.
    pub(super) fn owns(&self, row: usize, columns: Range<usize>) -> bool {
        let (table, (start, end)) = (&self.shared.table, self.phase.own.get());
        let unit = match self.how {
            Use::None | Use::Read => return false,
            Use::Columns => return self.owns_columns(&columns),
            Use::Rows => {
                let count = self.phase.units.count();
                // Second rows of the last units.
                let second = row >= count && table.first == 0;
                table.first + if second { row - (table.rows - count) } else { row }
            }
            Use::Heads => {
                let head = columns.start / table.head;
                if columns.end > (head + 1) * table.head {
                    return false;
                }
                (head / table.group * table.rows + row) * table.group + head % table.group
            }
            Use::Sides => {
                let span = table.spans.partition_point(|&end| end <= columns.start);
                if columns.end > table.spans.get(span).copied().unwrap_or(table.columns) {
                    return false;
                }
                2 * (row % table.period) + span % 2
            }
        };
        (start..end).contains(&unit)
    }
}

/// Some columns of all rows.
pub struct Stripe<'s, T> {
    /// The first element of the table.
    start: *mut T,
    /// Where the columns stand in the first row, and how many there are.
    first: usize,
    len: usize,
    rows: usize,
    /// Logarithm of how many rows alternate, and the elements of so many rows.
    shift: u32,
    set: usize,
    #[cfg_attr(not(debug_assertions), allow(dead_code))]
    writer: &'s Writer<'s, T>,
}

impl<T> Stripe<'_, T> {
    /// Those of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline(always)]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows);
        let set = row >> self.shift;
        let at = set * self.set + self.first + (row - (set << self.shift));
        #[cfg(debug_assertions)]
        self.writer.touch(at..at + self.len);
        // SAFETY: as [`Table::at`](super::shared::Table::at) has it, these elements are in the table. Their columns belong to
        // units that this worker alone got; its only writer is borrowed, and so is this.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), self.len) }
    }
}

/// Some elements of a row.
pub struct Cells<'s, T> {
    /// The first of them.
    start: *mut T,
    first: usize,
    row: usize,
    len: usize,
    writer: &'s Writer<'s, T>,
}

impl<T> Cells<'_, T> {
    /// One of them.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn at(&mut self, index: usize) -> &mut T {
        assert!(index < self.len);
        #[cfg(debug_assertions)]
        {
            let at = self.writer.shared.table.at(self.row, self.first + index);
            self.writer.touch(at..at + 1);
        }
        #[cfg(not(debug_assertions))]
        let _ = (self.first, self.row);
        // SAFETY: an element of the row that belongs to units which this worker alone got; its only writer is borrowed, and
        // so is this. The next column of a row is as many places on as rows alternate.
        unsafe { &mut *self.start.add(index << self.writer.shared.table.alternating) }
    }
}
