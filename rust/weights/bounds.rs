//! How large the rows of a quantised matrix are.

use crate::kernels::layout::{with_layout, Layout, Tile, GROUP_QUANTS, IQ4_VALUES, LINE, TILE};
use crate::kernels::scalar::row_weights;

/// For every row of a quantised tile: a number whose product with the norm of activations no kernel's dot product with
/// them exceeds.
///
/// The exact product is at most the norm of the weights times that of the activations (Cauchy and Schwarz). A kernel
/// rounds every product of a scale or minimum once, which adds at most a unit in the last place of each: of terms whose
/// norm is that of `|scale * quant| + |minimum|`.
///
/// Both norms follow from sums over the quants under one scale, which are whole numbers and so exact:
/// `sum (s q + m)^2 = s^2 sum q^2 + 2 s m sum q + n m^2`, and with minima no quant is negative, so that the absolute values of
/// all terms add up in the same way. What f64 rounds off here is no more than 2^-50 of the squared norm of the terms, so
/// 2^-25 of that norm: less than one of the roundings counted below.
pub fn bounds(tile: &Tile<'_>) -> [f32; TILE] {
    with_layout!(tile.dtype, of_layout::<_>(tile))
}

fn of_layout<L: Layout>(tile: &Tile<'_>) -> [f32; TILE] {
    let columns = L::SCALE_COLUMNS as f64;
    let (mut exact, mut terms) = ([0.0; TILE], [0.0; TILE]);
    for (g, group) in tile.quants.chunks_exact(LINE * L::BITS).enumerate() {
        let lines = unpack::<L>(group);
        for (i, lines) in lines.chunks_exact(L::SCALE_COLUMNS / 4).enumerate() {
            let Sums { quants, squares } = sums::<L>(lines);
            for r in 0..TILE {
                let (scale, minimum) = row_weights::<L>(tile.scales, g, i * L::SCALE_COLUMNS, r);
                let (scale, minimum) = (f64::from(scale), f64::from(minimum));
                let own = scale * scale * f64::from(squares[r]) + columns * minimum * minimum;
                let mixed = 2.0 * scale * minimum * f64::from(quants[r]);
                exact[r] += own + mixed;
                terms[r] += own + mixed.abs();
            }
        }
    }
    let roundings = (8 * tile.groups + 8) as f64;
    let mut bounds = [0.0; TILE];
    for r in 0..TILE {
        // Not `max`, which would take 0 for NaN.
        let exact = if exact[r] < 0.0 { 0.0 } else { exact[r] };
        bounds[r] = (1.001 * (exact.sqrt() + roundings * f64::from(f32::EPSILON) * terms[r].sqrt())) as f32;
    }
    bounds
}

/// Sums over the columns of a tile that share a scale, for each row.
struct Sums {
    quants: [i32; TILE],
    squares: [i32; TILE],
}

/// Of quants less their offset.
fn sums<L: Layout>(lines: &[[u8; LINE]]) -> Sums {
    let offset = L::OFFSET_BITS.map_or(0, |bits| 1 << bits);
    let (mut quants, mut squares) = ([0i16; LINE], [0i32; LINE]);
    for line in lines {
        for i in 0..LINE {
            let quant = i16::from(line[i]) - offset;
            quants[i] += quant;
            squares[i] += i32::from(quant) * i32::from(quant);
        }
    }
    let mut sums = Sums { quants: [0; TILE], squares: [0; TILE] };
    for (r, (quants, squares)) in quants.as_chunks::<4>().0.iter().zip(squares.as_chunks::<4>().0).enumerate() {
        sums.quants[r] = quants.iter().copied().map(i32::from).sum();
        sums.squares[r] = squares.iter().sum();
    }
    sums
}

/// What [`pack_group`](crate::kernels::layout::pack_group) packed, line by line.
fn unpack<L: Layout>(group: &[u8]) -> [[u8; LINE]; GROUP_QUANTS / LINE] {
    let (planes, _) = group.as_chunks::<LINE>();
    let mut lines = [[0; LINE]; GROUP_QUANTS / LINE];
    let (low_bits, low_planes) = match L::BITS {
        2 | 3 => (2, 2),
        4..=6 => (4, 4),
        _ => (8, 8),
    };
    let high_bits = L::BITS - low_bits;
    for (j, line) in lines.iter_mut().enumerate() {
        add_bits(line, &planes[j * low_bits / 8], j * low_bits % 8, low_bits, 0);
        if high_bits > 0 {
            add_bits(line, &planes[low_planes + j * high_bits / 8], j * high_bits % 8, high_bits, low_bits);
        }
        if L::CODEBOOK {
            for quant in line {
                *quant = IQ4_VALUES[usize::from(*quant)];
            }
        }
    }
    lines
}

/// Adds bits `from..from + count` of every byte of `plane` as bits from `to` on.
#[inline(always)]
fn add_bits(line: &mut [u8; LINE], plane: &[u8; LINE], from: usize, count: usize, to: usize) {
    let mask = (0xFF >> (8 - count)) as u8;
    for (quant, byte) in line.iter_mut().zip(plane) {
        *quant |= (byte >> from & mask) << to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::types::GgmlType;
    use crate::kernels::layout::{quant_bytes, scale_bytes, ActivationGroup, Rows, Tiles, GROUP};
    use crate::kernels::scalar::{lane, unpack_one};
    use crate::kernels::table::Kernels;
    use crate::kernels::tests::Random;
    use half::f16;

    const GROUPS: usize = 16;

    fn quantised_types() -> impl Iterator<Item = GgmlType> {
        GgmlType::ALL.into_iter().filter(|dtype| !dtype.is_float())
    }

    /// Quants and scales of a tile of `dtype`.
    fn bytes(dtype: GgmlType, random: &mut Random) -> [Vec<u8>; 2] {
        let quants = (0..GROUPS * quant_bytes(dtype)).map(|_| random.next() as u8).collect();
        let scale = |random: &mut Random| f16::from_f32(random.float() * 0.1).to_le_bytes();
        let scales = (0..scale_bytes(dtype, GROUPS) / 2).flat_map(|_| scale(random)).collect();
        [quants, scales]
    }

    /// Weight `c` of row `r`, as its product of scale and quant, and its minimum.
    fn weight<L: Layout>(tile: &Tile<'_>, r: usize, c: usize) -> [f64; 2] {
        let offset = L::OFFSET_BITS.map_or(0, |bits| 1 << bits);
        let (scale, minimum) = row_weights::<L>(tile.scales, c / GROUP, c % GROUP, r);
        let group = &tile.quants[c / GROUP * LINE * L::BITS..];
        let quant = i32::from(unpack_one::<L>(group, lane(r, c % GROUP))) - offset;
        [f64::from(scale) * f64::from(quant), f64::from(minimum)]
    }

    #[test]
    fn bounds_are_the_norms_and_a_little_more() {
        let mut random = Random::new(5);
        for dtype in quantised_types() {
            let [quants, scales] = bytes(dtype, &mut random);
            let tile = Tile { dtype, groups: GROUPS, quants: &quants, scales: &scales };
            for (r, bound) in bounds(&tile).into_iter().enumerate() {
                let weights = (0..GROUPS * GROUP).map(|c| with_layout!(dtype, weight::<_>(&tile, r, c)));
                let (exact, terms) = weights.fold((0.0, 0.0), |(exact, terms), [product, minimum]| {
                    (exact + (product + minimum).powi(2), terms + (product.abs() + minimum.abs()).powi(2))
                });
                let rounded = (8 * GROUPS + 8) as f64 * f64::from(f32::EPSILON) * f64::sqrt(terms);
                let ratio = f64::from(bound) / (f64::sqrt(exact) + rounded);
                assert!((1.0009..1.0011).contains(&ratio), "{dtype:?} row {r}: {ratio}");
            }
        }
    }

    /// Activations that point along row `r`, for which the bound is tightest.
    fn along(tile: &Tile<'_>, r: usize) -> Vec<ActivationGroup> {
        let weights = |g: usize| -> [f64; GROUP] {
            std::array::from_fn(|i| with_layout!(tile.dtype, weight::<_>(tile, r, g * GROUP + i)).iter().sum())
        };
        let group = |g: usize| {
            let weights = weights(g);
            let largest = weights.iter().fold(0.0, |largest: f64, weight| largest.max(weight.abs()));
            let quants = weights.map(|weight| (weight / largest * 127.0).round() as i8);
            let mut group = ActivationGroup { quants, ..ActivationGroup::default() };
            let half = |i: usize| quants[16 * i..16 * i + 16].iter().map(|&quant| i32::from(quant)).sum();
            group.describe((largest / 127.0) as f32, [half(0), half(1)]);
            group
        };
        (0..GROUPS).map(group).collect()
    }

    #[test]
    fn no_kernel_exceeds_a_bound_and_some_products_come_near() {
        let mut random = Random::new(6);
        for dtype in quantised_types() {
            let [quants, scales] = bytes(dtype, &mut random);
            let tile = Tile { dtype, groups: GROUPS, quants: &quants, scales: &scales };
            let tiles = Tiles { dtype, count: 1, groups: GROUPS, quants: &quants, scales: &scales };
            let bounds = bounds(&tile);
            for r in 0..TILE {
                let quantised = along(&tile, r);
                let square = |group: &ActivationGroup| {
                    let quants = group.quants.iter().map(|&quant| f64::from(quant).powi(2)).sum::<f64>();
                    f64::from(group.scale).powi(2) * quants
                };
                let norm = quantised.iter().map(square).sum::<f64>().sqrt();
                let rows = Rows { count: 1, groups: GROUPS, interleaved: 1, values: &[], quantised: &quantised };
                for kernels in Kernels::available() {
                    let mut out = [[0.0f32; TILE]];
                    kernels.matmul(&tiles, &rows, &mut out);
                    for (row, bound) in bounds.into_iter().enumerate() {
                        let share = f64::from(out[0][row].abs()) / (f64::from(bound) * norm);
                        assert!(share <= 1.0, "{kernels:?} {dtype:?} row {row}: {share}");
                        assert!(row != r || share > 0.99, "{kernels:?} {dtype:?} row {row}: {share}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_with_nan_or_infinite_scales_have_no_bound() {
        let dtype = GgmlType::Q4_1;
        let [quants, mut scales] = bytes(dtype, &mut Random::new(7));
        for (r, value) in [(1, f16::NAN), (2, f16::INFINITY)] {
            scales[2 * r..2 * r + 2].copy_from_slice(&value.to_le_bytes());
        }
        let bounds = bounds(&Tile { dtype, groups: GROUPS, quants: &quants, scales: &scales });
        assert!(bounds[0].is_finite() && !bounds[1].is_finite() && !bounds[2].is_finite());
    }
}
