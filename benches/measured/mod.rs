//! A criterion measurement whose result the program sees too, so that it can print tables.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId};
use std::time::Instant;

/// Runs `work` under criterion; its median seconds, or `None` if the filter of the command line left it out.
pub fn median_seconds(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    mut work: impl FnMut(),
) -> Option<f64> {
    let mut samples = Vec::new();
    group.bench_function(id, |b| {
        b.iter_custom(|count| {
            let start = Instant::now();
            (0..count).for_each(|_| work());
            let elapsed = start.elapsed();
            samples.push(elapsed.as_secs_f64() / count as f64);
            elapsed
        });
    });
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}
