//! Element-wise kernels, written once over 16 lanes; each instruction set compiles them with its own features.
//!
//! Sums run in 16 lanes that are folded in a fixed tree and multiply-adds are explicit, so the compiler may not
//! reorder anything and every instruction set gives the same bits.

use crate::kernels::fixed::LEAST;
use crate::kernels::layout::ActivationGroup;

pub(super) const LANES: usize = 16;

/// 1.5 * 2^23: adding it rounds to the nearest integer, ties to even, and leaves that in the low bits.
pub const ROUND: f32 = 12_582_912.0;

/// Sum of 16 lanes as a balanced tree.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Below this e^x counts as 0.
const LOWEST: f32 = -87.3;

/// e^x, within 2 ulp for -87.3 < x < 88.7; 0 below and e^88.7 above (range reduction and polynomial after Cephes).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = x.clamp(LOWEST, 88.7);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, clamped);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    // The integer sits in the low mantissa bits.
    let (p, n) = ((p * r).mul_add(r, r) + 1.0, shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32);
    // Two steps keep 2^128 from overflowing the exponent.
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    let value = p * power(half) * power(n - half);
    if x < LOWEST {
        0.0
    } else {
        value
    }
}

/// 2^x, within a 300,000th of itself, for -126 <= x <= 0, and exactly 1 for 0; 0 below.
///
/// The polynomial is the one of fourth degree with the least relative error (found by Lawson's method). Weights of
/// attention are rounded more coarsely, to a 4,096th.
#[inline(always)]
pub fn exp2_to_one(x: f32) -> f32 {
    const LOWEST: f32 = -126.0;
    // Leaves the exponent of the result in the low bits.
    const BIASED: f32 = ROUND + 127.0;
    let clamped = if LOWEST > x { LOWEST } else { x };
    let shifted = clamped + BIASED;
    let r = clamped - (shifted - BIASED);
    let mut p = 0.009_582_853f32;
    for c in [0.055_906_426, 0.240_240_99, 0.693_124_2, 1.0] {
        p = p.mul_add(r, c);
    }
    if x < LOWEST {
        0.0
    } else {
        p * f32::from_bits(shifted.to_bits() << 23)
    }
}

/// RMSNorm (Zhang and Sennrich, 2019): `out = x / sqrt(mean(x^2) + eps) * gain`.
#[inline(always)]
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    let mut lanes = [0.0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = v.mul_add(v, *lane);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(tail) {
        *lane = v.mul_add(v, *lane);
    }
    let mean = fold(lanes, |a, b| a + b) / x.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    for ((out, &x), &gain) in out.iter_mut().zip(x).zip(gain) {
        *out = x * factor * gain;
    }
}

/// Rotates the interleaved pairs of one head by the angles whose cosines and sines are given (RoPE, Su et al., 2021).
#[inline(always)]
pub fn rope(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, &cos), &sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a.mul_add(cos, -(b * sin));
        pair[1] = a.mul_add(sin, b * cos);
    }
}

/// `gate = silu(gate) * up` (SwiGLU, Shazeer, 2020).
#[inline(always)]
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

/// `gate = gelu(gate) * up`, with `gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` (GEGLU, Shazeer, 2020;
/// Hendrycks and Gimpel, 2016).
#[inline(always)]
pub fn geglu(gate: &mut [f32], up: &[f32]) {
    // (1 + tanh(u)) / 2 is 1 / (1 + e^(-2 u)).
    const FACTOR: f32 = -1.595_769;
    for (gate, &up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let cubic = (0.044_715 * x * x).mul_add(x, x);
        *gate = x / (1.0 + exp(FACTOR * cubic)) * up;
    }
}

/// tanh(x), within 3 ulp (polynomial near 0 after Cephes).
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let (size, square) = (x.abs(), x * x);
    let mut p = -5.704_988_7e-3f32;
    for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = p.mul_add(square, c);
    }
    let near = (p * square).mul_add(x, x);
    let far = (1.0 - 2.0 / (exp(2.0 * size) + 1.0)).copysign(x);
    if size < 0.625 {
        near
    } else {
        far
    }
}

/// `x = cap * tanh(x / cap)`.
#[inline(always)]
pub fn cap_values(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * tanh(*x / cap);
    }
}

/// Quantises a group of 32 values, which comes in halves, to int8 with one scale.
#[inline(always)]
pub fn quantize(halves: [&[f32; LANES]; 2], out: &mut ActivationGroup) {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let largest = |i: usize| larger(larger(0.0, halves[0][i].abs()), halves[1][i].abs());
    let largest = fold(std::array::from_fn(largest), larger);
    let (scale, inverse) = (largest / 127.0, if largest > 0.0 { 127.0 / largest } else { 0.0 });
    let mut sums = [0i32; 2];
    for (h, values) in halves.into_iter().enumerate() {
        for (quant, &value) in out.quants[h * LANES..].iter_mut().zip(values) {
            // Rounds to nearest even and leaves the integer in the low bits.
            *quant = (value.mul_add(inverse, ROUND).to_bits().wrapping_sub(ROUND.to_bits())) as i8;
            sums[h] += i32::from(*quant);
        }
    }
    out.describe(scale, sums);
}

/// Largest of 16 lanes, none of which is NaN.
#[inline(always)]
pub(super) fn largest_lane(lanes: [f32; LANES]) -> f32 {
    fold(lanes, |a, b| if b > a { b } else { a })
}

/// Sum of 16 lanes as a balanced tree.
#[inline(always)]
pub(super) fn sum_of_lanes(lanes: [f32; LANES]) -> f32 {
    fold(lanes, |a, b| a + b)
}

/// The integer nearest to `value * factor`, ties to even; its magnitude is below 2^15.
#[inline(always)]
pub(super) fn rounded(value: f32, factor: f32) -> i16 {
    value.mul_add(factor, ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i16
}

/// Rounds a row to quants up to `largest` and returns their scale, which is NaN if one of the values is NaN or
/// infinite.
#[inline(always)]
pub fn to_fixed(values: &[f32], largest: f32, out: &mut [i16]) -> f32 {
    let (mut lanes, mut faults) = ([LEAST; LANES], [0.0f32; LANES]);
    let (chunks, tail) = values.as_chunks::<LANES>();
    for values in chunks.iter().map(<[f32; LANES]>::as_slice).chain([tail]) {
        for ((lane, fault), value) in lanes.iter_mut().zip(&mut faults).zip(values) {
            *lane = if value.abs() > *lane { value.abs() } else { *lane };
            *fault += value * 0.0;
        }
    }
    let most = largest_lane(lanes);
    for (out, &value) in out.iter_mut().zip(values) {
        *out = rounded(value, largest / most);
    }
    most / largest + sum_of_lanes(faults)
}

/// `x *= factor`.
#[inline(always)]
pub fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

/// Whether any of 16 values, each known to within `error` times its norm, can be as high as `low`, which is then raised
/// to what one of them is at least. A NaN can.
#[inline(always)]
pub fn screen(values: &[f32; LANES], norms: &[f32; LANES], error: f32, low: &mut f32) -> bool {
    let lower = |i: usize| norms[i].mul_add(error, values[i]) < *low;
    if (0..LANES).fold(true, |all, i| all & lower(i)) {
        return false;
    }
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let least = std::array::from_fn(|i| {
        let least = norms[i].mul_add(-error, values[i]);
        // In the tree below, a NaN would hide others.
        if least.is_nan() {
            f32::NEG_INFINITY
        } else {
            least
        }
    });
    *low = larger(*low, fold(least, larger));
    true
}

/// Compiles this module's functions for a set of target features, under the same names.
macro_rules! instantiate {
    ($features:literal) => {
        vector::instantiate_common!($features);
        /// As [`softmax::softmax_rows`].
        #[target_feature(enable = $features)]
        pub fn softmax_rows(task: softmax::Softmax<'_>) {
            softmax::softmax_rows(task)
        }
        /// As [`softmax::drop_low_rows`].
        #[target_feature(enable = $features)]
        pub fn drop_low_rows(rows: &mut Vec<usize>, scores: &[f32], biases: &[f32], least: &[f32]) {
            softmax::drop_low_rows(rows, scores, biases, least)
        }
        /// As [`vector::quantize`].
        #[target_feature(enable = $features)]
        pub fn quantize(halves: [&[f32; 16]; 2], out: &mut ActivationGroup) {
            vector::quantize(halves, out)
        }
    };
}
pub(super) use instantiate;

/// The same for an instruction set with a `quantize`, `softmax_rows` and `drop_low_rows` of its own.
macro_rules! instantiate_common {
    ($features:literal) => {
        /// As [`vector::rms_norm`].
        #[target_feature(enable = $features)]
        pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
            vector::rms_norm(x, gain, eps, out)
        }
        /// As [`vector::rope`].
        #[target_feature(enable = $features)]
        pub fn rope(head: &mut [f32], cos: &[f32], sin: &[f32]) {
            vector::rope(head, cos, sin)
        }
        /// As [`vector::swiglu`].
        #[target_feature(enable = $features)]
        pub fn swiglu(gate: &mut [f32], up: &[f32]) {
            vector::swiglu(gate, up)
        }
        /// As [`vector::geglu`].
        #[target_feature(enable = $features)]
        pub fn geglu(gate: &mut [f32], up: &[f32]) {
            vector::geglu(gate, up)
        }
        /// As [`vector::cap_values`].
        #[target_feature(enable = $features)]
        pub fn cap_values(x: &mut [f32], cap: f32) {
            vector::cap_values(x, cap)
        }
        /// As [`softmax::cap_rows`].
        #[target_feature(enable = $features)]
        pub fn cap_rows(rows: &[usize], scores: &mut [f32], cap: f32, biases: &[f32]) {
            softmax::cap_rows(rows, scores, cap, biases)
        }
        /// As [`vector::screen`].
        #[target_feature(enable = $features)]
        pub fn screen(values: &[f32; 16], norms: &[f32; 16], error: f32, low: &mut f32) -> bool {
            vector::screen(values, norms, error, low)
        }
        /// As [`vector::to_fixed`].
        #[target_feature(enable = $features)]
        pub fn to_fixed(values: &[f32], largest: f32, out: &mut [i16]) -> f32 {
            vector::to_fixed(values, largest, out)
        }
        /// As [`vector::scale`].
        #[target_feature(enable = $features)]
        pub fn scale(x: &mut [f32], factor: f32) {
            vector::scale(x, factor)
        }
        /// As [`softmax::merge`].
        #[target_feature(enable = $features)]
        pub fn merge(states: &mut [SoftmaxState], sums: &mut [f32], others: &[SoftmaxState], other_sums: &[f32]) {
            softmax::merge(states, sums, others, other_sums)
        }
    };
}
pub(super) use instantiate_common;

#[cfg(test)]
mod tests;
