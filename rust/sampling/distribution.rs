//! A row of logits as a distribution: its most likely tokens, its log-probabilities, and draws from what filters leave.
//!
//! Tokens are ordered by logit, the lower id first among equals. NaN counts as -inf: such a token is never chosen.
//! All is plain arithmetic in a fixed order, so equal rows give equal results to the last bit.

use crate::sampling::noise::Noise;
use std::cmp::Ordering;

/// Lanes of the loops that the compiler is to vectorise.
const LANES: usize = 16;

/// Logits examined together by [`argmax`].
const CHUNK: usize = 512;

/// Tokens that are sorted rather than narrowed down further: about as quick as one pass over a vocabulary.
const FEW: usize = 256;

/// What remains of a distribution before a draw. Each filter acts on what the ones before it left.
#[derive(Clone, Copy, Debug)]
pub struct Filters {
    /// Divides the logits; above 0.
    pub temperature: f32,
    /// Keep this many of the most likely tokens; 0 keeps all (Fan et al., 2018).
    pub top_k: usize,
    /// Keep the fewest most likely tokens that together reach this share (Holtzman et al., 2020).
    pub top_p: f64,
    /// Keep tokens at least this fraction as likely as the most likely one (Nguyen et al., 2024).
    pub min_p: f32,
}

/// Buffers that are used again from row to row.
#[derive(Default)]
pub struct Scratch {
    weights: Vec<f32>,
    bracket: Vec<(u32, f32)>,
}

/// The least likely token that is kept, and the weight of all that are.
#[derive(Clone, Copy)]
struct Last {
    logit: f32,
    token: u32,
    weight: f64,
}

impl Last {
    /// Nothing is removed.
    const NONE: Self = Self { logit: f32::NEG_INFINITY, token: u32::MAX, weight: f64::INFINITY };

    #[inline(always)]
    fn keeps(&self, logit: f32, token: u32) -> bool {
        logit > self.logit || (logit == self.logit && token <= self.token)
    }
}

/// Likelier first.
fn by_likelihood(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    // What is compared is no NaN, and a total order of floats would tell 0 from -0.
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// The larger of two logits, the other one if one is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a {
        b
    } else {
        a
    }
}

fn max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, x);
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

/// The most likely token; None if no logit is above -inf.
pub fn argmax(row: &[f32]) -> Option<u32> {
    let (mut best, mut place) = (f32::NEG_INFINITY, None);
    for (i, block) in row.chunks(CHUNK).enumerate() {
        let max = max(block);
        if max > best {
            (best, place) = (max, Some(i));
        }
    }
    let start = place? * CHUNK;
    let offset = row[start..].iter().position(|&x| x == best)?;
    Some((start + offset) as u32)
}

/// e^x for x <= 0, within 2 ulp; 0 below -87 and for NaN (range reduction and polynomial after Cephes).
///
/// Unlike the kernels' function it has no fused multiply-add, which a CPU without that instruction would emulate.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let p = (p * r) * r + r + 1.0;
    // The integer sits in the low mantissa bits.
    let power = f32::from_bits(shifted.to_bits().wrapping_shl(23).wrapping_add(127 << 23));
    if x >= -87.0 {
        p * power
    } else {
        0.0
    }
}

/// Fills `weights` with `exp((logit - max) / temperature)`, 1 for the most likely token; returns max and the sum.
///
/// None if no logit is above -inf.
fn weigh(row: &[f32], temperature: f32, weights: &mut Vec<f32>) -> Option<(f32, f64)> {
    let max = max(row);
    if max == f32::NEG_INFINITY {
        return None;
    }
    // An infinite logit minus itself is no number, so the maximum is told apart.
    weights.resize(row.len(), 0.0);
    for (weight, &x) in weights.iter_mut().zip(row) {
        let below = exp((x - max) / temperature);
        *weight = if x == max { 1.0 } else { below };
    }
    let mut lanes = [0.0f64; LANES];
    let chunks = weights.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &w) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(w);
        }
    }
    let tail = tail.iter().copied().map(f64::from);
    Some((max, lanes.iter().copied().chain(tail).sum()))
}

/// Number and summed weight of the tokens whose logit is at least `cut`.
fn above(row: &[f32], weights: &[f32], cut: f32) -> (usize, f64) {
    let (mut counts, mut sums) = ([0u32; LANES], [0.0f64; LANES]);
    let whole = row.len() / LANES * LANES;
    for (row, weights) in row.chunks_exact(LANES).zip(weights.chunks_exact(LANES)) {
        let lanes = counts.iter_mut().zip(&mut sums);
        for ((count, sum), (&x, &w)) in lanes.zip(row.iter().zip(weights)) {
            // A mask instead of a branch, which no CPU could predict here.
            let inside = u32::from(x >= cut);
            *count += inside;
            *sum += f64::from(f32::from_bits(w.to_bits() & inside.wrapping_neg()));
        }
    }
    let tail = row[whole..].iter().zip(&weights[whole..]).filter(|(&x, _)| x >= cut);
    let (count, sum) = tail.fold((0, 0.0), |(n, sum), (_, &w)| (n + 1, sum + f64::from(w)));
    (counts.iter().sum::<u32>() as usize + count, sums.iter().sum::<f64>() + sum)
}

impl Scratch {
    /// Finds the first token, from the most likely on, with which `enough` holds of the number and weight so far.
    ///
    /// Nothing is sorted but a few tokens around the place: passes that only count and add narrow it down.
    fn last_until(&mut self, row: &[f32], max: f32, temperature: f32, enough: impl Fn(usize, f64) -> bool) -> Last {
        // Logits from `low` on are enough, those from `high` on are not. No logit compares with NaN.
        let (mut low, mut high) = (f32::NEG_INFINITY, f32::NAN);
        let (mut inside, mut count, mut weight) = (usize::MAX, 0, 0.0);
        for doubling in 0..11 {
            let cut = max - (1 << doubling) as f32 * temperature;
            let found = above(row, &self.weights, cut);
            if enough(found.0, found.1) {
                (low, inside) = (cut, found.0);
                break;
            }
            (high, count, weight) = (cut, found.0, found.1);
        }
        while inside - count > FEW {
            let top = if high.is_nan() { max } else { high };
            let cut = low + (top - low) / 2.0;
            if !(low < cut && cut < top) {
                break;
            }
            let found = above(row, &self.weights, cut);
            if enough(found.0, found.1) {
                (low, inside) = (cut, found.0);
            } else {
                (high, count, weight) = (cut, found.0, found.1);
            }
        }
        let (candidate, counted) = (|x: f32| x >= low, |x: f32| x >= high);
        let bracket = row.iter().zip(0u32..).filter(|(&x, _)| candidate(x) && !counted(x));
        self.bracket.clear();
        self.bracket.extend(bracket.map(|(&x, token)| (token, x)));
        self.bracket.sort_unstable_by(by_likelihood);
        for &(token, logit) in &self.bracket {
            count += 1;
            weight += f64::from(self.weights[token as usize]);
            if enough(count, weight) {
                return Last { logit, token, weight };
            }
        }
        Last::NONE
    }

    /// Draws a token from the filtered distribution of `row`; None if no logit is above -inf.
    pub fn draw(&mut self, row: &[f32], filters: &Filters, noise: Noise) -> Option<u32> {
        self.draw_by(row, filters, |token| noise.uniform(token))
    }

    fn draw_by(&mut self, row: &[f32], filters: &Filters, uniform: impl Fn(u32) -> f64) -> Option<u32> {
        let Filters { temperature, top_k, top_p, min_p } = *filters;
        let (max, mut total) = weigh(row, temperature, &mut self.weights)?;
        let (mut most, mut nucleus) = (Last::NONE, Last::NONE);
        if 0 < top_k && top_k < row.len() {
            most = self.last_until(row, max, temperature, |count, _| count >= top_k);
            total = total.min(most.weight);
        }
        if top_p < 1.0 {
            nucleus = self.last_until(row, max, temperature, |_, weight| weight >= top_p * total);
        }
        let all = row.iter().zip(&self.weights).zip(0u32..);
        let left = all.filter(|&((&logit, &weight), token)| {
            most.keeps(logit, token) && nucleus.keeps(logit, token) && weight >= min_p
        });
        race(left.map(|((_, &weight), token)| (weight, token)), uniform)
    }

    /// The log-probability of `token` under the softmax of `row`, and the `count` most likely tokens with theirs.
    ///
    /// None if no logit is above -inf, or there is no such token.
    pub fn log_probabilities(&mut self, row: &[f32], token: u32, count: usize) -> Option<(f64, Vec<(u32, f64)>)> {
        let (max, total) = weigh(row, 1.0, &mut self.weights)?;
        let log_total = total.ln();
        let log_probability = |x: f32| match x {
            _ if x.is_nan() => f64::NEG_INFINITY,
            _ if x == max => -log_total,
            _ => f64::from(x) - f64::from(max) - log_total,
        };
        let chosen = log_probability(*row.get(token as usize)?);
        if count == 0 {
            return Some((chosen, Vec::new()));
        }
        let last = self.last_until(row, max, 1.0, |found, _| found >= count);
        let all = row.iter().zip(0u32..).map(|(&x, token)| (token, x));
        let mut top: Vec<(u32, f32)> = all.filter(|&(token, x)| last.keeps(x, token)).collect();
        top.sort_unstable_by(by_likelihood);
        Some((chosen, top.into_iter().map(|(token, x)| (token, log_probability(x))).collect()))
    }
}

/// The token that maximises `ln weight + Gumbel noise`, which draws each with a probability in proportion to its
/// weight.
///
/// The Gumbel noise of a uniform `u` is `-ln(-ln(1 - u))`, so the same token minimises `-ln(1 - u) / weight`: it wins a
/// race of exponential clocks (Gumbel, 1954; Maddison et al., 2014). In this form most tokens are out without a
/// logarithm, because `-ln(1 - u) >= u`.
fn race(entrants: impl Iterator<Item = (f32, u32)>, uniform: impl Fn(u32) -> f64) -> Option<u32> {
    let (mut best, mut winner) = (f64::INFINITY, None);
    for (weight, token) in entrants {
        let (weight, u) = (f64::from(weight), uniform(token));
        // Without any weight there is no arriving: the product is then no number, or 0.
        if u <= best * weight {
            let time = -(-u).ln_1p() / weight;
            if time < best || (time == best && Some(token) < winner) {
                (best, winner) = (time, Some(token));
            }
        }
    }
    winner
}

#[cfg(test)]
mod tests;
