//! Small Llamas with random weights, written by candle's GGUF writer.

use candle_core::quantized::{gguf_file, gguf_file::Value, GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The shape of a model.
#[derive(Clone, Copy)]
pub struct Shape {
    pub n_layer: usize,
    pub n_embd: usize,
    pub n_head: usize,
    pub n_head_kv: usize,
    pub head_dim: usize,
    pub n_ff: usize,
    pub n_vocab: usize,
}

/// Grouped heads; rows are whole blocks of every type.
pub const SMALL: Shape =
    Shape { n_layer: 2, n_embd: 256, n_head: 4, n_head_kv: 2, head_dim: 64, n_ff: 512, n_vocab: 96 };

/// A model file that is removed when it goes out of scope.
pub struct Made(PathBuf);

impl Made {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes a model whose matrices have type `dtype`; `extra` adds or replaces metadata, `factors` fill `rope_freqs`.
pub fn make(shape: &Shape, dtype: GgmlDType, extra: &[(&str, Value)], factors: Option<&[f32]>) -> Made {
    let mut metadata = vec![
        ("general.architecture", Value::String("llama".into())),
        ("llama.block_count", Value::U32(shape.n_layer as u32)),
        ("llama.context_length", Value::U32(8192)),
        ("llama.embedding_length", Value::U32(shape.n_embd as u32)),
        ("llama.feed_forward_length", Value::U32(shape.n_ff as u32)),
        ("llama.attention.head_count", Value::U32(shape.n_head as u32)),
        ("llama.attention.head_count_kv", Value::U32(shape.n_head_kv as u32)),
        // Large, so that it makes a difference.
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(0.01)),
        ("llama.rope.dimension_count", Value::U32(shape.head_dim as u32)),
    ];
    metadata.retain(|(key, _)| extra.iter().all(|(other, _)| other != key));
    metadata.extend(extra.iter().cloned());

    let mut random = Random(1);
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), random.matrix(shape.n_vocab, shape.n_embd, 1.0, dtype)),
        ("output.weight".to_owned(), random.weights(shape.n_vocab, shape.n_embd, dtype)),
        ("output_norm.weight".to_owned(), random.gains(shape.n_embd)),
    ];
    let (queries, keys) = (shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim);
    for layer in 0..shape.n_layer {
        for (name, rows, columns) in [
            ("attn_q", queries, shape.n_embd),
            ("attn_k", keys, shape.n_embd),
            ("attn_v", keys, shape.n_embd),
            ("attn_output", shape.n_embd, queries),
            ("ffn_gate", shape.n_ff, shape.n_embd),
            ("ffn_up", shape.n_ff, shape.n_embd),
            ("ffn_down", shape.n_embd, shape.n_ff),
        ] {
            tensors.push((format!("blk.{layer}.{name}.weight"), random.weights(rows, columns, dtype)));
        }
        for name in ["attn_norm", "ffn_norm"] {
            tensors.push((format!("blk.{layer}.{name}.weight"), random.gains(shape.n_embd)));
        }
    }
    if let Some(factors) = factors {
        tensors.push(("rope_freqs.weight".to_owned(), float(factors.to_vec())));
    }

    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("specrs-made-{}-{number}.gguf", std::process::id()));
    let made = Made(path);
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut File::create(made.path()).unwrap(), &metadata, &tensors).unwrap();
    made
}

/// `count` token ids of a vocabulary of `n_vocab`.
pub fn tokens(n_vocab: usize, count: usize) -> Vec<u32> {
    let mut random = Random(2);
    (0..count).map(|_| (random.next() % n_vocab as u64) as u32).collect()
}

fn float(values: Vec<f32>) -> QTensor {
    let tensor = Tensor::from_vec(values.clone(), values.len(), &Device::Cpu).unwrap();
    QTensor::quantize(&tensor, GgmlDType::F32).unwrap()
}

/// SplitMix64 (Steele et al., 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Nearly normal: the sum of twelve uniform numbers has variance 1.
    fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| (self.next() >> 11) as f64 * 2f64.powi(-53)).sum();
        (sum - 6.0) as f32
    }

    fn matrix(&mut self, rows: usize, columns: usize, scale: f32, dtype: GgmlDType) -> QTensor {
        let values: Vec<f32> = (0..rows * columns).map(|_| self.normal() * scale).collect();
        QTensor::quantize(&Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap(), dtype).unwrap()
    }

    /// A matrix that keeps the size of normal input.
    fn weights(&mut self, rows: usize, columns: usize, dtype: GgmlDType) -> QTensor {
        self.matrix(rows, columns, 1.0 / (columns as f32).sqrt(), dtype)
    }

    fn gains(&mut self, count: usize) -> QTensor {
        float((0..count).map(|_| 1.0 + 0.1 * self.normal()).collect())
    }
}
