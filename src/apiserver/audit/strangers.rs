//! Refusals of unauthenticated clients: for each address one in [`WHILE`] is recorded, with how
//! many were not.
//!
//! Owns the rule that these refusals cannot push other users' events out of the audit log. Here, an
//! unauthenticated client is an anonymous client that connects to us directly, without a
//! certificate signed by a trusted CA.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Least time between two recorded refusals of one address.
const WHILE: Duration = Duration::from_secs(10);
/// Most addresses that are distinguished; further addresses count as one.
const ADDRESSES: usize = 1024;

#[derive(Default)]
pub(super) struct StrangerRefusals(Mutex<HashMap<Option<IpAddr>, AddressRefusals>>);

/// Refusals of one address.
struct AddressRefusals {
    recorded: Instant,
    /// Refusals since `recorded`, which were only counted.
    unrecorded: u64,
}

impl StrangerRefusals {
    /// Counts a refusal. Returns how many before it were not recorded, or `None` if it is not to be
    /// recorded either.
    pub(super) fn count_refusal(&self, address: IpAddr) -> Option<u64> {
        let mut refusals_by_address = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut address = Some(address);
        if refusals_by_address.len() >= ADDRESSES && !refusals_by_address.contains_key(&address) {
            refusals_by_address.retain(|_, refusals| refusals.recorded.elapsed() < WHILE);
            if refusals_by_address.len() >= ADDRESSES {
                address = None;
            }
        }
        let now = Instant::now();
        match refusals_by_address.get_mut(&address) {
            Some(refusals) if now.duration_since(refusals.recorded) < WHILE => {
                refusals.unrecorded += 1;
                None
            }
            refusals => {
                let unrecorded = refusals.map_or(0, |refusals| refusals.unrecorded);
                refusals_by_address
                    .insert(address, AddressRefusals { recorded: now, unrecorded: 0 });
                Some(unrecorded)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_address_one_refusal_is_recorded_in_a_while() {
        let strangers = StrangerRefusals::default();
        let address = |at: u32| IpAddr::from(at.to_be_bytes());
        assert_eq!(strangers.count_refusal(address(1)), Some(0));
        assert_eq!(
            [strangers.count_refusal(address(1)), strangers.count_refusal(address(1))],
            [None, None]
        );
        assert_eq!(strangers.count_refusal(address(2)), Some(0));
        if let Some(before) = Instant::now().checked_sub(WHILE) {
            strangers.0.lock().unwrap().get_mut(&Some(address(1))).unwrap().recorded = before;
            assert_eq!(strangers.count_refusal(address(1)), Some(2));
        }
        let recorded =
            (0..5000).filter(|at| strangers.count_refusal(address(*at)).is_some()).count();
        assert!(recorded <= ADDRESSES + 1, "{recorded}");
        assert!(strangers.0.lock().unwrap().len() <= ADDRESSES + 1);
    }
}
