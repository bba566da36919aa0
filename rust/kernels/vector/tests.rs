//! The element-wise kernels and those of attention: their formulas, and equal bits on every instruction set.

use crate::kernels::fixed::{largest_quant, Output, Shape, Step, LARGEST_VALUE, ONE};
use crate::kernels::layout::*;
use crate::kernels::scalar;
use crate::kernels::softmax::SoftmaxState;
use crate::kernels::table::Kernels;
use crate::kernels::tests::{quantize, Random};

#[test]
fn quantised_activations_are_within_half_a_step_and_their_sums_are_exact() {
    let mut random = Random::new(5);
    for kernels in Kernels::available() {
        let mut values: Vec<f32> = (0..8 * GROUP).map(|_| random.float() * 100.0).collect();
        values[..GROUP].fill(0.0);
        let mut groups = [ActivationGroup::default(); 8];
        quantize(&kernels, &values, &mut groups);
        for (group, values) in groups.iter().zip(values.chunks(GROUP)) {
            for (&q, &v) in group.quants.iter().zip(values) {
                assert!((f32::from(q) * group.scale - v).abs() <= group.scale * 0.5001);
            }
            let sums = [0, 16].map(|at| group.quants[at..at + 16].iter().map(|&q| i32::from(q)).sum::<i32>());
            assert_eq!(group.negative_sums, sums.map(|s| -s));
            assert_eq!(group.negative_sum, -(sums[0] + sums[1]));
            assert_eq!(group.sum, group.scale * (sums[0] + sums[1]) as f32);
        }
        let mut expected = [ActivationGroup::default(); 8];
        quantize(&Kernels::scalar(), &values, &mut expected);
        assert!(groups == expected);
    }
}

#[test]
fn what_is_no_number_does_not_hide_the_others() {
    let bits = |group: ActivationGroup| {
        (group.quants, [group.scale, group.sum, group.sums[0], group.sums[1]].map(f32::to_bits), group.negative_sums)
    };
    for places in [&[0][..], &[15], &[16], &[31], &[3, 19]] {
        for strange in [f32::NAN, -f32::NAN] {
            let mut values: [f32; GROUP] = std::array::from_fn(|i| i as f32 - 12.0);
            places.iter().for_each(|&i| values[i] = strange);
            for kernels in Kernels::available() {
                let (mut got, mut expected) = ([ActivationGroup::default()], [ActivationGroup::default()]);
                quantize(&kernels, &values, &mut got);
                quantize(&Kernels::scalar(), &values, &mut expected);
                assert_eq!(bits(got[0]), bits(expected[0]), "{kernels:?} {places:?}");
                assert!(got[0].scale > 0.1);
            }
        }
    }
}

#[test]
fn exp_is_within_two_ulp() {
    for i in -87_000..88_000 {
        let x = i as f32 * 1e-3;
        let exact = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
        let got = f64::from(super::exp(x));
        assert!((got - exact).abs() <= 2.0 * ulp, "exp({x}) = {got}, not {exact}");
    }
    assert_eq!(super::exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(super::exp(0.0), 1.0);
}

#[test]
fn powers_of_two_are_near_enough_for_weights() {
    for i in 0..126_000 {
        let x = i as f32 * -1e-3;
        let (got, exact) = (f64::from(super::exp2_to_one(x)), f64::from(x).exp2());
        assert!((got / exact - 1.0).abs() < 1.0 / 300_000.0, "2^{x} = {got}, not {exact}");
    }
    assert_eq!([0.0, -0.0, -1e-40].map(super::exp2_to_one), [1.0; 3]);
    assert_eq!([-126.0, (-126.0f32).next_down(), -126.5].map(super::exp2_to_one), [f32::MIN_POSITIVE, 0.0, 0.0]);
    assert_eq!(super::exp2_to_one(f32::NEG_INFINITY), 0.0);
    assert!(super::exp2_to_one(f32::NAN).is_nan());
}

#[test]
fn element_wise_kernels_have_the_bits_of_the_specification() {
    let mut random = Random::new(6);
    // 1, 15 and 17 leave tails of every kind around registers of 16; 576 is a real width.
    for n in [1, 15, 16, 17, 64, 576] {
        let mut floats = |n: usize| -> Vec<f32> { (0..n).map(|_| random.float() * 4.0).collect() };
        let (a, b, gain) = (floats(2 * n), floats(2 * n), floats(2 * n));
        let run = |k: &Kernels| {
            let mut out = vec![vec![0.0; 2 * n], a.clone(), a.clone(), a.clone(), a.clone()];
            k.rms_norm(&a, &gain, 1e-5, &mut out[0]);
            k.rope(&mut out[1], &b[..n], &gain[..n]);
            k.swiglu(&mut out[2], &b);
            k.scale(&mut out[3], 1.7);
            let state = |max, sum| SoftmaxState { max, sum };
            let mut states = [state(1.5, 2.0), SoftmaxState::EMPTY];
            for others in [[state(1.7, 3.0), SoftmaxState::EMPTY], [state(0.2, 1.0), state(0.4, 2.0)]] {
                k.merge(&mut states, &mut out[4], &others, &b);
            }
            out.push(states.iter().flat_map(|state| [state.max, state.sum]).collect());
            let mut quants = vec![0; 2 * n];
            let scale = k.to_fixed(&a, 5792.0, &mut quants);
            out.push(quants.into_iter().map(f32::from).chain([scale]).collect());
            out.iter().flatten().map(|v: &f32| v.to_bits()).collect::<Vec<_>>()
        };
        for kernels in Kernels::available() {
            assert_eq!(run(&kernels), run(&Kernels::scalar()), "{kernels:?} {n}");
        }
    }
}

#[test]
fn rms_norm_and_rope_are_their_formulas() {
    let mut random = Random::new(7);
    let x: Vec<f32> = (0..100).map(|_| random.float()).collect();
    let gain: Vec<f32> = (0..100).map(|_| random.float()).collect();
    let mut out = vec![0.0; 100];
    scalar::rms_norm(&x, &gain, 1e-5, &mut out);
    let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 100.0;
    for ((&out, &x), &gain) in out.iter().zip(&x).zip(&gain) {
        let expected = f64::from(x) / (mean + 1e-5).sqrt() * f64::from(gain);
        assert!((f64::from(out) - expected).abs() <= expected.abs() * 1e-6);
    }
    let mut head = [3.0, 4.0, 1.0, 0.0];
    scalar::rope(&mut head, &[0.0], &[1.0]);
    assert_eq!(head, [-4.0, 3.0, 1.0, 0.0], "a quarter turn of the first pair, the rest untouched");
}

#[test]
fn products_of_attention_have_the_bits_of_the_specification() {
    let mut random = Random::new(8);
    for (depth, columns) in
        [(64, 64), (16, 64), (64, 16), (80, 64), (64, 80), (128, 64), (64, 128), (48, 112), (144, 32)]
    {
        for count in [1, 2, 3, 4, 5, 6, 7, 12, 13, 48] {
            // Also quants that no row has, as a damaged file may: sums that overflow wrap around.
            let mut quants = |n: usize| -> Vec<i16> { (0..n).map(|_| random.next() as i16).collect() };
            let (a, b) = (quants(count * depth), quants(depth * columns));
            let mut floats = |n: usize| -> Vec<f32> { (0..n).map(|_| random.float()).collect() };
            let [c, rows, scales, biases] = [count * columns, count, columns, columns].map(&mut floats);
            let steps: Vec<_> = rows.iter().map(|&keep| Step { max: 0.0, keep, add: 1.0 - keep }).collect();
            let scores = Output::Scores { rows: &rows, columns: &scales, biases: &biases };
            let (all, few): (Vec<_>, Vec<_>) = ((0..count).collect(), (0..count).rev().step_by(3).collect());
            let whole = Shape::new(&all, depth, columns);
            let some = Shape { wanted: (columns / 2).next_multiple_of(TILE), ..whole };
            let few = Shape { rows: &few, ..whole };
            let run = |k: &Kernels| {
                let [mut sums, mut all, mut part, mut few_sums, mut few_scores] = std::array::from_fn(|_| c.clone());
                k.fixed_matmul(whole, &a, &b, Output::Sums(&steps), &b[1..], &mut sums);
                k.fixed_matmul(whole, &a, &b, scores, &[], &mut all);
                k.fixed_matmul(some, &a, &b[2 * columns..], scores, &b[..40], &mut part);
                k.fixed_matmul(few, &a, &b, Output::Sums(&steps), &[], &mut few_sums);
                k.fixed_matmul(few, &a, &b, scores, &[], &mut few_scores);
                for (few_rows, rows) in [(&few_sums, &sums), (&few_scores, &all)] {
                    for (i, row) in few_rows.chunks(columns).enumerate() {
                        let expected = if few.rows.contains(&i) { rows } else { &c };
                        assert_eq!(row, &expected[i * columns..][..columns], "{k:?} {count}x{depth}x{columns}");
                    }
                }
                sums.iter().chain(&all).chain(&part).map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            for kernels in Kernels::available() {
                assert_eq!(run(&kernels), run(&Kernels::scalar()), "{kernels:?} {count}x{depth}x{columns}");
            }
        }
    }
}

#[test]
fn the_largest_quants_do_not_overflow() {
    for width in [16, 64, 80, 128, 256] {
        let largest = largest_quant(width) as i16;
        for kernels in Kernels::available() {
            let (a, b) = (vec![largest; width], vec![-largest; width * TILE]);
            let [ones, zeros] = [[1.0; TILE], [0.0; TILE]];
            let mut scores = [0.0; TILE];
            let output = Output::Scores { rows: &ones, columns: &ones, biases: &zeros };
            kernels.fixed_matmul(Shape::new(&[0], width, TILE), &a, &b, output, &[], &mut scores);
            let product = f32::from(largest) * f32::from(largest) * width as f32;
            assert!(scores.iter().all(|score| (score / -product - 1.0).abs() < 1e-6), "{kernels:?} {width}");
        }
    }
    assert!(64.0 * ONE * LARGEST_VALUE < i32::MAX as f32);
}

#[test]
fn rows_in_fixed_point_are_within_half_a_step() {
    let mut random = Random::new(10);
    for kernels in Kernels::available() {
        for (n, factor) in [(1, 1.0), (15, 1e5), (64, 1.0), (80, 1e-3), (128, 1e-9), (64, 0.0)] {
            let values: Vec<f32> = (0..n).map(|_| random.float() * factor).collect();
            let mut quants = vec![0; n];
            let scale = kernels.to_fixed(&values, 5792.0, &mut quants);
            for (&quant, &value) in quants.iter().zip(&values) {
                assert!((f32::from(quant) * scale - value).abs() <= scale * 0.5001);
            }
        }
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 20];
            values[17] = strange;
            assert!(kernels.to_fixed(&values, 5792.0, &mut [0; 20]).is_nan());
        }
    }
}

#[test]
fn screening_hides_no_value() {
    let mut random = Random::new(9);
    for kernels in Kernels::available() {
        for lane in 0..TILE {
            let mut values: [f32; TILE] = std::array::from_fn(|_| random.float());
            let norms = [1.0; TILE];
            let mut low = 5.0;
            assert!(!kernels.screen(&values, &norms, 0.5, &mut low) && low == 5.0);
            values[lane] = 4.75;
            assert!(kernels.screen(&values, &norms, 0.5, &mut low) && low == 5.0);
            values[lane] = 6.0;
            assert!(kernels.screen(&values, &norms, 0.5, &mut low) && low == 5.5);
            // What is no number neither hides the others nor is left out.
            values[(lane + 1) % TILE] = f32::NAN;
            let mut low = f32::NEG_INFINITY;
            assert!(kernels.screen(&values, &norms, 0.5, &mut low) && low == 5.5);
            let mut low = 9.0;
            assert!(kernels.screen(&values, &norms, 0.5, &mut low) && low == 9.0);
        }
    }
}
