use super::*;
use crate::arch::describe;
use crate::fixture::{tiny_llama, GgufWriter};
use crate::gguf::file::GgufFile;
use crate::gguf::metadata::{Array, Value};
use crate::gguf::types::GgmlType;

fn config(model: &GgufWriter) -> Result<Config> {
    let file = model.file();
    Config::dense(&Keys::new(&GgufFile::open(file.path())?)?)
}

/// The frequencies of its only rotation.
fn freqs(model: &GgufWriter) -> Vec<f64> {
    let Config { mut ropes, blocks, .. } = config(model).unwrap();
    assert!(ropes.len() == 1 && blocks.iter().all(|block| block.rope == Some(0)));
    ropes.remove(0).freqs
}

/// The tiny model with one key set.
fn with(key: &str, value: Value) -> GgufWriter {
    let mut model = tiny_llama();
    model.set(key, value);
    model
}

fn string(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn reads_a_plain_model() {
    let config = config(&tiny_llama()).unwrap();
    assert_eq!(
        config,
        Config {
            n_vocab: 80,
            n_embd: 64,
            n_layer: 2,
            n_head: 4,
            n_head_kv: 2,
            head_dim: 16,
            n_ff: 96,
            n_ctx_train: 128,
            rms_eps: 1e-5,
            ropes: vec![RopeTable {
                freqs: (0..8).map(|i| 10_000f64.powf(-f64::from(i) / 8.0)).collect(),
                magnitude: 1.0,
                long: None,
            }],
            blocks: vec![Block::PLAIN; 2],
            score_divisor: 4.0,
            ..Config::default()
        }
    );
}

#[test]
fn refusals_name_their_reason() {
    let eq_heads = |n| Value::Array(Array::U32(n));
    for (key, value, message) in [
        (
            "general.architecture",
            string("deepseek2"),
            "architecture \"deepseek2\" is not supported (supported: \"llama\"",
        ),
        ("general.type", string("adapter"), "holds a \"adapter\""),
        ("llama.expert_count", Value::U32(8), "`llama.expert_used_count` is missing"),
        ("llama.block_count", Value::U32(0), "`llama.block_count` must be from 1 to"),
        ("llama.block_count", Value::U64(u64::MAX), "`llama.block_count` must be from 1 to"),
        ("llama.block_count", string("two"), "`llama.block_count` must be an integer"),
        ("llama.context_length", Value::I32(-1), "`llama.context_length` must be an integer that is not negative"),
        ("llama.attention.head_count_kv", Value::U32(3), "4 query heads cannot share 3"),
        ("llama.attention.head_count_kv", eq_heads(vec![2, 1]), "differs between blocks"),
        ("llama.attention.head_count", Value::U32(6), "6 heads do not divide the width 64"),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), "above 0 but is NaN"),
        ("llama.rope.dimension_count", Value::U32(7), "must be even and at most 16"),
        ("llama.rope.dimension_count", Value::U32(18), "must be even and at most 16"),
        ("llama.rope.freq_base", Value::F32(0.0), "`llama.rope.freq_base` must be a finite number above 0"),
        ("llama.rope.scaling.type", string("su"), "\"su\" is not supported"),
        ("llama.rope.scaling.type", string("yarn"), "`llama.rope.scaling.factor` is missing"),
        ("llama.rope.scaling.factor", Value::F32(f32::INFINITY), "above 0 but is inf"),
    ] {
        let file = with(key, value).file();
        let error = describe(&GgufFile::open(file.path()).unwrap()).err().unwrap().to_string();
        assert!(error.contains(message), "{key}: {error}");
    }
    for key in ["general.architecture", "llama.block_count", "llama.attention.layer_norm_rms_epsilon"] {
        let mut model = tiny_llama();
        model.remove(key);
        let error = config(&model).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}` is missing")), "{error}");
    }
}

#[test]
fn heads_may_be_wider_than_their_share() {
    let mut model = with("llama.attention.key_length", Value::U32(16));
    assert_eq!(config(&model).unwrap().head_dim, 16);
    model.set("llama.attention.value_length", Value::U32(32));
    let error = config(&model).unwrap_err().to_string();
    assert!(error.contains("keys of 16 and values of 32"), "{error}");
    model.set("llama.attention.key_length", Value::U32(32));
    assert_eq!(config(&model).unwrap().head_dim, 32);
}

#[test]
fn equal_numbers_per_block_are_one_number() {
    let array = Value::Array(Array::I32(vec![2, 2]));
    let same = with("llama.attention.head_count_kv", array);
    assert_eq!(config(&same).unwrap(), config(&tiny_llama()).unwrap());
}

#[test]
fn linear_scaling_divides_the_frequencies() {
    let plain = freqs(&tiny_llama());
    let quarter: Vec<f64> = plain.iter().map(|f| f / 4.0).collect();
    let mut model = with("llama.rope.scaling.type", string("linear"));
    model.set("llama.rope.scaling.factor", Value::F32(4.0));
    assert_eq!(freqs(&model), quarter);
    model.set("llama.rope.scaling.type", string("none"));
    assert_eq!(freqs(&model), plain);
    let old = with("llama.rope.scale_linear", Value::F32(4.0));
    assert_eq!(freqs(&old), quarter);
}

#[test]
fn partial_rotation_and_its_base() {
    let mut model = with("llama.rope.dimension_count", Value::U32(4));
    model.set("llama.rope.freq_base", Value::F32(500_000.0));
    let expected = [1.0, 500_000f64.powf(-0.5)];
    assert_eq!(freqs(&model), expected);
}

#[test]
fn factors_of_llama_3_divide_each_frequency() {
    let plain = freqs(&tiny_llama());
    let factors = [1.0, 1.0, 1.5, 2.0, 3.0, 8.0, 8.0, 8.0];
    let with_factors = |factors: &[f32]| {
        let mut model = tiny_llama();
        let shape = [factors.len() as u64];
        model.data("rope_freqs.weight", GgmlType::F32, &shape, f32_bytes(factors));
        model
    };
    assert_eq!(freqs(&with_factors(&[1.0; 8])), plain);
    for ((scaled, plain), factor) in freqs(&with_factors(&factors)).iter().zip(&plain).zip(factors) {
        assert!((scaled * f64::from(factor) / plain - 1.0).abs() < 1e-12);
    }
    for wrong in [&[1.0; 7][..], &[1.0; 9], &[0.0; 8], &[f32::NAN; 8]] {
        let error = config(&with_factors(wrong)).unwrap_err().to_string();
        assert!(error.contains("`rope_freqs.weight`"), "{error}");
    }
}

#[test]
fn keys_that_the_family_does_not_know_are_listed() {
    let mut model = tiny_llama();
    model.set("llama.attention.sliding_window", Value::U32(16));
    model.set("llama.vocab_size", Value::U32(80));
    model.set("other.attention.sliding_window", Value::U32(16));
    let file = GgufFile::open(model.file().path()).unwrap();
    assert_eq!(describe(&file).unwrap().unread, ["llama.attention.sliding_window"]);
}
