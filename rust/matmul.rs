//! Matrix products of quantised activations with packed weights.
//!
//! Activations are quantised once per forward row, whatever the number of rows; a tile of weights is read and
//! unpacked once for all rows. Threads share out tiles, never columns, so a result never depends on them.

use crate::kernels::layout::{interleaved, ActivationGroup, Rows, GROUP, INTERLEAVED, TILE};
use crate::kernels::shared::Shared;
use crate::kernels::Kernels;
use crate::weights::Matrix;
use std::ops::Range;

/// Rows of activations, ready for [`multiply`].
pub struct Activations {
    rows: usize,
    groups: usize,
    values: Shared<f32>,
    quantised: Shared<ActivationGroup>,
}

impl Activations {
    /// Room for `rows` rows of `columns` values.
    pub fn new(rows: usize, columns: usize) -> Self {
        let groups = columns.div_ceil(GROUP);
        Self {
            rows,
            groups,
            values: Shared::zeroed(rows * groups * GROUP),
            quantised: Shared::zeroed(rows.next_multiple_of(interleaved(rows)) * groups),
        }
    }

    /// Lays the buffer out for `rows` rows, no more than there is room for.
    pub fn reset(&mut self, rows: usize) {
        self.rows = rows;
    }

    /// Groups of 32 columns in a row.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The float values of part of a row, to fill before [`Activations::quantize`]; see [`Shared::write`].
    ///
    /// Columns past the matrix's stay zero.
    #[allow(clippy::mut_from_ref)]
    pub fn values(&self, row: usize, columns: Range<usize>) -> &mut [f32] {
        let at = row * self.groups * GROUP;
        self.values.write(at + columns.start..at + columns.end)
    }

    /// Quantises one row, whose values are complete.
    pub fn quantize(&self, kernels: &Kernels, row: usize) {
        let width = self.groups * GROUP;
        self.put(kernels, row, 0, self.values.read(row * width..(row + 1) * width));
    }

    /// Quantises `values`, whole groups, as the groups of one row from `first` on.
    pub fn put(&self, kernels: &Kernels, row: usize, first: usize, values: &[f32]) {
        let mut groups = [ActivationGroup::default(); QUANTISED];
        for (i, values) in values.chunks(QUANTISED * GROUP).enumerate() {
            let groups = &mut groups[..values.len() / GROUP];
            kernels.quantize(values, groups);
            for (g, group) in (first + i * QUANTISED..).zip(groups) {
                let at = self.at(row, g);
                self.quantised.write(at..at + 1)[0] = *group;
            }
        }
    }

    /// Makes row `to` of what quantising took off row `row`; the two together have twice the bits.
    pub fn quantize_rest(&self, kernels: &Kernels, row: usize, to: usize) {
        let width = self.groups * GROUP;
        let values = self.values.read(row * width..(row + 1) * width);
        let rest = self.values(to, 0..width);
        for (g, (rest, values)) in rest.chunks_exact_mut(GROUP).zip(values.chunks_exact(GROUP)).enumerate() {
            let at = self.at(row, g);
            let group = &self.quantised.read(at..at + 1)[0];
            for ((rest, value), &quant) in rest.iter_mut().zip(values).zip(&group.quants) {
                *rest = f32::from(quant).mul_add(-group.scale, *value);
            }
        }
        self.quantize(kernels, to);
    }

    /// The rows.
    pub fn rows(&self) -> Rows<'_> {
        Rows {
            count: self.rows,
            groups: self.groups,
            interleaved: interleaved(self.rows),
            values: self.values.read(0..self.rows * self.groups * GROUP),
            quantised: self.quantised.read(0..self.quantised.len()),
        }
    }

    /// See [`Rows::at`].
    fn at(&self, row: usize, group: usize) -> usize {
        let n = interleaved(self.rows);
        (row / n * self.groups + group) * n + row % n
    }
}

/// Groups that are quantised by one call of the kernel.
const QUANTISED: usize = 16;

/// Bytes of quantised activations that stay in the second-level cache while tiles pass over them.
const CACHED_ACTIVATIONS: usize = 1 << 20;

/// Results of one call of the kernel, about: they stay in the first-level cache until they are used.
pub const RESULTS: usize = 256;

/// Multiplies `tiles` of `matrix` with all `rows`; `sink(row, columns, results)` gets every product once, some columns
/// of a row at a time.
pub fn multiply(
    kernels: &Kernels,
    matrix: &Matrix,
    tiles: Range<usize>,
    rows: &Rows<'_>,
    results: &mut Vec<[f32; TILE]>,
    mut sink: impl FnMut(usize, Range<usize>, &[f32; TILE]),
) {
    let row_bytes = rows.groups * size_of::<ActivationGroup>();
    let cached = (CACHED_ACTIVATIONS / row_bytes).max(INTERLEAVED) / INTERLEAVED * INTERLEAVED;
    for first_row in (0..rows.count).step_by(cached) {
        let count = cached.min(rows.count - first_row);
        let rows = rows.slice(first_row, count);
        let step = (RESULTS / count).max(1);
        for first in tiles.clone().step_by(step) {
            let some = first..tiles.end.min(first + step);
            results.resize(some.len() * count, [0.0; TILE]);
            kernels.dot(&matrix.tiles(some.clone()), &rows, results);
            for (tile, results) in some.zip(results.chunks_exact(count)) {
                let columns = tile * TILE..matrix.rows.min((tile + 1) * TILE);
                for (row, results) in (first_row..).zip(results) {
                    sink(row, columns.clone(), results);
                }
            }
        }
    }
}
