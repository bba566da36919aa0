//! Model files with random weights, written by candle from the table of tensors of their family.

use _specrs::arch::config::{Block, Config};
use _specrs::arch::description::Family;
use _specrs::arch::rope::RopeTable;
use _specrs::arch::tensors::Tensor;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::QTensor;
use candle_core::Result;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

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

/// Positions of a model's context.
const N_CTX: usize = 8192;
/// Large, so that it makes a difference.
const RMS_EPS: f32 = 0.1;

impl Shape {
    /// As a file describes it, all blocks alike.
    fn config(&self) -> Config {
        let Self { n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab } = *self;
        Config {
            n_vocab,
            n_embd,
            n_layer,
            n_head,
            n_head_kv,
            head_dim,
            n_ff,
            n_ctx_train: N_CTX,
            rms_eps: RMS_EPS,
            ropes: vec![RopeTable { freqs: vec![0.0; head_dim / 2], magnitude: 1.0, long: None }],
            blocks: vec![Block::PLAIN; n_layer],
            ..Config::default()
        }
    }
}

/// Writes a model to `path`. `fill` gives the contents of each tensor that its family can have, or leaves an optional one
/// out; `extra` adds or replaces metadata.
///
/// # Errors
/// Of `fill`, and of writing the file.
pub fn write(
    path: &Path,
    family: &Family,
    shape: &Shape,
    extra: &[(&str, Value)],
    fill: &mut dyn FnMut(&Tensor) -> Result<Option<Arc<QTensor>>>,
) -> Result<()> {
    let config = shape.config();
    let key = |name: &str| format!("{}.{name}", family.name);
    let count = |name, n: usize| (key(name), Value::U32(n as u32));
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::String(family.name.to_owned())),
        count("block_count", config.n_layer),
        count("context_length", config.n_ctx_train),
        count("embedding_length", config.n_embd),
        count("feed_forward_length", config.n_ff),
        count("attention.head_count", config.n_head),
        count("attention.head_count_kv", config.n_head_kv),
        count("attention.key_length", config.head_dim),
        count("attention.value_length", config.head_dim),
        (key("attention.layer_norm_rms_epsilon"), Value::F32(config.rms_eps)),
        count("rope.dimension_count", config.head_dim),
    ];
    metadata.retain(|(key, _)| extra.iter().all(|(other, _)| other != key));
    metadata.extend(extra.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));

    let mut tensors = Vec::new();
    for tensor in (family.tensors)(&config) {
        tensors.extend(fill(&tensor)?.map(|contents| (tensor.places[0].name.clone(), contents)));
    }
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, contents)| (name.as_str(), &**contents)).collect();
    gguf_file::write(&mut BufWriter::new(File::create(path)?), &metadata, &tensors)
}
