//! Asks Cassandra which ranges the node owns, and records on the volume of which ranges it may hold
//! rows.

use std::time::Instant;

use serde_json::{Map, Value};

use super::{
    CassandraDriver,
    held_ranges::{OwnedRanges, RangeMap},
    keyspaces::{self, KeyspaceReplicas, is_users, unclear_replicas},
    node_view::NodeView,
    upkeep::{RingState, UpkeepState},
};
use crate::{
    error::chain,
    pilot::{
        clients::jolokia::{JolokiaClient, parse_addresses},
        driver::Error,
        query_answer::UnansweredQuery,
        volume::remembered_state::save_error,
    },
};

/// The ranges of some keyspaces.
#[derive(Debug, Default)]
pub(super) struct RangeSurvey {
    /// The ranges that the node owns.
    pub(super) owned: OwnedRanges,
    /// True when any range of the ring has more than one replica.
    pub(super) is_shared: bool,
    /// See [`UpkeepState::replication_factor`].
    pub(super) replication_factor: Option<usize>,
}

/// Asks for the ranges of `keyspaces`.
pub(super) async fn query_ranges(
    jolokia: &JolokiaClient,
    facts: &NodeView,
    keyspaces: Vec<String>,
) -> Result<RangeSurvey, Error> {
    let mut survey = RangeSurvey::default();
    let is_own = |replicas: &Value| {
        let own_address = facts.address;
        replicas.is_array().then(|| {
            own_address.is_some_and(|address| parse_addresses(replicas).contains(&address))
        })
    };
    let datacenter = facts.own_endpoint().and_then(|endpoint| endpoint.datacenter.as_deref());
    for KeyspaceReplicas { keyspaces: keyspace_names, factors, ranges } in
        keyspaces::read_replicas(jolokia, keyspaces).await?
    {
        if keyspace_names.iter().any(|keyspace| is_users(keyspace)) {
            let factor = datacenter.and_then(|name| factors.get(name)).copied();
            survey.replication_factor = survey.replication_factor.max(factor);
        }
        let map = ranges.or_fail()?;
        let mut replicas = map.as_object().into_iter().flat_map(Map::values);
        survey.is_shared |= replicas.any(|replicas| parse_addresses(replicas).len() > 1);
        match RangeMap::parse(&map, is_own) {
            RangeMap::Own(ranges) => {
                let owned = keyspace_names.into_iter().map(|keyspace| (keyspace, ranges.clone()));
                survey.owned.extend(owned);
            }
            RangeMap::OtherPartitioner => {}
            RangeMap::Nonsense => return Err(unclear_replicas(&keyspace_names[0]).into()),
        }
    }
    Ok(survey)
}

impl CassandraDriver {
    pub(super) fn upkeep_state<T>(&self, update: impl FnOnce(&mut UpkeepState) -> T) -> T {
        update(&mut self.upkeep.lock().expect("no panic while held"))
    }

    /// Asks which ranges the node owns, when these may have changed. Returns the request that was
    /// not answered, and why the result could not be saved.
    pub(super) async fn survey_ranges(
        &self,
        jolokia: &JolokiaClient,
        facts: &NodeView,
    ) -> (Option<UnansweredQuery>, Option<String>) {
        // A node's ranges stay the same while it joins or leaves.
        if facts.mode != "NORMAL" {
            return (None, None);
        }
        match self.recall_holdings().await {
            Ok(true) => {}
            // The volume is busy: the next observation tries again.
            Ok(false) => return (None, None),
            Err(error) => {
                let message = chain(&error).to_string();
                self.upkeep_state(|upkeep| upkeep.open = Some(message.clone()));
                return (None, Some(message));
            }
        }
        if !self.upkeep_state(|upkeep| upkeep.is_stale(facts)) {
            return (None, None);
        }
        let query = async {
            let mut keyspace_names = keyspaces::list_keyspaces(jolokia).await?;
            keyspace_names
                .retain(|keyspace| self.upkeep_state(|upkeep| upkeep.is_tracked(keyspace)));
            query_ranges(jolokia, facts, keyspace_names).await
        };
        match query.await {
            Ok(survey) => (None, self.record_survey(facts, survey).await),
            Err(error) => {
                let unanswered_query = match error {
                    Error::NotHeard(unanswered_query) => unanswered_query,
                    error => {
                        UnansweredQuery::new("getRangeToEndpointMap", chain(&error).to_string())
                    }
                };
                self.upkeep_state(|upkeep| {
                    upkeep.open = Some(unanswered_query.to_string());
                    // A cleanup that was due still is due. Where none was due, that is no longer
                    // certain.
                    if upkeep.pending_keyspaces().is_some_and(|keyspaces| keyspaces.is_empty()) {
                        upkeep.owned = None;
                    }
                    upkeep.is_shared = upkeep.is_shared.filter(|is_shared| *is_shared);
                });
                (Some(unanswered_query), None)
            }
        }
    }

    async fn record_survey(&self, facts: &NodeView, survey: RangeSurvey) -> Option<String> {
        let RangeSurvey { owned, is_shared, replication_factor } = survey;
        let has_changed = self.upkeep_state(|upkeep| {
            let ring_state = RingState::from_view(facts);
            let members = Some(ring_state.members.len());
            let has_changed = upkeep.holdings.as_mut().is_some_and(|holdings| {
                let has_new_count = std::mem::replace(&mut holdings.members, members) != members;
                holdings.record_owned(&owned) || has_new_count
            });
            upkeep.owned = Some(owned);
            upkeep.is_shared = Some(is_shared);
            upkeep.replication_factor = replication_factor.and_then(|n| n.try_into().ok());
            upkeep.surveyed = Some((ring_state, Instant::now()));
            upkeep.open = None;
            has_changed
        });
        if has_changed { self.save_holdings().await } else { None }
    }

    /// Reads the holdings from the volume unless they are in memory; returns whether they are now.
    async fn recall_holdings(&self) -> Result<bool, Error> {
        if self.upkeep_state(|upkeep| upkeep.holdings.is_some()) {
            return Ok(true);
        }
        let stored_ranges = self.ranges.try_change(|ranges| ranges.clone()).await?;
        Ok(self.upkeep_state(|upkeep| {
            upkeep.holdings = stored_ranges;
            upkeep.holdings.is_some()
        }))
    }

    /// Saves the holdings, unless the volume is busy. Returns why that failed.
    pub(super) async fn save_holdings(&self) -> Option<String> {
        let holdings = self.upkeep_state(|upkeep| upkeep.holdings.clone())?;
        save_error(self.ranges.try_change(move |ranges| *ranges = holdings).await)
    }
}
