use super::*;
use crate::arch::describe;
use crate::fixture::tiny_llama;
use crate::gguf::file::GgufFile;

/// A model with so many key/value heads, two queries each.
fn config(n_head_kv: usize) -> Config {
    let file = tiny_llama().file();
    let config = describe(&GgufFile::open(file.path()).unwrap()).unwrap().config;
    Config { n_head: 2 * n_head_kv, n_head_kv, ..config }
}

/// Rows of one sequence.
fn rows(positions: Range<usize>, sequence: usize) -> impl Iterator<Item = Row> {
    positions.map(move |position| Row { token: 0, sequence, position })
}

#[test]
fn units_stay_in_one_block_of_one_sequence() {
    let rows: Vec<Row> = rows(60..70, 0).chain(rows(70..72, 1)).collect();
    let plan = AttentionPlan::new(&config(1), &rows, None, true, 1);
    assert_eq!(plan.units, [0..4, 4..10, 10..12]);
}

#[test]
fn units_have_up_to_256_queries_where_not_all_look_at_a_block() {
    let rows: Vec<Row> = rows(0..512, 0).collect();
    for (n_head, dense, most) in [(2, true, 32), (2, false, 64), (16, true, 4), (16, false, 16)] {
        let config = Config { n_head, ..config(1) };
        let AttentionPlan { units, split, .. } = AttentionPlan::new(&config, &rows, None, dense, 1);
        assert!(units.iter().map(ExactSizeIterator::len).all(|rows| rows == most) && split.is_none());
    }
}

#[test]
fn every_segment_is_attended_to_once_and_has_its_own_results() {
    for heads in [1, 2, 3, 5] {
        for (first, count) in [(0, 1), (63, 2), (130, 1), (300, 8), (700, 16), (2000, 3)] {
            for workers in 2..10 {
                let config = config(heads);
                let rows: Vec<Row> = rows(first..first + count, 0).collect();
                let AttentionPlan { units, split, .. } = AttentionPlan::new(&config, &rows, None, true, workers);
                let Some(split) = split else { continue };
                let mut seen = Vec::new();
                let mut results = vec![0; split.states.len()];
                for part in &split.parts {
                    seen.extend(part.segments.clone().map(|segment| (part.unit, part.head, segment)));
                    let queries = 2 * units[part.unit].len();
                    let own = part.results.map(|start| start..start + part.segments.len() * queries);
                    own.into_iter().flatten().for_each(|i| results[i] += 1);
                    let shared =
                        split.shared.iter().find(|shared| (shared.unit, shared.head) == (part.unit, part.head));
                    assert_eq!(shared.is_some(), part.results.is_some());
                }
                let all = (0..units.len()).flat_map(|unit| (0..heads).map(move |head| (unit, head)));
                let segments = |unit: usize| Unit::segments_at(rows[units[unit].start].position);
                let all = all.flat_map(|(unit, head)| (0..segments(unit)).map(move |segment| (unit, head, segment)));
                assert!(seen.into_iter().eq(all), "{heads} heads, {first}, {count}, {workers} workers");
                assert!(results.iter().all(|&count| count == 1));
                let merged: Vec<usize> = split.shared.iter().flat_map(|shared| shared.results.clone()).collect();
                assert!(merged.into_iter().eq(0..results.len()));
            }
        }
    }
}

#[test]
fn workers_get_equal_shares_of_three_heads() {
    let rows: Vec<Row> = rows(500..504, 0).collect();
    let split = AttentionPlan::new(&config(3), &rows, None, true, 2).split.unwrap();
    let blocks = |worker: usize| -> usize {
        let parts = split.parts.iter().filter(|part| part.worker == worker);
        parts.flat_map(|part| part.segments.clone()).map(|segment| Unit::segment_blocks(segment).len()).sum()
    };
    assert_eq!([0, 1].map(blocks), [12, 12]);
    assert_eq!(split.shared.len(), 1);
}
