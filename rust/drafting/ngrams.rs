//! Where the n-grams of a growing history occurred: ids flow in, what followed an earlier occurrence flows out.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use xxhash_rust::xxh3::xxh3_64;

/// Which of several earlier occurrences decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// The latest.
    Last,
    /// The earliest.
    First,
    /// The latest of those that were followed by the id which followed most often; among equals the latest.
    MostFrequent,
}

/// What is known of one n-gram; positions are those of the id that followed it.
#[derive(Clone, Copy, Default)]
struct Occurrences {
    first: u32,
    last: u32,
    count: u32,
    best: u32,
    best_count: u32,
}

/// An index of all n-grams of a history, within a range of n. Each new id costs a few hash look-ups, however long the
/// history is.
pub struct NgramIndex {
    sizes: RangeInclusive<usize>,
    occurrence: Occurrence,
    min_hits: u32,
    ids: Vec<u32>,
    /// By size, smallest first; the keys are hashes of the n-grams.
    tables: Vec<HashMap<u64, Occurrences>>,
    /// How often an n-gram was followed by an id: hashes of both, one after the other. Empty unless needed.
    followed: HashMap<u64, u32>,
}

impl NgramIndex {
    /// An empty index of the n-grams of `sizes` (not empty, from 1 on); n-grams with fewer than `min_hits` earlier
    /// occurrences decide nothing.
    pub fn new(sizes: RangeInclusive<usize>, occurrence: Occurrence, min_hits: u32) -> Self {
        let tables = sizes.clone().map(|_| HashMap::new()).collect();
        Self { sizes, occurrence, min_hits, ids: Vec::new(), tables, followed: HashMap::new() }
    }

    /// The history.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.tables.iter_mut().for_each(HashMap::clear);
        self.followed.clear();
    }

    /// Appends ids to the history.
    pub fn extend(&mut self, new: &[u32]) {
        self.ids.reserve(new.len());
        for &id in new {
            self.index_end(id);
            self.ids.push(id);
        }
    }

    /// Notes that `next` follows the n-grams at the end.
    fn index_end(&mut self, next: u32) {
        let end = self.ids.len();
        for (n, table) in self.sizes.clone().zip(&mut self.tables) {
            let Some(start) = end.checked_sub(n) else { break };
            let key = xxh3_64(bytemuck::cast_slice(&self.ids[start..]));
            let end = end as u32;
            let entry = table.entry(key).or_insert(Occurrences { first: end, ..Occurrences::default() });
            entry.last = end;
            entry.count += 1;
            if self.occurrence == Occurrence::MostFrequent {
                let key = xxh3_64(bytemuck::bytes_of(&[key, u64::from(next)]));
                let count = self.followed.entry(key).or_insert(0);
                *count += 1;
                if *count >= entry.best_count {
                    (entry.best, entry.best_count) = (end, *count);
                }
            }
        }
    }

    /// Up to `k` ids that followed the longest n-gram which ends the history and has occurred before, and its n.
    pub fn propose(&self, k: usize) -> Option<(&[u32], usize)> {
        let end = self.ids.len();
        for (n, table) in self.sizes.clone().rev().zip(self.tables.iter().rev()) {
            let Some(start) = end.checked_sub(n) else { continue };
            let ngram = &self.ids[start..];
            let Some(found) = table.get(&xxh3_64(bytemuck::cast_slice(ngram))) else { continue };
            if found.count < self.min_hits {
                continue;
            }
            let from = match self.occurrence {
                Occurrence::Last => found.last,
                Occurrence::First => found.first,
                Occurrence::MostFrequent => found.best,
            } as usize;
            return Some((&self.ids[from..end.min(from.saturating_add(k))], n));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, word by word.
    fn brute_force(
        ids: &[u32],
        sizes: RangeInclusive<usize>,
        which: Occurrence,
        min_hits: usize,
    ) -> Option<(usize, usize)> {
        for n in sizes.rev().filter(|&n| n <= ids.len()) {
            let end = &ids[ids.len() - n..];
            let hits: Vec<usize> = (n..ids.len()).filter(|&stop| &ids[stop - n..stop] == end).collect();
            if hits.len() < min_hits.max(1) {
                continue;
            }
            let followers = |hit: usize| hits.iter().filter(|&&other| ids[other] == ids[hit]).count();
            let from = match which {
                Occurrence::Last => hits[hits.len() - 1],
                Occurrence::First => hits[0],
                Occurrence::MostFrequent => *hits.iter().max_by_key(|&&hit| (followers(hit), hit)).unwrap(),
            };
            return Some((from, n));
        }
        None
    }

    #[test]
    fn equals_a_search_by_the_definition() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for case in 0..200 {
            let sizes = [1..=1, 1..=3, 2..=4, 3..=8][case % 4].clone();
            let which = [Occurrence::Last, Occurrence::First, Occurrence::MostFrequent][case % 3];
            let min_hits = 1 + case % 2;
            let alphabet = 1 + random(3);
            let mut index = NgramIndex::new(sizes.clone(), which, min_hits as u32);
            for _ in 0..60 {
                let k = random(9) as usize;
                let expected = brute_force(index.ids(), sizes.clone(), which, min_hits)
                    .map(|(from, n)| (&index.ids()[from..index.ids().len().min(from + k)], n));
                assert_eq!(index.propose(k), expected, "{:?} {sizes:?} {which:?}", index.ids());
                index.extend(&[random(alphabet) as u32]);
            }
            index.clear();
            assert_eq!(index.propose(4), None);
        }
    }
}
