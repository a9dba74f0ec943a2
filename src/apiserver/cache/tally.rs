//! How a resource was read: lists by cache or store, consistent reads, waits for a revision.
//!
//! Only counts. `handlers/cache_metrics.rs` gives the counts upstream's metric names.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use prometheus::{Histogram, HistogramOpts};

/// Upper bounds, in seconds, of the histogram of waits for a revision: upstream's, the last being
/// the time after which a read gives up.
pub const WAITS: [f64; 13] =
    [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];

/// Counters of the lists that one source, cache or store, has served.
#[derive(Debug, Default)]
pub struct ListCounters {
    lists: AtomicU64,
    fetched: AtomicU64,
    evaluated: AtomicU64,
    returned: AtomicU64,
}

/// What became of the objects of one list, or of the lists so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListCounts {
    pub lists: u64,
    pub fetched: u64,
    /// Objects that a selector was applied to; fewer than were fetched when the page was full
    /// before.
    pub evaluated: u64,
    pub returned: u64,
}

impl ListCounters {
    fn add(&self, counts: ListCounts) {
        let ListCounts { lists, fetched, evaluated, returned } = counts;
        self.lists.fetch_add(lists, Ordering::Relaxed);
        self.fetched.fetch_add(fetched, Ordering::Relaxed);
        self.evaluated.fetch_add(evaluated, Ordering::Relaxed);
        self.returned.fetch_add(returned, Ordering::Relaxed);
    }

    pub fn so_far(&self) -> ListCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ListCounts {
            lists: load(&self.lists),
            fetched: load(&self.fetched),
            evaluated: load(&self.evaluated),
            returned: load(&self.returned),
        }
    }
}

/// How a read of the latest state ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsistentReadOutcome {
    /// The cache caught up.
    Cache,
    /// The cache did not catch up, and the store answered.
    Store,
    /// The cache could not answer, and the store was not asked.
    CacheFailed,
    /// The cache did not catch up, and the store could not answer, either.
    StoreFailed,
}

impl ConsistentReadOutcome {
    pub const ALL: [Self; 4] = [Self::Cache, Self::Store, Self::CacheFailed, Self::StoreFailed];

    /// The labels `success` and `fallback`: was the read answered, and was the store asked?
    pub fn labels(self) -> [&'static str; 2] {
        match self {
            Self::Cache => ["true", "false"],
            Self::Store => ["true", "true"],
            Self::CacheFailed => ["false", "false"],
            Self::StoreFailed => ["false", "true"],
        }
    }
}

/// Counters of the reads of one cache.
#[derive(Debug)]
pub struct ReadTally {
    pub cached: ListCounters,
    pub stored: ListCounters,
    consistent: [AtomicU64; ConsistentReadOutcome::ALL.len()],
    /// Seconds that reads waited for a revision. `handlers/cache_metrics.rs` gives the metric its name.
    pub waits: Histogram,
}

impl Default for ReadTally {
    fn default() -> Self {
        let waits = HistogramOpts::new("waits", "Seconds.").buckets(WAITS.to_vec());
        Self {
            cached: ListCounters::default(),
            stored: ListCounters::default(),
            consistent: Default::default(),
            waits: Histogram::with_opts(waits).expect("the name is valid"),
        }
    }
}

impl ReadTally {
    /// Counts one list, or one page of a list: the objects fetched, evaluated and returned.
    pub fn count_list(&self, from_store: bool, objects: [usize; 3]) {
        let [fetched, evaluated, returned] =
            objects.map(|count| u64::try_from(count).unwrap_or(u64::MAX));
        let lists = if from_store { &self.stored } else { &self.cached };
        lists.add(ListCounts { lists: 1, fetched, evaluated, returned });
    }

    pub fn count_consistent_read(&self, outcome: ConsistentReadOutcome) {
        self.consistent[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn consistent_reads(&self, outcome: ConsistentReadOutcome) -> u64 {
        self.consistent[outcome as usize].load(Ordering::Relaxed)
    }

    pub(super) fn observe_wait(&self, duration: Duration) {
        self.waits.observe(duration.as_secs_f64());
    }
}
