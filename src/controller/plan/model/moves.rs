//! What the controller, Kubernetes, the pilots and the databases do.

use super::{facts::ModelView, *};

impl ModelState {
    /// Lets the leader take up voters that joined, and drop those that are gone while three remain, and
    /// those that are to vote no more as soon as others can have their votes.
    fn update_voters(&mut self) {
        if self.voters.is_empty() || !self.is_led() {
            return;
        }
        let gives_vote = |id: NodeId| self.keeps_vote(id) && self.master_may_go(id);
        let has_vote = |id: &NodeId| {
            self.is_master(*id) && self.node(*id).told.roles.master
                || self.keeps_vote(*id) && !gives_vote(*id)
        };
        let new_voters: BTreeSet<NodeId> = node_ids().filter(has_vote).collect();
        let has_left = |id: &NodeId| {
            let node = self.node(*id);
            node.volume == VolumeState::Left || !node.known || gives_vote(*id)
        };
        let kept_voters: Vec<NodeId> =
            self.voters.iter().filter(|id| !has_left(id)).copied().collect();
        let new_voters = if new_voters.len() >= 3 {
            new_voters
        } else {
            kept_voters.into_iter().chain(new_voters).collect()
        };
        if !new_voters.is_empty() {
            self.voters = new_voters;
        }
    }

    /// Copies each piece of data to as many nodes as it should have, from one that serves or that just
    /// left. The replicas of a ring stay where they are until their node leaves or is forgotten; copies
    /// of shards move on when their node is lost, or is to hold none.
    pub(super) fn restore_copies(&mut self, rules: &ModelRules) {
        for piece in 0..DATA {
            let holders = self.copies[piece];
            let keeps_copy = |id: &NodeId| {
                let node = self.node(*id);
                let is_gone = node.volume == VolumeState::Left || !node.known && !node.keeps_data();
                let is_holder = if rules.ring { node.member } else { node.keeps_data() };
                holders & node_bit(*id) != 0 && is_holder && !is_gone && node.era == self.era
            };
            let is_left_holder = |id: NodeId| {
                self.node(id).volume == VolumeState::Left && holders & node_bit(id) != 0
            };
            let has_source = self.live_copies(holders) > 0 || node_ids().any(is_left_holder);
            self.copies[piece] = node_ids().filter(keeps_copy).map(node_bit).sum();
            if has_source && self.is_led() {
                self.spread_piece(rules, piece);
                self.move_away(rules, piece);
            }
        }
    }

    /// Gives a piece of data the copies that it lacks, where nodes have room.
    pub(super) fn spread_piece(&mut self, rules: &ModelRules, piece: usize) {
        for part in rules.quorum_parts() {
            while (self.copies[piece] & part).count_ones() < self.wanted_copies(rules) {
                let Some(id) = self.find_receiver(piece, *part) else { break };
                self.copies[piece] |= node_bit(id);
            }
        }
    }

    /// Moves a piece from nodes that are to hold no data, where others can have it.
    fn move_away(&mut self, rules: &ModelRules, piece: usize) {
        for id in node_ids().filter(|id| !self.node(*id).told.roles.data).collect::<Vec<_>>() {
            let is_held = self.copies[piece] & node_bit(id) != 0 && !rules.ring;
            if let Some(receiver) = self.find_receiver(piece, 0b11_1111).filter(|_| is_held) {
                self.copies[piece] = (self.copies[piece] & !node_bit(id)) | node_bit(receiver);
            }
        }
    }

    /// Returns the node that gets the next copy: of the pool that has the fewest, and another one for each
    /// piece.
    fn find_receiver(&self, piece: usize, part: u8) -> Option<NodeId> {
        let holders = self.copies[piece];
        let can_receive = |id: &NodeId| {
            let node = self.node(*id);
            let is_new_enough = piece + 1 < DATA || !self.newer_data || node.runs.revision != OLD;
            let is_data_node = node.runs.roles.data && node.told.roles.data && !node.is_leaving();
            part & !holders & node_bit(*id) != 0
                && is_data_node
                && is_new_enough
                && self.is_live(*id)
        };
        let in_pool = |pool: usize| (holders & (0b111 << (pool * 3))).count_ones();
        node_ids().filter(can_receive).min_by_key(|id| (in_pool(id.0), (id.1 + 3 - piece) % 3))
    }

    /// Makes what `ensure_objects` makes, and returns what the plan sees then.
    pub(super) fn reconcile(&mut self, rules: &ModelRules) -> ModelView {
        self.ensure_objects(rules).unwrap_or_else(|| self.build_view(rules))
    }

    /// Makes what `ensure_objects` makes: StatefulSets with their templates, and Pilots with their
    /// marks. Returns what it saw, where it looked and changed nothing.
    fn ensure_objects(&mut self, rules: &ModelRules) -> Option<ModelView> {
        let revision = self.revision;
        for (pool, desired_size) in self.pools.iter_mut().zip(self.wanted) {
            let is_held =
                |node: &NodeState| node.volume == VolumeState::Data || node.pod != PodState::Absent;
            let node_count = pool.nodes.iter().rposition(is_held).map_or(0, |index| index + 1);
            if desired_size.is_some() && pool.replicas.is_none() {
                pool.replicas = Some(u8::try_from(node_count).unwrap());
                pool.template = pod_of(revision);
            }
        }
        // Most states have nothing to pin, and are spared the pins.
        let newest_specs = self.newest_specs(self.secure);
        let is_outdated = |index: usize, node: &NodeState| {
            let is_pod_outdated = node.pod != PodState::Absent && node.made != pod_of(revision);
            node.known
                && (is_pod_outdated || node.told != newest_specs[index] || node.pinned.is_some())
        };
        let is_plain = !self
            .pools
            .iter()
            .enumerate()
            .any(|(index, pool)| pool.nodes.iter().any(|node| is_outdated(index, node)));
        let view = (!is_plain).then(|| self.build_view(rules));
        let old_pools = view.is_some().then(|| self.pools.clone());
        for (index, pool) in self.pools.iter_mut().enumerate() {
            if pool.nodes.iter().any(|node| is_outdated(index, node)) {
                continue;
            }
            pool.template = pod_of(revision);
            let newest_spec = view.as_ref().map_or(newest_specs[index], |view| view.newest[index]);
            for node in &mut pool.nodes[..usize::from(pool.replicas.unwrap_or_default())] {
                if !node.known {
                    (node.known, node.told, node.intent) =
                        (true, newest_spec, IntentState::Running);
                }
            }
        }
        let view = view?;
        let (desired, observed) = (&view.desired, &view.observed);
        for observed_pool in &observed.pools {
            let Some(desired_pool) = desired.pool(&observed_pool.name) else { continue };
            let index = usize::from(observed_pool.name == "b");
            let (pool, newest_spec) = (&mut self.pools[index], view.newest[index]);
            pool.template = pinned_template(desired, observed, observed_pool)
                .map_or(pod_of(revision), revision_number);
            let pinned_revision = revision_for_new_pod(desired, observed, observed_pool);
            let replicas = pool.replicas.unwrap_or_default();
            for ordinal in 0..3 {
                let node = &mut pool.nodes[usize::from(ordinal)];
                let member = observed_pool.members.get(&u32::from(ordinal));
                if ordinal >= replicas && !(desired.round.all_stopped && node.known) {
                    continue;
                }
                if !node.known {
                    let hash =
                        pinned_revision.and_then(|revision| revision.pilot.config_hash.as_deref());
                    node.told = hash.map_or(newest_spec, NodeSpec::of_hash);
                    node.pinned =
                        pinned_revision.map(|revision| revision_number(revision.template));
                    (node.known, node.intent) = (true, IntentState::Running);
                } else if let Some(member) = member {
                    node.pinned = pinned_to(desired, observed_pool, member, desired_pool)
                        .map(revision_number);
                }
                if node.pod == PodState::Absent && node.pinned.is_none() {
                    node.ordered &= node.told == newest_spec;
                    node.told = newest_spec;
                }
            }
        }
        (old_pools.as_ref() == Some(&self.pools)).then_some(view)
    }

    /// Carries out a step of the plan.
    pub(super) fn execute_step(&mut self, rules: &ModelRules, step: &PlannedStep) {
        self.carry_out(rules, step);
        self.settle_database(rules);
    }

    /// Lets the database take notice of a change.
    fn settle_database(&mut self, rules: &ModelRules) {
        self.update_voters();
        self.restore_copies(rules);
        let is_gone = |node: &NodeState| {
            node.pod == PodState::Absent && !node.known && node.volume == VolumeState::None
        };
        let nodes = self.pools.iter_mut().flat_map(|pool| &mut pool.nodes);
        for node in nodes.filter(|node| is_gone(node)) {
            *node = NOTHING;
        }
    }

    /// Tells a node the newest spec, and whether its pilot restarts the database for it.
    fn configure_node(&mut self, rules: &ModelRules, id: NodeId, needs_restart: bool) {
        let newest_specs = if rules.has_edit_kind(EditKind::Security) {
            self.build_view(rules).newest
        } else {
            self.newest_specs(false)
        };
        let node = self.node_mut(id);
        (node.told, node.pinned, node.ordered) = (newest_specs[id.0], None, needs_restart);
    }

    fn carry_out(&mut self, rules: &ModelRules, step: &PlannedStep) {
        let pool_of = |name: &str| usize::from(name == "b");
        match step {
            PlannedStep::Raise { pool, to }
            | PlannedStep::Return { pool, to }
            | PlannedStep::Remove { pool, to, .. } => {
                self.pools[pool_of(pool)].replicas = Some(u8::try_from(*to).unwrap());
                drop(self.ensure_objects(rules));
            }
            PlannedStep::Empty { pool } => self.pools[pool_of(pool)].replicas = Some(0),
            PlannedStep::DeletePool { pool, .. } => self.pools[pool_of(pool)].replicas = None,
            PlannedStep::Stop { pilots } => {
                for name in pilots {
                    self.find_node_mut(name).intent = IntentState::Stopped;
                }
            }
            PlannedStep::Start { pilots } => {
                for name in pilots {
                    self.find_node_mut(name).intent = IntentState::Running;
                }
            }
            PlannedStep::Keep { pilot } => self.find_node_mut(pilot).intent = IntentState::Running,
            PlannedStep::Decommission { pilot } => {
                self.find_node_mut(pilot).intent = IntentState::Leaving;
            }
            PlannedStep::Configure { pilot } => self.configure_node(rules, id_of(pilot), false),
            PlannedStep::RestartInPlace { pilot } => self.configure_node(rules, id_of(pilot), true),
            PlannedStep::Replace { pilot, .. } | PlannedStep::Restart { pilot, .. } => {
                let id = id_of(pilot);
                self.pools[id.0].template = pod_of(self.revision);
                self.configure_node(rules, id, false);
                end_pod(self.node_mut(id));
            }
            PlannedStep::Recreate { pilot, .. } => end_pod(self.find_node_mut(pilot)),
            PlannedStep::Renew { pilot, claim, .. } => {
                let node = self.find_node_mut(pilot);
                end_pod(node);
                if claim.is_some() {
                    node.lose_volume();
                }
            }
            PlannedStep::DeleteClaim { pilot, .. } => {
                let node = self.find_node_mut(pilot);
                node.lose_volume();
            }
            PlannedStep::DeletePilot { pilot, .. } => {
                let node = self.find_node_mut(pilot);
                (node.known, node.intent, node.given_up) = (false, IntentState::Running, false);
                (node.asked, node.left, node.member) = (false, false, false);
                (node.word, node.request) = (None, None);
            }
            PlannedStep::Vacate { pilot, .. } => {
                let node = self.find_node_mut(pilot);
                node.asked = false;
                node.left = true;
                end_pod(node);
            }
            PlannedStep::ResizeClaim { pilot, .. } => self.find_node_mut(pilot).large = true,
            PlannedStep::BeginAnew { pilot, .. } => {
                let node = self.find_node_mut(pilot);
                node.request = Some(node.era);
            }
            PlannedStep::TakeWordBack { pilot, request } => {
                let node = self.find_node_mut(pilot);
                (node.word, node.request) = (None, node.request.filter(|_| !request));
            }
            PlannedStep::KeepData { pilot } => self.find_node_mut(pilot).given_up = false,
            PlannedStep::RenewSet { .. }
            | PlannedStep::Forget { .. }
            | PlannedStep::Deliver { .. } => {
                unreachable!("no ids, one pilot image")
            }
        }
    }

    /// Returns what is left where the controller ends between two writes of a step.
    pub(super) fn cut_short(&self, rules: &ModelRules, step: &PlannedStep) -> Vec<Self> {
        let mut cuts = Vec::new();
        match step {
            PlannedStep::Replace { pilot, .. } | PlannedStep::Restart { pilot, .. } => {
                let mut configured_state = self.clone();
                configured_state.configure_node(rules, id_of(pilot), false);
                let mut templated_state = configured_state.clone();
                templated_state.pools[id_of(pilot).0].template = pod_of(self.revision);
                cuts.extend([configured_state, templated_state]);
            }
            PlannedStep::Renew { pilot, claim: Some(_), .. } => {
                let mut cut = self.clone();
                let node = cut.find_node_mut(pilot);
                if matches!(node.pod, PodState::Absent | PodState::Pending) {
                    node.lose_volume();
                } else {
                    node.doomed = true;
                }
                cuts.push(cut);
            }
            PlannedStep::Raise { pool, to } | PlannedStep::Return { pool, to } => {
                // The Pilots of the new nodes come before the StatefulSet's new size.
                let mut cut = self.clone();
                let index = usize::from(pool == "b");
                let newest_spec = self.newest_specs(self.secure)[index];
                let nodes = &mut cut.pools[index].nodes;
                for node in nodes[..*to as usize].iter_mut().filter(|node| !node.known) {
                    (node.known, node.told) = (true, newest_spec);
                }
                cuts.push(cut);
            }
            PlannedStep::Stop { pilots } | PlannedStep::Start { pilots } if pilots.len() > 1 => {
                let is_stop = matches!(step, PlannedStep::Stop { .. });
                let mut cut = self.clone();
                cut.find_node_mut(&pilots[0]).intent =
                    if is_stop { IntentState::Stopped } else { IntentState::Running };
                cuts.push(cut);
            }
            _ => {}
        }
        cuts.retain(|cut| cut != self);
        for cut in &mut cuts {
            cut.faults += 1;
        }
        cuts
    }

    /// Writes what `ensure_objects` decided by an earlier state of the pods, of which
    /// `earlier_state` came.
    pub(super) fn ensured_late(&self, earlier_state: &Self) -> Self {
        let mut late_state = self.clone();
        for (pool, decided_pool) in late_state.pools.iter_mut().zip(&earlier_state.pools) {
            if pool.replicas != decided_pool.replicas {
                continue;
            }
            pool.template = decided_pool.template;
            for (node, decided_node) in pool.nodes.iter_mut().zip(&decided_pool.nodes) {
                (node.known, node.told, node.pinned) =
                    (decided_node.known, decided_node.told, decided_node.pinned);
                node.ordered &= decided_node.ordered;
            }
        }
        late_state
    }

    /// Lets Kubernetes or the pilot of one node do its next move; `None` where there is none.
    pub(super) fn advance_node(&self, rules: &ModelRules, id: NodeId) -> Option<Self> {
        let mut next_state = self.change_membership(id).or_else(|| self.advance_pod(rules, id))?;
        // A node that leaves gives its vote away before.
        if next_state.node(id).volume == VolumeState::Left {
            next_state.voters.remove(&id);
            next_state.node_mut(id).member = false;
        }
        // No data are left anywhere, so the cluster is founded again, on a person's word.
        if !self.voters.is_empty() && self.is_bare() && next_state.is_live(id) {
            next_state.voters = BTreeSet::from([id]);
        }
        next_state.settle_database(rules);
        Some(next_state)
    }

    /// Lets the vendor's tool change the membership of a node that runs.
    fn change_membership(&self, id: NodeId) -> Option<Self> {
        let node = self.node(id);
        let is_running = node.pod == PodState::Ready && node.volume == VolumeState::Data;
        if self.voters.is_empty() {
            return None;
        }
        let mut next_state = self.clone();
        if is_running && node.request == Some(node.era) && node.era == self.era && !self.is_led() {
            next_state.era += 1;
            (next_state.node_mut(id).era, next_state.voters) =
                (next_state.era, BTreeSet::from([id]));
            return Some(next_state);
        }
        let is_detached = is_running && node.era < self.era && self.is_led();
        next_state.node_mut(id).era = self.era;
        is_detached.then_some(next_state)
    }

    fn advance_pod(&self, rules: &ModelRules, id: NodeId) -> Option<Self> {
        let is_in_set = self.is_in_set(id);
        let mut next_state = self.clone();
        let is_refused = self.refuses_decommission(rules, id);
        let template = self.pools[id.0].template;
        let is_quota_exceeded = self.refuses;
        let is_member_down = self.is_member_down(id);
        let is_bound = matches!(self.node(id).volume, VolumeState::Data | VolumeState::Left);
        let is_barred = self.cordoned && self.is_shared(rules, id) && is_bound;
        let (is_led, era) = (self.is_led() || self.is_bare(), self.era);
        let roles = self.roles_at_start(id);
        // Nodes of two minds about encryption do not meet.
        let is_incompatible = |other: NodeId| {
            self.is_live(other) && self.node(other).runs.secure != self.node(id).told.secure
        };
        let has_incompatible = node_ids().any(is_incompatible);
        let node = next_state.node_mut(id);
        match node.pod {
            PodState::Pending if is_in_set && !node.lost && !is_barred => {
                (node.pod, node.left) = (PodState::Starting, false);
            }
            PodState::Absent if is_in_set && node.known && !is_quota_exceeded => {
                node.pod =
                    if node.lost || is_barred { PodState::Pending } else { PodState::Starting };
                let is_pending = node.pod == PodState::Pending;
                (node.left, node.asked) = (is_pending && (node.left || node.asked), false);
                node.made = template;
                node.in_pod = rules.in_pods && id.0 == 1;
                if node.volume == VolumeState::None {
                    node.volume = VolumeState::Empty;
                }
            }
            PodState::Starting | PodState::Deaf | PodState::Ready | PodState::Pending
                if !is_in_set =>
            {
                end_pod(node);
            }
            PodState::Ending => node.lose_pod(),
            PodState::Starting => {
                // A node that is asked to leave starts for that; one that never joined need not.
                let is_leaving = !matches!(node.intent, IntentState::Stopped | IntentState::Fenced);
                let can_start = node.intent == IntentState::Running
                    || is_leaving
                        && (node.volume == VolumeState::Data || rules.votes && node.member);
                let is_waiting = (rules.ring && is_member_down) || !is_led;
                let is_join_blocked = node.volume == VolumeState::Empty && is_waiting;
                if !can_start
                    || node.volume == VolumeState::Left
                    || node.is_failing()
                    || is_join_blocked
                    || has_incompatible
                {
                    return None;
                }
                let is_deaf = node.told.revision == DEAF;
                node.pod = if is_deaf { PodState::Deaf } else { PodState::Ready };
                (node.volume, node.ordered, node.left) = (VolumeState::Data, false, false);
                (node.started, node.runs) = (node.told, NodeSpec { roles, ..node.told });
                node.newer |= node.told.revision > OLD;
                if self.node(id).volume == VolumeState::Empty {
                    (node.era, node.member) = (era, true);
                }
            }
            // A database that closed its ports is restarted by its pilot.
            PodState::Deaf => {
                let is_stopping = matches!(node.intent, IntentState::Stopped | IntentState::Fenced);
                let is_staying =
                    node.runs.revision == DEAF && !(node.ordered && node.told.revision != BAD);
                if is_staying && !is_stopping {
                    return None;
                }
                (node.pod, node.overdue) = (PodState::Starting, false);
            }
            PodState::Ready => match node.intent {
                IntentState::Stopped | IntentState::Fenced => node.pod = PodState::Starting,
                IntentState::Leaving | IntentState::LeavingByPerson if !is_refused && is_led => {
                    (node.pod, node.volume) = (PodState::Starting, VolumeState::Left);
                }
                _ if node.is_about_to_restart() => node.pod = PodState::Starting,
                _ => return None,
            },
            PodState::Absent | PodState::Stuck | PodState::Pending => return None,
        }
        Some(next_state)
    }

    /// Returns the roles that a node starts with: the wanted ones, and those that its pilot keeps for it
    /// while it has a vote or data.
    fn roles_at_start(&self, id: NodeId) -> NodeRoles {
        let NodeSpec { roles, .. } = self.node(id).told;
        let keeps_data = self.node(id).runs.roles.data && self.holds_data(id);
        NodeRoles { master: roles.master || self.keeps_vote(id), data: roles.data || keeps_data }
    }

    /// Lets the deadline of a pod pass that has what is wanted of it. One that is to get something else gets
    /// it before.
    pub(super) fn expire_deadline(&self) -> Option<(NodeId, Self)> {
        let is_late = |id: &NodeId| {
            let node = self.node(*id);
            let has_newest = node.told.revision == self.revision || !self.is_node_desired(*id);
            node.pod == PodState::Deaf && !node.overdue && has_newest
        };
        let id = node_ids().find(is_late)?;
        let mut next_state = self.clone();
        next_state.node_mut(id).overdue = true;
        Some((id, next_state))
    }

    /// Lets the pilots report late what an event since `old_state` changed for them.
    #[must_use]
    pub(super) fn reporting_late(mut self, old_state: &Self, rules: &ModelRules) -> Self {
        for id in node_ids().filter(|_| rules.late) {
            let (old_report, new_report) =
                (old_state.pilot_report(rules, id), self.pilot_report(rules, id));
            let is_same_pod = |pod: PodState| {
                matches!(pod, PodState::Starting | PodState::Deaf | PodState::Ready)
            };
            let is_reporting =
                self.node(id).known && is_same_pod(old_report.pod) && is_same_pod(new_report.pod);
            let late_report = match old_state.node(id).report {
                Some(LateReport { of, age }) if age < LATEST && of != new_report => {
                    Some((of, age + 1))
                }
                None if old_report != new_report => Some((old_report, 1)),
                _ => None,
            };
            let late_report =
                late_report.filter(|_| is_reporting).map(|(of, age)| LateReport { of, age });
            let is_back = self.is_live(id) && !old_state.is_live(id);
            let node = self.node_mut(id);
            (node.report, node.back) = (late_report, node.back || is_back);
        }
        self.forgetting_returns()
    }

    /// Once all pilots have reported, it does not count who came back.
    fn forgetting_returns(mut self) -> Self {
        if node_ids().all(|id| self.node(id).report.is_none()) {
            self.pools
                .iter_mut()
                .flat_map(|pool| &mut pool.nodes)
                .for_each(|node| node.back = false);
        }
        self
    }

    /// Lets the pilot of a node report; `None` where it has reported what is.
    pub(super) fn deliver_report(&self, id: NodeId) -> Option<Self> {
        self.node(id).report?;
        let mut next_state = self.clone();
        next_state.node_mut(id).report = None;
        Some(next_state.forgetting_returns())
    }
}

fn end_pod(node: &mut NodeState) {
    node.overdue = false;
    node.pod = match node.pod {
        PodState::Absent | PodState::Pending => {
            if node.in_pod {
                node.lose_volume();
            }
            PodState::Absent
        }
        _ if node.lost => PodState::Stuck,
        _ => PodState::Ending,
    };
}
