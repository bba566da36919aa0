//! The phase of a pass that stores keys and values in the cache.

use crate::attention::cache::PAGE;
use crate::forward::decoder::Decoder;
use crate::forward::plan::{Local, Pass};
use crate::kernels::fixed::{largest_quant, LARGEST_VALUE};
use crate::workers::threads::Worker;

impl Pass {
    /// Rotates the keys and stores keys and values in the cache.
    ///
    /// The keys of a head, of which a cache line holds two values of 16 positions, are one worker's work: two that write
    /// to the same lines slow each other down (0.7 ms of a pass of 16 rows through SmolLM2-135M, a twelfth of it).
    pub(super) fn store(&self, worker: &Worker<'_>, layer: usize, local: &mut Local) {
        let Decoder { config, kernels, .. } = &*self.decoder;
        let heads = config.n_head_kv;
        local.quants.resize(config.head_dim, 0);
        let largest_key = largest_quant(config.head_dim.next_multiple_of(16));
        for unit in worker.share(2 * heads * self.pages.len(), 1) {
            let (rows, head, are_values) = (self.pages[unit / (2 * heads)].clone(), unit / 2 % heads, unit % 2 == 1);
            for row in rows {
                let position = self.task.rows[row].position;
                let page = &self.task.sequence(row).pages[position / PAGE];
                if are_values {
                    let value = self.head(row, config.n_head + heads + head);
                    let scale = kernels.to_fixed(self.buffers.qkv.read(value), LARGEST_VALUE, &mut local.quants);
                    page.store_value(layer, head, position % PAGE, &local.quants, scale);
                } else {
                    let key = self.head(row, config.n_head + head);
                    local.floats.clear();
                    local.floats.extend_from_slice(self.buffers.qkv.read(key));
                    self.rotate(layer, row, &mut local.floats);
                    let scale = kernels.to_fixed(&local.floats, largest_key, &mut local.quants);
                    page.store_key(layer, head, position % PAGE, &local.quants, scale);
                }
            }
        }
    }
}
