//! Packing a tensor of a file into the tiles that the kernels read.

use crate::error::{Error, Result};
use crate::gguf::file::{GgufFile, TensorInfo};
use crate::gguf::types::{Block, GgmlType};
use crate::kernels::layout::{
    pack_group, quant_bytes, scale_bytes, with_layout, Layout, GROUP, GROUP_QUANTS, SUPER, TILE,
};
use crate::kernels::scalar::lane;
use crate::weights::matrix::groups;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

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
pub(super) fn pack(
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
