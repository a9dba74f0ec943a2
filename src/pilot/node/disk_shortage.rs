//! How much room a start needs after databases that ended for want of it.
//!
//! A database may make room by itself when it starts, so the first end for want of room is followed
//! by a start as soon as the volume has the least that any start needs. After a second one within
//! the hour the start waits until there is more room than that database left behind, or a tenth of
//! the volume is free: another one would end the same way, and each writes a little more.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Two ends within this time are of one shortage.
const ONE_SHORTAGE: Duration = Duration::from_secs(3600);
/// Bytes that must come free, or be added, before a start is tried again.
const MORE: u64 = 64 << 20;

/// The memory of one pilot of ends for want of room. Cheap to clone; all clones are one memory.
#[derive(Clone, Debug, Default)]
pub struct DiskShortage(Arc<Mutex<ShortageState>>);

#[derive(Debug, Default)]
struct ShortageState {
    last: Option<Instant>,
    /// The last end was not the first of its shortage.
    repeated: bool,
    /// Bytes that were free when the volume was first looked at after that end.
    left: Option<u64>,
}

impl DiskShortage {
    fn lock_state(&self) -> MutexGuard<'_, ShortageState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the database ended for want of room.
    pub fn record_shortage(&self, now: Instant) {
        let mut state = self.lock_state();
        let is_recent = |last: Instant| now.saturating_duration_since(last) < ONE_SHORTAGE;
        let repeated = state.last.is_some_and(is_recent);
        *state = ShortageState { last: Some(now), repeated, left: None };
    }

    /// Returns how many bytes of a volume must be free for the next start, where those that are do
    /// not suffice.
    pub fn required_bytes(&self, free: u64, capacity: u64) -> Option<u64> {
        let mut state = self.lock_state();
        if !state.repeated {
            return None;
        }
        let min_free = state.left.get_or_insert(free).saturating_add(MORE);
        let required_free = min_free.min(capacity / 10);
        (free < required_free).then_some(required_free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn a_second_end_for_want_of_room_waits_for_more_room_than_it_left() {
        let (shortage, now) = (DiskShortage::default(), Instant::now());
        assert_eq!(shortage.required_bytes(0, GIB), None, "nothing ended yet");
        shortage.record_shortage(now);
        assert_eq!(
            shortage.required_bytes(80 * MIB, 10 * GIB),
            None,
            "it may make room as it starts"
        );
        shortage.record_shortage(now + Duration::from_secs(60));
        assert_eq!(shortage.required_bytes(80 * MIB, 10 * GIB), Some(144 * MIB));
        assert_eq!(
            shortage.required_bytes(100 * MIB, 10 * GIB),
            Some(144 * MIB),
            "the measure stays"
        );
        assert_eq!(shortage.required_bytes(144 * MIB, 10 * GIB), None, "cleared, or grown");
        assert_eq!(shortage.required_bytes(100 * MIB, GIB), Some(GIB / 10), "a tenth suffices");
    }

    #[test]
    fn ends_that_lie_far_apart_are_shortages_of_their_own() {
        let (shortage, now) = (DiskShortage::default(), Instant::now());
        shortage.record_shortage(now);
        shortage.record_shortage(now + ONE_SHORTAGE);
        assert_eq!(shortage.required_bytes(80 * MIB, 10 * GIB), None);
    }
}
