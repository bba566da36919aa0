//! AVX-VNNI: AVX2 with four products a lane in one instruction, for CPUs that have it but not AVX-512.

pub use crate::kernels::x86::avx2::{
    cap_rows, cap_values, drop_low_rows, fixed_matmul, geglu, merge, quantize, rms_norm, rope, scale, screen,
    softmax_rows, swiglu, to_fixed,
};

use crate::kernels::layout::{Rows, Tiles, TILE};
use crate::kernels::x86::avx2;

/// As [`crate::kernels::scalar::matmul`].
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub fn matmul(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    // SAFETY: whoever calls this has AVX-VNNI.
    unsafe { avx2::matmul_with::<true>(tiles, rows, out) }
}
