//! AMX: sixteen activation rows times a group of a weight tile in one instruction.
//!
//! The integer products of a group are exact, so only the few float operations that scale and add them up decide the
//! bits; these are those of [`crate::kernels::scalar::matmul`], in the same order.
//!
//! Performance notes (one core of a Sapphire Rapids):
//! - 128 rows, data in cache: 340 to 380 billion multiply-adds a second for 4-bit and 8-bit types, `vpdpbusd` 190 to 210.
//!   That spends 8 of 12 port slots for a row and group on the products, which here are another unit's work; 4 remain
//!   for scaling.
//! - While the unit is in use, and for about half a microsecond after, 512-bit multiplications, multiply-adds and
//!   conversions run on one port instead of two (additions and integer operations keep both). So for a group and 16 rows
//!   products alone take 9 ns, half of it the store of the result, scaling alone 11, and the two together at least 21:
//!   in any order, with a product 1, 2, 4 or 16 groups ahead, `tilezero` or zeros from memory, one set of registers or
//!   several. Conversion by additions (products on top of 1.5 * 2^23, taken off again) gains 4 %, not worth its code.
//! - From memory a group of Q4_1 with 16 rows takes 29 ns in [`stream`], where unpacking and waiting for the weights
//!   overlap with products, `vpdpbusd` 40. Storing takes as long for few rows as for 16: with 8 rows both take 20.
//! - Configuring the unit takes 70 ns, as long as a few groups of work; that is why a call takes several tiles.

mod panel;
mod stream;
mod unit;

use crate::kernels::layout::*;
use crate::kernels::x86::avx512;
use panel::matmul_panels;
use std::arch::x86_64::*;
use stream::matmul_stream;
use unit::Quants;

pub use crate::kernels::x86::avx512::{
    cap_rows, cap_values, drop_low_rows, fixed_matmul, geglu, merge, quantize, rms_norm, rope, scale, screen,
    softmax_rows, swiglu, to_fixed,
};

/// Rows of a tile register.
const ROWS_AT_ONCE: usize = 16;
/// Fewest rows for which the unit pays.
const FEWEST: usize = 9;

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

/// As [`crate::kernels::scalar::matmul`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn matmul(tiles: &Tiles<'_>, rows: &Rows<'_>, out: &mut [[f32; TILE]]) {
    if tiles.dtype.is_float() || rows.count < FEWEST {
        return avx512::matmul(tiles, rows, out);
    }
    check_matmul(tiles, rows, out);
    match rows.count {
        ..=ROWS_AT_ONCE => with_layout!(tiles.dtype, matmul_stream::<_>(tiles, rows, out)),
        _ => with_layout!(tiles.dtype, matmul_panels::<_>(tiles, rows, out)),
    }
}

/// The quants of group `g`, signed, in lane order; prefetches later ones.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn signed_quants<L: Layout>(tile: &Tile<'_>, g: usize) -> Quants {
    let offset = _mm512_set1_epi8(L::OFFSET_BITS.map_or(0, |bits| (1u8 << bits) as i8));
    let packed = &tile.quants[g * 64 * L::BITS..][..64 * L::BITS];
    avx512::prefetch::<L>(packed);
    let quants = avx512::unpack::<L>(packed);
    quants.map(|quants| _mm512_sub_epi8(quants, offset))
}
