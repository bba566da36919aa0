//! AVX-512 with VNNI: a tile's 16 rows are the lanes of one register, four columns a `vpdpbusd`.
//!
//! Performance notes (multiply-adds a second of one core, data in cache):
//! - [`ROWS_AT_ONCE`] = 8 activation rows share one pass over the quants in registers: 200 to 225 billion for 4-bit and 8-bit
//!   types. Blocks of 12 and 16 were slower (185 to 200), since accumulators are spilled.
//! - Unpacking a tile to memory once for all blocks was no faster at 256 rows (199), and slower at 16, where its stores
//!   and the wait for memory add up: one block of rows takes as long as the memory needs, so the first pass hides it.
//! - Activation bytes are broadcast from memory inside `vpdpbusd`, which costs a load port and no shuffle.
//! - Prefetching [`PREFETCH`] makes decode 20 % faster: hardware prefetching stops at every 4 KiB page. It goes to the
//!   second-level cache: the first one's few line buffers are then left to what is read now, and decode from memory is
//!   another 8 % faster than with 4 KiB ahead into the first. More than 8 KiB ahead gains nothing.
//! - Scales, a second stream of a fifth of the bytes, need it as much: without it 8 rows of a Q4_1 group from memory take
//!   a third longer.

mod attention;

use crate::gguf::types::GgmlType;
use crate::kernels::layout::*;
use crate::kernels::softmax::{self, Softmax, SoftmaxState};
use crate::kernels::vector;
use std::arch::x86_64::*;

pub use attention::fixed_matmul;

/// Activation rows that share one pass over a tile's quants.
const ROWS_AT_ONCE: usize = 8;

/// How far ahead quants are prefetched, in bytes; the tiles that a worker reads lie one after the other.
const PREFETCH: usize = 8192;
/// The same for scales, of which a group has about a line.
const PREFETCH_SCALES: usize = 1024;

/// Calls `function::<.., M>(args)` for the row count `M`, 1 to [`ROWS_AT_ONCE`].
macro_rules! with_rows {
    ($count:expr, $function:ident::<$($generic:ident,)* _>($($arg:expr),*)) => {
        match $count {
            1 => $function::<$($generic,)* 1>($($arg),*),
            2 => $function::<$($generic,)* 2>($($arg),*),
            3 => $function::<$($generic,)* 3>($($arg),*),
            4 => $function::<$($generic,)* 4>($($arg),*),
            5 => $function::<$($generic,)* 5>($($arg),*),
            6 => $function::<$($generic,)* 6>($($arg),*),
            7 => $function::<$($generic,)* 7>($($arg),*),
            8 => $function::<$($generic,)* 8>($($arg),*),
            count => unreachable!("a block has 1 to 8 rows, not {count}"),
        }
    };
}

/// As [`crate::kernels::scalar::matmul`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn matmul(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    check_matmul(tiles, rows, out);
    for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(rows.count)) {
        matmul_tile(&tile, rows, out);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn matmul_tile(tile: &Tile<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    match tile.dtype {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {
            for (i, out) in out.chunks_mut(ROWS_AT_ONCE).enumerate() {
                with_rows!(out.len(), matmul_float::<_>(tile, rows, ROWS_AT_ONCE * i, out));
            }
        }
        quantised => with_layout!(quantised, matmul_quantised::<_>(tile, rows, out)),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn matmul_quantised<L: Layout>(tile: &Tile<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    for (i, out) in out.chunks_mut(ROWS_AT_ONCE).enumerate() {
        with_rows!(out.len(), matmul_block::<L, _>(tile, rows, ROWS_AT_ONCE * i, out));
    }
}

/// Quants go from memory to registers to products with `M` rows from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn matmul_block<L: Layout, const M: usize>(tile: &Tile<'_>, rows: &Rows<'_>, first: usize, out: &mut [[f32; TILE]]) {
    assert!(out.len() == M && first + M <= rows.count && first % rows.interleaved + M <= rows.interleaved);
    let mut acc = [_mm512_setzero_ps(); M];
    let mut scales = ScaleReader::<L>::new(tile.scales);
    for (g, (packed, rows)) in tile.quants.chunks_exact(64 * L::BITS).zip(rows.groups_from(first)).enumerate() {
        prefetch::<L>(packed);
        let weights = scales.next(g);
        let rows = rows.first_chunk().expect("rows of one interleaved set follow each other");
        accumulate::<L, M>(&unpack::<L>(packed), &weights, rows, &mut acc);
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        store(out, acc);
    }
}

/// Prefetches the quants [`PREFETCH`] bytes after `packed`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
pub fn prefetch<L: Layout>(packed: &[u8]) {
    for line in 0..L::BITS {
        _mm_prefetch::<_MM_HINT_T1>(packed.as_ptr().wrapping_add(64 * line + PREFETCH).cast());
    }
}

/// Adds a group of `M` rows to the accumulators.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn accumulate<L: Layout, const M: usize>(
    quants: &[__m512i; 8],
    weights: &GroupWeights,
    rows: &[ActivationGroup; M],
    acc: &mut [__m512; M],
) {
    for (s, acc) in rows.iter().zip(acc) {
        let (x, _) = s.quants.as_chunks::<4>();
        let scale = _mm512_set1_ps(s.scale);
        if L::SCALE_COLUMNS == GROUP {
            let mut dot = offset::<L>(s.negative_sum);
            for j in 0..8 {
                dot = _mm512_dpbusd_epi32(dot, quants[j], _mm512_set1_epi32(i32::from_le_bytes(x[j].map(|q| q as u8))));
            }
            *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(weights.scale[0], scale), *acc);
            if L::MINIMA {
                *acc = _mm512_fmadd_ps(weights.minimum[0], _mm512_set1_ps(s.sum), *acc);
            }
        } else {
            for h in 0..2 {
                let mut dot = offset::<L>(s.negative_sums[h]);
                for j in 4 * h..4 * h + 4 {
                    dot = _mm512_dpbusd_epi32(
                        dot,
                        quants[j],
                        _mm512_set1_epi32(i32::from_le_bytes(x[j].map(|q| q as u8))),
                    );
                }
                *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(weights.scale[h], scale), *acc);
                if L::MINIMA {
                    *acc = _mm512_fmadd_ps(weights.minimum[h], _mm512_set1_ps(s.sums[h]), *acc);
                }
            }
        }
    }
}

/// What the dot product starts with so that the quants' offset is taken off.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn offset<L: Layout>(negative_sum: i32) -> __m512i {
    match L::OFFSET_BITS {
        Some(bits) => _mm512_sll_epi32(_mm512_set1_epi32(negative_sum), _mm_cvtsi32_si128(bits as i32)),
        None => _mm512_setzero_si512(),
    }
}

/// Scales and minima of a group's sub-groups.
#[derive(Clone, Copy)]
pub struct GroupWeights {
    pub scale: [__m512; 2],
    pub minimum: [__m512; 2],
}

impl GroupWeights {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn zero() -> Self {
        Self { scale: [_mm512_setzero_ps(); 2], minimum: [_mm512_setzero_ps(); 2] }
    }
}

/// Reads the scales of a tile front to back.
pub struct ScaleReader<'a, L> {
    rest: &'a [u8],
    block: GroupWeights,
    layout: std::marker::PhantomData<L>,
}

impl<'a, L: Layout> ScaleReader<'a, L> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    #[inline]
    pub fn new(scales: &'a [u8]) -> Self {
        Self { rest: scales, block: GroupWeights::zero(), layout: std::marker::PhantomData }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    #[inline]
    fn f16s(&mut self) -> __m512 {
        let (head, rest) = self.rest.split_at(2 * TILE);
        self.rest = rest;
        // SAFETY: `head` is 32 bytes long; the load is unaligned.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(head.as_ptr().cast()) })
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    #[inline]
    fn i8s(&mut self) -> __m512 {
        let (head, rest) = self.rest.split_at(TILE);
        self.rest = rest;
        // SAFETY: `head` is 16 bytes long; the load is unaligned.
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(head.as_ptr().cast()) }))
    }

    /// Scales of group `g`; groups are read in order. Prefetches those [`PREFETCH_SCALES`] bytes on.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    #[inline]
    pub fn next(&mut self, g: usize) -> GroupWeights {
        _mm_prefetch::<_MM_HINT_T0>(self.rest.as_ptr().wrapping_add(PREFETCH_SCALES).cast());
        let mut out = GroupWeights::zero();
        if !L::SUPER_SCALES {
            out.scale[0] = self.f16s();
            if L::MINIMA {
                out.minimum[0] = self.f16s();
            }
            return out;
        }
        if g.is_multiple_of(SUPER) {
            self.block.scale[0] = self.f16s();
            if L::MINIMA {
                self.block.minimum[0] = self.f16s();
            }
        }
        for scale in &mut out.scale[..GROUP / L::SCALE_COLUMNS] {
            *scale = _mm512_mul_ps(self.block.scale[0], self.i8s());
        }
        if L::MINIMA {
            for minimum in &mut out.minimum[..GROUP / L::SCALE_COLUMNS] {
                *minimum = _mm512_mul_ps(self.block.minimum[0], self.i8s());
            }
        }
        out
    }
}

/// The eight registers of a group's quants in lane order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
pub fn unpack<L: Layout>(packed: &[u8]) -> [__m512i; 8] {
    let plane = |i: usize| {
        let plane = &packed[64 * i..][..64];
        // SAFETY: `plane` is 64 bytes long; the load is unaligned.
        unsafe { _mm512_loadu_si512(plane.as_ptr().cast()) }
    };
    let mask = |v: __m512i, shift: u32, bits: i8| {
        _mm512_and_si512(_mm512_srl_epi16(v, _mm_cvtsi32_si128(shift as i32)), _mm512_set1_epi8(bits))
    };
    let low: [__m512i; 8] = std::array::from_fn(|j| match L::BITS {
        8 => plane(j),
        4..=6 => mask(plane(j / 2), 4 * (j as u32 % 2), 15),
        _ => mask(plane(j / 4), 2 * (j as u32 % 4), 3),
    });
    if L::CODEBOOK {
        // SAFETY: the table is 16 bytes long; the load is unaligned.
        let table = unsafe { _mm_loadu_si128(IQ4_VALUES.as_ptr().cast()) };
        return low.map(|quants| _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), quants));
    }
    std::array::from_fn(|j| {
        let high = match L::BITS {
            3 => _mm512_slli_epi16::<2>(mask(plane(2), j as u32, 1)),
            5 => _mm512_slli_epi16::<4>(mask(plane(4), j as u32, 1)),
            6 => _mm512_slli_epi16::<4>(mask(plane(4 + j / 4), 2 * (j as u32 % 4), 3)),
            _ => return low[j],
        };
        _mm512_or_si512(low[j], high)
    })
}

/// Float weights times `M` rows from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn matmul_float<const M: usize>(tile: &Tile<'_>, rows: &Rows<'_>, first: usize, out: &mut [[f32; TILE]]) {
    let columns = tile.groups * GROUP;
    let weight = |c: usize| {
        let bytes = quant_bytes(tile.dtype) / GROUP;
        let column = &tile.quants[c * bytes..][..bytes];
        // SAFETY: a column holds 16 weights, 64 bytes of F32 and else 32; the loads are unaligned.
        unsafe {
            match tile.dtype {
                GgmlType::F32 => _mm512_loadu_ps(column.as_ptr().cast()),
                GgmlType::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(column.as_ptr().cast())),
                _ => {
                    let half = _mm512_cvtepu16_epi32(_mm256_loadu_si256(column.as_ptr().cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(half))
                }
            }
        }
    };
    // As many accumulators as fit: the four columns of a step are summed per row at the end.
    let mut acc = [[_mm512_setzero_ps(); 4]; M];
    for c in (0..columns).step_by(4) {
        let weights: [__m512; 4] = std::array::from_fn(|i| weight(c + i));
        for (m, acc) in acc.iter_mut().enumerate() {
            let x = &rows.values[(first + m) * columns + c..][..4];
            for i in 0..4 {
                acc[i] = _mm512_fmadd_ps(weights[i], _mm512_set1_ps(x[i]), acc[i]);
            }
        }
    }
    for (out, [a, b, c, d]) in out.iter_mut().zip(acc) {
        store(out, _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
pub fn load(from: &[f32; TILE]) -> __m512 {
    // SAFETY: 16 floats; the load is unaligned.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
pub fn store(to: &mut [f32; TILE], value: __m512) {
    // SAFETY: 16 floats; the store is unaligned.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
}

/// As [`vector::quantize`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn quantize(halves: [&[f32; TILE]; 2], out: &mut ActivationGroup) {
    let round = _mm512_set1_ps(vector::ROUND);
    let values = halves.map(|half| load(half));
    // The maximum of a pair is its second value if one of them is no number.
    let largest = _mm512_max_ps(_mm512_abs_ps(values[0]), _mm512_setzero_ps());
    let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(values[1]), largest));
    let inverse = _mm512_set1_ps(if largest > 0.0 { 127.0 / largest } else { 0.0 });
    let mut sums = [0; 2];
    for (h, quants) in out.quants.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
        let shifted = _mm512_castps_si512(_mm512_fmadd_ps(values[h], inverse, round));
        let bytes = _mm512_cvtepi32_epi8(_mm512_sub_epi32(shifted, _mm512_castps_si512(round)));
        // SAFETY: 16 bytes; the store is unaligned.
        unsafe { _mm_storeu_si128(quants.as_mut_ptr().cast(), bytes) };
        // Sums of absolute differences from -128 are sums of unsigned bytes, each 128 too large.
        let pair = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
        sums[h] = (_mm_cvtsi128_si64(pair) + _mm_extract_epi64::<1>(pair)) as i32 - 16 * 128;
    }
    out.describe(largest / 127.0, sums);
}

/// As [`softmax::softmax_rows`].
///
/// Performance note: the compiler's own way from 16 lanes to one takes as long as the exponentials of a row. These two
/// join halves of 8, 4, 2 and 1 lanes, as [`vector`] does.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn softmax_rows(task: Softmax<'_>) {
    let largest = |lanes: [f32; TILE]| _mm512_reduce_max_ps(load(&lanes));
    let sum = |lanes: [f32; TILE]| _mm512_reduce_add_ps(load(&lanes));
    softmax::softmax_rows_with(task, largest, sum);
}

/// As [`softmax::drop_low_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn drop_low_rows(rows: &mut Vec<usize>, scores: &[f32], biases: &[f32], least: &[f32]) {
    let largest = |lanes: [f32; TILE]| _mm512_reduce_max_ps(load(&lanes));
    softmax::drop_low_rows_with(rows, scores, biases, least, largest);
}

vector::instantiate_common!("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c");
