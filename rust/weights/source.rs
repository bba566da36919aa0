//! The blocks of ggml's quantised types as they lie in a file, and what packing takes from them.
//!
//! Everything here is plain loops over arrays of a fixed size, which the compiler turns into vector instructions; closures
//! that make arrays (`array::from_fn`, `map`) it often leaves as calls.

use crate::kernels::layout::{self, Layout, GROUP};
use bytemuck::{Pod, Zeroable};

/// A quantised type whose blocks can be taken apart group by group.
pub trait Source: Layout {
    /// A block, as it lies in a file.
    type Block: Pod;
    /// Groups of 32 weights in a block.
    const GROUPS: usize;

    /// The stored quants of group `group`, in the order of their columns.
    fn quants(block: &Self::Block, group: usize) -> [u8; GROUP];

    /// The f16 scale of the block.
    fn scale(block: &Self::Block) -> Half;

    /// The f16 scale of its minima, negated where ggml subtracts them.
    fn minimum(_: &Self::Block) -> Half {
        [0; 2]
    }

    /// The factors of the scale and those of the minimum, one for each sub-group.
    fn factors(_: &Self::Block) -> [[u8; 16]; 2] {
        [[0; 16]; 2]
    }
}

/// The bytes of an f16, little endian.
pub type Half = [u8; 2];

/// `-x`.
fn negative([low, high]: Half) -> Half {
    [low, high ^ 0x80]
}

/// 32 quants of four bits: the low halves of 16 bytes, then the high ones.
#[inline(always)]
fn nibbles(bytes: &[u8; 16]) -> [u8; GROUP] {
    let mut quants = [0; GROUP];
    for (i, byte) in bytes.iter().enumerate() {
        quants[i] = byte & 15;
        quants[i + 16] = byte >> 4;
    }
    quants
}

/// [`nibbles`] with a fifth bit each.
#[inline(always)]
fn five_bits(low: &[u8; 16], high: &[u8; 4]) -> [u8; GROUP] {
    let mut quants = nibbles(low);
    for (quants, byte) in quants.as_chunks_mut::<8>().0.iter_mut().zip(high) {
        for (i, quant) in quants.iter_mut().enumerate() {
            *quant |= (byte >> i & 1) << 4;
        }
    }
    quants
}

/// Bits `from..from + count` of 32 bytes, shifted to `to`.
#[inline(always)]
fn bits(bytes: &[u8; GROUP], from: usize, count: usize, to: usize) -> [u8; GROUP] {
    let mut quants = [0; GROUP];
    for (quant, byte) in quants.iter_mut().zip(bytes) {
        *quant = (byte >> from & ((1 << count) - 1)) << to;
    }
    quants
}

#[inline(always)]
fn join(mut a: [u8; GROUP], b: [u8; GROUP]) -> [u8; GROUP] {
    for (a, b) in a.iter_mut().zip(b) {
        *a |= b;
    }
    a
}

/// The 6-bit factors and minimum factors of Q4_K and Q5_K.
fn k_factors(packed: &[u8; 12]) -> [[u8; 16]; 2] {
    let [mut factors, mut minimum_factors] = [[0; 16]; 2];
    for i in 0..4 {
        factors[i] = packed[i] & 63;
        minimum_factors[i] = packed[i + 4] & 63;
        factors[i + 4] = packed[i + 8] & 15 | packed[i] >> 6 << 4;
        minimum_factors[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
    }
    [factors, minimum_factors]
}

/// Block types with their fields in the order of the file, and how a [`Source`] reads them.
macro_rules! sources {
    ($($layout:ident, $block:ident { $($field:ident: [u8; $bytes:literal]),* }, $groups:literal, { $($body:tt)* })*) => {
        $(
            #[doc = concat!("A block of [`layout::", stringify!($layout), "`].")]
            #[allow(non_camel_case_types)]
            #[derive(Clone, Copy, Pod, Zeroable)]
            #[repr(C)]
            pub struct $block { $($field: [u8; $bytes]),* }

            impl Source for layout::$layout {
                type Block = $block;
                const GROUPS: usize = $groups;
                $($body)*
            }
        )*
    };
}

sources! {
    Q4_0, BlockQ4_0 { scale: [u8; 2], quants: [u8; 16] }, 1, {
        #[inline(always)]
        fn quants(block: &Self::Block, _: usize) -> [u8; GROUP] { nibbles(&block.quants) }
        fn scale(block: &Self::Block) -> Half { block.scale }
    }
    Q4_1, BlockQ4_1 { scale: [u8; 2], minimum: [u8; 2], quants: [u8; 16] }, 1, {
        #[inline(always)]
        fn quants(block: &Self::Block, _: usize) -> [u8; GROUP] { nibbles(&block.quants) }
        fn scale(block: &Self::Block) -> Half { block.scale }
        fn minimum(block: &Self::Block) -> Half { block.minimum }
    }
    Q5_0, BlockQ5_0 { scale: [u8; 2], high: [u8; 4], quants: [u8; 16] }, 1, {
        #[inline(always)]
        fn quants(block: &Self::Block, _: usize) -> [u8; GROUP] { five_bits(&block.quants, &block.high) }
        fn scale(block: &Self::Block) -> Half { block.scale }
    }
    Q5_1, BlockQ5_1 { scale: [u8; 2], minimum: [u8; 2], high: [u8; 4], quants: [u8; 16] }, 1, {
        #[inline(always)]
        fn quants(block: &Self::Block, _: usize) -> [u8; GROUP] { five_bits(&block.quants, &block.high) }
        fn scale(block: &Self::Block) -> Half { block.scale }
        fn minimum(block: &Self::Block) -> Half { block.minimum }
    }
    Q8_0, BlockQ8_0 { scale: [u8; 2], quants: [u8; 32] }, 1, {
        #[inline(always)]
        fn quants(block: &Self::Block, _: usize) -> [u8; GROUP] {
            let mut quants = block.quants;
            for quant in &mut quants {
                *quant ^= 0x80;
            }
            quants
        }
        fn scale(block: &Self::Block) -> Half { block.scale }
    }
    IQ4_NL, BlockIQ4_NL { scale: [u8; 2], quants: [u8; 16] }, 1, {
        #[inline(always)]
        fn quants(block: &Self::Block, _: usize) -> [u8; GROUP] { nibbles(&block.quants) }
        fn scale(block: &Self::Block) -> Half { block.scale }
    }
    Q2_K, BlockQ2_K { factors: [u8; 16], quants: [u8; 64], scale: [u8; 2], minimum: [u8; 2] }, 8, {
        #[inline(always)]
        fn quants(block: &Self::Block, group: usize) -> [u8; GROUP] {
            bits(&block.quants.as_chunks().0[group / 4], 2 * (group % 4), 2, 0)
        }
        fn scale(block: &Self::Block) -> Half { block.scale }
        fn minimum(block: &Self::Block) -> Half { negative(block.minimum) }
        fn factors(block: &Self::Block) -> [[u8; 16]; 2] {
            let mut factors = [block.factors; 2];
            for byte in &mut factors[0] {
                *byte &= 15;
            }
            for byte in &mut factors[1] {
                *byte >>= 4;
            }
            factors
        }
    }
    Q3_K, BlockQ3_K { high: [u8; 32], quants: [u8; 64], factors: [u8; 12], scale: [u8; 2] }, 8, {
        #[inline(always)]
        fn quants(block: &Self::Block, group: usize) -> [u8; GROUP] {
            let low = bits(&block.quants.as_chunks().0[group / 4], 2 * (group % 4), 2, 0);
            join(low, bits(&block.high, group, 1, 2))
        }
        fn scale(block: &Self::Block) -> Half { block.scale }
        fn factors(block: &Self::Block) -> [[u8; 16]; 2] {
            let mut factors = [0u8; 16];
            for (i, factor) in factors.iter_mut().enumerate() {
                let low = block.factors[i % 8] >> (4 * (i / 8)) & 15;
                let high = block.factors[8 + i % 4] >> (2 * (i / 4)) & 3;
                *factor = (low | high << 4).wrapping_sub(32);
            }
            [factors, [0; 16]]
        }
    }
    Q4_K, BlockQ4_K { scale: [u8; 2], minimum: [u8; 2], factors: [u8; 12], quants: [u8; 128] }, 8, {
        #[inline(always)]
        fn quants(block: &Self::Block, group: usize) -> [u8; GROUP] {
            bits(&block.quants.as_chunks().0[group / 2], 4 * (group % 2), 4, 0)
        }
        fn scale(block: &Self::Block) -> Half { block.scale }
        fn minimum(block: &Self::Block) -> Half { negative(block.minimum) }
        fn factors(block: &Self::Block) -> [[u8; 16]; 2] { k_factors(&block.factors) }
    }
    Q5_K, BlockQ5_K {
        scale: [u8; 2], minimum: [u8; 2], factors: [u8; 12], high: [u8; 32], quants: [u8; 128]
    }, 8, {
        #[inline(always)]
        fn quants(block: &Self::Block, group: usize) -> [u8; GROUP] {
            let low = bits(&block.quants.as_chunks().0[group / 2], 4 * (group % 2), 4, 0);
            join(low, bits(&block.high, group, 1, 4))
        }
        fn scale(block: &Self::Block) -> Half { block.scale }
        fn minimum(block: &Self::Block) -> Half { negative(block.minimum) }
        fn factors(block: &Self::Block) -> [[u8; 16]; 2] { k_factors(&block.factors) }
    }
    Q6_K, BlockQ6_K { quants: [u8; 128], high: [u8; 64], factors: [u8; 16], scale: [u8; 2] }, 8, {
        #[inline(always)]
        fn quants(block: &Self::Block, group: usize) -> [u8; GROUP] {
            let (half, part) = (group / 4, group % 4);
            let low = bits(&block.quants.as_chunks().0[2 * half + part % 2], 4 * (part / 2), 4, 0);
            join(low, bits(&block.high.as_chunks().0[half], 2 * part, 2, 4))
        }
        fn scale(block: &Self::Block) -> Half { block.scale }
        fn factors(block: &Self::Block) -> [[u8; 16]; 2] { [block.factors, [0; 16]] }
    }
    IQ4_XS, BlockIQ4_XS { scale: [u8; 2], high: [u8; 2], low: [u8; 4], quants: [u8; 128] }, 8, {
        #[inline(always)]
        fn quants(block: &Self::Block, group: usize) -> [u8; GROUP] { nibbles(&block.quants.as_chunks().0[group]) }
        fn scale(block: &Self::Block) -> Half { block.scale }
        fn factors(block: &Self::Block) -> [[u8; 16]; 2] {
            let high = u16::from_le_bytes(block.high);
            let mut factors = [0u8; 16];
            for (i, factor) in factors[..8].iter_mut().enumerate() {
                let low = block.low[i / 2] >> (4 * (i % 2)) & 15;
                *factor = (low | ((high >> (2 * i) & 3) as u8) << 4).wrapping_sub(32);
            }
            [factors, [0; 16]]
        }
    }
}
