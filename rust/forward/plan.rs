//! One pass over the weights, planned before its workers start: who does what, and the memory they work in.
//!
//! Between two barriers workers write disjoint parts of the buffers: rows in the norms, tiles in the products, segments
//! of heads in attention. Every value is computed by the same operations in the same order whatever the number of rows and
//! workers, so a row of the result depends on its own sequence alone, to the bit.

use crate::arch::config::Block;
use crate::arch::rope::RopeTable;
use crate::attention::cache::PAGE;
use crate::attention::selection::Selection;
use crate::attention::units::{Accumulator, Queries, Workspace};
use crate::forward::buffers::Buffers;
use crate::forward::candidates::Choices;
use crate::forward::decoder::Decoder;
use crate::forward::routes::Routes;
use crate::forward::shares::AttentionPlan;
use crate::forward::task::{Choice, Row, Task};
use crate::kernels::layout::TILE;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// A row of which something is wanted.
pub(super) struct WantedRow {
    pub(super) row: usize,
    /// Which of the results of its sequence that is.
    pub(super) result: usize,
}

/// One pass over the weights, shared by its workers.
pub struct Pass {
    pub(super) decoder: Arc<Decoder>,
    pub(super) buffers: Buffers,
    pub(super) task: Task,
    /// For each rotation of the model the cosines and sines of every row, `[rows][pairs]` each.
    pub(super) angles: Vec<[Vec<f32>; 2]>,
    /// One for each window that blocks have; `None` is none.
    pub(super) attention: Vec<(Option<usize>, AttentionPlan)>,
    /// Rows that share a page of the cache.
    pub(super) pages: Vec<Range<usize>>,
    /// Those of which the most likely token is wanted, then those of which logits are.
    pub(super) wanted: Vec<WantedRow>,
    /// How many rows, from the start of `wanted`, want only the most likely token.
    pub(super) chosen: usize,
    pub(super) choices: Choices,
    pub(super) stopped: AtomicBool,
}

impl Pass {
    /// Plans a pass that `workers` workers will share.
    pub fn new(decoder: Arc<Decoder>, mut buffers: Buffers, task: Task, workers: usize) -> Self {
        let Task { rows, sequences } = &task;
        let config = &decoder.config;
        let angles = config.ropes.iter().map(|rope| angles(rope, rows)).collect();

        let exact = |row: &Row| {
            sequences[row.sequence].attention.as_ref().is_none_or(|attention| attention.is_exact(row.position))
        };
        let dense = rows.iter().all(exact);
        let mut attention: Vec<(Option<usize>, AttentionPlan)> = Vec::new();
        for &Block { window, .. } in &config.blocks {
            if attention.iter().all(|(of, _)| *of != window) {
                let dense = dense || window.is_some();
                attention.push((window, AttentionPlan::new(config, rows, window, dense, workers)));
            }
        }
        buffers.reset(rows.len());
        let wanted = |(row, of): (usize, &Row)| {
            sequences[of.sequence].result_at(of.position).map(|result| WantedRow { row, result })
        };
        let mut wanted: Vec<WantedRow> = rows.iter().enumerate().filter_map(wanted).collect();
        wanted.sort_by_key(|wanted| !task.sequence(wanted.row).chooses());
        let chosen = wanted.partition_point(|wanted| task.sequence(wanted.row).chooses());
        let second_parts = if decoder.splits_output() { wanted.len() - chosen } else { 0 };
        buffers.output.reset(wanted.len() + second_parts);
        buffers.output_rest.reset(chosen);
        let choices = Choices::new(workers, chosen);
        let stopped = AtomicBool::new(false);
        let pages = by_page(&task.rows);
        Self { buffers, task, angles, attention, pages, wanted, chosen, choices, stopped, decoder }
    }

    /// The choices, in the order of their rows, and the buffers; `None` if the pass was stopped.
    pub fn finish(self) -> (Option<Vec<Choice>>, Buffers) {
        if self.stopped.into_inner() {
            return (None, self.buffers);
        }
        let sequences = self.wanted.iter().map(|wanted| self.task.rows[wanted.row].sequence);
        let choices = sequences.zip(self.choices.into_tokens()).map(|(sequence, token)| Choice { sequence, token });
        (Some(choices.collect()), self.buffers)
    }
}

/// Cosines and sines of the rotation of every row, times its magnitude, `[rows][pairs]` each.
fn angles(rope: &RopeTable, rows: &[Row]) -> [Vec<f32>; 2] {
    let angle = |row: &Row| {
        let position = row.position as f64;
        rope.freqs.iter().map(move |&freq| position * freq)
    };
    let angles: Vec<f64> = rows.iter().flat_map(angle).collect();
    [f64::cos, f64::sin].map(|f| angles.iter().map(|&a| (f(a) * rope.magnitude) as f32).collect())
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
    /// Products with the rows of experts.
    pub(super) products: Vec<[f32; TILE]>,
    pub(super) routes: Routes,
    pub(super) floats: Vec<f32>,
    pub(super) quants: Vec<i16>,
    pub(super) queries: Queries,
    pub(super) selection: Selection,
    pub(super) total: Accumulator,
    pub(super) work: Workspace,
}
