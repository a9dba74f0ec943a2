//! How often the key file is mended, so that the agent and another program do not write it in turn for
//! ever.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Times that the file is mended within a period.
const BURST: usize = 10;

/// When the file may be mended next.
#[derive(Debug)]
pub(crate) struct MendingPace {
    period: Duration,
    /// The last times, oldest first.
    mended: VecDeque<Instant>,
    /// Once in a period, until nothing was to mend for two.
    slow: bool,
}

impl MendingPace {
    pub(crate) fn new(period: Duration) -> Self {
        Self { period, mended: VecDeque::with_capacity(BURST), slow: false }
    }

    /// Returns when the file may be mended that was found changed at this time.
    pub(crate) fn next(&mut self, now: Instant) -> Instant {
        let Some(last) = self.mended.back().copied() else { return now };
        if now.duration_since(last) >= 2 * self.period {
            self.slow = false;
        }
        let full = self.mended.len() == BURST;
        let oldest = self.mended.front().copied().unwrap_or(last);
        if full && now.duration_since(oldest) < self.period {
            self.slow = true;
        }
        if self.slow { now.max(last + self.period) } else { now }
    }

    /// Takes note that the file was mended.
    pub(crate) fn mended(&mut self, now: Instant) {
        if self.mended.len() == BURST {
            self.mended.pop_front();
        }
        self.mended.push_back(now);
    }

    /// Is the file mended once in a period only?
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
            assert_eq!(pace.next(at(second)), at(second));
            pace.mended(at(second));
        }
        assert_eq!(pace.next(at(10)), at(69));
        assert!(pace.is_slow());
        pace.mended(at(69));
        assert_eq!(pace.next(at(70)), at(129), "it is not ten a minute again");
        pace.mended(at(129));
        assert_eq!(pace.next(at(200)), at(200));
        pace.mended(at(200));
        assert!(pace.is_slow());
        assert_eq!(pace.next(at(320)), at(320));
        assert!(!pace.is_slow());
    }
}
