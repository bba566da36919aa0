//! One pass over the weights, planned before its workers start: who does what, and the memory they work in.
//!
//! Between two barriers workers write disjoint parts of the buffers: rows in the norms, tiles in the products, segments
//! of heads in attention. Every value is computed by the same operations in the same order whatever the number of rows and
//! workers, so a row of the result depends on its own sequence alone, to the bit.

use crate::arch::rope::RopeTable;
use crate::attention::cache::PAGE;
use crate::attention::selection::Selection;
use crate::attention::units::{Accumulator, Queries, Workspace};
use crate::forward::buffers::Buffers;
use crate::forward::candidates::Choices;
use crate::forward::decoder::Decoder;
use crate::forward::shares::AttentionPlan;
use crate::forward::task::{Outcome, Row, Task};
use crate::kernels::layout::TILE;
use crate::sampling::distribution::argmax;
use crate::workers::shared::Shared;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// What the last phase of a pass computes for every wanted row.
pub(super) enum Output {
    /// All logits, `[wanted][n_vocab]`.
    Logits(Shared<f32>),
    /// The most likely token.
    Choices(Choices),
}

/// One pass over the weights, shared by its workers.
pub struct Pass {
    pub(super) decoder: Arc<Decoder>,
    pub(super) buffers: Buffers,
    pub(super) task: Task,
    /// For each rotation of the model the cosines and sines of every row, `[rows][pairs]` each.
    pub(super) angles: Vec<[Vec<f32>; 2]>,
    pub(super) attention: AttentionPlan,
    /// Rows that share a page of the cache.
    pub(super) pages: Vec<Range<usize>>,
    pub(super) output: Output,
    pub(super) stopped: AtomicBool,
}

impl Pass {
    /// Plans a pass that `workers` workers will share.
    pub fn new(decoder: Arc<Decoder>, mut buffers: Buffers, task: Task, workers: usize) -> Self {
        let Task { rows, prompts, wanted, choose, .. } = &task;
        let config = &decoder.config;
        let angles = config.ropes.iter().map(|rope| angles(rope, rows)).collect();

        let exact = |row: &Row| prompts[row.sequence].as_ref().is_none_or(|prompt| prompt.is_exact(row.position));
        let attention = AttentionPlan::new(config, rows, rows.iter().all(exact), workers);
        buffers.normed.reset(rows.len());
        buffers.attended.reset(rows.len());
        buffers.hidden.reset(rows.len());
        let (n, chooses) = (wanted.len(), *choose && decoder.splits_output());
        buffers.output.reset(if chooses || !decoder.splits_output() { n } else { 2 * n });
        buffers.output_rest.reset(n);
        let output = match chooses {
            true => Output::Choices(Choices::new(workers, n)),
            false => Output::Logits(Shared::zeroed(n * config.n_vocab)),
        };
        let stopped = AtomicBool::new(false);
        let pages = by_page(&task.rows);
        Self { buffers, task, angles, attention, pages, output, stopped, decoder }
    }

    /// What was wanted, and the buffers; `None` if the pass was stopped.
    pub fn finish(self) -> (Option<Outcome>, Buffers) {
        if self.stopped.into_inner() {
            return (None, self.buffers);
        }
        let outcome = match self.output {
            Output::Choices(choices) => Outcome { tokens: choices.into_tokens(), ..Outcome::default() },
            Output::Logits(logits) if !self.task.choose => Outcome { logits: logits.into_vec(), ..Outcome::default() },
            // The output projection is floats, of which no first part is known sooner.
            Output::Logits(logits) => {
                let logits = logits.into_vec();
                let tokens = logits.chunks_exact(self.decoder.config.n_vocab).map(argmax).collect();
                Outcome { tokens, ..Outcome::default() }
            }
        };
        (Some(outcome), self.buffers)
    }
}

/// Cosines and sines of the rotation of every row, `[rows][pairs]` each.
fn angles(rope: &RopeTable, rows: &[Row]) -> [Vec<f32>; 2] {
    let angle = |row: &Row| {
        let position = row.position as f64;
        rope.freqs.iter().map(move |&freq| position * freq)
    };
    let angles: Vec<f64> = rows.iter().flat_map(angle).collect();
    [f64::cos, f64::sin].map(|f| angles.iter().map(|&a| f(a) as f32).collect())
}

/// Cuts rows where the next one belongs to another page.
fn by_page(rows: &[Row]) -> Vec<Range<usize>> {
    let page = |row: &Row| (row.sequence, row.position / PAGE);
    let mut end = 0;
    let range = |some: &[Row]| {
        let start = end;
        end += some.len();
        start..end
    };
    rows.chunk_by(|a, b| page(a) == page(b)).map(range).collect()
}

/// A worker's own memory.
#[derive(Default)]
pub(super) struct Local {
    pub(super) results: Vec<[f32; TILE]>,
    /// Gate and up projections of some columns.
    pub(super) hidden: [Vec<[f32; TILE]>; 2],
    pub(super) floats: Vec<f32>,
    pub(super) quants: Vec<i16>,
    pub(super) queries: Queries,
    pub(super) selection: Selection,
    pub(super) total: Accumulator,
    pub(super) work: Workspace,
}
