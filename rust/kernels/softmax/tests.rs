//! The softmax of every instruction set against the specification.

use super::{CausalMask, Softmax, SoftmaxState};
use crate::kernels::fixed::{Step, ONE};
use crate::kernels::table::Kernels;
use crate::kernels::tests::Random;

#[test]
fn the_softmax_has_the_bits_of_the_specification() {
    let mut random = Random::new(11);
    for valid in [0, 1, 2, 15, 16, 17, 61, 63, 64] {
        for (count, group, gone) in
            [(1, 1, -64), (3, 3, 0), (7, 3, 1), (20, 4, 15), (33, 8, -2), (33, 8, 62), (4, 1, 80)]
        {
            // Up to 200 apart, so that some weigh nothing.
            let scores: Vec<f32> = (0..count * 64).map(|_| random.float() * 100.0).collect();
            let inverses: Vec<f32> = (0..64).map(|_| random.float() + 1.0).collect();
            let rows: Vec<usize> = (0..count).filter(|row| row % 4 != 2).collect();
            let states: Vec<_> = (0..count)
                .map(|i| {
                    if i % 3 == 0 {
                        SoftmaxState::EMPTY
                    } else {
                        SoftmaxState { max: i as f32 * 20.0 - 60.0, sum: 3.0 }
                    }
                })
                .collect();
            let run = |k: &Kernels| {
                let (mut scores, mut states) = (scores.clone(), states.clone());
                let (mut steps, mut weights) = (vec![Step::default(); count], vec![-1; count * 64]);
                k.softmax_rows(Softmax {
                    rows: &rows,
                    scores: &mut scores,
                    inverses: &inverses,
                    mask: CausalMask { valid, gone, group },
                    states: &mut states,
                    steps: &mut steps,
                    weights: &mut weights,
                });
                let states = states.iter().flat_map(|state| [state.max, state.sum]);
                let steps = steps.iter().flat_map(|step| [step.max, step.keep, step.add]);
                (weights, states.chain(steps).map(f32::to_bits).collect::<Vec<_>>())
            };
            for kernels in Kernels::available() {
                let got = run(&kernels);
                assert_eq!(got, run(&Kernels::scalar()), "{kernels:?} {valid} {count} {group} {gone}");
                let (weights, numbers) = got;
                for (row, weights) in weights.chunks(64).enumerate() {
                    if !rows.contains(&row) {
                        assert!(weights.iter().all(|&weight| weight == -1), "other rows stay");
                        continue;
                    }
                    let seen = (valid + row / group).min(64);
                    assert!(weights[seen..].iter().all(|&weight| weight == 0));
                    let gone = (gone + (row / group) as isize).clamp(0, 64) as usize;
                    assert!(weights[..gone].iter().all(|&weight| weight == 0));
                    assert_eq!(weights.iter().max(), Some(&if seen > gone { ONE as i16 } else { 0 }));
                }
                assert!(numbers.iter().all(|&bits| !f32::from_bits(bits).is_nan()));
            }
        }
    }
}

#[test]
fn rows_with_low_scores_are_dropped() {
    let mut random = Random::new(12);
    let scores: Vec<f32> = (0..40 * 64).map(|_| random.float() * 10.0).collect();
    let biases: Vec<f32> = (0..64).map(|_| random.float() * 5.0).collect();
    let highest = |row: usize| {
        let unbiased = scores[row * 64..][..64].iter().zip(&biases).map(|(score, bias)| score - bias);
        unbiased.fold(f32::NEG_INFINITY, f32::max)
    };
    for kernels in Kernels::available() {
        let mut rows: Vec<usize> = (0..40).rev().filter(|row| row % 5 != 0).collect();
        // Just high enough, a little too low, no limit, NaN, which is no reason to drop.
        let least: Vec<f32> =
            (0..40).map(|row| [highest(row), highest(row).next_up(), f32::NEG_INFINITY, f32::NAN][row % 4]).collect();
        let expected: Vec<usize> = rows.iter().copied().filter(|row| row % 4 != 1).collect();
        kernels.drop_low_rows(&mut rows, &scores, &biases, &least);
        assert_eq!(rows, expected, "{kernels:?}");
    }
}
