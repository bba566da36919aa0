//! Which rows of a pass go to which experts.
//!
//! A row's experts follow from its own logits alone. The rows of an expert stand together, each in a slot, so that the
//! weights of the expert are read once for all of them; what its experts give a row is summed up in the order of their
//! logits, whatever else is in the pass.

use crate::arch::config::Experts;
use std::ops::Range;

/// An expert that a row uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pick {
    pub(super) expert: usize,
    pub(super) slot: usize,
    pub(super) weight: f32,
}

/// The rows of an expert.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    pub(super) expert: usize,
    /// As many as there are rows; the first is a multiple of the alignment.
    pub(super) slots: Range<usize>,
}

/// Which rows go to which experts.
#[derive(Default)]
pub(super) struct Routes {
    used: usize,
    /// The experts of every row, `[rows][used]`, the highest logit first.
    picks: Vec<Pick>,
    /// The experts that have rows.
    groups: Vec<Group>,
    /// The row of every slot, if it has one.
    rows: Vec<Option<usize>>,
    /// Of every expert the next slot, or how many rows it has.
    next: Vec<usize>,
    /// Of a row the best experts so far.
    best: Vec<(f32, usize)>,
}

/// More slots than `rows` rows cannot take if groups begin at multiples of `aligned`, and a multiple of that.
pub(super) fn slots(rows: usize, Experts { count, used, .. }: Experts, aligned: usize) -> usize {
    let taken = rows * used;
    (taken + count.min(taken) * (aligned - 1)).next_multiple_of(aligned)
}

impl Routes {
    /// Finds the experts of rows with these `logits`, `[rows][count]`.
    pub(super) fn find(&mut self, logits: &[f32], Experts { count, used, .. }: Experts, aligned: usize) {
        self.used = used;
        self.picks.clear();
        self.next.clear();
        self.next.resize(count, 0);
        for logits in logits.chunks_exact(count) {
            self.rank(logits);
            for pick in &self.picks[self.picks.len() - used..] {
                self.next[pick.expert] += 1;
            }
        }
        self.groups.clear();
        let mut start = 0;
        for (expert, next) in self.next.iter_mut().enumerate().filter(|(_, rows)| **rows > 0) {
            let slots = start..start + std::mem::replace(next, start);
            start = slots.end.next_multiple_of(aligned);
            self.groups.push(Group { expert, slots });
        }
        self.rows.clear();
        self.rows.resize(start, None);
        for (i, pick) in self.picks.iter_mut().enumerate() {
            pick.slot = self.next[pick.expert];
            self.next[pick.expert] += 1;
            self.rows[pick.slot] = Some(i / used);
        }
    }

    /// Adds the experts of a row: those with the highest logits, of equal ones the first, NaN last.
    fn rank(&mut self, logits: &[f32]) {
        let is_above = |a: f32, b: f32| a > b || b.is_nan() && !a.is_nan();
        self.best.clear();
        for (expert, &logit) in logits.iter().enumerate() {
            if self.best.len() == self.used {
                if !is_above(logit, self.best[self.used - 1].0) {
                    continue;
                }
                self.best.pop();
            }
            let at = self.best.iter().position(|&(other, _)| is_above(logit, other)).unwrap_or(self.best.len());
            self.best.insert(at, (logit, expert));
        }
        // In f64, and so the same with every library that is exact to a few last places.
        let highest = f64::from(self.best[0].0);
        let power = |logit: f32| (f64::from(logit) - highest).exp();
        let sum: f64 = self.best.iter().map(|&(logit, _)| power(logit)).sum();
        let picks =
            self.best.iter().map(|&(logit, expert)| Pick { expert, slot: 0, weight: (power(logit) / sum) as f32 });
        self.picks.extend(picks);
    }

    /// The experts that have rows, in order.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Slots up to the last that has a row, and its neighbours.
    pub(super) fn slots(&self) -> usize {
        self.rows.len()
    }

    /// Those of some slots that have a row, with it.
    pub(super) fn filled(&self, slots: Range<usize>) -> impl Iterator<Item = (usize, usize)> + '_ {
        let slots = slots.start.min(self.rows.len())..slots.end.min(self.rows.len());
        slots.filter_map(|slot| self.rows[slot].map(|row| (slot, row)))
    }

    /// The experts of a row, the highest logit first.
    pub(super) fn of(&self, row: usize) -> &[Pick] {
        &self.picks[row * self.used..(row + 1) * self.used]
    }
}

#[cfg(test)]
mod tests;
