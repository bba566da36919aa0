use super::*;

/// Numbers of about the spread of real logits, in steps coarse enough that equal ones occur.
fn logits(n: usize, seed: u64) -> Vec<f32> {
    let noise = Noise::new(seed, 0);
    let normal = |i: u32| (0..12).map(|k| noise.uniform(i * 12 + k)).sum::<f64>() - 6.0;
    (0..n as u32).map(|i| (normal(i) * 24.0).round() as f32 / 8.0).collect()
}

/// Ids from the most to the least likely, by a full sort.
fn ranked(row: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..row.len() as u32).filter(|&i| !row[i as usize].is_nan()).collect();
    ids.sort_by(|&a, &b| row[b as usize].partial_cmp(&row[a as usize]).unwrap().then(a.cmp(&b)));
    ids
}

/// What the filters leave, by their definitions, and the probabilities in f64.
fn filtered(row: &[f32], filters: &Filters) -> Vec<(u32, f64)> {
    let max = f64::from(row[ranked(row)[0] as usize]);
    let weight = |i: u32| ((f64::from(row[i as usize]) - max) / f64::from(filters.temperature)).exp();
    let mut kept: Vec<(u32, f64)> = ranked(row).into_iter().map(|i| (i, weight(i))).collect();
    if filters.top_k > 0 {
        kept.truncate(filters.top_k);
    }
    let total: f64 = kept.iter().map(|(_, w)| w).sum();
    let mut reached = 0.0;
    let mut count = 0;
    while count < kept.len() && (count == 0 || reached < filters.top_p * total) {
        reached += kept[count].1;
        count += 1;
    }
    if filters.top_p < 1.0 {
        kept.truncate(count);
    }
    let best = kept[0].1;
    kept.retain(|(_, w)| *w >= f64::from(filters.min_p) * best);
    let total: f64 = kept.iter().map(|(_, w)| w).sum();
    kept.iter().map(|&(i, w)| (i, w / total)).collect()
}

const ALL: Filters = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

#[test]
fn exp_is_within_two_ulp() {
    for i in -86_999..=0 {
        let x = i as f32 * 1e-3;
        let exact = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
        assert!((f64::from(exp(x)) - exact).abs() <= 2.0 * ulp, "exp({x}) = {}, not {exact}", exp(x));
    }
    assert_eq!([exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY), exp(f32::NAN)], [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn argmax_is_the_first_of_the_largest() {
    for n in [1, 2, 15, 16, 17, 511, 512, 513, 2000] {
        for seed in 0..20 {
            let mut row = logits(n, seed);
            row[n / 2] = f32::NAN;
            assert_eq!(argmax(&row), ranked(&row).first().copied(), "{n} {seed}");
        }
    }
    assert_eq!(argmax(&[-0.0, 0.0]), Some(0));
    assert_eq!(argmax(&[f32::NAN, 1.0, f32::INFINITY, f32::INFINITY]), Some(2));
    assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), None);
    assert_eq!(argmax(&[]), None);
}

#[test]
fn the_filters_leave_what_they_are_defined_to_leave() {
    let mut scratch = Scratch::default();
    let mut narrowed = 0;
    for (n, seeds) in [(2, 6), (5, 6), (64, 4), (700, 1)] {
        for seed in 0..seeds {
            let row = logits(n, seed);
            for temperature in [0.3, 1.0, 2.5] {
                for (top_k, top_p, min_p) in [
                    (0, 1.0, 0.0),
                    (3, 1.0, 0.0),
                    (n, 1.0, 0.0),
                    (n + 9, 0.9, 0.0),
                    (0, 0.95, 0.0),
                    (0, 0.1, 0.0),
                    (0, 1.0, 0.07),
                    (0, 1.0, 1.0),
                    (40, 0.8, 0.0),
                    (7, 0.99, 0.3),
                    (0, 1e-9, 0.0),
                ] {
                    let filters = Filters { temperature, top_k, top_p, min_p };
                    let expected: Vec<u32> = filtered(&row, &filters).iter().map(|&(i, _)| i).collect();
                    narrowed += usize::from(1 < expected.len() && expected.len() < n);
                    for favourite in 0..n as u32 {
                        // With by far the best noise a token wins exactly if it is left.
                        let uniform = |i| if i == favourite { 1e-300 } else { 0.999 };
                        let drawn = scratch.draw_by(&row, &filters, uniform).unwrap();
                        assert_eq!(drawn == favourite, expected.contains(&favourite), "{filters:?} {favourite}");
                        assert!(expected.contains(&drawn));
                    }
                }
            }
        }
    }
    assert!(narrowed > 100);
}

#[test]
fn the_share_of_all_noises_that_a_token_wins_is_its_probability() {
    // Midpoints of a grid stand for all uniforms. The surfaces between the winners cross at most one cell in `n` for
    // each pair of tokens, and a cell that is not crossed counts exactly.
    let mut scratch = Scratch::default();
    let n = 120;
    let middle = |i: usize| (i as f64 + 0.5) / n as f64;
    for (row, filters) in [
        ([0.0, -0.5, -2.0], ALL),
        ([1.0, 1.0, 1.0], ALL),
        ([3.0, 0.0, 2.5], Filters { temperature: 2.0, ..ALL }),
        ([3.0, 0.0, 2.5], Filters { top_k: 2, ..ALL }),
        ([0.1, 0.0, -3.0], Filters { top_p: 0.9, ..ALL }),
        ([0.1, 0.0, -3.0], Filters { min_p: 0.5, ..ALL }),
    ] {
        let mut wins = [0.0; 3];
        for cell in 0..n * n * n {
            let noise = [middle(cell % n), middle(cell / n % n), middle(cell / n / n)];
            let winner = scratch.draw_by(&row, &filters, |token| noise[token as usize]).unwrap();
            wins[winner as usize] += 1.0 / (n * n * n) as f64;
        }
        let mut expected = [0.0; 3];
        filtered(&row, &filters).iter().for_each(|&(token, p)| expected[token as usize] = p);
        for token in 0..3 {
            assert!((wins[token] - expected[token]).abs() < 3.0 / n as f64, "{row:?} {wins:?} {expected:?}");
        }
    }
}

#[test]
fn a_draw_is_the_argmax_of_log_probability_plus_gumbel() {
    let mut scratch = Scratch::default();
    for seed in 0..300 {
        let row = logits(500, seed);
        let filters = Filters { temperature: 0.8, top_k: 0, top_p: [1.0, 0.95][seed as usize % 2], min_p: 0.0 };
        let noise = Noise::new(seed, 11);
        let score = |&(i, p): &(u32, f64)| p.ln() - (-(-noise.uniform(i)).ln_1p()).ln();
        let expected = filtered(&row, &filters).into_iter().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap();
        assert_eq!(scratch.draw(&row, &filters, noise), Some(expected.0));
    }
}

#[test]
fn frequencies_of_draws_pass_a_chi_square_test() {
    let row = [1.0, 0.0, -1.0, 2.0, 0.5, -0.5, 1.5, -2.0];
    let filters = Filters { temperature: 1.3, top_k: 7, top_p: 0.97, min_p: 0.0 };
    let mut counts = [0u32; 8];
    let mut scratch = Scratch::default();
    let draws = 200_000;
    for position in 0..draws {
        counts[scratch.draw(&row, &filters, Noise::new(42, position)).unwrap() as usize] += 1;
    }
    let expected = filtered(&row, &filters);
    let statistic: f64 = expected
        .iter()
        .map(|&(token, p)| (f64::from(counts[token as usize]) - p * draws as f64).powi(2) / (p * draws as f64))
        .sum();
    assert_eq!(counts.iter().filter(|&&n| n > 0).count(), expected.len());
    // The 99.9 % point of chi-square with 6 degrees of freedom is 22.5.
    assert!(expected.len() == 7 && statistic < 22.5, "{statistic} {counts:?}");
}

#[test]
fn odd_rows_are_drawn_from_without_surprise() {
    let mut scratch = Scratch::default();
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for filters in [ALL, Filters { top_k: 2, ..ALL }, Filters { top_p: 0.5, ..ALL }, Filters { min_p: 0.5, ..ALL }] {
        for temperature in [0.0, 1e-30, 1.0, f32::MAX, inf] {
            let filters = Filters { temperature, ..filters };
            for position in 0..50 {
                let mut draw = |row: &[f32]| scratch.draw(row, &filters, Noise::new(1, position));
                assert_eq!(draw(&[nan, 3.0, -inf, nan]), Some(1));
                assert_eq!(draw(&[0.0, inf, 5.0]), Some(1));
                assert_eq!(draw(&[nan, -inf]), None);
                assert_eq!(draw(&[]), None);
                assert!(draw(&[f32::MAX, f32::MIN]).is_some());
            }
        }
    }
}

#[test]
fn log_probabilities_are_those_of_the_softmax() {
    let mut scratch = Scratch::default();
    for n in [1, 5, 64, 3000] {
        let row = logits(n, 3);
        let exact: f64 = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        for count in [0, 1, 5, n, n + 5] {
            let token = n as u32 / 2;
            let (chosen, top) = scratch.log_probabilities(&row, token, count).unwrap();
            assert!((chosen - (f64::from(row[token as usize]) - exact)).abs() < 1e-6);
            let ids: Vec<u32> = top.iter().map(|&(i, _)| i).collect();
            assert_eq!(ids, ranked(&row)[..count.min(n)]);
            for (i, value) in top {
                assert!((value - (f64::from(row[i as usize]) - exact)).abs() < 1e-6);
            }
        }
        assert!(scratch.log_probabilities(&row, n as u32, 1).is_none());
    }
    let (chosen, top) = scratch.log_probabilities(&[f32::NAN, 2.0, f32::NEG_INFINITY], 0, 3).unwrap();
    assert_eq!((chosen, top), (f64::NEG_INFINITY, vec![(1, 0.0), (2, f64::NEG_INFINITY)]));
}
