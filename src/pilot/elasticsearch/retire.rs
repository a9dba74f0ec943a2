//! Gives a node's shards and its vote away, and tidies up after those that went.
//!
//! Two hands write the allocation exclusion, both idempotent: the leaving node makes sure that
//! it is on the list each time it is asked; the pilot beside the elected master keeps the list
//! as the Pilots say. Only ids of nodes are written, so what people exclude by name or address
//! is never touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http::Method;
use serde_json::{Value, json};

use super::{api::Api, memory::Memory, observe::Facts, stuck};
use crate::{
    api::v1beta1::{Decommission, Pilot, PilotIntent},
    engine::elasticsearch::Release,
    pilot::{
        blockers::now,
        database::{Error, Node, Retirement},
        memory::Remembered,
    },
};

/// Elasticsearch waits [`VOTE_SECONDS`] for the voting configuration to change. With the five
/// questions before it, of 5 s each, that stays below the minute that one look may take.
const VOTE: Duration = Duration::from_secs(25);
const VOTE_SECONDS: u32 = 20;
const VOTING: &str = "/_cluster/voting_config_exclusions";

pub(super) async fn retire(
    api: &Api,
    node: &Node,
    release: Release,
    most_shards: &mut usize,
) -> Result<Retirement, Error> {
    let mut memory = Memory::load(&node.data)?;
    let facts = Facts::ask(api).await?;
    if facts.health.is_none() {
        return Err(Error::NotYet("waits for an elected master".to_owned()));
    }
    let quorum = if release.votes() { 1 } else { quorum(node).unwrap_or(1) };
    if let Some(reason) = Rest::ask(api, &facts).await?.obstacle(&facts, quorum) {
        unexclude(api, &facts.node_id).await?;
        return Ok(Retirement::Refused(reason));
    }
    if let Some(theirs) = api.hiding_exclusion().await? {
        return Ok(Retirement::Refused(format!(
            "the transient setting cluster.routing.allocation.exclude._id ({theirs:?}) hides the \
             one that would move the shards away; remove it"
        )));
    }
    if memory.retiring_since.is_none() {
        memory.retiring_since = Some(now());
        memory.save(&node.data)?;
    }
    let mut excluded = api.excluded().await?;
    if excluded.insert(facts.node_id.clone()) {
        api.exclude(&excluded).await?;
    }
    let shards = facts.shards_here();
    *most_shards = shards.max(*most_shards);
    if shards > 0 || facts.documents.is_none_or(|documents| documents > 0) {
        return Ok(Retirement::Moving(Decommission {
            start_time: memory.retiring_since,
            percent: i32::try_from(((*most_shards - shards) * 100) / (*most_shards).max(1))
                .ok()
                .map(|percent| percent.min(99)),
            bytes_left: facts.bytes,
            shards_left: i32::try_from(shards).ok(),
            documents_left: facts.documents,
            irreversible: false,
            message: stuck::why(api, &facts).await,
        }));
    }
    if release.votes() && facts.voters.contains(&facts.node_id) {
        let name = facts.nodes.get(&facts.node_id).cloned().unwrap_or_default();
        let path = if release.excludes_voters_by_query() {
            format!("{VOTING}?node_names={name}&timeout={VOTE_SECONDS}s")
        } else {
            format!("{VOTING}/{name}?timeout={VOTE_SECONDS}s")
        };
        api.change(Method::POST, &path, None, VOTE).await?;
    }
    if !release.votes() {
        // The remaining masters need the new quorum before this one is gone.
        minimum_masters(api, node).await?;
    }
    memory.left = true;
    memory.save(&node.data)?;
    Ok(Retirement::Left)
}

/// Takes the node back into the cluster. Possible until its process is stopped.
pub(super) async fn cancel(api: &Api, node: &Node, release: Release) -> Result<(), Error> {
    let memory = Memory::load(&node.data)?;
    if memory.retiring_since.is_none() && !memory.left {
        return Ok(());
    }
    let facts = Facts::ask(api).await?;
    unexclude(api, &facts.node_id).await?;
    if release.votes() && !facts.excluded_voters.is_empty() {
        forgive(api).await?;
    }
    Memory { retiring_since: None, left: false, ..memory }.save(&node.data)
}

async fn unexclude(api: &Api, id: &str) -> Result<(), Error> {
    let mut excluded = api.excluded().await?;
    if excluded.remove(id) { api.exclude(&excluded).await } else { Ok(()) }
}

async fn forgive(api: &Api) -> Result<(), Error> {
    let path = format!("{VOTING}?wait_for_removal=false");
    api.change(Method::DELETE, &path, None, VOTE).await.map(drop)
}

/// Keeps the cluster's lists as the Pilots say; only beside the elected master.
pub(super) async fn tidy(api: &Api, node: &Node, release: Release) -> Result<(), Error> {
    let facts = Facts::ask(api).await?;
    if facts.master.as_ref() != Some(&facts.node_id) {
        return Ok(());
    }
    let pilots: Vec<&Pilot> = node.peers.iter().chain([&node.pilot]).collect();
    let current = api.excluded().await?;
    let wanted = exclusions(&current, &pilots, &facts.nodes);
    if wanted != current {
        api.exclude(&wanted).await?;
    }
    if !release.votes() {
        return minimum_masters(api, node).await;
    }
    let leaving: BTreeSet<&str> = pilots.iter().filter(|p| leaves(p)).map(|p| name(p)).collect();
    let gone = |voter: &String| !leaving.contains(voter.as_str());
    if !facts.excluded_voters.is_empty() && facts.excluded_voters.iter().all(gone) {
        forgive(api).await?;
    }
    Ok(())
}

/// Ids on the list afterwards: leaving nodes stay on it; nodes that stay, and nodes that no
/// longer exist, come off; what belongs to nobody we know and is still there is not ours.
fn exclusions(
    current: &BTreeSet<String>,
    pilots: &[&Pilot],
    nodes: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let ids = |leaving: bool| -> BTreeSet<String> {
        pilots
            .iter()
            .filter(|pilot| leaves(pilot) == leaving)
            .filter_map(|pilot| pilot.status.identity.as_ref()?.node_id.clone())
            .collect()
    };
    let (leaving, staying) = (ids(true), ids(false));
    current
        .iter()
        .filter(|id| !staying.contains(*id) && nodes.contains_key(*id))
        .chain(&leaving)
        .cloned()
        .collect()
}

fn leaves(pilot: &Pilot) -> bool {
    matches!(pilot.spec.phase, Some(PilotIntent::Decommissioned))
}

fn name(pilot: &Pilot) -> &str {
    pilot.metadata.name.as_deref().unwrap_or_default()
}

/// Before version 7 the quorum is a setting, and a new one reaches running nodes here.
async fn minimum_masters(api: &Api, node: &Node) -> Result<(), Error> {
    const KEY: &str = "discovery.zen.minimum_master_nodes";
    let Some(wanted) = quorum(node) else { return Ok(()) };
    let settings = api.get("/_cluster/settings?flat_settings=true&master_timeout=2s").await?;
    if settings["persistent"][KEY].as_str() == Some(wanted.to_string().as_str()) {
        return Ok(());
    }
    api.set(KEY, &json!(wanted)).await
}

fn quorum(node: &Node) -> Option<i32> {
    node.pilot.spec.elasticsearch.as_ref()?.minimum_masters
}

/// The nodes that would remain.
#[derive(Debug, Default)]
struct Rest {
    data_nodes: usize,
    masters: i32,
    free_bytes: i64,
}

impl Rest {
    async fn ask(api: &Api, facts: &Facts) -> Result<Self, Error> {
        let (nodes, stats, excluded) = futures::join!(
            api.get("/_nodes?timeout=3s&filter_path=nodes.*.roles"),
            api.get("/_nodes/stats/fs?timeout=3s&filter_path=nodes.*.fs.total.available_in_bytes"),
            api.excluded(),
        );
        let (nodes, stats, excluded) = (nodes?, stats?, excluded?);
        let mut rest = Self::default();
        for (id, node) in nodes["nodes"].as_object().into_iter().flatten() {
            if *id == facts.node_id {
                continue;
            }
            let has = |wanted: &dyn Fn(&str) -> bool| {
                node["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).any(wanted)
            };
            if has(&|role| role == "master") {
                rest.masters += 1;
            }
            if has(&|role| role.starts_with("data")) && !excluded.contains(id) {
                rest.data_nodes += 1;
                let free = &stats["nodes"][id]["fs"]["total"]["available_in_bytes"];
                rest.free_bytes += free.as_i64().unwrap_or_default();
            }
        }
        Ok(rest)
    }

    /// `quorum`: masters that must remain.
    fn obstacle(&self, facts: &Facts, quorum: i32) -> Option<String> {
        if facts.master_eligible && self.masters == 0 {
            return Some("this is the last node that may be master".to_owned());
        }
        if facts.master_eligible && self.masters < quorum {
            return Some(format!(
                "{} masters would remain, and minimumMasters is {quorum}; lower it or add one first",
                self.masters
            ));
        }
        let here = facts.shards.iter().filter(|shard| shard.is_on(&facts.node_id));
        let widest = here.max_by_key(|shard| shard.copies.len())?;
        let copies = widest.copies.len();
        if copies > self.data_nodes {
            return Some(format!(
                "index {} wants {copies} copies, and {} data nodes would remain; lower \
                 number_of_replicas or add a node first",
                widest.name, self.data_nodes
            ));
        }
        // Elasticsearch fills a disk to 85 % (the low watermark), so the last part is not room.
        let room = self.free_bytes / 100 * 85;
        let bytes = facts.bytes.unwrap_or_default();
        (room < bytes).then(|| {
            format!("the other data nodes have room for {room} bytes, and this node holds {bytes}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::v1beta1::Identity, pilot::elasticsearch::observe::Shard};

    fn pilot(id: &str, phase: PilotIntent) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.spec.phase = Some(phase);
        pilot.status.identity =
            Some(Identity { node_id: Some(id.to_owned()), ..Identity::default() });
        pilot
    }

    #[test]
    fn the_list_follows_the_pilots_and_leaves_others_alone() {
        let (stay, leave) =
            (pilot("stay", PilotIntent::Running), pilot("leave", PilotIntent::Decommissioned));
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let nodes = set(&["stay", "leave", "theirs"]).into_iter().map(|id| (id, String::new()));
        let wanted =
            exclusions(&set(&["stay", "gone", "theirs"]), &[&stay, &leave], &nodes.collect());
        assert_eq!(wanted, set(&["leave", "theirs"]));
    }

    #[test]
    fn a_node_is_held_back_when_the_rest_cannot_do_without_it() {
        let started = |node: &str| (Some(node.to_owned()), "STARTED".to_owned());
        let facts = Facts {
            node_id: "n1".to_owned(),
            master_eligible: true,
            bytes: Some(100),
            shards: vec![Shard {
                name: "logs shard 0".to_owned(),
                copies: vec![started("n1"), started("n2")],
            }],
            ..Facts::default()
        };
        let rest = |data_nodes, masters, free_bytes| Rest { data_nodes, masters, free_bytes };
        assert_eq!(rest(2, 1, 1000).obstacle(&facts, 1), None);
        let short = rest(2, 1, 1000).obstacle(&facts, 2).unwrap();
        assert!(short.contains("minimumMasters is 2"), "{short}");
        for (rest, word) in
            [(rest(2, 0, 1000), "master"), (rest(1, 1, 1000), "copies"), (rest(2, 1, 100), "room")]
        {
            let reason = rest.obstacle(&facts, 1).unwrap();
            assert!(reason.contains(word), "{reason}");
        }
        let empty = Facts { shards: Vec::new(), ..facts };
        assert_eq!(rest(0, 1, 0).obstacle(&empty, 1), None);
    }
}
