//! Byte-pair merging: join the best pair of neighbours again and again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A part of a text that is one token, or not yet any.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its first byte.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
    /// Its token.
    pub id: Option<u32>,
}

/// A pair that can be joined: the lowest rank first, of equals the one furthest left.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: usize,
    right: usize,
    /// Bytes of both; what no longer fits is out of date.
    len: usize,
    id: u32,
}

const NONE: usize = usize::MAX;

/// Merge `parts`, which follow each other, until `join` knows no pair of neighbours any more.
///
/// `join` answers for two neighbours which token they make and at which rank; lower ranks go first. The time is
/// proportional to n log n for n parts.
pub fn merge(mut parts: Vec<Part>, join: impl Fn(Part, Part) -> Option<(u32, u32)>) -> Vec<Part> {
    let count = parts.len();
    // A doubly linked list over the parts; a part that was joined to the one before it is empty.
    let mut previous: Vec<usize> = (0..count).map(|i| i.wrapping_sub(1)).collect();
    let mut next: Vec<usize> = (1..=count).collect();
    if let Some(last) = next.last_mut() {
        *last = NONE;
    }
    let candidate = |parts: &[Part], left: usize, right: usize| {
        let (rank, id) = join(parts[left], parts[right])?;
        let len = parts[right].end - parts[left].start;
        Some(Reverse(Candidate { rank, left, right, len, id }))
    };
    let mut queue: BinaryHeap<_> = (1..count).filter_map(|right| candidate(&parts, right - 1, right)).collect();
    while let Some(Reverse(best)) = queue.pop() {
        let Candidate { left, right, .. } = best;
        let gone = |part: Part| part.start == part.end;
        // Parts only grow to the right, so a pair is the one that was queued if both live and the length is the same.
        if gone(parts[left]) || gone(parts[right]) || parts[right].end - parts[left].start != best.len {
            continue;
        }
        parts[left].end = parts[right].end;
        parts[left].id = Some(best.id);
        parts[right].start = parts[right].end;
        let after = next[right];
        next[left] = after;
        if after != NONE {
            previous[after] = left;
            queue.extend(candidate(&parts, left, after));
        }
        if previous[left] != NONE {
            queue.extend(candidate(&parts, previous[left], left));
        }
    }
    parts.retain(|part| part.start < part.end);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The same by searching all pairs again after each step.
    fn slow(mut parts: Vec<Part>, join: impl Fn(Part, Part) -> Option<(u32, u32)>) -> Vec<Part> {
        loop {
            let pairs = parts.windows(2).enumerate();
            let joined = pairs.filter_map(|(i, pair)| Some((join(pair[0], pair[1])?, i)));
            let Some(((_, id), i)) = joined.min_by_key(|&((rank, _), i)| (rank, i)) else {
                return parts;
            };
            parts[i].end = parts[i + 1].end;
            parts[i].id = Some(id);
            parts.remove(i + 1);
        }
    }

    #[test]
    fn agrees_with_the_slow_way() {
        // Words over two letters with ranks in a scrambled order, so that neighbours compete all the time.
        let words = ["ab", "ba", "aa", "aba", "bab", "abab", "aab", "bb", "baab", "aaaa"];
        let ranks: HashMap<&str, u32> = words.into_iter().zip([3, 3, 5, 1, 2, 9, 0, 7, 4, 3]).collect();
        let mut state = 1u64;
        for length in 0..300 {
            let text: String = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if state >> 63 == 0 {
                        'a'
                    } else {
                        'b'
                    }
                })
                .collect();
            let parts: Vec<_> = (0..text.len()).map(|start| Part { start, end: start + 1, id: None }).collect();
            let join = |left: Part, right: Part| {
                let word = &text[left.start..right.end];
                ranks.get(word).map(|&rank| (rank, word.len() as u32))
            };
            let ends = |parts: Vec<Part>| parts.iter().map(|part| part.end).collect::<Vec<_>>();
            assert_eq!(ends(merge(parts.clone(), join)), ends(slow(parts, join)), "{text}");
        }
    }
}
