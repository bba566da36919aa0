//! Packing all matrices of a file in one pass, on several threads.
//!
//! Performance notes, for a gigabyte in the system's cache on one core of a virtual machine:
//! - packing takes 0.05 to 0.2 s, mapping the file's pages 0.1 s, and the first touch of the packed memory 0.1 s with large
//!   pages and 0.35 s with small ones, so all of it is shared among the threads, and none is started for a tensor alone;
//! - reading the file into a buffer instead of mapping it takes 0.2 s; mapping ahead (`MADV_POPULATE_READ`) gains nothing.

use crate::arch::tensors::RowOrder;
use crate::error::{Error, Result};
use crate::gguf::file::{GgufFile, TensorInfo};
use crate::identity::{hash, HASHED_ROWS};
use crate::kernels::layout::{groups, quant_bytes, scale_bytes, Tile, TILE};
use crate::weights::bounds::bounds;
use crate::weights::tile::pack_tile;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// About so many bytes of a file are packed at a time: few enough for a core's second cache and a quick Ctrl-C.
const BYTES_AT_ONCE: usize = 1 << 18;
/// So many bytes of a file may stay mapped after they were packed.
const MAPPED: usize = 16 << 20;

const _: () = assert!(HASHED_ROWS == TILE);

/// A matrix to be packed, or some tiles of one, and where to.
pub struct Packing<'a> {
    /// The matrix.
    pub info: &'a TensorInfo,
    /// In which order its rows are packed.
    pub order: RowOrder,
    /// The first tile.
    pub first: usize,
    /// Zeros that become the quants, tile by tile.
    pub quants: &'a mut [u8],
    /// Zeros that become the scales.
    pub scales: &'a mut [u8],
    /// Becomes the hash of every tile's bytes in the file; says how many tiles there are.
    pub hashes: &'a mut [u64],
    /// Becomes the [`bounds`] of every tile, if it is not empty.
    pub bounds: &'a mut [[f32; TILE]],
}

impl<'a> Packing<'a> {
    /// Takes about [`BYTES_AT_ONCE`] bytes off the front; `None` if nothing is left.
    fn take(&mut self) -> Option<Self> {
        let Sizes { row_bytes, quant_bytes, scale_bytes, .. } = Sizes::of(self.info);
        let tiles = self.hashes.len().min((BYTES_AT_ONCE / (TILE * row_bytes)).max(1));
        let first = self.first;
        self.first += tiles;
        let bounded = tiles.min(self.bounds.len());
        (tiles > 0).then_some(())?;
        Some(Self {
            info: self.info,
            order: self.order,
            first,
            quants: self.quants.split_off_mut(..tiles * quant_bytes)?,
            scales: self.scales.split_off_mut(..tiles * scale_bytes)?,
            hashes: self.hashes.split_off_mut(..tiles)?,
            bounds: self.bounds.split_off_mut(..bounded)?,
        })
    }

    /// Bytes in the file.
    fn bytes(&self) -> usize {
        self.hashes.len() * TILE * Sizes::of(self.info).row_bytes
    }

    fn run(self, file: &GgufFile) {
        let Sizes { row_bytes, groups, quant_bytes, scale_bytes } = Sizes::of(self.info);
        let data = file.data(self.info);
        let tiles = data.chunks(TILE * row_bytes).skip(self.first).zip(self.hashes).enumerate();
        for (i, (bytes, out)) in tiles {
            let quants = &mut self.quants[i * quant_bytes..][..quant_bytes];
            let scales = &mut self.scales[i * scale_bytes..][..scale_bytes];
            *out = hash(bytes);
            let (first, count) = ((self.first + i) * TILE, bytes.len() / row_bytes);
            let row = |row: usize| &data[self.order.in_file(first + row) * row_bytes..][..row_bytes];
            let rows: [&[u8]; TILE] = std::array::from_fn(|i| if i < count { row(i) } else { &[][..] });
            pack_tile(self.info.dtype, &rows[..count], quants, scales);
            if let Some(out) = self.bounds.get_mut(i) {
                *out = bounds(&Tile { dtype: self.info.dtype, groups, quants, scales });
            }
        }
    }
}

/// Sizes of a matrix.
struct Sizes {
    row_bytes: usize,
    groups: usize,
    /// Of a tile.
    quant_bytes: usize,
    /// Of a tile.
    scale_bytes: usize,
}

impl Sizes {
    fn of(info: &TensorInfo) -> Self {
        let (dtype, groups) = (info.dtype, groups(info.columns()));
        Self {
            row_bytes: info.row_bytes(),
            groups,
            quant_bytes: groups * quant_bytes(dtype),
            scale_bytes: scale_bytes(dtype, groups),
        }
    }
}

/// What is left to be packed.
struct Queue<'a> {
    matrices: std::vec::IntoIter<Packing<'a>>,
    current: Option<Packing<'a>>,
    /// Bytes of the file that were taken since its pages were released.
    mapped: usize,
}

impl<'a> Queue<'a> {
    /// Some tiles, and whether it is time to release the pages of what was packed before.
    fn take(&mut self) -> Option<(Packing<'a>, bool)> {
        loop {
            if let Some(piece) = self.current.as_mut().and_then(Packing::take) {
                self.mapped += piece.bytes();
                let release = self.mapped > MAPPED;
                if release {
                    self.mapped = 0;
                }
                return Some((piece, release));
            }
            self.current = Some(self.matrices.next()?);
        }
    }
}

/// Packs `matrices` of `file` on `threads` threads, until `poll`, asked every few milliseconds, says to stop.
///
/// # Errors
/// [`Error::Interrupted`] if `poll` said so, [`Error::Io`] if the file was changed meanwhile.
pub fn pack(
    file: &GgufFile,
    mut matrices: Vec<Packing<'_>>,
    threads: usize,
    poll: &mut dyn FnMut() -> bool,
) -> Result<()> {
    // As they lie in the file, which is read faster so if it comes from a disk.
    matrices.sort_by_key(|matrix| (matrix.info.part, matrix.info.range.start));
    let queue = Mutex::new(Queue { matrices: matrices.into_iter(), current: None, mapped: 0 });
    let stopped = AtomicBool::new(false);
    let work = |poll: &mut dyn FnMut() -> bool| {
        let mut run = || {
            file.check_unchanged()?;
            while !stopped.load(Ordering::Relaxed) {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some((piece, release)) = next else { break };
                if release {
                    file.release();
                    file.check_unchanged()?;
                }
                piece.run(file);
                if poll() {
                    return Err(Error::Interrupted);
                }
            }
            Ok(())
        };
        run().inspect_err(|_| stopped.store(true, Ordering::Relaxed))
    };
    let result = std::thread::scope(|scope| {
        let helper = |_| std::thread::Builder::new().spawn_scoped(scope, || work(&mut || false));
        // A thread the system refuses leaves more to the others.
        let helpers: Vec<_> = (1..threads).map(helper).filter_map(|spawned| spawned.ok()).collect();
        let own = work(poll);
        helpers
            .into_iter()
            .map(|helper| helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .fold(own, Result::and)
    });
    file.release();
    result
}
