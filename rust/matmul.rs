//! Matrix products of quantised activations with packed weights.
//!
//! Activations are quantised once per forward row, whatever the number of rows; a tile of weights is read and
//! unpacked once for all rows. Threads share out tiles, never columns, so a result never depends on them.

use crate::kernels::layout::{GroupScale, Rows, GROUP, TILE};
use crate::kernels::shared::Shared;
use crate::kernels::Kernels;
use crate::weights::Matrix;
use std::ops::Range;

/// Rows of activations, ready for [`for_each_tile`].
pub struct Activations {
    groups: usize,
    values: Shared<f32>,
    quants: Shared<i8>,
    scales: Shared<GroupScale>,
}

impl Activations {
    /// Room for `rows` rows of `columns` values.
    pub fn new(rows: usize, columns: usize) -> Self {
        let groups = columns.div_ceil(GROUP);
        Self {
            groups,
            values: Shared::zeroed(rows * groups * GROUP),
            quants: Shared::zeroed(rows * groups * GROUP),
            scales: Shared::zeroed(rows * groups),
        }
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

    /// Quantises groups of one row, whose values are complete.
    pub fn quantize(&self, kernels: &Kernels, row: usize, groups: Range<usize>) {
        let groups = row * self.groups + groups.start..row * self.groups + groups.end;
        let columns = groups.start * GROUP..groups.end * GROUP;
        kernels.quantize(self.values.read(columns.clone()), self.quants.write(columns), self.scales.write(groups));
    }

    /// Makes row `to` of what quantising took off row `row`; the two together have twice the bits.
    pub fn quantize_rest(&self, kernels: &Kernels, row: usize, to: usize) {
        let width = self.groups * GROUP;
        let values = self.values.read(row * width..(row + 1) * width);
        let quants = self.quants.read(row * width..(row + 1) * width);
        let scales = self.scales.read(row * self.groups..(row + 1) * self.groups);
        let rest = self.values(to, 0..width);
        for (i, rest) in rest.iter_mut().enumerate() {
            *rest = f32::from(quants[i]).mul_add(-scales[i / GROUP].scale, values[i]);
        }
        self.quantize(kernels, to, 0..self.groups);
    }

    /// The first `rows` rows.
    pub fn rows(&self, rows: usize) -> Rows<'_> {
        let groups = rows * self.groups;
        Rows {
            groups: self.groups,
            values: self.values.read(0..groups * GROUP),
            quants: self.quants.read(0..groups * GROUP),
            scales: self.scales.read(0..groups),
        }
    }
}

/// Bytes of quantised activations that are kept in the second-level cache while tiles pass over them.
const CACHED_ACTIVATIONS: usize = 1 << 20;

/// Results of one tile for all rows of a call: `[rows][16]`.
pub type TileRows<'a> = &'a [[f32; TILE]];

/// Multiplies `tiles` of `matrix` with all `rows`; `sink(first_row, tile, results)` gets every product once.
pub fn for_each_tile(
    kernels: &Kernels,
    matrix: &Matrix,
    tiles: Range<usize>,
    rows: Rows<'_>,
    buffer: &mut Vec<[f32; TILE]>,
    mut sink: impl FnMut(usize, usize, TileRows<'_>),
) {
    let row_bytes = rows.groups * (GROUP + size_of::<GroupScale>());
    let chunk = (CACHED_ACTIVATIONS / row_bytes).max(8) / 8 * 8;
    for first in (0..rows.count()).step_by(chunk) {
        let part = rows.slice(first, chunk.min(rows.count() - first));
        buffer.resize(part.count(), [0.0; TILE]);
        for tile in tiles.clone() {
            kernels.dot(&matrix.tile(tile), &part, buffer);
            sink(first, tile, buffer);
        }
    }
}
