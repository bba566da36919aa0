//! Rows in fixed point, as attention collects them.

use crate::kernels::table::Kernels;

/// Rows of the same width.
#[derive(Default)]
pub struct FixedRows {
    /// `[rows][width]`.
    pub quants: Vec<i16>,
    /// What each row's quants are multiplied by.
    pub scales: Vec<f32>,
}

impl FixedRows {
    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.quants.clear();
        self.scales.clear();
    }

    /// Adds a row, with quants up to `largest`.
    pub fn push(&mut self, kernels: &Kernels, row: &[f32], largest: f32) {
        let at = self.quants.len();
        self.quants.resize(at + row.len(), 0);
        self.scales.push(kernels.to_fixed(row, largest, &mut self.quants[at..]));
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[i16] {
        let width = self.quants.len() / self.scales.len();
        &self.quants[i * width..(i + 1) * width]
    }
}
