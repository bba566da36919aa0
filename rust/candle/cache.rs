//! The key/value cache of one sequence on the candle engine.
//!
//! Every layer has one tensor of keys and one of values with room to spare. New positions are written in place while
//! nobody else holds the tensors, and into a copy otherwise: a clone of a cache is a cheap snapshot that never goes
//! stale. Positions count only once they are committed, so forgetting the last ones costs nothing.

use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

use crate::attention::cache::CacheShape;
use crate::error::{Error, Result};

/// The least number of positions there is room for, as soon as there is any.
const MIN_CAPACITY: usize = 64;

/// The cache of one sequence.
#[derive(Clone)]
pub struct CandleCache {
    shape: CacheShape,
    device: Device,
    /// Keys and values of every layer, `[n_head_kv][capacity][head_dim]` in f32.
    layers: Arc<Vec<[Tensor; 2]>>,
    /// Positions there is room for.
    capacity: usize,
    len: usize,
}

impl CandleCache {
    /// An empty cache on `device`.
    pub fn new(shape: CacheShape, device: &Device) -> Self {
        Self { shape, device: device.clone(), layers: Arc::default(), capacity: 0, len: 0 }
    }

    /// Bytes that one cached position takes.
    pub fn bytes_per_token(&self) -> usize {
        let CacheShape { n_layer, n_head_kv, head_dim } = self.shape;
        2 * n_layer * n_head_kv * head_dim * size_of::<f32>()
    }

    /// Cached positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the positions from `len` on; nothing happens if there are none.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes room for `count` positions after the cached ones, in tensors that nobody else holds.
    ///
    /// # Errors
    /// candle's, when the device has no memory for it; the cache is then as before.
    pub fn reserve(&mut self, count: usize) -> candle_core::Result<()> {
        let needed = self.len + count;
        if needed <= self.capacity && Arc::get_mut(&mut self.layers).is_some() {
            return Ok(());
        }
        let capacity = needed.next_power_of_two().max(MIN_CAPACITY);
        let layers = (0..self.shape.n_layer)
            .map(|layer| Ok([self.copy(layer, 0, capacity)?, self.copy(layer, 1, capacity)?]))
            .collect::<candle_core::Result<Vec<_>>>()?;
        self.layers = Arc::new(layers);
        self.capacity = capacity;
        Ok(())
    }

    /// The keys (`side` 0) or values (1) of a layer in a tensor of their own, with room for `capacity` positions.
    fn copy(&self, layer: usize, side: usize, capacity: usize) -> candle_core::Result<Tensor> {
        let CacheShape { n_head_kv, head_dim, .. } = self.shape;
        let new = Tensor::zeros((n_head_kv, capacity, head_dim), DType::F32, &self.device)?;
        if self.len > 0 {
            let cached = self.layers[layer][side].narrow(1, 0, self.len)?;
            new.slice_set(&cached.contiguous()?, 1, 0)?;
        }
        Ok(new)
    }

    /// Writes keys and values, `[n_head_kv][count][head_dim]`, at `position` and those after it, which were reserved.
    ///
    /// Returns the keys and values of all positions up to the new ones, those included.
    ///
    /// # Errors
    /// candle's, when the shapes do not fit.
    pub fn store(
        &mut self,
        layer: usize,
        position: usize,
        keys: &Tensor,
        values: &Tensor,
    ) -> candle_core::Result<[Tensor; 2]> {
        let end = position + keys.dim(1)?;
        let [all_keys, all_values] = &self.layers[layer];
        all_keys.slice_set(&keys.contiguous()?, 1, position)?;
        all_values.slice_set(&values.contiguous()?, 1, position)?;
        Ok([all_keys.narrow(1, 0, end)?, all_values.narrow(1, 0, end)?])
    }

    /// Counts `count` more positions as cached.
    pub fn commit(&mut self, count: usize) {
        self.len += count;
        assert!(self.len <= self.capacity, "committed positions were reserved");
    }

    /// All cached values, for saving: for each layer keys, then values, `[n_head_kv][len][head_dim]`, as f32.
    ///
    /// # Errors
    /// [`Error::Argument`] if the device fails.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.len * self.bytes_per_token());
        if self.len == 0 {
            return Ok(bytes);
        }
        for tensor in self.layers.iter().flatten() {
            let values = tensor.narrow(1, 0, self.len).and_then(|t| t.flatten_all()?.to_vec1::<f32>());
            let values = values.map_err(|source| device_error(&self.device, &source))?;
            bytes.extend_from_slice(bytemuck::cast_slice(&values));
        }
        Ok(bytes)
    }

    /// A cache of `len` positions from what [`CandleCache::to_bytes`] returned.
    ///
    /// # Errors
    /// [`Error::Argument`] if `bytes` has not the length that goes with the other arguments, or the device fails.
    pub fn from_bytes(shape: CacheShape, device: &Device, len: usize, bytes: &[u8]) -> Result<Self> {
        let mut cache = Self::new(shape, device);
        if len.checked_mul(cache.bytes_per_token()) != Some(bytes.len()) {
            return Err(Error::Argument(format!(
                "the saved cache has {} bytes but {len} positions of this model take {} each; \
                 it belongs to another model or is damaged",
                bytes.len(),
                cache.bytes_per_token()
            )));
        }
        cache.fill(len, bytes).map_err(|source| device_error(device, &source))?;
        Ok(cache)
    }

    fn fill(&mut self, len: usize, bytes: &[u8]) -> candle_core::Result<()> {
        let CacheShape { n_head_kv, head_dim, .. } = self.shape;
        let per_tensor = n_head_kv * len * head_dim * size_of::<f32>();
        if per_tensor == 0 {
            return Ok(());
        }
        self.reserve(len)?;
        for (tensor, bytes) in self.layers.iter().flatten().zip(bytes.chunks_exact(per_tensor)) {
            let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let values = Tensor::from_vec(values, (n_head_kv, len, head_dim), &self.device)?;
            tensor.slice_set(&values, 1, 0)?;
        }
        self.commit(len);
        Ok(())
    }
}

/// What a failure of candle means to a caller: the chosen device cannot do the work.
pub fn device_error(device: &Device, source: &candle_core::Error) -> Error {
    let location = device.location();
    Error::Argument(format!("candle failed on device {location:?}: {source}; device=\"cpu\" does without candle"))
}
