//! The integer products of a group, by `vpmaddubsw` or by AVX-VNNI.

use crate::kernels::layout::*;
use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// How a layout's products are summed in 16 bits.
pub(super) struct Sums<L>(PhantomData<L>);

impl<L: Layout> Sums<L> {
    /// Whether quants go as magnitudes: they have 8 bits, 255 * 127 * 2 overflows, 128 * 127 * 2 does not.
    pub(super) const SIGNED: bool = L::BITS == 8 || L::CODEBOOK;
    /// Words of four columns whose pair sums, at most `2 * 127 * quant` each, fit 16 bits together.
    const SPAN: usize = match L::BITS {
        _ if Self::SIGNED => 1,
        6 => 2,
        5 => 4,
        _ => 8,
    };
}

/// Adds the integer products of sub-group `sub` of half a tile; `words` are the activations of `M` rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_products<L: Layout, const M: usize>(
    quants: impl Fn(usize) -> __m256i,
    words: &[&[[u8; 4]]; M],
    sub: usize,
    dot: &mut [__m256i; M],
) {
    let count = L::SCALE_COLUMNS / 4;
    let span = Sums::<L>::SPAN.min(count);
    for part in 0..count / span {
        let mut sums = [_mm256_setzero_si256(); M];
        for i in 0..span {
            let j = sub * count + part * span + i;
            let q = quants(j);
            let signed = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
            let magnitude = if Sums::<L>::SIGNED { _mm256_abs_epi8(signed) } else { q };
            for m in 0..M {
                let mut a = _mm256_set1_epi32(i32::from_le_bytes(words[m][j]));
                if Sums::<L>::SIGNED {
                    a = _mm256_sign_epi8(a, signed);
                }
                sums[m] = _mm256_add_epi16(sums[m], _mm256_maddubs_epi16(magnitude, a));
            }
        }
        for m in 0..M {
            dot[m] = _mm256_add_epi32(dot[m], _mm256_madd_epi16(sums[m], _mm256_set1_epi16(1)));
        }
    }
}

/// As [`add_products`], without taking off the offset of any quants.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_products_vnni<L: Layout, const M: usize>(
    quants: impl Fn(usize) -> __m256i,
    words: &[&[[u8; 4]]; M],
    sub: usize,
    dot: &mut [__m256i; M],
) {
    let count = L::SCALE_COLUMNS / 4;
    for j in sub * count..(sub + 1) * count {
        let q = quants(j);
        for m in 0..M {
            let a = _mm256_set1_epi32(i32::from_le_bytes(words[m][j]));
            // SAFETY: `VNNI` is true only below `matmul_with`, whose caller promised that the CPU has the instruction; it
            // touches no memory. An intrinsic would keep this from being inlined into functions that do without.
            unsafe {
                asm!(
                    "{{vex}} vpdpbusd {dot}, {q}, {a}",
                    dot = inout(ymm_reg) dot[m],
                    q = in(ymm_reg) q,
                    a = in(ymm_reg) a,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
        }
    }
}
