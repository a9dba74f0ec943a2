//! Limits how often the agent restores the key file, so that two programs do not write it in turn
//! for ever.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Number of times that the agent restores the file within a period.
const BURST: usize = 10;

/// When the agent may restore the file next.
#[derive(Debug)]
pub(crate) struct MendingPace {
    period: Duration,
    /// The last times, oldest first.
    mended: VecDeque<Instant>,
    /// The agent restores the file only once in a period, until two periods pass without need.
    slow: bool,
}

impl MendingPace {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period, mended: VecDeque::with_capacity(BURST), slow: false }
    }

    /// Returns when the agent may restore the file that it found changed at `now`.
    pub(crate) fn next_write_time(&mut self, now: Instant) -> Instant {
        let Some(last_write) = self.mended.back().copied() else { return now };
        if now.duration_since(last_write) >= 2 * self.period {
            self.slow = false;
        }
        let is_full = self.mended.len() == BURST;
        let oldest_write = self.mended.front().copied().unwrap_or(last_write);
        if is_full && now.duration_since(oldest_write) < self.period {
            self.slow = true;
        }
        if self.slow { now.max(last_write + self.period) } else { now }
    }

    /// Records that the agent restored the file.
    pub(crate) fn record_write(&mut self, now: Instant) {
        if self.mended.len() == BURST {
            self.mended.pop_front();
        }
        self.mended.push_back(now);
    }

    /// Returns whether the agent restores the file only once in a period.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_in_a_minute_and_then_one_until_it_was_quiet() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut pace = MendingPace::new(Duration::from_secs(60));
        for second in 0..10 {
            assert_eq!(pace.next_write_time(at(second)), at(second));
            pace.record_write(at(second));
        }
        assert_eq!(pace.next_write_time(at(10)), at(69));
        assert!(pace.is_slow());
        pace.record_write(at(69));
        assert_eq!(pace.next_write_time(at(70)), at(129), "it is not ten a minute again");
        pace.record_write(at(129));
        assert_eq!(pace.next_write_time(at(200)), at(200));
        pace.record_write(at(200));
        assert!(pace.is_slow());
        assert_eq!(pace.next_write_time(at(320)), at(320));
        assert!(!pace.is_slow());
    }
}
