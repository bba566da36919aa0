//! Model files of real size with random weights, written by candle.

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Result, Tensor};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// What a model is like.
pub struct Shape {
    /// Name of its file, and in reports.
    pub name: &'static str,
    pub n_layer: usize,
    pub n_embd: usize,
    pub n_head: usize,
    pub n_head_kv: usize,
    pub n_ff: usize,
    pub n_vocab: usize,
    /// Type of the embedding.
    pub embedding: GgmlDType,
    /// Type of the output; `None`: the embedding serves.
    pub output: Option<GgmlDType>,
    /// Type of the matrices in blocks.
    pub matrices: GgmlDType,
    /// Type of values and down projections in the layers to which llama.cpp's mixes give more bits.
    pub sensitive: GgmlDType,
}

/// SmolLM2-135M-Instruct as it is distributed in Q4_1.
pub const SMOL_Q4_1: Shape = Shape {
    name: "135m-q4_1",
    n_layer: 30,
    n_embd: 576,
    n_head: 9,
    n_head_kv: 3,
    n_ff: 1536,
    n_vocab: 49152,
    embedding: GgmlDType::Q8_0,
    output: None,
    matrices: GgmlDType::Q4_1,
    sensitive: GgmlDType::Q4_1,
};

/// TinyLlama-1.1B with one type for all matrices.
const fn tiny(name: &'static str, dtype: GgmlDType) -> Shape {
    Shape {
        name,
        n_layer: 22,
        n_embd: 2048,
        n_head: 32,
        n_head_kv: 4,
        n_ff: 5632,
        n_vocab: 32000,
        embedding: dtype,
        output: Some(dtype),
        matrices: dtype,
        sensitive: dtype,
    }
}

/// TinyLlama-1.1B in Q4_0.
pub const TINY_Q4_0: Shape = tiny("1.1b-q4_0", GgmlDType::Q4_0);
/// TinyLlama-1.1B in Q4_K_M.
pub const TINY_Q4_K_M: Shape =
    Shape { output: Some(GgmlDType::Q6K), sensitive: GgmlDType::Q6K, ..tiny("1.1b-q4_k_m", GgmlDType::Q4K) };
/// TinyLlama-1.1B in Q8_0.
pub const TINY_Q8_0: Shape = tiny("1.1b-q8_0", GgmlDType::Q8_0);

/// The file of a model of this shape, written when it is asked for first.
///
/// # Errors
/// Of writing the file.
pub fn random_model(shape: &Shape) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("random-{}.gguf", shape.name));
    if !path.exists() {
        let partial = path.with_extension("partial");
        write(shape, &partial)?;
        fs::rename(&partial, &path)?;
    }
    Ok(path)
}

fn write(shape: &Shape, path: &Path) -> Result<()> {
    let number = |n: usize| Value::U32(n as u32);
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.block_count", number(shape.n_layer)),
        ("llama.context_length", number(2048)),
        ("llama.embedding_length", number(shape.n_embd)),
        ("llama.feed_forward_length", number(shape.n_ff)),
        ("llama.attention.head_count", number(shape.n_head)),
        ("llama.attention.head_count_kv", number(shape.n_head_kv)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.dimension_count", number(shape.n_embd / shape.n_head)),
    ];
    let plan = plan(shape);
    let mut drawn = HashMap::new();
    for (_, key) in &plan {
        if !drawn.contains_key(key) {
            drawn.insert(*key, draw(*key)?);
        }
    }
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = plan.iter().map(|(name, key)| (name.as_str(), &drawn[key])).collect();
    gguf_file::write(&mut BufWriter::new(File::create(path)?), &metadata, &tensors)
}

/// Rows, columns and type of a tensor; tensors that share them share their contents. A norm has no rows.
type Key = (usize, usize, GgmlDType);

/// Every tensor of the file.
fn plan(shape: &Shape) -> Vec<(String, Key)> {
    let Shape { n_layer, n_embd, n_ff, n_vocab, .. } = *shape;
    let keys = n_embd / shape.n_head * shape.n_head_kv;
    let norm = (0, n_embd, GgmlDType::F32);
    let mut plan = vec![
        ("token_embd.weight".to_owned(), (n_vocab, n_embd, shape.embedding)),
        ("output_norm.weight".to_owned(), norm),
    ];
    plan.extend(shape.output.map(|dtype| ("output.weight".to_owned(), (n_vocab, n_embd, dtype))));
    for layer in 0..n_layer {
        let eighth = n_layer / 8;
        let sensitive = layer < eighth || layer >= 7 * n_layer / 8 || (layer - eighth) % 3 == 2;
        let more = if sensitive { shape.sensitive } else { shape.matrices };
        for (name, key) in [
            ("attn_norm", norm),
            ("attn_q", (n_embd, n_embd, shape.matrices)),
            ("attn_k", (keys, n_embd, shape.matrices)),
            ("attn_v", (keys, n_embd, more)),
            ("attn_output", (n_embd, n_embd, shape.matrices)),
            ("ffn_norm", norm),
            ("ffn_gate", (n_ff, n_embd, shape.matrices)),
            ("ffn_up", (n_ff, n_embd, shape.matrices)),
            ("ffn_down", (n_embd, n_ff, more)),
        ] {
            plan.push((format!("blk.{layer}.{name}.weight"), key));
        }
    }
    plan
}

/// A random matrix that keeps the size of normal input, or a norm's gains.
///
/// Only the first rows are drawn, the others repeat them: the time of a forward does not depend on values.
fn draw((rows, columns, dtype): Key) -> Result<QTensor> {
    const DRAWN: usize = 64;
    if rows == 0 {
        return QTensor::quantize(&Tensor::ones(columns, candle_core::DType::F32, &Device::Cpu)?, dtype);
    }
    let spread = 1.0 / (columns as f32).sqrt();
    let values = Tensor::randn(0.0, spread, (DRAWN, columns), &Device::Cpu)?;
    let first = QTensor::quantize(&values, dtype)?;
    let bytes = first.data()?;
    let wanted = bytes.len() / DRAWN * rows;
    let all: Vec<u8> = bytes.iter().copied().cycle().take(wanted).collect();
    QTensor::new(QStorage::from_data(Cow::Owned(all), &Device::Cpu, dtype)?, (rows, columns))
}
