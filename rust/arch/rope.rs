//! By how much queries and keys are turned at each position (RoPE).

use crate::arch::keys::{Keys, MAX_WIDTH};
use crate::arch::roles::Role;
use crate::error::Result;
use crate::gguf::types::GgmlType;

/// The base of the frequencies where a file names none.
const BASE: f32 = 10_000.0;
/// The key of the base.
pub const FREQ_BASE: &str = "rope.freq_base";
const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";

/// The frequencies of one rotation; blocks may share it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Rotation per position of each pair `(2i, 2i+1)` of a head, in radians; at most half as many as a head is wide.
    ///
    /// All scaling is already in it.
    pub freqs: Vec<f64>,
    /// What cosines and sines are multiplied with.
    pub magnitude: f64,
    /// The frequencies of sessions that are longer than so many positions, if they have others.
    pub long: Option<(usize, Vec<f64>)>,
}

/// How a file says that positions are stretched, beyond what the model was first trained for.
enum Scaling {
    /// All alike.
    Linear(f64),
    /// The slow frequencies more than the fast ones (YaRN, Peng et al., 2023).
    Yarn(Yarn),
}

struct Yarn {
    factor: f64,
    /// Positions the model was first trained for.
    original: f64,
    /// Turns over these positions of the pairs that are not stretched any more, and of those that are stretched in full.
    turns: [f64; 2],
    magnitude: f64,
}

impl RopeTable {
    /// `base^(-2i/n)` for each of the `n/2` rotated pairs of a head of width `head_dim`, with the scaling of the file.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) names a value that is wrong or not supported.
    pub fn read(keys: &Keys<'_>, head_dim: usize) -> Result<Self> {
        let rope = Self::unscaled(keys, head_dim, FREQ_BASE)?;
        let pairs = rope.freqs.len();
        let rope = rope.divided(&divisors(keys, Role::RopeDivisors, pairs)?.unwrap_or_else(|| vec![1.0; pairs]));
        match scaling(keys)? {
            Scaling::Linear(factor) => {
                Ok(Self { freqs: rope.freqs.iter().map(|freq| freq / factor).collect(), ..rope })
            }
            Scaling::Yarn(yarn) => {
                let base = base(keys, FREQ_BASE)?;
                let stretched = rope.freqs.iter().enumerate().map(|(i, freq)| freq * yarn.share(i, 2 * pairs, base));
                Ok(Self { freqs: stretched.collect(), magnitude: yarn.magnitude, ..rope })
            }
        }
    }

    /// The same without scaling, and with the base that a key of its own gives.
    ///
    /// # Errors
    /// As [`RopeTable::read`].
    pub fn unscaled(keys: &Keys<'_>, head_dim: usize, base_key: &str) -> Result<Self> {
        const WIDTH: &str = "rope.dimension_count";
        let rotated = keys.count(WIDTH, MAX_WIDTH)?.unwrap_or(head_dim);
        if rotated > head_dim || rotated % 2 != 0 {
            return Err(keys.error(format_args!(
                "{rotated} of the {head_dim} dimensions of a head cannot be rotated in pairs: \
                 `{}` must be even and at most {head_dim}",
                keys.name(WIDTH)
            )));
        }
        let base = base(keys, base_key)?;
        let freqs = (0..rotated / 2).map(|i| base.powf(-2.0 * i as f64 / rotated as f64)).collect();
        Ok(Self { freqs, magnitude: 1.0, long: None })
    }

    /// Frequencies divided by one set of numbers in short sessions and by another in long ones (LongRoPE, Ding et al.,
    /// 2024), if the file has them; else [`RopeTable::read`].
    ///
    /// # Errors
    /// As [`RopeTable::read`].
    pub fn long(keys: &Keys<'_>, head_dim: usize) -> Result<Self> {
        let rope = Self::unscaled(keys, head_dim, FREQ_BASE)?;
        let pairs = rope.freqs.len();
        let [short, long] = [Role::ShortRopeDivisors, Role::LongRopeDivisors].map(|role| divisors(keys, role, pairs));
        let (short, long) = match (short?, long?) {
            (Some(short), Some(long)) => (short, long),
            (None, None) => return Self::read(keys, head_dim),
            (short, _) => {
                let missing = if short.is_none() { Role::ShortRopeDivisors } else { Role::LongRopeDivisors };
                return Err(keys.error(format_args!("tensor `{missing}` is missing, which belongs to the other set")));
            }
        };
        if keys.file().tensor(&Role::RopeDivisors.to_string()).is_some() {
            return Err(keys.error(format_args!(
                "the file has tensor `{}` beside `{}`; only one kind of divisors is supported",
                Role::RopeDivisors,
                Role::LongRopeDivisors
            )));
        }
        match keys.string(TYPE)? {
            None | Some("longrope") => (),
            Some(other) => {
                return Err(keys.error(format_args!(
                    "`{}` is \"{other}\" but the file has tensors `{}` and `{}`, which belong to \"longrope\"",
                    keys.name(TYPE),
                    Role::ShortRopeDivisors,
                    Role::LongRopeDivisors
                )))
            }
        }
        let original = original(keys)?;
        let magnitude = keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0).into();
        let long = (original, rope.divided(&long).freqs);
        Ok(Self { magnitude, long: Some(long), ..rope.divided(&short) })
    }

    fn divided(&self, divisors: &[f32]) -> Self {
        let freqs = self.freqs.iter().zip(divisors).map(|(freq, divisor)| freq / f64::from(*divisor));
        Self { freqs: freqs.collect(), ..self.clone() }
    }

    /// Decides for sessions of `n_ctx` positions which frequencies count, and says which, if there is a choice.
    pub fn settle(&mut self, n_ctx: usize) -> Option<String> {
        let (original, freqs) = self.long.take()?;
        let is_long = n_ctx > original;
        if is_long {
            self.freqs = freqs;
        }
        let (which, how) = if is_long { ("long", "more than") } else { ("short", "at most") };
        Some(format!(
            "the rotary frequencies of {which} sessions are used: n_ctx={n_ctx} is {how} {original} positions"
        ))
    }
}

impl Yarn {
    fn read(keys: &Keys<'_>) -> Result<Self> {
        let number = |key, default: f32| Ok(f64::from(keys.positive(key)?.unwrap_or(default)));
        let Some(factor) = keys.positive(FACTOR)?.map(f64::from) else {
            return Err(keys.error(format_args!(
                "`{}` is \"yarn\" but `{}` is missing, which says by how much",
                keys.name(TYPE),
                keys.name(FACTOR)
            )));
        };
        let log_multiplier = keys.switch("rope.scaling.yarn_log_multiplier")?.map_or(0.0, f64::from);
        let growth = |multiplier: f64| 1.0 + 0.1 * multiplier * factor.ln();
        Ok(Self {
            factor,
            original: original(keys)? as f64,
            turns: [number("rope.scaling.yarn_beta_fast", 32.0)?, number("rope.scaling.yarn_beta_slow", 1.0)?],
            magnitude: number("rope.scaling.attn_factor", 1.0)? * growth(1.0) / growth(log_multiplier),
        })
    }

    /// What the frequency of pair `i` is multiplied with, of `rotated / 2` pairs.
    fn share(&self, i: usize, rotated: usize, base: f64) -> f64 {
        let rotated = rotated as f64;
        // The pair that turns so many times.
        let pair =
            |turns: f64| rotated * (self.original / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln());
        let [fast, slow] = self.turns.map(pair);
        let (first, last) = (fast.floor().max(0.0), slow.ceil().min(rotated - 1.0));
        let stretched = ((i as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
        (1.0 - stretched) + stretched / self.factor
    }
}

fn base(keys: &Keys<'_>, key: &str) -> Result<f64> {
    Ok(keys.positive(key)?.unwrap_or(BASE).into())
}

/// Positions the model was first trained for.
///
/// # Errors
/// [`Error::Gguf`](crate::error::Error::Gguf) for a wrong value, or if the file says nothing at all of its context.
pub fn original(keys: &Keys<'_>) -> Result<usize> {
    const MOST: u64 = i32::MAX as u64;
    match keys.count(ORIGINAL, MOST)? {
        Some(original) => Ok(original),
        None => keys.required_count("context_length", MOST),
    }
}

fn scaling(keys: &Keys<'_>) -> Result<Scaling> {
    match keys.string(TYPE)? {
        Some("none") => return Ok(Scaling::Linear(1.0)),
        Some("yarn") => return Ok(Scaling::Yarn(Yarn::read(keys)?)),
        None | Some("linear") => (),
        Some(other) => {
            return Err(keys.error(format_args!(
                "`{}` \"{other}\" is not supported (supported: \"none\", \"linear\", \"yarn\", \"longrope\" in \
                 architecture \"phi3\", and factors in a tensor `{}`)",
                keys.name(TYPE),
                Role::RopeDivisors
            )))
        }
    }
    let factor = match keys.positive(FACTOR)? {
        // The older name of the same.
        None => keys.positive("rope.scale_linear")?,
        factor => factor,
    };
    Ok(Scaling::Linear(factor.unwrap_or(1.0).into()))
}

/// What the frequency of each of `pairs` is divided by, if a file keeps that in a tensor of this role.
fn divisors(keys: &Keys<'_>, role: Role, pairs: usize) -> Result<Option<Vec<f32>>> {
    let file = keys.file();
    let Some(tensor) = file.tensor(&role.to_string()) else { return Ok(None) };
    if tensor.dtype != GgmlType::F32 || tensor.columns() != pairs || tensor.rows() != 1 {
        return Err(keys.error(format_args!(
            "tensor `{}` is {} of shape {:?} but F32 of shape [{pairs}] is needed",
            tensor.name,
            tensor.dtype.name(),
            tensor.shape
        )));
    }
    file.check_unchanged()?;
    let divisors: Vec<_> = file
        .data(tensor)
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    match divisors.iter().find(|&&d| !(d.is_finite() && d > 0.0)) {
        Some(wrong) => {
            Err(keys.error(format_args!("tensor `{}` holds {wrong}; all must be finite and above 0", tensor.name)))
        }
        None => Ok(Some(divisors)),
    }
}
