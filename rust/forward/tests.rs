//! Passes of many shapes on one to three workers. With debug assertions, which tests have, every one also looks for
//! elements that two workers touch at once, and panics if there are any.

use crate::arch::description::Family;
use crate::arch::{describe, keys::Keys, llama, roles::Role, FAMILIES};
use crate::attention::cache::{CacheShape, KvCache};
use crate::attention::patterns::{Pattern, PromptAttention};
use crate::fixture::{tensors_of, GgufWriter, TempFile, EXPERT_KEYS};
use crate::forward::buffers::Buffers;
use crate::forward::decoder::Decoder;
use crate::forward::plan::Pass;
use crate::forward::task::{Input, Row, Sequence, Task, Wanted};
use crate::gguf::file::GgufFile;
use crate::gguf::metadata::Value;
use crate::gguf::types::GgmlType;
use crate::kernels::table::Kernels;
use crate::kernels::tests::Random;
use crate::weights::load::Weights;
use crate::workers::threads::tests::run_on;
use half::f16;
use std::sync::Arc;

const VOCABULARY: usize = 75;

/// A model of two blocks.
#[derive(Clone, Copy, Debug)]
struct Shape {
    n_embd: usize,
    n_head: usize,
    n_head_kv: usize,
    head_dim: usize,
    n_ff: usize,
    dtype: GgmlType,
}

/// Heads that are whole groups of activations and others that are not, alone or in groups; widths that are not whole
/// tiles or groups; weights with activations of both kinds.
const SHAPES: [Shape; 6] = [
    Shape { n_embd: 64, n_head: 4, n_head_kv: 2, head_dim: 32, n_ff: 96, dtype: GgmlType::Q8_0 },
    Shape { n_embd: 96, n_head: 3, n_head_kv: 1, head_dim: 64, n_ff: 128, dtype: GgmlType::Q8_0 },
    Shape { n_embd: 64, n_head: 8, n_head_kv: 4, head_dim: 8, n_ff: 96, dtype: GgmlType::Q8_0 },
    Shape { n_embd: 72, n_head: 3, n_head_kv: 3, head_dim: 24, n_ff: 104, dtype: GgmlType::F32 },
    Shape { n_embd: 40, n_head: 6, n_head_kv: 1, head_dim: 16, n_ff: 56, dtype: GgmlType::F16 },
    Shape { n_embd: 56, n_head: 2, n_head_kv: 2, head_dim: 32, n_ff: 72, dtype: GgmlType::F32 },
];

/// Random weights of so many columns.
fn weights(random: &mut Random, dtype: GgmlType, columns: usize, count: usize) -> Vec<u8> {
    let scale = 2.0 / (columns as f32).sqrt();
    match dtype {
        GgmlType::F32 => (0..count).flat_map(|_| (scale * random.float()).to_le_bytes()).collect(),
        GgmlType::F16 => (0..count).flat_map(|_| f16::from_f32(scale * random.float()).to_le_bytes()).collect(),
        _ => {
            let mut block = || {
                let quants = (0..32).map(|_| (127.0 * random.float()) as i8 as u8);
                f16::from_f32(scale / 127.0).to_le_bytes().into_iter().chain(quants).collect::<Vec<_>>()
            };
            (0..count / 32).flat_map(|_| block()).collect()
        }
    }
}

/// A model of a family, with experts where `experts` says so.
fn written(family: &Family, shape: &Shape, experts: bool) -> TempFile {
    let mut model = GgufWriter::new();
    model.set("general.architecture", Value::String(family.name.into()));
    let key = |name: &str| format!("{}.{name}", family.name);
    model.set(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5)).set(&key("logit_scale"), Value::F32(4.0));
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 4096),
        ("embedding_length", shape.n_embd),
        ("feed_forward_length", shape.n_ff),
        ("attention.head_count", shape.n_head),
        ("attention.head_count_kv", shape.n_head_kv),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim),
        ("vocab_size", VOCABULARY),
        ("attention.sliding_window", 70),
        ("attention.sliding_window_pattern", 2),
    ] {
        model.set(&format!("{}.{key}", family.name), Value::U32(value as u32));
    }
    for (key, value) in EXPERT_KEYS.iter().filter(|_| experts) {
        model.set(&format!("{}.{key}", family.name), Value::U32(*value));
    }
    // The widths of experts and of the one that all rows use are those of the shape, as rows are whole blocks.
    if experts {
        for key in ["expert_feed_forward_length", "expert_shared_feed_forward_length"] {
            model.set(&format!("{}.{key}", family.name), Value::U32(shape.n_ff as u32));
        }
    }
    let embedding = [shape.n_embd as u64, VOCABULARY as u64];
    let header = model.clone().tensor(&Role::Embedding.to_string(), GgmlType::F32, &embedding).file();
    let header = GgufFile::open(header.path()).unwrap();
    let config = (family.config)(&Keys::new(&header).unwrap()).unwrap();
    let mut random = Random::new(1);
    for (name, in_file) in tensors_of(family, &config) {
        let whole_blocks = in_file.len() > 1 && in_file[0].is_multiple_of(32) && !name.contains("ffn_gate_inp");
        let dtype = match shape.dtype {
            dtype if whole_blocks || dtype == GgmlType::F16 && in_file.len() > 1 => dtype,
            _ => GgmlType::F32,
        };
        let count = in_file.iter().product::<u64>() as usize;
        let data = weights(&mut random, dtype, in_file[0] as usize, count);
        model.data(&name, dtype, &in_file, data);
    }
    model.file()
}

/// Appends some tokens to two sequences in one pass, on `workers` workers of as many as were `planned`.
fn pass(
    decoder: &Arc<Decoder>,
    caches: &mut [KvCache; 2],
    counts: [usize; 2],
    attention: Option<&PromptAttention>,
    wanted: Wanted,
    [planned, workers]: [usize; 2],
) -> (Vec<u32>, Vec<Option<u32>>) {
    let (mut rows, mut sequences) = (Vec::new(), Vec::new());
    for (sequence, (cache, count)) in caches.iter_mut().zip(counts).enumerate() {
        let tokens = vec![0; count];
        // Both kinds of results in one pass.
        let (wanted, attention) = if sequence == 0 { (wanted, attention) } else { (Wanted::Logits(2), None) };
        let mut input = Input { sequence: &mut *cache, tokens: &tokens, wanted, attention };
        sequences.push(Sequence::new(&mut input, VOCABULARY).unwrap());
        let token = |position: usize| ((position * 37 + sequence * 11) % VOCABULARY) as u32;
        rows.extend((cache.len()..cache.len() + count).map(|position| Row {
            token: token(position),
            sequence,
            position,
        }));
    }
    let sequences = Arc::new(sequences);
    let buffers = Buffers::new(decoder, rows.len());
    let task = Task { rows, sequences: sequences.clone() };
    let pass = Arc::new(Pass::new(decoder.clone(), buffers, task, planned));
    let program = pass.clone();
    assert_eq!(run_on(workers, Arc::new(move |worker| program.run(worker))), Some(workers));
    let choices = Arc::into_inner(pass).unwrap().finish().0.expect("nobody stops it");
    caches.iter_mut().zip(counts).for_each(|(cache, count)| cache.commit(count));
    let outcome = |sequence: Sequence| sequence.into_outcome(Vec::new()).logits();
    let logits = Arc::into_inner(sequences).expect("the pass is over").into_iter().flat_map(outcome);
    (logits.map(f32::to_bits).collect(), choices.into_iter().map(|choice| choice.token).collect())
}

#[test]
fn any_number_of_workers_gives_the_same_bits_and_no_overlaps() {
    let sparse = Pattern::BlockMean { alpha: 0.02, spread: 1.0, least: 0.01, sink: 1, window: 1, correct: true };
    // Rows of two sequences, and whether the first one leaves blocks out.
    let passes =
        [([70, 3], false), ([1, 1], false), ([9, 0], false), ([150, 60], true), ([3, 80], false), ([1, 0], false)];
    let families = FAMILIES[1..].iter().map(|family| (family, &SHAPES[0], family.name.ends_with("moe")));
    let shapes = SHAPES.iter().flat_map(|shape| [false, true].map(|experts| (&llama::FAMILY, shape, experts)));
    for (family, shape, experts) in shapes.chain(families) {
        let file = written(family, shape, experts);
        let file = GgufFile::open(file.path()).unwrap();
        let description = describe(&file).unwrap();
        let weights = Weights::load(&description, 1, &mut || false).unwrap();
        let config = description.config;
        let cache = CacheShape { n_layer: config.n_layer, n_head_kv: config.n_head_kv, head_dim: config.head_dim };
        let decoder = Arc::new(Decoder { config, kernels: Kernels::available()[0], weights });
        let mut first = None;
        for planned in [[1, 1], [2, 2], [3, 3], [3, 2]] {
            let mut caches = [(); 2].map(|()| KvCache::new(cache));
            let mut all = Vec::new();
            for (i, &(counts, leaves_out)) in passes.iter().enumerate() {
                let end = caches[0].len() + counts[0];
                let prompt = PromptAttention { pattern: sparse.clone().into(), end, counts: None };
                let prompt = leaves_out.then_some(&prompt);
                let wanted = if i % 2 == 1 { Wanted::Choices(5) } else { Wanted::Logits(7) };
                // What others hold is copied before it is written.
                let snapshot = caches.clone();
                all.push(pass(&decoder, &mut caches, counts, prompt, wanted, planned));
                drop(snapshot);
            }
            let caches = caches.each_ref().map(KvCache::to_bytes);
            assert!(all.iter().any(|(_, tokens)| tokens.iter().any(Option::is_some)));
            let (all, caches) = (all, caches);
            match &first {
                None => first = Some((all, caches)),
                Some(first) => assert!(
                    *first == (all, caches),
                    "{} {shape:?}, experts: {experts}, {planned:?} workers",
                    family.name
                ),
            }
        }
    }
}
