//! How weights and activations lie in memory while kernels read them.
//!
//! # Weights
//!
//! A matrix is cut into *tiles* of [`TILE`] = 16 output rows; a tile is cut along its columns into *groups* of
//! [`GROUP`] = 32. The 16 rows are the 16 f32 lanes of a 512-bit register, so a kernel never sums across lanes.
//!
//! A group of quantised weights is 512 unsigned quants in *lane order*: quant `64 * j + 4 * r + i` belongs to row `r`
//! and column `4 * j + i`, which is what eight 4-way byte dot products against broadcast activations want. They are
//! stored as bit planes of 64 bytes each ([`pack_group`]), so a group of `b`-bit quants takes `64 * b` bytes:
//!
//! - a *nibble* plane of 256 bytes: byte `64 * p + i` holds quant `128 * p + i` low and quant `128 * p + 64 + i` high;
//! - a *pair* plane of 128 bytes: bits `2 * k` of byte `64 * h + i` hold quant `64 * (4 * h + k) + i`;
//! - a *bit* plane of 64 bytes: bit `j` of byte `i` holds quant `64 * j + i`;
//! - 8-bit quants lie as they are.
//!
//! Scales stand apart, in the order in which kernels meet them, 16 rows side by side. Plain formats have f16 scales
//! (and minima) per group; super-block formats have f16 scales per 8 groups and i8 factors per 16 or 32 columns.
//! A weight is `scale * (quant - 2^OFFSET_BITS) + minimum`.
//!
//! Float weights lie column by column, 16 rows side by side.
//!
//! # Activations
//!
//! Rows are quantised once to int8 with one f32 scale per group; see [`ActivationGroup`] and [`Rows`].

use crate::gguf::types::GgmlType;

/// Output rows in a tile.
pub const TILE: usize = 16;
/// Columns in a group.
pub const GROUP: usize = 32;
/// Groups in a super-block of the K-quants.
pub const SUPER: usize = 8;
/// Quants in a group of a tile.
pub const GROUP_QUANTS: usize = TILE * GROUP;

/// The properties of a quantised layout, known at compile time so that each gets its own kernel.
pub trait Layout {
    /// Bits of a stored quant: 2, 3, 4, 5, 6 or 8.
    const BITS: usize;
    /// A stored quant stands for its value minus `2^OFFSET_BITS`; `None` for no offset.
    const OFFSET_BITS: Option<u32>;
    /// Whether there are minima.
    const MINIMA: bool = false;
    /// Whether scales come as f16 per super-block times i8 per sub-group.
    const SUPER_SCALES: bool = false;
    /// Columns under one scale: 16 or 32.
    const SCALE_COLUMNS: usize = 32;
    /// Whether quants are indices into [`IQ4_VALUES`].
    const CODEBOOK: bool = false;
}

/// The 16 values of IQ4_NL and IQ4_XS as ggml defines them, each plus 128.
pub const IQ4_VALUES: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($body:tt)* })*) => {
        $($(#[$doc])* #[allow(non_camel_case_types)] pub struct $name;
        impl Layout for $name { $($body)* })*
    };
}

layouts! {
    /// ggml's Q4_0.
    Q4_0 { const BITS: usize = 4; const OFFSET_BITS: Option<u32> = Some(3); }
    /// ggml's Q4_1.
    Q4_1 { const BITS: usize = 4; const OFFSET_BITS: Option<u32> = None; const MINIMA: bool = true; }
    /// ggml's Q5_0.
    Q5_0 { const BITS: usize = 5; const OFFSET_BITS: Option<u32> = Some(4); }
    /// ggml's Q5_1.
    Q5_1 { const BITS: usize = 5; const OFFSET_BITS: Option<u32> = None; const MINIMA: bool = true; }
    /// ggml's Q8_0, its signed quants plus 128.
    Q8_0 { const BITS: usize = 8; const OFFSET_BITS: Option<u32> = Some(7); }
    /// ggml's Q2_K.
    Q2_K {
        const BITS: usize = 2; const OFFSET_BITS: Option<u32> = None; const MINIMA: bool = true;
        const SUPER_SCALES: bool = true; const SCALE_COLUMNS: usize = 16;
    }
    /// ggml's Q3_K.
    Q3_K {
        const BITS: usize = 3; const OFFSET_BITS: Option<u32> = Some(2);
        const SUPER_SCALES: bool = true; const SCALE_COLUMNS: usize = 16;
    }
    /// ggml's Q4_K.
    Q4_K {
        const BITS: usize = 4; const OFFSET_BITS: Option<u32> = None; const MINIMA: bool = true;
        const SUPER_SCALES: bool = true;
    }
    /// ggml's Q5_K.
    Q5_K {
        const BITS: usize = 5; const OFFSET_BITS: Option<u32> = None; const MINIMA: bool = true;
        const SUPER_SCALES: bool = true;
    }
    /// ggml's Q6_K.
    Q6_K {
        const BITS: usize = 6; const OFFSET_BITS: Option<u32> = Some(5);
        const SUPER_SCALES: bool = true; const SCALE_COLUMNS: usize = 16;
    }
    /// ggml's IQ4_NL.
    IQ4_NL { const BITS: usize = 4; const OFFSET_BITS: Option<u32> = Some(7); const CODEBOOK: bool = true; }
    /// ggml's IQ4_XS.
    IQ4_XS {
        const BITS: usize = 4; const OFFSET_BITS: Option<u32> = Some(7); const CODEBOOK: bool = true;
        const SUPER_SCALES: bool = true;
    }
}

/// Calls `function::<L, ..>(args)` with the [`Layout`] `L` of a quantised `GgmlType`.
macro_rules! with_layout {
    ($dtype:expr, $function:ident::<_ $(, $generic:tt)*>($($arg:expr),*)) => {{
        use $crate::gguf::types::GgmlType as T;
        use $crate::kernels::layout as l;
        match $dtype {
            T::Q4_0 => $function::<l::Q4_0 $(, $generic)*>($($arg),*),
            T::Q4_1 => $function::<l::Q4_1 $(, $generic)*>($($arg),*),
            T::Q5_0 => $function::<l::Q5_0 $(, $generic)*>($($arg),*),
            T::Q5_1 => $function::<l::Q5_1 $(, $generic)*>($($arg),*),
            T::Q8_0 => $function::<l::Q8_0 $(, $generic)*>($($arg),*),
            T::Q2_K => $function::<l::Q2_K $(, $generic)*>($($arg),*),
            T::Q3_K => $function::<l::Q3_K $(, $generic)*>($($arg),*),
            T::Q4_K => $function::<l::Q4_K $(, $generic)*>($($arg),*),
            T::Q5_K => $function::<l::Q5_K $(, $generic)*>($($arg),*),
            T::Q6_K => $function::<l::Q6_K $(, $generic)*>($($arg),*),
            T::IQ4_NL => $function::<l::IQ4_NL $(, $generic)*>($($arg),*),
            T::IQ4_XS => $function::<l::IQ4_XS $(, $generic)*>($($arg),*),
            T::F32 | T::F16 | T::BF16 => unreachable!("float weights have no quantised layout"),
        }
    }};
}
pub(crate) use with_layout;

/// Groups of `columns` columns, the last of which may be padded.
pub fn groups(columns: usize) -> usize {
    columns.div_ceil(GROUP)
}

/// Bytes of a group's quants in a tile.
pub fn quant_bytes(dtype: GgmlType) -> usize {
    fn bytes<L: Layout>() -> usize {
        64 * L::BITS
    }
    match dtype {
        GgmlType::F32 => 4 * GROUP_QUANTS,
        GgmlType::F16 | GgmlType::BF16 => 2 * GROUP_QUANTS,
        quantised => with_layout!(quantised, bytes::<_>()),
    }
}

/// Bytes of the scales of `groups` groups in a tile.
pub fn scale_bytes(dtype: GgmlType, groups: usize) -> usize {
    fn bytes<L: Layout>(groups: usize) -> usize {
        let kinds = 1 + usize::from(L::MINIMA);
        if L::SUPER_SCALES {
            groups / SUPER * 2 * TILE * kinds + groups * (GROUP / L::SCALE_COLUMNS) * TILE * kinds
        } else {
            groups * 2 * TILE * kinds
        }
    }
    match dtype {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => 0,
        quantised => with_layout!(quantised, bytes::<_>(groups)),
    }
}

/// Bytes of a cache line: one byte for each of four columns of a tile's rows.
pub const LINE: usize = 64;

/// Stores 512 quants in lane order as the bit planes of a layout.
#[inline(always)]
pub fn pack_group<L: Layout>(quants: &[[u8; LINE]; GROUP_QUANTS / LINE], out: &mut [u8]) {
    assert_eq!(out.len(), LINE * L::BITS);
    let (lines, _) = out.as_chunks_mut();
    match L::BITS {
        2 => pack_pairs(quants, 0, lines),
        3 => {
            pack_pairs(quants, 0, lines);
            pack_bits(quants, 2, &mut lines[2]);
        }
        4 => pack_nibbles(quants, lines),
        5 => {
            pack_nibbles(quants, lines);
            pack_bits(quants, 4, &mut lines[4]);
        }
        6 => {
            pack_nibbles(quants, lines);
            pack_pairs(quants, 4, &mut lines[4..]);
        }
        _ => lines.copy_from_slice(quants),
    }
}

/// The nibble plane of the low bits.
#[inline(always)]
fn pack_nibbles(quants: &[[u8; LINE]], lines: &mut [[u8; LINE]]) {
    for (line, pair) in lines.iter_mut().zip(quants.chunks_exact(2)) {
        for (i, out) in line.iter_mut().enumerate() {
            *out = pair[0][i] & 15 | pair[1][i] << 4;
        }
    }
}

/// The pair plane of the bits from `from` on.
#[inline(always)]
fn pack_pairs(quants: &[[u8; LINE]], from: usize, lines: &mut [[u8; LINE]]) {
    for (line, four) in lines.iter_mut().zip(quants.chunks_exact(4)) {
        for (i, out) in line.iter_mut().enumerate() {
            let pair = |k: usize| (four[k][i] >> from & 3) << (2 * k);
            *out = pair(0) | pair(1) | pair(2) | pair(3);
        }
    }
}

/// The bit plane of bit `at`.
#[inline(always)]
fn pack_bits(quants: &[[u8; LINE]], at: usize, line: &mut [u8; LINE]) {
    *line = [0; LINE];
    for (j, quants) in quants.iter().enumerate() {
        for (out, quant) in line.iter_mut().zip(quants) {
            *out |= (quant >> at & 1) << j;
        }
    }
}

/// Sixteen rows of a packed matrix.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    /// Type of the weights.
    pub dtype: GgmlType,
    /// Groups of 32 columns.
    pub groups: usize,
    /// Quants, `groups * quant_bytes` bytes.
    pub quants: &'a [u8],
    /// Scales, `scale_bytes` bytes.
    pub scales: &'a [u8],
}

/// Consecutive tiles of a packed matrix.
#[derive(Clone, Copy)]
pub struct Tiles<'a> {
    /// Type of the weights.
    pub dtype: GgmlType,
    /// Number of tiles.
    pub count: usize,
    /// Groups of 32 columns.
    pub groups: usize,
    /// Quants, tile by tile.
    pub quants: &'a [u8],
    /// Scales, tile by tile.
    pub scales: &'a [u8],
}

impl<'a> Tiles<'a> {
    /// The tiles one by one.
    pub fn iter(&self) -> impl Iterator<Item = Tile<'a>> {
        let Self { dtype, groups, quants, scales, .. } = *self;
        let bytes = [groups * quant_bytes(dtype), scale_bytes(dtype, groups)];
        (0..self.count).map(move |i| Tile {
            dtype,
            groups,
            quants: &quants[i * bytes[0]..(i + 1) * bytes[0]],
            scales: &scales[i * bytes[1]..(i + 1) * bytes[1]],
        })
    }
}

/// Checks what kernels rely on when they multiply `tiles` with `rows`.
///
/// # Panics
/// If a slice does not have the length that its description implies.
pub fn check_matmul(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &[[f32; TILE]]) {
    assert!(rows.groups == tiles.groups && out.len() == tiles.count * rows.count);
    assert!(tiles.quants.len() == tiles.count * tiles.groups * quant_bytes(tiles.dtype));
    assert!(tiles.scales.len() == tiles.count * scale_bytes(tiles.dtype, tiles.groups));
    assert!(rows.interleaved >= interleaved(rows.count) && rows.interleaved.is_power_of_two());
    assert!(rows.quantised.len() >= rows.count.next_multiple_of(rows.interleaved) * rows.groups);
    assert!(!tiles.dtype.is_float() || rows.values.len() == rows.count * rows.groups * GROUP);
}

/// Rows of activations that lie interleaved, group by group; a power of two.
pub const INTERLEAVED: usize = 16;

/// 32 quantised activations of a row, `x = scale * quant`, and what a kernel needs to know about them: a cache line.
///
/// The sums serve weights with an offset or a minimum, whose part of the dot product is a multiple of the sum of
/// the activations. They are kept per 16 columns (for scales per 16) and per 32.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Zeroable)]
pub struct ActivationGroup {
    /// Quants in -127..=127.
    pub quants: [i8; GROUP],
    /// Scale of the quants.
    pub scale: f32,
    /// Minus the sum of the quants.
    pub negative_sum: i32,
    /// `scale` times the sum of the quants.
    pub sum: f32,
    /// Fills the line.
    pub reserved: u32,
    /// Minus the sum of each half.
    pub negative_sums: [i32; 2],
    /// `scale` times the sum of each half.
    pub sums: [f32; 2],
}

impl ActivationGroup {
    /// Sets all but the quants, whose halves have the sums `sums`.
    #[inline(always)]
    pub fn describe(&mut self, scale: f32, sums: [i32; 2]) {
        let sum = sums[0] + sums[1];
        self.scale = scale;
        self.negative_sum = -sum;
        self.sum = scale * sum as f32;
        self.negative_sums = [-sums[0], -sums[1]];
        self.sums = [scale * sums[0] as f32, scale * sums[1] as f32];
    }
}

/// Activation rows as kernels read them.
///
/// The groups of [`INTERLEAVED`] rows (fewer if there are not so many) alternate, so that a kernel that multiplies
/// these rows with a group of weights reads one piece of memory, and what follows for the next group.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Number of rows.
    pub count: usize,
    /// Groups of 32 columns in a row.
    pub groups: usize,
    /// Rows that alternate: see [`interleaved`].
    pub interleaved: usize,
    /// The values row by row, for float weights; may be empty when all weights are quantised.
    pub values: &'a [f32],
    /// Quantised groups: see [`Rows::at`].
    pub quantised: &'a [ActivationGroup],
}

/// How many rows alternate if there are `rows` in all.
pub fn interleaved(rows: usize) -> usize {
    rows.next_power_of_two().min(INTERLEAVED)
}

/// Where group `g` of row `m` lies among rows of `groups` groups, `n` of which alternate.
#[inline(always)]
pub fn interleaved_at(m: usize, g: usize, groups: usize, n: usize) -> usize {
    (m / n * groups + g) * n + m % n
}

impl<'a> Rows<'a> {
    /// Index of group `g` of row `m`; the rows of an interleaved set follow each other.
    #[inline(always)]
    pub fn at(&self, m: usize, g: usize) -> usize {
        interleaved_at(m, g, self.groups, self.interleaved)
    }

    /// Group after group of row `m`, each followed by those of the rows after it in its interleaved set. It does not end
    /// with the set, but with what the groups are for.
    ///
    /// Performance note: an index computed anew for every group costs a division; with `vpdpbusd` that is a fifth of
    /// the time, with AVX2 nothing.
    #[inline(always)]
    pub fn groups_from(&self, m: usize) -> std::slice::Chunks<'a, ActivationGroup> {
        self.quantised[self.at(m, 0)..].chunks(self.interleaved)
    }

    /// `count` rows from `first` on, which begins a set of interleaved rows.
    pub fn slice(&self, first: usize, count: usize) -> Rows<'a> {
        assert!(first.is_multiple_of(self.interleaved) && first + count <= self.count);
        let columns = self.groups * GROUP;
        Rows {
            count,
            values: self.values.get(first * columns..(first + count) * columns).unwrap_or(&[]),
            quantised: &self.quantised[first * self.groups..],
            ..*self
        }
    }
}
