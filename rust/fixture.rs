//! Files for tests: temporary ones, and GGUF files written field by field, wrong ones included.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::config::Config;
use crate::arch::description::Family;
use crate::arch::keys::Keys;
use crate::arch::roles::Role;
use crate::arch::{granite, granitemoe, llama};
use crate::gguf::file::GgufFile;
use crate::gguf::metadata::{Array, Value};
use crate::gguf::types::GgmlType;

/// A file that is removed when it goes out of scope.
pub struct TempFile(PathBuf);

impl TempFile {
    pub fn new(bytes: &[u8]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::named(&format!("{count}.gguf"), bytes)
    }

    /// A file whose name ends in `name`.
    pub fn named(name: &str, bytes: &[u8]) -> Self {
        let name = format!("specrs-test-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes a GGUF file; everything can be set to something wrong.
#[derive(Clone)]
pub struct GgufWriter {
    pub version: u32,
    pub alignment: usize,
    pub values: Vec<(String, Value)>,
    pub tensors: Vec<FileTensor>,
}

#[derive(Clone)]
pub struct FileTensor {
    pub name: String,
    pub type_id: u32,
    pub shape: Vec<u64>,
    /// Where the header says the data is, relative to the data section; `None` is where it is.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

impl GgufWriter {
    pub fn new() -> Self {
        Self { version: 3, alignment: 32, values: Vec::new(), tensors: Vec::new() }
    }

    /// Set or replace a value.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.values.retain(|(other, _)| other != key);
        self.values.push((key.to_owned(), value));
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.values.retain(|(other, _)| other != key);
        self
    }

    /// Add a tensor whose bytes count up.
    pub fn tensor(&mut self, name: &str, dtype: GgmlType, shape: &[u64]) -> &mut Self {
        let weights = shape.iter().product::<u64>() as usize;
        let bytes = weights / dtype.block_len() * dtype.block_bytes();
        let data = (0..bytes).map(|i| (i % 251) as u8).collect();
        self.data(name, dtype, shape, data)
    }

    pub fn data(&mut self, name: &str, dtype: GgmlType, shape: &[u64], data: Vec<u8>) -> &mut Self {
        self.tensors.push(FileTensor {
            name: name.to_owned(),
            type_id: dtype.id(),
            shape: shape.to_vec(),
            offset: None,
            data,
        });
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for (key, value) in &self.values {
            write_string(&mut out, key);
            write_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            write_string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for n in &tensor.shape {
                out.extend(n.to_le_bytes());
            }
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset as u64).to_le_bytes());
            offset = (offset + tensor.data.len()).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }

    pub fn file(&self) -> TempFile {
        TempFile::new(&self.bytes())
    }
}

fn write_string(out: &mut Vec<u8>, string: &str) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    macro_rules! number {
        ($id:expr, $number:expr) => {{
            out.extend(u32::to_le_bytes($id));
            out.extend($number.to_le_bytes());
        }};
    }
    match value {
        Value::U8(v) => number!(0, v),
        Value::I8(v) => number!(1, v),
        Value::U16(v) => number!(2, v),
        Value::I16(v) => number!(3, v),
        Value::U32(v) => number!(4, v),
        Value::I32(v) => number!(5, v),
        Value::F32(v) => number!(6, v),
        Value::Bool(v) => number!(7, u8::from(*v)),
        Value::String(v) => {
            out.extend(8u32.to_le_bytes());
            write_string(out, v);
        }
        Value::Array(v) => {
            out.extend(9u32.to_le_bytes());
            write_array(out, v);
        }
        Value::U64(v) => number!(10, v),
        Value::I64(v) => number!(11, v),
        Value::F64(v) => number!(12, v),
    }
}

fn write_array(out: &mut Vec<u8>, array: &Array) {
    macro_rules! numbers {
        ($id:expr, $numbers:expr) => {{
            out.extend(u32::to_le_bytes($id));
            out.extend(($numbers.len() as u64).to_le_bytes());
            $numbers.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(v) => numbers!(0, v),
        Array::I8(v) => numbers!(1, v),
        Array::U16(v) => numbers!(2, v),
        Array::I16(v) => numbers!(3, v),
        Array::U32(v) => numbers!(4, v),
        Array::I32(v) => numbers!(5, v),
        Array::F32(v) => numbers!(6, v),
        Array::Bool(v) => {
            out.extend(7u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            out.extend(v.iter().map(|&v| u8::from(v)));
        }
        Array::String(v) => {
            out.extend(8u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|v| write_string(out, v));
        }
        Array::Array(v) => {
            out.extend(9u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|v| write_array(out, v));
        }
        Array::U64(v) => numbers!(10, v),
        Array::I64(v) => numbers!(11, v),
        Array::F64(v) => numbers!(12, v),
    }
}

/// A Llama of two blocks with random-looking weights; its fields can be changed before it is written.
pub fn tiny_llama() -> GgufWriter {
    tiny(&llama::FAMILY, 2)
}

/// A model of this family with so many blocks, from the family's own table of tensors.
pub fn tiny(family: &Family, n_layer: u32) -> GgufWriter {
    let keys = if family.name.ends_with("moe") { &EXPERT_KEYS[..] } else { &[] };
    tiny_with(family, n_layer, keys)
}

/// A model of this family with five experts in each of two blocks.
pub fn mixture(family: &Family) -> GgufWriter {
    tiny_with(family, 2, &EXPERT_KEYS)
}

/// Keys of models with experts; not every family reads all.
pub const EXPERT_KEYS: [(&str, u32); 4] = [
    ("expert_count", 5),
    ("expert_used_count", 2),
    ("expert_feed_forward_length", 40),
    ("expert_shared_feed_forward_length", 24),
];

fn tiny_with(family: &Family, n_layer: u32, more: &[(&str, u32)]) -> GgufWriter {
    let key = |name: &str| format!("{}.{name}", family.name);
    let mut model = GgufWriter::new();
    model
        .set("general.architecture", Value::String(family.name.into()))
        .set(&key("block_count"), Value::U32(n_layer))
        .set(&key("context_length"), Value::U32(128))
        .set(&key("embedding_length"), Value::U32(64))
        .set(&key("feed_forward_length"), Value::U32(96))
        .set(&key("attention.head_count"), Value::U32(4))
        .set(&key("attention.head_count_kv"), Value::U32(2))
        .set(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
    for (name, value) in more {
        model.set(&key(name), Value::U32(*value));
    }
    if [granite::FAMILY.name, granitemoe::FAMILY.name].contains(&family.name) {
        model.set(&key("logit_scale"), Value::F32(4.0));
    }
    // The rows of the embedding are the size of the vocabulary, which no key holds.
    let header = model.clone().tensor(&Role::Embedding.to_string(), GgmlType::F32, &[64, 80]).file();
    let header = GgufFile::open(header.path()).unwrap();
    let config = (family.config)(&Keys::new(&header).unwrap()).unwrap();
    for (name, shape) in tensors_of(family, &config) {
        model.tensor(&name, GgmlType::F32, &shape);
    }
    model
}

/// Names and shapes of the tensors that files of this family have, but for those they may leave out; the output is one
/// that most have.
pub fn tensors_of(family: &Family, config: &Config) -> Vec<(String, Vec<u64>)> {
    let mut all: Vec<(String, Vec<u64>)> = Vec::new();
    for tensor in (family.tensors)(config).iter().filter(|tensor| !tensor.optional || tensor.role == Role::Output) {
        let place = &tensor.places[0];
        if all.iter().all(|(name, _)| *name != place.name) {
            all.push((place.name.clone(), tensor.shape_at(place).iter().map(|&n| n as u64).collect()));
        }
    }
    all
}

impl GgufWriter {
    /// Set a tokenizer model with `tokens` of these types.
    pub fn vocabulary(&mut self, model: &str, tokens: &[(&str, i32)]) -> &mut Self {
        let strings = tokens.iter().map(|(string, _)| string);
        let types = tokens.iter().map(|(_, kind)| *kind);
        self.set("tokenizer.ggml.model", Value::String(model.to_owned()))
            .set(TOKENS, Value::Array(Array::String(strings.collect())))
            .set(TYPES, Value::Array(Array::I32(types.collect())))
    }

    /// Add a token to a vocabulary; its id.
    pub fn add_token(&mut self, string: &str, kind: i32) -> u32 {
        let mut id = 0;
        for (key, value) in &mut self.values {
            match (key.as_str(), value) {
                (TOKENS, Value::Array(Array::String(tokens))) => {
                    id = tokens.len() as u32;
                    tokens.push(string);
                }
                (TYPES, Value::Array(Array::I32(types))) => types.push(kind),
                (SCORES, Value::Array(Array::F32(scores))) => scores.push(0.0),
                _ => (),
            }
        }
        id
    }
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

/// A SentencePiece vocabulary: three marks, the bytes from id 3 on, and `pieces`, the first of which joins first.
pub fn tiny_spm(pieces: &[&str]) -> GgufWriter {
    let bytes: Vec<_> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens = vec![("<unk>", 2), ("<s>", 3), ("</s>", 3)];
    tokens.extend(bytes.iter().map(|byte| (byte.as_str(), 6)));
    tokens.extend(pieces.iter().map(|piece| (*piece, 1)));
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let mut model = GgufWriter::new();
    model.vocabulary("llama", &tokens).set(SCORES, Value::Array(Array::F32(scores)));
    model
}

/// A byte-pair vocabulary: two marks, the printable ASCII characters, and what `merges` join.
pub fn tiny_bpe(merges: &[(&str, &str)]) -> GgufWriter {
    let ascii: Vec<_> = ('!'..='~').chain(['Ġ']).map(String::from).collect();
    let joined: Vec<_> = merges.iter().map(|(left, right)| format!("{left}{right}")).collect();
    let mut tokens = vec![("<s>", 3), ("</s>", 3)];
    tokens.extend(ascii.iter().chain(&joined).map(|token| (token.as_str(), 1)));
    let merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let mut model = GgufWriter::new();
    model
        .vocabulary("gpt2", &tokens)
        .set("tokenizer.ggml.pre", Value::String("gpt-2".into()))
        .set("tokenizer.ggml.merges", Value::Array(Array::String(merges)))
        .set("tokenizer.ggml.bos_token_id", Value::U32(0))
        .set("tokenizer.ggml.eos_token_id", Value::U32(1));
    model
}
