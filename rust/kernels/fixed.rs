//! What attention multiplies: rows of 16-bit integers, each row with one scale.
//!
//! Sums of integer products have no rounding, so they may be added up in any order, and one instruction multiplies twice as
//! many of them as of floats. A value is off by at most half a step, and a step is the row's largest magnitude divided by
//! 5,792 where 64 products are added up. In f16 a value is off by up to a 4,096th of itself: more for the large values
//! that decide a score, less for the small ones.

use crate::kernels::layout::TILE;

/// A row's largest magnitude counts as no less: steps are then not finer than those of f16 next to zero.
pub const LEAST: f32 = 1.0 / 2048.0;
/// The weight 1 as an integer.
pub const ONE: f32 = 4096.0;
/// Largest quant of a value: `64 * 4096 * 8191` is less than 2^31.
pub const LARGEST_VALUE: f32 = 8191.0;

/// Largest quant of a query or key of `width` values: sums of so many products fit 32 bits.
pub fn largest_quant(width: usize) -> f32 {
    (i32::MAX as usize / width.max(1)).isqrt().min(i16::MAX as usize) as f32
}

/// Shapes of a product `c = a * b`; columns are multiples of 16.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Rows of `a` and `c` that are computed.
    pub rows: &'a [usize],
    /// Width of `a`, even; `b` has as many rows, or fewer.
    pub depth: usize,
    /// Width of `b` and `c`.
    pub columns: usize,
    /// How many of these are computed, from the first on; what `c` has in the others stays.
    pub wanted: usize,
}

impl<'a> Shape<'a> {
    /// A product of which all columns are computed.
    pub fn new(rows: &'a [usize], depth: usize, columns: usize) -> Self {
        Self { rows, depth, columns, wanted: columns }
    }

    /// Checks the sizes of `b` and of what belongs to its columns; rows are checked where they are used.
    ///
    /// # Panics
    /// If one does not fit.
    pub fn check(&self, b: &[i16], output: &Output<'_>) {
        let Self { depth, columns, wanted, .. } = *self;
        assert!(columns.is_multiple_of(TILE) && wanted.is_multiple_of(TILE) && wanted <= columns);
        assert!(depth.is_multiple_of(2) && b.len().is_multiple_of(2 * columns) && b.len() <= depth * columns);
        assert!(!b.is_empty());
        if let Output::Scores { columns: scales, biases, .. } = output {
            assert!(scales.len() >= columns && biases.len() >= columns);
        }
    }
}

/// What becomes of the integer product of row `i` and column `n`.
#[derive(Clone, Copy)]
pub enum Output<'a> {
    /// A score: `product * (rows[i] * columns[n]) + biases[n]`.
    Scores {
        /// Scales of the rows.
        rows: &'a [f32],
        /// Scales of the columns.
        columns: &'a [f32],
        /// What is added to a column.
        biases: &'a [f32],
    },
    /// A sum of weighted values: `product * steps[i].add / ONE` on top of what was there, times `steps[i].keep`.
    Sums(&'a [Step]),
}

/// How a block of positions is added to what a query accumulated before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Largest score of the block.
    pub max: f32,
    /// Brings what was accumulated to the new maximum.
    pub keep: f32,
    /// Brings what the block adds to the new maximum.
    pub add: f32,
}
