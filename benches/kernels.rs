//! The matrix kernels of one core: every kernel set, weight type and number of rows, in bytes of weights a second.
//!
//! Weights come from the second-level cache in one case and from memory in the other. At the end the cost of M rows
//! relative to one, c(M), is printed as a table.
#![allow(clippy::print_stdout)] // The table is what this program is for.

mod measured;

use _specrs::gguf::types::GgmlType;
use _specrs::kernels::layout::{interleaved, quant_bytes, scale_bytes, ActivationGroup, Rows, Tiles, GROUP, TILE};
use _specrs::kernels::table::Kernels;
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use measured::median_seconds;
use std::hint::black_box;
use std::time::Duration;

const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 64];
const COLUMNS: usize = 2048;
const GROUPS: usize = COLUMNS / GROUP;
/// Bytes of weights of one pass in the cached case: a part of any second-level cache.
const CACHED: usize = 192 << 10;
/// Bytes that the other case walks through: more than any last-level cache (480 MB are seen).
const STREAMED: usize = 1 << 30;

/// Where the weights are when a pass begins.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Cache,
    Memory,
}

/// Bytes that are valid weights of every type: as quants their low half is random, as scales and floats of any width
/// they are ordinary numbers.
fn weights(count: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        0x30 | (state >> 28) as u8
    };
    let period: Vec<u8> = (0..1 << 20).map(|_| next()).collect();
    period.iter().copied().cycle().take(count).collect()
}

/// One tile of `dtype` whose bytes start at `memory[at]`.
fn tile(dtype: GgmlType, memory: &[u8], at: usize) -> Tiles<'_> {
    let (quants, scales) = memory[at..][..tile_bytes(dtype)].split_at(GROUPS * quant_bytes(dtype));
    Tiles { dtype, count: 1, groups: GROUPS, quants, scales }
}

/// Bytes of a tile, a multiple of the cache line.
fn tile_bytes(dtype: GgmlType) -> usize {
    GROUPS * quant_bytes(dtype) + scale_bytes(dtype, GROUPS)
}

/// Quantised activations of one call.
struct Input {
    count: usize,
    values: Vec<f32>,
    quantised: Vec<ActivationGroup>,
}

impl Input {
    fn new(kernels: &Kernels, count: usize) -> Self {
        let values: Vec<f32> = (0..count * COLUMNS).map(|i| (i * 37 % 201) as f32 / 100.0 - 1.0).collect();
        let mut quantised = vec![ActivationGroup::default(); values.len() / GROUP];
        for (halves, out) in values.as_chunks::<TILE>().0.as_chunks::<2>().0.iter().zip(&mut quantised) {
            kernels.quantize(halves.each_ref(), out);
        }
        Self { count, values, quantised }
    }

    fn rows(&self) -> Rows<'_> {
        Rows {
            count: self.count,
            groups: GROUPS,
            interleaved: interleaved(self.count),
            values: &self.values,
            quantised: &self.quantised,
        }
    }
}

/// Median seconds for a byte of weights, or `None` if the filter of the command line left it out.
fn measure(
    c: &mut Criterion,
    kernels: &Kernels,
    dtype: GgmlType,
    place: Place,
    rows: usize,
    memory: &[u8],
) -> Option<f64> {
    let bytes = tile_bytes(dtype);
    let tiles = (CACHED / bytes).max(1);
    let passes = match place {
        Place::Cache => 1,
        Place::Memory => memory.len() / (tiles * bytes),
    };
    let (input, mut out) = (Input::new(kernels, rows), vec![[0.0; TILE]; rows]);
    let mut pass = 0;
    let mut group = c.benchmark_group(format!("{}/{}", kernels.name(), if passes == 1 { "cache" } else { "memory" }));
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes((tiles * bytes) as u64));
    let median = median_seconds(&mut group, BenchmarkId::new(dtype.name(), rows), || {
        for index in pass * tiles..(pass + 1) * tiles {
            kernels.matmul(&tile(dtype, memory, index * bytes), &input.rows(), black_box(&mut out));
        }
        pass = (pass + 1) % passes;
    });
    group.finish();
    median.map(|median| median / (tiles * bytes) as f64)
}

/// Measures every type; a table of the rate of one row and c(M) of the others.
fn table(c: &mut Criterion, kernels: &Kernels, place: Place, rows: &[usize], memory: &[u8]) -> Option<String> {
    let mut lines = Vec::new();
    for dtype in GgmlType::ALL {
        let costs: Vec<_> = rows.iter().map(|&rows| measure(c, kernels, dtype, place, rows, memory)).collect();
        let Some(one) = costs[0] else { continue };
        let cells: String =
            costs[1..].iter().map(|cost| cost.map_or(" |".into(), |cost| format!(" {:.2} |", cost / one))).collect();
        lines.push(format!("| {} | {:.1} |{cells}", dtype.name(), 1e-9 / one));
    }
    let place = if place == Place::Cache { "the cache" } else { "memory" };
    let heads: String = rows[1..].iter().map(|rows| format!(" c({rows}) |")).collect();
    let title = format!("{}, weights from {place}, one core", kernels.name());
    let head = format!("| type | one row, GB/s |{heads}\n|---|---|{}", "---|".repeat(rows.len() - 1));
    (!lines.is_empty()).then(|| format!("{title}\n\n{head}\n{}\n", lines.join("\n")))
}

fn main() {
    let mut c = Criterion::default()
        .without_plots()
        .sample_size(10)
        .nresamples(1001)
        .warm_up_time(Duration::from_millis(20))
        .measurement_time(Duration::from_millis(100))
        .configure_from_args();
    let memory = weights(STREAMED);
    let mut tables = Vec::new();
    for kernels in Kernels::available() {
        // Plain Rust is a specification: that it computes as slowly from memory is no news.
        if kernels.name() == "scalar" {
            tables.push(table(&mut c, &kernels, Place::Cache, &ROWS[..3], &memory));
            continue;
        }
        for place in [Place::Cache, Place::Memory] {
            tables.push(table(&mut c, &kernels, place, &ROWS, &memory));
        }
    }
    c.final_summary();
    tables.iter().flatten().for_each(|table| println!("{table}"));
}
