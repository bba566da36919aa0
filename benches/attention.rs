//! Exact attention of one core over caches of several lengths, in floating-point operations a second.

use _specrs::attention::cache::{CacheShape, KvCache, PAGE};
use _specrs::attention::units::{Accumulator, Queries, Unit, Workspace};
use _specrs::kernels::fixed::{largest_quant, LARGEST_VALUE};
use _specrs::kernels::fixed_rows::FixedRows;
use _specrs::kernels::table::Kernels;
use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use std::time::Duration;

/// Numbers in -1..1 that are the same in every run (xorshift64).
fn floats(count: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A cache of `len` positions of one head.
fn cache(len: usize, head_dim: usize) -> KvCache {
    let shape = CacheShape { n_layer: 1, n_head_kv: 1, head_dim };
    let mut cache = KvCache::new(shape);
    cache.reserve(len).unwrap();
    let kernels = Kernels::scalar();
    for (position, pair) in floats(len * head_dim * 2).chunks_exact(2 * head_dim).enumerate() {
        let mut rows = FixedRows::default();
        rows.push(&kernels, &pair[..head_dim], largest_quant(head_dim));
        rows.push(&kernels, &pair[head_dim..], LARGEST_VALUE);
        let mut page = cache.page_mut(position / PAGE).alone();
        page.key(0, 0, position % PAGE, rows.row(0), rows.scales[0]);
        page.value(0, 0, position % PAGE, rows.row(1), rows.scales[1]);
    }
    cache.commit(len);
    cache
}

/// The last unit of a prompt: it attends to all positions.
fn prefill(c: &mut Criterion) {
    let mut group = c.benchmark_group("prefill");
    for kernels in Kernels::available() {
        for (head_dim, heads) in [(64, 3), (64, 4), (64, 8), (128, 4)] {
            for len in [1024, 4096, 8192, 16384] {
                if kernels.name() == "scalar" && len > 1024 {
                    continue;
                }
                let cache = cache(len, head_dim);
                let rows = Unit::rows(heads, head_dim);
                let unit = Unit {
                    kernels: &kernels,
                    pages: cache.pages(),
                    phase: None,
                    layer: 0,
                    head: 0,
                    position: len - rows,
                    rows,
                    group: heads,
                    width: head_dim,
                    window: None,
                    cap: None,
                };
                let mut queries = Queries::default();
                for query in floats(unit.queries() * head_dim).chunks_exact(head_dim) {
                    queries.floats.extend_from_slice(query);
                    queries.round_last(&kernels, head_dim);
                }
                let (mut total, mut work) = (Accumulator::default(), Workspace::default());
                group.throughput(Throughput::Elements((4 * unit.queries() * len * head_dim) as u64));
                let name = format!("{}/{heads}x{head_dim}", kernels.name());
                group.bench_function(BenchmarkId::new(name, len), |b| {
                    b.iter(|| unit.attend(&queries, None, &mut total, &mut work));
                });
            }
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    targets = prefill
}
criterion_main!(benches);
