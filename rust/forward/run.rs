//! The program of a pass: its phases in order, what each reads and writes, and how workers share it out; see
//! [`crate::workers::phase`].

use crate::attention::cache::PAGES;
use crate::forward::buffers::{
    Buffers, ExpertBuffers, ATTENDED, BRANCH, GATHERED, HIDDEN, NORMED, OUTPUT, QKV, REST, ROUTED, STATES, SUMS,
    TOKENS, X,
};
use crate::forward::feed_forward::PAIR;
use crate::forward::matmul::Activations;
use crate::forward::plan::{Local, Pass};
use crate::forward::task::LOGITS;
use crate::weights::load::{Experts, FeedForward};
use crate::weights::matrix::Matrix;
use crate::workers::phase::{Access, Units};
use crate::workers::threads::Worker;
use std::sync::atomic::Ordering;

const EMBED: Access = Access::named("embed").rows([X]);
const NORM: Access = Access::named("norm").reads([X]).rows(NORMED);
const PROJECT: Access = Access::named("project").reads(NORMED).columns([QKV]);
const NORM_HEADS: Access = Access::named("norm heads").rows([QKV]);
const STORE: Access = Access::named("store").reads([QKV]).sides([PAGES]);
const ATTEND: Access = Access::named("attend").reads([QKV, PAGES]).heads(ATTENDED);
const ATTEND_PARTS: Access = Access::named("attend to parts").reads([QKV, PAGES]).heads(ATTENDED).rows([STATES, SUMS]);
const MERGE: Access = Access::named("merge").reads([STATES, SUMS]).heads(ATTENDED);
const QUANTISE: Access = Access::named("quantise").reads([ATTENDED[0]]).rows([ATTENDED[1]]);
const ADD_ATTENDED: Access = Access::named("add attended").reads(ATTENDED).columns([X]);
const PUT_ATTENDED: Access = Access::named("put attended").reads(ATTENDED).columns([BRANCH]);
const ADD_NORMED: Access = Access::named("add normed").reads([BRANCH]).rows([X]);
const ACTIVATE: Access = Access::named("activate").reads(NORMED).columns(HIDDEN);
const ADD_HIDDEN: Access = Access::named("add hidden").reads(HIDDEN).columns([X]);
const PUT_HIDDEN: Access = Access::named("put hidden").reads(HIDDEN).columns([BRANCH]);
const ROUTE: Access = Access::named("route").reads(NORMED).columns([ROUTED]);
const GATHER: Access = Access::named("gather").reads(NORMED).reads([ROUTED]).rows(GATHERED);
const ACTIVATE_EXPERTS: Access = Access::named("activate experts").reads(GATHERED).columns(HIDDEN);
const ADD_EXPERTS: Access = Access::named("add experts").reads(HIDDEN).columns([X]);
const OUTPUT_NORM: Access = Access::named("output norm").reads([X]).rows(OUTPUT).rows(REST);
const OUTPUT_PRODUCT: Access = Access::named("output product").reads(OUTPUT).reads(REST).columns([LOGITS]);
const CHOOSE: Access = Access::named("choose").reads(REST).rows([TOKENS]);

impl Pass {
    /// The program.
    pub fn run(&self, worker: &mut Worker<'_>) {
        let local = &mut Local::default();
        let Buffers { attended, hidden, .. } = &self.buffers;
        let rows = Units::Shares(self.task.rows.len());
        let sides = Units::Shares(2 * self.decoder.config.n_head_kv);
        self.embed(&worker.phase(EMBED, rows));
        for (index, layer) in self.decoder.weights.layers.iter().enumerate() {
            if worker.poll() {
                self.stopped.store(true, Ordering::Relaxed);
            }
            self.norm(&worker.phase(NORM, rows), layer.attn_norm.as_deref(), local);
            let qkv = layer.qkv.iter().map(Matrix::tile_count).sum();
            let phase = worker.phase(PROJECT, self.tiles(qkv, 1));
            if self.is_stopped() {
                return;
            }
            self.project(&phase, layer, local);
            if let Some(gains) = &layer.head_norms {
                self.norm_heads(&worker.phase(NORM_HEADS, rows), gains, local);
            }
            self.store(&worker.phase(STORE, sides), index, local);
            let attention = self.attention(index);
            let pieces = Units::Pieces(&attention.pieces);
            match &attention.split {
                None => self.attend_units(&worker.phase(ATTEND, pieces), index, local),
                Some(split) => {
                    self.attend_parts(&worker.phase(ATTEND_PARTS, pieces), split, index, local);
                    if !split.shared.is_empty() {
                        self.merge_shared(&worker.phase(MERGE, Units::Pieces(&split.merging)), split, index, local);
                    }
                }
            }
            if !self.decoder.heads_are_groups() {
                self.quantize_attended(&worker.phase(QUANTISE, rows));
            }
            let branch = [ADD_ATTENDED, PUT_ATTENDED];
            self.add_branch(worker, branch, &layer.attn_output, attended, layer.post_attn_norm.as_deref(), local);
            let phase = worker.phase(NORM, rows);
            if self.is_stopped() {
                return;
            }
            self.norm(&phase, layer.ffn_norm.as_deref(), local);
            if let Some(ffn) = &layer.ffn {
                self.activate(&worker.phase(ACTIVATE, self.tiles(ffn.gate.tile_count(), PAIR)), ffn, local);
                let branch = [ADD_HIDDEN, PUT_HIDDEN];
                self.add_branch(worker, branch, &ffn.down, hidden, layer.post_ffn_norm.as_deref(), local);
            }
            if let (Some(experts), Some(buffers)) = (&layer.experts, &self.buffers.experts) {
                self.mix_experts(worker, index, experts, buffers, local);
            }
        }
        self.output_norm(&worker.phase(OUTPUT_NORM, Units::Shares(self.wanted.len())), local);
        let tiles = Units::Taken { count: self.decoder.weights.output.tile_count(), step: OUTPUT_TILES_AT_ONCE };
        self.output_product(&worker.phase(OUTPUT_PRODUCT, tiles), local);
        if self.chosen > 0 {
            let rows = Units::Taken { count: self.chosen, step: 1 };
            self.choose(&worker.phase(CHOOSE, rows), &mut local.results);
        }
    }

    /// Adds to the residual stream what the experts of every row give.
    fn mix_experts(
        &self,
        worker: &mut Worker<'_>,
        layer: usize,
        experts: &Experts,
        buffers: &ExpertBuffers,
        local: &mut Local,
    ) {
        let tiles = |count| Units::Taken { count, step: PAIR };
        let FeedForward { gate, down, .. } = &experts.each[0];
        self.route(&worker.phase(ROUTE, self.tiles(experts.router.tile_count(), 1)), &experts.router, buffers, local);
        let slots = Units::Taken { count: buffers.gathered.rows(), step: 1 };
        self.gather(&worker.phase(GATHER, slots), layer, buffers, local);
        self.activate_experts(&worker.phase(ACTIVATE_EXPERTS, tiles(gate.tile_count())), experts, buffers, local);
        self.add_experts(&worker.phase(ADD_EXPERTS, tiles(down.tile_count())), experts, buffers, local);
    }

    /// Adds the product of `matrix` and `input` to the residual stream: at once, or after a norm, if there is a `gain`.
    fn add_branch(
        &self,
        worker: &mut Worker<'_>,
        [at_once, apart]: [Access; 2],
        matrix: &Matrix,
        input: &Activations,
        gain: Option<&[f32]>,
        local: &mut Local,
    ) {
        let tiles = self.tiles(matrix.tile_count(), 1);
        let Some(gain) = gain else {
            return self.add_product(&worker.phase(at_once, tiles), matrix, input, local);
        };
        self.put_branch(&worker.phase(apart, tiles), matrix, input, local);
        self.add_normed(&worker.phase(ADD_NORMED, Units::Shares(self.task.rows.len())), gain, local);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// So many tiles, of which a multiple of `least` is worth being taken alone: the fewer rows, the more.
    fn tiles(&self, count: usize, least: usize) -> Units<'static> {
        Units::Taken { count, step: (PRODUCTS_AT_ONCE / self.task.rows.len()).max(1).next_multiple_of(least) }
    }
}

/// Products of a tile and a row that are worth being taken alone.
const PRODUCTS_AT_ONCE: usize = 16;
/// The same of tiles of the output product, whatever the rows.
const OUTPUT_TILES_AT_ONCE: usize = 16;
