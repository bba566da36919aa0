//! What patterns keep, on caches of random keys.

use super::{Pattern, Prompt, Selection, EVERY_BLOCK};
use crate::attention::{Queries, Unit};
use crate::cache::{CacheShape, KvCache, PAGE};
use crate::kernels::fixed::{largest_quant, FixedRows, LARGEST_VALUE};
use crate::kernels::tests::Random;
use crate::kernels::Kernels;

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
        let page = &cache.pages()[position / PAGE];
        page.store_key(0, 0, position % PAGE, rows.row(0), rows.scales[0]);
        page.store_value(0, 0, position % PAGE, rows.row(1), rows.scales[1]);
    }
    cache.commit(len);
    cache
}

/// Which blocks each query of `rows` rows from `position` on keeps.
fn kept(kernels: &Kernels, cache: &KvCache, pattern: &Pattern, position: usize, rows: usize) -> Vec<Vec<bool>> {
    let pages = cache.pages();
    let unit = Unit { kernels, pages, layer: 0, head: 0, position, rows, group: GROUP, width: WIDTH };
    let mut queries = Queries::default();
    for query in floats((position + rows) * GROUP * WIDTH, 2)[position * GROUP * WIDTH..].chunks_exact(WIDTH) {
        queries.floats.extend_from_slice(query);
        queries.round_last(kernels, WIDTH);
    }
    let prompt = Prompt { pattern: pattern.clone().into(), end: position + rows, counts: None };
    let mut selection = Selection::default();
    let selection = prompt.select(1, &unit, &queries, &mut selection).expect("nothing is dense");
    let kept = |query: usize| (0..=unit.own_block()).map(|block| selection.kept().block(block)[query]).collect();
    (0..unit.queries()).map(kept).collect()
}

fn antidiagonal(stride: usize, tau: f32) -> Pattern {
    Pattern::Antidiagonal { stride, tau, sink: 1, window: 1 }
}

/// The softmax of a query over the sampled keys, summed by blocks, in double precision.
fn masses(cache: &KvCache, stride: usize, position: usize, query: usize) -> Vec<f64> {
    let queries = floats((position + 1) * GROUP * WIDTH, 2);
    let query = &queries[(position * GROUP + query) * WIDTH..][..WIDTH];
    let mut masses = vec![0.0; position / PAGE + 1];
    for key in (0..=position).filter(|key| (position + key + 1).is_multiple_of(stride)) {
        let block = cache.pages()[key / PAGE].block(0, 0);
        let quant = |d: usize| f64::from(block.keys[(d / 2 * PAGE + key % PAGE) * 2 + d % 2]);
        let scale = f64::from(block.key_scales[key % PAGE]);
        let score = (0..WIDTH).map(|d| f64::from(query[d]) * quant(d) * scale);
        masses[key / PAGE] += score.sum::<f64>().exp();
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
fn auto_scores_every_block_in_the_first_two_fifths_of_the_layers() {
    let prompt = Prompt { pattern: Pattern::auto().into(), end: 8192, counts: None };
    for (n_layer, early) in [(30, 12), (22, 9), (16, 6), (12, 5), (6, 2), (2, 1), (1, 0)] {
        let scores_all = |layer: &usize| {
            let rule = prompt.rule(n_layer, *layer, 100).expect("sparse above 4096");
            matches!(rule, Pattern::BlockMean { spread, .. } if *spread == EVERY_BLOCK)
        };
        assert_eq!((0..n_layer).take_while(scores_all).count(), early, "of {n_layer}");
        assert_eq!((0..n_layer).filter(scores_all).count(), early, "of {n_layer}");
        assert!((0..n_layer).all(|layer| prompt.rule(n_layer, layer, 63).is_none()), "exact below 4096");
    }
    let blocks =
        |spread| format!("BlockMean(alpha=0.004, spread={spread}, least=0.0005, sink=64, window=256, correct=True)");
    let text = format!("DenseBelow(4096, LayerSplit(0.4, {}, {}))", blocks(8), blocks(3));
    assert_eq!(prompt.pattern.to_string(), text);
}

#[test]
fn patterns_print_as_they_are_made_in_python() {
    let pattern = Pattern::DenseBelow(128, antidiagonal(8, 0.9).into());
    assert_eq!(pattern.to_string(), "DenseBelow(128, Antidiagonal(stride=8, tau=0.9, sink=64, window=64))");
    assert!(pattern.is_dynamic());
    assert_eq!(pattern.dense_below(), 128);
}
