//! The products of attention and the conversion of cached values.

use super::{floats, load, store, Pair, BLOCK};
use crate::blocks::GgmlType;
use crate::kernels::layout::TILE;
use crate::kernels::scalar::{self, Shape};
use crate::kernels::Ahead;
use half::f16;
use std::arch::x86_64::*;

/// As [`scalar::multiply_f16`].
#[target_feature(enable = "avx2,fma,f16c")]
pub fn multiply_f16(shape: Shape, a: &[f32], b: &[f16], ahead: &[f16], c: &mut [f32], add: bool) {
    shape.check(a, b, c);
    let Shape { count, depth, columns, wanted } = shape;
    for n in (0..wanted).step_by(TILE) {
        for i in (0..count).step_by(BLOCK) {
            let (a, c) = (&a[i * depth..], &mut c[i * columns..]);
            let ahead = if (n, i) == (0, 0) { ahead } else { &[] };
            match count - i {
                1 => multiply_block::<1>(shape, a, b, ahead, n, c, add),
                2 => multiply_block::<2>(shape, a, b, ahead, n, c, add),
                3 => multiply_block::<3>(shape, a, b, ahead, n, c, add),
                _ => multiply_block::<BLOCK>(shape, a, b, ahead, n, c, add),
            }
        }
    }
}

/// `M` rows times 16 columns, from column `n` on.
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_block<const M: usize>(
    shape: Shape,
    a: &[f32],
    b: &[f16],
    ahead: &[f16],
    n: usize,
    c: &mut [f32],
    add: bool,
) {
    let Shape { depth, columns, .. } = shape;
    let span = |m: usize| m * columns + n..m * columns + n + TILE;
    let zero = [_mm256_setzero_ps(); 2];
    let mut acc: [Pair; M] =
        std::array::from_fn(|m| if add { load(c[span(m)].as_array().expect("16 floats")) } else { zero });
    let mut ahead = Ahead::new(ahead, b.len() / columns);
    for k in 0..b.len() / columns {
        ahead.step();
        let row = floats(GgmlType::F16, bytemuck::cast_slice(&b[span(k)]));
        for (m, acc) in acc.iter_mut().enumerate() {
            let x = _mm256_set1_ps(a[m * depth + k]);
            for half in 0..2 {
                acc[half] = _mm256_fmadd_ps(x, row[half], acc[half]);
            }
        }
    }
    for (m, acc) in acc.into_iter().enumerate() {
        store(c[span(m)].as_mut_array().expect("16 floats"), acc);
    }
}

/// As [`scalar::to_f16`].
#[target_feature(enable = "avx2,fma,f16c")]
pub fn to_f16(values: &[f32], out: &mut [f16]) {
    assert!(values.len() == out.len());
    let (values, tail) = values.as_chunks::<8>();
    let (out, out_tail) = out.as_chunks_mut::<8>();
    for (value, out) in values.iter().zip(out) {
        // SAFETY: 8 floats; the load is unaligned.
        let value = unsafe { _mm256_loadu_ps(value.as_ptr()) };
        let value = _mm256_min_ps(_mm256_set1_ps(65504.0), _mm256_max_ps(_mm256_set1_ps(-65504.0), value));
        let half = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(value);
        // SAFETY: 8 f16 values are 16 bytes; the store is unaligned.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), half) };
    }
    scalar::to_f16(tail, out_tail);
}
