//! How fast a volume fills, and when it will be full at that rate. Pure.

use std::{collections::VecDeque, time::Duration};

/// The time over which the rate is taken, and the least that says anything.
const WINDOW: Duration = Duration::from_secs(3600);
const LEAST: Duration = Duration::from_secs(300);
/// Pause between two figures that are kept.
const EVERY: Duration = Duration::from_secs(60);
/// A volume that fills more slowly says no time: compactions alone move that much.
const FAR: Duration = Duration::from_secs(30 * 24 * 3600);

/// The use of a volume in the last hour.
#[derive(Debug, Default)]
pub struct FillRate {
    /// Times, since whatever moment, with the bytes in use.
    samples: VecDeque<(Duration, i64)>,
}

impl FillRate {
    /// Takes the bytes in use at `now`.
    pub fn record_usage(&mut self, now: Duration, used: i64) {
        if self.samples.back().is_some_and(|(time, _)| now.saturating_sub(*time) < EVERY) {
            return;
        }
        self.samples.push_back((now, used));
        while self.samples.front().is_some_and(|(time, _)| now.saturating_sub(*time) > WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Returns how long the volume takes to fill, with `free_bytes` bytes free; `None` while it
    /// does not grow, or while too little is known.
    pub fn full_in(&self, free_bytes: i64) -> Option<Duration> {
        let ((first, first_bytes), (last, last_bytes)) =
            (self.samples.front()?, self.samples.back()?);
        let (time, grown) = (last.saturating_sub(*first), last_bytes - first_bytes);
        if time < LEAST || grown <= 0 || free_bytes < 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = time.as_secs_f64() * free_bytes as f64 / grown as f64;
        (seconds < FAR.as_secs_f64()).then(|| Duration::from_secs_f64(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u64) -> Duration {
        Duration::from_secs(minute * 60)
    }

    #[test]
    fn a_volume_that_grows_says_when_it_is_full_and_others_say_nothing() {
        let mut rate = FillRate::default();
        assert_eq!(rate.full_in(100), None);
        for minute in 0..=3 {
            rate.record_usage(at(minute), 100 + i64::try_from(minute).unwrap() * 10);
        }
        assert_eq!(rate.full_in(100), None, "three minutes say nothing");
        for minute in 4..=10 {
            rate.record_usage(at(minute), 100 + i64::try_from(minute).unwrap() * 10);
        }
        assert_eq!(rate.full_in(600), Some(at(60)));
        assert_eq!(rate.full_in(i64::MAX), None, "some year");
        rate.record_usage(at(11), 90);
        assert_eq!(rate.full_in(600), None, "it shrank");
    }

    #[test]
    fn what_happened_before_the_last_hour_does_not_count() {
        let mut rate = FillRate::default();
        for minute in 0..200 {
            rate.record_usage(at(minute), if minute < 100 { 0 } else { 500 });
        }
        assert_eq!(rate.full_in(100), None, "it grew once, long ago");
        assert!(rate.samples.len() <= 62);
    }
}
