//! Packing one tile: 16 rows of blocks become bit planes and scales, as [`crate::kernels::layout`] describes them.
//!
//! The heart of it is one transposition. Four columns of a row are a word of four bytes, in a file as in a packed group;
//! what differs is that a group holds each word of all 16 rows side by side. So 16 rows are taken apart into bytes, words
//! are transposed, and planes then are made from whole lines.
//!
//! Performance note: compiled for any x86-64 this packs 5 (Q6_K) to 20 (Q8_0) GB/s of a file on a core, about as fast as
//! memory is read and written; compiled for AVX2 or AVX-512 it is no faster.

use crate::gguf::types::GgmlType;
use crate::kernels::layout::{pack_group, with_layout, GROUP, LINE, TILE};
use crate::weights::source::{Half, Source};
use bytemuck::Pod;

/// Packs `rows`, fewer than 16 in the last tile of a matrix, into `quants` and `scales`, which hold zeros.
pub fn pack_tile(dtype: GgmlType, rows: &[&[u8]], quants: &mut [u8], scales: &mut [u8]) {
    match dtype {
        GgmlType::F32 => pack_floats::<[u8; 4]>(rows, quants),
        GgmlType::F16 | GgmlType::BF16 => pack_floats::<[u8; 2]>(rows, quants),
        quantised => with_layout!(quantised, pack_blocks::<_>(rows, quants, scales)),
    }
}

fn pack_blocks<L: Source>(rows: &[&[u8]], quants: &mut [u8], scales: &mut [u8]) {
    let mut blocks: [&[L::Block]; TILE] = [&[]; TILE];
    for (blocks, row) in blocks.iter_mut().zip(rows) {
        *blocks = bytemuck::cast_slice(row);
    }
    let blocks = &blocks[..rows.len()];
    let kinds = 1 + usize::from(L::MINIMA);
    let sub_groups = L::GROUPS * GROUP / L::SCALE_COLUMNS;
    let factor_lines = if L::SUPER_SCALES { kinds * sub_groups } else { 0 };
    let scales = scales.chunks_exact_mut(TILE * (2 * kinds + factor_lines));
    for (b, (quants, scales)) in quants.chunks_exact_mut(L::GROUPS * LINE * L::BITS).zip(scales).enumerate() {
        let (heads, factors) = scales.split_at_mut(2 * TILE * kinds);
        let heads: &mut [Half] = bytemuck::cast_slice_mut(heads);
        for (r, row) in blocks.iter().enumerate() {
            heads[r] = L::scale(&row[b]);
            if L::MINIMA {
                heads[TILE + r] = L::minimum(&row[b]);
            }
        }
        if L::SUPER_SCALES {
            pack_factors::<L>(blocks, b, factors.as_chunks_mut().0);
        }
        // Absent rows stay zero.
        let mut unpacked = [[0u32; GROUP / 4]; TILE];
        for (g, out) in quants.chunks_exact_mut(LINE * L::BITS).enumerate() {
            for (quants, row) in unpacked.iter_mut().zip(blocks) {
                *bytemuck::cast_mut(quants) = L::quants(&row[b], g);
            }
            let mut lanes = [[0u32; TILE]; GROUP / 4];
            transpose(&unpacked, &mut lanes);
            pack_group::<L>(bytemuck::cast_ref(&lanes), out);
        }
    }
}

/// The factors of block `b` of all rows: for each group those of the scales, one sub-group after the other, and those of
/// the minima.
fn pack_factors<L: Source>(blocks: &[&[L::Block]], b: usize, lines: &mut [[u8; TILE]]) {
    let mut rows = [[[0u8; 16]; TILE]; 2];
    for (r, row) in blocks.iter().enumerate() {
        let factors = L::factors(&row[b]);
        rows[0][r] = factors[0];
        rows[1][r] = factors[1];
    }
    let mut columns = [[[0u8; TILE]; 16]; 2];
    for (rows, columns) in rows.iter().zip(&mut columns) {
        transpose(rows, columns);
    }
    let in_group = GROUP / L::SCALE_COLUMNS;
    let kinds = 1 + usize::from(L::MINIMA);
    for (g, lines) in lines.chunks_exact_mut(in_group * kinds).enumerate() {
        for (columns, lines) in columns.iter().zip(lines.chunks_exact_mut(in_group)) {
            lines.copy_from_slice(&columns[g * in_group..][..in_group]);
        }
    }
}

/// Float weights of type `T`: column by column, absent columns and rows stay zero.
fn pack_floats<T: Pod>(rows: &[&[u8]], out: &mut [u8]) {
    const COLUMNS: usize = 8;
    let out: &mut [[T; TILE]] = bytemuck::cast_slice_mut(out);
    let mut unpacked = [[T::zeroed(); COLUMNS]; TILE];
    for (i, out) in out.chunks_exact_mut(COLUMNS).enumerate() {
        for (weights, row) in unpacked.iter_mut().zip(rows) {
            let row: &[T] = bytemuck::cast_slice(row);
            let row = &row[row.len().min(i * COLUMNS)..];
            match row.first_chunk() {
                Some(columns) => *weights = *columns,
                None => {
                    *weights = [T::zeroed(); COLUMNS];
                    weights[..row.len()].copy_from_slice(row);
                }
            }
        }
        transpose(&unpacked, out.try_into().expect("chunks of this size"));
    }
}

/// Four rows at a time, which compilers do with a few shuffles.
#[inline(always)]
fn transpose<T: Copy, const N: usize>(rows: &[[T; N]; TILE], columns: &mut [[T; TILE]; N]) {
    for (four, at) in rows.chunks_exact(4).zip((0..).step_by(4)) {
        for n in 0..N {
            for i in 0..4 {
                columns[n][at + i] = four[i][n];
            }
        }
    }
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
