//! The tensors of a decoder: which there are, in which shape, and where a file has them.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use crate::arch::config::{Config, Pairs};
use crate::arch::roles::BlockRole::{
    AttnK, AttnKNorm, AttnNorm, AttnOutput, AttnQ, AttnQNorm, AttnQkv, AttnV, FfnDown, FfnGate, FfnNorm, FfnUp,
    PostAttnNorm, PostFfnNorm,
};
use crate::arch::roles::{is_significant, BlockRole, Role};
use crate::error::{Error, Result};
use crate::gguf::file::{GgufFile, TensorInfo};

/// A tensor of a decoder, as its family describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// What it is to the decoder.
    pub role: Role,
    /// Its dimensions in ggml's order, the row length first: a vector has one, a matrix two, and a stack of matrices three.
    pub shape: Vec<usize>,
    /// Where files may have it; the first place that is there counts.
    pub places: Vec<Place>,
    /// Whether files may leave it out.
    pub optional: bool,
    /// In which order the decoder takes its rows, or the elements of a vector.
    pub order: RowOrder,
}

/// Where a file may have a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The name of a tensor in the file.
    pub name: String,
    /// How many rows, or elements of a vector, that has.
    pub total: usize,
    /// Which of them it is.
    pub rows: Range<usize>,
}

/// In which order a decoder takes the rows of a matrix, or the elements of a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RowOrder {
    /// As they are in the file.
    #[default]
    File,
    /// Heads of `width` rows, of which the first `rotated` are pairs `(i, i + rotated / 2)` in the file and neighbours
    /// here. A score is a sum over the rows of a head, so it is the same.
    Pairs {
        /// Rows of a head.
        width: usize,
        /// How many are rotated.
        rotated: usize,
    },
}

impl RowOrder {
    /// Which row of the file is row `row` of the decoder.
    pub fn in_file(self, row: usize) -> usize {
        match self {
            Self::Pairs { width, rotated } if row % width < rotated => {
                let (head, i) = (row - row % width, row % width);
                head + i / 2 + i % 2 * (rotated / 2)
            }
            _ => row,
        }
    }
}

impl Tensor {
    /// A tensor that every file has, under the usual name.
    pub fn new(role: Role, shape: &[usize]) -> Self {
        let total = shape.last().copied().unwrap_or(0);
        let place = Place { name: role.to_string(), total, rows: 0..total };
        Self { role, shape: shape.to_vec(), places: vec![place], optional: false, order: RowOrder::File }
    }

    /// The same, but files may leave it out.
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// The same, but files may have it as rows from `first` on of a tensor that has another role, of `total` rows.
    pub fn or_part_of(mut self, role: Role, first: usize, total: usize) -> Self {
        let own = self.shape.last().copied().unwrap_or(0);
        self.places.push(Place { name: role.to_string(), total, rows: first..first + own });
        self
    }

    /// The same, but files always have it so.
    pub fn part_of(mut self, role: Role, first: usize, total: usize) -> Self {
        self.places.clear();
        self.or_part_of(role, first, total)
    }

    /// The same, but files have it under the name of another role.
    pub fn called(self, role: Role) -> Self {
        let total = self.shape.last().copied().unwrap_or(0);
        self.part_of(role, 0, total)
    }

    /// Whether it is multiplied with rows, and not element by element.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1
    }

    /// Its dimensions in a file that has it at `place`.
    pub fn shape_at(&self, place: &Place) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape.pop();
        shape.push(place.total);
        shape
    }
}

/// The tensors of a Llama, which other families without experts vary.
pub fn dense(config: &Config) -> Vec<Tensor> {
    let (n_embd, n_ff) = (config.n_embd, config.n_ff);
    let queries = config.n_head * config.head_dim;
    let keys = config.n_head_kv * config.head_dim;
    let mut tensors = vec![
        Tensor::new(Role::Embedding, &[n_embd, config.n_vocab]),
        Tensor::new(Role::OutputNorm, &[n_embd]),
        Tensor::new(Role::Output, &[n_embd, config.n_vocab]).optional(),
    ];
    let divisors = config.ropes.first().map(|rope| Tensor::new(Role::RopeDivisors, &[rope.freqs.len()]).optional());
    tensors.extend(divisors);
    for block in 0..config.n_layer {
        let tensors_of_block = [
            (AttnNorm, &[n_embd][..]),
            (AttnOutput, &[queries, n_embd]),
            (FfnNorm, &[n_embd]),
            (FfnGate, &[n_embd, n_ff]),
            (FfnUp, &[n_embd, n_ff]),
            (FfnDown, &[n_ff, n_embd]),
        ];
        tensors.extend(tensors_of_block.map(|(role, shape)| Tensor::new(Role::Block(block, role), shape)));
        let total = queries + 2 * keys;
        for (role, first, rows) in [(AttnQ, 0, queries), (AttnK, queries, keys), (AttnV, queries + keys, keys)] {
            let order = if role == AttnV { RowOrder::File } else { order(config) };
            let weight = Tensor::new(Role::Block(block, role), &[n_embd, rows]);
            let bias = Tensor::new(Role::Bias(block, role), &[rows]).optional();
            tensors.extend([
                Tensor { order, ..weight.or_part_of(Role::Block(block, AttnQkv), first, total) },
                Tensor { order, ..bias.or_part_of(Role::Bias(block, AttnQkv), first, total) },
            ]);
        }
    }
    tensors
}

/// The tensors of [`dense`], and biases wherever a file has them.
pub fn dense_with_biases(config: &Config) -> Vec<Tensor> {
    let (n_embd, n_ff) = (config.n_embd, config.n_ff);
    let biases = [(AttnOutput, n_embd), (FfnGate, n_ff), (FfnUp, n_ff), (FfnDown, n_embd)];
    let bias = |block, (role, rows)| Tensor::new(Role::Bias(block, role), &[rows]).optional();
    let biases = (0..config.n_layer).flat_map(|block| biases.map(|of| bias(block, of)));
    dense(config).into_iter().chain(biases).collect()
}

/// RMSNorm gains of queries and keys: of each head, the same for all, or of `whole` rows.
pub fn head_norms(config: &Config, whole: bool) -> impl Iterator<Item = Tensor> + '_ {
    let heads = |heads: usize| if whole { heads * config.head_dim } else { config.head_dim };
    let norms = [(AttnQNorm, heads(config.n_head)), (AttnKNorm, heads(config.n_head_kv))];
    let norm =
        |block, (role, width)| Tensor { order: order(config), ..Tensor::new(Role::Block(block, role), &[width]) };
    (0..config.n_layer).flat_map(move |block| norms.map(|of| norm(block, of)))
}

/// RMSNorm gains after attention and after the feed-forward layer.
pub fn post_norms(config: &Config) -> impl Iterator<Item = Tensor> + '_ {
    let norm = |block, role| Tensor::new(Role::Block(block, role), &[config.n_embd]);
    (0..config.n_layer).flat_map(move |block| [PostAttnNorm, PostFfnNorm].map(|role| norm(block, role)))
}

/// The same tensors, but with gate and up of the feed-forward layer in one matrix, in this order.
pub fn with_fused_gate(config: &Config, tensors: Vec<Tensor>) -> Vec<Tensor> {
    let n_ff = config.n_ff;
    let fused = |tensor: Tensor| match tensor.role {
        Role::Block(block, FfnGate) => tensor.part_of(Role::Block(block, FfnUp), 0, 2 * n_ff),
        Role::Block(block, FfnUp) => tensor.part_of(Role::Block(block, FfnUp), n_ff, 2 * n_ff),
        _ => tensor,
    };
    tensors.into_iter().map(fused).collect()
}

/// The same tensors without those of every block that have one of these roles.
pub fn without(roles: &[BlockRole], tensors: Vec<Tensor>) -> Vec<Tensor> {
    let has = |tensor: &Tensor| !matches!(tensor.role, Role::Block(_, role) if roles.contains(&role));
    tensors.into_iter().filter(has).collect()
}

/// The order of the rows of queries and keys.
fn order(config: &Config) -> RowOrder {
    match (config.pairs, config.ropes.first()) {
        (Pairs::Halves, Some(rope)) => RowOrder::Pairs { width: config.head_dim, rotated: 2 * rope.freqs.len() },
        _ => RowOrder::File,
    }
}

/// The tensors of a decoder in a file that has been checked to hold them.
pub struct Tensors<'a> {
    file: &'a GgufFile,
    /// By role, so in the order in which a forward reads them.
    found: BTreeMap<Role, Found>,
}

/// A tensor of a decoder in a file.
pub struct Found {
    /// Where it is; of a matrix that holds others too only its own rows.
    pub info: TensorInfo,
    /// In which order the decoder takes its rows, or the elements of a vector.
    pub order: RowOrder,
    is_matrix: bool,
}

impl Found {
    /// The matrices in it: one, or all of a stack.
    pub fn matrices(&self) -> impl Iterator<Item = TensorInfo> + '_ {
        let count = self.info.shape.get(2).copied().unwrap_or(1);
        (0..count).map(move |i| if count == 1 { self.info.clone() } else { self.info.cut(2, i..i + 1) })
    }
}

impl<'a> Tensors<'a> {
    /// Finds `tensors` in `file`, in their shapes. Refuses a file that lacks one, or has one that the decoder of this
    /// `family` would have to use but cannot; others are tolerated, [`Tensors::ignored`] lists them.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) names the tensor.
    pub fn find(file: &'a GgufFile, family: &str, config: &Config, tensors: Vec<Tensor>) -> Result<Self> {
        let mut found = BTreeMap::new();
        for tensor in tensors {
            let place = tensor.places.iter().find(|place| file.tensor(&place.name).is_some());
            let place = match place {
                None if tensor.optional => continue,
                place => place.unwrap_or(&tensor.places[0]),
            };
            let info = file.require(&place.name)?;
            let (shape, wanted) = (significant_shape(info), tensor.shape_at(place));
            if shape != wanted {
                return Err(file.metadata().error(format_args!(
                    "tensor `{}` has shape {shape:?} but the metadata demands {wanted:?} (row length first)",
                    place.name
                )));
            }
            let info = info.cut(shape.len() - 1, place.rows.clone());
            found.insert(tensor.role, Found { info, order: tensor.order, is_matrix: tensor.is_matrix() });
        }
        let found = Self { file, found };
        let significant = |name: &&str| is_significant(name, config.n_layer, config.n_draft_layer);
        match found.ignored().into_iter().find(significant) {
            Some(name) => Err(file.metadata().error(format_args!(
                "tensor `{name}` belongs to a variant of \"{family}\" that is not supported: \
                 it would change the result, and specrs does not know how"
            ))),
            None => Ok(found),
        }
    }

    /// The tensor of a role, if the file has one.
    pub fn get(&self, role: Role) -> Option<&Found> {
        self.found.get(&role)
    }

    /// The tensor of a role that the decoder cannot do without.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) if the file has none.
    pub fn require(&self, role: Role) -> Result<&Found> {
        self.get(role).ok_or_else(|| self.missing(role))
    }

    /// The error for the lack of a tensor.
    pub fn missing(&self, role: Role) -> Error {
        self.file.metadata().error(format_args!("tensor `{role}` is missing"))
    }

    /// All matrices and stacks of them, in the order in which a forward reads them.
    pub fn matrices(&self) -> impl Iterator<Item = (Role, &Found)> + '_ {
        self.found.iter().filter(|(_, found)| found.is_matrix).map(|(&role, found)| (role, found))
    }

    /// Names of the tensors that are not used, in file order.
    pub fn ignored(&self) -> Vec<&'a str> {
        let used: HashSet<&str> = self.found.values().map(|found| found.info.name.as_str()).collect();
        self.file.tensors().iter().map(|tensor| tensor.name.as_str()).filter(|name| !used.contains(name)).collect()
    }
}

/// The shape without dimensions of 1 at its end.
fn significant_shape(tensor: &TensorInfo) -> &[usize] {
    let ones = tensor.shape.iter().rev().take_while(|&&n| n == 1).count();
    &tensor.shape[..tensor.shape.len() - ones]
}

#[cfg(test)]
mod tests;
