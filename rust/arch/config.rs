//! The hyper-parameters of a Llama model, read from the metadata of its file.

use crate::error::{Error, Result};
use crate::gguf::file::GgufFile;
use crate::gguf::metadata::Value;
use crate::gguf::types::GgmlType;

/// Shapes and constants of the decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding table, padding rows included.
    pub n_vocab: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Transformer blocks.
    pub n_layer: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Width of one head, of queries, keys and values alike.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub n_ff: usize,
    /// Context length the model was trained for.
    pub n_ctx_train: usize,
    /// Epsilon of RMSNorm.
    pub rms_eps: f32,
    /// Rotation per position of each pair `(2i, 2i+1)` of a head, in radians; at most `head_dim / 2` long.
    ///
    /// Linear scaling and the factors of `rope_freqs.weight` are already in it.
    pub rope_freqs: Vec<f64>,
}

/// No width or count of a real model comes near; products of two of them cannot overflow.
const MAX_WIDTH: u64 = 1 << 24;
/// Blocks; no model has a tenth of it.
const MAX_LAYERS: u64 = 1 << 12;
/// As many positions can be told apart by the rotary angles.
const MAX_POSITIONS: u64 = i32::MAX as u64;

impl Config {
    /// The configuration of the model in `file`; [`check_tensors`](crate::arch::tensors::check_tensors) checks it against the
    /// tensors.
    ///
    /// An [`Error::Gguf`] names what is missing, contradictory or not supported.
    pub fn from_gguf(file: &GgufFile) -> Result<Self> {
        let keys = Keys(file);
        keys.check_kind()?;
        let n_embd = keys.required("embedding_length", MAX_WIDTH)?;
        let n_head = keys.required("attention.head_count", MAX_WIDTH)?;
        let n_head_kv = keys.uniform("attention.head_count_kv", MAX_WIDTH)?.unwrap_or(n_head);
        if n_head % n_head_kv != 0 {
            return Err(
                keys.error(format_args!("{n_head} query heads cannot share {n_head_kv} key/value heads evenly"))
            );
        }
        let head_dim = keys.head_dim(n_embd, n_head)?;
        Ok(Self {
            n_vocab: file.require("token_embd.weight")?.rows(),
            n_embd,
            n_layer: keys.required("block_count", MAX_LAYERS)?,
            n_head,
            n_head_kv,
            head_dim,
            n_ff: keys.required("feed_forward_length", MAX_WIDTH)?,
            n_ctx_train: keys.required("context_length", MAX_POSITIONS)?,
            rms_eps: keys.rms_eps()?,
            rope_freqs: keys.rope_freqs(head_dim)?,
        })
    }
}

/// The `llama.*` keys of a file.
struct Keys<'a>(&'a GgufFile);

impl Keys<'_> {
    fn error(&self, message: impl std::fmt::Display) -> Error {
        self.0.metadata().error(message)
    }

    /// Refuse whatever is not the decoder of a dense Llama.
    fn check_kind(&self) -> Result<()> {
        let metadata = self.0.metadata();
        match metadata.get_str("general.architecture")? {
            Some("llama") => (),
            Some(other) => {
                return Err(self.error(format_args!("architecture \"{other}\" is not supported (supported: \"llama\")")))
            }
            None => return Err(self.error("metadata `general.architecture` is missing")),
        }
        match metadata.get_str("general.type")? {
            None | Some("model") => (),
            Some(other) => {
                return Err(self.error(format_args!("the file holds a \"{other}\" (`general.type`), not a \"model\"")))
            }
        }
        match metadata.get_u64("llama.expert_count")? {
            None | Some(0) => Ok(()),
            Some(experts) => Err(self.error(format_args!(
                "a mixture of {experts} experts (`llama.expert_count`) is not supported; \
                 dense Llama models are"
            ))),
        }
    }

    /// A count from 1 to `limit`, if it is there.
    fn optional(&self, key: &str, limit: u64) -> Result<Option<usize>> {
        let key = format!("llama.{key}");
        let value = self.0.metadata().get_u64(&key)?;
        value.map(|value| self.in_range(&key, value, limit)).transpose()
    }

    fn in_range(&self, key: &str, value: u64, limit: u64) -> Result<usize> {
        if (1..=limit).contains(&value) {
            return Ok(value as usize);
        }
        let message = format_args!("metadata `{key}` must be from 1 to {limit} but is {value}");
        Err(self.error(message))
    }

    /// [`Self::optional`], where the value of each block may be given in an array if all are equal.
    fn uniform(&self, key: &str, limit: u64) -> Result<Option<usize>> {
        let full_key = format!("llama.{key}");
        let metadata = self.0.metadata();
        if !matches!(metadata.get(&full_key), Some(Value::Array(_))) {
            return self.optional(key, limit);
        }
        let values = metadata.get_integers(&full_key)?.unwrap_or_default();
        match values.first() {
            Some(&value) if values.iter().all(|&other| other == value) => {
                self.in_range(&full_key, u64::try_from(value).unwrap_or(0), limit).map(Some)
            }
            _ => Err(self.error(format_args!("metadata `{full_key}` differs between blocks, which is not supported"))),
        }
    }

    fn required(&self, key: &str, limit: u64) -> Result<usize> {
        self.uniform(key, limit)?.ok_or_else(|| self.error(format_args!("metadata `llama.{key}` is missing")))
    }

    fn head_dim(&self, n_embd: usize, n_head: usize) -> Result<usize> {
        let keys = self.optional("attention.key_length", MAX_WIDTH)?;
        let values = self.optional("attention.value_length", MAX_WIDTH)?;
        match (keys, values) {
            (Some(keys), Some(values)) if keys != values => Err(self.error(format_args!(
                "heads with keys of {keys} and values of {values} are not supported: \
                 `llama.attention.key_length` and `value_length` must be equal"
            ))),
            (Some(width), _) | (None, Some(width)) => Ok(width),
            (None, None) if n_embd.is_multiple_of(n_head) => Ok(n_embd / n_head),
            (None, None) => Err(self.error(format_args!(
                "{n_head} heads do not divide the width {n_embd} evenly and \
                 `llama.attention.key_length` is missing"
            ))),
        }
    }

    /// A finite number above 0, if it is there.
    fn positive(&self, key: &str) -> Result<Option<f32>> {
        let key = format!("llama.{key}");
        match self.0.metadata().get_f32(&key)? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.error(format_args!("metadata `{key}` must be a finite number above 0 but is {value}")))
            }
            value => Ok(value),
        }
    }

    fn rms_eps(&self) -> Result<f32> {
        const KEY: &str = "attention.layer_norm_rms_epsilon";
        self.positive(KEY)?.ok_or_else(|| self.error(format_args!("metadata `llama.{KEY}` is missing")))
    }

    /// `base^(-2i/n)` for each of the `n/2` rotated pairs of a head, with the scaling of the file.
    fn rope_freqs(&self, head_dim: usize) -> Result<Vec<f64>> {
        let rotated = self.optional("rope.dimension_count", MAX_WIDTH)?.unwrap_or(head_dim);
        if rotated > head_dim || rotated % 2 != 0 {
            return Err(self.error(format_args!(
                "{rotated} of the {head_dim} dimensions of a head cannot be rotated in pairs: \
                 `llama.rope.dimension_count` must be even and at most {head_dim}"
            )));
        }
        let base = f64::from(self.positive("rope.freq_base")?.unwrap_or(10_000.0));
        let scale = self.rope_scale()?;
        let divisors = self.rope_divisors(rotated / 2)?;
        Ok(divisors
            .iter()
            .enumerate()
            .map(|(i, divisor)| {
                let frequency = base.powf(-2.0 * i as f64 / rotated as f64);
                frequency / scale / f64::from(*divisor)
            })
            .collect())
    }

    /// By how much positions are stretched.
    fn rope_scale(&self) -> Result<f64> {
        const KEY: &str = "llama.rope.scaling.type";
        match self.0.metadata().get_str(KEY)? {
            Some("none") => return Ok(1.0),
            None | Some("linear") => (),
            Some(other) => {
                return Err(self.error(format_args!(
                    "`{KEY}` \"{other}\" is not supported (supported: \"none\", \"linear\", \
                     and factors in a tensor `rope_freqs.weight`)"
                )))
            }
        }
        let scale = match self.positive("rope.scaling.factor")? {
            // The older name of the same.
            None => self.positive("rope.scale_linear")?,
            scale => scale,
        };
        Ok(scale.unwrap_or(1.0).into())
    }

    /// What the frequency of each of `pairs` is divided by: Llama 3 keeps it in a tensor.
    fn rope_divisors(&self, pairs: usize) -> Result<Vec<f32>> {
        let Some(tensor) = self.0.tensor("rope_freqs.weight") else {
            return Ok(vec![1.0; pairs]);
        };
        if tensor.dtype != GgmlType::F32 || tensor.columns() != pairs || tensor.rows() != 1 {
            return Err(self.error(format_args!(
                "tensor `rope_freqs.weight` is {} of shape {:?} but F32 of shape [{pairs}] is needed",
                tensor.dtype.name(),
                tensor.shape
            )));
        }
        self.0.check_unchanged()?;
        let divisors: Vec<_> = self
            .0
            .data(tensor)
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        match divisors.iter().find(|&&d| !(d.is_finite() && d > 0.0)) {
            Some(wrong) => {
                Err(self
                    .error(format_args!("tensor `rope_freqs.weight` holds {wrong}; all must be finite and above 0")))
            }
            None => Ok(divisors),
        }
    }
}

#[cfg(test)]
mod tests;
