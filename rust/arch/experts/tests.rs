use crate::arch::config::{Config, Experts};
use crate::arch::describe;
use crate::arch::description::Family;
use crate::arch::{granitemoe, llama, qwen3, qwen3moe};
use crate::error::Result;
use crate::fixture::{mixture, tiny, tiny_llama, GgufWriter};
use crate::gguf::file::GgufFile;
use crate::gguf::metadata::Value;
use crate::gguf::types::GgmlType::{F32, Q8_0};

fn config(model: &GgufWriter) -> Result<Config> {
    let file = model.file();
    let file = GgufFile::open(file.path())?;
    describe(&file).map(|description| description.config)
}

fn message(model: &GgufWriter) -> String {
    config(model).expect_err("the file is refused").to_string()
}

#[test]
fn each_family_says_how_wide_its_experts_are() {
    // Keys of the fixture: feed_forward_length 96, expert_feed_forward_length 40.
    for (family, n_ff, wide) in [(&llama::FAMILY, 0, 96), (&qwen3moe::FAMILY, 0, 40), (&granitemoe::FAMILY, 24, 96)] {
        let config = config(&mixture(family)).unwrap();
        assert_eq!(config.experts, Some(Experts { count: 5, used: 2, n_ff: wide }), "{}", family.name);
        assert_eq!(config.n_ff, n_ff, "{}", family.name);
    }
}

#[test]
fn of_qwen3moe_a_row_has_the_whole_width_where_experts_have_none() {
    let mut model = mixture(&qwen3moe::FAMILY);
    model.remove("qwen3moe.expert_feed_forward_length");
    model.set("qwen3moe.feed_forward_length", Value::U32(80));
    assert_eq!(config(&model).unwrap().experts.unwrap().n_ff, 40);
}

#[test]
fn a_shared_expert_is_there_if_the_file_says_so() {
    let without = |width: Option<u32>| {
        let mut model = mixture(&granitemoe::FAMILY);
        match width {
            Some(width) => model.set("granitemoe.expert_shared_feed_forward_length", Value::U32(width)),
            None => model.remove("granitemoe.expert_shared_feed_forward_length"),
        };
        model
    };
    for width in [Some(0), None] {
        let mut model = without(width);
        assert!(message(&model).contains("_shexp.weight` belongs to a variant of \"granitemoe\""));
        model.tensors.retain(|tensor| !tensor.name.contains("_shexp"));
        assert_eq!(config(&model).unwrap().n_ff, 0);
    }
    assert!(message(&without(Some(32))).contains("ffn_gate_shexp.weight` has shape [64, 24]"));
}

#[test]
fn counts_that_lie_are_refused() {
    for (key, value, words) in [
        ("expert_count", 1, "expert_count` is 1, but a router needs 2 or more"),
        ("expert_count", 6, "ffn_router"),
        ("expert_count", 4, "ffn_router"),
        ("expert_count", u32::MAX, "expert_count` must be from 1 to"),
        ("expert_used_count", 0, "expert_used_count` must be from 1 to"),
        ("expert_used_count", 6, "expert_used_count` is 6, but there are only 5 experts"),
        (
            "expert_feed_forward_length",
            48,
            "ffn_gate_exps.weight` has shape [64, 40, 5] but the metadata demands [64, 48, 5]",
        ),
    ] {
        let mut model = mixture(&qwen3moe::FAMILY);
        model.set(&format!("qwen3moe.{key}"), Value::U32(value));
        let words =
            words.replace("ffn_router", "ffn_gate_inp.weight` has shape [64, 5] but the metadata demands [64, ");
        assert!(message(&model).contains(&words), "{}", message(&model));
    }
    for key in ["expert_count", "expert_used_count"] {
        let mut model = mixture(&qwen3moe::FAMILY);
        model.remove(&format!("qwen3moe.{key}"));
        assert!(message(&model).contains(&format!("`qwen3moe.{key}` is missing")));
    }
}

#[test]
fn missing_and_extra_tensors_are_refused() {
    for stem in ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
        let name = format!("blk.1.{stem}.weight");
        let mut model = mixture(&llama::FAMILY);
        model.tensors.retain(|tensor| tensor.name != name);
        assert!(message(&model).contains(&format!("tensor `{name}` is missing")));
    }
    for name in ["blk.0.ffn_gate.weight", "blk.0.ffn_gate_up_exps.weight", "blk.1.ffn_gate_exps.bias"] {
        let mut model = mixture(&llama::FAMILY);
        model.tensor(name, F32, &[8]);
        assert!(message(&model).contains(&format!("`{name}` belongs to a variant")));
    }
}

#[test]
fn other_families_have_no_experts() {
    let dense = |family: &Family| {
        let mut model = tiny(family, 2);
        model.set(&format!("{}.expert_count", family.name), Value::U32(8));
        model
    };
    assert!(message(&dense(&qwen3::FAMILY)).contains("(`qwen3.expert_count`) is not supported for architecture"));
    let mut none = tiny_llama();
    none.set("llama.expert_count", Value::U32(0));
    assert_eq!(config(&none).unwrap().experts, None);
}

#[test]
fn routers_are_finite_floats() {
    use crate::model::{Model, Options};
    let load = |model: &GgufWriter, device: &str| {
        let file = model.file();
        let file = GgufFile::open(file.path()).unwrap();
        let options = Options { n_ctx: None, threads: Some(1), device };
        let options = Options { threads: options.threads.filter(|_| device == "cpu"), ..options };
        options
            .check(&file)
            .and_then(|checked| Model::load(checked, &mut || false))
            .map(drop)
            .map_err(|e| e.to_string())
    };
    let model = mixture(&llama::FAMILY);
    load(&model, "cpu").unwrap();
    assert!(load(&model, "candle-cpu").unwrap_err().contains("use device=\"cpu\""));
    let index = model.tensors.iter().position(|tensor| tensor.name == "blk.1.ffn_gate_inp.weight").unwrap();
    for bits in [f32::NAN, f32::INFINITY] {
        let mut broken = model.clone();
        broken.tensors[index].data[40..44].copy_from_slice(&bits.to_le_bytes());
        let message = load(&broken, "cpu").unwrap_err();
        assert!(message.contains(&format!("`blk.1.ffn_gate_inp.weight` holds {bits}")), "{message}");
    }
    let mut quantised = model.clone();
    quantised.tensors.remove(index);
    quantised.tensor("blk.1.ffn_gate_inp.weight", Q8_0, &[64, 5]);
    assert!(load(&quantised, "cpu").unwrap_err().contains("has type Q8_0, but norms, biases and routers must be F32"));
}
