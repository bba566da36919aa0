//! The specification of packing, in plain loops over one quant at a time.

use crate::gguf::types::GgmlType;
use crate::kernels::layout::{with_layout, Layout, GROUP, GROUP_QUANTS, TILE};
use crate::kernels::scalar::lane;
use half::f16;

/// What [`super::pack_tile`] does.
pub fn pack_tile(dtype: GgmlType, rows: &[&[u8]], quants: &mut [u8], scales: &mut [u8]) {
    match dtype.is_float() {
        true => pack_floats(dtype, rows, quants),
        false => with_layout!(dtype, pack_quantised::<_>(dtype, rows, quants, scales)),
    }
}

/// One tile of a quantised matrix: `source` holds its rows (fewer than 16 in the last tile).
fn pack_quantised<L: Layout>(dtype: GgmlType, source: &[&[u8]], quants: &mut [u8], scales: &mut [u8]) {
    let (block_len, block_bytes) = (dtype.block_len(), dtype.block_bytes());
    let groups_per_block = block_len / GROUP;
    let mut blocks = vec![Block::ZERO; TILE];
    let mut scales = scales.chunks_mut(1);
    let mut put = |bytes: &[u8]| {
        for &byte in bytes {
            scales.next().expect("scale_bytes counts all scales")[0] = byte;
        }
    };
    for (b, quants) in quants.chunks_mut(groups_per_block * 64 * L::BITS).enumerate() {
        for (block, row) in blocks.iter_mut().zip(source) {
            block.read(dtype, &row[b * block_bytes..][..block_bytes]);
        }
        let per_block_scales = |put: &mut dyn FnMut(&[u8])| {
            blocks.iter().for_each(|block| put(&block.scale.to_le_bytes()));
            if L::MINIMA {
                blocks.iter().for_each(|block| put(&block.minimum.to_le_bytes()));
            }
        };
        per_block_scales(&mut put);
        for (g, out) in quants.chunks_mut(64 * L::BITS).enumerate() {
            if L::SUPER_SCALES {
                let subs = GROUP / L::SCALE_COLUMNS;
                for sub in g * subs..(g + 1) * subs {
                    blocks.iter().for_each(|block| put(&[block.factors[sub] as u8]));
                }
                if L::MINIMA {
                    for sub in g * subs..(g + 1) * subs {
                        blocks.iter().for_each(|block| put(&[block.minimum_factors[sub] as u8]));
                    }
                }
            }
            let mut lanes = [0u8; GROUP_QUANTS];
            for (r, block) in blocks.iter().enumerate() {
                for (c, &quant) in block.quants[g * GROUP..(g + 1) * GROUP].iter().enumerate() {
                    lanes[lane(r, c)] = quant;
                }
            }
            pack_group(L::BITS, &lanes, out);
        }
    }
}

/// One tile of a float matrix: columns side by side, absent rows and columns zero.
fn pack_floats(dtype: GgmlType, source: &[&[u8]], quants: &mut [u8]) {
    let bytes = dtype.block_bytes();
    for (r, row) in source.iter().enumerate() {
        for (c, weight) in row.chunks_exact(bytes).enumerate() {
            quants[(TILE * c + r) * bytes..][..bytes].copy_from_slice(weight);
        }
    }
}

/// Stores 512 quants in lane order as the bit planes of a layout with `bits` bits.
fn pack_group(bits: usize, quants: &[u8; GROUP_QUANTS], out: &mut [u8]) {
    assert_eq!(out.len(), 64 * bits);
    out.fill(0);
    let (low, high) = match bits {
        8 => return out.copy_from_slice(quants),
        4..=6 => out.split_at_mut(256),
        _ => out.split_at_mut(128),
    };
    let low_bits = if bits >= 4 { 4 } else { 2 };
    for (i, &quant) in quants.iter().enumerate() {
        let (j, byte) = (i / 64, i % 64);
        if low_bits == 4 {
            low[64 * (j / 2) + byte] |= (quant & 15) << (4 * (j % 2));
        } else {
            low[64 * (j / 4) + byte] |= (quant & 3) << (2 * (j % 4));
        }
        let rest = quant >> low_bits;
        match bits - low_bits {
            0 => {}
            1 => high[byte] |= (rest & 1) << j,
            _ => high[64 * (j / 4) + byte] |= (rest & 3) << (2 * (j % 4)),
        }
    }
}

/// A block taken apart exactly: weight `i` is `scale * factor * (quant - offset) + minimum * minimum_factor`, with the
/// offset of the type and the factors of the weight's sub-group (1 for types without super-blocks).
#[derive(Clone)]
struct Block {
    /// Unsigned quants; codebook indices for the IQ4 types.
    quants: [u8; 256],
    /// Scale of the block.
    scale: f16,
    /// Scale of the minima, negated where ggml subtracts them.
    minimum: f16,
    /// Factors of the scale per sub-group of 16 or 32 weights.
    factors: [i8; 16],
    /// Factors of the minimum per sub-group.
    minimum_factors: [i8; 16],
}

impl Block {
    /// A block of zeros.
    const ZERO: Self =
        Self { quants: [0; 256], scale: f16::ZERO, minimum: f16::ZERO, factors: [0; 16], minimum_factors: [0; 16] };

    /// Takes apart the block of `dtype`, a quantised type, that `bytes` holds.
    fn read(&mut self, dtype: GgmlType, bytes: &[u8]) {
        use GgmlType::*;
        let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match dtype {
            Q4_0 | IQ4_NL => {
                self.scale = half(0);
                nibbles(&bytes[2..18], &mut self.quants[..32]);
            }
            Q4_1 => {
                (self.scale, self.minimum) = (half(0), half(2));
                nibbles(&bytes[4..20], &mut self.quants[..32]);
            }
            Q5_0 => {
                self.scale = half(0);
                nibbles(&bytes[6..22], &mut self.quants[..32]);
                fifth_bits(&bytes[2..6], &mut self.quants[..32]);
            }
            Q5_1 => {
                (self.scale, self.minimum) = (half(0), half(2));
                nibbles(&bytes[8..24], &mut self.quants[..32]);
                fifth_bits(&bytes[4..8], &mut self.quants[..32]);
            }
            Q8_0 => {
                self.scale = half(0);
                for (quant, &byte) in self.quants.iter_mut().zip(&bytes[2..34]) {
                    *quant = byte ^ 0x80;
                }
            }
            Q2_K => {
                (self.scale, self.minimum) = (half(80), -half(82));
                pairs(&bytes[16..80], &mut self.quants);
                for (i, &byte) in bytes[..16].iter().enumerate() {
                    self.factors[i] = (byte & 15) as i8;
                    self.minimum_factors[i] = (byte >> 4) as i8;
                }
            }
            Q3_K => {
                self.scale = half(108);
                pairs(&bytes[32..96], &mut self.quants);
                for (i, quant) in self.quants.iter_mut().enumerate() {
                    *quant |= (bytes[i % 32] >> (i / 32) & 1) << 2;
                }
                let packed = &bytes[96..108];
                for (i, factor) in self.factors.iter_mut().enumerate() {
                    let low = packed[i % 8] >> (4 * (i / 8)) & 15;
                    let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
                    *factor = (low | high << 4) as i8 - 32;
                }
            }
            Q4_K | Q5_K => {
                (self.scale, self.minimum) = (half(0), -half(2));
                self.read_k_factors(&bytes[4..16]);
                let (high, low) =
                    if dtype == Q4_K { (None, &bytes[16..]) } else { (Some(&bytes[16..48]), &bytes[48..]) };
                for (i, quant) in self.quants.iter_mut().enumerate() {
                    *quant = low[i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15;
                    *quant |= high.map_or(0, |high| (high[i % 32] >> (i / 32) & 1) << 4);
                }
            }
            Q6_K => {
                self.scale = half(208);
                for (i, quant) in self.quants.iter_mut().enumerate() {
                    let (h, part, l) = (i / 128, i / 32 % 4, i % 32);
                    let low = bytes[64 * h + 32 * (part % 2) + l] >> (4 * (part / 2)) & 15;
                    let high = bytes[128 + 32 * h + l] >> (2 * part) & 3;
                    *quant = low | high << 4;
                }
                for (factor, &byte) in self.factors.iter_mut().zip(&bytes[192..208]) {
                    *factor = byte as i8;
                }
            }
            IQ4_XS => {
                self.scale = half(0);
                let high = u16::from_le_bytes([bytes[2], bytes[3]]);
                for i in 0..8 {
                    let low = bytes[4 + i / 2] >> (4 * (i % 2)) & 15;
                    self.factors[i] = (low | ((high >> (2 * i) & 3) as u8) << 4) as i8 - 32;
                    nibbles(&bytes[8 + 16 * i..24 + 16 * i], &mut self.quants[32 * i..32 * i + 32]);
                }
            }
            F32 | F16 | BF16 => unreachable!("float types have no blocks"),
        }
    }

    /// The 6-bit factors and minimum factors of Q4_K and Q5_K.
    fn read_k_factors(&mut self, packed: &[u8]) {
        for i in 0..4 {
            self.factors[i] = (packed[i] & 63) as i8;
            self.minimum_factors[i] = (packed[i + 4] & 63) as i8;
            self.factors[i + 4] = (packed[i + 8] & 15 | packed[i] >> 6 << 4) as i8;
            self.minimum_factors[i + 4] = (packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4) as i8;
        }
    }
}

/// 16 bytes to 32 quants: low nibbles first, then high ones.
fn nibbles(bytes: &[u8], quants: &mut [u8]) {
    let (low, high) = quants.split_at_mut(16);
    for (i, &byte) in bytes.iter().enumerate() {
        low[i] = byte & 15;
        high[i] = byte >> 4;
    }
}

/// Adds the fifth bits of 32 quants.
fn fifth_bits(bytes: &[u8], quants: &mut [u8]) {
    for (i, quant) in quants.iter_mut().enumerate() {
        *quant |= (bytes[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// 64 bytes to 256 2-bit quants: each half of 32 bytes gives four runs of 32.
fn pairs(bytes: &[u8], quants: &mut [u8; 256]) {
    for (i, quant) in quants.iter_mut().enumerate() {
        *quant = bytes[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
    }
}
