use super::*;

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32 % end
    }

    fn ids(&mut self, count: u32, alphabet: u32) -> Vec<u32> {
        (0..count).map(|_| self.below(alphabet)).collect()
    }
}

/// How often `string` occurs in `sequences`, and where the latest occurrence ends: sequence and place.
fn occurrences(sequences: &[Vec<u32>], string: &[u32]) -> (u32, (usize, usize)) {
    let mut found = (0, (0, 0));
    for (i, sequence) in sequences.iter().enumerate() {
        for (j, window) in sequence.windows(string.len()).enumerate() {
            if window == string {
                found = (found.0 + 1, (i, j + string.len()));
            }
        }
    }
    found
}

/// The guess by its definition: count, take the most frequent, of equals the latest, and so on.
fn follow(sequences: &[Vec<u32>], context: &[u32], own: bool, depth: usize, k: usize, bar: f32) -> Guess {
    let mut guess = Guess { matched: context.len(), ..Guess::default() };
    let mut string = context.to_vec();
    let mut total = occurrences(sequences, &string).0 - u32::from(own);
    let mut probability = 1.0;
    while guess.ids.len() < k && string.len() < depth {
        let next = (0..4).map(|id| {
            string.push(id);
            let found = occurrences(sequences, &string);
            string.pop();
            (found, id)
        });
        let ((count, _), id) = next.max().unwrap();
        if count == 0 {
            break;
        }
        probability *= count as f32 / (total as f32 + 1.0 / string.len() as f32);
        if probability < bar {
            break;
        }
        guess.score += probability;
        guess.ids.push(id);
        string.push(id);
        total = count;
    }
    guess
}

fn best(sequences: &[Vec<u32>], history: &[u32], own: bool, depth: usize, k: usize, bar: f32) -> Guess {
    // The longest context of the own past leaves room for one more id.
    let longest = history.len().min(if own { depth - 1 } else { depth });
    let mut best = Guess::default();
    for n in (1..=longest).rev() {
        let context = &history[history.len() - n..];
        if occurrences(sequences, context).0 > u32::from(own) {
            best = best.or(follow(sequences, context, own, depth, k, bar));
        }
    }
    best
}

#[test]
fn guesses_equal_those_by_the_definition() {
    let mut random = Random(7);
    for case in 0..60 {
        let depth = 2 + random.below(9) as usize;
        let alphabet = 1 + case % 4;
        let corpus = Arc::new(RwLock::new(SuffixTree::new(depth)));
        let mut index = SuffixIndex::new(depth, Some(corpus.clone()));
        let mut sequences: Vec<Vec<u32>> = Vec::new();
        let mut history = Vec::new();
        for _ in 0..30 {
            if random.below(3) == 0 {
                let count = random.below(12);
                let ids = random.ids(count, alphabet);
                let mut corpus = corpus.write().unwrap();
                ids.iter().for_each(|&id| corpus.push(id));
                corpus.end_sequence();
                sequences.push(ids);
            }
            if random.below(20) == 0 {
                history.clear();
                index.clear();
            }
            let count = random.below(4);
            let ids = random.ids(count, alphabet);
            index.extend(&ids);
            history.extend(ids);
            let k = random.below(8) as usize;
            let bar = [0.0, 0.2, 0.6][random.below(3) as usize];
            let expected = best(std::slice::from_ref(&history), &history, true, depth, k, bar)
                .or(best(&sequences, &history, false, depth, k, bar));
            assert_eq!(index.propose(k, bar), expected, "{history:?} in {sequences:?}, depth {depth}, k {k}");
        }
    }
}

#[test]
fn every_string_is_counted() {
    let mut random = Random(3);
    let mut tree = SuffixTree::new(6);
    let mut sequences = Vec::new();
    for _ in 0..12 {
        let count = 1 + random.below(40);
        let ids = random.ids(count, 3);
        ids.iter().for_each(|&id| tree.push(id));
        tree.end_sequence();
        sequences.push(ids);
    }
    for _ in 0..500 {
        let count = 1 + random.below(6);
        let string = random.ids(count, 3);
        let mut cursor = Cursor::default();
        string.iter().for_each(|&id| cursor.advance(&tree, id));
        let whole = cursor.places.front().filter(|place| place.matched == string.len());
        let count = whole.map_or(0, |place| tree.nodes[place.node as usize].count);
        assert_eq!(count, occurrences(&sequences, &string).0, "{string:?}");
    }
}

#[test]
fn a_periodic_history_is_continued_to_the_end() {
    let mut index = SuffixIndex::new(32, None);
    index.extend(&[1, 2, 3].repeat(40));
    let guess = index.propose(16, 0.1);
    assert_eq!(guess.ids, [1, 2, 3].repeat(6)[..16]);
    assert!(guess.score > 14.0, "{guess:?}");
}

#[test]
fn memory_grows_with_the_text_only() {
    let mut tree = SuffixTree::new(48);
    let mut random = Random(1);
    for id in random.ids(20_000, 500) {
        tree.push(id);
    }
    assert!(tree.nodes.len() <= 2 * tree.text.len() + 48, "{} nodes", tree.nodes.len());
}
