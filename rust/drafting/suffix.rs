//! A tree of everything that was said so far, to look up how often what followed what: ids flow in, the likeliest
//! continuation of a context flows out.
//!
//! It is the suffix tree of SuffixDecoding (Oliaro et al., 2024): a path from the root spells a string of ids that
//! occurred, each node knows how often, and strings end at a fixed depth, which bounds the cost of an id. Edges carry
//! ranges of the text, so nodes exist only where occurrences part or end.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

type NodeId = u32;
const ROOT: NodeId = 0;

/// A node, and the edge that leads to it.
#[derive(Clone, Copy, Default)]
struct Node {
    /// The edge spells `text[start..start + len]`.
    start: u32,
    len: u32,
    /// How many occurrences came here.
    count: u32,
    children: u32,
    /// The child with the highest count, among equals the latest to reach it; ROOT if there is none.
    best: NodeId,
}

/// A suffix tree over sequences of ids, bounded in depth.
pub struct SuffixTree {
    depth: usize,
    text: Vec<u32>,
    nodes: Vec<Node>,
    /// By parent and first id of the edge.
    children: HashMap<(NodeId, u32), NodeId>,
    /// Where each suffix of the current sequence ends, longest first, none deeper than `depth`; all are nodes.
    ends: VecDeque<NodeId>,
}

/// A guess and what speaks for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guess {
    /// The ids.
    pub ids: Vec<u32>,
    /// How many of them are expected to be right.
    pub score: f32,
    /// Length of the context that led to it.
    pub matched: usize,
}

impl Guess {
    /// The better of two; of equals `self`.
    pub fn or(self, other: Self) -> Self {
        if other.score > self.score {
            other
        } else {
            self
        }
    }
}

impl SuffixTree {
    /// An empty tree of strings up to `depth` (at least 1) ids.
    pub fn new(depth: usize) -> Self {
        let nodes = vec![Node::default()];
        Self { depth, text: Vec::new(), nodes, children: HashMap::new(), ends: VecDeque::new() }
    }

    /// All ids, one sequence after the other.
    pub fn text(&self) -> &[u32] {
        &self.text
    }

    /// The longest string that is kept.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.depth);
    }

    /// Ends the current sequence: what comes next does not follow it.
    pub fn end_sequence(&mut self) {
        self.ends.clear();
    }

    /// Appends an id to the current sequence.
    pub fn push(&mut self, id: u32) {
        let at = self.text.len() as u32;
        self.text.push(id);
        self.ends.push_back(ROOT);
        for i in 0..self.ends.len() {
            self.ends[i] = self.descend(self.ends[i], id, at);
        }
        if self.ends.len() == self.depth {
            self.ends.pop_front();
        }
    }

    /// Moves an occurrence that ends at `node` on by `id`, which stands at `at`; gives the node where it ends now.
    fn descend(&mut self, node: NodeId, id: u32, at: u32) -> NodeId {
        let here = self.nodes[node as usize];
        if node != ROOT && here.children == 0 && here.count == 1 {
            // The only occurrence here is the one that moves, so its edge ends with the text.
            self.nodes[node as usize].len += 1;
            return node;
        }
        let Some(&child) = self.children.get(&(node, id)) else {
            return self.add_child(node, Node { start: at, len: 1, count: 1, ..Node::default() });
        };
        let below = self.nodes[child as usize];
        if below.len == 1 {
            self.nodes[child as usize].count += 1;
            self.note_best(node, child);
            return child;
        }
        self.nodes[child as usize].start += 1;
        self.nodes[child as usize].len -= 1;
        let next = self.text[below.start as usize + 1];
        if node != ROOT && here.children == 1 && here.count == below.count + 1 {
            // All others that came here had gone on to the child: the boundary moves with the one that stood at it.
            self.children.remove(&(node, id));
            self.children.insert((node, next), child);
            let moved = &mut self.nodes[node as usize];
            (moved.start, moved.len) = (at - here.len, here.len + 1);
            return node;
        }
        let middle = self.nodes.len() as NodeId;
        self.nodes.push(Node { start: below.start, len: 1, count: below.count + 1, children: 1, best: child });
        self.children.insert((node, id), middle);
        self.children.insert((middle, next), child);
        if here.best == child {
            self.nodes[node as usize].best = middle;
        }
        self.note_best(node, middle);
        middle
    }

    fn add_child(&mut self, parent: NodeId, node: Node) -> NodeId {
        let child = self.nodes.len() as NodeId;
        self.children.insert((parent, self.text[node.start as usize]), child);
        self.nodes.push(node);
        self.nodes[parent as usize].children += 1;
        self.note_best(parent, child);
        child
    }

    /// Makes `child`, whose count has just risen, the best of its parent if it is.
    fn note_best(&mut self, parent: NodeId, child: NodeId) {
        let best = self.nodes[parent as usize].best;
        if best == ROOT || self.nodes[child as usize].count >= self.nodes[best as usize].count {
            self.nodes[parent as usize].best = child;
        }
    }

    /// The best guess of up to `k` ids after the current sequence, from its own past.
    pub fn guess_own(&self, k: usize, min_probability: f32) -> Guess {
        let length = self.ends.len();
        let places = self.ends.iter().enumerate().map(|(i, &node)| Place {
            node,
            offset: self.nodes[node as usize].len,
            matched: length - i,
        });
        // Each end has been counted as an occurrence, but nothing has followed it yet.
        self.guess(places, 1, k, min_probability)
    }

    /// The best guess of up to `k` ids after the context that `cursor` has followed.
    pub fn guess_after(&self, cursor: &Cursor, k: usize, min_probability: f32) -> Guess {
        self.guess(cursor.places.iter().copied(), 0, k, min_probability)
    }

    /// Follows the likeliest path from each place; the one with the most ids expected to be right wins, of equals the
    /// longest context.
    fn guess(&self, places: impl Iterator<Item = Place>, unfollowed: u32, k: usize, min_probability: f32) -> Guess {
        let mut best = Guess::default();
        for place in places {
            best = best.or(self.follow(place, unfollowed, k, min_probability));
        }
        best
    }

    /// Follows the likeliest path from `place` while it is likely enough to be right so far.
    fn follow(&self, place: Place, unfollowed: u32, k: usize, min_probability: f32) -> Guess {
        let mut guess = Guess { matched: place.matched, ..Guess::default() };
        let mut node = self.nodes[place.node as usize];
        let mut offset = place.offset;
        let mut total = node.count - unfollowed;
        let mut probability = 1.0;
        while guess.ids.len() < k {
            let mut count = total;
            if offset == node.len {
                if node.best == ROOT {
                    break;
                }
                node = self.nodes[node.best as usize];
                (offset, count) = (0, node.count);
            }
            // The longer the context, the less likely that something new follows.
            let novelty = 1.0 / (place.matched + guess.ids.len()) as f32;
            probability *= count as f32 / (total as f32 + novelty);
            if probability < min_probability {
                break;
            }
            guess.score += probability;
            guess.ids.push(self.text[(node.start + offset) as usize]);
            offset += 1;
            total = count;
        }
        guess
    }
}

/// Somewhere on the edge to `node`: `offset` of its ids are matched, `matched` in all.
#[derive(Clone, Copy)]
struct Place {
    node: NodeId,
    offset: u32,
    matched: usize,
}

/// Every context that ends a history and occurs in a tree, which must not change meanwhile; longest first.
#[derive(Default)]
pub struct Cursor {
    places: VecDeque<Place>,
}

impl Cursor {
    /// Follows one more id of the history.
    pub fn advance(&mut self, tree: &SuffixTree, id: u32) {
        self.places.push_back(Place { node: ROOT, offset: 0, matched: 0 });
        self.places.retain_mut(|place| {
            let node = tree.nodes[place.node as usize];
            if place.offset < node.len {
                if tree.text[(node.start + place.offset) as usize] != id {
                    return false;
                }
                place.offset += 1;
            } else {
                let Some(&child) = tree.children.get(&(place.node, id)) else { return false };
                (place.node, place.offset) = (child, 1);
            }
            place.matched += 1;
            true
        });
    }

    /// Forgets the history.
    pub fn clear(&mut self) {
        self.places.clear();
    }
}

/// A history, looked up in its own past and in a corpus that others may share and add to.
pub struct SuffixIndex {
    own: SuffixTree,
    corpus: Option<Arc<RwLock<SuffixTree>>>,
    cursor: Cursor,
    /// How much of the history the cursor has followed, in a corpus of how many ids.
    followed: usize,
    corpus_size: usize,
}

impl SuffixIndex {
    /// An empty history; `depth` bounds the context and guess in its own past, together.
    pub fn new(depth: usize, corpus: Option<Arc<RwLock<SuffixTree>>>) -> Self {
        Self { own: SuffixTree::new(depth), corpus, cursor: Cursor::default(), followed: 0, corpus_size: 0 }
    }

    /// The history.
    pub fn ids(&self) -> &[u32] {
        self.own.text()
    }

    /// Forgets the history, not the corpus.
    pub fn clear(&mut self) {
        self.own.clear();
        self.cursor.clear();
        self.followed = 0;
    }

    /// Appends ids to the history.
    pub fn extend(&mut self, ids: &[u32]) {
        ids.iter().for_each(|&id| self.own.push(id));
    }

    /// The best guess of up to `k` ids, each while all up to it are right with `min_probability` at least.
    pub fn propose(&mut self, k: usize, min_probability: f32) -> Guess {
        let guess = self.own.guess_own(k, min_probability);
        let Some(corpus) = &self.corpus else { return guess };
        let corpus = corpus.read().unwrap_or_else(PoisonError::into_inner);
        let ids = self.own.text();
        if self.corpus_size != corpus.text().len() {
            // It has grown, and its nodes have moved.
            self.cursor.clear();
            (self.followed, self.corpus_size) = (0, corpus.text().len());
        }
        let news = self.followed.max(ids.len().saturating_sub(corpus.depth()));
        ids[news..].iter().for_each(|&id| self.cursor.advance(&corpus, id));
        self.followed = ids.len();
        guess.or(corpus.guess_after(&self.cursor, k, min_probability))
    }
}

#[cfg(test)]
mod tests;
