//! For tests only: how far searches and random walks go.
//!
//! Each of them is in a module called `searches`: the filter `searches::` selects them, and
//! `--skip searches::` leaves them out.

#![allow(dead_code, reason = "each of the three crates uses a part of it")]

/// Returns how many states or seeds a search takes: `short` in CI, and `NAVIGATOR_SEARCH_FACTOR`
/// times as many at length (`make model`).
#[expect(clippy::disallowed_methods, reason = "make says how long tests may take")]
pub(crate) fn search_size(short: usize) -> usize {
    let factor = std::env::var("NAVIGATOR_SEARCH_FACTOR").unwrap_or_else(|_| "1".to_owned());
    let factor: usize = factor.parse().expect("NAVIGATOR_SEARCH_FACTOR is a number");
    assert!(factor > 0, "NAVIGATOR_SEARCH_FACTOR is 1 or more");
    short * factor
}

/// Returns the seeds of random walks, of which CI takes `short`.
pub(crate) fn search_seeds(short: usize) -> std::ops::Range<u64> {
    0..search_size(short) as u64
}

/// Returns those of all cases that a search tries: every `every`th in CI, and more of them at length,
/// up to all.
pub(crate) fn search_cases<T>(
    cases: impl IntoIterator<Item = T>,
    every: usize,
) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(every.div_ceil(search_size(1)))
}
