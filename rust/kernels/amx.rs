//! AMX: sixteen activation rows times a group of a weight tile in one instruction.
//!
//! The integer products of a group are exact, so only the few float operations that scale and add them up decide the
//! bits; these are those of [`super::scalar::dot`], in the same order.
//!
//! Performance notes (one core of a Sapphire Rapids, data in cache):
//! - 128 rows: 280 to 310 billion multiply-adds a second for 4-bit and 8-bit types, `vpdpbusd` 190 to 220. That spends
//!   8 of 12 port slots for a row and group on the products, which here are another unit's work; 4 remain for scaling.
//! - For a group and 16 rows products alone take 9 ns, half of it the store of the result, and scaling alone takes 10.
//!   In any order the two take at least 20 together: a product 1, 2, 4 or 16 groups ahead, `tilezero` or zeros from
//!   memory, one set of registers or several made no difference.
//! - Storing takes as long for few rows as for 16, and unpacking to memory does not overlap with the wait for the
//!   weights: below [`BLOCK`] rows `vpdpbusd` is faster.
//! - Configuring the unit takes 70 ns, as long as a few groups of work; that is why a call takes several tiles.

use super::avx512::{self, GroupWeights, ScaleReader};
use super::layout::*;
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

pub use avx512::{blend, multiply_f16, quantize, rms_norm, rope, scale, screen, softmax_rows, swiglu, to_f16};

/// Rows of a tile register, and fewest for which the unit pays.
const BLOCK: usize = 16;
/// Most groups that are unpacked together: 12 KiB of quants, which stay in the first-level cache.
const PANEL: usize = 24;

/// Whether this CPU has AMX and the system lets the process use it; the first call asks for that.
pub fn available() -> bool {
    static ALLOWED: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        const TILES_AND_INT8: u32 = 1 << 24 | 1 << 25;
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_AND_INT8 == TILES_AND_INT8 && allow()
    });
    *ALLOWED
}

/// Asks Linux for the tile registers' state, which threads of the process do not have by default.
#[cfg(target_os = "linux")]
fn allow() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call reads its two numbers and changes what this process may do, and how large a stack its signal
    // handlers need; where one is too small it refuses.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn allow() -> bool {
    false
}

/// As [`super::scalar::dot`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn dot(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    if tiles.dtype.is_float() || rows.count < BLOCK {
        return avx512::dot(tiles, rows, out);
    }
    check_dot(tiles, rows, out);
    with_layout!(tiles.dtype, dot_quantised::<_>(tiles, rows, out));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn dot_quantised<L: Layout>(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    let count = rows.count;
    let whole = count / BLOCK * BLOCK;
    let unit = Unit::configured(L::SCALE_COLUMNS, count - whole);
    let mut panel = Panel::new();
    // Panels of one size, since a short one spends its time waiting for the first product.
    let size = tiles.groups.div_ceil(tiles.groups.div_ceil(PANEL));
    for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(count)) {
        out.fill([0.0; TILE]);
        let mut scales = ScaleReader::<L>::new(tile.scales);
        for first in (0..tile.groups).step_by(size) {
            panel.unpack::<L>(&tile, &mut scales, first, size.min(tile.groups - first));
            let (blocks, tail) = out.split_at_mut(whole);
            match (L::MINIMA, L::SCALE_COLUMNS) {
                (false, GROUP) => panel.multiply::<false, 1>(&unit, rows, first, blocks, tail),
                (true, GROUP) => panel.multiply::<true, 1>(&unit, rows, first, blocks, tail),
                (false, _) => panel.multiply::<false, 2>(&unit, rows, first, blocks, tail),
                (true, _) => panel.multiply::<true, 2>(&unit, rows, first, blocks, tail),
            }
        }
    }
}

/// The tile registers of this thread, in use until dropped: products of whole blocks in 0 to 2, with the rest of the
/// rows in 3 and 4.
struct Unit {
    /// Columns of a product.
    columns: usize,
    /// Rows beside whole blocks.
    rest: usize,
}

impl Unit {
    /// Shapes the registers for products over `columns` columns, with `rest` rows beside whole blocks.
    fn configured(columns: usize, rest: usize) -> Self {
        #[repr(C, align(64))]
        #[derive(Default)]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut configuration = Configuration { palette: 1, ..Default::default() };
        let shapes = [(BLOCK, 64), (BLOCK, columns), (columns / 4, 64), (rest, 64), (rest, columns)];
        for (i, (rows, bytes)) in shapes.into_iter().enumerate().filter(|(_, (rows, _))| *rows > 0) {
            configuration.rows[i] = rows as u8;
            configuration.row_bytes[i] = bytes as u16;
        }
        // SAFETY: `available` told that the instruction exists and may be used; the configuration is 64 bytes long and
        // shapes registers within palette 1's limits of 16 rows of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, preserves_flags, readonly)) };
        Self { columns, rest }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: as for `ldtilecfg`; nothing else on this thread uses the registers.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// A group's signed quants in lane order.
type Quants = [__m512i; 8];
/// Products of a block of rows with a sub-group.
#[repr(C, align(64))]
struct Products([[__m512i; BLOCK]; 2]);

/// Multiplies activations with quants into products, all with 64 bytes from row to row.
macro_rules! product {
    ($sums:tt, $rows:tt, $activations:ident, $quants:ident, $products:ident) => {
        asm!(
            concat!("tilezero ", $sums),
            concat!("tileloadd ", $rows, ", [{activations} + {line}]"),
            "tileloadd tmm2, [{quants} + {line}]",
            concat!("tdpbssd ", $sums, ", ", $rows, ", tmm2"),
            concat!("tilestored [{products} + {line}], ", $sums),
            activations = in(reg) $activations,
            quants = in(reg) $quants,
            products = in(reg) $products,
            line = in(reg) 64usize,
            out($sums) _,
            out($rows) _,
            out("tmm2") _,
            options(nostack, preserves_flags),
        )
    };
}

/// Some groups of a tile, unpacked.
struct Panel {
    count: usize,
    quants: [MaybeUninit<Quants>; PANEL],
    weights: [MaybeUninit<GroupWeights>; PANEL],
    products: [Products; 2],
}

impl Panel {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn new() -> Self {
        let products = [[_mm512_setzero_si512(); BLOCK]; 2];
        Self {
            count: 0,
            quants: [MaybeUninit::uninit(); PANEL],
            weights: [MaybeUninit::uninit(); PANEL],
            products: [Products(products), Products(products)],
        }
    }

    /// Takes up `count` groups of `tile` from `first` on; `scales` stands there.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn unpack<L: Layout>(&mut self, tile: &Tile<'_>, scales: &mut ScaleReader<'_, L>, first: usize, count: usize) {
        self.count = count;
        let offset = _mm512_set1_epi8(L::OFFSET_BITS.map_or(0, |bits| (1u8 << bits) as i8));
        for i in 0..self.count {
            let g = first + i;
            avx512::prefetch::<L>(tile, g);
            let quants = avx512::unpack::<L>(&tile.quants[g * 64 * L::BITS..][..64 * L::BITS]);
            self.quants[i].write(quants.map(|quants| _mm512_sub_epi8(quants, offset)));
            self.weights[i].write(scales.next(g));
        }
    }

    /// Adds the panel's part to the dot products of whole blocks of rows and of those after them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn multiply<const MINIMA: bool, const PARTS: usize>(
        &mut self,
        unit: &Unit,
        rows: &Rows<'_>,
        first: usize,
        blocks: &mut [[f32; TILE]],
        tail: &mut [[f32; TILE]],
    ) {
        self.multiply_blocks::<MINIMA, PARTS, BLOCK>(unit, rows, 0, first, blocks);
        match tail.len() {
            0 => {}
            1 => self.multiply_blocks::<MINIMA, PARTS, 1>(unit, rows, blocks.len(), first, tail),
            2 => self.multiply_blocks::<MINIMA, PARTS, 2>(unit, rows, blocks.len(), first, tail),
            3 => self.multiply_blocks::<MINIMA, PARTS, 3>(unit, rows, blocks.len(), first, tail),
            4 => self.multiply_blocks::<MINIMA, PARTS, 4>(unit, rows, blocks.len(), first, tail),
            5 => self.multiply_blocks::<MINIMA, PARTS, 5>(unit, rows, blocks.len(), first, tail),
            6 => self.multiply_blocks::<MINIMA, PARTS, 6>(unit, rows, blocks.len(), first, tail),
            7 => self.multiply_blocks::<MINIMA, PARTS, 7>(unit, rows, blocks.len(), first, tail),
            8 => self.multiply_blocks::<MINIMA, PARTS, 8>(unit, rows, blocks.len(), first, tail),
            9 => self.multiply_blocks::<MINIMA, PARTS, 9>(unit, rows, blocks.len(), first, tail),
            10 => self.multiply_blocks::<MINIMA, PARTS, 10>(unit, rows, blocks.len(), first, tail),
            11 => self.multiply_blocks::<MINIMA, PARTS, 11>(unit, rows, blocks.len(), first, tail),
            12 => self.multiply_blocks::<MINIMA, PARTS, 12>(unit, rows, blocks.len(), first, tail),
            13 => self.multiply_blocks::<MINIMA, PARTS, 13>(unit, rows, blocks.len(), first, tail),
            14 => self.multiply_blocks::<MINIMA, PARTS, 14>(unit, rows, blocks.len(), first, tail),
            15 => self.multiply_blocks::<MINIMA, PARTS, 15>(unit, rows, blocks.len(), first, tail),
            count => unreachable!("fewer than 16 rows are left, not {count}"),
        }
    }

    /// Blocks of `M` rows from row `start` on; the sums of a block stay in registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    fn multiply_blocks<const MINIMA: bool, const PARTS: usize, const M: usize>(
        &mut self,
        unit: &Unit,
        rows: &Rows<'_>,
        start: usize,
        first: usize,
        out: &mut [[f32; TILE]],
    ) {
        let (blocks, _) = out.as_chunks_mut::<M>();
        let count = blocks.len();
        assert!(rows.count >= start + M * count && first + self.count <= rows.groups);
        assert!(rows.interleaved == BLOCK && start.is_multiple_of(BLOCK));
        assert!(unit.columns == GROUP / PARTS && (M == BLOCK || M == unit.rest));
        if count > 0 {
            // SAFETY: of the groups by the assertions above and by `unpack`, of the unit by the last one.
            unsafe { self.start::<PARTS, M>(rows, rows.at(start, first), 0, 0) };
        }
        let mut buffer = 0;
        for (block, out) in blocks.iter_mut().enumerate() {
            let mut acc: [__m512; M] = std::array::from_fn(|m| avx512::load(&out[m]));
            for i in 0..self.count {
                let (next, group) = if i + 1 < self.count { (block, i + 1) } else { (block + 1, 0) };
                if next < count {
                    let at = rows.at(start + M * next, first + group);
                    // SAFETY: as above.
                    unsafe { self.start::<PARTS, M>(rows, at, group, 1 - buffer) };
                }
                // SAFETY: `unpack` wrote the first `count` groups.
                let weights = unsafe { self.weights[i].assume_init_ref() };
                let at = rows.at(start + M * block, first + i);
                for part in 0..PARTS {
                    for (m, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: `rows` holds all groups of its rows, as `check_dot` and the assertion
                        // above saw to.
                        let s = unsafe { rows.quantised.get_unchecked(at + m) };
                        let sum = if PARTS == 1 { s.sum } else { s.sums[part] };
                        let dot = _mm512_cvtepi32_ps(self.products[buffer].0[part][m]);
                        let scale = _mm512_mul_ps(weights.scale[part], _mm512_set1_ps(s.scale));
                        *acc = _mm512_fmadd_ps(dot, scale, *acc);
                        if MINIMA {
                            *acc = _mm512_fmadd_ps(weights.minimum[part], _mm512_set1_ps(sum), *acc);
                        }
                    }
                }
                buffer = 1 - buffer;
            }
            for (out, acc) in out.iter_mut().zip(acc) {
                avx512::store(out, acc);
            }
        }
    }

    /// Multiplies group `i` of the panel with the `M` groups of activations from `at` on.
    ///
    /// # Safety
    /// Group `i` must be unpacked and `rows` hold the groups of activations; a [`Unit`] must be configured for `32 /
    /// PARTS` columns and, unless `M` is a whole block, `M` more rows.
    #[inline(always)]
    unsafe fn start<const PARTS: usize, const M: usize>(
        &mut self,
        rows: &Rows<'_>,
        at: usize,
        i: usize,
        buffer: usize,
    ) {
        debug_assert!(i < self.count && at + M <= rows.quantised.len());
        for part in 0..PARTS {
            // SAFETY: the 32 / PARTS columns of 16 quants are there, as are those of M groups of activations, a line
            // each, and M rows of products fit.
            unsafe {
                let activations = rows.quantised.as_ptr().add(at).cast::<i8>().add(part * GROUP / PARTS);
                let quants = self.quants[i].as_ptr().cast::<i8>().add(part * GROUP_QUANTS / PARTS);
                let products = self.products[buffer].0[part].as_mut_ptr();
                if M == BLOCK {
                    product!("tmm0", "tmm1", activations, quants, products);
                } else {
                    product!("tmm3", "tmm4", activations, quants, products);
                }
            }
        }
    }
}
