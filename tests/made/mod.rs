//! Small Llamas with random weights.

mod writer;

use _specrs::arch::llama;
use _specrs::arch::roles::Role;
use _specrs::arch::tensors::Tensor;
use candle_core::quantized::{gguf_file::Value, GgmlDType, QTensor};
use candle_core::Device;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use writer::write;
pub use writer::Shape;

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

/// Writes a Llama whose matrices have type `dtype`; `extra` adds or replaces metadata, `factors` are its
/// [`Role::RopeDivisors`].
pub fn make(shape: &Shape, dtype: GgmlDType, extra: &[(&str, Value)], factors: Option<&[f32]>) -> Made {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("specrs-made-{}-{number}.gguf", std::process::id()));
    let made = Made(path);
    let mut random = Random(1);
    let mut fill = |tensor: &Tensor| {
        let contents = match (tensor.role, &tensor.shape[..]) {
            (Role::Bias(..), _) => None,
            (Role::RopeDivisors, _) => factors.map(|factors| float(factors.to_vec())),
            (Role::Embedding, &[columns, rows]) => Some(random.matrix(rows, columns, 1.0, dtype)),
            // A matrix that keeps the size of normal input.
            (_, &[columns, rows]) => Some(random.matrix(rows, columns, 1.0 / (columns as f32).sqrt(), dtype)),
            (_, shape) => Some(random.gains(shape[0])),
        };
        Ok(contents.map(Arc::new))
    };
    write(made.path(), &llama::FAMILY, shape, extra, &mut fill).unwrap();
    made
}

/// `count` token ids of a vocabulary of `n_vocab`.
pub fn tokens(n_vocab: usize, count: usize) -> Vec<u32> {
    let mut random = Random(2);
    (0..count).map(|_| (random.next() % n_vocab as u64) as u32).collect()
}

fn float(values: Vec<f32>) -> QTensor {
    let tensor = candle_core::Tensor::from_vec(values.clone(), values.len(), &Device::Cpu).unwrap();
    QTensor::quantize(&tensor, GgmlDType::F32).unwrap()
}

/// SplitMix64 (Steele et al., 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
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
        QTensor::quantize(&candle_core::Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap(), dtype)
            .unwrap()
    }

    fn gains(&mut self, count: usize) -> QTensor {
        float((0..count).map(|_| 1.0 + 0.1 * self.normal()).collect())
    }
}
