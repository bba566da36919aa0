//! The paged, copy-on-write key/value cache of one sequence.
//!
//! A page holds [`PAGE`] positions of all layers. Pages are reference-counted: a clone of a cache copies a list of
//! pointers, and a page that others hold is copied before it is written. So snapshots are cheap and never go stale.

use crate::error::{Error, Result};
use crate::kernels::fixed::{largest_quant, LARGEST_VALUE};
use crate::kernels::fixed_rows::FixedRows;
use crate::kernels::table::Kernels;
use crate::workers::phase::Phase;
use crate::workers::shared::{Name, Shared, Table};
use crate::workers::writer::Writer;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Pages, as phases call them.
pub const PAGES: Name = Name::new(0, "the pages of the cache");

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
        2 * self.quants() + FLOATS * PAGE
    }

    /// Words of the keys, or of the values, of one head in a page.
    fn quants(&self) -> usize {
        PAGE * self.padded_dim() / 2
    }

    /// A page: a row for each layer and head. Workers share the heads out, the keys of each and the values.
    fn table(&self) -> Table {
        let [keys, values] = [self.quants(), 2 * self.quants()];
        Table::new(self.n_layer * self.n_head_kv, self.head_len())
            .by_sides(self.n_head_kv, [keys, values, values + PAGE])
    }

    fn page_len(&self) -> usize {
        self.n_layer * self.n_head_kv * self.head_len()
    }

    /// Bytes that one cached position takes.
    pub fn bytes_per_token(&self) -> usize {
        self.page_len() * size_of::<u32>() / PAGE
    }
}

/// Numbers that a position of a head has beside its quants: see [`KvBlock`].
const FLOATS: usize = 3;

/// Keys and values of 64 positions, in fixed point: for each layer and head what [`KvBlock`] refers to, one after the other,
/// in words of two quants or one number.
pub struct Page {
    shape: CacheShape,
    data: Shared<u32>,
    /// Of each layer and head, computed when first asked for; see [`Page::statistics`].
    statistics: Vec<OnceLock<FixedRows>>,
}

/// Keys and values of one head at 64 positions. Pairs of what a product adds up lie side by side, and pairs of neighbouring
/// columns after each other, so that both products of attention run along registers.
#[derive(Clone, Copy)]
pub struct KvBlock<'a> {
    /// Quants of the keys, `[padded_dim / 2][PAGE][2]`.
    pub keys: &'a [i16],
    /// Quants of the values, `[PAGE / 2][padded_dim][2]`.
    pub values: &'a [i16],
    /// Scales of the keys.
    pub key_scales: &'a [f32],
    /// Logarithms of the values' scales, to base 2.
    pub value_logarithms: &'a [f32],
    /// Inverses of the values' scales.
    pub value_inverses: &'a [f32],
}

/// Puts a key into `keys`, laid out like a block's.
pub fn put_key(keys: &mut [i16], position: usize, key: &[i16]) {
    for (keys, pair) in keys.chunks_exact_mut(2 * PAGE).zip(key.chunks(2)) {
        keys[2 * position..2 * position + pair.len()].copy_from_slice(pair);
    }
}

/// Puts a value into `values`, laid out like a block's.
pub fn put_value(values: &mut [i16], position: usize, value: &[i16]) {
    let width = values.len() / PAGE;
    let pairs = &mut values[position / 2 * 2 * width..][..2 * width];
    for (to, &value) in pairs[position % 2..].iter_mut().step_by(2).zip(value) {
        *to = value;
    }
}

impl Page {
    /// `count` pages side by side, so that the system's large pages can back them.
    fn several(shape: CacheShape, count: usize) -> Result<impl DoubleEndedIterator<Item = Self>> {
        let all = Shared::several(PAGES, &shape.table(), count).ok_or(Error::Memory {
            what: "the key/value cache",
            bytes: count * shape.page_len() * size_of::<u32>(),
            way_out: "drop sessions or snapshots that are no longer needed, or use a shorter context",
        })?;
        let statistics = move || (0..shape.n_layer * shape.n_head_kv).map(|_| OnceLock::new()).collect();
        Ok(all.into_iter().map(move |data| Self { shape, data, statistics: statistics() }))
    }

    fn copy(&self) -> Result<Self> {
        let mut new = Self::several(self.shape, 1)?.next().expect("one page");
        new.data.get_mut().copy_from_slice(self.all());
        Ok(new)
    }

    fn all(&self) -> &[u32] {
        self.data.read()
    }

    /// Lets runs write it again.
    fn reopen(&mut self) {
        self.statistics.iter_mut().for_each(|statistics| *statistics = OnceLock::new());
        self.data.get_mut();
    }

    /// A copy of the first `len` positions, with zeros for the others.
    fn first(&self, len: usize) -> Vec<u32> {
        let mut all = self.all().to_vec();
        let zeros = vec![0; self.shape.padded_dim()];
        for head in all.chunks_exact_mut(self.shape.head_len()) {
            let (keys, rest) = head.split_at_mut(self.shape.quants());
            let (values, floats) = rest.split_at_mut(self.shape.quants());
            for position in len..PAGE {
                put_key(bytemuck::cast_slice_mut(keys), position, &zeros);
                put_value(bytemuck::cast_slice_mut(values), position, &zeros);
            }
            floats.chunks_exact_mut(PAGE).for_each(|floats| floats[len..].fill(0));
        }
        all
    }

    /// What is stored of one head: read in `phase`, or outside of runs, where nobody writes the page any more.
    pub fn block<'a>(&'a self, phase: Option<&Phase<'a>>, layer: usize, head: usize) -> KvBlock<'a> {
        let len = self.shape.head_len();
        let at = (layer * self.shape.n_head_kv + head) * len;
        let head = match phase {
            Some(phase) => phase.read_part(&self.data, at..at + len),
            None => &self.all()[at..at + len],
        };
        let (keys, rest) = head.split_at(self.shape.quants());
        let (values, floats) = rest.split_at(self.shape.quants());
        let [keys, values] = [keys, values].map(bytemuck::cast_slice);
        let (key_scales, value_scales) = bytemuck::cast_slice(floats).split_at(PAGE);
        let (value_logarithms, value_inverses) = value_scales.split_at(PAGE);
        KvBlock { keys, values, key_scales, value_logarithms, value_inverses }
    }

    /// Mean key, mean value and variance of the keys of one head of a full page.
    pub fn statistics<'a>(
        &'a self,
        kernels: &Kernels,
        phase: Option<&Phase<'a>>,
        layer: usize,
        head: usize,
    ) -> &'a FixedRows {
        self.statistics[layer * self.shape.n_head_kv + head].get_or_init(|| {
            let width = self.shape.padded_dim();
            let block = self.block(phase, layer, head);
            let [mut keys, mut values, mut variances] = std::array::from_fn(|_| vec![0.0; width]);
            let mean = |row: &[f32; PAGE]| row.iter().sum::<f32>() / PAGE as f32;
            for d in 0..width {
                let pairs = &block.keys[d / 2 * 2 * PAGE..][..2 * PAGE];
                let row = std::array::from_fn(|i| f32::from(pairs[2 * i + d % 2]) * block.key_scales[i]);
                keys[d] = mean(&row);
                variances[d] = mean(&row.map(|key| (key - keys[d]) * (key - keys[d])));
                let value = |i: usize| f32::from(block.values[(i / 2 * width + d) * 2 + i % 2]);
                values[d] = mean(&std::array::from_fn(|i| value(i) / block.value_inverses[i]));
            }
            let mut rows = FixedRows::default();
            rows.push(kernels, &keys, largest_quant(width));
            rows.push(kernels, &values, LARGEST_VALUE);
            rows.push(kernels, &variances, largest_quant(width));
            rows
        })
    }

    /// Begins to store keys and values, in a phase that writes [`PAGES`]. The keys of head `i` are unit `2 * i`, in all
    /// layers and pages; its values are the unit after.
    pub fn writer<'p>(&'p self, phase: &'p Phase<'_>) -> PageWriter<Writer<'p, u32>> {
        PageWriter { shape: self.shape, parts: phase.writer(&self.data) }
    }

    /// The same outside of runs.
    pub fn alone(&mut self) -> PageWriter<&mut [u32]> {
        self.reopen();
        PageWriter { shape: self.shape, parts: self.data.get_mut() }
    }
}

/// Stores keys and values.
pub struct PageWriter<P> {
    shape: CacheShape,
    parts: P,
}

/// Who gives parts of a page to be written: columns of a row; rows have `len` of them.
trait Parts {
    fn part(&mut self, row: usize, columns: Range<usize>, len: usize) -> &mut [u32];
}

impl Parts for Writer<'_, u32> {
    fn part(&mut self, row: usize, columns: Range<usize>, _: usize) -> &mut [u32] {
        Writer::part(self, row, columns)
    }
}

impl Parts for &mut [u32] {
    fn part(&mut self, row: usize, columns: Range<usize>, len: usize) -> &mut [u32] {
        &mut self[row * len..][columns]
    }
}

#[allow(private_bounds)]
impl<P: Parts> PageWriter<P> {
    /// Stores the key of one position.
    pub fn key(&mut self, layer: usize, head: usize, position: usize, key: &[i16], scale: f32) {
        let quants = self.shape.quants();
        put_key(bytemuck::cast_slice_mut(self.part(layer, head, 0..quants)), position, key);
        self.float(layer, head, position, scale);
    }

    /// Stores the value of one position.
    pub fn value(&mut self, layer: usize, head: usize, position: usize, value: &[i16], scale: f32) {
        let quants = self.shape.quants();
        put_value(bytemuck::cast_slice_mut(self.part(layer, head, quants..2 * quants)), position, value);
        self.float(layer, head, PAGE + position, scale.log2());
        self.float(layer, head, 2 * PAGE + position, 1.0 / scale);
    }

    fn float(&mut self, layer: usize, head: usize, at: usize, number: f32) {
        let at = 2 * self.shape.quants() + at;
        self.part(layer, head, at..at + 1)[0] = number.to_bits();
    }

    fn part(&mut self, layer: usize, head: usize, columns: Range<usize>) -> &mut [u32] {
        self.parts.part(layer * self.shape.n_head_kv + head, columns, self.shape.head_len())
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

    /// The page of index `index`, which nobody else holds.
    ///
    /// # Panics
    /// If somebody does.
    pub fn page_mut(&mut self, index: usize) -> &mut Page {
        Arc::get_mut(&mut self.pages[index]).expect("a reserved page")
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
        // Other sequences may read the full pages too.
        self.pages[..self.len / PAGE].iter().for_each(|page| _ = page.all());
        for i in self.len / PAGE..needed {
            match self.pages.get_mut(i) {
                None => self.pages.push(Arc::new(self.spare.pop().expect("as many as are missing"))),
                Some(page) => match Arc::get_mut(page) {
                    Some(page) => page.reopen(),
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
        let mut bytes = Vec::with_capacity(self.len.div_ceil(PAGE) * self.shape.page_len() * size_of::<u32>());
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
        let page_bytes = shape.page_len() * size_of::<u32>();
        let needed = len.div_ceil(PAGE) * page_bytes;
        if bytes.len() != needed {
            return Err(Error::Argument(format!(
                "the saved cache has {} bytes but {len} positions of this model take {needed}; \
                 it belongs to another model or is damaged",
                bytes.len()
            )));
        }
        let pages =
            Page::several(shape, len.div_ceil(PAGE))?.zip(bytes.chunks_exact(page_bytes)).map(|(mut page, bytes)| {
                bytemuck::cast_slice_mut(page.data.get_mut()).copy_from_slice(bytes);
                Arc::new(page)
            });
        Ok(Self { shape, len, pages: pages.collect(), spare: Vec::new() })
    }
}
