//! By how much queries and keys are turned at each position (RoPE).

use crate::arch::keys::{Keys, MAX_WIDTH};
use crate::arch::roles::Role;
use crate::error::Result;
use crate::gguf::types::GgmlType;

/// The frequencies of one rotation; blocks may share it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Rotation per position of each pair `(2i, 2i+1)` of a head, in radians; at most half as many as a head is wide.
    ///
    /// Linear scaling and the divisors of [`Role::RopeDivisors`] are already in it.
    pub freqs: Vec<f64>,
}

impl RopeTable {
    /// `base^(-2i/n)` for each of the `n/2` rotated pairs of a head of width `head_dim`, with the scaling of the file.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) names a value that is wrong or not supported.
    pub fn read(keys: &Keys<'_>, head_dim: usize) -> Result<Self> {
        const WIDTH: &str = "rope.dimension_count";
        let rotated = keys.count(WIDTH, MAX_WIDTH)?.unwrap_or(head_dim);
        if rotated > head_dim || rotated % 2 != 0 {
            return Err(keys.error(format_args!(
                "{rotated} of the {head_dim} dimensions of a head cannot be rotated in pairs: \
                 `{}` must be even and at most {head_dim}",
                keys.name(WIDTH)
            )));
        }
        let base = f64::from(keys.positive("rope.freq_base")?.unwrap_or(10_000.0));
        let (scale, divisors) = (scale(keys)?, divisors(keys, rotated / 2)?);
        let freqs = divisors
            .iter()
            .enumerate()
            .map(|(i, divisor)| base.powf(-2.0 * i as f64 / rotated as f64) / scale / f64::from(*divisor));
        Ok(Self { freqs: freqs.collect() })
    }
}

/// By how much positions are stretched.
fn scale(keys: &Keys<'_>) -> Result<f64> {
    const TYPE: &str = "rope.scaling.type";
    match keys.string(TYPE)? {
        Some("none") => return Ok(1.0),
        None | Some("linear") => (),
        Some(other) => {
            return Err(keys.error(format_args!(
                "`{}` \"{other}\" is not supported (supported: \"none\", \"linear\", and factors in a tensor `{}`)",
                keys.name(TYPE),
                Role::RopeDivisors
            )))
        }
    }
    let scale = match keys.positive("rope.scaling.factor")? {
        // The older name of the same.
        None => keys.positive("rope.scale_linear")?,
        scale => scale,
    };
    Ok(scale.unwrap_or(1.0).into())
}

/// What the frequency of each of `pairs` is divided by: Llama 3 keeps it in a tensor.
fn divisors(keys: &Keys<'_>, pairs: usize) -> Result<Vec<f32>> {
    let file = keys.file();
    let Some(tensor) = file.tensor(&Role::RopeDivisors.to_string()) else {
        return Ok(vec![1.0; pairs]);
    };
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
        None => Ok(divisors),
    }
}
