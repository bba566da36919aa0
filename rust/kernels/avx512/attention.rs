//! The products of attention: six rows by four registers of columns at a time.
//!
//! Performance notes:
//! - Widening f16 to f32 competes with the multiply-adds for their ports, so a panel of up to 64 by 64 is widened once
//!   into the first-level cache and every block of rows runs over it: 214 billion operations a second of one core with
//!   126 rows, 186 with 12, 116 with 3, where 242 are possible (data in cache). Widening in registers, as often as there
//!   are blocks, makes 163 with 12 rows and 124 with 3.
//! - What is read next is asked for a few lines with every row of `b`: all at once occupies the line buffers, of which
//!   there are 16, and stops the product (decode at 500 to 1,000 positions 4 % slower).

use super::{load, store, TILE};
use crate::kernels::scalar::Shape;
use crate::kernels::Ahead;
use half::f16;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows of a block: with four registers of columns their sums fill 24 of the 32 registers.
const ROWS: usize = 6;
/// Rows of `b` that are widened together.
const PANEL: usize = 64;

/// As [`crate::kernels::scalar::multiply_f16`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn multiply_f16(shape: Shape, a: &[f32], b: &[f16], ahead: &[f16], c: &mut [f32], add: bool) {
    shape.check(a, b, c);
    let (a, c) = (&a[..shape.count * shape.depth], &mut c[..shape.count * shape.columns]);
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
    let Shape { depth, columns, .. } = shape;
    let mut panel = [MaybeUninit::<[__m512; W]>::uninit(); PANEL];
    let mut ahead = Ahead::new(ahead, b.len() / columns);
    for (first, b) in (0..).step_by(PANEL).zip(b.chunks(PANEL * columns)) {
        let len = b.len() / columns;
        for (widened, row) in panel.iter_mut().zip(b.chunks_exact(columns)) {
            ahead.step();
            widened.write(widen(&row[n..n + W * TILE]));
        }
        // SAFETY: the loop wrote these rows.
        let panel = unsafe { panel[..len].assume_init_ref() };
        let add = add || first > 0;
        for (a, c) in a.chunks(ROWS * depth).zip(c.chunks_mut(ROWS * columns)) {
            let a = &a[first..];
            match c.len() / columns {
                1 => multiply_block::<1, W>(shape, a, panel, &mut c[n..], add),
                2 => multiply_block::<2, W>(shape, a, panel, &mut c[n..], add),
                3 => multiply_block::<3, W>(shape, a, panel, &mut c[n..], add),
                4 => multiply_block::<4, W>(shape, a, panel, &mut c[n..], add),
                5 => multiply_block::<5, W>(shape, a, panel, &mut c[n..], add),
                _ => multiply_block::<ROWS, W>(shape, a, panel, &mut c[n..], add),
            }
        }
    }
}

/// `W` registers of f16 values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn widen<const W: usize>(values: &[f16]) -> [__m512; W] {
    let (values, _) = values.as_chunks::<TILE>();
    // SAFETY: 16 f16 values are 32 bytes; the load is unaligned.
    std::array::from_fn(|w| _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(values[w].as_ptr().cast()) }))
}

/// `M` rows of `a` times the rows of `panel`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn multiply_block<const M: usize, const W: usize>(
    shape: Shape,
    a: &[f32],
    panel: &[[__m512; W]],
    c: &mut [f32],
    add: bool,
) {
    let Shape { depth, columns, .. } = shape;
    let a: [&[f32]; M] = std::array::from_fn(|m| &a[m * depth..][..panel.len()]);
    let mut c = c.chunks_mut(columns).map(|c| c.as_chunks_mut().0.first_chunk_mut().expect("W registers of columns"));
    let c: [&mut [[f32; TILE]; W]; M] = std::array::from_fn(|_| c.next().expect("M rows"));
    let mut acc = [[_mm512_setzero_ps(); W]; M];
    if add {
        for (acc, c) in acc.iter_mut().zip(&c) {
            for (acc, c) in acc.iter_mut().zip(c.iter()) {
                *acc = load(c);
            }
        }
    }
    for (k, row) in panel.iter().enumerate() {
        for (a, acc) in a.iter().zip(&mut acc) {
            // SAFETY: the rows of `a` are as long as the panel; with a check here, sums would be kept in memory.
            let x = _mm512_set1_ps(unsafe { *a.get_unchecked(k) });
            for (acc, row) in acc.iter_mut().zip(row) {
                *acc = _mm512_fmadd_ps(x, *row, *acc);
            }
        }
    }
    for (acc, c) in acc.iter().zip(c) {
        for (acc, c) in acc.iter().zip(c) {
            store(c, *acc);
        }
    }
}
