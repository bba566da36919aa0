//! Model files of real size with random weights.

#[path = "../../tests/made/writer.rs"]
mod writer;

use _specrs::arch::llama;
use _specrs::arch::roles::{BlockRole, Role};
use _specrs::arch::tensors::Tensor;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType, Device, Result};
use std::borrow::Cow;
use std::collections::hash_map::{Entry, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use writer::{write, Shape};

/// What a model is like.
pub struct Model {
    /// Name of its file, and in reports.
    pub name: &'static str,
    pub shape: Shape,
    /// Type of the embedding.
    embedding: GgmlDType,
    /// Type of the output; `None`: the embedding serves.
    output: Option<GgmlDType>,
    /// Type of the matrices in blocks.
    matrices: GgmlDType,
    /// Type of values and down projections in the layers to which llama.cpp's mixes give more bits.
    sensitive: GgmlDType,
}

/// SmolLM2-135M-Instruct as it is distributed in Q4_1.
pub const SMOL_Q4_1: Model = Model {
    name: "135m-q4_1",
    shape: Shape { n_layer: 30, n_embd: 576, n_head: 9, n_head_kv: 3, head_dim: 64, n_ff: 1536, n_vocab: 49152 },
    embedding: GgmlDType::Q8_0,
    output: None,
    matrices: GgmlDType::Q4_1,
    sensitive: GgmlDType::Q4_1,
};

/// TinyLlama-1.1B with one type for all matrices.
const fn tiny(name: &'static str, dtype: GgmlDType) -> Model {
    Model {
        name,
        shape: Shape { n_layer: 22, n_embd: 2048, n_head: 32, n_head_kv: 4, head_dim: 64, n_ff: 5632, n_vocab: 32000 },
        embedding: dtype,
        output: Some(dtype),
        matrices: dtype,
        sensitive: dtype,
    }
}

/// TinyLlama-1.1B in Q4_0.
pub const TINY_Q4_0: Model = tiny("1.1b-q4_0", GgmlDType::Q4_0);
/// TinyLlama-1.1B in Q4_K_M.
pub const TINY_Q4_K_M: Model =
    Model { output: Some(GgmlDType::Q6K), sensitive: GgmlDType::Q6K, ..tiny("1.1b-q4_k_m", GgmlDType::Q4K) };
/// TinyLlama-1.1B in Q8_0.
pub const TINY_Q8_0: Model = tiny("1.1b-q8_0", GgmlDType::Q8_0);

/// The file of a model, written when it is asked for first.
///
/// # Errors
/// Of writing the file.
pub fn random_model(model: &Model) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("random-{}.gguf", model.name));
    if !path.exists() {
        let partial = path.with_extension("partial");
        let mut drawn = HashMap::new();
        let mut fill = |tensor: &Tensor| {
            let Some(dtype) = model.dtype(tensor) else { return Ok(None) };
            match drawn.entry((tensor.shape.clone(), dtype)) {
                Entry::Occupied(same) => Ok(Some(Arc::clone(same.get()))),
                Entry::Vacant(new) => {
                    let contents = Arc::new(draw(&tensor.shape, dtype)?);
                    Ok(Some(new.insert(contents).clone()))
                }
            }
        };
        write(&partial, &llama::FAMILY, &model.shape, &[], &mut fill)?;
        fs::rename(&partial, &path)?;
    }
    Ok(path)
}

impl Model {
    /// The type of a tensor; `None` if the file has none.
    fn dtype(&self, tensor: &Tensor) -> Option<GgmlDType> {
        let n_layer = self.shape.n_layer;
        let is_sensitive = |layer: usize| {
            let eighth = n_layer / 8;
            layer < eighth || layer >= 7 * n_layer / 8 || (layer - eighth) % 3 == 2
        };
        match tensor.role {
            Role::RopeDivisors | Role::Bias(..) => None,
            _ if !tensor.is_matrix() => Some(GgmlDType::F32),
            Role::Embedding => Some(self.embedding),
            Role::Output => self.output,
            Role::Block(layer, BlockRole::AttnV | BlockRole::FfnDown) if is_sensitive(layer) => Some(self.sensitive),
            _ => Some(self.matrices),
        }
    }
}

/// A random matrix that keeps the size of normal input, or a norm's gains. Tensors that share shape and type share it.
///
/// Only the first rows are drawn, the others repeat them: the time of a forward does not depend on values.
fn draw(shape: &[usize], dtype: GgmlDType) -> Result<QTensor> {
    const DRAWN: usize = 64;
    let &[columns, rows] = shape else {
        return QTensor::quantize(&candle_core::Tensor::ones(shape, DType::F32, &Device::Cpu)?, dtype);
    };
    let spread = 1.0 / (columns as f32).sqrt();
    let values = candle_core::Tensor::randn(0.0, spread, (DRAWN, columns), &Device::Cpu)?;
    let first = QTensor::quantize(&values, dtype)?;
    let bytes = first.data()?;
    let wanted = bytes.len() / DRAWN * rows;
    let all: Vec<u8> = bytes.iter().copied().cycle().take(wanted).collect();
    QTensor::new(QStorage::from_data(Cow::Owned(all), &Device::Cpu, dtype)?, (rows, columns))
}
