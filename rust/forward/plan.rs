//! One pass through the decoder: the program that every worker runs.
//!
//! Between two barriers workers write disjoint parts of the buffers: rows in the norms, tiles in the products, segments
//! of heads in attention. Every value is computed by the same operations in the same order whatever the number of rows and
//! workers, so a row of the result depends on its own sequence alone, to the bit.

mod attend;
mod buffers;
mod choose;
mod output;
mod store;

use crate::attention::{Accumulator, Queries, Workspace};
use crate::cache::Page;
use crate::config::Config;
use crate::distribution::argmax;
use crate::kernels::layout::{GROUP, TILE};
use crate::kernels::shared::Shared;
use crate::kernels::Kernels;
use crate::matmul::{multiply, multiply_together, Activations};
use crate::pattern::{Prompt, Selection};
use crate::threads::Worker;
use crate::weights::{Layer, Matrix, Weights};
use attend::AttentionPlan;
pub use buffers::Buffers;
use choose::Choices;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use store::by_page;

/// What a forward reads and never changes.
pub struct Decoder {
    /// Shapes and constants.
    pub config: Config,
    /// The kernels in use.
    pub kernels: Kernels,
    /// The packed weights.
    pub weights: Weights,
}

impl Decoder {
    /// Whether the outputs of an attention head are whole groups of activations.
    fn heads_are_groups(&self) -> bool {
        self.config.head_dim.is_multiple_of(GROUP)
    }
}

/// A token to be processed.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its id.
    pub token: u32,
    /// Index into [`Pass::new`]'s `sequences`.
    pub sequence: usize,
    /// Its position in the sequence.
    pub position: usize,
}

/// What a pass gives for every wanted row: what its task asks for.
#[derive(Default)]
pub struct Outcome {
    /// Logits, `[wanted][n_vocab]`.
    pub logits: Vec<f32>,
    /// The most likely token; `None` if no logit is above -inf.
    pub tokens: Vec<Option<u32>>,
}

/// What the last phase of a pass computes for every wanted row.
enum Output {
    /// All logits, `[wanted][n_vocab]`.
    Logits(Shared<f32>),
    /// The most likely token.
    Choices(Choices),
}

/// What a pass is to do.
pub struct Task {
    /// The tokens; those of one sequence stand together and in order.
    pub rows: Vec<Row>,
    /// Pages of every sequence.
    pub sequences: Vec<Vec<Arc<Page>>>,
    /// What the rows of each attend to; `None` is everything.
    pub prompts: Vec<Option<Prompt>>,
    /// The rows of which an outcome is wanted.
    pub wanted: Vec<usize>,
    /// Whether that is only the most likely token.
    pub choose: bool,
}

/// One pass over the weights, shared by its workers.
pub struct Pass {
    decoder: Arc<Decoder>,
    buffers: Buffers,
    task: Task,
    /// Cosines and sines of every row's rotation, `[rows][pairs]` each.
    angles: [Vec<f32>; 2],
    attention: AttentionPlan,
    /// Rows that share a page of the cache.
    pages: Vec<Range<usize>>,
    output: Output,
    stopped: AtomicBool,
}

impl Pass {
    /// Plans a pass that `workers` workers will share.
    pub fn new(decoder: Arc<Decoder>, mut buffers: Buffers, task: Task, workers: usize) -> Self {
        let Task { rows, prompts, wanted, choose, .. } = &task;
        let config = &decoder.config;
        let angle = |row: &Row| {
            let position = row.position as f64;
            config.rope_freqs.iter().map(move |&freq| position * freq).collect::<Vec<_>>()
        };
        let angles: Vec<f64> = rows.iter().flat_map(angle).collect();
        let angles = [f64::cos, f64::sin].map(|f| angles.iter().map(|&a| f(a) as f32).collect());

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

    /// The program.
    pub fn run(&self, worker: &mut Worker<'_>) {
        let mut local = Local::default();
        self.embed(worker);
        for (index, layer) in self.decoder.weights.layers.iter().enumerate() {
            if worker.poll() {
                self.stopped.store(true, Ordering::Relaxed);
            }
            self.norm(worker, &layer.attn_norm, &mut local);
            worker.barrier();
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            self.project(worker, layer, &mut local);
            worker.barrier();
            self.store(worker, index, &mut local);
            worker.barrier();
            self.attend(worker, index, &mut local);
            worker.barrier();
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            if !self.decoder.heads_are_groups() {
                self.quantize_attended(worker);
                worker.barrier();
            }
            self.add_product(worker, &layer.attn_output, &self.buffers.attended, &mut local);
            worker.barrier();
            self.norm(worker, &layer.ffn_norm, &mut local);
            worker.barrier();
            self.activate(worker, layer, &mut local);
            worker.barrier();
            self.add_product(worker, &layer.ffn_down, &self.buffers.hidden, &mut local);
            worker.barrier();
        }
        self.output_norm(worker, &mut local);
        worker.barrier();
        match &self.output {
            Output::Logits(logits) => self.output_logits(worker, logits, &mut local),
            Output::Choices(choices) => self.choose(worker, choices, &mut local.results),
        }
    }

    fn residual(&self, row: usize) -> Range<usize> {
        let width = self.decoder.config.n_embd;
        row * width..(row + 1) * width
    }

    fn embed(&self, worker: &Worker<'_>) {
        for row in worker.share(self.task.rows.len(), 1) {
            let x = self.buffers.x.write(self.residual(row));
            self.decoder.weights.embedding.row(self.task.rows[row].token as usize, x);
        }
    }

    fn norm(&self, worker: &Worker<'_>, gain: &[f32], local: &mut Local) {
        for row in worker.share(self.task.rows.len(), 1) {
            let normed = self.normed(row, gain, &mut local.floats);
            self.buffers.normed.put(&self.decoder.kernels, row, 0, normed);
        }
    }

    /// The normed residual of a row, as whole groups.
    fn normed<'l>(&self, row: usize, gain: &[f32], floats: &'l mut Vec<f32>) -> &'l mut [f32] {
        let Decoder { config, kernels, .. } = &*self.decoder;
        floats.clear();
        floats.resize(config.n_embd.next_multiple_of(GROUP), 0.0);
        kernels.rms_norm(self.buffers.x.read(self.residual(row)), gain, config.rms_eps, &mut floats[..config.n_embd]);
        floats
    }

    /// Queries, keys and values.
    fn project(&self, worker: &Worker<'_>, layer: &Layer, local: &mut Local) {
        let width: usize = layer.qkv.iter().map(|m| m.rows).sum();
        let count = layer.qkv.iter().map(Matrix::tile_count).sum();
        while let Some(share) = worker.take(count, self.step(1)) {
            let (mut first_tile, mut first_column) = (0, 0);
            for matrix in &layer.qkv {
                let own = |at: usize| at.clamp(first_tile, first_tile + matrix.tile_count()) - first_tile;
                let tiles = own(share.start)..own(share.end);
                self.multiply(matrix, tiles, &self.buffers.normed, local, |row, columns, values| {
                    let at = row * width + first_column;
                    put(values, self.buffers.qkv.write(at + columns.start..at + columns.end));
                });
                first_tile += matrix.tile_count();
                first_column += matrix.rows;
            }
        }
    }

    /// Where head `head` of a row stands among its queries, keys and values.
    fn head(&self, row: usize, head: usize) -> Range<usize> {
        let config = &self.decoder.config;
        let at = (row * (config.n_head + 2 * config.n_head_kv) + head) * config.head_dim;
        at..at + config.head_dim
    }

    fn rotate(&self, row: usize, head: &mut [f32]) {
        let pairs = self.decoder.config.rope_freqs.len();
        let [cos, sin] = self.angles.each_ref().map(|a| &a[row * pairs..(row + 1) * pairs]);
        self.decoder.kernels.rope(head, cos, sin);
    }

    /// Quantises the attention output, where heads did not do it themselves.
    fn quantize_attended(&self, worker: &Worker<'_>) {
        for row in worker.share(self.task.rows.len(), 1) {
            self.buffers.attended.finish(&self.decoder.kernels, row);
        }
    }

    /// The gated half of the feed-forward layer. A worker activates and quantises what it computed while that is in
    /// its cache.
    fn activate(&self, worker: &Worker<'_>, layer: &Layer, local: &mut Local) {
        /// Tiles whose columns are a group of activations.
        const PAIR: usize = GROUP / TILE;
        let kernels = &self.decoder.kernels;
        let Buffers { normed, hidden, .. } = &self.buffers;
        let matrices = [&layer.ffn_gate, &layer.ffn_up];
        while let Some(share) = worker.take(layer.ffn_gate.tile_count(), self.step(PAIR)) {
            let activate = |tiles: Range<usize>, rows: Range<usize>, [gate, up]: [&mut [[f32; TILE]]; 2]| {
                kernels.swiglu(gate.as_flattened_mut(), up.as_flattened());
                let (pairs, last) = gate.split_at(tiles.len() / PAIR * PAIR * rows.len());
                let groups = pairs.chunks_exact(PAIR * rows.len()).map(|pair| pair.split_at(rows.len()));
                // The other half of a last group are columns past the end.
                let groups = groups.chain((!last.is_empty()).then_some((last, &last[..0])));
                for (g, (left, right)) in (tiles.start / PAIR..).zip(groups) {
                    for (i, row) in rows.clone().enumerate() {
                        hidden.put_group(kernels, row, g, [&left[i], right.get(i).unwrap_or(&[0.0; TILE])]);
                    }
                }
            };
            multiply_together(kernels, matrices, share, PAIR, &normed.rows(), &mut local.hidden, activate);
        }
    }

    /// Adds the product of `matrix` and `input` to the residual stream.
    fn add_product(&self, worker: &Worker<'_>, matrix: &Matrix, input: &Activations, local: &mut Local) {
        while let Some(tiles) = worker.take(matrix.tile_count(), self.step(1)) {
            self.multiply(matrix, tiles, input, local, |row, columns, values| {
                let at = self.residual(row).start;
                add(values, self.buffers.x.write(at + columns.start..at + columns.end));
            });
        }
    }

    /// Tiles that are worth being taken alone, a multiple of `least`: the fewer rows, the more.
    fn step(&self, least: usize) -> usize {
        (PIECE / self.task.rows.len()).max(1).next_multiple_of(least)
    }

    /// Multiplies some tiles with all rows of `input`: `sink(row, columns, values)`; the last tile may have fewer
    /// columns than values.
    fn multiply(
        &self,
        matrix: &Matrix,
        tiles: Range<usize>,
        input: &Activations,
        local: &mut Local,
        sink: impl FnMut(usize, Range<usize>, &[f32; TILE]),
    ) {
        multiply(&self.decoder.kernels, matrix, tiles, &input.rows(), &mut local.results, sink);
    }
}

/// Products of a tile and a row that are worth being taken alone.
const PIECE: usize = 16;
/// The same of tiles of the output product, whatever the rows.
const OUTPUT_PIECE: usize = 16;

/// Stores the results of a tile; whole ones, nearly all, as one fixed-size copy instead of a call.
fn put(values: &[f32; TILE], to: &mut [f32]) {
    match <&mut [f32; TILE]>::try_from(&mut *to) {
        Ok(to) => *to = *values,
        Err(_) => to.copy_from_slice(&values[..to.len()]),
    }
}

/// Adds the results of a tile, likewise.
fn add(values: &[f32; TILE], to: &mut [f32]) {
    match <&mut [f32; TILE]>::try_from(&mut *to) {
        Ok(to) => to.iter_mut().zip(values).for_each(|(to, value)| *to += value),
        Err(_) => to.iter_mut().zip(values).for_each(|(to, value)| *to += value),
    }
}

/// A worker's own memory.
#[derive(Default)]
struct Local {
    results: Vec<[f32; TILE]>,
    /// Gate and up projections of some columns.
    hidden: [Vec<[f32; TILE]>; 2],
    floats: Vec<f32>,
    quants: Vec<i16>,
    queries: Queries,
    selection: Selection,
    total: Accumulator,
    work: Workspace,
}
