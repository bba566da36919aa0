//! Every instruction set against the specification, bit for bit, and the specification against f64 arithmetic.

use crate::gguf::types::GgmlType;
use crate::kernels::layout::*;
use crate::kernels::scalar;
use crate::kernels::table::Kernels;
use half::f16;

/// A small generator (xorshift64*) so that inputs are the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// What the quants of a test tile look like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    Random,
    /// All quants and activations at their largest: sums in 16 bits saturate if a kernel is careless.
    Largest,
    /// All quants zero, which is the most negative weight of types with an offset.
    Smallest,
}

/// Tiles that a test multiplies in one call.
const TILES: usize = 3;

struct TileBytes {
    dtype: GgmlType,
    groups: usize,
    quants: Vec<u8>,
    scales: Vec<u8>,
}

impl TileBytes {
    fn new(dtype: GgmlType, groups: usize, fill: Fill, random: &mut Random) -> Self {
        let mut byte = || match fill {
            Fill::Random => random.next() as u8,
            Fill::Largest => 0xFF,
            Fill::Smallest => 0,
        };
        let quants: Vec<u8> = match dtype.is_float() {
            false => (0..TILES * groups * quant_bytes(dtype)).map(|_| byte()).collect(),
            true => (0..TILES * groups * GROUP_QUANTS).flat_map(|_| float_bytes(dtype, random.float())).collect(),
        };
        // Sane f16 scales in every position: super-block factors are then arbitrary i8 values as well.
        let scales = (0..TILES * scale_bytes(dtype, groups) / 2)
            .flat_map(|_| f16::from_f32(random.float() * 0.1).to_le_bytes())
            .collect();
        Self { dtype, groups, quants, scales }
    }

    fn tiles(&self) -> Tiles<'_> {
        let Self { dtype, groups, .. } = *self;
        Tiles { dtype, count: TILES, groups, quants: &self.quants, scales: &self.scales }
    }

    /// Weight of row `r` and column `c` in f64, from the description of the layout.
    fn weight(&self, r: usize, c: usize) -> f64 {
        fn weight<L: Layout>(t: &TileBytes, r: usize, c: usize) -> f64 {
            let group = &t.quants[c / GROUP * 64 * L::BITS..];
            let (scale, minimum) = scalar::row_weights::<L>(&t.scales, c / GROUP, c % GROUP, r);
            let offset = L::OFFSET_BITS.map_or(0, |bits| 1 << bits);
            let quant = i32::from(scalar::unpack_one::<L>(group, scalar::lane(r, c % GROUP))) - offset;
            f64::from(scale) * f64::from(quant) + f64::from(minimum)
        }
        let at = |bytes: usize| &self.quants[(TILE * c + r) * bytes..][..bytes];
        match self.dtype {
            GgmlType::F32 => f64::from(f32::from_le_bytes(at(4).try_into().unwrap())),
            GgmlType::F16 => f16::from_le_bytes(at(2).try_into().unwrap()).to_f64(),
            GgmlType::BF16 => half::bf16::from_le_bytes(at(2).try_into().unwrap()).to_f64(),
            dtype => with_layout!(dtype, weight::<_>(self, r, c)),
        }
    }
}

fn float_bytes(dtype: GgmlType, value: f32) -> Vec<u8> {
    match dtype {
        GgmlType::F32 => value.to_le_bytes().to_vec(),
        GgmlType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        _ => half::bf16::from_f32(value).to_le_bytes().to_vec(),
    }
}

struct RowBytes {
    count: usize,
    groups: usize,
    values: Vec<f32>,
    quantised: Vec<ActivationGroup>,
}

impl RowBytes {
    fn new(count: usize, groups: usize, fill: Fill, random: &mut Random) -> Self {
        let values: Vec<f32> = (0..count * groups * GROUP)
            .map(|i| match fill {
                Fill::Random => random.float() * 3.0,
                _ if (i / GROUP).is_multiple_of(2) => 1.0,
                _ => -1.0,
            })
            .collect();
        let n = interleaved(count);
        let quantised = vec![ActivationGroup::default(); count.next_multiple_of(n) * groups];
        let mut rows = Self { count, groups, values, quantised };
        for (i, values) in rows.values.chunks(GROUP).enumerate() {
            let at = rows.rows().at(i / groups, i % groups);
            quantize(&Kernels::scalar(), values, &mut rows.quantised[at..at + 1]);
        }
        rows
    }

    fn rows(&self) -> Rows<'_> {
        Rows {
            count: self.count,
            groups: self.groups,
            interleaved: interleaved(self.count),
            values: &self.values,
            quantised: &self.quantised,
        }
    }
}

fn bits(values: &[[f32; TILE]]) -> Vec<u32> {
    values.iter().flatten().map(|v| v.to_bits()).collect()
}

#[test]
fn matmul_has_the_bits_of_the_specification_for_every_type_and_row_count() {
    let mut random = Random::new(1);
    let mut compared = 0;
    for kernels in Kernels::available() {
        for dtype in GgmlType::ALL {
            let step = dtype.block_len().div_ceil(GROUP);
            // One, two and three blocks, and one, two and three panels of the kernels that have them.
            for groups in [step, 2 * step, 3 * step, 24, 40, 56] {
                for fill in [Fill::Random, Fill::Largest, Fill::Smallest] {
                    let tile = TileBytes::new(dtype, groups, fill, &mut random);
                    for count in (1..=33).chain([64, 257]) {
                        if count > 17 && (groups != 40 || fill != Fill::Random) {
                            continue;
                        }
                        let rows = RowBytes::new(count, groups, fill, &mut random);
                        let mut expected = vec![[0.0; TILE]; TILES * count];
                        scalar::matmul(&tile.tiles(), &rows.rows(), &mut expected);
                        let mut got = vec![[f32::NAN; TILE]; TILES * count];
                        kernels.matmul(&tile.tiles(), &rows.rows(), &mut got);
                        assert_eq!(bits(&got), bits(&expected), "{kernels:?} {dtype:?} {groups} {fill:?} {count}");
                        compared += got.len() * TILE;
                    }
                }
            }
        }
    }
    assert!(compared > 1_000_000);
}

#[test]
fn a_row_has_the_same_bits_whatever_else_is_in_the_call() {
    let mut random = Random::new(2);
    for kernels in Kernels::available() {
        for dtype in GgmlType::ALL {
            let tile = TileBytes::new(dtype, 24, Fill::Random, &mut random);
            let rows = RowBytes::new(40, 24, Fill::Random, &mut random);
            let mut all = vec![[0.0; TILE]; TILES * 40];
            kernels.matmul(&tile.tiles(), &rows.rows(), &mut all);
            for count in 1..=17 {
                for first in [0, 16] {
                    let mut some = vec![[0.0; TILE]; TILES * count];
                    kernels.matmul(&tile.tiles(), &rows.rows().slice(first, count), &mut some);
                    for (some, all) in some.chunks(count).zip(all.chunks(40)) {
                        assert_eq!(bits(some), bits(&all[first..][..count]), "{kernels:?} {dtype:?} {first} {count}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_specification_is_the_matrix_product() {
    let mut random = Random::new(3);
    for dtype in GgmlType::ALL {
        let tile = TileBytes::new(dtype, 16, Fill::Random, &mut random);
        let rows = RowBytes::new(3, 16, Fill::Random, &mut random);
        let mut got = vec![[0.0; TILE]; TILES * 3];
        scalar::matmul(&tile.tiles(), &rows.rows(), &mut got);
        for (m, got) in got[..3].iter().enumerate() {
            for (r, &got) in got.iter().enumerate() {
                let (mut sum, mut magnitude) = (0.0, 0.0);
                for c in 0..16 * GROUP {
                    let at = m * 16 * GROUP + c;
                    let x = match dtype.is_float() {
                        true => f64::from(rows.values[at]),
                        false => {
                            let group = &rows.quantised[rows.rows().at(m, c / GROUP)];
                            f64::from(group.quants[c % GROUP]) * f64::from(group.scale)
                        }
                    };
                    sum += tile.weight(r, c) * x;
                    magnitude += (tile.weight(r, c) * x).abs();
                }
                // Each of the at most 512 additions rounds to within half a unit of f32.
                let bound = magnitude * 512.0 * f64::from(f32::EPSILON) / 2.0 + 1e-30;
                assert!((f64::from(got) - sum).abs() <= bound, "{dtype:?} row {r}: {got} is not {sum}");
            }
        }
    }
}

#[test]
fn packing_is_undone_by_unpacking() {
    fn check<L: Layout>(random: &mut Random) {
        let quants: [u8; GROUP_QUANTS] = std::array::from_fn(|_| random.next() as u8 & ((1u16 << L::BITS) - 1) as u8);
        let mut packed = vec![0xAA; 64 * L::BITS];
        pack_group::<L>(bytemuck::cast_ref(&quants), &mut packed);
        let expected = if L::CODEBOOK { quants.map(|q| IQ4_VALUES[usize::from(q)]) } else { quants };
        assert!(scalar::unpack_group::<L>(&packed) == expected, "{} bits", L::BITS);
    }
    let mut random = Random::new(4);
    for dtype in GgmlType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
        with_layout!(dtype, check::<_>(&mut random));
    }
}

/// Quantises whole groups.
pub fn quantize(kernels: &Kernels, values: &[f32], out: &mut [ActivationGroup]) {
    for (halves, out) in values.as_chunks::<TILE>().0.as_chunks::<2>().0.iter().zip(out) {
        kernels.quantize(halves.each_ref(), out);
    }
}

#[test]
fn an_instruction_set_is_chosen_by_name() {
    for kernels in Kernels::available() {
        let short = kernels.name().split('-').next().unwrap();
        assert_eq!(Kernels::by_name(short).unwrap().name(), kernels.name());
    }
    for name in ["scalar", "avx2", "avxvnni", "avx512", "amx"] {
        let refused = Kernels::by_name(name).err().map(|error| error.to_string());
        assert!(refused.is_none_or(|error| error.contains("not available on this CPU")), "{name}");
    }
    let error = Kernels::by_name("sse9").unwrap_err().to_string();
    assert!(error.contains("unknown") && error.contains("scalar"), "{error}");
}
