//! What patterns keep, on caches of random keys.

use super::{Layers, Pattern, PromptAttention, Selection};
use crate::attention::cache::{CacheShape, KvCache, PAGE};
use crate::attention::units::{Accumulator, Queries, Unit, Workspace};
use crate::kernels::fixed::{largest_quant, LARGEST_VALUE};
use crate::kernels::fixed_rows::FixedRows;
use crate::kernels::table::Kernels;
use crate::kernels::tests::Random;

const WIDTH: usize = 16;
const GROUP: usize = 3;

fn floats(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.float()).collect()
}

fn cache(len: usize) -> KvCache {
    let mut cache = KvCache::new(CacheShape { n_layer: 1, n_head_kv: 1, head_dim: WIDTH });
    cache.reserve(len).unwrap();
    let kernels = Kernels::scalar();
    for (position, pair) in floats(2 * len * WIDTH, 1).chunks_exact(2 * WIDTH).enumerate() {
        let mut rows = FixedRows::default();
        rows.push(&kernels, &pair[..WIDTH], largest_quant(WIDTH));
        rows.push(&kernels, &pair[WIDTH..], LARGEST_VALUE);
        let mut page = cache.page_mut(position / PAGE).alone();
        page.key(0, 0, position % PAGE, rows.row(0), rows.scales[0]);
        page.value(0, 0, position % PAGE, rows.row(1), rows.scales[1]);
    }
    cache.commit(len);
    cache
}

/// Which blocks each query of `rows` rows from `position` on keeps.
fn kept(kernels: &Kernels, cache: &KvCache, pattern: &Pattern, position: usize, rows: usize) -> Vec<Vec<bool>> {
    let pages = cache.pages();
    let unit = Unit {
        kernels,
        pages,
        phase: None,
        layer: 0,
        head: 0,
        position,
        rows,
        group: GROUP,
        width: WIDTH,
        window: None,
        cap: None,
    };
    let mut queries = Queries::default();
    for query in floats((position + rows) * GROUP * WIDTH, 2)[position * GROUP * WIDTH..].chunks_exact(WIDTH) {
        queries.floats.extend_from_slice(query);
        queries.round_last(kernels, WIDTH);
    }
    let prompt = PromptAttention { pattern: pattern.clone().into(), end: position + rows, counts: None };
    let mut selection = Selection::default();
    let selection = prompt.select(1, &unit, &queries, &mut selection).expect("nothing is dense");
    // Some are given up only when they are scored.
    unit.attend(&queries, Some(selection.kept_mut()), &mut Accumulator::default(), &mut Workspace::default());
    let kept = |query: usize| (0..=unit.own_block()).map(|block| selection.kept().block(block)[query]).collect();
    (0..unit.queries()).map(kept).collect()
}

fn antidiagonal(stride: usize, tau: f32) -> Pattern {
    Pattern::Antidiagonal { stride, tau, sink: 1, window: 1 }
}

/// A pattern that scores every block.
fn by_scores(least: f32) -> Pattern {
    Pattern::BlockMean { alpha: 0.0, spread: 0.0, least, sink: 0, window: 0, correct: true }
}

/// Scores of the keys that a query sees, in double precision.
fn scores(cache: &KvCache, position: usize, query: usize) -> Vec<f64> {
    let queries = floats((position + 1) * GROUP * WIDTH, 2);
    let query = &queries[(position * GROUP + query) * WIDTH..][..WIDTH];
    let score = |key: usize| {
        let block = cache.pages()[key / PAGE].block(None, 0, 0);
        let quant = |d: usize| f64::from(block.keys[(d / 2 * PAGE + key % PAGE) * 2 + d % 2]);
        let scale = f64::from(block.key_scales[key % PAGE]);
        (0..WIDTH).map(|d| f64::from(query[d]) * quant(d) * scale).sum()
    };
    (0..=position).map(score).collect()
}

/// The softmax of a query over the sampled keys, summed by blocks.
fn masses(cache: &KvCache, stride: usize, position: usize, query: usize) -> Vec<f64> {
    let mut masses = vec![0.0; position / PAGE + 1];
    for (key, score) in scores(cache, position, query).into_iter().enumerate() {
        if (position + key + 1).is_multiple_of(stride) {
            masses[key / PAGE] += score.exp2();
        }
    }
    let total: f64 = masses.iter().sum();
    masses.iter().map(|mass| mass / total).collect()
}

#[test]
fn antidiagonal_keeps_the_heaviest_blocks_up_to_its_share() {
    let cache = cache(10 * PAGE);
    for kernels in Kernels::available() {
        for stride in [1, 2, 4, 8, 16, 32, 64] {
            for (position, rows) in [(9 * PAGE, 32), (9 * PAGE + 5, 3), (10 * PAGE - 1, 1)] {
                let kept = kept(&kernels, &cache, &antidiagonal(stride, 0.7), position, rows);
                for (i, kept) in kept.iter().enumerate() {
                    let masses = masses(&cache, stride, position + i / GROUP, i % GROUP);
                    assert!(kept[0] && kept[8] && kept[9], "sink, window and own block are kept");
                    let share = |blocks: &dyn Fn(usize) -> bool| -> f64 {
                        (0..10).filter(|&block| blocks(block)).map(|block| masses[block]).sum()
                    };
                    assert!(share(&|block| kept[block]) >= 0.7 - 1e-4);
                    let chosen: Vec<usize> = (1..8).filter(|&block| kept[block]).collect();
                    let Some(&least) = chosen.iter().min_by(|&&a, &&b| masses[a].total_cmp(&masses[b])) else {
                        continue;
                    };
                    assert!(share(&|block| kept[block] && block != least) < 0.7 + 1e-4, "none is more than needed");
                    assert!((1..8).all(|block| kept[block] || masses[block] <= masses[least] + 1e-4));
                }
            }
        }
    }
}

#[test]
fn what_a_query_keeps_does_not_depend_on_its_company() {
    let cache = cache(7 * PAGE);
    let patterns = [
        antidiagonal(8, 0.8),
        antidiagonal(64, 0.5),
        Pattern::BlockMean { alpha: 0.7, spread: 0.0, least: 0.0, sink: 1, window: 1, correct: true },
        by_scores(0.01),
    ];
    for kernels in Kernels::available() {
        for pattern in &patterns {
            let together = kept(&kernels, &cache, pattern, 6 * PAGE, 32);
            assert!(together.iter().flatten().any(|kept| !kept));
            for row in 0..32 {
                let alone = kept(&kernels, &cache, pattern, 6 * PAGE + row, 1);
                assert_eq!(alone, together[row * GROUP..(row + 1) * GROUP]);
            }
        }
    }
}

#[test]
fn auto_keeps_more_in_the_first_two_fifths_of_the_layers() {
    let prompt = PromptAttention { pattern: Pattern::auto().into(), end: 8192, counts: None };
    for (n_layer, early) in [(30, 12), (22, 9), (16, 6), (12, 5), (6, 2), (2, 1), (1, 0)] {
        let is_early = |layer: &usize| {
            let rule = prompt.rule(n_layer, *layer, 100).expect("sparse above 4096");
            matches!(rule, Pattern::BlockMean { spread, .. } if *spread == 3.5)
        };
        assert_eq!((0..n_layer).take_while(is_early).count(), early, "of {n_layer}");
        assert_eq!((0..n_layer).filter(is_early).count(), early, "of {n_layer}");
        assert!((0..n_layer).all(|layer| prompt.rule(n_layer, layer, 63).is_none()), "exact below 4096");
    }
    let blocks = |alpha, spread| {
        format!("BlockMean(alpha={alpha}, spread={spread}, least=0.0005, sink=64, window=256, correct=True)")
    };
    let text = format!("DenseBelow(4096, LayerSplit(0.4, {}, {}))", blocks("0.0005", "3.5"), blocks("0.004", "3"));
    assert_eq!(prompt.pattern.to_string(), text);
}

#[test]
fn bounds_of_what_is_exact_agree_with_the_rule() {
    let window = || Box::new(Pattern::Window { sink: 1, window: 1, log: false });
    let tail = |positions| Box::new(Pattern::DenseTail(positions, window()));
    let split = |early, late| Pattern::LayerSplit { first: Layers::Count(1), early, late };
    let patterns = [
        *window(),
        *tail(100),
        *tail(5000),
        Pattern::DenseTail(64, tail(200)),
        Pattern::DenseBelow(128, tail(65)),
        split(tail(100), window()),
        split(Pattern::DenseBelow(256, tail(300)).into(), Pattern::DenseBelow(64, tail(70)).into()),
    ];
    for (pattern, end) in patterns.into_iter().flat_map(|pattern| [1, 64, 640, 700].map(|end| (pattern.clone(), end))) {
        let prompt = PromptAttention { pattern: pattern.into(), end, counts: None };
        let [first, last] = prompt.pattern.tail_starts(end);
        let below = prompt.pattern.dense_below();
        for position in 0..end {
            let exact = [0, 1].map(|layer| prompt.rule(2, layer, position / PAGE).is_none());
            assert!(position < first || exact.contains(&true), "{position}");
            assert_eq!(exact == [true; 2], position < below || position >= last, "{position}");
        }
    }
}

#[test]
fn blocks_are_given_up_whose_best_key_weighs_too_little() {
    let (cache, least) = (cache(7 * PAGE), 0.01);
    let mut given_up = [0; 2];
    for kernels in Kernels::available() {
        for (query, kept) in kept(&kernels, &cache, &by_scores(least), 6 * PAGE, 20).iter().enumerate() {
            let scores = scores(&cache, 6 * PAGE + query / GROUP, query % GROUP);
            let blocks: Vec<&[f64]> = scores.chunks(PAGE).collect();
            // The first block as it is, the others by their means; the last one does not count.
            let means = blocks[1..6].iter().map(|block| 64.0 * (block.iter().sum::<f64>() / 64.0).exp2());
            let all = blocks[0].iter().map(|score| score.exp2()).sum::<f64>() + means.sum::<f64>();
            for (block, scores) in blocks[..6].iter().enumerate() {
                let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max).exp2() / all;
                if (best / f64::from(least) - 1.0).abs() > 0.01 {
                    assert_eq!(kept[block], best > f64::from(least), "{kernels:?} {query} {block} {best}");
                }
                given_up[usize::from(kept[block])] += 1;
            }
            assert!(kept[6], "every query keeps its own block");
        }
    }
    assert!(given_up.iter().all(|&blocks| blocks > 20), "{given_up:?}");
}

#[test]
fn what_is_no_number_leaves_nothing_out() {
    for position in [5, 200] {
        let mut cache = cache(7 * PAGE);
        cache.page_mut(position / PAGE).alone().key(0, 0, position % PAGE, &[1; WIDTH], f32::NAN);
        for kernels in Kernels::available() {
            for kept in kept(&kernels, &cache, &by_scores(0.5), 6 * PAGE, 3) {
                assert!(kept.iter().all(|&kept| kept), "{kernels:?} {position}");
            }
        }
    }
}

#[test]
fn a_split_by_layers_is_what_its_parts_are() {
    let window = || Pattern::Window { sink: 0, window: 1, log: false };
    let below = |positions| Box::new(Pattern::DenseBelow(positions, window().into()));
    let split = |early, late| Pattern::LayerSplit { first: Layers::Count(2), early, late };
    for (early, late) in [(below(128), below(64)), (below(64), below(128))] {
        assert_eq!(split(early, late).dense_below(), 64);
    }
    assert!(!split(below(64), below(64)).is_dynamic());
    assert!(split(below(64), by_scores(0.1).into()).is_dynamic());
    assert!(split(by_scores(0.1).into(), below(64)).is_dynamic());
    let prompt = PromptAttention { pattern: (*below(128)).into(), end: 640, counts: None };
    assert!(prompt.is_exact(127) && !prompt.is_exact(128));
    let prompt = PromptAttention { pattern: split(below(0), by_scores(0.1).into()).into(), end: 640, counts: None };
    for layer in 0..4 {
        assert_eq!(prompt.rule(4, layer, 5), Some(&if layer < 2 { window() } else { by_scores(0.1) }));
    }
}

#[test]
fn patterns_print_as_they_are_made_in_python() {
    let pattern = Pattern::DenseBelow(128, antidiagonal(8, 0.9).into());
    assert_eq!(pattern.to_string(), "DenseBelow(128, Antidiagonal(stride=8, tau=0.9, sink=64, window=64))");
    assert!(pattern.is_dynamic());
    assert_eq!(pattern.dense_below(), 128);
}
