//! The specification of every kernel, in plain loops; the other instruction sets give the same bits.

use crate::gguf::types::GgmlType;
use crate::kernels::fixed::{Output, Shape, ONE};
use crate::kernels::layout::*;
use half::{bf16, f16};

pub use crate::kernels::softmax::{cap_rows, drop_low_rows, merge, softmax_rows};
pub use crate::kernels::vector::*;

/// Dot products of the 16 rows of every tile with every activation row: `out[tile][m][r]`.
pub fn matmul(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    check_matmul(tiles, rows, out);
    for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(rows.count)) {
        matmul_tile(&tile, rows, out);
    }
}

fn matmul_tile(tile: &Tile<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    match tile.dtype {
        GgmlType::F32 => matmul_float(tile, rows, out, |at| f32::from_le_bytes(bytes(tile.quants, 4 * at))),
        GgmlType::F16 => matmul_float(tile, rows, out, |at| f16::from_le_bytes(bytes(tile.quants, 2 * at)).to_f32()),
        GgmlType::BF16 => matmul_float(tile, rows, out, |at| bf16::from_le_bytes(bytes(tile.quants, 2 * at)).to_f32()),
        quantised => with_layout!(quantised, matmul_quantised::<_>(tile, rows, out)),
    }
}

/// Float weights: four accumulators, one for each column modulo 4, hide the latency of the multiply-add.
fn matmul_float(tile: &Tile<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]], weight: impl Fn(usize) -> f32) {
    let columns = tile.groups * GROUP;
    for (m, out) in out.iter_mut().enumerate() {
        let x = &rows.values[m * columns..][..columns];
        *out = std::array::from_fn(|r| {
            let mut acc = [0.0f32; 4];
            for (c, &x) in x.iter().enumerate() {
                acc[c % 4] = weight(TILE * c + r).mul_add(x, acc[c % 4]);
            }
            (acc[0] + acc[1]) + (acc[2] + acc[3])
        });
    }
}

fn matmul_quantised<L: Layout>(tile: &Tile<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    let quant_bytes = 64 * L::BITS;
    let sub_groups = GROUP / L::SCALE_COLUMNS;
    out.fill([0.0; TILE]);
    for g in 0..tile.groups {
        let quants = unpack_group::<L>(&tile.quants[g * quant_bytes..]);
        let weights = group_weights::<L>(tile.scales, g);
        for (m, out) in out.iter_mut().enumerate() {
            let activation = rows.quantised[rows.at(m, g)];
            for (sub, w) in weights.iter().enumerate().take(sub_groups) {
                let (negative_sum, sum) = match sub_groups {
                    1 => (activation.negative_sum, activation.sum),
                    _ => (activation.negative_sums[sub], activation.sums[sub]),
                };
                for r in 0..TILE {
                    let mut dot = L::OFFSET_BITS.map_or(0, |bits| negative_sum << bits);
                    for c in sub * L::SCALE_COLUMNS..(sub + 1) * L::SCALE_COLUMNS {
                        dot += i32::from(quants[lane(r, c)]) * i32::from(activation.quants[c]);
                    }
                    out[r] = (dot as f32).mul_add(w.scale[r] * activation.scale, out[r]);
                    if L::MINIMA {
                        out[r] = w.minimum[r].mul_add(sum, out[r]);
                    }
                }
            }
        }
    }
}

/// Index, in lane order, of the quant of row `r` and column `c` of a group.
pub fn lane(r: usize, c: usize) -> usize {
    64 * (c / 4) + 4 * r + c % 4
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| from[at + i])
}

/// The quant at index `i`, in lane order, of a packed group.
pub fn unpack_one<L: Layout>(packed: &[u8], i: usize) -> u8 {
    let (j, byte) = (i / 64, i % 64);
    let nibble = || packed[64 * (j / 2) + byte] >> (4 * (j % 2)) & 15;
    let pair = |at: usize| packed[at + 64 * (j / 4) + byte] >> (2 * (j % 4)) & 3;
    let bit = |at: usize| packed[at + byte] >> j & 1;
    match L::BITS {
        2 => pair(0),
        3 => pair(0) | bit(128) << 2,
        4 if L::CODEBOOK => IQ4_VALUES[usize::from(nibble())],
        4 => nibble(),
        5 => nibble() | bit(256) << 4,
        6 => nibble() | pair(256) << 4,
        _ => packed[i],
    }
}

/// The 512 quants of a group in lane order.
pub fn unpack_group<L: Layout>(packed: &[u8]) -> [u8; GROUP_QUANTS] {
    std::array::from_fn(|i| unpack_one::<L>(packed, i))
}

/// Scale and minimum of row `r` in the sub-group of column `c` of group `g`; the minimum is 0 without minima.
pub fn row_weights<L: Layout>(scales: &[u8], g: usize, c: usize, r: usize) -> (f32, f32) {
    let half = |at: usize| f16::from_le_bytes(bytes(scales, at + 2 * r)).to_f32();
    let kinds = 1 + usize::from(L::MINIMA);
    let with_minimum = |scale, minimum: &dyn Fn() -> f32| (scale, if L::MINIMA { minimum() } else { 0.0 });
    if !L::SUPER_SCALES {
        let at = g * 2 * TILE * kinds;
        return with_minimum(half(at), &|| half(at + 2 * TILE));
    }
    let sub_groups = GROUP / L::SCALE_COLUMNS;
    let (head, body) = (2 * TILE * kinds, sub_groups * TILE * kinds);
    let block = g / SUPER * (head + SUPER * body);
    let factors = block + head + g % SUPER * body + c / L::SCALE_COLUMNS * TILE;
    let factor = |at: usize| f32::from(scales[at + r] as i8);
    with_minimum(half(block) * factor(factors), &|| half(block + 2 * TILE) * factor(factors + sub_groups * TILE))
}

/// Scales of 16 rows in one sub-group of columns.
#[derive(Clone, Copy)]
struct SubGroup {
    scale: [f32; TILE],
    minimum: [f32; TILE],
}

/// The sub-groups of group `g`; both are the same when the layout has one.
fn group_weights<L: Layout>(scales: &[u8], g: usize) -> [SubGroup; 2] {
    [0, GROUP - 1].map(|c| SubGroup {
        scale: std::array::from_fn(|r| row_weights::<L>(scales, g, c, r).0),
        minimum: std::array::from_fn(|r| row_weights::<L>(scales, g, c, r).1),
    })
}

/// Products of rows `a`, `[rows][depth]`, with columns `b`, `[depth / 2][columns][2]`, and what `output` makes of them in
/// `c`, `[rows][columns]`: one block of attention.
///
/// The values of `a` beyond the rows of `b` are left out; rows and columns of `c` beyond those wanted stay. `later` is what
/// will be read soon, to be fetched meanwhile.
pub fn fixed_matmul(shape: Shape<'_>, a: &[i16], b: &[i16], output: Output<'_>, later: &[i16], c: &mut [f32]) {
    let _ = later;
    shape.check(b, &output);
    let Shape { rows, depth, columns, wanted } = shape;
    for &i in rows {
        for n in 0..wanted {
            let product = |k: usize| i32::from(a[i * depth + k]) * i32::from(b[(k / 2 * columns + n) * 2 + k % 2]);
            let product = (0..b.len() / columns).map(product).fold(0, i32::wrapping_add) as f32;
            let c = &mut c[i * columns + n];
            *c = match output {
                Output::Scores { rows, columns, biases } => product.mul_add(rows[i] * columns[n], biases[n]),
                Output::Sums(steps) => product.mul_add(steps[i].add / ONE, *c * steps[i].keep),
            };
        }
    }
}
