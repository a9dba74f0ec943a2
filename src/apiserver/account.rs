//! Memory budget of requests: what clients can make large draws its memory from one budget.
//!
//! Owns the budget's size, a fraction of the process's memory limit, and the order in which
//! requests draw on it. A request that finds no room waits for at most [`WAIT`], and is then
//! refused.
//!
//! [`MemoryUse`] lists the uses in order. Each use has a ceiling, higher than the ceiling of the
//! use before. The bytes of a use and of the uses before it together stay within its ceiling. A
//! request that holds memory asks for more of a later use only. Between the two ceilings there is
//! room, so requests do not wait for each other in a circle. Memory that lasts as long as a
//! connection, and small bodies, have reserves outside the budget that no other use can take.

mod metrics;

use std::{
    collections::VecDeque,
    mem,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

pub use metrics::MemoryAccountMetrics;

use super::status::{ApiError, Result};
use crate::runtime::cgroup;

/// Memory limit in bytes that is assumed for a process without a limit: the manifest's 256 MiB.
const DEFAULT_LIMIT: usize = 256 << 20;
/// Longest time that a request waits for memory before it is refused with 429.
const WAIT: Duration = Duration::from_secs(10);

/// Purpose that memory is taken for. A request takes memory in the order of these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryUse {
    /// Memory that is held as long as a connection or a watch: long certificate chains, long
    /// selectors.
    Kept,
    /// Large request bodies while they are received.
    Arriving,
    /// Trees of JSON values that request bodies are parsed into, and what is made of them.
    Trees,
    /// Large stored objects that a request reads, and lists at an earlier revision.
    Objects,
    /// Responses, until they are sent.
    Responses,
    /// YAML bodies that are parsed once more for the audit log.
    Records,
    /// Trees of JSON values of small bodies: reports of pilots, leases, objects written by hand.
    Small,
}

impl MemoryUse {
    pub const ALL: [Self; USES] = [
        Self::Kept,
        Self::Arriving,
        Self::Trees,
        Self::Objects,
        Self::Responses,
        Self::Records,
        Self::Small,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Arriving => "arriving",
            Self::Trees => "trees",
            Self::Objects => "objects",
            Self::Responses => "responses",
            Self::Records => "records",
            Self::Small => "small",
        }
    }
}

const USES: usize = 7;

/// Number of equal parts that the memory limit is divided into, the unit of [`CEILINGS`]. A part of
/// the manifest's 256 MiB is 8 MiB. Parts outside the budget are for stored objects and for the
/// process itself.
const PARTS: usize = 32;
/// Ceiling of each use in parts of the memory limit. The first and the last use have a reserve of
/// their own.
const CEILINGS: [usize; USES] = [1, 2, 5, 8, 9, 10, 1];
/// Divisor of the reserve for small bodies: one request may take this fraction of it.
const RESERVED: usize = 8;

static ACCOUNT: LazyLock<MemoryAccount> = LazyLock::new(|| {
    let limit = cgroup::memory_limit().and_then(|limit| usize::try_from(limit).ok());
    MemoryAccount::new(limit.unwrap_or(DEFAULT_LIMIT))
});

struct MemoryAccount {
    /// Bytes of one of the [`PARTS`] of the memory limit.
    part: usize,
    state: Mutex<MemoryAccountState>,
}

#[derive(Default)]
struct MemoryAccountState {
    /// Bytes held now, by use.
    used: [usize; USES],
    waiting: [VecDeque<MemoryWaiter>; USES],
    refused: [u64; USES],
}

struct MemoryWaiter {
    bytes: usize,
    grant: oneshot::Sender<MemoryShare>,
}

/// Memory that a request or a connection holds, given back when this value is dropped.
#[derive(Debug, Default)]
#[must_use = "the memory is taken as long as this lives"]
pub struct MemoryShare(Option<HeldMemory>);

#[derive(Debug)]
struct HeldMemory {
    account: &'static MemoryAccount,
    of: MemoryUse,
    bytes: usize,
}

impl std::fmt::Debug for MemoryAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryAccount").field("part", &self.part).finish_non_exhaustive()
    }
}

/// Waits for `bytes` of memory. Fails with 413 if one request may not have as many, and with 429 if
/// there is no room within `WAIT`.
pub async fn acquire_memory(purpose: MemoryUse, bytes: usize) -> Result<MemoryShare> {
    ACCOUNT.acquire(purpose, bytes).await
}

/// Takes `bytes` of memory if there is room at once.
pub fn try_acquire_memory(purpose: MemoryUse, bytes: usize) -> Option<MemoryShare> {
    ACCOUNT.try_acquire(purpose, bytes)
}

/// Takes memory for the tree of a body of `bytes`. A small body draws on the reserve when there is
/// no room among the trees; a larger one waits.
pub async fn acquire_body_memory(bytes: usize) -> Result<MemoryShare> {
    if bytes > ACCOUNT.max_request_bytes(MemoryUse::Small) {
        return ACCOUNT.acquire(MemoryUse::Trees, bytes).await;
    }
    match ACCOUNT.try_acquire(MemoryUse::Trees, bytes) {
        Some(share) => Ok(share),
        None => ACCOUNT.acquire(MemoryUse::Small, bytes).await,
    }
}

/// Tells whether no memory is held for the use `of`.
#[cfg(test)]
pub fn is_free(of: MemoryUse) -> bool {
    ACCOUNT.state().used[of as usize] == 0
}

impl MemoryAccount {
    /// Creates the budget of a process whose memory limit is `limit` bytes.
    fn new(limit: usize) -> Self {
        Self { part: limit / PARTS, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, MemoryAccountState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many bytes the budget and both reserves hold together.
    fn total_bytes(&self) -> usize {
        self.ceiling(MemoryUse::Kept)
            + self.ceiling(MemoryUse::Records)
            + self.ceiling(MemoryUse::Small)
    }

    fn ceiling(&self, purpose: MemoryUse) -> usize {
        self.part * CEILINGS[purpose as usize]
    }

    /// Returns how many bytes one request may take of a use: what earlier uses leave free in any
    /// case.
    fn max_request_bytes(&self, purpose: MemoryUse) -> usize {
        match purpose {
            MemoryUse::Small => self.ceiling(purpose) / RESERVED,
            MemoryUse::Kept | MemoryUse::Arriving => self.ceiling(purpose),
            _ => self.ceiling(purpose) - self.ceiling(MemoryUse::ALL[purpose as usize - 1]),
        }
    }

    fn has_room(&self, state: &MemoryAccountState, purpose: MemoryUse, bytes: usize) -> bool {
        if matches!(purpose, MemoryUse::Kept | MemoryUse::Small) {
            return state.used[purpose as usize] + bytes <= self.ceiling(purpose);
        }
        let used_through = |last: MemoryUse| -> usize {
            state.used[MemoryUse::Arriving as usize..=last as usize].iter().sum()
        };
        let later_uses = MemoryUse::ALL[purpose as usize..=MemoryUse::Records as usize].iter();
        later_uses.copied().all(|last| used_through(last) + bytes <= self.ceiling(last))
    }

    fn grant_share(
        &'static self,
        state: &mut MemoryAccountState,
        purpose: MemoryUse,
        bytes: usize,
    ) -> MemoryShare {
        state.used[purpose as usize] += bytes;
        MemoryShare(Some(HeldMemory { account: self, of: purpose, bytes }))
    }

    fn try_acquire(&'static self, purpose: MemoryUse, bytes: usize) -> Option<MemoryShare> {
        let mut state = self.state();
        state.remove_canceled_waiters(purpose);
        let can_grant =
            state.waiting[purpose as usize].is_empty() && self.has_room(&state, purpose, bytes);
        can_grant.then(|| self.grant_share(&mut state, purpose, bytes))
    }

    /// Waits for memory, for at most `WAIT`. Requests that wait for the same use get it in the
    /// order in which they came.
    async fn acquire(&'static self, purpose: MemoryUse, bytes: usize) -> Result<MemoryShare> {
        let max_bytes = self.max_request_bytes(purpose);
        if bytes > max_bytes {
            self.state().refused[purpose as usize] += 1;
            return Err(ApiError::too_large(format!(
                "Request entity too large: it needs {bytes} bytes of memory; one request may have \
                 {max_bytes} of the server's limit: ask for less at a time, or raise the limit"
            )));
        }
        let share_receiver = {
            let mut state = self.state();
            state.remove_canceled_waiters(purpose);
            if state.waiting[purpose as usize].is_empty() && self.has_room(&state, purpose, bytes) {
                return Ok(self.grant_share(&mut state, purpose, bytes));
            }
            let (grant, receiver) = oneshot::channel();
            state.waiting[purpose as usize].push_back(MemoryWaiter { bytes, grant });
            receiver
        };
        if let Ok(Ok(share)) = timeout(WAIT, share_receiver).await {
            return Ok(share);
        }
        self.state().refused[purpose as usize] += 1;
        let wait_seconds = WAIT.as_secs();
        let name = purpose.name();
        Err(ApiError::too_many_requests(
            format!(
                "Too many large requests, please try again later: there was no room for {bytes} \
                 bytes ({name}) within {wait_seconds} s."
            ),
            1,
        ))
    }

    /// Returns `bytes` of a use to the budget, and grants them to requests that wait.
    fn give_back(&'static self, purpose: MemoryUse, bytes: usize) {
        let mut unclaimed_shares = Vec::new();
        let mut state = self.state();
        state.used[purpose as usize] -= bytes;
        for purpose in MemoryUse::ALL.into_iter().rev() {
            while let Some(waiter) = state.waiting[purpose as usize].front() {
                if !waiter.grant.is_closed() && !self.has_room(&state, purpose, waiter.bytes) {
                    break;
                }
                let waiter =
                    state.waiting[purpose as usize].pop_front().expect("it was just there");
                let share = self.grant_share(&mut state, purpose, waiter.bytes);
                // A request that stopped waiting gives its share back after the lock is released.
                unclaimed_shares.extend(waiter.grant.send(share).err());
            }
        }
        drop(state);
        drop(unclaimed_shares);
    }
}

impl MemoryAccountState {
    fn remove_canceled_waiters(&mut self, purpose: MemoryUse) {
        self.waiting[purpose as usize].retain(|waiter| !waiter.grant.is_closed());
    }
}

impl MemoryShare {
    /// Holds no memory: the body or object is too small to be counted.
    pub const NONE: Self = Self(None);

    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Gives back all of the memory but `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let Some(memory) = &mut self.0 else { return };
        let excess = memory.bytes.saturating_sub(bytes);
        if excess > 0 {
            memory.bytes -= excess;
            memory.account.give_back(memory.of, excess);
        }
    }

    /// Takes `bytes` more, if there is room at once. Memory that is empty so far is of the use
    /// `of`.
    #[must_use]
    pub fn try_grow(&mut self, purpose: MemoryUse, bytes: usize) -> bool {
        let account = self.0.as_ref().map_or(&*ACCOUNT, |memory| memory.account);
        let purpose = self.0.as_ref().map_or(purpose, |memory| memory.of);
        let Some(mut extra_share) = account.try_acquire(purpose, bytes) else { return false };
        match &mut self.0 {
            Some(memory) => {
                if let Some(extra_memory) = &mut extra_share.0 {
                    memory.bytes += mem::take(&mut extra_memory.bytes);
                }
            }
            slot => *slot = extra_share.0.take(),
        }
        true
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.account.give_back(self.of, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(limit: usize) -> &'static MemoryAccount {
        Box::leak(Box::new(MemoryAccount::new(limit)))
    }

    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_waits_and_is_then_told_so() {
        let account = account(256 * MIB);
        let held = account.acquire(MemoryUse::Trees, 24 * MIB).await.unwrap();
        let more = account.acquire(MemoryUse::Trees, 16 * MIB).await.unwrap();
        let error = account.acquire(MemoryUse::Trees, MIB).await.unwrap_err();
        assert_eq!(error.status_code(), 429);
        assert!(
            error.to_string().contains("no room for 1048576 bytes (trees) within 10 s"),
            "{error}"
        );
        let waits = account.acquire(MemoryUse::Trees, MIB);
        let (share, ()) = futures::join!(waits, async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(held);
        });
        drop((share.unwrap(), more));
        assert_eq!(account.state().used, [0; USES]);
        let error = account.acquire(MemoryUse::Trees, 25 * MIB).await.unwrap_err();
        assert_eq!(error.status_code(), 413);
        assert!(
            error.to_string().contains("needs 26214400 bytes of memory; one request may have"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn who_holds_a_share_finds_room_for_a_later_use_however_full_it_is() {
        let account = account(256 * MIB);
        let mut held = Vec::new();
        for of in MemoryUse::ALL {
            let largest = account.max_request_bytes(of).min(MIB);
            while let Some(share) = account.try_acquire(of, largest) {
                held.push(share);
            }
            let next = MemoryUse::ALL.into_iter().find(|next| *next > of);
            if let Some(next) = next {
                let room = account.try_acquire(next, account.max_request_bytes(next));
                assert!(room.is_some(), "nothing is left for {next:?} after {of:?}");
            }
        }
        drop(held);
        assert_eq!(account.state().used, [0; USES]);
    }

    /// Trees of other requests leave room for bodies, and bodies leave room for handshakes.
    #[tokio::test]
    async fn earlier_uses_have_room_beside_later_ones() {
        let account = account(256 * MIB);
        let trees = account.try_acquire(MemoryUse::Trees, 24 * MIB).unwrap();
        let bodies: Vec<_> =
            (0..5).map(|_| account.try_acquire(MemoryUse::Arriving, 3 * MIB)).collect();
        assert!(bodies.iter().all(Option::is_some), "{bodies:?}");
        assert!(
            account.try_acquire(MemoryUse::Arriving, 3 * MIB).is_none(),
            "more than their ceiling"
        );
        assert!(account.try_acquire(MemoryUse::Kept, 8 * MIB).is_some());
        drop((trees, bodies));
    }

    #[tokio::test]
    async fn what_is_small_goes_on_whatever_others_hold() {
        let account = account(256 * MIB);
        let mut held = Vec::new();
        for of in MemoryUse::ALL.into_iter().filter(|of| *of != MemoryUse::Small) {
            while let Some(share) = account.try_acquire(of, MIB) {
                held.push(share);
            }
        }
        assert!(account.try_acquire(MemoryUse::Trees, 1).is_none());
        assert!(
            account
                .try_acquire(MemoryUse::Small, account.max_request_bytes(MemoryUse::Small))
                .is_some()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_longest_is_next_and_who_left_is_forgotten() {
        let account = account(32 * MIB);
        let all = account.acquire(MemoryUse::Kept, MIB).await.unwrap();
        let left = timeout(Duration::from_secs(1), account.acquire(MemoryUse::Kept, MIB)).await;
        assert!(left.is_err());
        let mut first = Box::pin(account.acquire(MemoryUse::Kept, MIB));
        let mut second = Box::pin(account.acquire(MemoryUse::Kept, 1));
        assert!(futures::poll!(first.as_mut()).is_pending());
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(all);
        let share = first.await.unwrap();
        assert!(futures::poll!(second.as_mut()).is_pending(), "it has to wait for the first");
        drop(share);
        drop(second.await.unwrap());
        assert_eq!(account.state().used, [0; USES]);
    }

    #[tokio::test]
    async fn a_share_grows_and_shrinks() {
        let account = account(32 * MIB);
        let mut share = account.acquire(MemoryUse::Kept, 1000).await.unwrap();
        assert!(share.try_grow(MemoryUse::Kept, 1000));
        assert_eq!(account.state().used[0], 2000);
        share.shrink(500);
        assert_eq!(account.state().used[0], 500);
        assert!(!share.try_grow(MemoryUse::Kept, MIB));
        drop(share);
        assert_eq!(account.state().used, [0; USES]);
    }

    /// One request may hold the tree of the heaviest body three times.
    #[test]
    fn with_the_manifests_limit_no_single_request_needs_more_than_it_may_have() {
        use crate::machinery::decode::weight::MAX_TREE;
        let account = MemoryAccount::new(DEFAULT_LIMIT);
        for of in [MemoryUse::Trees, MemoryUse::Objects] {
            assert!(account.max_request_bytes(of) >= 3 * MAX_TREE, "{of:?}");
        }
    }
}
