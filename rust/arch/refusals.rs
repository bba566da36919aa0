//! Files that hold something other than a decoder that can be run: told by name, before anything else is read, so that
//! none of it ends in a message about a tensor, or in wrong numbers. What one family alone cannot do stays with it.

use crate::arch::keys::Keys;
use crate::error::{Error, Result};

/// Architectures of llama.cpp and others that are no plain decoders, and what they are.
const ARCHITECTURES: [(&[&str], &str); 5] = [
    (
        &[
            "arwkv7",
            "bailingmoe3",
            "deepseek4",
            "falcon-h1",
            "glm5-next",
            "granitehybrid",
            "jamba",
            "kimi-k3",
            "kimi-linear",
            "lfm2",
            "lfm2moe",
            "mamba",
            "mamba2",
            "minimax-01",
            "nemotron_h",
            "nemotron_h_moe",
            "plamo2",
            "qwen35",
            "qwen35moe",
            "qwen3next",
            "qwen4exp",
            "rwkv6",
            "rwkv6qwen2",
            "rwkv7",
        ],
        "keeps a recurrent state, which cannot be taken back when a draft is rejected",
    ),
    (&["dream", "llada", "llada-moe", "rnd1"], "is a diffusion model: it does not write token after token"),
    (
        &[
            "bert",
            "eurobert",
            "gemma-embedding",
            "jina-bert-v2",
            "jina-bert-v3",
            "llama-embed",
            "modern-bert",
            "neo-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "t5",
            "t5encoder",
            "wavtokenizer-dec",
            "whisper",
        ],
        "is an encoder or made for sound: no causal text model",
    ),
    (&["clip"], "is a projector that belongs to another file: open the model's"),
    (
        &["gptoss", "mllama", "qwen25vl"],
        "comes from Ollama's own conversion: take a file of llama.cpp's converter, convert_hf_to_gguf.py",
    ),
];

/// Refuses a file by its architecture, by what its keys say it is for, and by tensors and keys that no family here has.
/// `supported` lists the families, as messages do.
///
/// # Errors
/// [`Error::Gguf`] says what the file holds and the way out.
pub fn check(keys: &Keys<'_>, supported: &str) -> Result<()> {
    check_type(keys)?;
    let name = keys.architecture();
    if let Some((_, what)) = ARCHITECTURES.iter().find(|(names, _)| names.contains(&name)) {
        return Err(keys.error(format_args!("architecture \"{name}\" {what} (supported: {supported})")));
    }
    check_purpose(keys)?;
    check_tensors(keys)?;
    check_experts(keys)?;
    check_attention(keys)
}

/// An adapter or projector is only a part of some model.
fn check_type(keys: &Keys<'_>) -> Result<()> {
    match keys.file().metadata().get_str("general.type")? {
        None | Some("model") => Ok(()),
        Some(other) => Err(keys.error(format_args!(
            "the file holds a \"{other}\" (`general.type`), which belongs to another file: open the \"model\""
        ))),
    }
}

/// Embeddings, rankings and classes come from decoders too, which then write no text.
fn check_purpose(keys: &Keys<'_>) -> Result<()> {
    let vectors = |sign: String| {
        keys.error(format_args!(
            "the model is made for vectors or classes, not for text ({sign}); take the model it was made from"
        ))
    };
    let metadata = keys.file().metadata();
    let pooling = keys.name("pooling_type");
    if let Some(kind) = metadata.get_u64(&pooling)?.filter(|&kind| kind > 0) {
        return Err(vectors(format!("`{pooling}` is {kind}")));
    }
    let causal = keys.name("attention.causal");
    if metadata.get_bool(&causal)? == Some(false) {
        return Err(vectors(format!("`{causal}` is false")));
    }
    match tensor(keys, |name| name.starts_with("cls.")) {
        Some(name) => Err(vectors(format!("tensor `{name}`"))),
        None => Ok(()),
    }
}

/// Tensors of other formats of files; those of other decoders have no role, and are refused for that.
fn check_tensors(keys: &Keys<'_>) -> Result<()> {
    let scale = |name: &str| name.ends_with(".scale") || name.ends_with(".input_scale");
    if let Some(name) = tensor(keys, scale) {
        return Err(keys.error(format_args!(
            "tensor `{name}` scales the weights of an NVFP4 or FP8 file, which is not supported; \
             take one in Q4_K_M or Q8_0"
        )));
    }
    if let Some(name) = tensor(keys, is_single_expert) {
        return Err(keys.error(format_args!(
            "tensor `{name}` is one expert alone, as files from before 2024 have it; \
             convert the model again with today's convert_hf_to_gguf.py"
        )));
    }
    Ok(())
}

/// `blk.N.ffn_gate.X.weight` and the like.
fn is_single_expert(name: &str) -> bool {
    let mut parts = name.split('.');
    parts.next() == Some("blk")
        && parts.nth(1).is_some_and(|stem| stem.starts_with("ffn_"))
        && parts.next().is_some_and(|expert| expert.parse::<u32>().is_ok())
}

/// Routers that are not a softmax over the logits of all experts.
fn check_experts(keys: &Keys<'_>) -> Result<()> {
    let metadata = keys.file().metadata();
    let router = |sign: String| {
        keys.error(format_args!("a router of experts as {sign} demands it is not supported; a plain softmax is"))
    };
    for key in ["expert_gating_func", "expert_group_count"] {
        let name = keys.name(key);
        if let Some(value) = metadata.get_u64(&name)?.filter(|&value| value > 1) {
            return Err(router(format!("`{name}` = {value}")));
        }
    }
    let scale = keys.name("expert_weights_scale");
    if let Some(value) = metadata.get_f32(&scale)?.filter(|&value| value != 0.0 && value != 1.0) {
        return Err(router(format!("`{scale}` = {value}")));
    }
    let norm = keys.name("expert_weights_norm");
    if metadata.get_bool(&norm)? == Some(false) {
        return Err(router(format!("`{norm}` = false")));
    }
    let shared = |name: &str| name.contains("_shexp") && keys.architecture() != "granitemoe";
    match tensor(keys, |name| name.contains("exp_probs_b") || shared(name)) {
        Some(name) => Err(router(format!("tensor `{name}`"))),
        None => Ok(()),
    }
}

/// Variants of attention and of its rotation that no family here has.
fn check_attention(keys: &Keys<'_>) -> Result<()> {
    let metadata = keys.file().metadata();
    for key in ["attention.clamp_kqv", "attention.max_alibi_bias", "rope.scaling.alpha"] {
        let name = keys.name(key);
        if let Some(value) = metadata.get_f32(&name)?.filter(|&value| value != 0.0) {
            return Err(unsupported(keys, &name, value));
        }
    }
    let sections = keys.name("rope.dimension_sections");
    match metadata.get_integers(&sections)? {
        // Of images; other families with this key rotate text as without it.
        Some(values) if keys.architecture() == "glm4" && values.iter().any(|&n| n != 0) => {
            Err(unsupported(keys, &sections, format_args!("{values:?}")))
        }
        _ => Ok(()),
    }
}

/// The name of the first tensor for which `is_meant` holds.
fn tensor<'a>(keys: &Keys<'a>, is_meant: impl Fn(&str) -> bool) -> Option<&'a str> {
    keys.file().tensors().iter().map(|tensor| tensor.name.as_str()).find(|name| is_meant(name))
}

/// An error about a key whose other values are supported, or its absence is.
fn unsupported(keys: &Keys<'_>, name: &str, value: impl std::fmt::Display) -> Error {
    keys.error(format_args!("metadata `{name}` = {value} is not supported; only models without it are"))
}

#[cfg(test)]
mod tests;
