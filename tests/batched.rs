//! Sequences that share the passes over the weights do not touch each other's bits.

mod made;

use _specrs::arch::describe;
use _specrs::attention::cache::KvCache;
use _specrs::attention::patterns::{Pattern, PromptAttention};
use _specrs::cpu::CpuModel;
use _specrs::forward::task::{Input, Outcome, Wanted};
use _specrs::gguf::file::GgufFile;
use _specrs::kernels::table::Kernels;
use _specrs::sampling::distribution::argmax;
use candle_core::quantized::GgmlDType;
use made::{make, tokens, Random, SMALL};

/// Lengths of the sequences: a pass of 256 rows ends inside the last one.
const LENGTHS: [usize; 4] = [70, 90, 1, 130];
/// Positions that the first call appends, of each.
const CACHED: [usize; 4] = [0, 3, 0, 65];

fn forward(model: &CpuModel, caches: &mut [KvCache], sequences: &[&[u32]]) -> Vec<f32> {
    let inputs = caches.iter_mut().zip(sequences).filter(|(_, tokens)| !tokens.is_empty());
    let inputs = inputs.map(|(sequence, tokens)| Input {
        sequence,
        tokens,
        wanted: Wanted::Logits(tokens.len()),
        attention: None,
    });
    let outcomes = model.forward(&mut inputs.collect::<Vec<_>>(), &mut || false).unwrap();
    outcomes.into_iter().flat_map(Outcome::logits).collect()
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

/// What an input of a random group is to be.
struct Drawn {
    cached: Vec<u32>,
    tokens: Vec<u32>,
    wanted: Wanted,
    attention: Option<PromptAttention>,
}

impl Drawn {
    fn new(random: &mut Random) -> Self {
        let mut below = |n: usize| (random.next() % n as u64) as usize;
        // Mostly one row or a few, as of texts that are generated, beside prompts that take several passes.
        let [cached, most] = [[0, 1, 63, 150, 333][below(5)], [1, 1, 6, 90, 300][below(5)]];
        let len = 1 + below(most);
        let positions = [0, 1, len, below(len + 1)][below(4)].min(len);
        let wanted = [Wanted::Choices(positions), Wanted::Logits(positions)][below(2)];
        let pattern = match below(4) {
            0 => Some(Pattern::Window { sink: 1, window: 1, log: true }),
            1 => Some(Pattern::BlockMean { alpha: 0.05, spread: 2.0, least: 0.001, sink: 0, window: 1, correct: true }),
            _ => None,
        };
        let end = cached + len;
        let attention = pattern.map(|pattern| PromptAttention { pattern: pattern.into(), end, counts: None });
        let mut tokens = |count| (0..count).map(|_| below(SMALL.n_vocab) as u32).collect();
        Self { cached: tokens(cached), tokens: tokens(len), wanted, attention }
    }

    fn input<'a>(&'a self, sequence: &'a mut KvCache, wanted: Wanted) -> Input<'a, KvCache> {
        Input { sequence, tokens: &self.tokens, wanted, attention: self.attention.as_ref() }
    }

    /// What a call of its own gives, where all is computed that can be wanted.
    fn alone(&self, model: &CpuModel, cache: &mut KvCache) -> Outcome {
        let all = self.input(cache, Wanted::Logits(self.tokens.len()));
        let mut logits = model.forward(&mut [all], &mut || false).unwrap().remove(0).logits();
        logits.drain(..(self.tokens.len() - self.wanted.positions()) * SMALL.n_vocab);
        match self.wanted {
            Wanted::Choices(_) => Outcome::Choices(logits.chunks_exact(SMALL.n_vocab).map(argmax).collect()),
            Wanted::Logits(_) => Outcome::Logits(logits),
        }
    }
}

/// Logits as their bits.
fn exactly(outcome: Outcome) -> (Vec<u32>, Vec<Option<u32>>) {
    match outcome {
        Outcome::Choices(tokens) => (Vec::new(), tokens),
        Outcome::Logits(logits) => (bits(&logits), Vec::new()),
    }
}

/// Choices, logits and nothing, of exact and of sparse inputs, in one call.
#[test]
fn random_groups_have_the_bits_of_single_calls() {
    const GROUPS: u64 = 3;
    let mut random = Random(11);
    let (mut passes, mut mixed) = (0, 0);
    // The last has an output projection of floats.
    for dtype in [GgmlDType::Q4_0, GgmlDType::Q6K, GgmlDType::F16] {
        let made = make(&SMALL, dtype, &[], None);
        let file = GgufFile::open(made.path()).unwrap();
        for kernels in Kernels::available() {
            for threads in [1, 2] {
                let model = CpuModel::load(describe(&file).unwrap(), kernels, threads, &mut || false).unwrap();
                for group in 0..GROUPS {
                    let drawn: Vec<_> = (0..1 + random.next() % 6).map(|_| Drawn::new(&mut random)).collect();
                    let cached = |drawn: &Drawn| {
                        let mut cache = KvCache::new(model.cache_shape());
                        forward(&model, std::slice::from_mut(&mut cache), &[&drawn.cached]);
                        cache
                    };
                    let mut alone: Vec<KvCache> = drawn.iter().map(cached).collect();
                    let mut together = alone.clone();
                    let wanted: Vec<_> = drawn.iter().zip(&mut alone).map(|(it, c)| it.alone(&model, c)).collect();

                    let before = model.passes().all;
                    let inputs = drawn.iter().zip(&mut together).map(|(it, cache)| it.input(cache, it.wanted));
                    let found = model.forward(&mut inputs.collect::<Vec<_>>(), &mut || false).unwrap();
                    let rows: usize = drawn.iter().map(|drawn| drawn.tokens.len()).sum();
                    assert_eq!(model.passes().all - before, rows.div_ceil(256) as u64);
                    passes += model.passes().all - before;
                    mixed += u64::from(found.windows(2).any(
                        |w| matches!(w, [Outcome::Choices(c), Outcome::Logits(l)] if !c.is_empty() && !l.is_empty()),
                    ));

                    let name = format!("{dtype:?}, {kernels:?}, {threads} threads, group {group}");
                    for (i, (found, wanted)) in found.into_iter().zip(wanted).enumerate() {
                        assert!(exactly(found) == exactly(wanted), "{name}: input {i}");
                    }
                    let next = vec![&[7u32][..]; drawn.len()];
                    let [found, wanted] = [together, alone].map(|mut all| bits(&forward(&model, &mut all, &next)));
                    assert!(found == wanted, "{name}: what comes next");
                }
            }
        }
    }
    assert!(passes > GROUPS && mixed > GROUPS, "{passes} passes, {mixed} groups mixed");
}
