//! The program of a pass: its phases in order, what each reads and writes, and how workers share it out; see
//! [`crate::workers::phase`].

use crate::attention::cache::PAGES;
use crate::forward::buffers::{ATTENDED, HIDDEN, NORMED, OUTPUT, QKV, REST, STATES, SUMS, TOKENS, X};
use crate::forward::feed_forward::PAIR;
use crate::forward::plan::{Local, Pass};
use crate::forward::task::LOGITS;
use crate::weights::matrix::Matrix;
use crate::workers::phase::{Access, Units};
use crate::workers::threads::Worker;
use std::sync::atomic::Ordering;

const EMBED: Access = Access::named("embed").rows([X]);
const NORM: Access = Access::named("norm").reads([X]).rows(NORMED);
const PROJECT: Access = Access::named("project").reads(NORMED).columns([QKV]);
const STORE: Access = Access::named("store").reads([QKV]).sides([PAGES]);
const ATTEND: Access = Access::named("attend").reads([QKV, PAGES]).heads(ATTENDED);
const ATTEND_PARTS: Access = Access::named("attend to parts").reads([QKV, PAGES]).heads(ATTENDED).rows([STATES, SUMS]);
const MERGE: Access = Access::named("merge").reads([STATES, SUMS]).heads(ATTENDED);
const QUANTISE: Access = Access::named("quantise").reads([ATTENDED[0]]).rows([ATTENDED[1]]);
const ADD_ATTENDED: Access = Access::named("add attended").reads(ATTENDED).columns([X]);
const ACTIVATE: Access = Access::named("activate").reads(NORMED).columns(HIDDEN);
const ADD_HIDDEN: Access = Access::named("add hidden").reads(HIDDEN).columns([X]);
const OUTPUT_NORM: Access = Access::named("output norm").reads([X]).rows(OUTPUT).rows(REST);
const OUTPUT_PRODUCT: Access = Access::named("output product").reads(OUTPUT).reads(REST).columns([LOGITS]);
const CHOOSE: Access = Access::named("choose").reads(REST).rows([TOKENS]);

impl Pass {
    /// The program.
    pub fn run(&self, worker: &mut Worker<'_>) {
        let local = &mut Local::default();
        let buffers = &self.buffers;
        let rows = Units::Shares(self.task.rows.len());
        let sides = Units::Shares(2 * self.decoder.config.n_head_kv);
        let pieces = Units::Pieces(&self.attention.pieces);
        let tiles = |matrix: &Matrix| self.tiles(matrix.tile_count(), 1);
        self.embed(&worker.phase(EMBED, rows));
        for (index, layer) in self.decoder.weights.layers.iter().enumerate() {
            if worker.poll() {
                self.stopped.store(true, Ordering::Relaxed);
            }
            self.norm(&worker.phase(NORM, rows), &layer.attn_norm, local);
            let qkv = layer.qkv.iter().map(Matrix::tile_count).sum();
            let phase = worker.phase(PROJECT, self.tiles(qkv, 1));
            if self.is_stopped() {
                return;
            }
            self.project(&phase, layer, local);
            self.store(&worker.phase(STORE, sides), index, local);
            match &self.attention.split {
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
            let phase = worker.phase(ADD_ATTENDED, tiles(&layer.attn_output));
            if self.is_stopped() {
                return;
            }
            self.add_product(&phase, &layer.attn_output, &buffers.attended, local);
            self.norm(&worker.phase(NORM, rows), &layer.ffn_norm, local);
            self.activate(&worker.phase(ACTIVATE, self.tiles(layer.ffn_gate.tile_count(), PAIR)), layer, local);
            let phase = worker.phase(ADD_HIDDEN, tiles(&layer.ffn_down));
            self.add_product(&phase, &layer.ffn_down, &buffers.hidden, local);
        }
        self.output_norm(&worker.phase(OUTPUT_NORM, Units::Shares(self.wanted.len())), local);
        let tiles = Units::Taken { count: self.decoder.weights.output.tile_count(), step: OUTPUT_TILES_AT_ONCE };
        self.output_product(&worker.phase(OUTPUT_PRODUCT, tiles), local);
        if self.chosen > 0 {
            let rows = Units::Taken { count: self.chosen, step: 1 };
            self.choose(&worker.phase(CHOOSE, rows), &mut local.results);
        }
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
