//! Attention over a paged key/value [`cache`]: [`units`] compute it, [`patterns`] say what a query looks at, and
//! [`selection`] chooses it by contents.

pub mod cache;
pub mod kept;
pub mod units;
pub mod selection;
pub mod patterns;
