//! The phase of a pass that computes the hidden values of the feed-forward layer.

use crate::arch::config::Activation;
use crate::forward::buffers::Buffers;
use crate::forward::decoder::Decoder;
use crate::forward::matmul::{multiply_together, ActivationWriter};
use crate::forward::plan::{Local, Pass};
use crate::kernels::layout::{Rows, GROUP, TILE};
use crate::weights::load::FeedForward;
use crate::workers::phase::Phase;
use std::ops::Range;

/// Tiles whose columns are a group of activations.
pub(super) const PAIR: usize = GROUP / TILE;

impl Pass {
    /// The gated half of the feed-forward layer.
    pub(super) fn activate(&self, phase: &Phase<'_>, ffn: &FeedForward, local: &mut Local) {
        let Buffers { normed, hidden, .. } = &self.buffers;
        let input = normed.read(phase);
        let mut hidden = hidden.writer(phase);
        while let Some(tiles) = phase.next_units() {
            activate(&self.decoder, ffn, tiles, &input, 0, &mut hidden, &mut local.hidden);
        }
    }
}

/// The hidden values of some `tiles` for all rows of `input`, which become those of `hidden` from row `first` on. A worker
/// activates and quantises what it computed while that is in its cache.
pub(super) fn activate(
    decoder: &Decoder,
    ffn: &FeedForward,
    tiles: Range<usize>,
    input: &Rows<'_>,
    first: usize,
    hidden: &mut ActivationWriter<'_>,
    results: &mut [Vec<[f32; TILE]>; 2],
) {
    let kernels = &decoder.kernels;
    let sink = |tiles: Range<usize>, rows: Range<usize>, [gate, up]: [&mut [[f32; TILE]]; 2]| {
        let (gates, up) = (gate.as_flattened_mut(), up.as_flattened());
        match decoder.config.activation {
            Activation::Silu => kernels.swiglu(gates, up),
            Activation::Gelu => kernels.geglu(gates, up),
        }
        let (pairs, last) = gate.split_at(tiles.len() / PAIR * PAIR * rows.len());
        let groups = pairs.chunks_exact(PAIR * rows.len()).map(|pair| pair.split_at(rows.len()));
        // The other half of a last group are columns past the end.
        let groups = groups.chain((!last.is_empty()).then_some((last, &last[..0])));
        for (g, (left, right)) in (tiles.start / PAIR..).zip(groups) {
            let halves = |i: usize| [&left[i], right.get(i).unwrap_or(&[0.0; TILE])];
            hidden.put_group(kernels, first + rows.start..first + rows.end, g, halves);
        }
    };
    multiply_together(kernels, [&ffn.gate, &ffn.up], tiles, PAIR, input, results, sink);
}
