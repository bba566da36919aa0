//! The tensor types of GGUF files, as ggml defines them: names, ids, and what the bytes of a block mean.

use half::f16;

/// A tensor type that can be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum GgmlType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

impl GgmlType {
    /// Every supported type, in the order in which error messages list them.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    /// The type with ggml's number `id`, if it is supported.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.id() == id)
    }

    /// ggml's number of the type.
    pub fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::BF16 => 30,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2_K => 10,
            Self::Q3_K => 11,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::IQ4_NL => 20,
            Self::IQ4_XS => 23,
        }
    }

    /// The name users know: `Q4_K`, `F16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
        }
    }

    /// Whether weights are plain floats, which are multiplied with float activations.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Weights in one block; a row holds whole blocks.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            _ => 256,
        }
    }

    /// Bytes in one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
        }
    }
}

/// A block taken apart exactly: weight `i` is `scale * factor * (quant - offset) + minimum * minimum_factor`, with the
/// offset of the type and the factors of the weight's sub-group (1 for types without super-blocks).
#[derive(Clone)]
pub struct Block {
    /// Unsigned quants; codebook indices for the IQ4 types.
    pub quants: [u8; 256],
    /// Scale of the block.
    pub scale: f16,
    /// Scale of the minima, negated where ggml subtracts them.
    pub minimum: f16,
    /// Factors of the scale per sub-group of 16 or 32 weights.
    pub factors: [i8; 16],
    /// Factors of the minimum per sub-group.
    pub minimum_factors: [i8; 16],
}

impl Block {
    /// A block of zeros.
    pub const ZERO: Self =
        Self { quants: [0; 256], scale: f16::ZERO, minimum: f16::ZERO, factors: [0; 16], minimum_factors: [0; 16] };

    /// Takes apart the block of `dtype`, a quantised type, that `bytes` holds.
    pub fn read(&mut self, dtype: GgmlType, bytes: &[u8]) {
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
