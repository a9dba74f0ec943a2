//! Finds out whether the cluster needs a leader now: whether its lists are other than the Pilots
//! say, or a restart is announced.
//!
//! The pilot beside the elected master asks often, as a leader would, and so answers for all of
//! them. The other pilots ask seldom: the master may have no Pilot, or a pilot that may not lead.

use std::time::Duration;

use tokio::time::Instant;

use super::{lead_duties, restart_announcement};
use crate::{
    databases::elasticsearch::facts::Release,
    pilot::{
        clients::search_engine::SearchClient,
        driver::{DatabaseNode, Error},
    },
};

/// Pause between two looks at the lists by the pilots that are not beside the elected master.
const LISTS_EVERY: Duration = Duration::from_secs(30);
/// Pause between two searches for announced restarts, by the pilot beside the elected master while
/// no duty is known, and by any other. All indices are asked about.
const RESTARTS_EVERY: Duration = Duration::from_secs(20);
const RESTARTS_ELSEWHERE: Duration = Duration::from_secs(300);

/// What the looks so far have found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DutyLook {
    looked: Option<Instant>,
    searched: Option<Instant>,
    /// The lists were to be changed.
    differed: bool,
    /// A restart was announced.
    announced: bool,
}

impl DutyLook {
    /// Asks what is due to be asked; returns whether there is a duty. `is_elected`: the node is the
    /// elected master.
    pub(super) async fn update(
        &mut self,
        api: &SearchClient,
        node: &DatabaseNode,
        (release, is_elected): (Release, bool),
    ) -> Result<bool, Error> {
        let now = Instant::now();
        let is_due =
            |last: Option<Instant>, interval| last.is_none_or(|last| now - last >= interval);
        // What was found is asked for until it is gone.
        if is_elected || self.differed || is_due(self.looked, LISTS_EVERY) {
            self.differed = lead_duties::has_differences(api, node, release).await?;
            self.looked = Some(now);
        }
        let is_frequent = is_elected || self.announced;
        let interval = if is_frequent { RESTARTS_EVERY } else { RESTARTS_ELSEWHERE };
        if is_due(self.searched, interval) {
            self.announced = restart_announcement::is_announced(api).await?;
            self.searched = Some(now);
        }
        Ok(self.differed || self.announced)
    }
}
