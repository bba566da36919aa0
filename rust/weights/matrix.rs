//! A packed matrix in the arena that all of a model share.

use crate::gguf::types::GgmlType;
use crate::kernels::layout::{groups, quant_bytes, scale_bytes, with_layout, Layout, Tile, Tiles, GROUP, TILE};
use crate::kernels::scalar::{lane, row_weights, unpack_one};
use half::{bf16, f16};
use memmap2::Mmap;
use std::ops::Range;
use std::sync::Arc;

/// A packed matrix: `rows` outputs of `columns` inputs each.
pub struct Matrix {
    /// Type of the weights.
    pub dtype: GgmlType,
    /// Output rows; the last tile may have empty ones.
    pub rows: usize,
    /// Input columns.
    pub columns: usize,
    /// What is added to the outputs, with zeros up to whole tiles.
    pub bias: Option<Vec<f32>>,
    pub(super) arena: Arc<Mmap>,
    pub(super) quants: Range<usize>,
    pub(super) scales: Range<usize>,
}

impl Matrix {
    /// Groups of 32 columns, the last one padded with zeros.
    pub fn groups(&self) -> usize {
        groups(self.columns)
    }

    /// Number of tiles.
    pub fn tile_count(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Some tiles; tile `i` has the output rows from `16 * i` on.
    pub fn tiles(&self, range: Range<usize>) -> Tiles<'_> {
        let groups = self.groups();
        let part = |all: &Range<usize>, bytes: usize| {
            &self.arena[all.start + range.start * bytes..all.start + range.end * bytes]
        };
        Tiles {
            dtype: self.dtype,
            count: range.len(),
            groups,
            quants: part(&self.quants, groups * quant_bytes(self.dtype)),
            scales: part(&self.scales, scale_bytes(self.dtype, groups)),
        }
    }

    /// Writes the weights of one output row, `columns` floats.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let tile = self.tiles(row / TILE..row / TILE + 1).iter().next().expect("one tile");
        let r = row % TILE;
        let at = |c: usize, bytes: usize| &tile.quants[(TILE * c + r) * bytes..][..bytes];
        match self.dtype {
            GgmlType::F32 => (0..).zip(out).for_each(|(c, out)| *out = bytemuck::pod_read_unaligned(at(c, 4))),
            GgmlType::F16 => {
                (0..).zip(out).for_each(|(c, out)| *out = bytemuck::pod_read_unaligned::<f16>(at(c, 2)).to_f32())
            }
            GgmlType::BF16 => {
                (0..).zip(out).for_each(|(c, out)| *out = bytemuck::pod_read_unaligned::<bf16>(at(c, 2)).to_f32())
            }
            quantised => with_layout!(quantised, dequantize_row::<_>(&tile, r, out)),
        }
    }
}

/// Row `r` of a quantised tile.
fn dequantize_row<L: Layout>(tile: &Tile<'_>, r: usize, out: &mut [f32]) {
    let offset = L::OFFSET_BITS.map_or(0, |bits| 1 << bits);
    for (i, out) in out.chunks_mut(16).enumerate() {
        let (g, first) = (16 * i / GROUP, 16 * i % GROUP);
        let (scale, minimum) = row_weights::<L>(tile.scales, g, first, r);
        let group = &tile.quants[g * 64 * L::BITS..];
        for (c, out) in (first..).zip(out) {
            let quant = i32::from(unpack_one::<L>(group, lane(r, c))) - offset;
            *out = scale.mul_add(quant as f32, minimum);
        }
    }
}
