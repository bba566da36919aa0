use super::*;
use crate::arch::describe;
use crate::fixture::{tiny_llama, GgufWriter};
use crate::gguf::file::GgufFile;
use crate::gguf::metadata::{Array, Value};
use crate::gguf::types::GgmlType::F32;

fn message(model: &GgufWriter) -> Option<String> {
    let file = model.file();
    describe(&GgufFile::open(file.path()).unwrap()).err().map(|error| error.to_string())
}

fn check_message(model: &GgufWriter, words: &[&str]) {
    let message = message(model).expect("the file is refused");
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
}

fn string(text: &str) -> Value {
    Value::String(text.to_owned())
}

#[test]
fn architectures_are_refused_by_what_they_are() {
    for (name, words) in [
        ("qwen35", "keeps a recurrent state, which cannot be taken back"),
        ("mamba2", "keeps a recurrent state"),
        ("llada", "diffusion"),
        ("nomic-bert", "no causal text model"),
        ("clip", "open the model's"),
        ("gptoss", "Ollama's own conversion"),
        ("deepseek2", "is not supported"),
    ] {
        let mut model = tiny_llama();
        model.set("general.architecture", string(name));
        check_message(&model, &[&format!("architecture \"{name}\" "), words, "(supported: \"llama\""]);
    }
}

#[test]
fn no_architecture_is_listed_twice_or_supported() {
    let mut names: Vec<&str> = ARCHITECTURES.iter().flat_map(|(names, _)| names.iter().copied()).collect();
    names.extend(crate::arch::FAMILIES.iter().map(|family| family.name));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn keys_are_refused_with_their_values() {
    for (key, value, words) in [
        ("general.type", string("mmproj"), &["\"mmproj\"", "open the \"model\""][..]),
        ("llama.pooling_type", Value::U32(3), &["made for vectors", "`llama.pooling_type` is 3"]),
        ("llama.attention.causal", Value::Bool(false), &["made for vectors", "`llama.attention.causal` is false"]),
        ("llama.expert_gating_func", Value::U32(2), &["router", "`llama.expert_gating_func` = 2"]),
        ("llama.expert_group_count", Value::U32(8), &["router", "`llama.expert_group_count` = 8"]),
        ("llama.expert_weights_scale", Value::F32(2.5), &["router", "`llama.expert_weights_scale` = 2.5"]),
        ("llama.attention.clamp_kqv", Value::F32(8.0), &["`llama.attention.clamp_kqv` = 8"]),
        ("llama.attention.max_alibi_bias", Value::F32(8.0), &["`llama.attention.max_alibi_bias` = 8"]),
        ("llama.rope.scaling.alpha", Value::F32(1000.0), &["`llama.rope.scaling.alpha` = 1000"]),
    ] {
        let mut model = tiny_llama();
        model.set(key, value);
        check_message(&model, words);
    }
}

#[test]
fn the_same_keys_with_usual_values_pass() {
    for (key, value) in [
        ("general.type", string("model")),
        ("llama.pooling_type", Value::U32(0)),
        ("llama.attention.causal", Value::Bool(true)),
        ("llama.expert_gating_func", Value::U32(1)),
        ("llama.expert_group_count", Value::U32(1)),
        ("llama.expert_weights_scale", Value::F32(0.0)),
        ("llama.expert_weights_scale", Value::F32(1.0)),
        ("llama.attention.clamp_kqv", Value::F32(0.0)),
        ("llama.attention.max_alibi_bias", Value::F32(0.0)),
        ("llama.rope.scaling.alpha", Value::F32(0.0)),
        ("llama.rope.dimension_sections", Value::Array(Array::I32(vec![4, 4, 0, 0]))),
    ] {
        let mut model = tiny_llama();
        model.set(key, value);
        assert_eq!(message(&model), None, "{key}");
    }
}

#[test]
fn sections_of_images_are_refused_in_glm4() {
    let mut model = tiny_llama();
    model.set("general.architecture", string("glm4"));
    let key = "glm4.rope.dimension_sections";
    model.set(key, Value::Array(Array::I32(vec![8, 12, 12, 0])));
    check_message(&model, &["`glm4.rope.dimension_sections` = [8, 12, 12, 0] is not supported"]);
}

#[test]
fn tensors_of_other_formats_are_refused() {
    for (name, words) in [
        ("cls.output.weight", &["made for vectors", "tensor `cls.output.weight`"]),
        ("blk.0.attn_q.scale", &["NVFP4 or FP8", "take one in Q4_K_M or Q8_0"]),
        ("blk.0.ffn_up.input_scale", &["NVFP4 or FP8", "`blk.0.ffn_up.input_scale`"]),
        ("blk.1.ffn_gate.3.weight", &["one expert alone", "convert the model again"]),
        ("blk.1.exp_probs_b.bias", &["router", "`blk.1.exp_probs_b.bias`"]),
        ("blk.1.ffn_up_shexp.weight", &["router", "`blk.1.ffn_up_shexp.weight`"]),
    ] {
        let mut model = tiny_llama();
        model.tensor(name, F32, &[8]);
        check_message(&model, words);
    }
}

#[test]
fn arrays_over_blocks_have_an_entry_for_each() {
    for key in ["attention.head_count", "attention.head_count_kv", "feed_forward_length"] {
        for entries in [0, 1, 3] {
            let mut model = tiny_llama();
            model.set(&format!("llama.{key}"), Value::Array(Array::I32(vec![2; entries])));
            check_message(&model, &[&format!("`llama.{key}` has {entries} entries but `llama.block_count` is 2")]);
        }
    }
}
