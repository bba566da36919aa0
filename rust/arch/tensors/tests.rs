use crate::arch::describe;
use crate::error::Result;
use crate::fixture::{tiny_llama, GgufWriter};
use crate::gguf::file::GgufFile;
use crate::gguf::metadata::Value;
use crate::gguf::types::GgmlType::F32;

fn check(writer: &GgufWriter) -> Result<()> {
    let file = writer.file();
    let file = GgufFile::open(file.path())?;
    describe(&file).map(drop)
}

#[test]
fn every_tensor_is_needed_in_its_shape() {
    let model = tiny_llama();
    check(&model).unwrap();
    for index in 0..model.tensors.len() {
        let mut missing = model.clone();
        let name = missing.tensors.remove(index).name;
        let result = check(&missing);
        if name == "output.weight" {
            result.unwrap();
            continue;
        }
        let message = result.unwrap_err().to_string();
        assert!(message.contains(&format!("`{name}` is missing")), "{message}");

        let mut wrong = model.clone();
        let tensor = &mut wrong.tensors[index];
        *tensor.shape.last_mut().unwrap() += 1;
        tensor.data.resize(tensor.shape.iter().product::<u64>() as usize * 4, 0);
        let message = check(&wrong).unwrap_err().to_string();
        // The embedding says how many tokens there are, so that the output does not fit it.
        let blamed = if name.starts_with("token") { "output.weight" } else { &name };
        assert!(message.contains(&format!("`{blamed}` has shape [")), "{message}");
        assert!(message.contains("demands ["), "{message}");
    }
}

#[test]
fn tensors_of_other_decoders_are_refused() {
    for name in [
        "blk.0.attn_norm.bias",
        "blk.1.ffn_gate_inp.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.attn_q_norm.weight",
        "blk.0.attn_sinks.weight",
        "blk.2.attn_q.weight",
        "output.bias",
        "token_embd_norm.weight",
        "position_embd.weight",
        "rope_factors_long.weight",
    ] {
        let mut model = tiny_llama();
        model.tensor(name, F32, &[8]);
        let message = check(&model).unwrap_err().to_string();
        assert!(message.contains(&format!("`{name}` belongs to a variant")), "{message}");
    }
}

#[test]
fn harmless_tensors_are_listed() {
    let mut model = tiny_llama();
    model.tensor("foo.weight", F32, &[8]);
    model.tensor("blk.0.attn_rot_embd.weight", F32, &[8]);
    let file = model.file();
    let file = GgufFile::open(file.path()).unwrap();
    assert_eq!(describe(&file).unwrap().tensors.ignored(), ["foo.weight", "blk.0.attn_rot_embd.weight"]);
}

#[test]
fn blocks_and_heads_agree_with_the_metadata() {
    let mut model = tiny_llama();
    model.set("llama.block_count", Value::U32(3));
    let message = check(&model).unwrap_err().to_string();
    assert!(message.contains("`blk.2.attn_norm.weight` is missing"), "{message}");
    let mut model = tiny_llama();
    model.set("llama.attention.key_length", Value::U32(32));
    let message = check(&model).unwrap_err().to_string();
    assert!(message.contains("has shape [64, 64] but the metadata demands [128, 64]"), "{message}");
}

#[test]
fn dimensions_of_one_at_the_end_do_not_matter() {
    let mut model = tiny_llama();
    let norm = model.tensors.iter_mut().find(|t| t.name == "output_norm.weight");
    norm.unwrap().shape.extend([1, 1]);
    check(&model).unwrap();
}
