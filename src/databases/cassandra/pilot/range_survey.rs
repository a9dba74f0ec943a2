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
        volume::remembered_state::unsaved,
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
pub(super) async fn ask(
    jolokia: &JolokiaClient,
    facts: &NodeView,
    keyspaces: Vec<String>,
) -> Result<RangeSurvey, Error> {
    let mut survey = RangeSurvey::default();
    let is_own = |replicas: &Value| {
        let own = facts.address;
        replicas.is_array().then(|| own.is_some_and(|own| parse_addresses(replicas).contains(&own)))
    };
    let datacenter = facts.own().and_then(|own| own.datacenter.as_deref());
    for KeyspaceReplicas { keyspaces: alike, factors, ranges } in
        keyspaces::replicas(jolokia, keyspaces).await?
    {
        if alike.iter().any(|keyspace| is_users(keyspace)) {
            let factor = datacenter.and_then(|own| factors.get(own)).copied();
            survey.replication_factor = survey.replication_factor.max(factor);
        }
        let map = ranges.or_fail()?;
        let mut replicas = map.as_object().into_iter().flat_map(Map::values);
        survey.is_shared |= replicas.any(|replicas| parse_addresses(replicas).len() > 1);
        match RangeMap::read(&map, is_own) {
            RangeMap::Own(ranges) => {
                let owned = alike.into_iter().map(|keyspace| (keyspace, ranges.clone()));
                survey.owned.extend(owned);
            }
            RangeMap::OtherPartitioner => {}
            RangeMap::Nonsense => return Err(unclear_replicas(&alike[0]).into()),
        }
    }
    Ok(survey)
}

impl CassandraDriver {
    pub(super) fn upkeep_state<T>(&self, with: impl FnOnce(&mut UpkeepState) -> T) -> T {
        with(&mut self.upkeep.lock().expect("no panic while held"))
    }

    /// Asks which ranges the node owns, when these may have changed. Returns the request that was
    /// not answered, and why the result could not be saved.
    pub(super) async fn survey(
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
                let why = chain(&error).to_string();
                self.upkeep_state(|upkeep| upkeep.open = Some(why.clone()));
                return (None, Some(why));
            }
        }
        if !self.upkeep_state(|upkeep| upkeep.is_stale(facts)) {
            return (None, None);
        }
        let asked = async {
            let mut counted = keyspaces::all(jolokia).await?;
            counted.retain(|keyspace| self.upkeep_state(|upkeep| upkeep.counts(keyspace)));
            ask(jolokia, facts, counted).await
        };
        match asked.await {
            Ok(survey) => (None, self.surveyed(facts, survey).await),
            Err(error) => {
                let open = match error {
                    Error::NotHeard(open) => open,
                    other => {
                        UnansweredQuery::new("getRangeToEndpointMap", chain(&other).to_string())
                    }
                };
                self.upkeep_state(|upkeep| {
                    upkeep.open = Some(open.to_string());
                    // A cleanup that was due still is due. Where none was due, that is no longer
                    // certain.
                    if upkeep.due().is_some_and(|due| due.is_empty()) {
                        upkeep.owned = None;
                    }
                    upkeep.is_shared = upkeep.is_shared.filter(|is_shared| *is_shared);
                });
                (Some(open), None)
            }
        }
    }

    async fn surveyed(&self, facts: &NodeView, survey: RangeSurvey) -> Option<String> {
        let RangeSurvey { owned, is_shared, replication_factor } = survey;
        let changed = self.upkeep_state(|upkeep| {
            let now = RingState::of(facts);
            let members = Some(now.members.len());
            let changed = upkeep.holdings.as_mut().is_some_and(|holdings| {
                let counted = std::mem::replace(&mut holdings.members, members) != members;
                holdings.note(&owned) || counted
            });
            upkeep.owned = Some(owned);
            upkeep.is_shared = Some(is_shared);
            upkeep.replication_factor = replication_factor.and_then(|n| n.try_into().ok());
            upkeep.surveyed = Some((now, Instant::now()));
            upkeep.open = None;
            changed
        });
        if changed { self.save_holdings().await } else { None }
    }

    /// Reads the holdings from the volume unless they are in memory; returns whether they are now.
    async fn recall_holdings(&self) -> Result<bool, Error> {
        if self.upkeep_state(|upkeep| upkeep.holdings.is_some()) {
            return Ok(true);
        }
        let read = self.ranges.glance(|held| held.clone()).await?;
        Ok(self.upkeep_state(|upkeep| {
            upkeep.holdings = read;
            upkeep.holdings.is_some()
        }))
    }

    /// Saves the holdings, unless the volume is busy. Returns why that failed.
    pub(super) async fn save_holdings(&self) -> Option<String> {
        let known = self.upkeep_state(|upkeep| upkeep.holdings.clone())?;
        unsaved(self.ranges.glance(move |held| *held = known).await)
    }
}
