//! The weights of a model, repacked at load into the layout that the kernels stream (see [`crate::kernels::layout`]).
//!
//! All matrices lie in one anonymous mapping, so that large pages can back it; the pages of the file are released as
//! soon as they are repacked, which keeps peak memory near the size of the file.

use crate::arch::description::Description;
use crate::arch::roles::BlockRole::{AttnK, AttnNorm, AttnOutput, AttnQ, AttnV, FfnDown, FfnGate, FfnNorm, FfnUp};
use crate::arch::roles::Role;
use crate::arch::tensors::Tensors;
use crate::error::{Error, Result};
use crate::gguf::file::{GgufFile, TensorInfo};
use crate::gguf::types::GgmlType;
use crate::kernels::layout::{quant_bytes, scale_bytes, TILE};
use crate::weights::bounds::norms;
use crate::weights::matrix::{groups, Matrix};
use crate::weights::pack::pack;
use crate::workers::memory::anonymous;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Where a matrix goes in the arena.
struct Plan<'a> {
    role: Role,
    info: &'a TensorInfo,
    quants: Range<usize>,
    scales: Range<usize>,
}

/// Bytes are laid out in whole cache lines.
const LINE: usize = 64;

/// One transformer block.
pub struct Layer {
    /// RMSNorm gains before attention.
    pub attn_norm: Vec<f32>,
    /// Queries, keys and values.
    pub qkv: [Matrix; 3],
    /// Attention output.
    pub attn_output: Matrix,
    /// RMSNorm gains before the feed-forward layer.
    pub ffn_norm: Vec<f32>,
    /// Gate of the feed-forward layer.
    pub ffn_gate: Matrix,
    /// Its other input projection.
    pub ffn_up: Matrix,
    /// Its output projection.
    pub ffn_down: Matrix,
}

impl Layer {
    /// Its matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.qkv.iter().chain([&self.attn_output, &self.ffn_gate, &self.ffn_up, &self.ffn_down])
    }
}

/// All weights of a model.
pub struct Weights {
    /// Token embeddings, one row a token.
    pub embedding: Arc<Matrix>,
    /// Transformer blocks, first to last.
    pub layers: Vec<Layer>,
    /// RMSNorm gains before the output.
    pub output_norm: Vec<f32>,
    /// Projection to the vocabulary; the embeddings again when the file ties them.
    pub output: Arc<Matrix>,
    /// Resident bytes.
    pub bytes: usize,
    /// See [`norms`]; empty if the output projection is floats.
    pub output_norms: Vec<[f32; TILE]>,
}

impl Weights {
    /// Reads and repacks the tensors of a file on `threads` threads.
    ///
    /// # Errors
    /// [`Error::Gguf`] if a tensor is missing, [`Error::Io`] if there is no memory for the weights,
    /// [`Error::Interrupted`] if `poll` said so.
    pub fn load(description: &Description<'_>, threads: usize, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        let Description { file, config, tensors } = description;
        let (mut matrices, bytes) = pack_all(file, tensors, threads, poll)?;
        let mut matrix = |role| match matrices.remove(&role) {
            Some(matrix) => Ok(matrix),
            None => Err(tensors.missing(role)),
        };
        let vector = |role| vector(file, tensors.require(role)?);
        let embedding = Arc::new(matrix(Role::Embedding)?);
        let output = match tensors.get(Role::Output) {
            Some(_) => Arc::new(matrix(Role::Output)?),
            None => embedding.clone(),
        };
        let layers = (0..config.n_layer).map(|layer| {
            let role = |role| Role::Block(layer, role);
            Ok(Layer {
                attn_norm: vector(role(AttnNorm))?,
                qkv: [matrix(role(AttnQ))?, matrix(role(AttnK))?, matrix(role(AttnV))?],
                attn_output: matrix(role(AttnOutput))?,
                ffn_norm: vector(role(FfnNorm))?,
                ffn_gate: matrix(role(FfnGate))?,
                ffn_up: matrix(role(FfnUp))?,
                ffn_down: matrix(role(FfnDown))?,
            })
        });
        let layers = layers.collect::<Result<_>>()?;
        let output_norms = match output.dtype.is_float() {
            true => Vec::new(),
            false => norms(&output, threads, poll).ok_or(Error::Interrupted)?,
        };
        Ok(Self { embedding, layers, output_norm: vector(Role::OutputNorm)?, output, bytes, output_norms })
    }
}

/// Packs all matrices into one arena, in the order in which a forward reads them; them by role, and the bytes of the arena.
fn pack_all(
    file: &GgufFile,
    tensors: &Tensors<'_>,
    threads: usize,
    poll: &mut dyn FnMut() -> bool,
) -> Result<(BTreeMap<Role, Matrix>, usize)> {
    let mut end = 0;
    let mut place = |bytes: usize| {
        let at = end;
        end += bytes.next_multiple_of(LINE);
        at..at + bytes
    };
    let mut plans = Vec::new();
    for (role, info) in tensors.matrices() {
        let (tiles, groups) = (info.rows().div_ceil(TILE), groups(info.columns()));
        let quants = place(tiles * groups * quant_bytes(info.dtype));
        let scales = place(tiles * scale_bytes(info.dtype, groups));
        plans.push(Plan { role, info, quants, scales });
    }
    let mut arena = anonymous(end).map_err(|source| Error::io(file.path(), source))?;
    for plan in &plans {
        if poll() {
            return Err(Error::Interrupted);
        }
        file.check_unchanged()?;
        let (head, tail) = arena.split_at_mut(plan.scales.start);
        let (quants, scales) = (&mut head[plan.quants.clone()], &mut tail[..plan.scales.len()]);
        pack(file, plan.info, quants, scales, threads, poll)?;
        file.release(plan.info);
    }
    let arena = Arc::new(arena.make_read_only().map_err(|source| Error::io(file.path(), source))?);
    let matrix = |plan: Plan<'_>| Matrix {
        dtype: plan.info.dtype,
        rows: plan.info.rows(),
        columns: plan.info.columns(),
        arena: arena.clone(),
        quants: plan.quants,
        scales: plan.scales,
    };
    Ok((plans.into_iter().map(|plan| (plan.role, matrix(plan))).collect(), end))
}

/// A float tensor as f32; norms are F32 in practice, F16 and BF16 are taken too.
fn vector(file: &GgufFile, info: &TensorInfo) -> Result<Vec<f32>> {
    let data = file.data(info);
    let values = data.chunks_exact(info.dtype.block_bytes());
    let values = match info.dtype {
        GgmlType::F32 => values.map(bytemuck::pod_read_unaligned).collect(),
        GgmlType::F16 => values.map(|b| bytemuck::pod_read_unaligned::<f16>(b).to_f32()).collect(),
        GgmlType::BF16 => values.map(|b| bytemuck::pod_read_unaligned::<bf16>(b).to_f32()).collect(),
        other => {
            return Err(file.metadata().error(format_args!(
                "tensor `{}` has type {}, but norms must be F32, F16 or BF16",
                info.name,
                other.name()
            )))
        }
    };
    file.release(info);
    Ok(values)
}
