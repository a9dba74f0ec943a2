//! Keeps the master role of a node for as long as it has a vote.
//!
//! A node that is restarted without the role keeps its id, and Elasticsearch may leave it among
//! those that vote: by itself it leaves out no voter where fewer than three would be left
//! (`Reconfigurator`). Such a node never votes again, so a cluster can lose its quorum and stay
//! without a master. So the end of the role is the departure of a voter. The node goes on with the
//! roles that it has, also through a restart, until its vote is gone; its pilot says so by a
//! blocker, and the leading pilot excludes its vote (`lead_duties`).

use std::collections::{BTreeMap, BTreeSet};

use super::state::NodeState;
use crate::{
    api::{
        predicate::Predicate,
        v1beta1::{Pilot, PilotIntent},
    },
    databases::elasticsearch::{
        facts::Release,
        predicates::{VOTE_MAY_MOVE, VOTE_MOVED_AWAY},
        v1beta1::{ElasticsearchNode, is_master},
    },
    pilot::{
        clients::search_engine::{NodeView, SearchClient, VotingConfiguration},
        driver::Error,
    },
};

/// Masters that let one of them go at any time. Where as many stay, no other is waited for.
const ENOUGH: usize = 3;

/// Returns the roles that a node must be started with in place of those that are wanted; `None`
/// where it can have the wanted ones. A node whose roles no pilot noted gets the wanted ones: with
/// the role `master` a data node would get a vote.
pub(super) fn roles_to_keep(
    desired: &[String],
    state: &NodeState,
    release: Release,
) -> Option<Vec<String>> {
    let current_roles = state.roles.as_ref().filter(|roles| is_master(roles))?;
    (release.has_voting() && !is_master(desired) && !state.vote_moved_away)
        .then(|| current_roles.clone())
}

/// Which nodes are to be masters, by their Pilots.
#[derive(Clone, Debug, Default)]
pub(super) struct MasterIntents {
    /// Names of the nodes that have a Pilot; true for those that are to be masters and stay.
    nodes: BTreeMap<String, bool>,
}

impl<'a> FromIterator<&'a Pilot> for MasterIntents {
    fn from_iter<I: IntoIterator<Item = &'a Pilot>>(pilots: I) -> Self {
        let is_staying = |pilot: &Pilot| {
            pilot.spec.phase != Some(PilotIntent::Decommissioned) && !loses_role(pilot)
        };
        let nodes = pilots.into_iter();
        let nodes =
            nodes.filter_map(|pilot| Some((pilot.metadata.name.clone()?, is_staying(pilot))));
        Self { nodes: nodes.collect() }
    }
}

impl MasterIntents {
    /// Returns the masters that would be left to the cluster without the node `leaving_name`.
    /// `masters`: names of the nodes in the cluster that run with the role. A node without a Pilot
    /// stays.
    pub(super) fn remaining_without(
        &self,
        masters: &BTreeSet<String>,
        leaving_name: &str,
    ) -> RemainingMasters {
        let is_staying =
            |name: &str| name != leaving_name && self.nodes.get(name).copied().unwrap_or(true);
        let is_absent = |name: &str| is_staying(name) && !masters.contains(name);
        let absent_names = self.nodes.keys().filter(|name| is_absent(name));
        RemainingMasters {
            present: masters.iter().filter(|name| is_staying(name)).count(),
            absent: absent_names.cloned().collect(),
        }
    }
}

/// The masters that would be left to a cluster without one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RemainingMasters {
    /// How many run with the role now.
    pub(super) present: usize,
    /// Names of the nodes that are to be masters and do not run with the role.
    pub(super) absent: Vec<String>,
}

impl RemainingMasters {
    /// Tells that no other node can be master, now or later.
    pub(super) fn is_none(&self) -> bool {
        self.present == 0 && self.absent.is_empty()
    }

    /// Returns which masters must run before the cluster loses one; `None` where enough do.
    pub(super) fn absence_message(&self) -> Option<String> {
        if self.absent.is_empty() || self.present >= ENOUGH {
            return None;
        }
        let names = self.absent.join(", ");
        Some(format!("these are to be masters and do not run with that role yet: {names}"))
    }

    /// Can one of them have the vote of the node that the cluster loses?
    pub(super) fn is_enough(&self) -> bool {
        self.present > 0 && self.absence_message().is_none()
    }
}

/// Is the Pilot's node to run without the role `master`?
fn loses_role(pilot: &Pilot) -> bool {
    !pilot.spec.part::<ElasticsearchNode>().is_some_and(|part| is_master(&part.roles))
}

fn has_blocker(pilot: &Pilot, predicate: &Predicate) -> bool {
    loses_role(pilot)
        && pilot.status.blockers.iter().any(|blocker| blocker.predicate == predicate.name)
}

/// Does the node wait until its vote is gone?
pub(super) fn moves_vote(pilot: &Pilot) -> bool {
    has_blocker(pilot, &VOTE_MOVED_AWAY)
}

/// May the node get no vote while it still has its master role?
pub(super) fn gets_no_vote(pilot: &Pilot) -> bool {
    loses_role(pilot) && (moves_vote(pilot) || !has_blocker(pilot, &VOTE_MAY_MOVE))
}

/// Returns the rules that hold the node's next roles back while it has a vote, or may get one;
/// empty where it may restart without the role `master`.
pub(super) async fn find_vote_blockers(
    api: &SearchClient,
    facts: &NodeView,
    intents: &MasterIntents,
) -> Result<Vec<(&'static Predicate, String)>, Error> {
    if facts.elected.is_none() {
        return Err(Error::NotYet("no elected master is known".to_owned()));
    }
    let (votes, masters) = futures::join!(api.voting_configuration(), api.master_eligible_ids());
    let (votes, masters) = (votes.or_fail()?, node_names(&masters?, &facts.nodes));
    Ok(vote_blocker(facts, &votes, &intents.remaining_without(&masters, own_name(facts)))
        .into_iter()
        .collect())
}

fn vote_blocker(
    facts: &NodeView,
    votes: &VotingConfiguration,
    remaining: &RemainingMasters,
) -> Option<(&'static Predicate, String)> {
    let moved_away_blocker = |message: String| Some((&VOTE_MOVED_AWAY, message));
    if remaining.is_none() {
        return Some((&VOTE_MAY_MOVE, NO_OTHER.to_owned()));
    }
    if let Some(message) = remaining.absence_message() {
        return moved_away_blocker(message);
    }
    if !votes.excluded.contains(own_name(facts)) {
        // A node without a vote waits, too: otherwise it could get one.
        return moved_away_blocker(WAITS_FOR_EXCLUSION.to_owned());
    }
    votes.voters.contains(&facts.node_id).then(|| (&VOTE_MOVED_AWAY, STILL_VOTES.to_owned()))
}

const NO_OTHER: &str = "no other node that keeps the role master is in the cluster; add a node \
                        pool with it, or put the role back";
const WAITS_FOR_EXCLUSION: &str = "waits for the leading pilot to exclude its vote, then it \
                                   restarts without its master role";
const STILL_VOTES: &str = "its vote is excluded, and Elasticsearch still counts it";

/// Returns the names of the nodes with these ids.
pub(super) fn node_names(
    ids: &BTreeSet<String>,
    nodes: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    ids.iter().filter_map(|id| nodes.get(id).cloned()).collect()
}

/// Returns the node's name in its cluster, which is the Pilot's.
pub(super) fn own_name(facts: &NodeView) -> &str {
    facts.nodes.get(&facts.node_id).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::elasticsearch::{pilot::testing::facts, v1beta1::PilotElasticsearchSpec};

    fn roles(roles: &[&str]) -> Vec<String> {
        roles.iter().map(|role| (*role).to_owned()).collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn pilot(name: &str, given: &[&str], phase: PilotIntent) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some(name.to_owned());
        pilot.spec.phase = Some(phase);
        pilot.spec.set_part::<ElasticsearchNode>(&PilotElasticsearchSpec {
            roles: roles(given),
            ..PilotElasticsearchSpec::default()
        });
        pilot
    }

    #[test]
    fn master_role_is_kept_until_the_vote_is_gone() {
        let (seven, six) = ("7.17.29".parse().unwrap(), "6.8.23".parse().unwrap());
        let had = |given: &[&str]| NodeState { roles: Some(roles(given)), ..NodeState::default() };
        let both = had(&["master", "data"]);
        assert_eq!(roles_to_keep(&roles(&["data"]), &both, seven), both.roles);
        assert_eq!(roles_to_keep(&roles(&["master"]), &both, seven), None, "it keeps the role");
        assert_eq!(
            roles_to_keep(&roles(&["data"]), &both, six),
            None,
            "there are no votes to move"
        );
        let moved = NodeState { vote_moved_away: true, ..both };
        assert_eq!(roles_to_keep(&roles(&["data"]), &moved, seven), None);
        assert_eq!(
            roles_to_keep(&roles(&["ingest"]), &had(&["data"]), seven),
            None,
            "it never voted"
        );
        assert_eq!(
            roles_to_keep(&roles(&["data"]), &NodeState::default(), seven),
            None,
            "not known"
        );
    }

    #[test]
    fn masters_that_stay_are_those_that_run_with_the_role_and_keep_it() {
        let rest = |pilots: &[Pilot], masters: &[&str]| {
            pilots.iter().collect::<MasterIntents>().remaining_without(&set(masters), "own")
        };
        let stays = |name: &str| pilot(name, &["master"], PilotIntent::Running);
        let leaves = |name: &str| pilot(name, &["master"], PilotIntent::Decommissioned);
        let loses = |name: &str| pilot(name, &["data"], PilotIntent::Running);
        for (what, pilots, masters, present, absent) in [
            ("all stay", vec![stays("a"), stays("b")], &["own", "a", "b"][..], 2, &[][..]),
            ("one leaves", vec![stays("a"), leaves("b")], &["own", "a", "b"], 1, &[]),
            ("one is to lose it", vec![stays("a"), loses("b")], &["own", "a", "b"], 1, &[]),
            ("one is down", vec![stays("a"), stays("b")], &["own", "a"], 1, &["b"]),
            ("one has it not yet", vec![stays("a"), stays("b")], &["own"], 0, &["a", "b"]),
            ("one without a Pilot", vec![loses("a")], &["own", "theirs"], 1, &[]),
            ("all leave", vec![leaves("a"), loses("b")], &["own", "a", "b"], 0, &[]),
            ("the node's own Pilot", vec![stays("own"), stays("a")], &["own", "a"], 1, &[]),
        ] {
            let absent = absent.iter().map(|name: &&str| (*name).to_owned()).collect();
            assert_eq!(rest(&pilots, masters), RemainingMasters { present, absent }, "{what}");
        }
    }

    #[test]
    fn one_master_fewer_is_enough_once_the_others_run_or_three_do() {
        let rest = |present: usize, absent: &[&str]| RemainingMasters {
            present,
            absent: absent.iter().map(|name| (*name).to_owned()).collect(),
        };
        assert!(rest(0, &[]).is_none() && !rest(0, &[]).is_enough());
        assert!(!rest(0, &["b"]).is_none() && !rest(0, &["b"]).is_enough());
        assert!(rest(1, &[]).is_enough(), "one master is wanted");
        assert!(!rest(2, &["b"]).is_enough());
        assert!(rest(2, &["b", "c"]).absence_message().unwrap().ends_with("yet: b, c"));
        assert!(rest(3, &["b"]).is_enough());
    }

    #[test]
    fn role_is_held_back_until_its_vote_is_excluded_and_no_longer_counts() {
        let votes = |voters: &[&str], excluded: &[&str]| VotingConfiguration {
            voters: set(voters),
            excluded: set(excluded),
        };
        let rest = |present: usize| RemainingMasters { present, absent: Vec::new() };
        let (moved, may) = (Some(&VOTE_MOVED_AWAY), Some(&VOTE_MAY_MOVE));
        for (what, voters, excluded, present, rule) in [
            ("no other", &["n1"][..], &[][..], 0, may),
            ("no other any more", &["n2"], &["es-n1"], 0, may),
            ("it votes", &["n1", "n2", "n3"], &[], 2, moved),
            ("it has no vote and could get one", &["n2"], &[], 1, moved),
            ("it is excluded, and votes", &["n1", "n2"], &["es-n1"], 1, moved),
            ("it is excluded", &["n2"], &["es-n1"], 1, None),
            ("another is excluded", &["n2"], &["es-n3"], 1, moved),
        ] {
            let found = vote_blocker(&facts(), &votes(voters, excluded), &rest(present));
            assert_eq!(found.map(|(rule, _)| rule), rule, "{what}");
        }
        let waits = RemainingMasters { present: 1, absent: vec!["es-m-0".to_owned()] };
        let (rule, why) = vote_blocker(&facts(), &votes(&["n2"], &["es-n1"]), &waits).unwrap();
        assert_eq!(rule, &VOTE_MOVED_AWAY);
        assert!(why.contains("es-m-0"), "{why}");
    }
}
