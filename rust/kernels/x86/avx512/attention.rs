//! The products of attention: six rows by four registers of columns at a time.
//!
//! Performance notes:
//! - One core, softmax included, makes 205 billion operations a second at 8,192 positions with heads of 64 and 240 with
//!   heads of 128, where products of f16 widened to floats made 151 and 161. Products take 60 % of that time, the softmax
//!   a quarter.
//! - AMX is not used: 16-bit operands would take four products of their 8-bit halves. By a count of cycles, not measured,
//!   packing those, storing and adding up eat most of what the products save.
//! - What is read next is prefetched a few lines with every row of `b`: all at once occupies the line buffers, of which
//!   there are 16, and stops the product (decode at 500 to 1,000 positions 4 % slower).

use super::{load, store, TILE};
use crate::kernels::fixed::{Output, Shape, ONE};
use crate::kernels::x86::prefetch::Prefetch;
use std::arch::x86_64::*;

/// Rows of a block: with four registers of columns their sums fill 24 of the 32 registers.
const ROWS: usize = 6;

/// As [`crate::kernels::scalar::fixed_matmul`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn fixed_matmul(shape: Shape<'_>, a: &[i16], b: &[i16], output: Output<'_>, later: &[i16], c: &mut [f32]) {
    shape.check(b, &output);
    for n in (0..shape.wanted).step_by(4 * TILE) {
        let later = if n == 0 { later } else { &[] };
        match (shape.wanted - n) / TILE {
            1 => multiply_columns::<1>(shape, a, b, output, later, n, c),
            2 => multiply_columns::<2>(shape, a, b, output, later, n, c),
            3 => multiply_columns::<3>(shape, a, b, output, later, n, c),
            _ => multiply_columns::<4>(shape, a, b, output, later, n, c),
        }
    }
}

/// All rows times `W` registers of columns, from column `n` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn multiply_columns<const W: usize>(
    shape: Shape<'_>,
    a: &[i16],
    b: &[i16],
    output: Output<'_>,
    later: &[i16],
    n: usize,
    c: &mut [f32],
) {
    for (i, rows) in shape.rows.chunks(ROWS).enumerate() {
        let (shape, later) = (Shape { rows, ..shape }, if i == 0 { later } else { &[] });
        match rows.len() {
            1 => multiply_block::<1, W>(shape, a, b, output, later, n, c),
            2 => multiply_block::<2, W>(shape, a, b, output, later, n, c),
            3 => multiply_block::<3, W>(shape, a, b, output, later, n, c),
            4 => multiply_block::<4, W>(shape, a, b, output, later, n, c),
            5 => multiply_block::<5, W>(shape, a, b, output, later, n, c),
            _ => multiply_block::<ROWS, W>(shape, a, b, output, later, n, c),
        }
    }
}

/// The `M` rows of `shape` times `W` registers of columns from column `n` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn multiply_block<const M: usize, const W: usize>(
    shape: Shape<'_>,
    a: &[i16],
    b: &[i16],
    output: Output<'_>,
    later: &[i16],
    n: usize,
    c: &mut [f32],
) {
    let Shape { depth, columns, .. } = shape;
    let indices: &[usize; M] = shape.rows.first_chunk().expect("rows");
    let pairs = b.len() / (2 * columns);
    let a: [&[[i16; 2]]; M] = indices.map(|i| &a[i * depth..][..2 * pairs].as_chunks().0[..pairs]);
    let mut acc = [[_mm512_setzero_si512(); W]; M];
    let mut later = Prefetch::new(later, pairs);
    for row in 0..pairs {
        later.step();
        let columns: &[[i16; 2 * TILE]; W] = registers(&b[2 * (row * columns + n)..]);
        // SAFETY: 32 integers of 16 bits fill a register; the loads are unaligned.
        let columns = columns.each_ref().map(|column| unsafe { _mm512_loadu_si512(column.as_ptr().cast()) });
        for (a, acc) in a.iter().zip(&mut acc) {
            // SAFETY: the rows of `a` have as many pairs as `b`; with a check here, sums would be kept in memory.
            let x = _mm512_set1_epi32(bytemuck::cast(*unsafe { a.get_unchecked(row) }));
            for (acc, column) in acc.iter_mut().zip(&columns) {
                *acc = _mm512_dpwssd_epi32(*acc, *column, x);
            }
        }
    }
    // Loops over arrays, which are unrolled: with slices, sums would be kept in memory.
    match output {
        Output::Scores { rows, columns: scales, biases } => {
            let [scales, biases]: [&[[f32; TILE]; W]; 2] = [registers(&scales[n..]), registers(&biases[n..])];
            for (acc, &i) in acc.iter().zip(indices) {
                let c: &mut [[f32; TILE]; W] = registers_mut(&mut c[i * columns + n..]);
                for (((acc, c), scale), bias) in acc.iter().zip(c).zip(scales).zip(biases) {
                    let scale = _mm512_mul_ps(_mm512_set1_ps(rows[i]), load(scale));
                    store(c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(*acc), scale, load(bias)));
                }
            }
        }
        Output::Sums(steps) => {
            for (acc, &i) in acc.iter().zip(indices) {
                let c: &mut [[f32; TILE]; W] = registers_mut(&mut c[i * columns + n..]);
                let (add, keep) = (_mm512_set1_ps(steps[i].add / ONE), _mm512_set1_ps(steps[i].keep));
                for (acc, c) in acc.iter().zip(c) {
                    store(c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(*acc), add, _mm512_mul_ps(load(c), keep)));
                }
            }
        }
    }
}

/// The first `W` times `N` values.
#[inline(always)]
fn registers<T, const N: usize, const W: usize>(values: &[T]) -> &[[T; N]; W] {
    values.as_chunks().0.first_chunk().expect("as many registers of columns")
}

/// The same, to be changed.
#[inline(always)]
fn registers_mut<T, const N: usize, const W: usize>(values: &mut [T]) -> &mut [[T; N]; W] {
    values.as_chunks_mut().0.first_chunk_mut().expect("as many registers of columns")
}
