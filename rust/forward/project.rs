//! The phases of a pass around its products: the embedding, the norms, and the projections from and to the residual
//! stream.

use crate::forward::decoder::Decoder;
use crate::forward::matmul::{multiply, Activations};
use crate::forward::plan::{Local, Pass};
use crate::kernels::layout::{GROUP, TILE};
use crate::weights::load::Layer;
use crate::weights::matrix::Matrix;
use crate::workers::threads::Worker;
use std::ops::Range;

impl Pass {
    pub(super) fn embed(&self, worker: &Worker<'_>) {
        for row in worker.share(self.task.rows.len(), 1) {
            let x = self.buffers.x.write(self.residual(row));
            self.decoder.weights.embedding.row(self.task.rows[row].token as usize, x);
        }
    }

    pub(super) fn norm(&self, worker: &Worker<'_>, gain: &[f32], local: &mut Local) {
        for row in worker.share(self.task.rows.len(), 1) {
            let normed = self.normed(row, gain, &mut local.floats);
            self.buffers.normed.put(&self.decoder.kernels, row, 0, normed);
        }
    }

    /// The normed residual of a row, as whole groups.
    pub(super) fn normed<'l>(&self, row: usize, gain: &[f32], floats: &'l mut Vec<f32>) -> &'l mut [f32] {
        let Decoder { config, kernels, .. } = &*self.decoder;
        floats.clear();
        floats.resize(config.n_embd.next_multiple_of(GROUP), 0.0);
        kernels.rms_norm(self.buffers.x.read(self.residual(row)), gain, config.rms_eps, &mut floats[..config.n_embd]);
        floats
    }

    /// Queries, keys and values.
    pub(super) fn project(&self, worker: &Worker<'_>, layer: &Layer, local: &mut Local) {
        let width: usize = layer.qkv.iter().map(|m| m.rows).sum();
        let count = layer.qkv.iter().map(Matrix::tile_count).sum();
        while let Some(share) = worker.take(count, self.step(1)) {
            let (mut first_tile, mut first_column) = (0, 0);
            for matrix in &layer.qkv {
                let own = |at: usize| at.clamp(first_tile, first_tile + matrix.tile_count()) - first_tile;
                let tiles = own(share.start)..own(share.end);
                self.multiply(matrix, tiles, &self.buffers.normed, local, |row, columns, values| {
                    let at = row * width + first_column;
                    put(values, self.buffers.qkv.write(at + columns.start..at + columns.end));
                });
                first_tile += matrix.tile_count();
                first_column += matrix.rows;
            }
        }
    }

    /// Quantises the attention output, where heads did not do it themselves.
    pub(super) fn quantize_attended(&self, worker: &Worker<'_>) {
        for row in worker.share(self.task.rows.len(), 1) {
            self.buffers.attended.finish(&self.decoder.kernels, row);
        }
    }

    /// Adds the product of `matrix` and `input` to the residual stream.
    pub(super) fn add_product(&self, worker: &Worker<'_>, matrix: &Matrix, input: &Activations, local: &mut Local) {
        while let Some(tiles) = worker.take(matrix.tile_count(), self.step(1)) {
            self.multiply(matrix, tiles, input, local, |row, columns, values| {
                let at = self.residual(row).start;
                add(values, self.buffers.x.write(at + columns.start..at + columns.end));
            });
        }
    }

    pub(super) fn residual(&self, row: usize) -> Range<usize> {
        let width = self.decoder.config.n_embd;
        row * width..(row + 1) * width
    }

    /// Where head `head` of a row stands among its queries, keys and values.
    pub(super) fn head(&self, row: usize, head: usize) -> Range<usize> {
        let config = &self.decoder.config;
        let at = (row * (config.n_head + 2 * config.n_head_kv) + head) * config.head_dim;
        at..at + config.head_dim
    }

    /// Turns a head of queries or keys of a row, if block `layer` turns any.
    pub(super) fn rotate(&self, layer: usize, row: usize, head: &mut [f32]) {
        let config = &self.decoder.config;
        let Some(rope) = config.blocks[layer].rope else { return };
        let pairs = config.ropes[rope].freqs.len();
        let [cos, sin] = self.angles[rope].each_ref().map(|a| &a[row * pairs..(row + 1) * pairs]);
        self.decoder.kernels.rope(head, cos, sin);
    }

    /// Tiles that are worth being taken alone, a multiple of `least`: the fewer rows, the more.
    pub(super) fn step(&self, least: usize) -> usize {
        (PIECE / self.task.rows.len()).max(1).next_multiple_of(least)
    }

    /// Multiplies some tiles with all rows of `input`: `sink(row, columns, values)`; the last tile may have fewer
    /// columns than values.
    pub(super) fn multiply(
        &self,
        matrix: &Matrix,
        tiles: Range<usize>,
        input: &Activations,
        local: &mut Local,
        sink: impl FnMut(usize, Range<usize>, &[f32; TILE]),
    ) {
        multiply(&self.decoder.kernels, matrix, tiles, &input.rows(), &mut local.results, sink);
    }
}

/// Products of a tile and a row that are worth being taken alone.
pub(super) const PIECE: usize = 16;
/// The same of tiles of the output product, whatever the rows.
pub(super) const OUTPUT_PIECE: usize = 16;

/// Stores the results of a tile; whole ones, nearly all, as one fixed-size copy instead of a call.
pub(super) fn put(values: &[f32; TILE], to: &mut [f32]) {
    match <&mut [f32; TILE]>::try_from(&mut *to) {
        Ok(to) => *to = *values,
        Err(_) => to.copy_from_slice(&values[..to.len()]),
    }
}

/// Adds the results of a tile, likewise.
pub(super) fn add(values: &[f32; TILE], to: &mut [f32]) {
    match <&mut [f32; TILE]>::try_from(&mut *to) {
        Ok(to) => to.iter_mut().zip(values).for_each(|(to, value)| *to += value),
        Err(_) => to.iter_mut().zip(values).for_each(|(to, value)| *to += value),
    }
}
