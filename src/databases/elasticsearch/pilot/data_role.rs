//! Keeps the data role of a node for as long as its volume has shards.
//!
//! Elasticsearch does not start a node without a data role on a volume that has shards. So a node
//! goes on with the role that it has, also through a restart, until its volume has none; its pilot
//! says so by a blocker (`shards_left`), and the leading pilot excludes the node from allocation
//! (`lead_duties`). The tool of the vendor that deletes the shards is never run.

use std::{collections::BTreeSet, fs, path::Path};

use super::state::NodeState;
use crate::{
    api::{predicate::Predicate, v1beta1::Pilot},
    databases::elasticsearch::{
        facts::Release,
        predicates::{SHARDS_MAY_MOVE, SHARDS_MOVED_AWAY},
        v1beta1::{ElasticsearchNode, holds_shards, is_master},
    },
    pilot::{driver::DatabaseNode, volume::data_volume::Volume},
};

/// Returns the roles that a node must be started with in place of those that are wanted; `None`
/// where it can have the wanted ones.
pub(super) fn kept(
    wanted: &[String],
    state: &NodeState,
    release: Release,
    data: &Path,
) -> Option<Vec<String>> {
    if holds_shards(wanted) {
        return None;
    }
    let kept = match &state.roles {
        Some(roles) => roles.clone(),
        // An earlier pilot noted no roles. Before version 7 a node starts beside shards that were
        // left behind.
        None if release.major < 7 => return None,
        None => wanted.iter().cloned().chain(["data".to_owned()]).collect(),
    };
    (holds_shards(&kept) && entries(data, is_master(wanted)) > 0).then_some(kept)
}

/// Notes in the state that the Pilot takes the data role or the master role off its node, or no
/// longer does.
pub(super) fn note(state: &mut NodeState, node: &DatabaseNode) {
    let wanted = node.pilot.spec.part::<ElasticsearchNode>().unwrap_or_default().roles;
    let had = |role: fn(&[String]) -> bool| state.roles.as_deref().is_none_or(role);
    let loses_master = had(is_master) && !is_master(&wanted);
    let loses_data = had(holds_shards) && !holds_shards(&wanted);
    state.next_roles = (loses_data || loses_master).then_some(wanted);
    state.vote_moved_away &= loses_master;
}

/// Returns the names of the nodes whose Pilots want no shards on them: they take none for long.
pub(super) fn without_shards<'a>(pilots: impl IntoIterator<Item = &'a Pilot>) -> BTreeSet<String> {
    let pilots = pilots.into_iter().filter(|pilot| wants_none(pilot));
    pilots.filter_map(|pilot| pilot.metadata.name.clone()).collect()
}

/// Does the Pilot want a node that holds no shards?
fn wants_none(pilot: &Pilot) -> bool {
    pilot.spec.part::<ElasticsearchNode>().is_some_and(|part| !holds_shards(&part.roles))
}

fn says(pilot: &Pilot, rule: &Predicate) -> bool {
    wants_none(pilot) && pilot.status.blockers.iter().any(|found| found.predicate == rule.name)
}

/// Does the node have shards to move away, and may they move?
pub(super) fn moves_shards(pilot: &Pilot) -> bool {
    says(pilot, &SHARDS_MOVED_AWAY)
}

/// May the node get no shard while it still has its data role?
pub(super) fn takes_none(pilot: &Pilot) -> bool {
    wants_none(pilot) && (moves_shards(pilot) || !says(pilot, &SHARDS_MAY_MOVE))
}

/// Returns how many folders of shards are on the volume; `None` when the volume does not say.
pub(super) async fn on_disk(data: &Path, volume: &Volume, next: &[String]) -> Option<usize> {
    let (data, master) = (data.to_owned(), is_master(next));
    volume.glance(move |_| entries(&data, master)).await.ok().flatten()
}

/// Counts what keeps Elasticsearch from a start without a data role: the folders of shards, and for
/// a node that cannot be elected master the metadata of indices as well.
fn entries(data: &Path, master: bool) -> usize {
    let below = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let root = data.join("data");
    // Before version 8 the indices are below `nodes/0`.
    let nodes = below(&root.join("nodes"));
    let indices = nodes.iter().chain([&root]).flat_map(|node| below(&node.join("indices")));
    let parts = indices.flat_map(|index| below(&index));
    let blocks = |part: &Path| {
        let name = part.file_name().unwrap_or_default().to_string_lossy();
        let shard = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        shard || (!master && name == "_state")
    };
    parts.filter(|part| blocks(part)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(roles: &[&str]) -> Vec<String> {
        roles.iter().map(|role| (*role).to_owned()).collect()
    }

    #[test]
    fn a_node_with_shards_keeps_its_data_role_and_one_without_takes_the_new_roles() {
        let had = |given: &[&str]| NodeState { roles: Some(roles(given)), ..NodeState::default() };
        let (seven, six) = ("7.17.29".parse().unwrap(), "6.8.23".parse().unwrap());
        for shard in ["data/nodes/0/indices/x/3", "data/indices/x/3"] {
            let place = tempfile::tempdir().unwrap();
            let data = place.path();
            let kept = |wanted: &[&str], state: &NodeState, release| {
                kept(&roles(wanted), state, release, data)
            };
            let both = had(&["master", "data_hot"]);
            assert_eq!(kept(&["master"], &both, seven), None, "its volume is empty");
            let index = data.join(shard).parent().unwrap().to_owned();
            fs::create_dir_all(index.join("_state")).unwrap();
            assert_eq!(kept(&["master"], &both, seven), None, "a master has metadata");
            assert_eq!(kept(&["ingest"], &both, seven), both.roles, "{shard}");
            fs::create_dir_all(data.join(shard)).unwrap();
            assert_eq!(kept(&["master"], &both, seven), both.roles, "{shard}");
            assert_eq!(kept(&["master", "data"], &both, seven), None);
            let unknown = NodeState::default();
            assert_eq!(kept(&["master"], &unknown, seven), Some(roles(&["master", "data"])));
            assert_eq!(kept(&["master"], &unknown, six), None);
            assert_eq!(kept(&["master"], &had(&["master"]), six), None, "left by another");
        }
    }

    #[test]
    fn what_is_wanted_next_is_noted_until_it_is_taken_back() {
        let place = tempfile::tempdir().unwrap();
        let mut node = super::super::tests::node_in(place.path());
        let mut state = NodeState { roles: Some(roles(&["data"])), ..NodeState::default() };
        let mut wants = |state: &mut NodeState, wanted: &[&str]| {
            node.pilot.spec.change_part::<ElasticsearchNode>(|part| part.roles = roles(wanted));
            note(state, &node);
            state.next_roles.clone()
        };
        assert_eq!(wants(&mut state, &["master", "data"]), None);
        assert_eq!(wants(&mut state, &["master"]), Some(roles(&["master"])));
        assert_eq!(wants(&mut state, &["data_warm"]), None);
        state.roles = Some(roles(&["master"]));
        assert_eq!(wants(&mut state, &["master", "ingest"]), None, "it holds none");
        assert_eq!(wants(&mut state, &["ingest"]), Some(roles(&["ingest"])), "it may vote");
        state.vote_moved_away = true;
        wants(&mut state, &["coordinating"]);
        assert!(state.vote_moved_away);
        assert_eq!(wants(&mut state, &["master"]), None);
        assert!(!state.vote_moved_away, "the vote comes back with the role");
    }
}
