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
pub(super) fn roles_to_keep(
    desired: &[String],
    state: &NodeState,
    release: Release,
    data: &Path,
) -> Option<Vec<String>> {
    if holds_shards(desired) {
        return None;
    }
    let kept_roles = match &state.roles {
        Some(roles) => roles.clone(),
        // An earlier pilot noted no roles. Before version 7 a node starts beside shards that were
        // left behind.
        None if release.major < 7 => return None,
        None => desired.iter().cloned().chain(["data".to_owned()]).collect(),
    };
    (holds_shards(&kept_roles) && count_shard_dirs(data, is_master(desired)) > 0)
        .then_some(kept_roles)
}

/// Notes in the state that the Pilot takes the data role or the master role off its node, or no
/// longer does.
pub(super) fn record_roles(state: &mut NodeState, node: &DatabaseNode) {
    let desired_roles = node.pilot.spec.part::<ElasticsearchNode>().unwrap_or_default().roles;
    let had_role = |role: fn(&[String]) -> bool| state.roles.as_deref().is_none_or(role);
    let loses_master = had_role(is_master) && !is_master(&desired_roles);
    let loses_data = had_role(holds_shards) && !holds_shards(&desired_roles);
    state.next_roles = (loses_data || loses_master).then_some(desired_roles);
    state.vote_moved_away &= loses_master;
}

/// Returns the names of the nodes whose Pilots want no shards on them: they take none for long.
pub(super) fn without_shards<'a>(pilots: impl IntoIterator<Item = &'a Pilot>) -> BTreeSet<String> {
    let pilots = pilots.into_iter().filter(|pilot| is_without_shards(pilot));
    pilots.filter_map(|pilot| pilot.metadata.name.clone()).collect()
}

/// Does the Pilot want a node that holds no shards?
fn is_without_shards(pilot: &Pilot) -> bool {
    pilot.spec.part::<ElasticsearchNode>().is_some_and(|part| !holds_shards(&part.roles))
}

fn has_blocker(pilot: &Pilot, predicate: &Predicate) -> bool {
    is_without_shards(pilot)
        && pilot.status.blockers.iter().any(|blocker| blocker.predicate == predicate.name)
}

/// Does the node have shards to move away, and may they move?
pub(super) fn moves_shards(pilot: &Pilot) -> bool {
    has_blocker(pilot, &SHARDS_MOVED_AWAY)
}

/// May the node get no shard while it still has its data role?
pub(super) fn rejects_shards(pilot: &Pilot) -> bool {
    is_without_shards(pilot) && (moves_shards(pilot) || !has_blocker(pilot, &SHARDS_MAY_MOVE))
}

/// Returns how many folders of shards are on the volume; `None` when the volume does not say.
pub(super) async fn count_on_disk(
    data: &Path,
    volume: &Volume,
    next_roles: &[String],
) -> Option<usize> {
    let (data, keeps_master) = (data.to_owned(), is_master(next_roles));
    volume.try_visit(move |_| count_shard_dirs(&data, keeps_master)).await.ok().flatten()
}

/// Counts what keeps Elasticsearch from a start without a data role: the folders of shards, and for
/// a node that cannot be elected master the metadata of indices as well.
fn count_shard_dirs(data: &Path, keeps_master: bool) -> usize {
    let subdirectories = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let root = data.join("data");
    // Before version 8 the indices are below `nodes/0`.
    let nodes = subdirectories(&root.join("nodes"));
    let indices =
        nodes.iter().chain([&root]).flat_map(|node| subdirectories(&node.join("indices")));
    let parts = indices.flat_map(|index| subdirectories(&index));
    let is_blocking = |part: &Path| {
        let name = part.file_name().unwrap_or_default().to_string_lossy();
        let is_shard = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        is_shard || (!keeps_master && name == "_state")
    };
    parts.filter(|part| is_blocking(part)).count()
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
                roles_to_keep(&roles(wanted), state, release, data)
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
            record_roles(state, &node);
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
