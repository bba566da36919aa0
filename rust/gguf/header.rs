//! The header of one GGUF file, parsed from its bytes.
//!
//! The layout is that of <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little endian.
//! Nothing a file declares is believed: counts are compared with the bytes that are left, arithmetic is checked, and
//! the bytes of every tensor must lie in the file and belong to it alone.

use std::collections::HashSet;
use std::fmt::Arguments;
use std::ops::Range;
use std::path::Path;

use crate::error::Result;
use crate::gguf::metadata::Metadata;
use crate::gguf::reader::Reader;
use crate::gguf::types::GgmlType;

/// `GGML_MAX_DIMS`.
const MAX_DIMENSIONS: u32 = 4;
/// The alignment of tensor data where the file states none.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Tensor types of ggml that specrs does not read, so that a message can name them.
const UNSUPPORTED_TYPES: [(u32, &str); 27] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// What stands before the tensor data.
#[derive(Debug)]
pub struct Header {
    /// Format version, 2 or 3.
    pub version: u32,
    /// The key/value pairs.
    pub metadata: Metadata,
    /// The tensors in file order.
    pub tensors: Vec<TensorInfo>,
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`; unique in the model.
    pub name: String,
    /// How its weights are stored.
    pub dtype: GgmlType,
    /// Its dimensions in ggml's order: the row length first.
    pub shape: Vec<usize>,
    /// Which part of a split model holds it.
    pub(crate) part: usize,
    /// Where its bytes lie in that part.
    pub(crate) range: Range<usize>,
}

impl TensorInfo {
    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.columns() / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> usize {
        self.range.len()
    }

    /// Only `part` of it along its last dimension, which is number `dimension`: whole blocks of a vector, some rows of a
    /// matrix, or some matrices of a stack.
    pub fn cut(&self, dimension: usize, part: Range<usize>) -> Self {
        let bytes = |count: usize| match dimension {
            0 => count / self.dtype.block_len() * self.dtype.block_bytes(),
            _ => count * self.shape[1..dimension].iter().product::<usize>() * self.row_bytes(),
        };
        let mut shape = self.shape[..=dimension].to_vec();
        shape[dimension] = part.len();
        let start = self.range.start;
        Self { shape, range: start + bytes(part.start)..start + bytes(part.end), ..self.clone() }
    }
}

impl Header {
    /// Parse the header of the file `path`, whose whole contents are `bytes`.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(path, bytes);
        let version = reader.version()?;
        let tensor_count = reader.u64(format_args!("tensor count"))?;
        let value_count = reader.u64(format_args!("metadata count"))?;
        // The shortest value is an empty key, a type and a byte; the shortest tensor has no name and no dimensions.
        reader.check_count(value_count, 13, format_args!("metadata"))?;
        reader.check_count(tensor_count, 24, format_args!("the list of tensors"))?;
        let metadata = Metadata::new(path, reader.values(value_count)?);
        let alignment = alignment(&metadata)?;
        let declared =
            (0..tensor_count).map(|index| DeclaredTensor::read(&mut reader, index)).collect::<Result<Vec<_>>>()?;
        let data = (reader.position() as u64).next_multiple_of(alignment);
        let tensors = place(&metadata, declared, data, alignment, bytes.len() as u64)?;
        Ok(Self { version, metadata, tensors })
    }
}

/// The alignment that offsets of tensors obey.
fn alignment(metadata: &Metadata) -> Result<u64> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.get_u64(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= u32::MAX.into() {
        return Ok(alignment);
    }
    Err(metadata.error(format_args!("metadata `{KEY}` must be a power of two below 2^32 but is {alignment}")))
}

/// A tensor as read, before its place is known to be inside the file.
struct DeclaredTensor {
    name: String,
    dtype: GgmlType,
    shape: Vec<u64>,
    bytes: u64,
    offset: u64,
}

impl DeclaredTensor {
    fn read(reader: &mut Reader, index: u64) -> Result<Self> {
        let name = reader.string(format_args!("name of tensor {index}"))?;
        let start = reader.position();
        let dimensions = reader.u32(format_args!("dimension count of tensor `{name}`"))?;
        if dimensions > MAX_DIMENSIONS {
            return Err(reader.error_at(
                start,
                format_args!("tensor `{name}` has {dimensions} dimensions, more than {MAX_DIMENSIONS}"),
            ));
        }
        let shape = (0..dimensions)
            .map(|i| reader.u64(format_args!("dimension {i} of tensor `{name}`")))
            .collect::<Result<Vec<_>>>()?;
        let start = reader.position();
        let id = reader.u32(format_args!("type of tensor `{name}`"))?;
        let Some(dtype) = GgmlType::from_id(id) else {
            return Err(reader.error_at(start, unsupported_type(&name, id)));
        };
        let offset = reader.u64(format_args!("offset of tensor `{name}`"))?;
        let bytes = size(dtype, &shape)
            .map_err(|message| reader.error_at(start, format_args!("tensor `{name}`: {message}")))?;
        Ok(Self { name, dtype, shape, bytes, offset })
    }
}

/// Bytes of a tensor, or what is wrong with its shape.
fn size(dtype: GgmlType, shape: &[u64]) -> Result<u64, String> {
    let columns = shape.first().copied().unwrap_or(1);
    let block = dtype.block_len() as u64;
    if shape.contains(&0) {
        return Err(format!("its shape {shape:?} has a dimension of 0"));
    }
    if columns % block != 0 {
        return Err(format!(
            "its rows have {columns} weights, which is no multiple of the {block} of a {} block",
            dtype.name()
        ));
    }
    let row_bytes = (columns / block).checked_mul(dtype.block_bytes() as u64);
    shape
        .iter()
        .skip(1)
        .fold(row_bytes, |bytes, &rows| bytes?.checked_mul(rows))
        .filter(|&bytes| usize::try_from(bytes).is_ok())
        .ok_or_else(|| format!("its shape {shape:?} needs more bytes than can be counted"))
}

fn unsupported_type(name: &str, id: u32) -> String {
    let found = match UNSUPPORTED_TYPES.iter().find(|(other, _)| *other == id) {
        Some((_, found)) => format!("type {found}"),
        None => format!("unknown type {id}"),
    };
    let supported = GgmlType::ALL.map(GgmlType::name).join(", ");
    format!(
        "tensor `{name}` is of {found}, which is not supported (supported: {supported}); \
         take a file in Q4_K_M or Q8_0"
    )
}

/// Turn offsets into the data section, which begins at byte `data`, into places in the file of `file_len` bytes.
fn place(
    metadata: &Metadata,
    declared: Vec<DeclaredTensor>,
    data: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<TensorInfo>> {
    let error = |tensor: &DeclaredTensor, message: Arguments| {
        metadata.error(format_args!("tensor `{}`: {message}", tensor.name))
    };
    let mut names = HashSet::with_capacity(declared.len());
    for tensor in &declared {
        let DeclaredTensor { bytes, offset, .. } = tensor;
        if !names.insert(&tensor.name) {
            return Err(error(tensor, format_args!("the file has two of this name")));
        }
        if offset % alignment != 0 {
            let message = format_args!("offset {offset} is no multiple of the alignment {alignment}");
            return Err(error(tensor, message));
        }
        let start = data.saturating_add(*offset);
        let available = file_len.saturating_sub(start);
        if *bytes > available {
            return Err(error(
                tensor,
                format_args!(
                    "needs {bytes} bytes from byte {start} on but only {available} are available \
                     in the {file_len} of the file; it is damaged or was not downloaded completely"
                ),
            ));
        }
    }
    let mut by_offset: Vec<_> = declared.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        let [first, second] = [pair[0], pair[1]];
        if first.offset + first.bytes > second.offset {
            return Err(error(
                first,
                format_args!(
                    "its {} bytes at offset {} overlap those of tensor `{}` at offset {}",
                    first.bytes, first.offset, second.name, second.offset
                ),
            ));
        }
    }
    Ok(declared
        .into_iter()
        .map(|tensor| {
            // All of it lies in the file, which is mapped: these numbers fit usize.
            let start = (data + tensor.offset) as usize;
            TensorInfo {
                name: tensor.name,
                dtype: tensor.dtype,
                shape: tensor.shape.iter().map(|&n| n as usize).collect(),
                part: 0,
                range: start..start + tensor.bytes as usize,
            }
        })
        .collect())
}

#[cfg(test)]
mod tests;
