//! The phases of a pass around its products: the embedding, the norms, and the projections from and to the residual
//! stream.

use crate::forward::buffers::qkv_columns;
use crate::forward::decoder::Decoder;
use crate::forward::matmul::{multiply, Activations};
use crate::forward::plan::{Local, Pass};
use crate::kernels::layout::{GROUP, TILE};
use crate::weights::load::Layer;
use crate::weights::matrix::Matrix;
use crate::workers::phase::Phase;
use std::ops::Range;

impl Pass {
    pub(super) fn embed(&self, phase: &Phase<'_>) {
        let (kernels, scale) = (&self.decoder.kernels, self.decoder.config.embedding_scale);
        let mut x = phase.writer(&self.buffers.x);
        while let Some(rows) = phase.next_units() {
            for row in rows {
                let x = x.row(row);
                self.decoder.weights.embedding.row(self.task.rows[row].token as usize, x);
                if scale != 1.0 {
                    kernels.scale(x, scale);
                }
            }
        }
    }

    /// Norms and quantises the residual of every row; without a gain it is only quantised.
    pub(super) fn norm(&self, phase: &Phase<'_>, gain: Option<&[f32]>, local: &mut Local) {
        let x = phase.read(&self.buffers.x);
        let mut normed = self.buffers.normed.writer(phase);
        while let Some(rows) = phase.next_units() {
            for row in rows {
                normed.put(&self.decoder.kernels, row, 0, self.normed(x, row, gain, &mut local.floats));
            }
        }
    }

    /// The residual of a row as whole groups, normed if there is a gain.
    pub(super) fn normed<'l>(
        &self,
        x: &[f32],
        row: usize,
        gain: Option<&[f32]>,
        floats: &'l mut Vec<f32>,
    ) -> &'l mut [f32] {
        let Decoder { config, kernels, .. } = &*self.decoder;
        floats.clear();
        floats.resize(config.n_embd.next_multiple_of(GROUP), 0.0);
        let x = &x[row * config.n_embd..(row + 1) * config.n_embd];
        match gain {
            Some(gain) => kernels.rms_norm(x, gain, config.rms_eps, &mut floats[..config.n_embd]),
            None => floats[..config.n_embd].copy_from_slice(x),
        }
        floats
    }

    /// Queries, keys and values.
    pub(super) fn project(&self, phase: &Phase<'_>, layer: &Layer, local: &mut Local) {
        let input = self.buffers.normed.read(phase);
        let mut qkv = phase.writer(&self.buffers.qkv);
        while let Some(share) = phase.next_units() {
            let mut first = 0;
            for matrix in &layer.qkv {
                let own = |at: usize| at.clamp(first, first + matrix.tile_count()) - first;
                let (tiles, at) = (own(share.start)..own(share.end), first * TILE);
                let kernels = &self.decoder.kernels;
                multiply(kernels, matrix, tiles, &input, &mut local.results, |columns, rows, results| {
                    let mut tile = qkv.columns(at + columns.start..at + columns.end);
                    rows.zip(results).for_each(|(row, values)| put(values, tile.row(row)));
                });
                first += matrix.tile_count();
            }
        }
    }

    /// Norms queries and keys: every head, or all of them together, as long as the gains are.
    pub(super) fn norm_heads(&self, phase: &Phase<'_>, gains: &[Vec<f32>; 2], local: &mut Local) {
        let Decoder { config, kernels, .. } = &*self.decoder;
        let mut qkv = phase.writer(&self.buffers.qkv);
        let columns = |first: usize, heads: usize| {
            let Range { start, .. } = self.head(0, first);
            start..start + heads * config.head_dim
        };
        let heads = [columns(0, config.n_head), columns(config.n_head, config.n_head_kv)];
        for row in std::iter::from_fn(|| phase.next_units()).flatten() {
            for (columns, gain) in heads.iter().zip(gains) {
                for head in qkv.part(row, columns.clone()).chunks_exact_mut(gain.len()) {
                    local.floats.clear();
                    local.floats.extend_from_slice(head);
                    kernels.rms_norm(&local.floats, gain, config.rms_eps, head);
                }
            }
        }
    }

    /// Quantises the attention output, where heads did not do it themselves.
    pub(super) fn quantize_attended(&self, phase: &Phase<'_>) {
        let (floats, mut quantised) = self.buffers.attended.completer(phase);
        let width = floats.len() / self.task.rows.len();
        while let Some(rows) = phase.next_units() {
            for row in rows {
                quantised.put(&self.decoder.kernels, row, 0, &floats[row * width..(row + 1) * width]);
            }
        }
    }

    /// Adds the product of `matrix` and `input`, a branch, to the residual stream.
    pub(super) fn add_product(&self, phase: &Phase<'_>, matrix: &Matrix, input: &Activations, local: &mut Local) {
        let input = input.read(phase);
        let scale = self.decoder.config.residual_scale;
        let mut x = phase.writer(&self.buffers.x);
        while let Some(tiles) = phase.next_units() {
            multiply(&self.decoder.kernels, matrix, tiles, &input, &mut local.results, |columns, rows, results| {
                let mut tile = x.columns(columns);
                rows.zip(results).for_each(|(row, values)| add(values, scale, tile.row(row)));
            });
        }
    }

    /// Keeps the product of `matrix` and `input` as a branch.
    pub(super) fn put_branch(&self, phase: &Phase<'_>, matrix: &Matrix, input: &Activations, local: &mut Local) {
        let input = input.read(phase);
        let mut branch = phase.writer(&self.buffers.branch);
        while let Some(tiles) = phase.next_units() {
            multiply(&self.decoder.kernels, matrix, tiles, &input, &mut local.results, |columns, rows, results| {
                let mut tile = branch.columns(columns);
                rows.zip(results).for_each(|(row, values)| put(values, tile.row(row)));
            });
        }
    }

    /// Norms the branch of every row and adds it to the residual stream.
    pub(super) fn add_normed(&self, phase: &Phase<'_>, gain: &[f32], local: &mut Local) {
        let branch = phase.read(&self.buffers.branch);
        let mut x = phase.writer(&self.buffers.x);
        let scale = self.decoder.config.residual_scale;
        for row in std::iter::from_fn(|| phase.next_units()).flatten() {
            let normed = self.normed(branch, row, Some(gain), &mut local.floats);
            x.row(row).iter_mut().zip(normed).for_each(|(x, value)| *x += *value * scale);
        }
    }

    /// Where head `head` of a row stands among its queries, keys and values.
    pub(super) fn head(&self, row: usize, head: usize) -> Range<usize> {
        let config = &self.decoder.config;
        let [queries, keys, values] = qkv_columns(config);
        let column = match head {
            head if head < config.n_head => head * config.head_dim,
            head if head < config.n_head + config.n_head_kv => queries + (head - config.n_head) * config.head_dim,
            head => queries + keys + (head - config.n_head - config.n_head_kv) * config.head_dim,
        };
        let at = row * (queries + keys + values) + column;
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
}

/// Stores the results of a tile; whole ones, nearly all, as one fixed-size copy instead of a call.
pub(super) fn put(values: &[f32; TILE], to: &mut [f32]) {
    match <&mut [f32; TILE]>::try_from(&mut *to) {
        Ok(to) => *to = *values,
        Err(_) => to.copy_from_slice(&values[..to.len()]),
    }
}

/// Adds the results of a tile times `scale`, likewise.
pub(super) fn add(values: &[f32; TILE], scale: f32, to: &mut [f32]) {
    match <&mut [f32; TILE]>::try_from(&mut *to) {
        Ok(to) => to.iter_mut().zip(values).for_each(|(to, value)| *to += value * scale),
        Err(_) => to.iter_mut().zip(values).for_each(|(to, value)| *to += value * scale),
    }
}
