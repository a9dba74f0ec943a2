//! Memory budget of requests: what clients can make large draws its memory from one budget.
//!
//! Owns the budget's size, a fraction of the process's memory limit, and the order in which
//! requests draw on it. A request that finds no room waits for at most [`WAIT`], and is then
//! refused.
//!
//! [`MemoryUse`] lists the uses in order. Each use has a ceiling, higher than the ceiling of the
//! use before; the bytes of a use and of the uses before it together stay within its ceiling. A
//! request that holds memory asks for more of a later use only, and between the two ceilings there
//! is room: requests do not wait for each other in a circle. Memory that lasts as long as a
//! connection, and small bodies, have reserves beside the budget that no other use can take.

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
pub async fn take(of: MemoryUse, bytes: usize) -> Result<MemoryShare> {
    ACCOUNT.take(of, bytes).await
}

/// Takes `bytes` of memory if there is room at once.
pub fn try_take(of: MemoryUse, bytes: usize) -> Option<MemoryShare> {
    ACCOUNT.try_take(of, bytes)
}

/// Takes memory for the tree of a body of `bytes`. A small body draws on the reserve when there is
/// no room among the trees; a larger one waits.
pub async fn take_small(bytes: usize) -> Result<MemoryShare> {
    if bytes > ACCOUNT.largest(MemoryUse::Small) {
        return ACCOUNT.take(MemoryUse::Trees, bytes).await;
    }
    match ACCOUNT.try_take(MemoryUse::Trees, bytes) {
        Some(share) => Ok(share),
        None => ACCOUNT.take(MemoryUse::Small, bytes).await,
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
    fn all(&self) -> usize {
        self.ceiling(MemoryUse::Kept)
            + self.ceiling(MemoryUse::Records)
            + self.ceiling(MemoryUse::Small)
    }

    fn ceiling(&self, of: MemoryUse) -> usize {
        self.part * CEILINGS[of as usize]
    }

    /// Returns how many bytes one request may take of a use: what earlier uses leave free in any
    /// case.
    fn largest(&self, of: MemoryUse) -> usize {
        match of {
            MemoryUse::Small => self.ceiling(of) / RESERVED,
            MemoryUse::Kept | MemoryUse::Arriving => self.ceiling(of),
            _ => self.ceiling(of) - self.ceiling(MemoryUse::ALL[of as usize - 1]),
        }
    }

    fn fits(&self, state: &MemoryAccountState, of: MemoryUse, bytes: usize) -> bool {
        if matches!(of, MemoryUse::Kept | MemoryUse::Small) {
            return state.used[of as usize] + bytes <= self.ceiling(of);
        }
        let up_to = |last: MemoryUse| -> usize {
            state.used[MemoryUse::Arriving as usize..=last as usize].iter().sum()
        };
        let later = MemoryUse::ALL[of as usize..=MemoryUse::Records as usize].iter();
        later.copied().all(|last| up_to(last) + bytes <= self.ceiling(last))
    }

    fn grant(
        &'static self,
        state: &mut MemoryAccountState,
        of: MemoryUse,
        bytes: usize,
    ) -> MemoryShare {
        state.used[of as usize] += bytes;
        MemoryShare(Some(HeldMemory { account: self, of, bytes }))
    }

    fn try_take(&'static self, of: MemoryUse, bytes: usize) -> Option<MemoryShare> {
        let mut state = self.state();
        state.forget_the_gone(of);
        let free = state.waiting[of as usize].is_empty() && self.fits(&state, of, bytes);
        free.then(|| self.grant(&mut state, of, bytes))
    }

    /// Waits for memory, for at most `WAIT`. Requests that wait for the same use get it in the
    /// order in which they came.
    async fn take(&'static self, of: MemoryUse, bytes: usize) -> Result<MemoryShare> {
        let largest = self.largest(of);
        if bytes > largest {
            self.state().refused[of as usize] += 1;
            return Err(ApiError::too_large(format!(
                "Request entity too large: it needs {bytes} bytes of memory; one request may have \
                 {largest} of the server's limit: ask for less at a time, or raise the limit"
            )));
        }
        let granted = {
            let mut state = self.state();
            state.forget_the_gone(of);
            if state.waiting[of as usize].is_empty() && self.fits(&state, of, bytes) {
                return Ok(self.grant(&mut state, of, bytes));
            }
            let (grant, granted) = oneshot::channel();
            state.waiting[of as usize].push_back(MemoryWaiter { bytes, grant });
            granted
        };
        if let Ok(Ok(share)) = timeout(WAIT, granted).await {
            return Ok(share);
        }
        self.state().refused[of as usize] += 1;
        let waited = WAIT.as_secs();
        let name = of.name();
        Err(ApiError::too_many_requests(
            format!(
                "Too many large requests, please try again later: there was no room for {bytes} \
                 bytes ({name}) within {waited} s."
            ),
            1,
        ))
    }

    /// Returns `bytes` of a use to the budget, and grants them to requests that wait.
    fn give_back(&'static self, of: MemoryUse, bytes: usize) {
        let mut gone = Vec::new();
        let mut state = self.state();
        state.used[of as usize] -= bytes;
        for of in MemoryUse::ALL.into_iter().rev() {
            while let Some(next) = state.waiting[of as usize].front() {
                if !next.grant.is_closed() && !self.fits(&state, of, next.bytes) {
                    break;
                }
                let next = state.waiting[of as usize].pop_front().expect("it was just there");
                let share = self.grant(&mut state, of, next.bytes);
                // A request that stopped waiting gives its share back after the lock is released.
                gone.extend(next.grant.send(share).err());
            }
        }
        drop(state);
        drop(gone);
    }
}

impl MemoryAccountState {
    fn forget_the_gone(&mut self, of: MemoryUse) {
        self.waiting[of as usize].retain(|waiter| !waiter.grant.is_closed());
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
        let Some(held) = &mut self.0 else { return };
        let excess = held.bytes.saturating_sub(bytes);
        if excess > 0 {
            held.bytes -= excess;
            held.account.give_back(held.of, excess);
        }
    }

    /// Takes `bytes` more, if there is room at once. Memory that is empty so far is of the use
    /// `of`.
    #[must_use]
    pub fn try_grow(&mut self, of: MemoryUse, bytes: usize) -> bool {
        let account = self.0.as_ref().map_or(&*ACCOUNT, |held| held.account);
        let of = self.0.as_ref().map_or(of, |held| held.of);
        let Some(mut more) = account.try_take(of, bytes) else { return false };
        match &mut self.0 {
            Some(held) => {
                if let Some(more) = &mut more.0 {
                    held.bytes += mem::take(&mut more.bytes);
                }
            }
            none => *none = more.0.take(),
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
        let held = account.take(MemoryUse::Trees, 24 * MIB).await.unwrap();
        let more = account.take(MemoryUse::Trees, 16 * MIB).await.unwrap();
        let error = account.take(MemoryUse::Trees, MIB).await.unwrap_err();
        assert_eq!(error.code(), 429);
        assert!(
            error.to_string().contains("no room for 1048576 bytes (trees) within 10 s"),
            "{error}"
        );
        let waits = account.take(MemoryUse::Trees, MIB);
        let (share, ()) = futures::join!(waits, async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(held);
        });
        drop((share.unwrap(), more));
        assert_eq!(account.state().used, [0; USES]);
        let error = account.take(MemoryUse::Trees, 25 * MIB).await.unwrap_err();
        assert_eq!(error.code(), 413);
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
            let largest = account.largest(of).min(MIB);
            while let Some(share) = account.try_take(of, largest) {
                held.push(share);
            }
            let next = MemoryUse::ALL.into_iter().find(|next| *next > of);
            if let Some(next) = next {
                let room = account.try_take(next, account.largest(next));
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
        let trees = account.try_take(MemoryUse::Trees, 24 * MIB).unwrap();
        let bodies: Vec<_> =
            (0..5).map(|_| account.try_take(MemoryUse::Arriving, 3 * MIB)).collect();
        assert!(bodies.iter().all(Option::is_some), "{bodies:?}");
        assert!(
            account.try_take(MemoryUse::Arriving, 3 * MIB).is_none(),
            "more than their ceiling"
        );
        assert!(account.try_take(MemoryUse::Kept, 8 * MIB).is_some());
        drop((trees, bodies));
    }

    #[tokio::test]
    async fn what_is_small_goes_on_whatever_others_hold() {
        let account = account(256 * MIB);
        let mut held = Vec::new();
        for of in MemoryUse::ALL.into_iter().filter(|of| *of != MemoryUse::Small) {
            while let Some(share) = account.try_take(of, MIB) {
                held.push(share);
            }
        }
        assert!(account.try_take(MemoryUse::Trees, 1).is_none());
        assert!(account.try_take(MemoryUse::Small, account.largest(MemoryUse::Small)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_longest_is_next_and_who_left_is_forgotten() {
        let account = account(32 * MIB);
        let all = account.take(MemoryUse::Kept, MIB).await.unwrap();
        let left = timeout(Duration::from_secs(1), account.take(MemoryUse::Kept, MIB)).await;
        assert!(left.is_err());
        let mut first = Box::pin(account.take(MemoryUse::Kept, MIB));
        let mut second = Box::pin(account.take(MemoryUse::Kept, 1));
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
        let mut share = account.take(MemoryUse::Kept, 1000).await.unwrap();
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
            assert!(account.largest(of) >= 3 * MAX_TREE, "{of:?}");
        }
    }
}
