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

fn rule_if(is_active: bool, rule: u16) -> u16 {
    if is_active { rule } else { 0 }
}

/// Returns rules as pilots report them.
pub(super) fn build_blockers(database: &ManagedDatabase, rules: u16) -> Vec<BlockerFacts> {
    let active_rules = NAMES.iter().enumerate().filter(|(index, _)| rules & (1 << index) != 0);
    let blocker = |(_, name): (usize, &&str)| {
        let rule = database.names.find_predicate(name).expect("the database declares the rule");
        BlockerFacts {
            predicate: rule.name.to_owned(),
            message: rule.sentence.to_owned(),
            against: rule.against.to_vec(),
        }
    };
    active_rules.map(blocker).collect()
}

impl ModelState {
    /// Returns what the pilot of a node reports as soon as it has looked.
    pub(super) fn pilot_report(&self, rules: &ModelRules, id: NodeId) -> PilotReport {
        let NodeState { pod, volume, runs, started, .. } = *self.node(id);
        PilotReport { pod, volume, runs, started, rules: self.rule_bits(rules, id) }
    }

    /// Returns the rules that hold for a node.
    pub(super) fn rule_bits(&self, rules: &ModelRules, id: NodeId) -> u16 {
        let node = self.node(id);
        if !node.known || !node.is_running() || node.volume != VolumeState::Data {
            return 0;
        }
        // A node that is in no cluster knows of no shard and no vote.
        if !rules.ring && node.pod == PodState::Deaf {
            return 0;
        }
        let mut bits = 0;
        if rules.ring {
            bits |= rule_if(self.is_member_down(id), PEERS_UP);
            bits |= rule_if(self.breaks_data_quorum(rules, id), RANGES_KEEP_QUORUM);
        } else {
            let is_red = (0..DATA)
                .any(|piece| self.copies[piece] != 0 && self.live_copies(self.copies[piece]) == 0);
            let is_only_holder = self.holds_alone(id);
            bits |= rule_if(is_red, HEALTH_NOT_RED);
            bits |= rule_if(is_only_holder && self.wanted_copies(rules) > 1, SHARD_COPY_ELSEWHERE);
            bits |= rule_if(is_only_holder, DATA_OUTLIVES_POD);
        }
        if rules.votes {
            bits |= rule_if(self.breaks_voter_quorum(id), QUORUM_KEPT);
            bits |= self.rules_of_vote(id);
            let has_data_to_move =
                !node.told.roles.data && node.runs.roles.data && self.holds_data(id);
            let can_take = |other: NodeId| {
                let NodeState { told, runs, .. } = self.node(other);
                other != id && self.is_live(other) && told.roles.data && runs.roles.data
            };
            let rule = if node_ids().any(can_take) { SHARDS_MOVED_AWAY } else { SHARDS_MAY_MOVE };
            bits |= rule_if(has_data_to_move, rule);
        }
        if node.is_leaving() {
            bits |= self.rules_of_departure(rules, id);
        }
        bits
    }

    /// Does the database refuse to let a node go that is asked to leave?
    pub(super) fn refuses_decommission(&self, rules: &ModelRules, id: NodeId) -> bool {
        self.rule_bits(rules, id) & OF_DEPARTURES != 0
    }

    fn rules_of_departure(&self, rules: &ModelRules, id: NodeId) -> u16 {
        let others = || node_ids().filter(|other| *other != id && self.is_live(*other));
        if !rules.ring {
            let can_receive = |other: &NodeId| {
                let node = self.node(*other);
                node.runs.roles.data && node.told.roles.data && !node.is_leaving()
            };
            let receiver_count = others().filter(can_receive).count();
            let lacks_receivers =
                self.holds_data(id) && receiver_count < self.wanted_copies(rules) as usize;
            let lacks_masters =
                self.node(id).runs.roles.master && rules.votes && !self.master_may_go(id);
            return rule_if(lacks_receivers, COPIES_ELSEWHERE)
                | rule_if(lacks_masters, MASTERS_REMAIN);
        }
        let part = *rules.quorum_parts().iter().find(|part| *part & node_bit(id) != 0).unwrap();
        let near_count = others().filter(|other| part & node_bit(*other) != 0).count();
        match () {
            () if self.is_member_down(id) => RECEIVERS_READY,
            () if near_count < rules.copies as usize => REPLICATION_FACTOR,
            () => 0,
        }
    }

    /// Is a member down, other than this one?
    pub(super) fn is_member_down(&self, id: NodeId) -> bool {
        node_ids().any(|other| {
            let node = self.node(other);
            other != id && node.volume == VolumeState::Data && !self.is_live(other)
        })
    }

    /// Returns the nodes that hold a piece of data and serve.
    pub(super) fn live_copies(&self, holders: u8) -> u32 {
        let live_ids = node_ids().filter(|id| holders & node_bit(*id) != 0 && self.is_live(*id));
        u32::try_from(live_ids.count()).unwrap()
    }

    /// Holds the node a piece of data?
    pub(super) fn holds_data(&self, id: NodeId) -> bool {
        self.copies.iter().any(|holders| holders & node_bit(id) != 0)
    }

    /// Holds the node the only copy of a piece that serves?
    pub(super) fn holds_alone(&self, id: NodeId) -> bool {
        let mut held_pieces = self.copies.iter().filter(|holders| *holders & node_bit(id) != 0);
        held_pieces.any(|holders| self.live_copies(holders & !node_bit(id)) == 0)
    }

    /// Would a quorum of a piece of data be lost if the node stopped, too? With all copies up, a stop is
    /// no worse at one time than at another.
    pub(super) fn breaks_data_quorum(&self, rules: &ModelRules, id: NodeId) -> bool {
        let mut held_pieces = self.copies.iter().filter(|holders| *holders & node_bit(id) != 0);
        held_pieces.any(|holders| {
            let parts = rules.quorum_parts().iter().chain(&[0b11_1111]);
            parts.filter(|part| *part & node_bit(id) != 0).any(|part| {
                let copy_count = (holders & part).count_ones();
                let other_copies = self.live_copies(holders & part & !node_bit(id));
                other_copies + 1 < copy_count && other_copies <= copy_count / 2
            })
        })
    }

    /// Would fewer than a majority of more than two voters be up without the node?
    pub(super) fn breaks_voter_quorum(&self, id: NodeId) -> bool {
        let live_voters = self.voters.iter().filter(|voter| self.is_master(**voter)).count();
        let is_counted = self.voters.len() > 2 && self.is_master(id) && self.voters.contains(&id);
        is_counted && live_voters.saturating_sub(1) <= self.voters.len() / 2
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
        let is_staying = |other: &NodeId| {
            let node = self.node(*other);
            *other != id && node.known && node.told.roles.master && !node.is_leaving()
        };
        let staying_masters = || node_ids().filter(is_staying);
        let live_masters = staying_masters().filter(|other| self.is_master(*other)).count();
        (live_masters, staying_masters().count() - live_masters)
    }

    /// May the cluster lose this master: are others there, or enough of them?
    pub(super) fn master_may_go(&self, id: NodeId) -> bool {
        let (live_masters, awaited_masters) = self.masters_without(id);
        live_masters > 0 && (awaited_masters == 0 || live_masters >= ENOUGH)
    }
}
