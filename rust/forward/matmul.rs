//! Matrix products of quantised activations with packed weights.
//!
//! Activations are quantised once per forward row, whatever the number of rows; a tile of weights is read and
//! unpacked once for all rows. Threads share out tiles, never columns, so a result never depends on them.

use crate::kernels::layout::{interleaved, ActivationGroup, Rows, GROUP, INTERLEAVED, TILE};
use crate::kernels::table::Kernels;
use crate::weights::matrix::Matrix;
use crate::workers::phase::Phase;
use crate::workers::shared::{Name, Shared, Table};
use crate::workers::writer::Writer;
use std::ops::Range;

/// Rows of activations, ready for [`multiply`].
pub struct Activations {
    groups: usize,
    /// As they are, `[rows][columns]`, where they are kept.
    floats: Option<Shared<f32>>,
    /// See [`Rows::at`].
    quantised: Shared<ActivationGroup>,
    /// Rows that alternate: see [`Rows::interleaved`].
    interleaved: usize,
    /// Where they are written by heads: see [`Table::by_heads`].
    heads: (usize, usize),
}

/// The names of activations as floats and quantised.
pub type Names = [Name; 2];

impl Activations {
    /// No rows of `columns` values yet; kept as floats too, for weights that are floats, if `floats`.
    pub fn new(names: Names, columns: usize, floats: bool) -> Self {
        let (groups, empty) = (columns.div_ceil(GROUP), Table::new(0, 0));
        let floats = floats.then(|| Shared::zeroed(names[0], empty.clone()));
        Self { groups, floats, quantised: Shared::zeroed(names[1], empty), interleaved: 1, heads: (1, GROUP) }
    }

    /// The same, of heads of `width` values; the first `group` share keys and values, and so on.
    pub fn of_heads(self, group: usize, width: usize) -> Self {
        Self { heads: (group, width), ..self }
    }

    /// Lays the buffer out for `rows` rows; values are what they are, or zero.
    pub fn reset(&mut self, rows: usize) {
        self.arrange(rows, interleaved(rows));
    }

    /// The same where `interleaved` rows alternate.
    pub fn arrange(&mut self, rows: usize, interleaved: usize) {
        let (group, width) = self.heads;
        self.interleaved = interleaved;
        if let Some(floats) = &mut self.floats {
            floats.arrange(Table::new(rows, self.groups * GROUP).by_columns(GROUP).by_heads(group, width));
        }
        let table = Table::new(rows, self.groups).alternating(interleaved);
        self.quantised.arrange(table.by_columns(1).by_heads(group, (width / GROUP).max(1)));
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.quantised.rows()
    }

    /// The rows, in a phase that reads them.
    pub fn read<'w>(&'w self, phase: &Phase<'w>) -> Rows<'w> {
        let count = self.quantised.rows();
        Rows {
            count,
            groups: self.groups,
            interleaved: self.interleaved,
            values: self.floats.as_ref().map_or(&[], |floats| phase.read(floats)),
            quantised: phase.read(&self.quantised),
        }
    }

    /// Begins to write rows, in a phase that does.
    pub fn writer<'p>(&'p self, phase: &'p Phase<'_>) -> ActivationWriter<'p> {
        ActivationWriter { floats: self.floats_writer(phase), quantised: phase.writer(&self.quantised) }
    }

    /// Begins to write them as floats, where these are kept.
    pub fn floats_writer<'p>(&'p self, phase: &'p Phase<'_>) -> Option<Writer<'p, f32>> {
        self.floats.as_ref().map(|floats| phase.writer(floats))
    }

    /// Begins to complete rows of which the floats are there.
    ///
    /// # Panics
    /// If no floats are kept.
    pub fn completer<'p, 'w>(&'w self, phase: &'p Phase<'w>) -> (&'w [f32], ActivationWriter<'p>) {
        let floats = phase.read(self.floats.as_ref().expect("floats are kept"));
        (floats, ActivationWriter { floats: None, quantised: phase.writer(&self.quantised) })
    }
}

/// Writes a worker's part of activations.
pub struct ActivationWriter<'p> {
    floats: Option<Writer<'p, f32>>,
    quantised: Writer<'p, ActivationGroup>,
}

impl ActivationWriter<'_> {
    /// Sets the values of one row from group `first` on; `values` are whole groups.
    pub fn put(&mut self, kernels: &Kernels, row: usize, first: usize, values: &[f32]) {
        if let Some(floats) = &mut self.floats {
            floats.part(row, first * GROUP..first * GROUP + values.len()).copy_from_slice(values);
        }
        let groups = values.as_chunks::<TILE>().0.as_chunks::<2>().0;
        let mut quantised = self.quantised.cells(row, first..first + groups.len());
        for (i, [left, right]) in groups.iter().enumerate() {
            kernels.quantize([left, right], quantised.at(i));
        }
    }

    /// Sets a row to row `from` of others.
    pub fn copy(&mut self, row: usize, others: &Rows<'_>, from: usize) {
        if let Some(floats) = &mut self.floats {
            let floats = floats.row(row);
            floats.copy_from_slice(&others.values[from * floats.len()..][..floats.len()]);
        }
        let mut quantised = self.quantised.cells(row, 0..others.groups);
        for (g, group) in others.groups_from(from).take(others.groups).enumerate() {
            *quantised.at(g) = group[0];
        }
    }

    /// Sets group `g` of some rows, whose values come in halves.
    pub fn put_group<'v>(
        &mut self,
        kernels: &Kernels,
        rows: Range<usize>,
        g: usize,
        halves: impl Fn(usize) -> [&'v [f32; TILE]; 2],
    ) {
        if let Some(floats) = &mut self.floats {
            let mut group = floats.columns(g * GROUP..(g + 1) * GROUP);
            for (i, row) in rows.clone().enumerate() {
                let [left, right] = halves(i);
                let (to_left, to_right) = group.row(row).split_at_mut(TILE);
                to_left.copy_from_slice(left);
                to_right.copy_from_slice(right);
            }
        }
        let mut group = self.quantised.columns(g..g + 1);
        for (i, row) in rows.enumerate() {
            kernels.quantize(halves(i), &mut group.row(row)[0]);
        }
    }

    /// Takes off `values`, a row that was put, what its quantised form stands for.
    pub fn subtract(&mut self, row: usize, values: &mut [f32]) {
        let mut quantised = self.quantised.cells(row, 0..values.len() / GROUP);
        for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
            let group = quantised.at(g);
            for (value, &quant) in values.iter_mut().zip(&group.quants) {
                *value -= f32::from(quant) * group.scale;
            }
        }
    }
}

/// Euclidean norm of a quantised row.
pub fn norm(rows: &Rows<'_>, row: usize) -> f32 {
    let square = |group: &ActivationGroup| {
        let sum: i32 = group.quants.iter().map(|&q| i32::from(q) * i32::from(q)).sum();
        f64::from(group.scale) * f64::from(group.scale) * f64::from(sum)
    };
    (0..rows.groups).map(|g| square(&rows.quantised[rows.at(row, g)])).sum::<f64>().sqrt() as f32
}

/// Bytes of quantised activations that stay in the second-level cache while tiles pass over them.
const CACHED_ACTIVATIONS: usize = 1 << 20;

/// Results of one call of the kernel, about: they stay in the first-level cache until they are used.
const RESULTS: usize = 256;

/// Multiplies `tiles` of `matrix` with all `rows`; `sink(columns, rows, results)` gets every product once, bias
/// included, of the columns of one tile with some rows at a time.
pub fn multiply(
    kernels: &Kernels,
    matrix: &Matrix,
    tiles: Range<usize>,
    rows: &Rows<'_>,
    results: &mut Vec<[f32; TILE]>,
    mut sink: impl FnMut(Range<usize>, Range<usize>, &[[f32; TILE]]),
) {
    let results = std::array::from_mut(results);
    multiply_together(kernels, [matrix], tiles, 1, rows, results, |tiles, rows, [results]| {
        for (tile, results) in tiles.zip(results.chunks_exact(rows.len())) {
            let columns = tile * TILE..matrix.rows.min((tile + 1) * TILE);
            sink(columns, rows.clone(), results);
        }
    });
}

/// Adds the bias of tiles from `first` on to their products with `rows` rows.
fn add_bias(bias: &[f32], first: usize, results: &mut [[f32; TILE]], rows: usize) {
    for (bias, results) in bias.as_chunks::<TILE>().0[first..].iter().zip(results.chunks_exact_mut(rows)) {
        for result in results.as_flattened_mut().as_chunks_mut::<TILE>().0 {
            result.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    }
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
                let results = &mut results[..some.len() * count];
                kernels.matmul(&matrix.tiles(some.clone()), &some_rows, results);
                if let Some(bias) = &matrix.bias {
                    add_bias(bias, some.start, results, count);
                }
            }
            let results = results.each_mut().map(|results| &mut results[..some.len() * count]);
            sink(some, first_row..first_row + count, results);
        }
    }
}
