//! Pauses between tries at the API, the same for every loop of a pilot.
//!
//! Owns the length of the pauses: doubled from a second to half a minute. The first ones are spread
//! over half of their length, so that the pilots of a cluster do not try in step while an outage is
//! short; the longest by 15 % to both sides, so that a pilot tries about every 30 s and notices
//! within 35 s that the API is back.

use std::time::Duration;

use kube::runtime::utils::{Backoff as Pauses, ResetTimerBackoff};

const FIRST: Duration = Duration::from_secs(1);
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// How long a watch must hold to count as repaired: then its pauses begin anew.
const HELD: Duration = Duration::from_secs(120);

/// The pauses after failures in a row.
#[derive(Clone, Debug, Default)]
pub struct RetryBackoff {
    failures: u32,
}

impl RetryBackoff {
    /// Counts one more failure and returns how long to wait after it.
    pub fn next_pause(&mut self) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let dice = rand::random::<f64>();
        if doubled < LONGEST {
            doubled.mul_f64(0.5 + dice / 2.0)
        } else {
            LONGEST.mul_f64(0.85 + dice * 0.3)
        }
    }

    /// Returns the pauses of a watch, which begin anew only when it has held for `HELD`: its list
    /// may succeed and the watch fail, again and again.
    pub fn of_watch() -> impl Pauses {
        ResetTimerBackoff::new(Self::default(), HELD)
    }
}

impl Iterator for RetryBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_pause())
    }
}

impl Pauses for RetryBackoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_a_second_to_half_a_minute_and_never_agree() {
        let mut backoff = RetryBackoff::default();
        for seconds in [1.0, 2.0, 4.0, 8.0, 16.0] {
            let pause = backoff.next_pause().as_secs_f64();
            assert!((seconds / 2.0..=seconds).contains(&pause), "{pause} of {seconds}");
        }
        let longest: Vec<f64> = (0..100).map(|_| backoff.next_pause().as_secs_f64()).collect();
        assert!(longest.iter().all(|pause| (25.5..=34.5).contains(pause)), "{longest:?}");
        assert!(longest.windows(2).any(|two| (two[0] - two[1]).abs() > 1.0), "{longest:?}");
        backoff.reset();
        assert!(backoff.next_pause() <= FIRST);
    }
}
