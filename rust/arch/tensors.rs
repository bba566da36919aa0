//! The tensors of a decoder: which there are, in which shape, and where a file has them.

use std::collections::{BTreeMap, HashSet};

use crate::arch::config::Config;
use crate::arch::roles::{is_significant, BlockRole, Role};
use crate::error::{Error, Result};
use crate::gguf::file::{GgufFile, TensorInfo};

/// A tensor of a decoder, as its family describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// What it is to the decoder.
    pub role: Role,
    /// What files call it.
    pub name: String,
    /// Its dimensions in ggml's order, the row length first: a vector has one, a matrix two.
    pub shape: Vec<usize>,
    /// Whether files may leave it out.
    pub optional: bool,
}

impl Tensor {
    /// A tensor that every file has, under the usual name.
    pub fn new(role: Role, shape: &[usize]) -> Self {
        Self { role, name: role.to_string(), shape: shape.to_vec(), optional: false }
    }

    /// The same, but files may leave it out.
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Whether it is multiplied with rows, and not element by element.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1
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
            (BlockRole::AttnNorm, &[n_embd][..]),
            (BlockRole::AttnQ, &[n_embd, queries]),
            (BlockRole::AttnK, &[n_embd, keys]),
            (BlockRole::AttnV, &[n_embd, keys]),
            (BlockRole::AttnOutput, &[queries, n_embd]),
            (BlockRole::FfnNorm, &[n_embd]),
            (BlockRole::FfnGate, &[n_embd, n_ff]),
            (BlockRole::FfnUp, &[n_embd, n_ff]),
            (BlockRole::FfnDown, &[n_ff, n_embd]),
        ];
        tensors.extend(tensors_of_block.map(|(role, shape)| Tensor::new(Role::Block(block, role), shape)));
    }
    tensors
}

/// The tensors of a decoder in a file that has been checked to hold them.
pub struct Tensors<'a> {
    file: &'a GgufFile,
    /// By role, so in the order in which a forward reads them.
    found: BTreeMap<Role, (Tensor, &'a TensorInfo)>,
}

impl<'a> Tensors<'a> {
    /// Finds `tensors` in `file`, in their shapes. Refuses a file that lacks one, or has one that the decoder of this
    /// `family` would have to use but cannot; others are tolerated, [`Tensors::ignored`] lists them.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) names the tensor.
    pub fn find(file: &'a GgufFile, family: &str, tensors: Vec<Tensor>) -> Result<Self> {
        let mut found = BTreeMap::new();
        for tensor in tensors {
            let info = match file.tensor(&tensor.name) {
                None if tensor.optional => continue,
                _ => file.require(&tensor.name)?,
            };
            let shape = significant_shape(info);
            if shape != tensor.shape {
                return Err(file.metadata().error(format_args!(
                    "tensor `{}` has shape {shape:?} but the metadata demands {:?} (row length first)",
                    tensor.name, tensor.shape
                )));
            }
            found.insert(tensor.role, (tensor, info));
        }
        let found = Self { file, found };
        match found.ignored().into_iter().find(|name| is_significant(name)) {
            Some(name) => Err(file.metadata().error(format_args!(
                "tensor `{name}` belongs to a variant of \"{family}\" that is not supported: \
                 only plain decoders work, without biases, experts or further norms"
            ))),
            None => Ok(found),
        }
    }

    /// The tensor of a role, if the file has one.
    pub fn get(&self, role: Role) -> Option<&'a TensorInfo> {
        self.found.get(&role).map(|&(_, info)| info)
    }

    /// The tensor of a role that the decoder cannot do without.
    ///
    /// # Errors
    /// [`Error::Gguf`](crate::error::Error::Gguf) if the file has none.
    pub fn require(&self, role: Role) -> Result<&'a TensorInfo> {
        self.get(role).ok_or_else(|| self.missing(role))
    }

    /// The error for the lack of a tensor.
    pub fn missing(&self, role: Role) -> Error {
        self.file.metadata().error(format_args!("tensor `{role}` is missing"))
    }

    /// All matrices, in the order in which a forward reads them.
    pub fn matrices(&self) -> impl Iterator<Item = (Role, &'a TensorInfo)> + '_ {
        self.found.iter().filter(|(_, (tensor, _))| tensor.is_matrix()).map(|(&role, &(_, info))| (role, info))
    }

    /// Names of the tensors that are not used, in file order.
    pub fn ignored(&self) -> Vec<&'a str> {
        let used: HashSet<&str> = self.found.values().map(|(tensor, _)| tensor.name.as_str()).collect();
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
