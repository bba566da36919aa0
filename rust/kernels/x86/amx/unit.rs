//! The tile registers, and what goes in and comes out of them.

use super::ROWS_AT_ONCE;
use crate::kernels::layout::*;
use crate::kernels::x86::avx512::GroupWeights;
use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

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

/// The tile registers of this thread, in use until dropped: products of whole blocks in 0 to 2, with the rest of the
/// rows in 3 and 4. A function that makes one makes no other.
pub struct MatrixUnit {
    /// It stays on its thread.
    thread: PhantomData<*const ()>,
    /// Columns of a product.
    columns: usize,
    /// Rows beside whole blocks.
    rest: usize,
}

impl MatrixUnit {
    /// Shapes the registers for products over `columns` columns, with `rest` rows beside whole blocks.
    pub fn configured(columns: usize, rest: usize) -> Self {
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
        let shapes = [(ROWS_AT_ONCE, 64), (ROWS_AT_ONCE, columns), (columns / 4, 64), (rest, 64), (rest, columns)];
        for (i, (rows, bytes)) in shapes.into_iter().enumerate().filter(|(_, (rows, _))| *rows > 0) {
            configuration.rows[i] = rows as u8;
            configuration.row_bytes[i] = bytes as u16;
        }
        // SAFETY: `available` told that the instruction exists and may be used; the configuration is 64 bytes long and
        // shapes registers within palette 1's limits of 16 rows of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, preserves_flags, readonly)) };
        Self { thread: PhantomData, columns, rest }
    }

    /// Multiplies a group's quants with the first `M` of a block's groups of activations, 32 / `PARTS` columns at a
    /// time.
    ///
    /// # Panics
    /// If the registers have other shapes.
    #[inline(always)]
    pub fn multiply<const PARTS: usize, const M: usize>(
        &self,
        rows: &[ActivationGroup; ROWS_AT_ONCE],
        quants: &Quants,
        products: &mut Products,
    ) {
        assert!(self.columns == GROUP / PARTS && (M == ROWS_AT_ONCE || M == self.rest));
        for part in 0..PARTS {
            // SAFETY: the registers have the shapes that this unit gave them. The 32 / PARTS columns of 16 quants are
            // there, as are those of M groups of activations, a line each, and M rows of products fit.
            unsafe {
                let activations = rows.as_ptr().cast::<i8>().add(part * GROUP / PARTS);
                let quants = quants.as_ptr().cast::<i8>().add(part * GROUP_QUANTS / PARTS);
                let products = products.0[part].as_mut_ptr();
                if M == ROWS_AT_ONCE {
                    product!("tmm0", "tmm1", activations, quants, products);
                } else {
                    product!("tmm3", "tmm4", activations, quants, products);
                }
            }
        }
    }
}

impl Drop for MatrixUnit {
    fn drop(&mut self) {
        // SAFETY: as for `ldtilecfg`; nothing else on this thread uses the registers.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// A group's signed quants in lane order.
pub type Quants = [__m512i; 8];
/// Products of a block of rows with a sub-group.
#[repr(C, align(64))]
pub struct Products([[__m512i; ROWS_AT_ONCE]; 2]);

impl Products {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub fn zero() -> Self {
        Self([[_mm512_setzero_si512(); ROWS_AT_ONCE]; 2])
    }

    /// Scales the products of a group with the first `M` of a block's groups of activations and adds them to `acc`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    #[inline]
    pub fn add_to<const MINIMA: bool, const PARTS: usize, const M: usize>(
        &self,
        weights: &GroupWeights,
        rows: &[ActivationGroup; ROWS_AT_ONCE],
        acc: &mut [__m512; M],
    ) {
        for part in 0..PARTS {
            for (m, acc) in acc.iter_mut().enumerate() {
                let s = &rows[m];
                let sum = if PARTS == 1 { s.sum } else { s.sums[part] };
                let dot = _mm512_cvtepi32_ps(self.0[part][m]);
                let scale = _mm512_mul_ps(weights.scale[part], _mm512_set1_ps(s.scale));
                *acc = _mm512_fmadd_ps(dot, scale, *acc);
                if MINIMA {
                    *acc = _mm512_fmadd_ps(weights.minimum[part], _mm512_set1_ps(sum), *acc);
                }
            }
        }
    }
}
