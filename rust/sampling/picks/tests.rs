use super::*;

fn settings() -> Settings {
    Settings {
        seed: 5,
        filters: None,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        logit_bias: Vec::new(),
    }
}

fn drawing() -> Settings {
    let filters = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
    Settings { filters: Some(filters), ..settings() }
}

fn adjusted(settings: Settings, prompt_tokens: usize, history: &[u32], row: &[f32]) -> Vec<f32> {
    let mut sampler = Sampler::new(settings, prompt_tokens);
    sampler.extend(history);
    let mut row = row.to_vec();
    sampler.adjust(&mut row);
    row
}

#[test]
fn each_penalty_does_what_it_says() {
    // Tokens 0 and 1 stand in the prompt, 1 and 2 were generated, 2 twice.
    let (history, row) = ([0, 1, 1, 2, 2], [4.0, -4.0, 4.0, 4.0]);
    let repetition = Settings { repetition_penalty: 2.0, ..settings() };
    assert_eq!(adjusted(repetition, 2, &history, &row), [2.0, -8.0, 2.0, 4.0]);
    let frequency = Settings { frequency_penalty: 0.5, ..settings() };
    assert_eq!(adjusted(frequency, 2, &history, &row), [4.0, -4.5, 3.0, 4.0]);
    let presence = Settings { presence_penalty: 0.5, ..settings() };
    assert_eq!(adjusted(presence, 2, &history, &row), [4.0, -4.5, 3.5, 4.0]);
    let biased = Settings { logit_bias: vec![(3, -1.5), (0, f32::NEG_INFINITY), (9, 1.0)], ..settings() };
    assert_eq!(adjusted(biased, 2, &history, &row), [f32::NEG_INFINITY, -4.0, 4.0, 2.5]);
    let all = Settings { frequency_penalty: 0.5, presence_penalty: 0.25, repetition_penalty: 2.0, ..settings() };
    assert_eq!(adjusted(all, 2, &history, &row), [2.0, -8.75, 0.75, 4.0]);
}

#[test]
fn choices_enter_the_history() {
    let mut sampler = Sampler::new(Settings { presence_penalty: 1.5, ..settings() }, 0);
    let picks: Vec<u32> = (0..3).map(|_| sampler.pick(&[2.0, 1.0, 0.9]).unwrap()).collect();
    assert_eq!((picks, sampler.position()), (vec![0, 1, 2], 3));
}

#[test]
fn a_cut_history_is_as_if_it_had_never_been_longer() {
    let penalised = Settings { repetition_penalty: 1.3, frequency_penalty: 0.7, presence_penalty: -0.2, ..drawing() };
    let row: Vec<f32> = (0..9).map(|i| (i as f32 * 1.7).sin() * 2.0).collect();
    let history = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5];
    for prompt_tokens in [0, 4, 20] {
        for length in 0..=history.len() {
            let mut cut = Sampler::new(penalised.clone(), prompt_tokens);
            cut.extend(&history);
            for _ in 0..4 {
                cut.pick(&row).unwrap();
            }
            cut.truncate(length).unwrap();
            let mut fresh = Sampler::new(penalised.clone(), prompt_tokens);
            fresh.extend(&history[..length]);
            for _ in 0..6 {
                let (mut a, mut b) = (row.clone(), row.clone());
                cut.adjust(&mut a);
                fresh.adjust(&mut b);
                assert_eq!(a, b);
                assert_eq!(cut.pick(&row).unwrap(), fresh.pick(&row).unwrap());
            }
        }
    }
}

#[test]
fn a_draw_depends_on_seed_position_and_nothing_else() {
    let row = [0.0; 50];
    let picks = |seed, history: &[u32]| {
        let mut sampler = Sampler::new(Settings { seed, ..drawing() }, 0);
        sampler.extend(history);
        [(); 8].map(|()| sampler.pick(&row).unwrap())
    };
    assert_eq!(picks(1, &[7, 8]), picks(1, &[9, 9]));
    assert_ne!(picks(1, &[7, 8]), picks(2, &[7, 8]));
    assert_ne!(picks(1, &[7, 8]), picks(1, &[7]));
    assert_eq!(picks(1, &[7])[1..], picks(1, &[7, 8])[..7]);
}

#[test]
fn impossible_rows_and_cuts_are_errors_and_change_nothing() {
    for settings in [settings(), drawing()] {
        let mut sampler = Sampler::new(settings, 0);
        sampler.extend(&[1, 2]);
        let error = sampler.pick(&[f32::NAN, f32::NEG_INFINITY]).unwrap_err().to_string();
        assert!(error.contains("position 2") && error.contains("every logit is -inf or NaN"), "{error}");
        assert!(sampler.truncate(3).is_err());
        assert!(sampler.log_probabilities(&[1.0], 1, 0).is_err());
        assert_eq!(sampler.position(), 2);
    }
}
