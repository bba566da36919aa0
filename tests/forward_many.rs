//! One forward of several sessions: sparse prompts beside exact rows, and all or nothing.

mod made;

use _specrs::attention::patterns::{Pattern, PromptAttention};
use _specrs::error::Error;
use _specrs::forward::task::{Input, Outcome, Wanted};
use _specrs::gguf::file::GgufFile;
use _specrs::model::{Model, Options};
use _specrs::session::Session;
use candle_core::quantized::GgmlDType;
use made::{make, tokens, SMALL};
use std::sync::Arc;

fn load(device: &str) -> Arc<Model> {
    let made = make(&SMALL, GgmlDType::Q4_0, &[], None);
    let file = GgufFile::open(made.path()).unwrap();
    let options = Options { n_ctx: Some(1024), threads: None, device };
    Arc::new(Model::load(options.check(&file).unwrap(), &mut || false).unwrap())
}

/// Sessions that hold so many tokens.
fn filled(model: &Arc<Model>, lengths: &[usize]) -> Vec<Session> {
    let session = |&length: &usize| {
        let mut session = Session::new(model.clone());
        if length > 0 {
            session.forward(&tokens(SMALL.n_vocab, length), 1, &mut || false).unwrap();
        }
        session
    };
    lengths.iter().map(session).collect()
}

fn logits<'a>(sequence: &'a mut Session, tokens: &'static [u32], positions: usize) -> Input<'a, Session> {
    Input { sequence, tokens, wanted: Wanted::Logits(positions), attention: None }
}

/// The session goes on like one that was never part of the call.
fn is_untouched(session: &mut Session, len: usize) {
    assert_eq!(session.tokens(), tokens(SMALL.n_vocab, len));
    let mut other = filled(session.model(), &[len]).remove(0);
    let [found, wanted] = [session, &mut other].map(|session| session.forward(&[3, 4], 2, &mut || false).unwrap());
    assert_eq!(found, wanted);
}

#[test]
fn a_sparse_prompt_shares_passes_with_exact_rows() {
    let model = load("cpu");
    let prompt = tokens(SMALL.n_vocab, 600);
    let pattern = Pattern::DenseTail(64, Box::new(Pattern::Window { sink: 1, window: 1, log: false }));
    let attention = PromptAttention { pattern: pattern.into(), end: 640, counts: None };
    let mut alone = filled(&model, &[40, 90, 5]);
    let mut together = filled(&model, &[40, 90, 5]);
    let before = model.engine().passes().all;
    let [sparse, chosen, exact] = &mut together[..] else { unreachable!() };
    let mut inputs = [
        Input { sequence: sparse, tokens: &prompt, wanted: Wanted::Logits(2), attention: Some(&attention) },
        Input { sequence: chosen, tokens: &[7], wanted: Wanted::Choices(1), attention: None },
        logits(exact, &[8, 9], 2),
    ];
    let found = Session::forward_many(&mut inputs, &mut || false).unwrap();
    assert_eq!(model.engine().passes().all - before, 3, "603 rows");

    let mut poll = || false;
    let wanted = [
        Outcome::Logits(alone[0].prefill(&prompt, 2, Some(&attention), &mut |_| true, &mut poll).unwrap()),
        Outcome::Choices(alone[1].choose(&[7], 1, &mut poll).unwrap()),
        Outcome::Logits(alone[2].forward(&[8, 9], 2, &mut poll).unwrap()),
    ];
    assert_eq!(found, wanted);
    let mut exact = filled(&model, &[40]);
    assert_ne!(found[0], Outcome::Logits(exact[0].forward(&prompt, 2, &mut poll).unwrap()), "it is sparse");
    for (one, other) in together.iter_mut().zip(&mut alone) {
        assert_eq!(one.spans(), other.spans());
        assert_eq!(one.tokens(), other.tokens());
        assert_eq!(one.forward(&[1], 1, &mut poll).unwrap(), other.forward(&[1], 1, &mut poll).unwrap());
    }
    // What attends to less is told, but for the exact tail, which begins with a block.
    let [span] = together[0].spans() else { panic!("one span, not {:?}", together[0].spans()) };
    assert_eq!(span.positions, 40..576);
    assert!(together[1].spans().is_empty() && together[2].spans().is_empty());
}

#[test]
fn what_cannot_be_processed_is_named_and_changes_nothing() {
    let (model, other) = (load("cpu"), load("cpu"));
    let mut foreign = filled(&other, &[4]);
    let mut sessions = filled(&model, &[70, 1024, 3]);
    let [first, full, third] = &mut sessions[..] else { unreachable!() };
    let refuse = |inputs: &mut [Input<'_, Session>]| {
        let error = Session::forward_many(inputs, &mut || false).unwrap_err();
        assert!(matches!(error, Error::Input { .. }), "{error:?}");
        error.to_string()
    };
    let message = refuse(&mut [logits(first, &[1], 1), logits(&mut foreign[0], &[1], 1)]);
    assert!(message.starts_with("inputs[1]: the session is of another model"), "{message}");
    let message = refuse(&mut [logits(first, &[1], 1), logits(third, &[2], 0), logits(full, &[1], 0)]);
    assert!(message.starts_with("inputs[2]: 1025 positions are needed"), "{message}");
    for (tokens, positions, what) in [
        (&[][..], 0, "there are no tokens"),
        (&[1, 2], 3, "logits of the last 3 positions are wanted; with 2 tokens 0 to 2 are possible"),
        (&[1, 96], 1, "token id 96 at index 1"),
    ] {
        let message = refuse(&mut [logits(first, &[1], 1), logits(third, tokens, positions)]);
        assert!(message.starts_with(&format!("inputs[1]: {what}")), "{message}");
    }
    assert!(Session::forward_many(&mut [], &mut || false).unwrap().is_empty());
    is_untouched(first, 70);
    is_untouched(third, 3);
    is_untouched(&mut foreign[0], 4);
}

#[test]
fn who_stops_a_forward_changes_nothing() {
    for device in ["cpu", "candle-cpu"] {
        let model = load(device);
        let mut sessions = filled(&model, &[70, 3]);
        // At once, within the first pass, in the last one.
        for calls in [0, 1, 3] {
            let mut asked = 0;
            let mut poll = || {
                asked += 1;
                asked > calls
            };
            let [first, second] = &mut sessions[..] else { unreachable!() };
            let prompt = tokens(SMALL.n_vocab, 400);
            let mut inputs = [
                logits(first, &[5], 1),
                Input { sequence: second, tokens: &prompt, wanted: Wanted::Choices(9), attention: None },
            ];
            let error = Session::forward_many(&mut inputs, &mut poll).unwrap_err();
            assert!(matches!(error, Error::Interrupted), "{device}: {error}");
        }
        is_untouched(&mut sessions[0], 70);
        is_untouched(&mut sessions[1], 3);
    }
}

#[test]
fn candle_refuses_what_it_cannot_run() {
    let model = load("candle-cpu");
    let mut sessions = filled(&model, &[2, 0]);
    let pattern = Pattern::auto();
    let attention = PromptAttention { pattern: pattern.into(), end: 3, counts: None };
    let [first, second] = &mut sessions[..] else { unreachable!() };
    let mut inputs = [
        logits(first, &[1], 1),
        Input { sequence: second, tokens: &[1, 2, 3], wanted: Wanted::Logits(0), attention: Some(&attention) },
    ];
    let message = Session::forward_many(&mut inputs, &mut || false).unwrap_err().to_string();
    assert!(message.starts_with("inputs[1]: attention="), "{message}");
    is_untouched(&mut sessions[0], 2);
}
