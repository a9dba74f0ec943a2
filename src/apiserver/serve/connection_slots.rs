//! Decides which clients may hold a connection.
//!
//! The server accepts a new connection if another one is unused, and cuts an unused one for it. It
//! chooses from the address with the most connections. One that never sent a request goes before
//! one without a running request, and of those the oldest goes first. So a crowd from a few
//! addresses makes room among its own connections, whether or not it sent requests. A client from
//! another address has the time for its handshake and its request. An address at its limit of
//! connections makes room among its own, too.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Most connections in all, and from one address. Through the aggregator everything comes from the
/// few addresses of kube-apiservers, each of which carries a thousand requests at a time on one
/// HTTP/2 connection: the second number bounds no client that means well.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    pub(super) all: usize,
    pub(super) per_address: usize,
}

pub(super) const MOST: ConnectionLimits = ConnectionLimits { all: 1024, per_address: 256 };

/// How a connection is used.
#[derive(Debug, Default)]
pub(super) struct ConnectionUse {
    /// Number of requests between their head and the end of their response's body.
    running: AtomicUsize,
    /// Whether the connection has had a request.
    ever: AtomicBool,
    /// Whether a request has begun since [`had_requests`](Self::had_requests) was asked last.
    lately: AtomicBool,
}

impl ConnectionUse {
    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Whether a request is running, or has begun since this was asked last.
    pub(super) fn had_requests(&self) -> bool {
        self.lately.swap(false, Ordering::Relaxed) || self.is_running()
    }

    pub(super) fn was_used(&self) -> bool {
        self.ever.load(Ordering::Relaxed)
    }
}

/// Counts a request as running until it is dropped.
pub(super) struct ConnectionUseGuard(Arc<ConnectionUse>);

impl ConnectionUseGuard {
    pub(super) fn new(connection: &Arc<ConnectionUse>) -> Self {
        connection.running.fetch_add(1, Ordering::Relaxed);
        connection.ever.store(true, Ordering::Relaxed);
        connection.lately.store(true, Ordering::Relaxed);
        Self(Arc::clone(connection))
    }
}

impl Drop for ConnectionUseGuard {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The slots for open connections.
pub(super) struct ConnectionSlots {
    most: ConnectionLimits,
    held: Mutex<HeldSlots>,
    open: watch::Sender<usize>,
}

#[derive(Default)]
struct HeldSlots {
    next: u64,
    /// Holders of slots, by the age of their connections.
    holders: BTreeMap<u64, SlotHolder>,
    per_address: BTreeMap<IpAddr, usize>,
}

struct SlotHolder {
    address: IpAddr,
    used: Arc<ConnectionUse>,
    cut: CancellationToken,
}

/// The right of a connection to be open; dropping it frees the slot.
pub(super) struct ConnectionSlot {
    id: u64,
    places: Arc<ConnectionSlots>,
    pub(super) used: Arc<ConnectionUse>,
    cut: CancellationToken,
}

impl ConnectionSlots {
    pub(super) fn new(most: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { most, held: Mutex::default(), open: watch::Sender::default() })
    }

    fn lock_slots(&self) -> MutexGuard<'_, HeldSlots> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a new connection, if need be that of an unused connection; `None` when all
    /// are in use.
    pub(super) fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionSlot> {
        let mut slots = self.lock_slots();
        if slots.per_address.get(&address).is_some_and(|count| *count >= self.most.per_address) {
            slots.cut_unneeded(|holder| holder.address == address)?;
        } else if slots.holders.len() >= self.most.all {
            slots.cut_unneeded(|_| true)?;
        }
        let id = slots.next;
        slots.next += 1;
        let (connection_use, cut) = (Arc::<ConnectionUse>::default(), CancellationToken::new());
        let holder = SlotHolder { address, used: Arc::clone(&connection_use), cut: cut.clone() };
        slots.holders.insert(id, holder);
        *slots.per_address.entry(address).or_default() += 1;
        drop(slots);
        self.open.send_modify(|open| *open += 1);
        Some(ConnectionSlot { id, places: Arc::clone(self), used: connection_use, cut })
    }

    /// Returns the number of connections that have not ended, those that were cut and are about to
    /// end included.
    pub(super) fn open_count(&self) -> usize {
        *self.open.borrow()
    }

    /// Waits until the last connection ended.
    pub(super) async fn all_closed(&self) {
        let mut open_receiver = self.open.subscribe();
        // The sender lives as long as `self`.
        drop(open_receiver.wait_for(|count| *count == 0).await);
    }
}

impl HeldSlots {
    /// Cuts the connection that is needed least of those for which `is_candidate` holds; `None` if
    /// all are in use.
    fn cut_unneeded(&mut self, is_candidate: impl Fn(&SlotHolder) -> bool) -> Option<()> {
        let address_count = |holder: &SlotHolder| self.per_address.get(&holder.address).copied();
        let candidates = self
            .holders
            .iter()
            .filter(|(_, holder)| is_candidate(holder) && !holder.used.is_running());
        let victim = candidates.max_by_key(|(id, holder)| {
            (address_count(holder), !holder.used.was_used(), Reverse(**id))
        });
        let victim = victim.map(|(id, _)| *id)?;
        self.remove(victim).map(|holder| holder.cut.cancel())
    }

    fn remove(&mut self, id: u64) -> Option<SlotHolder> {
        let holder = self.holders.remove(&id)?;
        if let Some(count) = self.per_address.get_mut(&holder.address) {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&holder.address);
            }
        }
        Some(holder)
    }
}

impl ConnectionSlot {
    /// Waits until the slot is given to another connection.
    pub(super) async fn wait_for_cut(&self) {
        self.cut.cancelled().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        drop(self.places.lock_slots().remove(self.id));
        self.places.open.send_modify(|open| *open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    #[test]
    fn idle_connections_give_way_to_newcomers_and_busy_ones_never() {
        let places = ConnectionSlots::new(ConnectionLimits { all: 3, per_address: 3 });
        let busy = places.acquire(address(1)).unwrap();
        let _request = ConnectionUseGuard::new(&busy.used);
        let idle = places.acquire(address(2)).unwrap();
        drop(ConnectionUseGuard::new(&idle.used));
        let silent = places.acquire(address(3)).unwrap();
        let first = places.acquire(address(4)).unwrap();
        assert!(silent.cut.is_cancelled(), "it never sent a request");
        let _first = ConnectionUseGuard::new(&first.used);
        let second = places.acquire(address(5)).unwrap();
        assert!(idle.cut.is_cancelled(), "it has no request under way");
        let _second = ConnectionUseGuard::new(&second.used);
        assert!(places.acquire(address(6)).is_none(), "all are in use");
        assert!(!busy.cut.is_cancelled());
        drop(busy);
        assert!(places.acquire(address(6)).is_some());
    }

    #[test]
    fn a_crowd_of_a_few_addresses_makes_room_among_its_own() {
        let places = ConnectionSlots::new(ConnectionLimits { all: 8, per_address: 8 });
        let shaking_hands = places.acquire(address(9)).unwrap();
        let idle = places.acquire(address(8)).unwrap();
        drop(ConnectionUseGuard::new(&idle.used));
        let crowd: Vec<_> = (0..40).map(|at| places.acquire(address(at % 3)).unwrap()).collect();
        assert!(!shaking_hands.cut.is_cancelled() && !idle.cut.is_cancelled());
        let left = crowd.iter().filter(|place| !place.cut.is_cancelled()).count();
        assert_eq!(left, 6);
        assert!(!crowd[39].cut.is_cancelled(), "the last one has the same chance");
    }

    #[test]
    fn a_crowd_that_sent_requests_makes_no_room_by_the_handshakes_of_others() {
        let places = ConnectionSlots::new(ConnectionLimits { all: 4, per_address: 4 });
        let crowd: Vec<_> = (0..3).map(|_| places.acquire(address(1)).unwrap()).collect();
        for place in &crowd {
            drop(ConnectionUseGuard::new(&place.used));
        }
        let shaking_hands = places.acquire(address(9)).unwrap();
        let newest = places.acquire(address(1)).unwrap();
        assert!(crowd[0].cut.is_cancelled(), "it is the oldest of the crowd");
        drop(ConnectionUseGuard::new(&newest.used));
        let _next = places.acquire(address(1)).unwrap();
        assert!(crowd[1].cut.is_cancelled() && !newest.cut.is_cancelled());
        assert!(!shaking_hands.cut.is_cancelled(), "its address holds one connection");
    }

    #[test]
    fn an_address_with_many_connections_makes_room_among_its_own() {
        let places = ConnectionSlots::new(ConnectionLimits { all: 10, per_address: 2 });
        let other = places.acquire(address(9)).unwrap();
        let taken: Vec<_> = (0..5).map(|_| places.acquire(address(1)).unwrap()).collect();
        let cut: Vec<_> = taken.iter().map(|place| place.cut.is_cancelled()).collect();
        assert_eq!(cut, [true, true, true, false, false]);
        assert!(!other.cut.is_cancelled());
        assert_eq!(places.open_count(), 6, "those that were cut have not ended yet");
        drop((taken, other));
        assert_eq!(places.open_count(), 0);
        assert!(places.lock_slots().per_address.is_empty());
    }
}
