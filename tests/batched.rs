//! Sequences that share the passes over the weights do not touch each other's bits.

mod made;

use _specrs::arch::describe;
use _specrs::attention::cache::KvCache;
use _specrs::cpu::{CpuModel, Input};
use _specrs::gguf::file::GgufFile;
use _specrs::kernels::table::Kernels;
use candle_core::quantized::GgmlDType;
use made::{make, tokens, SMALL};

/// Lengths of the sequences: a pass of 256 rows ends inside the last one.
const LENGTHS: [usize; 4] = [70, 90, 1, 130];
/// Positions that the first call appends, of each.
const CACHED: [usize; 4] = [0, 3, 0, 65];

fn forward(model: &CpuModel, caches: &mut [KvCache], sequences: &[&[u32]]) -> Vec<f32> {
    let inputs = caches.iter_mut().zip(sequences).filter(|(_, tokens)| !tokens.is_empty());
    let mut inputs: Vec<_> =
        inputs.map(|(cache, tokens)| Input { cache, tokens, logits: tokens.len(), prompt: None }).collect();
    model.forward(&mut inputs, &mut || false).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn batched_sequences_have_the_bits_of_single_ones() {
    let made = make(&SMALL, GgmlDType::Q4_0, &[], None);
    let file = GgufFile::open(made.path()).unwrap();
    let all = tokens(SMALL.n_vocab, LENGTHS.iter().sum());
    let mut rest = &all[..];
    let sequences = LENGTHS.map(|len| rest.split_off(..len).unwrap());
    let mut wanted: Option<Vec<u32>> = None;
    for kernels in Kernels::available() {
        for threads in [1, 2] {
            let name = format!("{kernels:?}, {threads} threads");
            let model = CpuModel::load(describe(&file).unwrap(), kernels, threads, &mut || false).unwrap();
            let empty = || KvCache::new(model.cache_shape());
            let alone: Vec<f32> =
                sequences.iter().flat_map(|sequence| forward(&model, &mut [empty()], &[sequence])).collect();
            assert!(alone.iter().all(|logit| logit.is_finite()), "{name}");

            let mut caches = LENGTHS.map(|_| empty());
            let together = forward(&model, &mut caches, &sequences);
            assert!(bits(&together) == bits(&alone), "{name}: batched");

            let mut caches = LENGTHS.map(|_| empty());
            let first: Vec<_> = sequences.iter().zip(CACHED).map(|(sequence, n)| &sequence[..n]).collect();
            forward(&model, &mut caches, &first);
            let later: Vec<_> = sequences.iter().zip(CACHED).map(|(sequence, n)| &sequence[n..]).collect();
            let later = forward(&model, &mut caches, &later);
            let mut at = 0;
            let warm = LENGTHS.iter().zip(CACHED).flat_map(|(len, n)| {
                at += len;
                alone[(at - len + n) * SMALL.n_vocab..at * SMALL.n_vocab].to_vec()
            });
            assert!(bits(&later) == bits(&warm.collect::<Vec<_>>()), "{name}: batched on warm caches");

            // All kernel sets and thread counts agree as well.
            assert!(*wanted.get_or_insert_with(|| bits(&alone)) == bits(&alone), "{name}: alone");
        }
    }
}
