//! The weights of a model, repacked at load into the layout that the kernels stream (see [`crate::kernels::layout`]).
//!
//! All matrices lie in one anonymous mapping, so that large pages can back it; the pages of the file are released as
//! soon as they are repacked, which keeps peak memory near the size of the file.

mod norms;

use crate::blocks::{Block, GgmlType};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::gguf::{GgufFile, TensorInfo};
use crate::kernels::layout::with_layout;
use crate::kernels::layout::{
    pack_group, quant_bytes, scale_bytes, Layout, Tile, Tiles, GROUP, GROUP_QUANTS, SUPER, TILE,
};
use crate::kernels::scalar::{lane, row_weights, unpack_one};
use crate::mapping::anonymous;
use half::{bf16, f16};
use memmap2::Mmap;
use norms::norms;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A packed matrix: `rows` outputs of `columns` inputs each.
pub struct Matrix {
    /// Type of the weights.
    pub dtype: GgmlType,
    /// Output rows; the last tile may have empty ones.
    pub rows: usize,
    /// Input columns.
    pub columns: usize,
    arena: Arc<Mmap>,
    quants: Range<usize>,
    scales: Range<usize>,
}

/// Where a matrix goes in the arena.
struct Plan<'a> {
    info: &'a TensorInfo,
    quants: Range<usize>,
    scales: Range<usize>,
}

/// Bytes are laid out in whole cache lines.
const LINE: usize = 64;

fn groups(columns: usize) -> usize {
    columns.div_ceil(GROUP)
}

impl Matrix {
    /// Groups of 32 columns, the last one padded with zeros.
    pub fn groups(&self) -> usize {
        groups(self.columns)
    }

    /// Number of tiles.
    pub fn tile_count(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Some tiles; tile `i` has the output rows from `16 * i` on.
    pub fn tiles(&self, range: Range<usize>) -> Tiles<'_> {
        let groups = self.groups();
        let part = |all: &Range<usize>, bytes: usize| {
            &self.arena[all.start + range.start * bytes..all.start + range.end * bytes]
        };
        Tiles {
            dtype: self.dtype,
            count: range.len(),
            groups,
            quants: part(&self.quants, groups * quant_bytes(self.dtype)),
            scales: part(&self.scales, scale_bytes(self.dtype, groups)),
        }
    }

    /// Writes the weights of one output row, `columns` floats.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let tile = self.tiles(row / TILE..row / TILE + 1).iter().next().expect("one tile");
        let r = row % TILE;
        let at = |c: usize, bytes: usize| &tile.quants[(TILE * c + r) * bytes..][..bytes];
        match self.dtype {
            GgmlType::F32 => (0..).zip(out).for_each(|(c, out)| *out = bytemuck::pod_read_unaligned(at(c, 4))),
            GgmlType::F16 => {
                (0..).zip(out).for_each(|(c, out)| *out = bytemuck::pod_read_unaligned::<f16>(at(c, 2)).to_f32())
            }
            GgmlType::BF16 => {
                (0..).zip(out).for_each(|(c, out)| *out = bytemuck::pod_read_unaligned::<bf16>(at(c, 2)).to_f32())
            }
            quantised => with_layout!(quantised, dequantize_row::<_>(&tile, r, out)),
        }
    }
}

/// Row `r` of a quantised tile.
fn dequantize_row<L: Layout>(tile: &Tile<'_>, r: usize, out: &mut [f32]) {
    let offset = L::OFFSET_BITS.map_or(0, |bits| 1 << bits);
    for (i, out) in out.chunks_mut(16).enumerate() {
        let (g, first) = (16 * i / GROUP, 16 * i % GROUP);
        let (scale, minimum) = row_weights::<L>(tile.scales, g, first, r);
        let group = &tile.quants[g * 64 * L::BITS..];
        for (c, out) in (first..).zip(out) {
            let quant = i32::from(unpack_one::<L>(group, lane(r, c))) - offset;
            *out = scale.mul_add(quant as f32, minimum);
        }
    }
}

/// One tile of a quantised matrix: `source` holds its rows (fewer than 16 in the last tile).
fn pack_tile<L: Layout>(dtype: GgmlType, source: &[&[u8]], groups: usize, quants: &mut [u8], scales: &mut [u8]) {
    let (block_len, block_bytes) = (dtype.block_len(), dtype.block_bytes());
    let groups_per_block = block_len / GROUP;
    let mut blocks = vec![Block::ZERO; TILE];
    let mut scales = scales.chunks_mut(1);
    let mut put = |bytes: &[u8]| {
        for &byte in bytes {
            scales.next().expect("scale_bytes counts all scales")[0] = byte;
        }
    };
    for (b, quants) in quants.chunks_mut(groups_per_block * 64 * L::BITS).enumerate() {
        for (block, row) in blocks.iter_mut().zip(source) {
            block.read(dtype, &row[b * block_bytes..][..block_bytes]);
        }
        let per_block_scales = |put: &mut dyn FnMut(&[u8])| {
            blocks.iter().for_each(|block| put(&block.scale.to_le_bytes()));
            if L::MINIMA {
                blocks.iter().for_each(|block| put(&block.minimum.to_le_bytes()));
            }
        };
        per_block_scales(&mut put);
        for (g, out) in quants.chunks_mut(64 * L::BITS).enumerate() {
            if L::SUPER_SCALES {
                let subs = GROUP / L::SCALE_COLUMNS;
                for sub in g * subs..(g + 1) * subs {
                    blocks.iter().for_each(|block| put(&[block.factors[sub] as u8]));
                }
                if L::MINIMA {
                    for sub in g * subs..(g + 1) * subs {
                        blocks.iter().for_each(|block| put(&[block.minimum_factors[sub] as u8]));
                    }
                }
            }
            let mut lanes = [0u8; GROUP_QUANTS];
            for (r, block) in blocks.iter().enumerate() {
                for (c, &quant) in block.quants[g * GROUP..(g + 1) * GROUP].iter().enumerate() {
                    lanes[lane(r, c)] = quant;
                }
            }
            pack_group(L::BITS, &lanes, out);
        }
    }
    debug_assert!(groups_per_block == 1 || groups.is_multiple_of(SUPER));
}

/// One tile of a float matrix: columns side by side, absent rows and columns zero.
fn pack_float_tile(dtype: GgmlType, source: &[&[u8]], quants: &mut [u8]) {
    let bytes = dtype.block_bytes();
    for (r, row) in source.iter().enumerate() {
        for (c, weight) in row.chunks_exact(bytes).enumerate() {
            quants[(TILE * c + r) * bytes..][..bytes].copy_from_slice(weight);
        }
    }
}

/// Packs a tensor into its two slices of the arena, on `threads` threads, until `poll`, asked every few milliseconds,
/// says to stop.
fn pack(
    file: &GgufFile,
    info: &TensorInfo,
    quants: &mut [u8],
    scales: &mut [u8],
    threads: usize,
    poll: &mut dyn FnMut() -> bool,
) -> Result<()> {
    let (columns, rows) = (info.columns(), info.rows());
    let groups = groups(columns);
    let (quant_bytes, scale_bytes) = (groups * quant_bytes(info.dtype), scale_bytes(info.dtype, groups));
    let row_bytes = columns / info.dtype.block_len() * info.dtype.block_bytes();
    let data = file.data(info);
    let stopped = AtomicBool::new(false);
    let tiles = Mutex::new(Unpacked { next: 0, quants, scales });
    let pack_one = || {
        if stopped.load(Ordering::Relaxed) {
            return false;
        }
        let Some((index, quants, scales)) =
            tiles.lock().unwrap_or_else(PoisonError::into_inner).take(quant_bytes, scale_bytes)
        else {
            return false;
        };
        let rows = index * TILE..rows.min((index + 1) * TILE);
        let source: Vec<&[u8]> = rows.map(|r| &data[r * row_bytes..][..row_bytes]).collect();
        match info.dtype.is_float() {
            true => pack_float_tile(info.dtype, &source, quants),
            false => with_layout!(info.dtype, pack_tile::<_>(info.dtype, &source, groups, quants, scales)),
        }
        true
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // A thread the system refuses leaves more to the others.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || while pack_one() {});
        }
        while pack_one() {
            if poll() {
                stopped.store(true, Ordering::Relaxed);
            }
        }
    });
    if stopped.into_inner() {
        Err(Error::Interrupted)
    } else {
        Ok(())
    }
}

/// The tiles of a tensor that nobody has begun to pack.
struct Unpacked<'a> {
    next: usize,
    quants: &'a mut [u8],
    scales: &'a mut [u8],
}

impl<'a> Unpacked<'a> {
    /// The next tile's index and its places for quants and scales.
    fn take(&mut self, quant_bytes: usize, scale_bytes: usize) -> Option<(usize, &'a mut [u8], &'a mut [u8])> {
        let quants = self.quants.split_off_mut(..quant_bytes)?;
        let scales = self.scales.split_off_mut(..scale_bytes)?;
        self.next += 1;
        Some((self.next - 1, quants, scales))
    }
}

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
    /// Reads and repacks the tensors of `file` on `threads` threads.
    ///
    /// # Errors
    /// [`Error::Gguf`] if a tensor is missing, [`Error::Io`] if there is no memory for the weights,
    /// [`Error::Interrupted`] if `poll` said so.
    pub fn load(file: &GgufFile, config: &Config, threads: usize, poll: &mut dyn FnMut() -> bool) -> Result<Self> {
        const MATRICES: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        let mut names = vec!["token_embd.weight".to_owned()];
        for layer in 0..config.n_layer {
            names.extend(MATRICES.iter().map(|name| format!("blk.{layer}.{name}.weight")));
        }
        let tied = file.tensor("output.weight").is_none();
        names.extend((!tied).then(|| "output.weight".to_owned()));

        let mut end = 0;
        let mut place = |bytes: usize| {
            let at = end;
            end += bytes.next_multiple_of(LINE);
            at..at + bytes
        };
        let mut plans = Vec::with_capacity(names.len());
        for name in &names {
            let info = file.require(name)?;
            let (tiles, groups) = (info.rows().div_ceil(TILE), groups(info.columns()));
            let quants = place(tiles * groups * quant_bytes(info.dtype));
            let scales = place(tiles * scale_bytes(info.dtype, groups));
            plans.push(Plan { info, quants, scales });
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
        let mut matrices = plans.into_iter().map(|plan| Matrix {
            dtype: plan.info.dtype,
            rows: plan.info.rows(),
            columns: plan.info.columns(),
            arena: arena.clone(),
            quants: plan.quants,
            scales: plan.scales,
        });
        let mut next = || matrices.next().expect("one matrix for each name");
        let embedding = Arc::new(next());
        let layers = (0..config.n_layer)
            .map(|layer| {
                let qkv = [next(), next(), next()];
                Ok(Layer {
                    attn_norm: vector(file, &format!("blk.{layer}.attn_norm.weight"))?,
                    qkv,
                    attn_output: next(),
                    ffn_norm: vector(file, &format!("blk.{layer}.ffn_norm.weight"))?,
                    ffn_gate: next(),
                    ffn_up: next(),
                    ffn_down: next(),
                })
            })
            .collect::<Result<_>>()?;
        let output = if tied { embedding.clone() } else { Arc::new(next()) };
        let output_norms = match output.dtype.is_float() {
            true => Vec::new(),
            false => norms(&output, threads, poll).ok_or(Error::Interrupted)?,
        };
        Ok(Self {
            embedding,
            layers,
            output_norm: vector(file, "output_norm.weight")?,
            output,
            bytes: end,
            output_norms,
        })
    }
}

/// A float tensor as f32; norms are F32 in practice, F16 and BF16 are taken too.
fn vector(file: &GgufFile, name: &str) -> Result<Vec<f32>> {
    let info = file.require(name)?;
    let data = file.data(info);
    let values = data.chunks_exact(info.dtype.block_bytes());
    let values = match info.dtype {
        GgmlType::F32 => values.map(bytemuck::pod_read_unaligned).collect(),
        GgmlType::F16 => values.map(|b| bytemuck::pod_read_unaligned::<f16>(b).to_f32()).collect(),
        GgmlType::BF16 => values.map(|b| bytemuck::pod_read_unaligned::<bf16>(b).to_f32()).collect(),
        other => {
            return Err(Error::Gguf(format!(
                "{}: {name} has type {}, but norms must be F32, F16 or BF16",
                file.path().display(),
                other.name()
            )))
        }
    };
    file.release(info);
    Ok(values)
}
