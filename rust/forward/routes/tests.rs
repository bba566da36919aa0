use super::*;

const EXPERTS: Experts = Experts { count: 5, used: 2, n_ff: 8 };

fn found(logits: &[[f32; 5]], aligned: usize) -> Routes {
    let mut routes = Routes::default();
    routes.find(logits.as_flattened(), EXPERTS, aligned);
    routes
}

fn experts(routes: &Routes, row: usize) -> Vec<usize> {
    routes.of(row).iter().map(|pick| pick.expert).collect()
}

#[test]
fn the_highest_logits_win_the_first_of_equals_and_nan_last() {
    let (nan, low) = (f32::NAN, f32::NEG_INFINITY);
    let routes = found(
        &[
            [1.0, 3.0, 2.0, 0.0, -1.0],
            [1.0, 1.0, 1.0, 1.0, 1.0],
            [0.0, 2.0, 1.0, 2.0, 1.0],
            [nan, low, nan, low, nan],
            [nan, 1.0, nan, nan, nan],
            [nan; 5],
            [0.0, -0.0, 0.0, -0.0, 0.0],
        ],
        1,
    );
    let wanted = [[1, 2], [0, 1], [1, 3], [1, 3], [1, 0], [0, 1], [0, 1]];
    for (row, wanted) in wanted.into_iter().enumerate() {
        assert_eq!(experts(&routes, row), wanted, "row {row}");
    }
}

#[test]
fn weights_are_the_softmax_over_all_divided_by_the_sum_of_those_used() {
    let logits = [0.3f32, -1.5, 2.0, 1.25, -0.5];
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let softmax = logits.map(|logit| f64::from(logit).exp() / sum);
    let routes = found(&[logits], 1);
    assert_eq!(experts(&routes, 0), [2, 3]);
    for pick in routes.of(0) {
        let wanted = softmax[pick.expert] / (softmax[2] + softmax[3]);
        assert!((f64::from(pick.weight) - wanted).abs() < 1e-7);
    }
}

#[test]
fn every_row_has_a_slot_in_each_of_its_experts() {
    for (aligned, rows) in [(1, 1), (4, 3), (16, 40)] {
        let logit = |row: usize, expert: usize| ((row * 7 + expert * 13) % 11) as f32;
        let logits: Vec<[f32; 5]> = (0..rows).map(|row| std::array::from_fn(|expert| logit(row, expert))).collect();
        let routes = found(&logits, aligned);
        assert!(routes.slots() <= slots(rows, EXPERTS, aligned));
        let mut count = 0;
        for Group { expert, slots } in routes.groups() {
            assert!(slots.start % aligned == 0 && !slots.is_empty());
            let mut before = None;
            for (slot, row) in routes.filled(slots.clone()) {
                assert!(routes.of(row).iter().any(|pick| pick.expert == *expert && pick.slot == slot));
                assert!(before < Some(row), "rows of an expert are in order");
                (before, count) = (Some(row), count + 1);
            }
        }
        assert_eq!(count, rows * EXPERTS.used);
        assert_eq!(routes.filled(0..usize::MAX).count(), count, "other slots are empty");
    }
}

#[test]
fn experts_may_have_all_rows_or_none() {
    let routes = found(&[[9.0, 0.0, 0.0, 0.0, 8.0]; 20], 16);
    let groups = [(0, 0..20), (4, 32..52)].map(|(expert, slots)| Group { expert, slots });
    assert_eq!(routes.groups(), groups);
}

#[test]
fn a_row_has_the_same_experts_in_any_company() {
    let rows: [[f32; 5]; 3] = [[0.1, 0.2, 0.3, 0.2, 0.3], [5.0, -5.0, 0.0, 5.0, 1.0], [0.0; 5]];
    let together = found(&rows, 4);
    for (row, logits) in rows.into_iter().enumerate() {
        let alone = found(&[logits], 1);
        let weights = |routes: &Routes, row: usize| -> Vec<(usize, u32)> {
            routes.of(row).iter().map(|pick| (pick.expert, pick.weight.to_bits())).collect()
        };
        assert_eq!(weights(&together, row), weights(&alone, 0));
    }
}
