//! What the database has against a change, in few words: who is missed, which pieces of data have
//! how many copies, and who may lead. What a rule speaks against, and who may skip it, is what the
//! database declares.

use super::*;

/// The rules of the model. The place of a name is the bit of its rule.
const NAMES: [&str; 14] = [
    "PeersUp",
    "RangesKeepQuorum",
    "ReceiversReady",
    "ReplicationFactor",
    "HealthNotRed",
    "ShardCopyElsewhere",
    "DataOutlivesPod",
    "CopiesElsewhere",
    "QuorumKept",
    "VoteMovedAway",
    "VoteMayMove",
    "MastersRemain",
    "ShardsMovedAway",
    "ShardsMayMove",
];
const PEERS_UP: u16 = 1;
const RANGES_KEEP_QUORUM: u16 = 1 << 1;
const RECEIVERS_READY: u16 = 1 << 2;
const REPLICATION_FACTOR: u16 = 1 << 3;
const HEALTH_NOT_RED: u16 = 1 << 4;
const SHARD_COPY_ELSEWHERE: u16 = 1 << 5;
const DATA_OUTLIVES_POD: u16 = 1 << 6;
const COPIES_ELSEWHERE: u16 = 1 << 7;
const QUORUM_KEPT: u16 = 1 << 8;
const VOTE_MOVED_AWAY: u16 = 1 << 9;
const VOTE_MAY_MOVE: u16 = 1 << 10;
const MASTERS_REMAIN: u16 = 1 << 11;
const SHARDS_MOVED_AWAY: u16 = 1 << 12;
const SHARDS_MAY_MOVE: u16 = 1 << 13;

/// Rules by which a database keeps a node from leaving.
const OF_DEPARTURES: u16 = RECEIVERS_READY | REPLICATION_FACTOR | COPIES_ELSEWHERE | MASTERS_REMAIN;
/// Rules by which a node keeps the roles that it has.
pub(super) const OF_ROLES: u16 =
    VOTE_MOVED_AWAY | VOTE_MAY_MOVE | SHARDS_MOVED_AWAY | SHARDS_MAY_MOVE;

/// Masters that let one of them go at any time.
const ENOUGH: usize = 3;

fn when(holds: bool, rule: u16) -> u16 {
    if holds { rule } else { 0 }
}

/// Returns rules as pilots report them.
pub(super) fn blockers(database: &ManagedDatabase, rules: u16) -> Vec<BlockerFacts> {
    let said = NAMES.iter().enumerate().filter(|(at, _)| rules & (1 << at) != 0);
    let blocker = |(_, name): (usize, &&str)| {
        let rule = database.names.predicate(name).expect("the database declares the rule");
        BlockerFacts {
            predicate: rule.name.to_owned(),
            message: rule.sentence.to_owned(),
            against: rule.against.to_vec(),
        }
    };
    said.map(blocker).collect()
}

impl ModelState {
    /// Returns what the pilot of a node reports as soon as it has looked.
    pub(super) fn report(&self, rules: &ModelRules, id: NodeId) -> PilotReport {
        let NodeState { pod, volume, runs, started, .. } = *self.node(id);
        PilotReport { pod, volume, runs, started, rules: self.rules(rules, id) }
    }

    /// Returns the rules that hold for a node.
    pub(super) fn rules(&self, rules: &ModelRules, id: NodeId) -> u16 {
        let node = self.node(id);
        if !node.known || !node.is_running() || node.volume != VolumeState::Data {
            return 0;
        }
        // A node that is in no cluster knows of no shard and no vote.
        if !rules.ring && node.pod == PodState::Deaf {
            return 0;
        }
        let mut found = 0;
        if rules.ring {
            found |= when(self.misses(id), PEERS_UP);
            found |= when(self.starves(rules, id), RANGES_KEEP_QUORUM);
        } else {
            let red = (0..DATA).any(|at| self.copies[at] != 0 && self.live(self.copies[at]) == 0);
            let alone = self.holds_alone(id);
            found |= when(red, HEALTH_NOT_RED);
            found |= when(alone && self.wanted_copies(rules) > 1, SHARD_COPY_ELSEWHERE);
            found |= when(alone, DATA_OUTLIVES_POD);
        }
        if rules.votes {
            found |= when(self.outvotes(id), QUORUM_KEPT);
            found |= self.rules_of_vote(id);
            let moves = !node.told.roles.data && node.runs.roles.data && self.holds(id);
            let takes = |other: NodeId| {
                let NodeState { told, runs, .. } = self.node(other);
                other != id && self.is_live(other) && told.roles.data && runs.roles.data
            };
            let rule = if ids().any(takes) { SHARDS_MOVED_AWAY } else { SHARDS_MAY_MOVE };
            found |= when(moves, rule);
        }
        if node.is_leaving() {
            found |= self.rules_of_departure(rules, id);
        }
        found
    }

    /// Does the database refuse to let a node go that is asked to leave?
    pub(super) fn refuses(&self, rules: &ModelRules, id: NodeId) -> bool {
        self.rules(rules, id) & OF_DEPARTURES != 0
    }

    fn rules_of_departure(&self, rules: &ModelRules, id: NodeId) -> u16 {
        let others = || ids().filter(|other| *other != id && self.is_live(*other));
        if !rules.ring {
            let receives = |other: &NodeId| {
                let node = self.node(*other);
                node.runs.roles.data && node.told.roles.data && !node.is_leaving()
            };
            let left = others().filter(receives).count();
            let lack = self.holds(id) && left < self.wanted_copies(rules) as usize;
            let lead = self.node(id).runs.roles.master && rules.votes && !self.master_may_go(id);
            return when(lack, COPIES_ELSEWHERE) | when(lead, MASTERS_REMAIN);
        }
        let part = *rules.parts().iter().find(|part| *part & bit(id) != 0).unwrap();
        let near = others().filter(|other| part & bit(*other) != 0).count();
        match () {
            () if self.misses(id) => RECEIVERS_READY,
            () if near < rules.copies as usize => REPLICATION_FACTOR,
            () => 0,
        }
    }

    /// Is a member down, other than this one?
    pub(super) fn misses(&self, id: NodeId) -> bool {
        ids().any(|other| {
            let node = self.node(other);
            other != id && node.volume == VolumeState::Data && !self.is_live(other)
        })
    }

    /// Returns the nodes that hold a piece of data and serve.
    pub(super) fn live(&self, holders: u8) -> u32 {
        let live = ids().filter(|id| holders & bit(*id) != 0 && self.is_live(*id));
        u32::try_from(live.count()).unwrap()
    }

    /// Holds the node a piece of data?
    pub(super) fn holds(&self, id: NodeId) -> bool {
        self.copies.iter().any(|holders| holders & bit(id) != 0)
    }

    /// Holds the node the only copy of a piece that serves?
    pub(super) fn holds_alone(&self, id: NodeId) -> bool {
        let mut held = self.copies.iter().filter(|holders| *holders & bit(id) != 0);
        held.any(|holders| self.live(holders & !bit(id)) == 0)
    }

    /// Would a quorum of a piece of data be lost if the node stopped, too? With all copies up, a stop is
    /// no worse at one time than at another.
    pub(super) fn starves(&self, rules: &ModelRules, id: NodeId) -> bool {
        let mut held = self.copies.iter().filter(|holders| *holders & bit(id) != 0);
        held.any(|holders| {
            let parts = rules.parts().iter().chain(&[0b11_1111]);
            parts.filter(|part| *part & bit(id) != 0).any(|part| {
                let all = (holders & part).count_ones();
                let others = self.live(holders & part & !bit(id));
                others + 1 < all && others <= all / 2
            })
        })
    }

    /// Would fewer than a majority of more than two voters be up without the node?
    pub(super) fn outvotes(&self, id: NodeId) -> bool {
        let up = self.voters.iter().filter(|voter| self.is_master(**voter)).count();
        let counts = self.voters.len() > 2 && self.is_master(id) && self.voters.contains(&id);
        counts && up.saturating_sub(1) <= self.voters.len() / 2
    }

    /// Has the node a vote, and is to run without the role `master`? Its pilot keeps that role for it.
    pub(super) fn keeps_vote(&self, id: NodeId) -> bool {
        let node = self.node(id);
        node.runs.roles.master && !node.told.roles.master && self.voters.contains(&id)
    }

    fn rules_of_vote(&self, id: NodeId) -> u16 {
        match () {
            () if !self.keeps_vote(id) => 0,
            () if self.masters_without(id) == (0, 0) => VOTE_MAY_MOVE,
            () => VOTE_MOVED_AWAY,
        }
    }

    /// Returns how many masters are up that stay when this one goes, and how many are to be masters and
    /// are not.
    fn masters_without(&self, id: NodeId) -> (usize, usize) {
        let stays = |other: &NodeId| {
            let node = self.node(*other);
            *other != id && node.known && node.told.roles.master && !node.is_leaving()
        };
        let staying = || ids().filter(stays);
        let up = staying().filter(|other| self.is_master(*other)).count();
        (up, staying().count() - up)
    }

    /// May the cluster lose this master: are others there, or enough of them?
    pub(super) fn master_may_go(&self, id: NodeId) -> bool {
        let (up, awaited) = self.masters_without(id);
        up > 0 && (awaited == 0 || up >= ENOUGH)
    }
}
