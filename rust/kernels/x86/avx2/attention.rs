//! The products of attention: four rows by 16 columns at a time.

use super::{load, store, ROWS_AT_ONCE};
use crate::kernels::fixed::{Output, Shape, ONE};
use crate::kernels::layout::TILE;
use crate::kernels::x86::prefetch::Prefetch;
use std::arch::x86_64::*;

/// As [`crate::kernels::scalar::fixed_matmul`].
#[target_feature(enable = "avx2,fma,f16c")]
pub fn fixed_matmul(shape: Shape<'_>, a: &[i16], b: &[i16], output: Output<'_>, later: &[i16], c: &mut [f32]) {
    shape.check(b, &output);
    for n in (0..shape.wanted).step_by(TILE) {
        for (i, rows) in shape.rows.chunks(ROWS_AT_ONCE).enumerate() {
            let (shape, later) = (Shape { rows, ..shape }, if (n, i) == (0, 0) { later } else { &[] });
            match rows.len() {
                1 => multiply_block::<1>(shape, a, b, output, later, n, c),
                2 => multiply_block::<2>(shape, a, b, output, later, n, c),
                3 => multiply_block::<3>(shape, a, b, output, later, n, c),
                _ => multiply_block::<ROWS_AT_ONCE>(shape, a, b, output, later, n, c),
            }
        }
    }
}

/// The `M` rows of `shape` times 16 columns from column `n` on.
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_block<const M: usize>(
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
    let mut acc = [[_mm256_setzero_si256(); 2]; M];
    let mut later = Prefetch::new(later, pairs);
    for (k, row) in b.chunks_exact(2 * columns).enumerate() {
        later.step();
        let row = &row[2 * n..][..2 * TILE];
        // SAFETY: 32 integers of 16 bits are two registers; the loads are unaligned.
        let row = [0, TILE].map(|at| unsafe { _mm256_loadu_si256(row[at..].as_ptr().cast()) });
        for (a, acc) in a.iter().zip(&mut acc) {
            let x = _mm256_set1_epi32(bytemuck::cast(a[k]));
            for half in 0..2 {
                acc[half] = _mm256_add_epi32(acc[half], _mm256_madd_epi16(row[half], x));
            }
        }
    }
    for (&i, acc) in indices.iter().zip(acc) {
        let c = c[i * columns + n..][..TILE].as_mut_array().expect("16 floats");
        let products = acc.map(|acc| _mm256_cvtepi32_ps(acc));
        let result = match output {
            Output::Scores { rows, columns, biases } => {
                let [scales, biases] = [columns, biases].map(|all| load(all[n..][..TILE].as_array().expect("16")));
                let row = _mm256_set1_ps(rows[i]);
                [0, 1].map(|h| _mm256_fmadd_ps(products[h], _mm256_mul_ps(row, scales[h]), biases[h]))
            }
            Output::Sums(steps) => {
                let (add, keep) = (_mm256_set1_ps(steps[i].add / ONE), _mm256_set1_ps(steps[i].keep));
                let before = load(c);
                [0, 1].map(|h| _mm256_fmadd_ps(products[h], add, _mm256_mul_ps(before[h], keep)))
            }
        };
        store(c, result);
    }
}
