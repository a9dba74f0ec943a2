//! How far a move of data is, from what the database says of its transfers.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What was seen of the transfers of one move, some of which the database no longer lists.
#[derive(Debug, Default)]
pub struct TransferProgress {
    /// By name, the most bytes to send and the most bytes sent that were seen: totals of a database
    /// shrink when parts of a transfer finish.
    transfers: BTreeMap<String, (i64, i64)>,
    pub idle_since: Option<Instant>,
}

impl TransferProgress {
    /// Takes the transfers that run now: name, bytes to send, bytes sent.
    pub fn record_transfers<'a>(&mut self, transfers: impl Iterator<Item = (&'a str, i64, i64)>) {
        let mut is_idle = true;
        for (name, total, sent) in transfers {
            let maximum = self.transfers.entry(name.to_owned()).or_default();
            *maximum = (maximum.0.max(total), maximum.1.max(sent));
            is_idle = false;
        }
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or_else(Instant::now));
    }

    /// Returns for how long no transfer has run.
    pub fn idle_duration(&self) -> Duration {
        self.idle_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the bytes left to send and the percentage sent, at most 99: only the database says
    /// that a move is done. `None` while no bytes to send are known.
    pub fn progress(&self) -> Option<(i64, i32)> {
        let (total, sent) =
            self.transfers.values().fold((0, 0), |(total, sent), (t, s)| (total + t, sent + s));
        let percent = i32::try_from((sent * 100).checked_div(total)?).ok()?;
        Some((total - sent, percent.clamp(0, 99)))
    }
}
