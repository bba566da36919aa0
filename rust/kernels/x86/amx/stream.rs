//! One block of rows: a group goes from memory through the unit to the sums, and while its products are on their way
//! the next ones are unpacked, across the ends of tiles.

use super::unit::{MatrixUnit, Products, Quants};
use super::{signed_quants, FEWEST, ROWS_AT_ONCE};
use crate::kernels::layout::*;
use crate::kernels::x86::avx512::{self, GroupWeights, ScaleReader};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// As [`super::matmul`] for quantised weights and [`super::FEWEST`] to [`ROWS_AT_ONCE`] rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn matmul_stream<L: Layout>(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    const { assert!(FEWEST == 9) };
    match rows.count {
        9 => matmul_rows::<L, 9>(tiles, rows, out),
        10 => matmul_rows::<L, 10>(tiles, rows, out),
        11 => matmul_rows::<L, 11>(tiles, rows, out),
        12 => matmul_rows::<L, 12>(tiles, rows, out),
        13 => matmul_rows::<L, 13>(tiles, rows, out),
        14 => matmul_rows::<L, 14>(tiles, rows, out),
        15 => matmul_rows::<L, 15>(tiles, rows, out),
        ROWS_AT_ONCE => matmul_rows::<L, ROWS_AT_ONCE>(tiles, rows, out),
        count => unreachable!("a stream has 9 to 16 rows, not {count}"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn matmul_rows<L: Layout, const M: usize>(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    match (L::MINIMA, L::SCALE_COLUMNS) {
        (false, GROUP) => stream::<L, false, 1, M>(tiles, rows, out),
        (true, GROUP) => stream::<L, true, 1, M>(tiles, rows, out),
        (false, _) => stream::<L, false, 2, M>(tiles, rows, out),
        (true, _) => stream::<L, true, 2, M>(tiles, rows, out),
    }
}

/// A group on its way to the sums.
struct Unpacked {
    quants: Quants,
    weights: GroupWeights,
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn stream<L: Layout, const MINIMA: bool, const PARTS: usize, const M: usize>(
    tiles: &Tiles<'_>,
    rows: &Rows<'_>,
    out: &mut [[f32; TILE]],
) {
    assert!(rows.count == M && rows.interleaved == ROWS_AT_ONCE && rows.groups == tiles.groups);
    let activations = &rows.quantised.as_chunks::<ROWS_AT_ONCE>().0[..tiles.groups];
    // The groups of consecutive tiles follow each other.
    let Tiles { dtype, groups, quants, scales, .. } = *tiles;
    let all = Tile { dtype, groups: tiles.count * groups, quants, scales };
    let mut scales = ScaleReader::<L>::new(scales);
    let unit = MatrixUnit::configured(GROUP / PARTS, M % ROWS_AT_ONCE);
    // Three groups are on their way: one is scaled while the next is multiplied and the one after it unpacked.
    let mut unpacked = [const { MaybeUninit::<Unpacked>::uninit() }; 4];
    let mut products = [Products::zero(), Products::zero()];
    let mut acc = [_mm512_setzero_ps(); M];
    let [mut multiplied, mut scaled] = [activations.iter().cycle(), activations.iter().cycle()];
    let mut out = out.chunks_exact_mut(M);
    let mut left = groups;
    for g in 0..all.groups + 2 {
        if g < all.groups {
            unpacked[g % 4].write(Unpacked { quants: signed_quants::<L>(&all, g), weights: scales.next(g) });
        }
        if (1..=all.groups).contains(&g) {
            // SAFETY: the group was unpacked in the last round.
            let Unpacked { quants, .. } = unsafe { unpacked[(g - 1) % 4].assume_init_ref() };
            let group = multiplied.next().expect("there are groups");
            unit.multiply::<PARTS, M>(group, quants, &mut products[(g - 1) % 2]);
        }
        if g >= 2 {
            // SAFETY: the group was unpacked two rounds ago.
            let Unpacked { weights, .. } = unsafe { unpacked[(g - 2) % 4].assume_init_ref() };
            let group = scaled.next().expect("there are groups");
            products[g % 2].add_to::<MINIMA, PARTS, M>(weights, group, &mut acc);
            left -= 1;
            if left == 0 {
                left = groups;
                for (out, acc) in out.next().expect("every tile has results").iter_mut().zip(&mut acc) {
                    avx512::store(out, std::mem::replace(acc, _mm512_setzero_ps()));
                }
            }
        }
    }
}
