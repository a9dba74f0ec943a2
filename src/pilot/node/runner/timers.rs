//! The machine's timers.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep_until};

use crate::pilot::node::machine::MachineTimer;

#[derive(Debug, Default)]
pub(super) struct MachineTimers(BTreeMap<MachineTimer, Instant>);

impl MachineTimers {
    pub(super) fn arm(&mut self, timer: MachineTimer, delay: Duration) {
        self.0.insert(timer, Instant::now() + delay);
    }

    pub(super) fn disarm(&mut self, timer: MachineTimer) {
        self.0.remove(&timer);
    }

    /// Waits for the next timer. Cancel-safe: a timer stays in the table until its time.
    pub(super) async fn next_due(&mut self) -> MachineTimer {
        let next = self.0.iter().min_by_key(|(_, at)| **at).map(|(timer, at)| (*timer, *at));
        let Some((timer, due_time)) = next else { return std::future::pending().await };
        sleep_until(due_time).await;
        self.0.remove(&timer);
        timer
    }
}
