//! Random numbers without a generator: a pure function of seed, position and token id.
//!
//! A draw must not depend on how many draws came before it, or a rejected draft would shift all later text. So the
//! noise is counter-based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the numbers of one
//! position are the outputs of a SplitMix64 generator (Steele, Lea and Flood, 2014), which can be asked for its n-th
//! output directly, and the state it starts from is a hash of seed and position by the same mixing function. That
//! function passes BigCrush and costs two multiplications, of which there is one pair for each token of a vocabulary.

/// The odd number nearest to 2^64 divided by the golden ratio: the step of SplitMix64's counter.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Stafford's thirteenth variant of the MurmurHash3 finaliser, as in SplitMix64: every input bit flips half the output.
#[inline(always)]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The noise of all tokens at one position.
#[derive(Clone, Copy)]
pub struct Noise(u64);

impl Noise {
    /// The noise at `position` under `seed`.
    pub fn new(seed: u64, position: u64) -> Self {
        Self(mix(mix(seed).wrapping_add(STEP.wrapping_mul(position.wrapping_add(1)))))
    }

    #[inline(always)]
    fn bits(self, token: u32) -> u64 {
        mix(self.0.wrapping_add(STEP.wrapping_mul(u64::from(token) + 1)))
    }

    /// A number between 0 and 1, both excluded: the middle of one of 2^52 equal intervals.
    #[inline(always)]
    pub fn uniform(self, token: u32) -> f64 {
        // 52 bits and a half are exact in an f64, so that no result rounds to 1.
        ((self.bits(token) >> 12) as i64 as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's statistic for equal bins, as standard deviations from what uniform noise gives.
    fn excess(counts: &[u32]) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        let statistic: f64 = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
        let freedom = (counts.len() - 1) as f64;
        (statistic - freedom) / (2.0 * freedom).sqrt()
    }

    /// A thousand counters as they occur: along the tokens of a position, along positions, along seeds.
    fn walks() -> [Vec<f64>; 3] {
        let walk = |at: &dyn Fn(u32) -> (u64, u64, u32)| {
            let uniform = |i| {
                let (seed, position, token) = at(i);
                Noise::new(seed, position).uniform(token)
            };
            (0..1 << 17).map(uniform).collect()
        };
        [
            walk(&|i| (1, u64::from(i >> 12), i & 0xFFF)),
            walk(&|i| (1, u64::from(i), 7)),
            walk(&|i| (u64::from(i), 5, 7)),
        ]
    }

    #[test]
    fn noise_is_uniform() {
        for walk in walks() {
            let mut counts = [0u32; 256];
            walk.iter().for_each(|u| counts[(u * 256.0) as usize] += 1);
            assert!(excess(&counts).abs() < 4.0, "{}", excess(&counts));
            assert!(walk.iter().all(|&u| 0.0 < u && u < 1.0));
        }
    }

    #[test]
    fn neighbours_are_independent() {
        for walk in walks() {
            for distance in [1, 2, 64] {
                let mut counts = [0u32; 256];
                for (a, b) in walk.iter().zip(&walk[distance..]) {
                    counts[(a * 16.0) as usize * 16 + (b * 16.0) as usize] += 1;
                }
                assert!(excess(&counts).abs() < 4.0, "{distance}: {}", excess(&counts));
            }
        }
    }

    #[test]
    fn every_input_bit_flips_half_of_the_output() {
        let flipped = |change: &dyn Fn(u64) -> u64| {
            let total: u32 = (0..1000).map(|i| change(i).count_ones()).sum();
            f64::from(total) / 1000.0
        };
        for bit in 0..64 {
            let of = |seed, position, token| Noise::new(seed, position).bits(token);
            let by_seed = flipped(&|i| of(i, i, 3) ^ of(i ^ 1 << bit, i, 3));
            let by_position = flipped(&|i| of(9, i, 3) ^ of(9, i ^ 1 << bit, 3));
            let by_token = flipped(&|i| of(9, 9, i as u32) ^ of(9, 9, i as u32 ^ 1 << (bit % 32)));
            // 32 of 64 bits; the mean of 1000 has a standard deviation of 0.13.
            for mean in [by_seed, by_position, by_token] {
                assert!((mean - 32.0).abs() < 0.7, "bit {bit}: {mean}");
            }
        }
    }

    #[test]
    fn the_largest_uniform_is_below_one() {
        let largest = ((u64::MAX >> 12) as i64 as f64 + 0.5) * (1.0 / (1u64 << 52) as f64);
        assert!(largest < 1.0 && 0.5 / ((1u64 << 52) as f64) > 0.0);
    }
}
