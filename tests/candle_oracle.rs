//! The candle engine against candle-transformers' own Llama, against the CPU engine, and against itself.

mod made;

use _specrs::arch::describe;
use _specrs::attention::cache::KvCache;
use _specrs::candle::cache::CandleCache;
use _specrs::candle::decoder::CandleModel;
use _specrs::cpu::CpuModel;
use _specrs::error::Error;
use _specrs::forward::task::{Input, Outcome, Wanted};
use _specrs::gguf::file::GgufFile;
use _specrs::kernels::table::Kernels;
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use made::{make, tokens, Made, Shape, SMALL};
use std::fs::File;

/// Every type that both sides can load.
const TYPES: [GgmlDType; 13] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

/// How many times the bound a wrong fact makes at least.
const FAR: f64 = 10.0;

fn is_float(dtype: GgmlDType) -> bool {
    matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16)
}

/// Difference of two evaluations in f32 that take their sums in different order, relative to the logits: half a unit
/// in the last place, 2^-24, for each rounding on the longest path through the model; they add up in squares.
///
/// A product rounds once for each column, a norm once for each and a few times more, attention four times for each
/// position.
fn float_noise(shape: &Shape, positions: usize) -> f64 {
    let Shape { n_embd, n_ff, n_layer, n_head, head_dim, .. } = *shape;
    let norm = n_embd + 4;
    let attention = norm + n_embd + head_dim + 4 * positions + n_head * head_dim;
    let feed_forward = norm + n_embd + 8 + n_ff;
    let roundings = n_layer * (attention + feed_forward) + norm + n_embd;
    (roundings as f64).sqrt() * 2f64.powi(-24)
}

/// What rotary angles computed in f32 add: frequency and product each round an angle of at most `positions`.
fn angle_noise(positions: usize) -> f64 {
    2.0 * positions as f64 * 2f64.powi(-24)
}

/// Difference of two evaluations that both round activations to int8, relative to the logits.
///
/// A block whose largest value is `c` times the root mean square is rounded to steps of `c / 127` of the latter, which
/// leaves an error of `1 / sqrt(12)` of a step. Independent weights keep its relative size. The errors of the products
/// on a path (into and out of attention, into and out of the feed-forward part, the output) and of the two evaluations
/// add up in squares.
///
/// It is the bound for the same blocks and kernels too. A value at the boundary between two steps may be rounded either
/// way by noise of f32; the step this makes moves many values over their boundaries in the next product, and so on. So
/// a row is off either by the noise of f32 or by about this; the float types are what shows errors of the decoder.
fn quantisation_noise(shape: &Shape) -> f64 {
    /// Of normal values in a block of 256, the longest; and of gated ones, `silu(a) * b`.
    const NORMAL: f64 = 3.0;
    const GATED: f64 = 7.0;
    let squares = shape.n_layer as f64 * (3.0 * NORMAL.powi(2) + GATED.powi(2)) + NORMAL.powi(2);
    (2.0 * squares).sqrt() / 127.0 / 12f64.sqrt()
}

/// Difference that the CPU engine's fixed point makes, relative to the logits; candle attends in f32.
///
/// A number is off by `1 / sqrt(12)` of a step, and a step is the largest number that has the scale over the largest
/// quant. Products of queries and keys over a head fit 31 bits, a value has 8,191 for its largest quant, a weight
/// 4,096; the largest of a head is [`PEAK`] times the root mean square. Scores are of normal size, so an error of a
/// query or key changes a weight by as much. Of the 64 weights of a page, the largest is `exp(2.4)`, and `exp(1)` the
/// root mean square, which makes the errors of all `exp(1.4)` times that of one. What attention adds to the residual
/// is no larger than what that holds.
fn fixed_noise(shape: &Shape) -> f64 {
    const PEAK: f64 = 3.0;
    let rounding = |most: f64, largest: f64| most / largest / 12f64.sqrt();
    let key = rounding(PEAK, (2f64.powi(31) / shape.head_dim as f64).sqrt());
    let value = rounding(PEAK, 8191.0);
    let weight = rounding(1.4f64.exp(), 4096.0);
    (shape.n_layer as f64 * (2.0 * key.powi(2) + value.powi(2) + weight.powi(2))).sqrt()
}

/// Noise between two ways to run the candle engine.
fn self_noise(shape: &Shape, dtype: GgmlDType, positions: usize) -> f64 {
    float_noise(shape, positions) + if is_float(dtype) { 0.0 } else { quantisation_noise(shape) }
}

/// The difference's root mean square against that of the wanted values.
fn relative(found: &[f32], wanted: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let difference = square(&mut found.iter().zip(wanted).map(|(a, b)| a - b));
    (difference / square(&mut wanted.iter().copied())).sqrt()
}

/// Checks every row of `n_vocab` values.
#[track_caller]
fn assert_close(found: &[f32], wanted: &[f32], n_vocab: usize, bound: f64, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (row, (found, wanted)) in found.chunks_exact(n_vocab).zip(wanted.chunks_exact(n_vocab)).enumerate() {
        let relative = relative(found, wanted);
        assert!(
            relative <= bound,
            "{what}, row {row}: off by {relative:.2e} of the logits, at most {bound:.2e} expected"
        );
    }
}

fn open(made: &Made) -> GgufFile {
    GgufFile::open(made.path()).unwrap()
}

fn load(made: &Made) -> CandleModel {
    CandleModel::load(describe(&open(made)).unwrap(), "candle-cpu", &mut || false).unwrap()
}

/// Appends `tokens` in one call; logits of the last `logits` of them.
fn append(model: &CandleModel, cache: &mut CandleCache, tokens: &[u32], logits: usize) -> Vec<f32> {
    let input = Input { sequence: cache, tokens, wanted: Wanted::Logits(logits), attention: None };
    model.forward(&mut [input], &mut || false).unwrap().remove(0).logits()
}

/// Logits of all tokens in one call on an empty cache.
fn fresh(model: &CandleModel, tokens: &[u32]) -> Vec<f32> {
    append(model, &mut model.new_cache(), tokens, tokens.len())
}

/// The same on the CPU engine.
fn cpu(file: &GgufFile, kernels: Kernels, tokens: &[u32], logits: usize) -> Vec<f32> {
    let model = CpuModel::load(describe(file).unwrap(), kernels, 2, &mut || false).unwrap();
    let mut cache = KvCache::new(model.cache_shape());
    let input = Input { sequence: &mut cache, tokens, wanted: Wanted::Logits(logits), attention: None };
    model.forward(&mut [input], &mut || false).unwrap().remove(0).logits()
}

#[test]
fn candle_transformers_gives_the_same_logits() {
    for dtype in TYPES {
        let made = make(&SMALL, dtype, &[], None);
        let mut reader = File::open(made.path()).unwrap();
        let content = Content::read(&mut reader).unwrap();
        let mut oracle = ModelWeights::from_gguf(content, &mut reader, &Device::Cpu).unwrap();
        let mut wanted = |tokens: &[u32], position| {
            let tokens = Tensor::new(tokens, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
            oracle.forward(&tokens, position).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let model = load(&made);
        let mut cache = model.new_cache();
        let tokens = tokens(SMALL.n_vocab, 40);
        let bound = self_noise(&SMALL, dtype, tokens.len()) + angle_noise(tokens.len());
        let mut done = 0;
        for count in [32, 1, 1, 1, 4, 1] {
            let part = &tokens[done..done + count];
            let found = append(&model, &mut cache, part, 1);
            let what = format!("{dtype:?}, {count} tokens from {done} on");
            assert_close(&found, &wanted(part, done), SMALL.n_vocab, bound, &what);
            done += count;
        }
        assert_eq!(cache.len(), tokens.len());
    }
}

#[test]
fn the_cpu_engine_agrees() {
    for dtype in TYPES {
        let made = make(&SMALL, dtype, &[], None);
        let tokens = tokens(SMALL.n_vocab, 70);
        let wanted = fresh(&load(&made), &tokens);
        let rounding = if is_float(dtype) { 0.0 } else { quantisation_noise(&SMALL) };
        let bound = rounding + fixed_noise(&SMALL) + float_noise(&SMALL, tokens.len());
        for kernels in Kernels::available() {
            let found = cpu(&open(&made), kernels, &tokens, tokens.len());
            let what = format!("{dtype:?}, {}", kernels.name());
            assert_close(&found, &wanted, SMALL.n_vocab, bound, &what);
        }
    }
}

#[test]
fn rotary_variants_agree_with_the_cpu_engine() {
    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 / 4.0).collect();
    let linear =
        [("llama.rope.scaling.type", Value::String("linear".into())), ("llama.rope.scaling.factor", Value::F32(4.0))];
    let partial = [("llama.rope.dimension_count", Value::U32(48)), ("llama.rope.freq_base", Value::F32(500_000.0))];
    let tokens = tokens(SMALL.n_vocab, 70);
    let plain = fresh(&load(&make(&SMALL, GgmlDType::F32, &[], None)), &tokens);
    for (name, extra, factors) in
        [("linear", &linear[..], None), ("partial", &partial[..], None), ("factors", &[], Some(&factors[..]))]
    {
        let made = make(&SMALL, GgmlDType::F32, extra, factors);
        let found = fresh(&load(&made), &tokens);
        let wanted = cpu(&open(&made), Kernels::available()[0], &tokens, tokens.len());
        let bound = fixed_noise(&SMALL) + float_noise(&SMALL, tokens.len());
        assert_close(&found, &wanted, SMALL.n_vocab, bound, name);
        let change = relative(&found, &plain);
        assert!(change > FAR * bound, "{name} makes a difference, not {change:.2e}");
    }
}

#[test]
fn wrong_facts_are_far_outside() {
    let tokens = tokens(SMALL.n_vocab, 70);
    let wanted = fresh(&load(&make(&SMALL, GgmlDType::F32, &[], None)), &tokens);
    let bound = fixed_noise(&SMALL) + float_noise(&SMALL, tokens.len());
    let linear = |factor| {
        vec![
            ("llama.rope.scaling.type", Value::String("linear".into())),
            ("llama.rope.scaling.factor", Value::F32(factor)),
        ]
    };
    for (name, wrong) in [
        ("the usual epsilon", vec![("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))]),
        ("another base", vec![("llama.rope.freq_base", Value::F32(11_000.0))]),
        ("positions 1 % off", linear(1.01)),
        ("hardly a rotation", linear(1e6)),
    ] {
        let found = cpu(&open(&make(&SMALL, GgmlDType::F32, &wrong, None)), Kernels::available()[0], &tokens, 70);
        let relative = relative(&found, &wanted);
        assert!(relative > FAR * bound, "{name}: off by only {relative:.2e}, where {bound:.2e} are allowed");
    }
}

#[test]
fn every_split_gives_the_same_rows() {
    for dtype in [GgmlDType::F32, GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::Q6K] {
        let model = load(&make(&SMALL, dtype, &[], None));
        // More than a chunk, and over the growth of the cache.
        let tokens = tokens(SMALL.n_vocab, 300);
        let wanted = fresh(&model, &tokens);
        for sizes in [&[1, 2, 3, 16][..], &[64], &[257, 43], &[9, 1, 1, 1, 31]] {
            let mut cache = model.new_cache();
            let mut found = Vec::new();
            for &size in sizes.iter().cycle() {
                let part = &tokens[cache.len()..tokens.len().min(cache.len() + size)];
                found.extend(append(&model, &mut cache, part, part.len()));
                if cache.len() == tokens.len() {
                    break;
                }
            }
            let bound = self_noise(&SMALL, dtype, tokens.len());
            assert_close(&found, &wanted, SMALL.n_vocab, bound, &format!("{dtype:?} in calls of {sizes:?}"));
        }
    }
}

#[test]
fn only_the_wanted_rows_are_returned() {
    let model = load(&make(&SMALL, GgmlDType::F32, &[], None));
    let tokens = tokens(SMALL.n_vocab, 300);
    let all = fresh(&model, &tokens);
    // Within the last chunk, across chunks, more than there are.
    for wanted in [0, 1, 44, 45, 299, 300, 1000] {
        let found = append(&model, &mut model.new_cache(), &tokens, wanted);
        let rows = wanted.min(tokens.len());
        assert_eq!(found.len(), rows * SMALL.n_vocab);
        let bound = float_noise(&SMALL, tokens.len());
        assert_close(&found, &all[(tokens.len() - rows) * SMALL.n_vocab..], SMALL.n_vocab, bound, "last rows");
    }
}

#[test]
fn sequences_in_one_call_do_not_mix() {
    let model = load(&make(&SMALL, GgmlDType::F32, &[], None));
    let tokens = tokens(SMALL.n_vocab, 30);
    let [mut first, mut empty, mut second] = [(); 3].map(|()| model.new_cache());
    append(&model, &mut second, &tokens[10..20], 0);
    let found = model.forward(
        &mut [
            Input { sequence: &mut first, tokens: &tokens[..10], wanted: Wanted::Logits(2), attention: None },
            Input { sequence: &mut empty, tokens: &[], wanted: Wanted::Logits(1), attention: None },
            Input { sequence: &mut second, tokens: &tokens[20..], wanted: Wanted::Logits(3), attention: None },
        ],
        &mut || false,
    );
    let (alone, other) = (fresh(&model, &tokens[..10]), fresh(&model, &tokens[10..]));
    let wanted = [&alone[8 * SMALL.n_vocab..], &other[17 * SMALL.n_vocab..]].concat();
    let found: Vec<f32> = found.unwrap().into_iter().flat_map(Outcome::logits).collect();
    assert_close(&found, &wanted, SMALL.n_vocab, float_noise(&SMALL, 20), "both");
    assert_eq!((first.len(), empty.len(), second.len()), (10, 0, 20));
}

#[test]
fn truncation_and_clones_leave_each_other_alone() {
    let model = load(&make(&SMALL, GgmlDType::F32, &[], None));
    let tokens = tokens(SMALL.n_vocab, 90);
    let (prefix, one, other) = (&tokens[..30], &tokens[30..60], &tokens[60..]);
    let bound = float_noise(&SMALL, 90);
    let continued = |start: &[u32], more: &[u32]| {
        let all = fresh(&model, &[start, more].concat());
        all[start.len() * SMALL.n_vocab..].to_vec()
    };

    let mut cache = model.new_cache();
    append(&model, &mut cache, prefix, 0);
    let snapshot = cache.clone();
    let found = append(&model, &mut cache, one, one.len());
    assert_close(&found, &continued(prefix, one), SMALL.n_vocab, bound, "the original");
    // Both write the same positions: in place while they are alone, else in a copy.
    let mut fork = snapshot.clone();
    let found = append(&model, &mut fork, other, other.len());
    assert_close(&found, &continued(prefix, other), SMALL.n_vocab, bound, "a fork");

    let mut short = cache.clone();
    short.truncate(12);
    assert_eq!((short.len(), cache.len(), snapshot.len()), (12, 60, 30));
    let found = append(&model, &mut short, other, other.len());
    assert_close(&found, &continued(&prefix[..12], other), SMALL.n_vocab, bound, "a truncated clone");
    let found = append(&model, &mut cache, other, other.len());
    assert_close(&found, &continued(&tokens[..60], other), SMALL.n_vocab, bound, "the original again");
    drop((short, fork));
    let mut last = snapshot;
    let found = append(&model, &mut last, one, one.len());
    assert_close(&found, &continued(prefix, one), SMALL.n_vocab, bound, "the snapshot itself");
    // Alone again: written in place over positions that were forgotten.
    cache.truncate(100);
    assert_eq!(cache.len(), 90);
    cache.truncate(0);
    let found = append(&model, &mut cache, other, other.len());
    assert_close(&found, &fresh(&model, other), SMALL.n_vocab, bound, "emptied");
}

#[test]
fn a_failed_forward_changes_nothing() {
    let model = load(&make(&SMALL, GgmlDType::F32, &[], None));
    let tokens = tokens(SMALL.n_vocab, 320);
    let mut cache = model.new_cache();
    let mut other = model.new_cache();
    append(&model, &mut cache, &tokens[..20], 0);
    // At once, within a layer, in the second chunk, in the second sequence.
    for calls in [0, 3, 5, 9] {
        let mut asked = 0;
        let mut poll = || {
            asked += 1;
            asked > calls
        };
        let mut inputs = [
            Input { sequence: &mut cache, tokens: &tokens[20..], wanted: Wanted::Logits(1), attention: None },
            Input { sequence: &mut other, tokens: &tokens[..10], wanted: Wanted::Logits(1), attention: None },
        ];
        assert!(matches!(model.forward(&mut inputs, &mut poll), Err(Error::Interrupted)));
        assert_eq!((cache.len(), other.len()), (20, 0));
    }
    let mut inputs = [Input { sequence: &mut cache, tokens: &[1, 96], wanted: Wanted::Logits(1), attention: None }];
    let error = model.forward(&mut inputs, &mut || false).unwrap_err();
    assert_eq!(error.to_string(), "token 96 is outside the vocabulary of 96 tokens");
    let found = append(&model, &mut cache, &tokens[20..30], 10);
    let wanted = &fresh(&model, &tokens[..30])[20 * SMALL.n_vocab..];
    assert_close(&found, wanted, SMALL.n_vocab, float_noise(&SMALL, 30), "afterwards");
}

#[test]
fn a_saved_cache_continues_to_the_bit() {
    let model = load(&make(&SMALL, GgmlDType::Q8_0, &[], None));
    let tokens = tokens(SMALL.n_vocab, 100);
    let mut cache = model.new_cache();
    assert!(cache.to_bytes().unwrap().is_empty());
    append(&model, &mut cache, &tokens[..80], 0);
    cache.truncate(70);
    let bytes = cache.to_bytes().unwrap();
    assert_eq!(bytes.len(), 70 * cache.bytes_per_token());
    let restore = |len, bytes: &[u8]| CandleCache::from_bytes(model.cache_shape(), model.device(), len, bytes);
    let mut restored = restore(70, &bytes).unwrap();
    let found = append(&model, &mut restored, &tokens[70..], 30);
    assert_eq!(found, append(&model, &mut cache, &tokens[70..], 30));

    for (len, bytes) in [(70, &bytes[1..]), (71, &bytes[..]), (0, &bytes[..]), (usize::MAX, &bytes[..])] {
        let message = restore(len, bytes).err().unwrap().to_string();
        assert!(message.contains("belongs to another model or is damaged"), "{message}");
    }
    assert!(restore(0, &[]).unwrap().is_empty());
}

#[test]
fn contexts_may_be_longer_than_4096() {
    let shape = Shape { n_layer: 1, n_embd: 64, n_head: 2, n_head_kv: 1, head_dim: 32, n_ff: 64, n_vocab: 50 };
    let made = make(&shape, GgmlDType::F32, &[], None);
    let model = load(&made);
    let tokens = tokens(shape.n_vocab, 4200);
    let mut cache = model.new_cache();
    append(&model, &mut cache, &tokens[..4090], 0);
    let found = append(&model, &mut cache, &tokens[4090..], 110);
    let wanted = cpu(&open(&made), Kernels::available()[0], &tokens, 110);
    let bound = fixed_noise(&shape) + float_noise(&shape, tokens.len());
    assert_close(&found, &wanted, shape.n_vocab, bound, "from 4,090 to 4,200");
}
