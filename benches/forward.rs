//! Whole forwards of the CPU engine on models of two sizes, beside candle-transformers' Llama on the same files and
//! beside the speed at which this machine reads memory.
//!
//! candle uses what the compiler may assume of the CPU; RUSTFLAGS="-C target-cpu=native" shows its best side.
#![allow(clippy::print_stdout)] // The tables are what this program is for.

mod measured;
mod random_model;

use _specrs::arch::describe;
use _specrs::arch::roles::Role;
use _specrs::attention::cache::KvCache;
use _specrs::cpu::CpuModel;
use _specrs::forward::task::{Input, Wanted};
use _specrs::gguf::file::{GgufFile, TensorInfo};
use _specrs::kernels::table::Kernels;
use _specrs::workers::threads;
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use measured::median_seconds;
use memmap2::MmapMut;
use random_model::{random_model, Model, SMOL_Q4_1, TINY_Q4_0, TINY_Q4_K_M, TINY_Q8_0};
use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 64];
/// Rows of the baseline, whose time grows with them.
const BASELINE_ROWS: [usize; 3] = [1, 4, 8];
const PROMPT: usize = 512;
/// Positions in the cache when rows are timed.
const PAST: usize = 128;
/// More than any last-level cache.
const READ: usize = 1 << 30;

fn tokens(n_vocab: usize, count: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 7919 % n_vocab) as u32).collect()
}

/// Bytes a second that all threads together read, in the plainest loop.
fn read_rate(c: &mut Criterion, threads: usize) -> Result<Option<f64>, Box<dyn Error>> {
    let mut memory = MmapMut::map_anon(READ)?;
    // As the weights have it.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    memory.fill(1);
    let memory = Arc::new(memory.make_read_only()?);
    let program: threads::Program = Arc::new(move |worker| {
        let words: &[[u64; 8]] = bytemuck::cast_slice(&memory);
        let mut sums = [0u64; 8];
        for line in &words[worker.share(words.len())] {
            sums.iter_mut().zip(line).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
        black_box(sums);
    });
    let mut group = c.benchmark_group("read memory");
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Bytes(READ as u64));
    let seconds = median_seconds(&mut group, BenchmarkId::new("threads", threads), || {
        threads::run(threads, program.clone(), &mut || false);
    });
    group.finish();
    Ok(seconds.map(|seconds| READ as f64 / seconds))
}

/// Times of one model and engine: of forwards by their rows, and of a prompt.
#[derive(Default)]
struct Times {
    rows: Vec<(usize, f64)>,
    /// Tokens and seconds.
    prompt: Option<(usize, f64)>,
}

impl Times {
    fn of(&self, rows: usize) -> Option<f64> {
        self.rows.iter().find(|(r, _)| *r == rows).map(|(_, seconds)| *seconds)
    }
}

/// Measures the CPU engine.
fn engine(c: &mut Criterion, random: &Model, file: &GgufFile, threads: usize) -> Result<Times, Box<dyn Error>> {
    let model = CpuModel::load(describe(file)?, Kernels::detect()?, threads, &mut || false)?;
    let mut cache = KvCache::new(model.cache_shape());
    let mut forward = |past: usize, tokens: &[u32], logits: usize| {
        cache.truncate(past);
        let wanted = Wanted::Logits(logits);
        let input = Input { sequence: &mut cache, tokens, wanted, attention: None };
        black_box(model.forward(&mut [input], &mut || false)).expect("nobody interrupts");
    };
    let mut times = Times::default();
    let mut group = c.benchmark_group(format!("forward/{}", random.name));
    group.sampling_mode(SamplingMode::Flat);
    forward(0, &tokens(random.shape.n_vocab, PAST), 1);
    for rows in ROWS {
        let tokens = tokens(random.shape.n_vocab, rows);
        group.throughput(Throughput::Elements(rows as u64));
        let seconds = median_seconds(&mut group, BenchmarkId::new("rows", rows), || forward(PAST, &tokens, rows));
        times.rows.extend(seconds.map(|seconds| (rows, seconds)));
    }
    let prompt = tokens(random.shape.n_vocab, PROMPT);
    group.throughput(Throughput::Elements(PROMPT as u64));
    let seconds = median_seconds(&mut group, BenchmarkId::new("prompt", PROMPT), || forward(0, &prompt, 1));
    times.prompt = seconds.map(|seconds| (PROMPT, seconds));
    group.finish();
    Ok(times)
}

/// Measures candle-transformers' Llama, which gives only the last row of logits; its cache is empty.
///
/// A prompt of `prompt` tokens takes so long that it is timed once.
fn baseline(c: &mut Criterion, random: &Model, path: &Path, prompt: usize) -> Result<Times, Box<dyn Error>> {
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let mut forward = |tokens: &Tensor| black_box(model.forward(tokens, 0)).expect("the file was loaded");
    let input =
        |count| Tensor::new(tokens(random.shape.n_vocab, count), &Device::Cpu).and_then(|tokens| tokens.unsqueeze(0));
    let mut times = Times::default();
    let mut group = c.benchmark_group(format!("candle/{}", random.name));
    group.sampling_mode(SamplingMode::Flat);
    for rows in BASELINE_ROWS {
        let tokens = input(rows)?;
        group.throughput(Throughput::Elements(rows as u64));
        let seconds = median_seconds(&mut group, BenchmarkId::new("rows", rows), || drop(forward(&tokens)));
        times.rows.extend(seconds.map(|seconds| (rows, seconds)));
    }
    group.finish();
    if !times.rows.is_empty() {
        let tokens = input(prompt)?;
        let start = Instant::now();
        forward(&tokens);
        times.prompt = Some((prompt, start.elapsed().as_secs_f64()));
    }
    Ok(times)
}

/// Bytes of the file that a token has to read: of an embedding that is not the output too, only one row.
fn bytes_per_token(file: &GgufFile) -> usize {
    let bytes = |role: Role| file.tensor(&role.to_string()).map(TensorInfo::bytes);
    let all: usize = file.tensors().iter().map(TensorInfo::bytes).sum();
    all - bytes(Role::Output).and(bytes(Role::Embedding)).unwrap_or(0)
}

/// One line of the table; empty cells are what was not measured.
fn line(name: &str, times: &Times, bytes: usize, read_rate: Option<f64>) -> String {
    let cell = |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    let one = times.of(1);
    let rate = one.map(|seconds| bytes as f64 / seconds);
    let share = rate.zip(read_rate).map(|(rate, limit)| 100.0 * rate / limit);
    let mut cells =
        vec![name.to_owned(), cell(one.map(|s| 1.0 / s), 1), cell(rate.map(|r| r * 1e-9), 1), cell(share, 0)];
    cells.extend(ROWS[1..].iter().map(|&rows| cell(times.of(rows).zip(one).map(|(s, one)| s / one), 2)));
    cells.push(times.prompt.map_or(String::new(), |(count, s)| format!("{:.0} ({count})", count as f64 / s)));
    format!("| {} |", cells.join(" | "))
}

fn main() -> Result<(), Box<dyn Error>> {
    let threads = threads::physical_cores();
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        std::env::set_var("RAYON_NUM_THREADS", threads.to_string()); // candle takes its number of threads from it
    }
    let mut c = Criterion::default()
        .without_plots()
        .sample_size(10)
        .nresamples(1001)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let read_rate = read_rate(&mut c, threads)?;
    let mut lines = Vec::new();
    for model in [&SMOL_Q4_1, &TINY_Q4_0, &TINY_Q4_K_M, &TINY_Q8_0] {
        let file = GgufFile::open(&random_model(model)?)?;
        let times = engine(&mut c, model, &file, threads)?;
        lines.push(line(model.name, &times, bytes_per_token(&file), read_rate));
    }
    // After the engine, because threads of candle may go on spinning.
    for (model, prompt) in [(&SMOL_Q4_1, PROMPT), (&TINY_Q4_0, PROMPT / 8)] {
        let path = random_model(model)?;
        let times = baseline(&mut c, model, &path, prompt)?;
        lines.push(line(
            &format!("candle {}", model.name),
            &times,
            bytes_per_token(&GgufFile::open(&path)?),
            read_rate,
        ));
    }
    c.final_summary();
    let heads: String = ROWS[1..].iter().map(|rows| format!(" c({rows}) |")).collect();
    let limit = read_rate.map_or(String::new(), |rate| format!(", memory read at {:.1} GB/s", rate * 1e-9));
    println!("\n{}, {threads} threads{limit}\n", Kernels::detect()?.name());
    println!("| model | decode, tokens/s | GB/s | % of reading |{heads} prompt, tokens/s |");
    println!("|---|---|---|---|{}---|", "---|".repeat(ROWS.len() - 1));
    println!("{}", lines.join("\n"));
    Ok(())
}
