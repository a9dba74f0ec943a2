//! Keeps the cluster's lists as the Pilots say: which nodes may hold no shard, which have no vote,
//! and before version 7 how many masters are a quorum.
//!
//! The leading pilot alone writes them; a node that leaves asks through its Pilot and watches. The
//! lists follow from the Pilots each time and nothing is remembered, so a leader that takes over
//! half-way goes on, and entries that an earlier leader left behind come off.
//!
//! Only ids of nodes are written to the allocation exclusion: what people exclude by name, address
//! or attribute is never touched. The ids of nodes with a Pilot are Navigator's alone: the setting
//! does not say who wrote an id, so one that a person wrote looks like one that a leader left
//! behind, which would keep shards off a node for ever. It is taken off, and the log says how to
//! exclude such a node. A node whose vote people excluded stays excluded while it is in
//! the cluster and has no Pilot.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tracing::info;

use super::{
    data_role,
    decommission::{MINIMUM_MASTERS, node_quorum},
    master_role::{self, MasterIntents},
};
use crate::{
    api::v1beta1::{Pilot, PilotIntent},
    databases::elasticsearch::facts::Release,
    pilot::{
        clients::search_engine::{SearchClient, VotingConfiguration},
        driver::{DatabaseNode, Error, LeaderDuty, LeaderPermit},
    },
};

/// The cluster's exclusion lists, and its nodes.
#[derive(Debug, Default)]
struct ExclusionLists {
    /// Ids of the nodes that may hold no shard.
    excluded: BTreeSet<String>,
    /// Names of the nodes in the cluster, by id.
    nodes: BTreeMap<String, String>,
    /// Ids of the nodes that run with a data role; asked for only where it matters.
    holding: BTreeSet<String>,
    /// Ids of the nodes that run with the role `master`; asked for only where it matters.
    masters: BTreeSet<String>,
    votes: VotingConfiguration,
}

pub(super) async fn carry_out(
    api: &SearchClient,
    node: &DatabaseNode,
    release: Release,
    lead: &LeaderPermit,
) -> Result<(), Error> {
    let pilots: Vec<&Pilot> = node.peers.iter().chain([&node.pilot]).collect();
    let Some(lists) = ExclusionLists::query(api, release, &pilots).await? else { return Ok(()) };
    let desired = lists.desired_exclusions(&pilots);
    if desired != lists.excluded && lead.is_held() {
        info!(?desired, was = ?lists.excluded, "Changing which nodes hold no shards");
        for node in lists.nodes_to_include(&desired) {
            // The setting does not say who excluded it.
            info!(node, "Including a node that stays; to keep shards off it, exclude it by _name");
        }
        api.exclude_nodes(&desired).await?;
    }
    if !release.has_voting() {
        return set_minimum_masters(api, node, lead).await;
    }
    match lists.next_vote_change(&pilots) {
        VoteChange::Exclude(name) if lead.is_held() => {
            info!(node = name, "Excluding the vote of a node that leaves or loses its master role");
            api.exclude_voter(&name, release.excludes_voters_by_query()).await
        }
        VoteChange::Clear if lead.is_held() => {
            info!(were = ?lists.votes.excluded, "Clearing the list of nodes without a vote");
            api.clear_excluded_voters().await
        }
        VoteChange::Exclude(_) | VoteChange::Clear | VoteChange::Keep => Ok(()),
    }
}

/// How long after its end the pilots keep a departure in mind: its Pilot is deleted soon, and then
/// the lists are to be cleared.
const AFTERMATH: SignedDuration = SignedDuration::from_mins(10);

/// Returns whom a departure concerns that is under way, or was a moment ago, as the Pilots say.
pub(super) fn decommission_duty(node: &DatabaseNode, now: Timestamp) -> LeaderDuty {
    if asks_to_leave(&node.pilot) {
        return LeaderDuty::Departure;
    }
    let is_leaving = |peer: &Pilot| asks_to_leave(peer) && !is_long_gone(peer, now);
    let is_moving =
        |pilot: &Pilot| data_role::moves_shards(pilot) || master_role::moves_vote(pilot);
    let has_moves = node.peers.iter().chain([&node.pilot]).any(is_moving);
    if has_moves || node.peers.iter().any(is_leaving) {
        LeaderDuty::Cluster
    } else {
        LeaderDuty::None
    }
}

/// Did the node leave some time ago? Its Pilot may stand for as long as a person wants.
fn is_long_gone(pilot: &Pilot, now: Timestamp) -> bool {
    let conditions = pilot.status.conditions.iter();
    let mut decommissions = conditions
        .filter(|condition| condition.type_ == "Decommissioned" && condition.status == "True");
    decommissions.any(|condition| now.duration_since(condition.last_transition_time.0) >= AFTERMATH)
}

/// Are the lists other than they should be by the Pilots?
pub(super) async fn has_differences(
    api: &SearchClient,
    node: &DatabaseNode,
    release: Release,
) -> Result<bool, Error> {
    let pilots: Vec<&Pilot> = node.peers.iter().chain([&node.pilot]).collect();
    let Some(lists) = ExclusionLists::query(api, release, &pilots).await? else { return Ok(false) };
    if lists.desired_exclusions(&pilots) != lists.excluded {
        return Ok(true);
    }
    if release.has_voting() {
        return Ok(lists.next_vote_change(&pilots) != VoteChange::Keep);
    }
    let Some(desired) = node_quorum(node) else { return Ok(false) };
    Ok(api.persistent_number(MINIMUM_MASTERS).await? != Some(desired))
}

/// The next change of the votes. Only one is made at a time: Elasticsearch moves the quorum for
/// each.
#[derive(Debug, PartialEq, Eq)]
enum VoteChange {
    Keep,
    /// Take the vote of the node with this name.
    Exclude(String),
    /// Clear the list of excluded voters, which is only possible as a whole.
    Clear,
}

impl ExclusionLists {
    /// Asks for the lists. `None` without an elected master: then nothing can be changed anyway.
    async fn query(
        api: &SearchClient,
        release: Release,
        pilots: &[&Pilot],
    ) -> Result<Option<Self>, Error> {
        let votes = async {
            if release.has_voting() {
                api.voting_configuration().await.or_fail()
            } else {
                Ok(VotingConfiguration::default())
            }
        };
        let (nodes, votes, excluded) =
            futures::join!(api.read_nodes(), votes, api.excluded_node_ids());
        let nodes = nodes?;
        if !nodes.has_master {
            return Ok(None);
        }
        let (votes, excluded) = (votes?, excluded?);
        let is_listed = |pilot: &&&Pilot| node_id(pilot).is_some_and(|id| excluded.contains(id));
        let mut holding = BTreeSet::new();
        if pilots.iter().filter(is_listed).any(|pilot| data_role::rejects_shards(pilot)) {
            let capacities = api.node_capacities().await?.into_iter();
            holding = capacities.filter(|(_, node)| node.holds_data()).map(|(id, _)| id).collect();
        }
        let is_losing_vote =
            |pilot: &&Pilot| asks_to_leave(pilot) || master_role::moves_vote(pilot);
        let mut masters = BTreeSet::new();
        if release.has_voting() && (!votes.excluded.is_empty() || pilots.iter().any(is_losing_vote))
        {
            masters = api.master_eligible_ids().await?;
        }
        Ok(Some(Self { excluded, nodes: nodes.names, holding, masters, votes }))
    }

    /// Returns the ids that the allocation exclusion should list: nodes that ask to leave, or to
    /// move their shards away, are added; nodes that stay, and nodes that no longer exist, are
    /// removed; a listed node without a Pilot was not listed by Navigator and stays. So does a node
    /// that has moved its shards away and was not restarted without its data role yet.
    fn desired_exclusions(&self, pilots: &[&Pilot]) -> BTreeSet<String> {
        let pilots_by_id = pilots.iter().filter_map(|pilot| Some((node_id(pilot)?, pilot)));
        let pilots_by_id: BTreeMap<&str, _> = pilots_by_id.collect();
        let is_kept = |id: &String| match pilots_by_id.get(id.as_str()) {
            Some(pilot) if data_role::rejects_shards(pilot) => {
                self.holding.contains(id) || !self.nodes.contains_key(id)
            }
            Some(_) => false,
            None => self.nodes.contains_key(id),
        };
        let is_leaving = |pilot: &Pilot| asks_to_leave(pilot) || data_role::moves_shards(pilot);
        let leaving_ids =
            pilots_by_id.iter().filter(|(_, pilot)| is_leaving(pilot)).map(|(id, _)| (*id).into());
        self.excluded.iter().filter(|id| is_kept(id)).cloned().chain(leaving_ids).collect()
    }

    /// Returns the names of the nodes in the cluster that `wanted` takes off the allocation
    /// exclusion.
    fn nodes_to_include<'a>(&'a self, desired: &BTreeSet<String>) -> Vec<&'a str> {
        let nodes_to_include =
            self.excluded.difference(desired).filter_map(|id| self.nodes.get(id));
        nodes_to_include.map(String::as_str).collect()
    }

    /// Returns the next change of the votes. The vote of a node that leaves is excluded when the
    /// node is empty, that of a node that is to lose its master role at once; neither while no other
    /// master could have it.
    fn next_vote_change(&self, pilots: &[&Pilot]) -> VoteChange {
        let excluded = &self.votes.excluded;
        let masters = master_role::node_names(&self.masters, &self.nodes);
        let is_done = |voter: &String| {
            let present = self.nodes.values().any(|name| name == voter);
            // A node that loses the role has a vote again until it runs without.
            let may_vote = !present || masters.contains(voter);
            let pilot = pilots.iter().find(|pilot| pilot_name(pilot) == voter);
            pilot.map_or(!present, |pilot| {
                let loses_role = may_vote && master_role::gets_no_vote(pilot);
                !asks_to_leave(pilot) && !loses_role
            })
        };
        if !excluded.is_empty() && excluded.iter().all(is_done) {
            return VoteChange::Clear;
        }
        let has_vote =
            |pilot: &Pilot| node_id(pilot).is_some_and(|id| self.votes.voters.contains(id));
        let is_leaving = |pilot: &Pilot| asks_to_leave(pilot) && is_empty(pilot) && has_vote(pilot);
        let is_losing_role =
            |pilot: &Pilot| master_role::moves_vote(pilot) && masters.contains(pilot_name(pilot));
        let mut candidates = pilots.iter().filter(|pilot| !excluded.contains(pilot_name(pilot)));
        let Some(next_pilot) = candidates.find(|pilot| is_leaving(pilot) || is_losing_role(pilot))
        else {
            return VoteChange::Keep;
        };
        // With two masters only one votes; the other gets the vote when the first one loses it
        // (Elasticsearch keeps the number of voters odd).
        let intents: MasterIntents = pilots.iter().copied().collect();
        if intents.remaining_without(&masters, pilot_name(next_pilot)).is_enough() {
            return VoteChange::Exclude(pilot_name(next_pilot).to_owned());
        }
        VoteChange::Keep
    }
}

/// Was the node told to leave, and did it find that it may? Its progress in the Pilot says so. A
/// node that may not leave reports no progress, and keeps its shards.
fn asks_to_leave(pilot: &Pilot) -> bool {
    matches!(pilot.spec.phase, Some(PilotIntent::Decommissioned))
        && pilot.status.decommission.is_some()
}

/// Does the node report that it holds no shard and no document any more?
fn is_empty(pilot: &Pilot) -> bool {
    let progress = pilot.status.decommission.as_ref();
    progress.is_some_and(|progress| {
        progress.shards_left == Some(0) && progress.documents_left == Some(0)
    })
}

pub(super) fn node_id(pilot: &Pilot) -> Option<&str> {
    pilot.status.identity.as_ref()?.node_id.as_deref()
}

/// Returns the name of a Pilot's node, which is the Pilot's.
pub(super) fn pilot_name(pilot: &Pilot) -> &str {
    pilot.metadata.name.as_deref().unwrap_or_default()
}

/// Sets the quorum in the running cluster. Before version 7 the quorum is a setting, and only this
/// makes running nodes follow a new one.
async fn set_minimum_masters(
    api: &SearchClient,
    node: &DatabaseNode,
    lead: &LeaderPermit,
) -> Result<(), Error> {
    let Some(wanted) = node_quorum(node) else { return Ok(()) };
    let current = api.persistent_number(MINIMUM_MASTERS).await?;
    if current == Some(wanted) || !lead.is_held() {
        return Ok(());
    }
    info!(wanted, was = current, "Changing how many masters are a quorum");
    api.set_persistent(MINIMUM_MASTERS, &json!(wanted)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{
            predicate::Predicate,
            v1beta1::{Decommission, Identity},
        },
        databases::elasticsearch::{
            predicates::{SHARDS_MAY_MOVE, SHARDS_MOVED_AWAY, VOTE_MAY_MOVE, VOTE_MOVED_AWAY},
            v1beta1::{ElasticsearchNode, PilotElasticsearchSpec},
        },
        pilot::node::blockers::StopBlockers,
    };

    /// Returns the Pilot of the node `id`, which is named `es-id`.
    fn pilot(id: &str, phase: PilotIntent, left: Option<(i32, i64)>) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.spec.set_part::<ElasticsearchNode>(&PilotElasticsearchSpec {
            roles: vec!["master".to_owned(), "data".to_owned()],
            ..PilotElasticsearchSpec::default()
        });
        pilot.metadata.name = Some(format!("es-{id}"));
        pilot.spec.phase = Some(phase);
        pilot.status.identity =
            Some(Identity { node_id: Some(id.to_owned()), ..Identity::default() });
        pilot.status.decommission = left.map(|(shards, documents)| Decommission {
            shards_left: Some(shards),
            documents_left: Some(documents),
            ..Decommission::default()
        });
        pilot
    }

    fn stays(id: &str) -> Pilot {
        pilot(id, PilotIntent::Running, None)
    }

    fn moves(id: &str) -> Pilot {
        pilot(id, PilotIntent::Decommissioned, Some((2, 10)))
    }

    fn empty(id: &str) -> Pilot {
        pilot(id, PilotIntent::Decommissioned, Some((0, 0)))
    }

    fn refused(id: &str) -> Pilot {
        pilot(id, PilotIntent::Decommissioned, None)
    }

    /// Returns the Pilot of a node that is to lose its data role, and reports these rules.
    fn loses(id: &str, rules: &[&'static Predicate]) -> Pilot {
        keeps("master", id, rules)
    }

    /// Returns the Pilot of a node that is to lose its master role, and reports these rules.
    fn loses_master(id: &str, rules: &[&'static Predicate]) -> Pilot {
        keeps("data", id, rules)
    }

    /// Returns the Pilot of a node that is to have this role alone, and reports these rules.
    fn keeps(role: &str, id: &str, rules: &[&'static Predicate]) -> Pilot {
        let mut pilot = stays(id);
        pilot.spec.change_part::<ElasticsearchNode>(|part| part.roles = vec![role.to_owned()]);
        let held = rules.iter().map(|rule| (*rule, String::new())).collect();
        pilot.status.blockers = StopBlockers::default().update(held, None);
        pilot
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn lists(excluded: &[&str], present: &[&str], excluded_voters: &[&str]) -> ExclusionLists {
        ExclusionLists {
            excluded: set(excluded),
            nodes: present.iter().map(|id| ((*id).to_owned(), format!("es-{id}"))).collect(),
            holding: set(present),
            masters: set(present),
            votes: VotingConfiguration { voters: set(present), excluded: set(excluded_voters) },
        }
    }

    fn exclusions(lists: &ExclusionLists, pilots: &[Pilot]) -> BTreeSet<String> {
        lists.desired_exclusions(&pilots.iter().collect::<Vec<_>>())
    }

    fn ballot(lists: &ExclusionLists, pilots: &[Pilot]) -> VoteChange {
        lists.next_vote_change(&pilots.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_exclusion_follows_the_pilots_and_leaves_others_alone() {
        let nodes = ["a", "b", "theirs"];
        for (what, before, pilots, after) in [
            ("asked", &[][..], vec![stays("a"), moves("b")], &["b"][..]),
            ("asked again", &["b"], vec![stays("a"), moves("b")], &["b"]),
            ("taken back", &["b"], vec![stays("a"), stays("b")], &[]),
            ("refused", &["b"], vec![stays("a"), refused("b")], &[]),
            ("empty, still running", &["b"], vec![stays("a"), empty("b")], &["b"]),
            ("gone for good", &["gone"], vec![stays("a"), stays("b")], &[]),
            ("leaving, down for a moment", &["gone"], vec![stays("a"), moves("gone")], &["gone"]),
            ("a node without a Pilot", &["theirs"], vec![stays("a"), stays("b")], &["theirs"]),
            ("two at once", &["b"], vec![moves("a"), moves("b")], &["a", "b"]),
        ] {
            let list = lists(before, &nodes, &[]);
            assert_eq!(exclusions(&list, &pilots), set(after), "{what}");
        }
    }

    #[test]
    fn nodes_that_are_included_again_are_told_by_name_while_they_are_in_the_cluster() {
        let list = lists(&["a", "b", "gone"], &["a", "b"], &[]);
        assert_eq!(list.nodes_to_include(&set(&["b"])), ["es-a"]);
        assert!(list.nodes_to_include(&set(&["a", "b"])).is_empty(), "gone is no node to speak of");
    }

    #[test]
    fn a_node_that_is_to_lose_its_data_role_gets_no_shard_until_it_runs_without() {
        let (moves, may) = (&SHARDS_MOVED_AWAY, &SHARDS_MAY_MOVE);
        let of = |excluded: &[&str], nodes: &[&str], holding: &[&str], pilot: Pilot| {
            let list = ExclusionLists { holding: set(holding), ..lists(excluded, nodes, &[]) };
            exclusions(&list, &[stays("a"), pilot])
        };
        let both = ["a", "b"];
        for (what, before, holding, rules, after) in [
            ("it moves", &[][..], &both[..], &[moves][..], &["b"][..]),
            ("it is stuck", &["b"], &both, &[moves, may], &["b"]),
            ("it may not", &["b"], &both, &[may], &[]),
            ("it was not asked", &[], &both, &[], &[]),
            ("it is empty", &["b"], &both, &[], &["b"]),
            ("it runs without", &["b"], &["a"], &[], &[]),
        ] {
            assert_eq!(of(before, &both, holding, loses("b", rules)), set(after), "{what}");
        }
        assert_eq!(of(&["b"], &["a"], &["a"], loses("b", &[])), set(&["b"]), "it restarts");
        let back = Pilot { status: loses("b", &[moves]).status, ..stays("b") };
        assert_eq!(of(&["b"], &both, &both, back), set(&[]), "the role is back");
    }

    #[test]
    fn a_leader_that_takes_over_half_way_and_one_that_wakes_late_end_at_the_same_lists() {
        let now = [stays("a"), moves("b"), stays("c")];
        // The last leader died between writing and clearing, or before it wrote, or wrote what
        // followed from an older view: the next run repairs whatever list it left, and then changes
        // nothing.
        for left_behind in [&[][..], &["b"], &["a"], &["a", "b", "c", "gone"]] {
            let list = lists(left_behind, &["a", "b", "c"], &[]);
            let repaired = exclusions(&list, &now);
            assert_eq!(repaired, set(&["b"]), "{left_behind:?}");
            let again = ExclusionLists { excluded: repaired.clone(), ..list };
            assert_eq!(exclusions(&again, &now), repaired);
        }
    }

    #[test]
    fn a_vote_is_taken_when_the_node_is_empty_and_the_list_is_cleared_when_all_on_it_are_done() {
        let present = ["a", "b", "c"];
        let taken = VoteChange::Exclude("es-c".to_owned());
        for (what, excluded, pilots, then) in [
            ("nobody leaves", &[][..], vec![stays("a"), stays("b"), stays("c")], VoteChange::Keep),
            ("it moves", &[], vec![stays("a"), stays("b"), moves("c")], VoteChange::Keep),
            ("it is empty", &[], vec![stays("a"), stays("b"), empty("c")], taken),
            (
                "asked already",
                &["es-c"],
                vec![stays("a"), stays("b"), empty("c")],
                VoteChange::Keep,
            ),
            ("taken back", &["es-c"], vec![stays("a"), stays("b"), stays("c")], VoteChange::Clear),
            ("its Pilot is gone", &["es-z"], vec![stays("a"), stays("b")], VoteChange::Clear),
            (
                "another leaves still",
                &["es-z", "es-c"],
                vec![stays("a"), stays("b"), empty("c")],
                VoteChange::Keep,
            ),
            ("somebody else's", &["es-c"], vec![stays("a"), stays("b")], VoteChange::Keep),
        ] {
            assert_eq!(ballot(&lists(&[], &present, excluded), &pilots), then, "{what}");
        }
    }

    #[test]
    fn a_vote_is_taken_only_where_a_master_that_stays_can_have_it() {
        let two = lists(&[], &["a", "b"], &[]);
        assert_eq!(ballot(&two, &[empty("a"), empty("b")]), VoteChange::Keep);
        let mut one_down = lists(&[], &["a", "b"], &[]);
        one_down.nodes.remove("a");
        assert_eq!(ballot(&one_down, &[stays("a"), empty("b")]), VoteChange::Keep);
        assert_eq!(ballot(&two, &[stays("a"), empty("b")]), VoteChange::Exclude("es-b".to_owned()));
        // The votes as 7 and 8 keep them: of two masters only the elected one votes.
        let mut only_vote = lists(&[], &["a", "b"], &[]);
        only_vote.votes.voters.remove("a");
        let taken = VoteChange::Exclude("es-b".to_owned());
        assert_eq!(ballot(&only_vote, &[stays("a"), empty("b")]), taken);
        assert_eq!(ballot(&only_vote, &[empty("a"), empty("b")]), VoteChange::Keep, "all leave");
        let mut data = stays("a");
        data.spec.change_part::<ElasticsearchNode>(|part| part.roles = vec!["data".to_owned()]);
        assert_eq!(
            ballot(&only_vote, &[data, empty("b")]),
            VoteChange::Keep,
            "it can be no master"
        );
        only_vote.nodes.remove("a");
        assert_eq!(ballot(&only_vote, &[stays("a"), empty("b")]), VoteChange::Keep, "it is down");
    }

    #[test]
    fn a_voter_that_is_gone_does_not_ask_for_its_vote_again() {
        let mut left = lists(&["c"], &["a", "b"], &["es-c"]);
        assert_eq!(ballot(&left, &[stays("a"), stays("b"), empty("c")]), VoteChange::Keep);
        left.votes.voters.insert("c".to_owned());
        assert_eq!(ballot(&left, &[stays("a"), stays("b"), empty("c")]), VoteChange::Keep);
    }

    #[test]
    fn the_vote_of_a_node_that_is_to_lose_its_master_role_is_excluded_until_it_runs_without() {
        let (moves, may) = (&VOTE_MOVED_AWAY, &VOTE_MAY_MOVE);
        let all = ["a", "b", "c"];
        let taken = || VoteChange::Exclude("es-c".to_owned());
        let of = |excluded: &[&str], masters: &[&str], nodes: &[&str], pilot: Pilot| {
            let list = ExclusionLists { masters: set(masters), ..lists(&[], nodes, excluded) };
            ballot(&list, &[stays("a"), stays("b"), pilot])
        };
        for (what, excluded, masters, rules, then) in [
            ("it moves", &[][..], &all[..], &[moves][..], taken()),
            ("it was not asked yet", &[], &all, &[], VoteChange::Keep),
            ("it may not", &[], &all, &[may], VoteChange::Keep),
            ("it is excluded", &["es-c"], &all, &[moves], VoteChange::Keep),
            ("it may restart", &["es-c"], &all, &[], VoteChange::Keep),
            ("it may not any more", &["es-c"], &all, &[may], VoteChange::Clear),
            ("it runs without", &["es-c"], &["a", "b"], &[], VoteChange::Clear),
            ("another is away", &[], &["b", "c"], &[moves], VoteChange::Keep),
        ] {
            let change = of(excluded, masters, &all, loses_master("c", rules));
            assert_eq!(change, then, "{what}");
        }
        let restarts = of(&["es-c"], &["a", "b"], &["a", "b"], loses_master("c", &[]));
        assert_eq!(restarts, VoteChange::Keep, "it restarts");
        let reverted = Pilot { status: loses_master("c", &[moves]).status, ..stays("c") };
        assert_eq!(of(&["es-c"], &all, &all, reverted), VoteChange::Clear, "the role is back");
    }

    #[test]
    fn of_a_pool_that_loses_the_role_the_last_master_keeps_its_vote() {
        let moves = |id: &str| loses_master(id, &[&VOTE_MOVED_AWAY]);
        let pool = || vec![stays("a"), moves("b"), moves("c")];
        let list = |excluded: &[&str]| lists(&[], &["a", "b", "c"], excluded);
        let taken = |name: &str| VoteChange::Exclude(name.to_owned());
        assert_eq!(ballot(&list(&[]), &pool()), taken("es-b"));
        assert_eq!(ballot(&list(&["es-b"]), &pool()), taken("es-c"), "a stays");
        assert_eq!(ballot(&list(&["es-b", "es-c"]), &pool()), VoteChange::Keep);
        let all = [moves("a"), moves("b"), moves("c")];
        assert_eq!(ballot(&list(&[]), &all), VoteChange::Keep, "no master would be left");
        // New masters: while one of them does not run, none of the old ones loses its vote.
        let grows = |running: &[&str]| {
            let mut pilots = vec![moves("a"), moves("b"), moves("c")];
            pilots.extend(["m", "n", "o"].map(stays));
            let present: Vec<&str> = ["a", "b", "c"].iter().chain(running).copied().collect();
            ballot(&lists(&[], &present, &[]), &pilots)
        };
        assert_eq!(grows(&["m", "n"]), VoteChange::Keep);
        assert_eq!(grows(&["m", "n", "o"]), taken("es-a"));
        // One node leaves at the same time.
        let leaves = [stays("a"), empty("b"), moves("c")];
        assert_eq!(ballot(&list(&[]), &leaves), taken("es-b"));
        assert_eq!(ballot(&list(&["es-b"]), &leaves), taken("es-c"));
        let gone = [stays("a"), loses_master("c", &[])];
        let done = ExclusionLists { masters: set(&["a"]), ..list(&["es-b", "es-c"]) };
        let done = ExclusionLists { nodes: lists(&[], &["a", "c"], &[]).nodes, ..done };
        assert_eq!(ballot(&done, &gone), VoteChange::Clear);
    }

    #[test]
    fn votes_that_people_excluded_stay_while_their_nodes_have_no_pilot() {
        let list = |excluded: &[&str]| lists(&[], &["a", "b", "c", "theirs"], excluded);
        let moves = [stays("a"), stays("b"), loses_master("c", &[&VOTE_MOVED_AWAY])];
        let theirs = list(&["es-theirs"]);
        assert_eq!(ballot(&theirs, &moves), VoteChange::Exclude("es-c".to_owned()));
        let back = [stays("a"), stays("b"), stays("c")];
        assert_eq!(ballot(&list(&["es-theirs", "es-c"]), &back), VoteChange::Keep);
    }
}
