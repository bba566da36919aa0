//! The weights of a model, repacked at load into the layout that the kernels stream (see [`crate::kernels::layout`]).
//!
//! All matrices lie in one anonymous mapping, so that large pages can back it; the pages of the file are released soon
//! after they are repacked, which keeps peak memory near the size of the file.

use crate::arch::description::Description;
use crate::arch::roles::BlockRole::{AttnK, AttnNorm, AttnOutput, AttnQ, AttnV, FfnDown, FfnGate, FfnNorm, FfnUp};
use crate::arch::roles::Role;
use crate::arch::tensors::Tensors;
use crate::error::{Error, Result};
use crate::gguf::file::{GgufFile, TensorInfo};
use crate::gguf::types::GgmlType;
use crate::identity::Identity;
use crate::kernels::layout::{groups, quant_bytes, scale_bytes, LINE, TILE};
use crate::weights::matrix::Matrix;
use crate::weights::pack::{pack, Packing};
use crate::workers::memory::anonymous;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

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
    /// [`bounds`](crate::weights::bounds::bounds) of every tile of the output projection; none if that is floats.
    pub output_bounds: Vec<[f32; TILE]>,
    /// What the tensors add to the identity of the model.
    pub identity: Identity,
}

impl Weights {
    /// Reads and repacks the tensors of a file on `threads` threads.
    ///
    /// # Errors
    /// [`Error::Gguf`] if a tensor is missing, [`Error::Io`] if there is no memory for the weights,
    /// [`Error::Interrupted`] if `poll` said so.
    pub fn load(description: &Description<'_>, threads: usize, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        let Description { file, config, tensors } = description;
        let output = if tensors.get(Role::Output).is_some() { Role::Output } else { Role::Embedding };
        let Packed { mut matrices, bytes, bounds, mut identity } = pack_all(file, tensors, output, threads, poll)?;
        let mut matrix = |role| match matrices.remove(&role) {
            Some(matrix) => Ok(matrix),
            None => Err(tensors.missing(role)),
        };
        let mut vector = |role| {
            let info = tensors.require(role)?;
            identity.set_tensor(role, info, file.data(info));
            vector(file, info)
        };
        let embedding = Arc::new(matrix(Role::Embedding)?);
        let output = match output {
            Role::Embedding => embedding.clone(),
            role => Arc::new(matrix(role)?),
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
        let output_norm = vector(Role::OutputNorm)?;
        file.release();
        Ok(Self { embedding, layers, output_norm, output, bytes, output_bounds: bounds, identity })
    }
}

/// Resident bytes of the matrices of a decoder, once they are packed.
pub fn weight_bytes(tensors: &Tensors<'_>) -> usize {
    tensors.matrices().map(|(_, info)| Places::new(info, 0).end).sum()
}

/// Where the parts of a matrix lie in the arena, in whole cache lines.
struct Places {
    quants: Range<usize>,
    scales: Range<usize>,
    end: usize,
}

impl Places {
    /// Those of the matrix of `info`, from `start` on.
    fn new(info: &TensorInfo, start: usize) -> Self {
        let (tiles, groups) = (info.rows().div_ceil(TILE), groups(info.columns()));
        let quants = start..start + tiles * groups * quant_bytes(info.dtype);
        let start = quants.end.next_multiple_of(LINE);
        let scales = start..start + tiles * scale_bytes(info.dtype, groups);
        Self { quants, end: scales.end.next_multiple_of(LINE), scales }
    }
}

/// All matrices, packed into one arena.
struct Packed {
    matrices: BTreeMap<Role, Matrix>,
    /// Bytes of the arena.
    bytes: usize,
    /// Of the output projection.
    bounds: Vec<[f32; TILE]>,
    identity: Identity,
}

/// Packs all matrices, in the order in which a forward reads them; `output` projects to the vocabulary.
fn pack_all(
    file: &GgufFile,
    tensors: &Tensors<'_>,
    output: Role,
    threads: usize,
    poll: &mut dyn FnMut() -> bool,
) -> Result<Packed> {
    let infos: Vec<(Role, &TensorInfo)> = tensors.matrices().collect();
    let mut end = 0;
    let mut places = Vec::with_capacity(infos.len());
    for (_, info) in &infos {
        let place = Places::new(info, end);
        end = place.end;
        places.push(place);
    }
    let tiles = |info: &TensorInfo| info.rows().div_ceil(TILE);
    let mut arena = anonymous(end).map_err(|source| Error::io(file.path(), source))?;
    let mut hashes: Vec<Vec<u64>> = infos.iter().map(|(_, info)| vec![0; tiles(info)]).collect();
    let bounded = infos.iter().find(|(role, info)| *role == output && !info.dtype.is_float());
    let mut bounds = vec![[0.0; TILE]; bounded.map_or(0, |(_, info)| tiles(info))];

    let (mut free, mut free_bounds) = (&mut arena[..], &mut bounds[..]);
    let mut packings = Vec::with_capacity(infos.len());
    for (((role, info), place), hashes) in infos.iter().zip(&places).zip(&mut hashes) {
        let (own, rest) = free.split_at_mut(place.end - place.quants.start);
        let (quants, scales) = own.split_at_mut(place.scales.start - place.quants.start);
        free = rest;
        packings.push(Packing {
            info,
            first: 0,
            quants: &mut quants[..place.quants.len()],
            scales: &mut scales[..place.scales.len()],
            hashes,
            bounds: if *role == output { std::mem::take(&mut free_bounds) } else { &mut [] },
        });
    }
    pack(file, packings, threads, poll)?;

    let mut identity = Identity::default();
    for ((role, info), hashes) in infos.iter().zip(&hashes) {
        identity.set_hashed(role, info, hashes);
    }
    let arena = Arc::new(arena.make_read_only().map_err(|source| Error::io(file.path(), source))?);
    let matrix = |((role, info), Places { quants, scales, .. }): ((Role, &TensorInfo), Places)| {
        let (rows, columns) = (info.rows(), info.columns());
        (role, Matrix { dtype: info.dtype, rows, columns, arena: arena.clone(), quants, scales })
    };
    Ok(Packed { matrices: infos.into_iter().zip(places).map(matrix).collect(), bytes: end, bounds, identity })
}

/// A float tensor as f32; norms are F32 in practice, F16 and BF16 are taken too.
fn vector(file: &GgufFile, info: &TensorInfo) -> Result<Vec<f32>> {
    let values = file.data(info).chunks_exact(info.dtype.block_bytes());
    Ok(match info.dtype {
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
    })
}
