//! Matrix products of quantised activations with packed weights.
//!
//! Activations are quantised once per forward row, whatever the number of rows; a tile of weights is read and
//! unpacked once for all rows. Threads share out tiles, never columns, so a result never depends on them.

use crate::kernels::layout::{interleaved, interleaved_at, ActivationGroup, Rows, GROUP, INTERLEAVED, TILE};
use crate::kernels::table::Kernels;
use crate::weights::matrix::Matrix;
use crate::workers::shared::Shared;
use std::ops::Range;

/// Rows of activations, ready for [`multiply`].
pub struct Activations {
    rows: usize,
    groups: usize,
    /// As they are, `[rows][columns]`, where they are kept.
    floats: Option<Shared<f32>>,
    /// See [`Rows::at`].
    quantised: Shared<ActivationGroup>,
}

impl Activations {
    /// No rows of `columns` values yet; kept as floats too, for weights that are floats, if `floats`.
    pub fn new(columns: usize, floats: bool) -> Self {
        let groups = columns.div_ceil(GROUP);
        Self { rows: 0, groups, floats: floats.then(|| Shared::zeroed(0)), quantised: Shared::zeroed(0) }
    }

    /// Lays the buffer out for `rows` rows; values are what they are, or zero.
    pub fn reset(&mut self, rows: usize) {
        self.rows = rows;
        let groups = rows.next_multiple_of(interleaved(rows)) * self.groups;
        if groups > self.quantised.len() {
            self.quantised = Shared::zeroed(groups);
            if let Some(floats) = &mut self.floats {
                *floats = Shared::zeroed(groups * GROUP);
            }
        }
    }

    /// Sets the values of one row from group `first` on; `values` are whole groups.
    pub fn put(&self, kernels: &Kernels, row: usize, first: usize, values: &[f32]) {
        self.put_floats(row, first * GROUP, values);
        self.quantise(kernels, row, first, values);
    }

    /// Sets group `g` of one row, whose values come in halves.
    pub fn put_group(&self, kernels: &Kernels, row: usize, g: usize, halves: [&[f32; TILE]; 2]) {
        for (half, values) in halves.into_iter().enumerate() {
            self.put_floats(row, g * GROUP + half * TILE, values);
        }
        let at = self.at(row, g);
        kernels.quantize(halves, &mut self.quantised.write(at..at + 1)[0]);
    }

    fn quantise(&self, kernels: &Kernels, row: usize, first: usize, values: &[f32]) {
        let (halves, _) = values.as_chunks::<TILE>();
        for (g, [left, right]) in (first..).zip(halves.as_chunks::<2>().0) {
            let at = self.at(row, g);
            kernels.quantize([left, right], &mut self.quantised.write(at..at + 1)[0]);
        }
    }

    /// Sets some floats of a row, from column `first` on, where floats are kept.
    pub fn put_floats(&self, row: usize, first: usize, values: &[f32]) {
        if let Some(floats) = &self.floats {
            let at = row * self.groups * GROUP + first;
            floats.write(at..at + values.len()).copy_from_slice(values);
        }
    }

    /// Completes a row of which [`Activations::put_floats`] set all parts.
    ///
    /// # Panics
    /// If no floats are kept.
    pub fn finish(&self, kernels: &Kernels, row: usize) {
        let width = self.groups * GROUP;
        let floats = self.floats.as_ref().expect("floats are kept");
        self.quantise(kernels, row, 0, floats.read(row * width..(row + 1) * width));
    }

    /// Takes off `values`, a row of which `self` holds the quantised form, what that stands for.
    pub fn subtract(&self, row: usize, values: &mut [f32]) {
        for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
            let at = self.at(row, g);
            let group = &self.quantised.read(at..at + 1)[0];
            for (value, &quant) in values.iter_mut().zip(&group.quants) {
                *value -= f32::from(quant) * group.scale;
            }
        }
    }

    /// Euclidean norm of a quantised row.
    pub fn norm(&self, row: usize) -> f32 {
        let square = |g| {
            let at = self.at(row, g);
            let group = &self.quantised.read(at..at + 1)[0];
            let sum: i32 = group.quants.iter().map(|&q| i32::from(q) * i32::from(q)).sum();
            f64::from(group.scale) * f64::from(group.scale) * f64::from(sum)
        };
        (0..self.groups).map(square).sum::<f64>().sqrt() as f32
    }

    /// The rows.
    pub fn rows(&self) -> Rows<'_> {
        Rows {
            count: self.rows,
            groups: self.groups,
            interleaved: interleaved(self.rows),
            values: self.floats.as_ref().map_or(&[], |floats| floats.read(0..self.rows * self.groups * GROUP)),
            quantised: self.quantised.read(0..self.quantised.len()),
        }
    }

    /// See [`Rows::at`].
    fn at(&self, row: usize, group: usize) -> usize {
        interleaved_at(row, group, self.groups, interleaved(self.rows))
    }
}

/// Bytes of quantised activations that stay in the second-level cache while tiles pass over them.
const CACHED_ACTIVATIONS: usize = 1 << 20;

/// Results of one call of the kernel, about: they stay in the first-level cache until they are used.
const RESULTS: usize = 256;

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
    let results = std::array::from_mut(results);
    multiply_together(kernels, [matrix], tiles, 1, rows, results, |tiles, rows, [results]| {
        for (tile, results) in tiles.zip(results.chunks_exact(rows.len())) {
            let columns = tile * TILE..matrix.rows.min((tile + 1) * TILE);
            for (row, results) in rows.clone().zip(results) {
                sink(row, columns.clone(), results);
            }
        }
    });
}

/// Multiplies `tiles` of matrices of one shape with all `rows`: `sink(tiles, rows, results)` gets every product once,
/// those of each matrix with some rows and a multiple of `step` tiles (the last ones may be fewer) at a time, as
/// `[tile][row]`.
pub fn multiply_together<const N: usize>(
    kernels: &Kernels,
    matrices: [&Matrix; N],
    tiles: Range<usize>,
    step: usize,
    rows: &Rows<'_>,
    results: &mut [Vec<[f32; TILE]>; N],
    mut sink: impl FnMut(Range<usize>, Range<usize>, [&mut [[f32; TILE]]; N]),
) {
    let row_bytes = rows.groups * size_of::<ActivationGroup>();
    let cached = (CACHED_ACTIVATIONS / row_bytes).max(INTERLEAVED) / INTERLEAVED * INTERLEAVED;
    for first_row in (0..rows.count).step_by(cached) {
        let count = cached.min(rows.count - first_row);
        let some_rows = rows.slice(first_row, count);
        let step = (RESULTS / count).max(1).next_multiple_of(step);
        for first in tiles.clone().step_by(step) {
            let some = first..tiles.end.min(first + step);
            for (matrix, results) in matrices.into_iter().zip(&mut *results) {
                let missing = (some.len() * count).saturating_sub(results.len());
                results.extend(std::iter::repeat_n([0.0; TILE], missing));
                kernels.matmul(&matrix.tiles(some.clone()), &some_rows, &mut results[..some.len() * count]);
            }
            let results = results.each_mut().map(|results| &mut results[..some.len() * count]);
            sink(some, first_row..first_row + count, results);
        }
    }
}
