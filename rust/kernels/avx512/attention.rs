//! The products of attention: six rows by four registers of columns at a time.
//!
//! Performance notes:
//! - Widening f16 to f32 competes with the multiply-adds for their ports, so with more than [`DIRECT`] rows a panel of
//!   64 by 64 is widened once into L1 and every block of rows runs over it.
//! - What is read next is asked for a few lines with every row of `b`: all at once occupies the line buffers, of which
//!   there are 16, and stops the product (decode at 500 to 1,000 positions 4 % slower).

use super::TILE;
use crate::kernels::scalar::Shape;
use crate::kernels::{prefetch_part, prefetch_parts};
use half::f16;
use std::arch::x86_64::*;

/// Rows of a block: with four registers of columns their sums fill 24 of the 32 registers.
const ROWS: usize = 6;
/// Most rows that read f16 directly.
const DIRECT: usize = 2 * ROWS;
/// Rows of `b` that are widened together.
const PANEL: usize = 64;

/// As [`crate::kernels::scalar::multiply_f16`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn multiply_f16(shape: Shape, a: &[f32], b: &[f16], ahead: &[f16], c: &mut [f32], add: bool) {
    shape.check(a, b, c);
    for n in (0..shape.wanted).step_by(4 * TILE) {
        let ahead = if n == 0 { ahead } else { &[] };
        match (shape.wanted - n) / TILE {
            1 => multiply_columns::<1>(shape, a, b, ahead, n, c, add),
            2 => multiply_columns::<2>(shape, a, b, ahead, n, c, add),
            3 => multiply_columns::<3>(shape, a, b, ahead, n, c, add),
            _ => multiply_columns::<4>(shape, a, b, ahead, n, c, add),
        }
    }
}

/// All rows times `W` registers of columns, from column `n` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn multiply_columns<const W: usize>(
    shape: Shape,
    a: &[f32],
    b: &[f16],
    ahead: &[f16],
    n: usize,
    c: &mut [f32],
    add: bool,
) {
    let Shape { count, columns, .. } = shape;
    let rows = b.len() / columns;
    let widened = |k: usize| {
        let row = &b[k * columns + n..][..W * TILE];
        let mut registers = [_mm512_setzero_ps(); W];
        for (register, halves) in registers.iter_mut().zip(row.chunks_exact(TILE)) {
            // SAFETY: 16 f16 values are 32 bytes; the load is unaligned.
            *register = _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) });
        }
        registers
    };
    if count <= DIRECT {
        return multiply_rows(shape, a, 0..rows, widened, ahead, n, c, add);
    }
    for first in (0..rows).step_by(PANEL) {
        let rows = first..rows.min(first + PANEL);
        let mut panel = [[_mm512_setzero_ps(); W]; PANEL];
        for (row, k) in panel.iter_mut().zip(rows.clone()) {
            *row = widened(k);
        }
        let panel = &panel;
        let ahead = if first == 0 { ahead } else { &[] };
        multiply_rows(shape, a, rows, |k| panel[(k - first) % PANEL], ahead, n, c, add || first > 0);
    }
}

/// All rows times the rows `range` of `b`, which `b(k)` gives.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
#[allow(clippy::too_many_arguments)]
fn multiply_rows<const W: usize>(
    shape: Shape,
    a: &[f32],
    range: std::ops::Range<usize>,
    b: impl Fn(usize) -> [__m512; W],
    ahead: &[f16],
    n: usize,
    c: &mut [f32],
    add: bool,
) {
    let Shape { count, depth, columns, .. } = shape;
    for i in (0..count).step_by(ROWS) {
        let (a, c, range) = (&a[i * depth..], &mut c[i * columns..], range.clone());
        let ahead = if i == 0 { ahead } else { &[] };
        match count - i {
            1 => multiply_block::<1, W>(a, depth, range, &b, ahead, n, columns, c, add),
            2 => multiply_block::<2, W>(a, depth, range, &b, ahead, n, columns, c, add),
            3 => multiply_block::<3, W>(a, depth, range, &b, ahead, n, columns, c, add),
            4 => multiply_block::<4, W>(a, depth, range, &b, ahead, n, columns, c, add),
            5 => multiply_block::<5, W>(a, depth, range, &b, ahead, n, columns, c, add),
            _ => multiply_block::<ROWS, W>(a, depth, range, &b, ahead, n, columns, c, add),
        }
    }
}

/// `M` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
#[allow(clippy::too_many_arguments)]
fn multiply_block<const M: usize, const W: usize>(
    a: &[f32],
    depth: usize,
    range: std::ops::Range<usize>,
    b: impl Fn(usize) -> [__m512; W],
    ahead: &[f16],
    n: usize,
    columns: usize,
    c: &mut [f32],
    add: bool,
) {
    assert!(a.len() >= M * depth && range.end <= depth && n + W * TILE <= columns && c.len() >= M * columns);
    let mut acc = [[_mm512_setzero_ps(); W]; M];
    if add {
        for (m, acc) in acc.iter_mut().enumerate() {
            for (w, acc) in acc.iter_mut().enumerate() {
                // SAFETY: row m < M of `c`, columns n + 16 w .. + 16 <= columns; checked above.
                *acc = unsafe { _mm512_loadu_ps(c.as_ptr().add(m * columns + n + w * TILE)) };
            }
        }
    }
    let mut ahead = prefetch_parts(ahead, range.len());
    for k in range {
        prefetch_part(ahead.next());
        let row = b(k);
        for (m, acc) in acc.iter_mut().enumerate() {
            // SAFETY: row m < M of `a`, k < depth; checked above.
            let x = _mm512_set1_ps(unsafe { *a.get_unchecked(m * depth + k) });
            for (acc, row) in acc.iter_mut().zip(row) {
                *acc = _mm512_fmadd_ps(x, row, *acc);
            }
        }
    }
    for (m, acc) in acc.iter().enumerate() {
        for (w, acc) in acc.iter().enumerate() {
            // SAFETY: as for the loads.
            unsafe { _mm512_storeu_ps(c.as_mut_ptr().add(m * columns + n + w * TILE), *acc) };
        }
    }
}
