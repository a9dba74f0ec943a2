//! Bound on what may be stored. All stored objects are held in memory, so the sum of their bytes
//! has a bound, a fraction of the process's memory limit; the objects of one namespace have a bound
//! of their own.
//!
//! Owns the bounds, the sums, and the decision which writes still pass. A write that grows an
//! object claims the bytes before the store is asked; the claim counts until the cache shows the
//! write. Up to the bounds [`CapacityBounds::all`] and [`CapacityBounds::namespace`] any write
//! passes. Beyond them there is a reserve for writes that an operation or a deletion needs to come
//! to its end ([`GrowthClass::Reserved`]). A write that makes an object no larger always passes.
//!
//! Each server counts what its caches show and its own claims. Several servers over one store may
//! together exceed the bound by the writes that the other servers have under way. Each takes its
//! bounds from its own memory limit, so the limits should be equal.

mod metrics;
mod survey;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Semaphore;

pub use self::{
    metrics::CapacityMetrics,
    survey::{StoreSurvey, survey_store},
};
use super::storage::{Key, Revision};
use crate::runtime::cgroup;

/// Memory limit in bytes that is assumed for a process without a limit: the manifest's 256 MiB.
pub const DEFAULT_LIMIT: usize = 256 << 20;

/// Number of equal parts that the memory limit is divided into: 8 MiB each with the manifest's
/// limit.
const PARTS: usize = 32;
/// Parts of the memory limit for the stored objects of all namespaces.
const ALL: usize = 6;
/// Parts of the memory limit that operations and deletions may use beyond [`ALL`].
const RESERVE: usize = 1;
/// Parts by which the store may exceed bound and reserve when a server starts, after writes of
/// several servers or deletions.
const EXCESS: usize = 1;
/// Parts of the memory limit for further encoded forms of objects that clients asked for lately.
const FORMS: usize = 1;
/// Divisor of the bound and of the reserve: one namespace may have this fraction of them.
const NAMESPACES: usize = 2;
/// Divisor of the memory limit: this fraction of it holds one kind's latest changes for watchers,
/// up to [`LARGEST_WINDOW`] bytes.
const WINDOWS: usize = 32;
const LARGEST_WINDOW: usize = 64 << 20;

/// Bytes that an object is counted with in addition to its JSON: key, labels, counts, its place in
/// the cache.
pub const BESIDE: usize = 1024;

/// Bounds in bytes on what may be stored, each object counted as [`counted_bytes`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityBounds {
    /// Memory limit in bytes from which the bounds are computed.
    pub limit: usize,
    pub all: usize,
    pub namespace: usize,
    /// Bytes above `all` that writes of [`GrowthClass::Reserved`] may use.
    reserve: usize,
    namespace_reserve: usize,
    /// Most bytes in a store that a server starts to serve.
    pub startable: usize,
    /// Most bytes of one kind's latest changes that are kept for watchers.
    pub window: usize,
    /// Most bytes of further encoded forms of objects (older version, metadata alone), of all
    /// kinds.
    pub forms: usize,
}

static OWN: LazyLock<CapacityBounds> = LazyLock::new(|| {
    let limit = cgroup::memory_limit().and_then(|limit| usize::try_from(limit).ok());
    CapacityBounds::new(limit.unwrap_or(DEFAULT_LIMIT))
});

impl CapacityBounds {
    /// Returns the bounds of this process, from its memory limit.
    pub fn for_process() -> Self {
        *OWN
    }

    /// Computes the bounds of a process whose memory limit is `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let part = limit / PARTS;
        let (all, reserve) = (part * ALL, part * RESERVE);
        Self {
            limit,
            all,
            namespace: all / NAMESPACES,
            reserve,
            namespace_reserve: reserve / NAMESPACES,
            startable: all + reserve + part * EXCESS,
            window: LARGEST_WINDOW.min(limit / WINDOWS),
            forms: part * FORMS,
        }
    }

    /// Returns the least memory limit, in whole MiB, with which a server starts over `stored`
    /// bytes.
    pub fn limit_for(stored_bytes: usize) -> usize {
        const MIB: usize = 1 << 20;
        (stored_bytes.div_ceil(ALL + RESERVE + EXCESS) * PARTS).next_multiple_of(MIB)
    }

    fn ceiling(&self, scope: CapacityScope, growth: GrowthClass) -> usize {
        let (bound, reserve) = match scope {
            CapacityScope::All => (self.all, self.reserve),
            CapacityScope::Namespace => (self.namespace, self.namespace_reserve),
        };
        match growth {
            GrowthClass::Ordinary => bound,
            GrowthClass::Reserved => bound + reserve,
        }
    }
}

/// Returns by how many bytes an object counts against the capacity if its JSON has `stored` bytes.
pub fn counted_bytes(json_bytes: usize) -> usize {
    json_bytes + BESIDE
}

/// Kind of a write that makes an object larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowthClass {
    /// The write creates an object, or enlarges its spec.
    Ordinary,
    /// The write enlarges a status or a lease, or adds what a finalizer or an operation adds to an
    /// object: such writes draw on a reserve, so that an operation that was begun can end.
    Reserved,
}

/// Which bound a write would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityScope {
    All,
    Namespace,
}

impl CapacityScope {
    const EACH: [Self; 2] = [Self::Namespace, Self::All];

    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Namespace => "namespace",
        }
    }
}

/// Why a write may not grow an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityError {
    scope: CapacityScope,
    namespace: String,
    stored: usize,
    added: usize,
    ceiling: usize,
    limit: usize,
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, namespace, stored, added, ceiling, limit } = self;
        let (objects, scope_text) = match scope {
            CapacityScope::All => ("all objects".to_owned(), "in all"),
            CapacityScope::Namespace => {
                (format!("objects of namespace {namespace:?}"), "of one namespace")
            }
        };
        write!(
            f,
            "exceeded what may be stored: {objects} count {stored} bytes, this adds {added}, and \
             {ceiling} may be stored {scope_text}, a part of the API server's memory limit of {limit}. \
             Delete objects or make them smaller, which is always allowed, or raise the limit"
        )
    }
}

/// Sums of the bytes of objects, in all and by namespace.
#[derive(Debug, Default)]
pub struct StoredBytes {
    all: usize,
    namespaces: HashMap<Box<str>, usize>,
}

impl StoredBytes {
    pub fn add(&mut self, key: &Key, bytes: usize) {
        self.all += bytes;
        match self.namespaces.get_mut(key.namespace()) {
            Some(sum) => *sum += bytes,
            None => drop(self.namespaces.insert(key.namespace().into(), bytes)),
        }
    }

    pub fn remove(&mut self, key: &Key, bytes: usize) {
        self.all = self.all.saturating_sub(bytes);
        let Some(sum) = self.namespaces.get_mut(key.namespace()) else { return };
        *sum = sum.saturating_sub(bytes);
        if *sum == 0 {
            self.namespaces.remove(key.namespace());
        }
    }

    pub fn total(&self) -> usize {
        self.all
    }

    pub fn in_namespace(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).copied().unwrap_or_default()
    }

    /// Adds the sums of `other`.
    fn merge(&mut self, other: &Self) {
        self.all += other.all;
        for (namespace, bytes) in &other.namespaces {
            *self.namespaces.entry(namespace.clone()).or_default() += bytes;
        }
    }
}

/// A cache, as far as the capacity needs to know it.
pub trait CountedCache: Send + Sync {
    /// The revision up to which every write is shown.
    fn revision(&self) -> Revision;
    /// Calls `look` with the sums of the objects that are shown.
    fn visit_stored_bytes(&self, visitor: &mut dyn FnMut(&StoredBytes));
}

/// The storage capacity of one server: its bounds, and what counts against them.
pub struct Capacity {
    bounds: CapacityBounds,
    /// The caches of all kinds.
    caches: RwLock<Vec<Arc<dyn CountedCache>>>,
    claims: Mutex<CapacityClaims>,
    /// Semaphore of the caches that read the whole store: one page at a time is in memory.
    turns: Arc<Semaphore>,
    refused: [AtomicU64; CapacityScope::EACH.len()],
}

/// Claims of writes that no cache shows yet.
#[derive(Default)]
struct CapacityClaims {
    given: u64,
    open: HashMap<u64, OpenClaim>,
}

struct OpenClaim {
    cache: Arc<dyn CountedCache>,
    namespace: Box<str>,
    bytes: usize,
    /// Revision of the write; absent until the store has answered.
    at: Option<Revision>,
}

impl fmt::Debug for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capacity").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

/// Right to store more bytes. Dropping it gives the bytes back, unless they were written.
#[must_use = "the bytes are counted as long as this lives"]
pub struct CapacityClaim<'a> {
    capacity: &'a Capacity,
    /// Number of the claim; absent when the write does not grow the object.
    number: Option<u64>,
}

impl Capacity {
    pub fn new(bounds: CapacityBounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            caches: RwLock::default(),
            claims: Mutex::default(),
            turns: Arc::new(Semaphore::new(1)),
            refused: Default::default(),
        })
    }

    pub fn bounds(&self) -> CapacityBounds {
        self.bounds
    }

    /// Returns the semaphore that caches hold while they read a page of the whole store.
    pub fn page_semaphore(&self) -> Arc<Semaphore> {
        Arc::clone(&self.turns)
    }

    /// Adds a cache whose objects count.
    pub fn register_cache(&self, cache: Arc<dyn CountedCache>) {
        self.caches.write().unwrap_or_else(PoisonError::into_inner).push(cache);
    }

    /// Returns the sums of what the caches show.
    fn cached_bytes(&self) -> StoredBytes {
        let mut sums = StoredBytes::default();
        for cache in &*self.caches.read().unwrap_or_else(PoisonError::into_inner) {
            cache.visit_stored_bytes(&mut |cache_bytes| sums.merge(cache_bytes));
        }
        sums
    }

    /// Returns what is stored in `namespace` and in all, with the claims. Claims that a cache shows
    /// are dropped before the caches are looked at: a write that is counted twice for a moment
    /// refuses too much, never too little.
    fn stored_by_scope(
        &self,
        claims: &mut CapacityClaims,
        namespace: &str,
    ) -> [usize; CapacityScope::EACH.len()] {
        claims
            .open
            .retain(|_, claim| claim.at.is_none_or(|revision| revision > claim.cache.revision()));
        let (mut namespace_bytes, mut total_bytes) = (0, 0);
        for cache in &*self.caches.read().unwrap_or_else(PoisonError::into_inner) {
            cache.visit_stored_bytes(&mut |sums| {
                namespace_bytes += sums.in_namespace(namespace);
                total_bytes += sums.total();
            });
        }
        for claim in claims.open.values() {
            total_bytes += claim.bytes;
            namespace_bytes += if *claim.namespace == *namespace { claim.bytes } else { 0 };
        }
        [namespace_bytes, total_bytes]
    }

    /// Claims `bytes` more for the object under `key`, or fails if a bound would be exceeded.
    pub fn claim(
        &self,
        cache: Arc<dyn CountedCache>,
        key: &Key,
        growth: GrowthClass,
        bytes: usize,
    ) -> Result<CapacityClaim<'_>, CapacityError> {
        if bytes == 0 {
            return Ok(CapacityClaim { capacity: self, number: None });
        }
        let namespace = key.namespace();
        let mut claims = self.lock_claims();
        let stored_by_scope = self.stored_by_scope(&mut claims, namespace);
        for (scope, stored) in CapacityScope::EACH.into_iter().zip(stored_by_scope) {
            let ceiling = self.bounds.ceiling(scope, growth);
            if stored + bytes > ceiling {
                self.refused[scope as usize].fetch_add(1, Ordering::Relaxed);
                return Err(CapacityError {
                    scope,
                    namespace: namespace.to_owned(),
                    stored,
                    added: bytes,
                    ceiling,
                    limit: self.bounds.limit,
                });
            }
        }
        claims.given += 1;
        let number = claims.given;
        let namespace = namespace.into();
        claims.open.insert(number, OpenClaim { cache, namespace, bytes, at: None });
        Ok(CapacityClaim { capacity: self, number: Some(number) })
    }

    fn lock_claims(&self) -> MutexGuard<'_, CapacityClaims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CapacityClaim<'_> {
    /// Reports that the write is stored. The claim counts until the cache shows the revision `at`.
    pub fn mark_written(mut self, revision: Revision) {
        let Some(number) = self.number.take() else { return };
        if let Some(claim) = self.capacity.lock_claims().open.get_mut(&number) {
            claim.at = Some(revision);
        }
    }
}

impl Drop for CapacityClaim<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            self.capacity.lock_claims().open.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    /// Shows what a test says.
    #[derive(Default)]
    struct Stage(Mutex<(Revision, StoredBytes)>);

    impl CountedCache for Stage {
        fn revision(&self) -> Revision {
            self.0.lock().unwrap().0
        }

        fn visit_stored_bytes(&self, look: &mut dyn FnMut(&StoredBytes)) {
            look(&self.0.lock().unwrap().1);
        }
    }

    /// With 192 KiB in all, 96 in a namespace, and reserves of 32 and 16 KiB.
    fn capacity() -> (Arc<Capacity>, Arc<Stage>) {
        let capacity = Capacity::new(CapacityBounds::new(32 * 32 * KIB));
        let stage = Arc::new(Stage::default());
        capacity.register_cache(Arc::clone(&stage) as _);
        (capacity, stage)
    }

    fn key(namespace: &str) -> Key {
        Key::new("g", "r", namespace, "a").unwrap()
    }

    #[test]
    fn what_is_on_its_way_counts_until_it_is_given_up_or_shown() {
        let (capacity, stage) = capacity();
        let claim = |namespace: &str, growth, kib: usize| {
            capacity.claim(Arc::clone(&stage) as _, &key(namespace), growth, kib * KIB)
        };
        let first = claim("a", GrowthClass::Ordinary, 96).unwrap();
        let full = claim("a", GrowthClass::Ordinary, 1).err().unwrap();
        assert_eq!(
            (full.scope, full.stored, full.ceiling),
            (CapacityScope::Namespace, 96 * KIB, 96 * KIB)
        );
        // Reserved growth goes on, as far as the reserve reaches.
        let reserved = claim("a", GrowthClass::Reserved, 16).unwrap();
        assert_eq!(
            claim("a", GrowthClass::Reserved, 1).err().unwrap().scope,
            CapacityScope::Namespace
        );
        drop(reserved);
        claim("b", GrowthClass::Ordinary, 96).unwrap().mark_written(Revision(7));
        let full = claim("c", GrowthClass::Ordinary, 1).err().unwrap();
        assert_eq!(
            (full.scope, full.stored, full.ceiling),
            (CapacityScope::All, 192 * KIB, 192 * KIB)
        );
        assert_eq!(claim("c", GrowthClass::Ordinary, 0).unwrap().number, None, "nothing grows");
        drop(first);
        drop(claim("c", GrowthClass::Ordinary, 1).unwrap());
        // A claim that was written stands, although its request has ended.
        assert_eq!(claim("b", GrowthClass::Ordinary, 1).err().unwrap().stored, 96 * KIB);
        // Once the cache shows the write, the claim no longer counts.
        *stage.0.lock().unwrap() = (Revision(7), StoredBytes::default());
        stage.0.lock().unwrap().1.add(&key("b"), 10 * KIB);
        let full = claim("b", GrowthClass::Ordinary, 87).err().unwrap();
        assert_eq!((full.stored, capacity.lock_claims().open.len()), (10 * KIB, 0));
        drop(claim("b", GrowthClass::Ordinary, 86).unwrap());
    }

    #[test]
    fn sums_are_of_all_and_of_each_namespace() {
        let mut sums = StoredBytes::default();
        sums.add(&key("a"), 5);
        sums.add(&key("a"), 2);
        sums.add(&key("b"), 3);
        sums.remove(&key("a"), 5);
        assert_eq!(
            (sums.total(), sums.in_namespace("a"), sums.in_namespace("b"), sums.in_namespace("c")),
            (5, 2, 3, 0)
        );
        sums.remove(&key("b"), 3);
        assert_eq!(sums.namespaces.len(), 1);
        let mut both = StoredBytes::default();
        both.merge(&sums);
        both.merge(&sums);
        assert_eq!((both.total(), both.in_namespace("a")), (4, 4));
    }

    #[test]
    fn the_limit_that_is_named_is_enough() {
        for stored in [1, 100 << 20, 123_456_789] {
            let limit = CapacityBounds::limit_for(stored);
            assert!(CapacityBounds::new(limit).startable >= stored, "{stored}: {limit}");
        }
        let survey =
            StoreSurvey { objects: 3, bytes: CapacityBounds::new(DEFAULT_LIMIT).startable };
        assert_eq!(survey.too_much(CapacityBounds::new(DEFAULT_LIMIT)), None);
        let why = survey.too_much(CapacityBounds::new(DEFAULT_LIMIT / 2)).unwrap();
        assert!(why.contains("268435456 bytes (256 MiB) or more"), "{why}");
    }

    /// The account of requests, stored objects with what is kept beside them, and the process
    /// itself each have a share of the memory limit.
    #[test]
    fn all_shares_of_the_memory_limit_leave_room_for_the_process() {
        const ACCOUNT: usize = 12;
        const PROCESS: usize = 5;
        let kinds = 4 * PARTS / WINDOWS;
        let shares = ACCOUNT + ALL + RESERVE + EXCESS + FORMS + kinds;
        assert!(shares + PROCESS <= PARTS, "{shares}");
    }
}
