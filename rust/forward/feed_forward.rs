//! The phase of a pass that computes the hidden values of the feed-forward layer.

use crate::arch::config::Activation;
use crate::forward::buffers::Buffers;
use crate::forward::matmul::multiply_together;
use crate::forward::plan::{Local, Pass};
use crate::kernels::layout::{GROUP, TILE};
use crate::weights::load::Layer;
use crate::workers::phase::Phase;
use std::ops::Range;

/// Tiles whose columns are a group of activations.
pub(super) const PAIR: usize = GROUP / TILE;

impl Pass {
    /// The gated half of the feed-forward layer. A worker activates and quantises what it computed while that is in
    /// its cache.
    pub(super) fn activate(&self, phase: &Phase<'_>, layer: &Layer, local: &mut Local) {
        let kernels = &self.decoder.kernels;
        let Buffers { normed, hidden, .. } = &self.buffers;
        let input = normed.read(phase);
        let mut hidden = hidden.writer(phase);
        let matrices = [&layer.ffn_gate, &layer.ffn_up];
        while let Some(share) = phase.next_units() {
            let activate = |tiles: Range<usize>, rows: Range<usize>, [gate, up]: [&mut [[f32; TILE]]; 2]| {
                let (gates, up) = (gate.as_flattened_mut(), up.as_flattened());
                match self.decoder.config.activation {
                    Activation::Silu => kernels.swiglu(gates, up),
                    Activation::Gelu => kernels.geglu(gates, up),
                }
                let (pairs, last) = gate.split_at(tiles.len() / PAIR * PAIR * rows.len());
                let groups = pairs.chunks_exact(PAIR * rows.len()).map(|pair| pair.split_at(rows.len()));
                // The other half of a last group are columns past the end.
                let groups = groups.chain((!last.is_empty()).then_some((last, &last[..0])));
                for (g, (left, right)) in (tiles.start / PAIR..).zip(groups) {
                    let halves = |i: usize| [&left[i], right.get(i).unwrap_or(&[0.0; TILE])];
                    hidden.put_group(kernels, rows.clone(), g, halves);
                }
            };
            multiply_together(kernels, matrices, share, PAIR, &input, &mut local.hidden, activate);
        }
    }
}
