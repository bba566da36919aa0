//! The weights of a decoder on a candle device, quantised as in the file.

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Module, Tensor};
use std::borrow::Cow;

use crate::arch::description::Description;
use crate::arch::roles::BlockRole::{
    AttnK, AttnKNorm, AttnNorm, AttnOutput, AttnQ, AttnQNorm, AttnV, FfnDown, FfnGate, FfnNorm, FfnUp, PostAttnNorm,
    PostFfnNorm,
};
use crate::arch::roles::{BlockRole, Role};
use crate::arch::tensors::{Found, RowOrder, Tensors};
use crate::candle::cache::device_error;
use crate::error::{Error, Result};
use crate::gguf::file::{GgufFile, TensorInfo};
use crate::gguf::types::GgmlType;
use crate::identity::Identity;

/// A matrix and what is added to its products.
pub struct Product {
    /// `[outputs][inputs]`.
    pub matrix: QMatMul,
    /// One number an output.
    pub bias: Option<Tensor>,
}

impl Product {
    /// Its product with every row of `x`, bias included.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let product = self.matrix.forward(x)?;
        match &self.bias {
            Some(bias) => product.broadcast_add(bias),
            None => Ok(product),
        }
    }
}

/// One transformer block.
pub struct Layer {
    /// RMSNorm gains before attention.
    pub attn_norm: Option<Tensor>,
    /// Queries.
    pub attn_q: Product,
    /// Keys.
    pub attn_k: Product,
    /// Values.
    pub attn_v: Product,
    /// RMSNorm gains of queries, of each head or of all together.
    pub attn_q_norm: Option<Tensor>,
    /// RMSNorm gains of keys, likewise.
    pub attn_k_norm: Option<Tensor>,
    /// Attention output.
    pub attn_output: Product,
    /// RMSNorm gains after attention.
    pub post_attn_norm: Option<Tensor>,
    /// RMSNorm gains before the feed-forward layer.
    pub ffn_norm: Option<Tensor>,
    /// Gate of the feed-forward layer.
    pub ffn_gate: Product,
    /// Its other input projection.
    pub ffn_up: Product,
    /// Its output projection.
    pub ffn_down: Product,
    /// RMSNorm gains after the feed-forward layer.
    pub post_ffn_norm: Option<Tensor>,
}

/// All weights of a model; matrices are `[outputs][inputs]`.
pub struct Weights {
    /// Token embeddings, one row a token.
    pub embedding: QMatMul,
    /// Transformer blocks, first to last.
    pub layers: Vec<Layer>,
    /// RMSNorm gains before the output.
    pub output_norm: Tensor,
    /// Projection to the vocabulary; the embeddings again when the file ties them.
    pub output: Product,
    /// Bytes of the matrices.
    pub bytes: usize,
    /// What the tensors add to the identity of the model.
    pub identity: Identity,
}

impl Weights {
    /// Reads the tensors of a file onto `device`.
    ///
    /// # Errors
    /// [`Error::Gguf`] if a tensor is missing or has a type that candle lacks, [`Error::Argument`] if the device fails,
    /// [`Error::Interrupted`] if `poll`, asked between layers, said so.
    pub fn load(description: &Description<'_>, device: &Device, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        let Description { file, config, tensors, .. } = description;
        let mut loader = Loader { file, tensors, device, bytes: 0, identity: Identity::default() };
        let embedding = loader.matrix(Role::Embedding)?;
        let mut layer = |index| if poll() { Err(Error::Interrupted) } else { loader.layer(index) };
        let layers = (0..config.n_layer).map(&mut layer).collect::<Result<Vec<_>>>()?;
        let output_norm = loader.vector(Role::OutputNorm)?;
        let output = match tensors.get(Role::Output) {
            Some(_) => loader.matrix(Role::Output)?,
            None => embedding.clone(),
        };
        let output = Product { matrix: output, bias: loader.optional(Role::OutputBias)? };
        Ok(Self { embedding, layers, output_norm, output, bytes: loader.bytes, identity: loader.identity })
    }
}

/// Bytes that candle keeps of a matrix: it widens float types to f32.
fn resident_bytes(matrix: &QMatMul) -> usize {
    match matrix {
        QMatMul::QTensor(tensor) => tensor.storage_size_in_bytes(),
        QMatMul::Tensor(tensor) | QMatMul::TensorF16(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
    }
}

/// Checks that this build has the device that users call `name`.
///
/// # Errors
/// [`Error::Argument`] if it is unknown or not part of this build.
pub fn check_device(name: &str) -> Result<()> {
    let compiled = match name {
        "candle-cpu" => true,
        "metal" => cfg!(feature = "metal"),
        "cuda" => cfg!(feature = "cuda"),
        _ => {
            return Err(Error::Argument(format!(
                "device \"{name}\" is unknown to the candle engine; it has \"candle-cpu\", \"metal\" and \"cuda\""
            )))
        }
    };
    if compiled {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "device \"{name}\" needs a build of specrs with the cargo feature `{name}`, which this one lacks; \
         build it from source with `pip install . --config-settings=build-args=--features=python,{name}`, \
         or use device=\"cpu\""
    )))
}

/// Opens the device that users call `name`: `candle-cpu`, `metal` or `cuda`.
///
/// # Errors
/// [`Error::Argument`] if it is unknown, not part of this build, or does not work.
pub fn open_device(name: &str) -> Result<Device> {
    check_device(name)?;
    if name == "candle-cpu" {
        return Ok(Device::Cpu);
    }
    let device = if name == "metal" { Device::new_metal(0) } else { Device::new_cuda(0) };
    device.map_err(|source| Error::Argument(format!("device \"{name}\" does not work: {source}; use device=\"cpu\"")))
}

/// Reads tensors of a file onto a device.
struct Loader<'a> {
    file: &'a GgufFile,
    tensors: &'a Tensors<'a>,
    device: &'a Device,
    /// Bytes of the matrices so far.
    bytes: usize,
    identity: Identity,
}

impl Loader<'_> {
    fn layer(&mut self, index: usize) -> Result<Layer> {
        let role = |role| Role::Block(index, role);
        Ok(Layer {
            attn_norm: self.optional(role(AttnNorm))?,
            attn_q: self.product(index, AttnQ)?,
            attn_k: self.product(index, AttnK)?,
            attn_v: self.product(index, AttnV)?,
            attn_q_norm: self.optional(role(AttnQNorm))?,
            attn_k_norm: self.optional(role(AttnKNorm))?,
            attn_output: self.product(index, AttnOutput)?,
            post_attn_norm: self.optional(role(PostAttnNorm))?,
            ffn_norm: self.optional(role(FfnNorm))?,
            ffn_gate: self.product(index, FfnGate)?,
            ffn_up: self.product(index, FfnUp)?,
            ffn_down: self.product(index, FfnDown)?,
            post_ffn_norm: self.optional(role(PostFfnNorm))?,
        })
    }

    /// A matrix of a block with its bias.
    fn product(&mut self, index: usize, role: BlockRole) -> Result<Product> {
        let matrix = self.matrix(Role::Block(index, role))?;
        Ok(Product { matrix, bias: self.optional(Role::Bias(index, role))? })
    }

    fn matrix(&mut self, role: Role) -> Result<QMatMul> {
        let matrix = QMatMul::from_qtensor(self.tensor(role)?).map_err(|source| device_error(self.device, &source))?;
        self.bytes += resident_bytes(&matrix);
        Ok(matrix)
    }

    /// A vector, if the file has it.
    fn optional(&mut self, role: Role) -> Result<Option<Tensor>> {
        self.tensors.get(role).map(|_| self.vector(role)).transpose()
    }

    fn vector(&mut self, role: Role) -> Result<Tensor> {
        let values = self.tensor(role)?.dequantize(self.device).and_then(|tensor| tensor.flatten_all());
        let values = values.map_err(|source| device_error(self.device, &source))?;
        let order = self.tensors.require(role)?.order;
        if order == RowOrder::File {
            return Ok(values);
        }
        let from = (0..values.elem_count()).map(|i| order.in_file(i) as u32).collect();
        let ordered =
            Tensor::from_vec(from, values.elem_count(), self.device).and_then(|from| values.index_select(&from, 0));
        ordered.map_err(|source| device_error(self.device, &source))
    }

    /// The tensor of a role, as it is in the file but for the order of the rows of a matrix.
    fn tensor(&mut self, role: Role) -> Result<QTensor> {
        let Found { info, order, .. } = self.tensors.require(role)?;
        let dtype = self.dtype(info)?;
        let data = self.file.data(info);
        self.identity.set_tensor(role, info, data);
        // candle reads blocks where they are, but a file may put them anywhere.
        let copy: Vec<u32>;
        let data = if *order != RowOrder::File && info.rows() > 1 {
            copy = aligned_copy(info.bytes(), |copy| {
                for (row, to) in copy.chunks_exact_mut(info.row_bytes()).enumerate() {
                    to.copy_from_slice(&data[order.in_file(row) * info.row_bytes()..][..info.row_bytes()]);
                }
            });
            &bytemuck::cast_slice(&copy)[..data.len()]
        } else if data.as_ptr().cast::<u32>().is_aligned() {
            data
        } else {
            copy = aligned_copy(info.bytes(), |copy| copy.copy_from_slice(data));
            &bytemuck::cast_slice(&copy)[..data.len()]
        };
        let tensor = QStorage::from_data(Cow::Borrowed(data), self.device, dtype)
            .and_then(|storage| QTensor::new(storage, (info.rows(), info.columns())));
        self.file.release();
        tensor.map_err(|source| device_error(self.device, &source))
    }

    fn dtype(&self, info: &TensorInfo) -> Result<GgmlDType> {
        Ok(match info.dtype {
            GgmlType::F32 => GgmlDType::F32,
            GgmlType::F16 => GgmlDType::F16,
            GgmlType::BF16 => GgmlDType::BF16,
            GgmlType::Q4_0 => GgmlDType::Q4_0,
            GgmlType::Q4_1 => GgmlDType::Q4_1,
            GgmlType::Q5_0 => GgmlDType::Q5_0,
            GgmlType::Q5_1 => GgmlDType::Q5_1,
            GgmlType::Q8_0 => GgmlDType::Q8_0,
            GgmlType::Q2_K => GgmlDType::Q2K,
            GgmlType::Q3_K => GgmlDType::Q3K,
            GgmlType::Q4_K => GgmlDType::Q4K,
            GgmlType::Q5_K => GgmlDType::Q5K,
            GgmlType::Q6_K => GgmlDType::Q6K,
            GgmlType::IQ4_NL | GgmlType::IQ4_XS => {
                return Err(self.file.metadata().error(format_args!(
                    "tensor `{}` has type {}, which the candle engine lacks; use device=\"cpu\"",
                    info.name,
                    info.dtype.name()
                )))
            }
        })
    }
}

/// So many bytes, as `fill` sets them, at an address that suits every type; padded with zeros.
fn aligned_copy(bytes: usize, fill: impl FnOnce(&mut [u8])) -> Vec<u32> {
    let mut copy = vec![0; bytes.div_ceil(4)];
    fill(&mut bytemuck::cast_slice_mut(&mut copy)[..bytes]);
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::describe;
    use crate::fixture::tiny_llama;
    use crate::gguf::metadata::Value;

    #[test]
    fn tensors_may_stand_at_any_address() {
        let mut model = tiny_llama();
        model.alignment = 1;
        model.set("general.alignment", Value::U32(1)).tensor("first.weight", GgmlType::Q8_0, &[32]);
        model.tensors.rotate_right(1);
        let file = model.file();
        let file = GgufFile::open(file.path()).unwrap();
        let tensors = describe(&file).unwrap().tensors;
        let identity = Identity::default();
        let mut loader = Loader { file: &file, tensors: &tensors, device: &Device::Cpu, bytes: 0, identity };
        for role in [Role::Embedding, Role::OutputNorm, Role::Block(1, FfnDown)] {
            let info = &tensors.require(role).unwrap().info;
            assert!(!file.data(info).as_ptr().cast::<u32>().is_aligned());
            assert_eq!(&*loader.tensor(role).unwrap().data().unwrap(), file.data(info));
        }
    }
}
