//! AVX2 with FMA: a tile's 16 rows are the lanes of two registers. AVX-VNNI adds one instruction.
//!
//! Performance notes:
//! - Up to [`ROWS_AT_ONCE`] rows share one pass over the quants in registers, a word of four columns at a time; for more rows
//!   the quants are unpacked to the stack once.
//! - `vpmaddubsw` saturates at 16 bits, so only as many products are summed there as cannot overflow
//!   ([`Sums::SPAN`]); 8-bit quants go through it as magnitude times signed activation. `vpdpbusd`, where AVX-VNNI has
//!   it, needs neither.

mod attention;
mod products;

pub use attention::fixed_matmul;

use crate::gguf::types::GgmlType;
use crate::kernels::layout::*;
use crate::kernels::softmax::{self, SoftmaxState};
use crate::kernels::vector;
use products::{add_products, add_products_vnni, Sums};
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Activation rows that share a pass over the unpacked quants.
const ROWS_AT_ONCE: usize = 4;
/// Groups that are unpacked together.
const PANEL: usize = 16;

/// Two registers, rows 0 to 7 and 8 to 15 of a tile.
type Pair = [__m256; 2];

/// The scales of a group's sub-groups.
#[derive(Clone, Copy)]
struct GroupWeights {
    scale: [Pair; 2],
    minimum: [Pair; 2],
}

/// An unpacked group of a tile: 8 words of four columns by two half tiles.
struct Group {
    quants: [[__m256i; 2]; 8],
    weights: GroupWeights,
}

/// As [`crate::kernels::scalar::matmul`].
#[target_feature(enable = "avx2,fma,f16c")]
pub fn matmul(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    // SAFETY: AVX-VNNI is not used.
    unsafe { matmul_with::<false>(tiles, rows, out) }
}

/// As [`crate::kernels::scalar::matmul`], with AVX-VNNI's products if `VNNI`.
///
/// # Safety
/// If `VNNI`, the CPU must have AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn matmul_with<const VNNI: bool>(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    check_matmul(tiles, rows, out);
    for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(rows.count)) {
        matmul_tile::<VNNI>(&tile, rows, out);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn matmul_tile<const VNNI: bool>(tile: &Tile<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    match tile.dtype {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {
            for (i, out) in out.iter_mut().enumerate() {
                matmul_float(tile, rows, i, out);
            }
        }
        quantised => with_layout!(quantised, matmul_quantised::<_, VNNI>(tile, rows, out)),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn matmul_quantised<L: Layout, const VNNI: bool>(tile: &Tile<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    match out.len() {
        1 => matmul_block::<L, VNNI, 1>(tile, rows, out),
        2 => matmul_block::<L, VNNI, 2>(tile, rows, out),
        3 => matmul_block::<L, VNNI, 3>(tile, rows, out),
        ROWS_AT_ONCE => matmul_block::<L, VNNI, ROWS_AT_ONCE>(tile, rows, out),
        _ => matmul_panels::<L, VNNI>(tile, rows, out),
    }
}

/// Few rows: quants go from memory to registers to products.
#[target_feature(enable = "avx2,fma,f16c")]
fn matmul_block<L: Layout, const VNNI: bool, const M: usize>(
    tile: &Tile<'_>,
    rows: &Rows<'_>,
    out: &mut [[f32; TILE]],
) {
    let mut acc = [[_mm256_setzero_ps(); 2]; M];
    let mut scales = ScaleReader::<L>::new(tile.scales);
    for g in 0..tile.groups {
        let packed = &tile.quants[g * 64 * L::BITS..][..64 * L::BITS];
        prefetch::<L>(packed);
        accumulate::<L, VNNI, M>(|j, half| unpack::<L>(packed, j, half), &scales.next(g), rows, 0, g, &mut acc);
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        store(out, acc);
    }
}

/// Many rows: a panel of groups is unpacked once and used by every block of rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn matmul_panels<L: Layout, const VNNI: bool>(tile: &Tile<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    let mut panel = [const { MaybeUninit::<Group>::uninit() }; PANEL];
    let mut scales = ScaleReader::<L>::new(tile.scales);
    out.fill([0.0; TILE]);
    for first in (0..tile.groups).step_by(PANEL) {
        let count = PANEL.min(tile.groups - first);
        for (i, group) in panel[..count].iter_mut().enumerate() {
            let packed = &tile.quants[(first + i) * 64 * L::BITS..][..64 * L::BITS];
            prefetch::<L>(packed);
            let quants = std::array::from_fn(|j| [unpack::<L>(packed, j, 0), unpack::<L>(packed, j, 1)]);
            group.write(Group { quants, weights: scales.next(first + i) });
        }
        // SAFETY: the loop wrote the first `count` groups.
        let groups = unsafe { std::slice::from_raw_parts(panel.as_ptr().cast::<Group>(), count) };
        for (i, out) in out.chunks_mut(ROWS_AT_ONCE).enumerate() {
            match out.len() {
                1 => matmul_panel::<L, VNNI, 1>(groups, rows, ROWS_AT_ONCE * i, first, out),
                2 => matmul_panel::<L, VNNI, 2>(groups, rows, ROWS_AT_ONCE * i, first, out),
                3 => matmul_panel::<L, VNNI, 3>(groups, rows, ROWS_AT_ONCE * i, first, out),
                _ => matmul_panel::<L, VNNI, ROWS_AT_ONCE>(groups, rows, ROWS_AT_ONCE * i, first, out),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn matmul_panel<L: Layout, const VNNI: bool, const M: usize>(
    groups: &[Group],
    rows: &Rows<'_>,
    row: usize,
    first: usize,
    out: &mut [[f32; TILE]],
) {
    let mut acc: [Pair; M] = std::array::from_fn(|m| load(&out[m]));
    for (i, Group { quants, weights }) in groups.iter().enumerate() {
        accumulate::<L, VNNI, M>(|j, half| quants[j][half], weights, rows, row, first + i, &mut acc);
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        store(out, acc);
    }
}

/// How far ahead quants are prefetched, in bytes; the tiles that a worker reads lie one after the other.
const PREFETCH: usize = 4096;

/// Prefetches the quants that are read [`PREFETCH`] bytes after those of a group.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn prefetch<L: Layout>(packed: &[u8]) {
    for line in 0..L::BITS {
        _mm_prefetch::<_MM_HINT_T0>(packed.as_ptr().wrapping_add(PREFETCH + 64 * line).cast());
    }
}

/// Adds group `g` of the rows from `first` on to the accumulators; `quants(j, half)` are the quants of word `j` of a
/// half tile.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn accumulate<L: Layout, const VNNI: bool, const M: usize>(
    quants: impl Fn(usize, usize) -> __m256i,
    weights: &GroupWeights,
    rows: &Rows<'_>,
    first: usize,
    g: usize,
    acc: &mut [Pair; M],
) {
    debug_assert!(first + M <= rows.count && first % rows.interleaved + M <= rows.interleaved && g < rows.groups);
    // SAFETY: `matmul` checked that `rows` holds all groups of its rows, and callers pass a group of the tile and rows of
    // one interleaved set, which follow each other. Checks in here would keep the loops from unrolling.
    let row = unsafe { rows.quantised.get_unchecked(rows.at(first, g)..).get_unchecked(..M) };
    let row: [(&[[u8; 4]], &ActivationGroup); M] =
        std::array::from_fn(|m| (bytemuck::cast_slice(&row[m].quants), &row[m]));
    for half in 0..2 {
        for sub in 0..GROUP / L::SCALE_COLUMNS {
            let sums_of = |s: &ActivationGroup| match L::SCALE_COLUMNS {
                GROUP => (s.negative_sum, s.sum),
                _ => (s.negative_sums[sub], s.sums[sub]),
            };
            let mut dot: [__m256i; M] = std::array::from_fn(|m| match L::OFFSET_BITS {
                Some(bits) if VNNI || !Sums::<L>::SIGNED => _mm256_set1_epi32(sums_of(row[m].1).0 << bits),
                _ => _mm256_setzero_si256(),
            });
            let words = std::array::from_fn(|m| row[m].0);
            match VNNI {
                true => add_products_vnni::<L, M>(|j| quants(j, half), &words, sub, &mut dot),
                false => add_products::<L, M>(|j| quants(j, half), &words, sub, &mut dot),
            }
            for m in 0..M {
                let s = row[m].1;
                let scale = _mm256_mul_ps(weights.scale[sub][half], _mm256_set1_ps(s.scale));
                acc[m][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[m]), scale, acc[m][half]);
                if L::MINIMA {
                    let sum = _mm256_set1_ps(sums_of(s).1);
                    acc[m][half] = _mm256_fmadd_ps(weights.minimum[sub][half], sum, acc[m][half]);
                }
            }
        }
    }
}

/// Reads the scales of a tile front to back.
struct ScaleReader<'a, L> {
    rest: &'a [u8],
    /// Scale and minimum of the super-block.
    block: [Pair; 2],
    layout: PhantomData<L>,
}

impl<'a, L: Layout> ScaleReader<'a, L> {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn new(scales: &'a [u8]) -> Self {
        Self { rest: scales, block: [[_mm256_setzero_ps(); 2]; 2], layout: PhantomData }
    }

    /// Scales of group `g`; groups are read in order.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn next(&mut self, g: usize) -> GroupWeights {
        let zero = [[_mm256_setzero_ps(); 2]; 2];
        let mut out = GroupWeights { scale: zero, minimum: zero };
        if !L::SUPER_SCALES {
            out.scale[0] = f16s(&mut self.rest);
            if L::MINIMA {
                out.minimum[0] = f16s(&mut self.rest);
            }
            return out;
        }
        if g.is_multiple_of(SUPER) {
            self.block[0] = f16s(&mut self.rest);
            if L::MINIMA {
                self.block[1] = f16s(&mut self.rest);
            }
        }
        let subs = GROUP / L::SCALE_COLUMNS;
        for scale in &mut out.scale[..subs] {
            *scale = times_i8s(self.block[0], &mut self.rest);
        }
        if L::MINIMA {
            for minimum in &mut out.minimum[..subs] {
                *minimum = times_i8s(self.block[1], &mut self.rest);
            }
        }
        out
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn f16s(from: &mut &[u8]) -> Pair {
    let (head, rest) = from.split_at(2 * TILE);
    *from = rest;
    [0, 16].map(|at| {
        let half = &head[at..at + 16];
        // SAFETY: `half` is 16 bytes long; the load is unaligned.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(half.as_ptr().cast()) })
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn times_i8s(scale: Pair, from: &mut &[u8]) -> Pair {
    let (head, rest) = from.split_at(TILE);
    *from = rest;
    [0, 1].map(|half| {
        let factors = &head[8 * half..8 * half + 8];
        // SAFETY: `factors` is 8 bytes long; the load is unaligned.
        let factors = _mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(factors.as_ptr().cast()) });
        _mm256_mul_ps(scale[half], _mm256_cvtepi32_ps(factors))
    })
}

/// The quants, in lane order, of word `j` of half a tile.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn unpack<L: Layout>(packed: &[u8], j: usize, half: usize) -> __m256i {
    let plane = |i: usize| {
        let plane = &packed[64 * i + 32 * half..][..32];
        // SAFETY: `plane` is 32 bytes long; the load is unaligned.
        unsafe { _mm256_loadu_si256(plane.as_ptr().cast()) }
    };
    let mask = |v: __m256i, shift: usize, bits: i8| {
        _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(shift as i32)), _mm256_set1_epi8(bits))
    };
    let low = match L::BITS {
        8 => plane(j),
        4..=6 => mask(plane(j / 2), 4 * (j % 2), 15),
        _ => mask(plane(j / 4), 2 * (j % 4), 3),
    };
    if L::CODEBOOK {
        // SAFETY: the table is 16 bytes long; the load is unaligned.
        let table = unsafe { _mm_loadu_si128(IQ4_VALUES.as_ptr().cast()) };
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), low);
    }
    let high = match L::BITS {
        3 => _mm256_slli_epi16::<2>(mask(plane(2), j, 1)),
        5 => _mm256_slli_epi16::<4>(mask(plane(4), j, 1)),
        6 => _mm256_slli_epi16::<4>(mask(plane(4 + j / 4), 2 * (j % 4), 3)),
        _ => return low,
    };
    _mm256_or_si256(low, high)
}

/// Float weights, one activation row.
#[target_feature(enable = "avx2,fma,f16c")]
fn matmul_float(tile: &Tile<'_>, rows: &Rows<'_>, row: usize, out: &mut [f32; TILE]) {
    let bytes = quant_bytes(tile.dtype) / GROUP;
    let mut acc = [[_mm256_setzero_ps(); 2]; 4];
    let mut weights = tile.quants;
    for x in rows.values[row * tile.groups * GROUP..][..tile.groups * GROUP].chunks_exact(4) {
        for (acc, &x) in acc.iter_mut().zip(x) {
            let (column, rest) = weights.split_at(bytes);
            weights = rest;
            let w = floats(tile.dtype, column);
            for half in 0..2 {
                acc[half] = _mm256_fmadd_ps(w[half], _mm256_set1_ps(x), acc[half]);
            }
        }
    }
    let [a, b, c, d] = acc;
    store(out, [0, 1].map(|h| _mm256_add_ps(_mm256_add_ps(a[h], b[h]), _mm256_add_ps(c[h], d[h]))));
}

/// Sixteen float weights.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn floats(dtype: GgmlType, column: &[u8]) -> Pair {
    [0, 1].map(|half| {
        let part = &column[half * column.len() / 2..][..column.len() / 2];
        // SAFETY: `part` holds 8 weights, 32 bytes of F32 and else 16; the loads are unaligned.
        unsafe {
            match dtype {
                GgmlType::F32 => _mm256_loadu_ps(part.as_ptr().cast()),
                GgmlType::F16 => _mm256_cvtph_ps(_mm_loadu_si128(part.as_ptr().cast())),
                _ => {
                    let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(part.as_ptr().cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
                }
            }
        }
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load(from: &[f32; TILE]) -> Pair {
    let (low, high) = from.split_at(8);
    // SAFETY: 8 floats each; the loads are unaligned.
    unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store(to: &mut [f32; TILE], value: Pair) {
    let (low, high) = to.split_at_mut(8);
    // SAFETY: 8 floats each; the stores are unaligned.
    unsafe {
        _mm256_storeu_ps(low.as_mut_ptr(), value[0]);
        _mm256_storeu_ps(high.as_mut_ptr(), value[1]);
    }
}

vector::instantiate!("avx2,fma,f16c");
