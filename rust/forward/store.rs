//! The phase of a pass that stores keys and values in the cache.

use crate::attention::cache::PAGE;
use crate::forward::decoder::Decoder;
use crate::forward::plan::{Local, Pass};
use crate::kernels::fixed::{largest_quant, LARGEST_VALUE};
use crate::workers::phase::Phase;

impl Pass {
    /// Rotates the keys and stores keys and values in the cache.
    ///
    /// The keys of a head, of which a cache line holds two values of 16 positions, are one worker's work: two that write
    /// to the same lines slow each other down (0.7 ms of a pass of 16 rows through SmolLM2-135M, a twelfth of it).
    pub(super) fn store(&self, phase: &Phase<'_>, layer: usize, local: &mut Local) {
        let Decoder { config, kernels, .. } = &*self.decoder;
        let heads = config.n_head_kv;
        local.quants.resize(config.head_dim, 0);
        let largest_key = largest_quant(config.head_dim.next_multiple_of(16));
        let qkv = phase.read(&self.buffers.qkv);
        while let Some(units) = phase.next_units() {
            for (rows, unit) in self.pages.iter().flat_map(|rows| units.clone().map(move |unit| (rows, unit))) {
                let (head, are_values) = (unit / 2, unit % 2 == 1);
                let page = self.task.rows[rows.start].position / PAGE;
                let mut page = self.task.sequence(rows.start).pages[page].writer(phase);
                for row in rows.clone() {
                    let position = self.task.rows[row].position % PAGE;
                    if are_values {
                        let value = self.head(row, config.n_head + heads + head);
                        let scale = kernels.to_fixed(&qkv[value], LARGEST_VALUE, &mut local.quants);
                        page.value(layer, head, position, &local.quants, scale);
                    } else {
                        let key = self.head(row, config.n_head + head);
                        local.floats.clear();
                        local.floats.extend_from_slice(&qkv[key]);
                        self.rotate(layer, row, &mut local.floats);
                        let scale = kernels.to_fixed(&local.floats, largest_key, &mut local.quants);
                        page.key(layer, head, position, &local.quants, scale);
                    }
                }
            }
        }
    }
}
