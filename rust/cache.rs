//! The paged, copy-on-write key/value cache of one sequence.
//!
//! A page holds [`PAGE`] positions of all layers. Pages are reference-counted: a clone of a cache copies a list of
//! pointers, and a page that others hold is copied before it is written. So snapshots are cheap and never go stale.

use crate::error::{Error, Result};
use crate::kernels::scalar::Shape;
use crate::kernels::shared::Shared;
use crate::kernels::Kernels;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::sync::{Arc, OnceLock};

/// Positions in a page: one block of attention.
pub const PAGE: usize = 64;

/// What determines the layout of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers.
    pub n_layer: usize,
    /// Key/value heads.
    pub n_head_kv: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl CacheShape {
    /// Width of a head as stored: padded with zeros to whole registers of 16.
    pub fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    fn head_len(&self) -> usize {
        2 * PAGE * self.padded_dim()
    }

    fn page_len(&self) -> usize {
        self.n_layer * self.n_head_kv * self.head_len()
    }

    /// Bytes that one cached position takes.
    pub fn bytes_per_token(&self) -> usize {
        self.page_len() * size_of::<f16>() / PAGE
    }
}

/// Keys and values of 64 positions: for each layer and head the keys as `[dim][position]`, then the values as
/// `[position][dim]`, so that both products of attention run along registers.
pub struct Page {
    shape: CacheShape,
    data: Shared<f16>,
    /// Mean key, mean value and variance of the keys, of each layer and head, computed when first asked for.
    means: Vec<OnceLock<Box<[f16]>>>,
}

impl Page {
    /// `count` pages side by side, so that the system's large pages can back them.
    fn several(shape: CacheShape, count: usize) -> Result<impl DoubleEndedIterator<Item = Self>> {
        let means = vec![OnceLock::new(); shape.n_layer * shape.n_head_kv];
        let all = Shared::mapped(shape.page_len(), count).ok_or(Error::Memory {
            what: "the key/value cache",
            bytes: count * shape.page_len() * size_of::<f16>(),
            way_out: "drop sessions or snapshots that are no longer needed, or use a shorter context",
        })?;
        Ok(all.into_iter().map(move |data| Self { shape, data, means: means.clone() }))
    }

    fn copy(&self) -> Result<Self> {
        let new = Self::several(self.shape, 1)?.next().expect("one page");
        new.data.write(0..new.data.len()).copy_from_slice(self.all());
        Ok(new)
    }

    fn all(&self) -> &[f16] {
        self.data.read(0..self.data.len())
    }

    /// A copy of the first `len` positions, with zeros for the others.
    fn first(&self, len: usize) -> Vec<f16> {
        let mut all = self.all().to_vec();
        for head in all.chunks_exact_mut(self.shape.head_len()) {
            let (keys, values) = head.split_at_mut(self.shape.head_len() / 2);
            keys.chunks_exact_mut(PAGE).for_each(|positions| positions[len..].fill(f16::ZERO));
            values[len * self.shape.padded_dim()..].fill(f16::ZERO);
        }
        all
    }

    fn head(&self, layer: usize, head: usize) -> usize {
        (layer * self.shape.n_head_kv + head) * self.shape.head_len()
    }

    /// Keys of one head, `[padded_dim][PAGE]`.
    pub fn keys(&self, layer: usize, head: usize) -> &[f16] {
        let at = self.head(layer, head);
        self.data.read(at..at + self.shape.head_len() / 2)
    }

    /// Values of one head, `[PAGE][padded_dim]`.
    pub fn values(&self, layer: usize, head: usize) -> &[f16] {
        let at = self.head(layer, head) + self.shape.head_len() / 2;
        self.data.read(at..at + self.shape.head_len() / 2)
    }

    /// Mean key, mean value and variance of the keys of one head of a full page, `[3][padded_dim]`.
    pub fn means(&self, kernels: &Kernels, layer: usize, head: usize) -> &[f16] {
        self.means[layer * self.shape.n_head_kv + head].get_or_init(|| {
            let width = self.shape.padded_dim();
            let mut sums = vec![0.0; 3 * width];
            let mut row = [0.0; PAGE];
            for (d, key) in self.keys(layer, head).chunks_exact(PAGE).enumerate() {
                key.convert_to_f32_slice(&mut row);
                let mean = row.iter().sum::<f32>() / PAGE as f32;
                sums[d] = mean;
                sums[2 * width + d] = row.iter().map(|key| (key - mean).powi(2)).sum::<f32>() / PAGE as f32;
            }
            let equal = [1.0 / PAGE as f32; PAGE];
            let shape = Shape::whole(1, PAGE, width);
            kernels.multiply_f16(shape, &equal, self.values(layer, head), &[], &mut sums[width..2 * width], false);
            let mut means = vec![f16::ZERO; 3 * width];
            kernels.to_f16(&sums, &mut means);
            means.into()
        })
    }

    /// Stores the key of one position. One thread a position and head; see [`Shared::write`].
    pub fn store_key(&self, layer: usize, head: usize, position: usize, key: &[f16]) {
        let at = self.head(layer, head) + position;
        for (d, &key) in key.iter().enumerate() {
            self.data.write(at + d * PAGE..at + d * PAGE + 1)[0] = key;
        }
    }

    /// Stores the value of one position, likewise.
    pub fn store_value(&self, layer: usize, head: usize, position: usize, value: &[f16]) {
        let width = self.shape.padded_dim();
        let at = self.head(layer, head) + width * PAGE + position * width;
        self.data.write(at..at + value.len()).copy_from_slice(value);
    }
}

/// The cache of one sequence.
pub struct KvCache {
    shape: CacheShape,
    pages: Vec<Arc<Page>>,
    /// Pages for later positions, the next one last; the system gives memory for them when they are written.
    spare: Vec<Page>,
    len: usize,
}

/// Most pages that are made before they are needed.
const SPARE: usize = 16;

impl Clone for KvCache {
    fn clone(&self) -> Self {
        Self { shape: self.shape, pages: self.pages.clone(), spare: Vec::new(), len: self.len }
    }
}

impl KvCache {
    /// An empty cache.
    pub fn new(shape: CacheShape) -> Self {
        Self { shape, pages: Vec::new(), spare: Vec::new(), len: 0 }
    }

    /// Cached positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pages that hold `len()` positions.
    pub fn pages(&self) -> &[Arc<Page>] {
        &self.pages
    }

    /// Makes room for `count` positions after the cached ones, in pages that nobody else holds.
    ///
    /// The positions count as cached only after [`KvCache::commit`].
    ///
    /// # Errors
    /// [`Error::Memory`] if there is none; what is cached stays.
    pub fn reserve(&mut self, count: usize) -> Result<()> {
        let needed = (self.len + count).div_ceil(PAGE);
        let missing = needed.saturating_sub(self.pages.len());
        if missing > self.spare.len() {
            // As many again as there are, side by side; what is left of the spare ones lies elsewhere.
            let pages = Page::several(self.shape, missing.max(self.pages.len().min(SPARE)));
            self.spare = pages.or_else(|_| Page::several(self.shape, missing))?.rev().collect();
        }
        for i in self.len / PAGE..needed {
            match self.pages.get_mut(i) {
                None => self.pages.push(Arc::new(self.spare.pop().expect("as many as are missing"))),
                Some(page) => match Arc::get_mut(page) {
                    Some(page) => page.means.fill(OnceLock::new()),
                    None => *page = Arc::new(page.copy()?),
                },
            }
        }
        Ok(())
    }

    /// Counts `count` more positions as cached.
    pub fn commit(&mut self, count: usize) {
        self.len += count;
        assert!(self.len <= self.pages.len() * PAGE, "committed positions were reserved");
    }

    /// Forgets the positions from `len` on; nothing happens if there are none.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        // One page more is kept: speculation takes back and adds a few positions all the time.
        self.pages.truncate(self.len.div_ceil(PAGE) + 1);
    }

    /// The values of all pages, for saving; zeros where nothing is cached, whatever stood there before.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len.div_ceil(PAGE) * self.shape.page_len() * size_of::<f16>());
        for page in &self.pages[..self.len / PAGE] {
            bytes.extend_from_slice(bytemuck::cast_slice(page.all()));
        }
        if !self.len.is_multiple_of(PAGE) {
            bytes.extend_from_slice(bytemuck::cast_slice(&self.pages[self.len / PAGE].first(self.len % PAGE)));
        }
        bytes
    }

    /// A cache of `len` positions from [`KvCache::to_bytes`].
    ///
    /// # Errors
    /// [`Error::Argument`] if their number does not fit.
    pub fn from_bytes(shape: CacheShape, len: usize, bytes: &[u8]) -> Result<Self> {
        let page_bytes = shape.page_len() * size_of::<f16>();
        let needed = len.div_ceil(PAGE) * page_bytes;
        if bytes.len() != needed {
            return Err(Error::Argument(format!(
                "the saved cache has {} bytes but {len} positions of this model take {needed}; \
                 it belongs to another model or is damaged",
                bytes.len()
            )));
        }
        let pages =
            Page::several(shape, len.div_ceil(PAGE))?.zip(bytes.chunks_exact(page_bytes)).map(|(page, bytes)| {
                bytemuck::cast_slice_mut(page.data.write(0..page.data.len())).copy_from_slice(bytes);
                Arc::new(page)
            });
        Ok(Self { shape, len, pages: pages.collect(), spare: Vec::new() })
    }
}
