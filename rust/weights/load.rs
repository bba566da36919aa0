//! The weights of a model, repacked at load into the layout that the kernels stream (see [`crate::kernels::layout`]).
//!
//! All matrices lie in one anonymous mapping, so that large pages can back it; the pages of the file are released soon
//! after they are repacked, which keeps peak memory near the size of the file.

use crate::arch::config::Config;
use crate::arch::description::Description;
use crate::arch::roles::BlockRole::{
    AttnK, AttnKNorm, AttnNorm, AttnOutput, AttnQ, AttnQNorm, AttnV, FfnDown, FfnDownExperts, FfnGate, FfnGateExperts,
    FfnNorm, FfnRouter, FfnUp, FfnUpExperts, PostAttnNorm, PostFfnNorm,
};
use crate::arch::roles::{BlockRole, Role};
use crate::arch::tensors::{Found, RowOrder, Tensors};
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
    pub attn_norm: Option<Vec<f32>>,
    /// Queries, keys and values.
    pub qkv: [Matrix; 3],
    /// RMSNorm gains of queries and of keys: of each head, or of all together.
    pub head_norms: Option<[Vec<f32>; 2]>,
    /// Attention output.
    pub attn_output: Matrix,
    /// RMSNorm gains after attention.
    pub post_attn_norm: Option<Vec<f32>>,
    /// RMSNorm gains before the feed-forward layer.
    pub ffn_norm: Option<Vec<f32>>,
    /// The feed-forward layer that every row goes through.
    pub ffn: Option<FeedForward>,
    /// Those of which a row goes through some.
    pub experts: Option<Experts>,
    /// RMSNorm gains after the feed-forward layer.
    pub post_ffn_norm: Option<Vec<f32>>,
}

impl Layer {
    /// Its matrices, but for the router of experts.
    pub fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let experts = self.experts.iter().flat_map(|experts| &experts.each);
        let ffns = self.ffn.iter().chain(experts).flat_map(|FeedForward { gate, up, down }| [gate, up, down]);
        self.qkv.iter().chain([&self.attn_output]).chain(ffns)
    }
}

/// A gated feed-forward layer.
pub struct FeedForward {
    /// The gate.
    pub gate: Matrix,
    /// The other input projection.
    pub up: Matrix,
    /// The output projection.
    pub down: Matrix,
}

/// Feed-forward layers of which a row goes through some.
pub struct Experts {
    /// Gives each of them a logit; of floats.
    pub router: Matrix,
    /// All of them.
    pub each: Vec<FeedForward>,
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
    /// What is added to the logits, with zeros up to whole tiles.
    pub output_bias: Option<Vec<f32>>,
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
    /// [`Error::Gguf`] if a tensor is missing, [`Error::Memory`] if there is no memory for the weights,
    /// [`Error::Interrupted`] if `poll` said so.
    pub fn load(description: &Description<'_>, threads: usize, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        let Description { file, config, tensors, .. } = description;
        check_routers(file, tensors)?;
        let output = if tensors.get(Role::Output).is_some() { Role::Output } else { Role::Embedding };
        let Packed { matrices, bytes, bounds, identity } = pack_all(file, tensors, output, threads, poll)?;
        let mut loader = Loader { file, tensors, matrices, identity };
        let embedding = Arc::new(loader.matrix(Role::Embedding)?);
        let output = match output {
            Role::Embedding => embedding.clone(),
            role => Arc::new(loader.matrix(role)?),
        };
        let output_bias = loader.bias(Role::OutputBias)?;
        let layers = (0..config.n_layer).map(|index| loader.layer(index)).collect::<Result<_>>()?;
        let output_norm = loader.vector(Role::OutputNorm)?;
        file.release();
        let identity = loader.identity;
        Ok(Self { embedding, layers, output_norm, output, output_bias, bytes, output_bounds: bounds, identity })
    }
}

/// Gives out what was packed, and reads the rest.
struct Loader<'a> {
    file: &'a GgufFile,
    tensors: &'a Tensors<'a>,
    matrices: BTreeMap<Role, Vec<Matrix>>,
    identity: Identity,
}

impl Loader<'_> {
    fn layer(&mut self, index: usize) -> Result<Layer> {
        let role = |role| Role::Block(index, role);
        let [query_norm, key_norm] = [self.optional(role(AttnQNorm))?, self.optional(role(AttnKNorm))?];
        Ok(Layer {
            attn_norm: self.optional(role(AttnNorm))?,
            qkv: [self.product(index, AttnQ)?, self.product(index, AttnK)?, self.product(index, AttnV)?],
            head_norms: query_norm.zip(key_norm).map(<[_; 2]>::from),
            attn_output: self.product(index, AttnOutput)?,
            post_attn_norm: self.optional(role(PostAttnNorm))?,
            ffn_norm: self.optional(role(FfnNorm))?,
            ffn: self.feed_forward(index)?,
            experts: self.experts(index)?,
            post_ffn_norm: self.optional(role(PostFfnNorm))?,
        })
    }

    /// The feed-forward layer of a block, if it has one beside experts.
    fn feed_forward(&mut self, index: usize) -> Result<Option<FeedForward>> {
        if self.tensors.get(Role::Block(index, FfnGate)).is_none() {
            return Ok(None);
        }
        let [gate, up, down] =
            [self.product(index, FfnGate)?, self.product(index, FfnUp)?, self.product(index, FfnDown)?];
        Ok(Some(FeedForward { gate, up, down }))
    }

    /// The experts of a block, if it has any.
    fn experts(&mut self, index: usize) -> Result<Option<Experts>> {
        if self.tensors.get(Role::Block(index, FfnRouter)).is_none() {
            return Ok(None);
        }
        let router = self.matrix(Role::Block(index, FfnRouter))?;
        let [gates, ups, downs] =
            [FfnGateExperts, FfnUpExperts, FfnDownExperts].map(|role| self.stack(Role::Block(index, role)));
        let each = gates?.into_iter().zip(ups?).zip(downs?);
        Ok(Some(Experts { router, each: each.map(|((gate, up), down)| FeedForward { gate, up, down }).collect() }))
    }

    /// A matrix of a block with its bias.
    fn product(&mut self, index: usize, role: BlockRole) -> Result<Matrix> {
        let bias = self.bias(Role::Bias(index, role))?;
        Ok(Matrix { bias, ..self.matrix(Role::Block(index, role))? })
    }

    fn matrix(&mut self, role: Role) -> Result<Matrix> {
        self.stack(role)?.pop().ok_or_else(|| self.tensors.missing(role))
    }

    /// All matrices of a stack.
    fn stack(&mut self, role: Role) -> Result<Vec<Matrix>> {
        self.matrices.remove(&role).ok_or_else(|| self.tensors.missing(role))
    }

    /// What is added to the outputs of a matrix, if the file has it.
    fn bias(&mut self, role: Role) -> Result<Option<Vec<f32>>> {
        let padded = |mut bias: Vec<f32>| {
            bias.resize(bias.len().next_multiple_of(TILE), 0.0);
            bias
        };
        Ok(self.optional(role)?.map(padded))
    }

    /// A vector of floats, if the family has it.
    fn optional(&mut self, role: Role) -> Result<Option<Vec<f32>>> {
        self.tensors.get(role).map(|_| self.vector(role)).transpose()
    }

    fn vector(&mut self, role: Role) -> Result<Vec<f32>> {
        let Found { info, order, .. } = self.tensors.require(role)?;
        self.identity.set_tensor(role, info, self.file.data(info));
        let in_file = floats(self.file, info)?;
        Ok((0..in_file.len()).map(|i| in_file[order.in_file(i)]).collect())
    }
}

/// Refuses routers that could give no meaningful order: quantised ones, and those with NaN or infinities.
fn check_routers(file: &GgufFile, tensors: &Tensors<'_>) -> Result<()> {
    for (_, Found { info, .. }) in tensors.matrices().filter(|(role, _)| matches!(role, Role::Block(_, FfnRouter))) {
        if let Some(value) = floats(file, info)?.iter().find(|value| !value.is_finite()) {
            return Err(file.metadata().error(format_args!(
                "tensor `{}` holds {value}, so it cannot choose experts; the file is damaged",
                info.name
            )));
        }
    }
    Ok(())
}

/// Resident bytes of the matrices of a decoder, once they are packed.
pub fn weight_bytes(tensors: &Tensors<'_>) -> usize {
    tensors.matrices().flat_map(|(_, found)| found.matrices()).map(|info| Places::new(&info, 0).end).sum()
}

/// Of these the bytes that a pass of one row reads: those of the experts it uses, and of the output.
pub fn bytes_for_a_row(config: &Config, tensors: &Tensors<'_>) -> usize {
    let reads_embedding = tensors.get(Role::Output).is_none();
    let read = |(role, found): (Role, &Found)| match role {
        Role::Embedding if !reads_embedding => 0,
        Role::Block(_, FfnGateExperts | FfnUpExperts | FfnDownExperts) => {
            let used = config.experts.map_or(0, |experts| experts.used);
            found.matrices().take(used).map(|info| Places::new(&info, 0).end).sum()
        }
        _ => Places::new(&found.info, 0).end,
    };
    tensors.matrices().map(read).sum()
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
    /// Those of each role: one, or all of a stack.
    matrices: BTreeMap<Role, Vec<Matrix>>,
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
    let of_role = |(role, found): (Role, &'_ Found)| {
        found.matrices().map(|info| (role, info, found.order)).collect::<Vec<(Role, TensorInfo, RowOrder)>>()
    };
    let infos: Vec<_> = tensors.matrices().flat_map(of_role).collect();
    let mut end = 0;
    let mut places = Vec::with_capacity(infos.len());
    for (_, info, _) in &infos {
        let place = Places::new(info, end);
        end = place.end;
        places.push(place);
    }
    let tiles = |info: &TensorInfo| info.rows().div_ceil(TILE);
    let mut arena = anonymous(end).map_err(|_| Error::Memory {
        what: "the weights",
        bytes: end,
        way_out: "close other programs, or take a smaller model or one with fewer bits a weight",
    })?;
    let mut hashes: Vec<Vec<u64>> = infos.iter().map(|(_, info, _)| vec![0; tiles(info)]).collect();
    let bounded = infos.iter().find(|(role, info, _)| *role == output && !info.dtype.is_float());
    let mut bounds = vec![[0.0; TILE]; bounded.map_or(0, |(_, info, _)| tiles(info))];

    let (mut free, mut free_bounds) = (&mut arena[..], &mut bounds[..]);
    let mut packings = Vec::with_capacity(infos.len());
    for (((role, info, order), place), hashes) in infos.iter().zip(&places).zip(&mut hashes) {
        let (own, rest) = free.split_at_mut(place.end - place.quants.start);
        let (quants, scales) = own.split_at_mut(place.scales.start - place.quants.start);
        free = rest;
        packings.push(Packing {
            info,
            order: *order,
            first: 0,
            quants: &mut quants[..place.quants.len()],
            scales: &mut scales[..place.scales.len()],
            hashes,
            bounds: if *role == output { std::mem::take(&mut free_bounds) } else { &mut [] },
        });
    }
    pack(file, packings, threads, poll)?;

    let mut identity = Identity::default();
    let mut hashes = hashes.into_iter();
    for (role, found) in tensors.matrices() {
        let own: Vec<u64> = found.matrices().zip(&mut hashes).flat_map(|(_, hashes)| hashes).collect();
        identity.set_hashed(role, &found.info, &own);
    }
    let arena = Arc::new(arena.make_read_only().map_err(|source| Error::io(file.path(), source))?);
    let mut matrices: BTreeMap<Role, Vec<Matrix>> = BTreeMap::new();
    for ((role, info, _), Places { quants, scales, .. }) in infos.iter().zip(places) {
        let (dtype, rows, columns) = (info.dtype, info.rows(), info.columns());
        let matrix = Matrix { dtype, rows, columns, bias: None, arena: arena.clone(), quants, scales };
        matrices.entry(*role).or_default().push(matrix);
    }
    Ok(Packed { matrices, bytes: end, bounds, identity })
}

/// A float tensor as f32; norms, biases and routers are F32 in practice, F16 and BF16 are taken too.
fn floats(file: &GgufFile, info: &TensorInfo) -> Result<Vec<f32>> {
    let values = file.data(info).chunks_exact(info.dtype.block_bytes());
    Ok(match info.dtype {
        GgmlType::F32 => values.map(bytemuck::pod_read_unaligned).collect(),
        GgmlType::F16 => values.map(|b| bytemuck::pod_read_unaligned::<f16>(b).to_f32()).collect(),
        GgmlType::BF16 => values.map(|b| bytemuck::pod_read_unaligned::<bf16>(b).to_f32()).collect(),
        other => {
            return Err(file.metadata().error(format_args!(
                "tensor `{}` has type {}, but norms, biases and routers must be F32, F16 or BF16",
                info.name,
                other.name()
            )))
        }
    })
}
