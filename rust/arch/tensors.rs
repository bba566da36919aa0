//! The tensors of a Llama model file: which must be there, in which shape, and which must not be overlooked.

use std::collections::BTreeMap;

use crate::arch::config::Config;
use crate::error::Result;
use crate::gguf::file::{GgufFile, TensorInfo};

/// What names of tensors contain that change the result but that a plain Llama has not: biases, more norms, gates of
/// experts, scales beside the weights, other encodings of positions.
const SIGNIFICANT: [&str; 7] = [".bias", "scale", "_norm", "_exps", "position_embd", "token_types", "rope_factors"];

/// Check that `file` has the tensors of the decoder that `config` describes, in the right shapes, and none that this
/// decoder would have to use but cannot.
///
/// Other tensors are tolerated; [`ignored_tensors`] lists them.
pub fn check_tensors(file: &GgufFile, config: &Config) -> Result<()> {
    let expected = expected_shapes(file, config);
    for (name, shape) in &expected {
        let found = significant_shape(file.require(name)?);
        if found != shape {
            return Err(file.metadata().error(format_args!(
                "tensor `{name}` has shape {found:?} but the metadata demands {shape:?} (row length first)"
            )));
        }
    }
    for TensorInfo { name, .. } in file.tensors() {
        let significant = SIGNIFICANT.iter().any(|part| name.contains(part));
        if !expected.contains_key(name) && (significant || belongs_to_block(name)) {
            return Err(file.metadata().error(format_args!(
                "tensor `{name}` belongs to a variant of Llama that is not supported: \
                 only plain Llama decoders work, without biases, experts or further norms"
            )));
        }
    }
    Ok(())
}

/// Names of the tensors that are not used.
pub fn ignored_tensors<'a>(file: &'a GgufFile, config: &Config) -> Vec<&'a str> {
    let expected = expected_shapes(file, config);
    file.tensors().iter().map(|tensor| tensor.name.as_str()).filter(|name| !expected.contains_key(*name)).collect()
}

/// Every tensor that is used, with its shape, the row length first.
fn expected_shapes(file: &GgufFile, config: &Config) -> BTreeMap<String, Vec<usize>> {
    let (n_embd, n_ff) = (config.n_embd, config.n_ff);
    let queries = config.n_head * config.head_dim;
    let keys = config.n_head_kv * config.head_dim;
    let mut shapes = BTreeMap::new();
    let mut expect = |name: &str, shape: &[usize]| shapes.insert(name.to_owned(), shape.to_vec());

    expect("token_embd.weight", &[n_embd, config.n_vocab]);
    expect("output_norm.weight", &[n_embd]);
    if file.tensor("output.weight").is_some() {
        expect("output.weight", &[n_embd, config.n_vocab]);
    }
    if file.tensor("rope_freqs.weight").is_some() {
        expect("rope_freqs.weight", &[config.rope_freqs.len()]);
    }
    for layer in 0..config.n_layer {
        let mut expect = |name, shape: &[usize]| expect(&format!("blk.{layer}.{name}.weight"), shape);
        expect("attn_norm", &[n_embd]);
        expect("attn_q", &[n_embd, queries]);
        expect("attn_k", &[n_embd, keys]);
        expect("attn_v", &[n_embd, keys]);
        expect("attn_output", &[queries, n_embd]);
        expect("ffn_norm", &[n_embd]);
        expect("ffn_gate", &[n_embd, n_ff]);
        expect("ffn_up", &[n_embd, n_ff]);
        expect("ffn_down", &[n_ff, n_embd]);
    }
    shapes
}

/// The shape without dimensions of 1 at its end.
fn significant_shape(tensor: &TensorInfo) -> &[usize] {
    let ones = tensor.shape.iter().rev().take_while(|&&n| n == 1).count();
    &tensor.shape[..tensor.shape.len() - ones]
}

/// Whether `name` is a tensor of a block that does not only repeat the rotary frequencies.
fn belongs_to_block(name: &str) -> bool {
    name.starts_with("blk.") && !name.contains("rope_freqs") && !name.contains("attn_rot_embd")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{tiny_llama, GgufWriter};
    use crate::gguf::metadata::Value;
    use crate::gguf::types::GgmlType::F32;

    fn check(writer: &GgufWriter) -> Result<()> {
        let file = writer.file();
        let file = GgufFile::open(file.path())?;
        check_tensors(&file, &Config::from_gguf(&file)?)
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
            "blk.0.attn_q.bias",
            "blk.1.ffn_gate_inp.weight",
            "blk.0.ffn_gate_exps.weight",
            "blk.0.attn_q_norm.weight",
            "blk.0.attn_q.scale",
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
        let config = Config::from_gguf(&file).unwrap();
        let ignored = ignored_tensors(&file, &config);
        assert_eq!(ignored, ["foo.weight", "blk.0.attn_rot_embd.weight"]);
    }

    #[test]
    fn blocks_and_heads_agree_with_the_metadata() {
        let mut model = tiny_llama();
        model.set("llama.block_count", Value::U32(3));
        let message = check(&model).unwrap_err().to_string();
        assert!(message.contains("`blk.2.attn_k.weight` is missing"), "{message}");
        let mut model = tiny_llama();
        model.set("llama.attention.key_length", Value::U32(32));
        let message = check(&model).unwrap_err().to_string();
        assert!(message.contains("has shape [64, 32] but the metadata demands [64, 64]"), "{message}");
    }

    #[test]
    fn dimensions_of_one_at_the_end_do_not_matter() {
        let mut model = tiny_llama();
        let norm = model.tensors.iter_mut().find(|t| t.name == "output_norm.weight");
        norm.unwrap().shape.extend([1, 1]);
        check(&model).unwrap();
    }
}
