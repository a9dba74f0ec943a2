//! Which candidate may hold a lease: a record and a moment in, a move out. Pure.
//!
//! Owns the rules; knows no object, no client and no clock of its own. Leaves to
//! [`LeaderElector`](super::LeaderElector) the reading and the compare-and-swap.
//!
//! Invariant: a candidate takes another's lease only after the record stood unchanged before its
//! own eyes for the whole duration. A holder stops after a shorter time without renewal, so no two
//! candidates ever believe at once that they lead, whatever their wall clocks say.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use tokio::time::Instant;

/// What a lease says, whichever kind of object carries it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Empty or absent: the lease is free.
    pub holder: Option<String>,
    pub seconds: Option<i32>,
    pub acquired: Option<MicroTime>,
    pub renewed: Option<MicroTime>,
    /// Changes of holder so far: numbers the reigns.
    pub transitions: Option<i32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseMove {
    /// Another candidate holds the lease, until this moment at least.
    Wait(Instant),
    /// Take or renew the lease by writing this record over what was read; the writer leads once it
    /// is stored.
    Write(LeaseRecord),
}

/// What one candidate remembers from look to look.
#[derive(Debug)]
pub(super) struct LeaseCandidate {
    identity: String,
    duration: Duration,
    /// Version of the lease as last read, and when it was first seen.
    seen: Option<(String, Instant)>,
    /// Number and beginning of the reign that this candidate tried to begin last. The pair tells
    /// its own reign from one of an earlier process of the same name, and finds a reign whose
    /// answer was lost.
    reign: Option<(i32, MicroTime)>,
}

impl LeaseCandidate {
    pub(super) fn new(identity: String, duration: Duration) -> Self {
        Self { identity, duration, seen: None, reign: None }
    }

    /// Decides what to do about the lease that was read with its version; `now` is when the answer
    /// came, `wall` is only shown to people.
    pub(super) fn decide_move(
        &mut self,
        observed_lease: Option<(&LeaseRecord, &str)>,
        now: Instant,
        wall: Timestamp,
    ) -> LeaseMove {
        let wall = to_micro_time(wall);
        let Some((record, version)) = observed_lease else { return self.begin_term(0, wall) };
        let first_seen = match &self.seen {
            Some((seen_version, first_read)) if seen_version == version => *first_read,
            _ => self.seen.insert((version.to_owned(), now)).1,
        };
        if self.is_own(record) {
            return LeaseMove::Write(LeaseRecord {
                renewed: Some(wall),
                ..self.held_record(record)
            });
        }
        let is_free = record.holder.as_deref().unwrap_or_default().is_empty();
        let seconds = record.seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let expiry = first_seen + seconds.map_or(self.duration, Duration::from_secs);
        if !is_free && now < expiry {
            return LeaseMove::Wait(expiry);
        }
        self.begin_term(record.transitions.map_or(0, |count| count.saturating_add(1)), wall)
    }

    /// Returns the record that frees the lease for the next candidate; `None` when this candidate
    /// does not hold it.
    pub(super) fn freed_record(&self, record: &LeaseRecord) -> Option<LeaseRecord> {
        self.is_own(record).then(|| LeaseRecord {
            holder: None,
            seconds: Some(1),
            ..record.clone()
        })
    }

    /// Did this candidate ever try to lead?
    pub(super) fn has_tried(&self) -> bool {
        self.reign.is_some()
    }

    /// Returns the number of the reign that this candidate tried to begin last.
    pub(super) fn transition(&self) -> i32 {
        self.reign.as_ref().map_or(0, |(number, _)| *number)
    }

    fn is_own(&self, record: &LeaseRecord) -> bool {
        let reign = record.transitions.zip(record.acquired.clone());
        record.holder.as_ref() == Some(&self.identity) && reign.is_some() && reign == self.reign
    }

    fn begin_term(&mut self, number: i32, wall: MicroTime) -> LeaseMove {
        self.reign = Some((number, wall.clone()));
        LeaseMove::Write(LeaseRecord {
            acquired: Some(wall.clone()),
            renewed: Some(wall),
            transitions: Some(number),
            ..self.held_record(&LeaseRecord::default())
        })
    }

    fn held_record(&self, record: &LeaseRecord) -> LeaseRecord {
        LeaseRecord {
            holder: Some(self.identity.clone()),
            seconds: Some(i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX)),
            ..record.clone()
        }
    }
}

/// Makes a time as precise as it is stored: otherwise a candidate would not recognise its own reign
/// when it reads the lease back.
fn to_micro_time(time: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

    fn wall(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn candidate(name: &str) -> LeaseCandidate {
        LeaseCandidate::new(name.to_owned(), DURATION)
    }

    fn written(step: LeaseMove) -> LeaseRecord {
        match step {
            LeaseMove::Write(record) => record,
            LeaseMove::Wait(until) => panic!("waits until {until:?}"),
        }
    }

    #[test]
    fn a_free_or_absent_lease_is_taken_and_reigns_are_numbered() {
        let now = Instant::now();
        let first = written(candidate("a").decide_move(None, now, wall(1)));
        assert_eq!((first.holder.as_deref(), first.transitions), (Some("a"), Some(0)));
        // A record without a holder, as in an object made for another purpose: no candidate ever
        // held it.
        let blank =
            written(candidate("a").decide_move(Some((&LeaseRecord::default(), "1")), now, wall(1)));
        assert_eq!(blank.transitions, Some(0));
        let released = LeaseRecord { holder: Some(String::new()), ..first };
        let next = written(candidate("b").decide_move(Some((&released, "1")), now, wall(2)));
        assert_eq!((next.holder.as_deref(), next.transitions), (Some("b"), Some(1)));
    }

    #[test]
    fn a_held_lease_is_waited_for_from_when_it_was_last_seen_to_change() {
        let now = Instant::now();
        let mut holder = candidate("a");
        let held = written(holder.decide_move(None, now, wall(1)));
        let mut other = candidate("b");
        // The wall clock of `other` is an hour ahead, and makes no difference.
        assert_eq!(
            other.decide_move(Some((&held, "1")), now, wall(3601)),
            LeaseMove::Wait(now + DURATION)
        );
        let later = now + Duration::from_secs(14);
        let renewed = written(holder.decide_move(Some((&held, "1")), later, wall(15)));
        assert_eq!((&renewed.acquired, renewed.transitions), (&held.acquired, held.transitions));
        assert_eq!(
            other.decide_move(Some((&renewed, "2")), later, wall(0)),
            LeaseMove::Wait(later + DURATION)
        );
        let taken = written(other.decide_move(Some((&renewed, "2")), later + DURATION, wall(0)));
        assert_eq!((taken.holder.as_deref(), taken.transitions), (Some("b"), Some(1)));
        // The old holder is a candidate like any other then.
        let end = later + DURATION;
        assert_eq!(
            holder.decide_move(Some((&taken, "3")), end, wall(9)),
            LeaseMove::Wait(end + DURATION)
        );
        assert_eq!(holder.freed_record(&taken), None);
    }

    #[test]
    fn a_reign_whose_answer_was_lost_is_found_again_and_a_namesakes_is_not() {
        let now = Instant::now();
        let mut first = candidate("a");
        let stored = written(first.decide_move(None, now, wall(1)));
        let again = written(first.decide_move(Some((&stored, "1")), now, wall(2)));
        assert_eq!(again.transitions, stored.transitions);
        let mut namesake = candidate("a");
        assert_eq!(
            namesake.decide_move(Some((&again, "2")), now, wall(3)),
            LeaseMove::Wait(now + DURATION)
        );
        assert_eq!(namesake.freed_record(&again), None);
        let freed = first.freed_record(&again).unwrap();
        assert_eq!((freed.holder, freed.transitions), (None, Some(0)));
    }

    #[test]
    fn the_holders_own_duration_counts_and_nonsense_does_not() {
        let now = Instant::now();
        for (seconds, waits) in [(Some(40), 40), (None, 15), (Some(-1), 15)] {
            let held =
                LeaseRecord { holder: Some("a".to_owned()), seconds, ..LeaseRecord::default() };
            let until = now + Duration::from_secs(waits);
            assert_eq!(
                candidate("b").decide_move(Some((&held, "1")), now, wall(1)),
                LeaseMove::Wait(until)
            );
        }
    }
}
