//! What a unit of queries attends to, where that is not everything.

/// Which queries of a unit attend to which blocks.
#[derive(Default)]
pub struct Kept {
    queries: usize,
    /// `[blocks][queries]`.
    flags: Vec<bool>,
    /// What a block's best key must score for a query to keep the block once it is scored; empty if anything will do.
    pub(super) least_scores: Vec<f32>,
}

impl Kept {
    /// Starts over: no query attends to any of `blocks` blocks.
    pub fn clear(&mut self, blocks: usize, queries: usize) {
        self.queries = queries;
        self.flags.clear();
        self.flags.resize(blocks * queries, false);
        self.least_scores.clear();
    }

    /// Lets every query give up the blocks, but for the last, whose keys all score less than its `least_scores`.
    pub fn judge(&mut self, least_scores: impl Iterator<Item = f32>) {
        self.least_scores.extend(least_scores);
    }

    /// Whether all queries attend to `block`, whatever they score.
    pub(super) fn is_whole(&self, block: usize) -> bool {
        !self.is_judged(block) && !self.block(block).contains(&false)
    }

    /// Whether queries give up `block` where their scores are too low.
    pub(super) fn is_judged(&self, block: usize) -> bool {
        let own = (block + 1) * self.queries == self.flags.len();
        !own && !self.least_scores.is_empty()
    }

    /// Lists the queries that attend to `block`, without a branch, which could not be foreseen.
    pub(super) fn list(&self, block: usize, queries: &mut Vec<usize>) {
        queries.resize(self.queries, 0);
        let mut count = 0;
        for (query, &kept) in self.block(block).iter().enumerate() {
            queries[count] = query;
            count += usize::from(kept);
        }
        queries.truncate(count);
    }

    /// The queries that attend to `block` are now only these.
    pub(super) fn set(&mut self, block: usize, queries: &[usize]) {
        let flags = self.block_mut(block);
        flags.fill(false);
        queries.iter().for_each(|&query| flags[query] = true);
    }

    /// Which queries attend to `block`.
    pub fn block(&self, block: usize) -> &[bool] {
        &self.flags[block * self.queries..(block + 1) * self.queries]
    }

    /// Which queries attend to `block`, to be changed.
    pub fn block_mut(&mut self, block: usize) -> &mut [bool] {
        &mut self.flags[block * self.queries..(block + 1) * self.queries]
    }
}
