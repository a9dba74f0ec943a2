//! What the controller, Kubernetes, the pilots and the databases do.

use super::{facts::ModelView, *};

impl ModelState {
    /// Lets the leader take up voters that joined, and drop those that are gone while three remain, and
    /// those that are to vote no more as soon as others can have their votes.
    fn vote(&mut self) {
        if self.voters.is_empty() || !self.is_led() {
            return;
        }
        let gives = |id: NodeId| self.keeps_vote(id) && self.master_may_go(id);
        let votes = |id: &NodeId| {
            self.is_master(*id) && self.node(*id).told.roles.master
                || self.keeps_vote(*id) && !gives(*id)
        };
        let live: BTreeSet<NodeId> = ids().filter(votes).collect();
        let left = |id: &NodeId| {
            let node = self.node(*id);
            node.volume == VolumeState::Left || !node.known || gives(*id)
        };
        let kept: Vec<NodeId> = self.voters.iter().filter(|id| !left(id)).copied().collect();
        let live = if live.len() >= 3 { live } else { kept.into_iter().chain(live).collect() };
        if !live.is_empty() {
            self.voters = live;
        }
    }

    /// Copies each piece of data to as many nodes as it should have, from one that serves or that just
    /// left. The replicas of a ring stay where they are until their node leaves or is forgotten; copies
    /// of shards move on when their node is lost, or is to hold none.
    pub(super) fn heal(&mut self, rules: &ModelRules) {
        for at in 0..DATA {
            let held = self.copies[at];
            let stays = |id: &NodeId| {
                let node = self.node(*id);
                let is_gone = node.volume == VolumeState::Left || !node.known && !node.keeps_data();
                let has = if rules.ring { node.member } else { node.keeps_data() };
                held & bit(*id) != 0 && has && !is_gone && node.era == self.era
            };
            let of_left =
                |id: NodeId| self.node(id).volume == VolumeState::Left && held & bit(id) != 0;
            let source = self.live(held) > 0 || ids().any(of_left);
            self.copies[at] = ids().filter(stays).map(bit).sum();
            if source && self.is_led() {
                self.spread(rules, at);
                self.move_away(rules, at);
            }
        }
    }

    /// Gives a piece of data the copies that it lacks, where nodes have room.
    pub(super) fn spread(&mut self, rules: &ModelRules, at: usize) {
        for part in rules.parts() {
            while (self.copies[at] & part).count_ones() < self.wanted_copies(rules) {
                let Some(id) = self.receiver(at, *part) else { break };
                self.copies[at] |= bit(id);
            }
        }
    }

    /// Moves a piece from nodes that are to hold no data, where others can have it.
    fn move_away(&mut self, rules: &ModelRules, at: usize) {
        for id in ids().filter(|id| !self.node(*id).told.roles.data).collect::<Vec<_>>() {
            let held = self.copies[at] & bit(id) != 0 && !rules.ring;
            if let Some(receiver) = self.receiver(at, 0b11_1111).filter(|_| held) {
                self.copies[at] = (self.copies[at] & !bit(id)) | bit(receiver);
            }
        }
    }

    /// Returns the node that gets the next copy: of the pool that has the fewest, and another one for each
    /// piece.
    fn receiver(&self, at: usize, part: u8) -> Option<NodeId> {
        let holders = self.copies[at];
        let fits = |id: &NodeId| {
            let node = self.node(*id);
            let new_enough = at + 1 < DATA || !self.newer_data || node.runs.revision != OLD;
            let takes = node.runs.roles.data && node.told.roles.data && !node.is_leaving();
            part & !holders & bit(*id) != 0 && takes && new_enough && self.is_live(*id)
        };
        let in_pool = |pool: usize| (holders & (0b111 << (pool * 3))).count_ones();
        ids().filter(fits).min_by_key(|id| (in_pool(id.0), (id.1 + 3 - at) % 3))
    }

    /// Makes what `ensure` makes, and returns what the plan sees then.
    pub(super) fn look(&mut self, rules: &ModelRules) -> ModelView {
        self.ensure(rules).unwrap_or_else(|| self.view(rules))
    }

    /// Makes what `ensure` makes: StatefulSets with their templates, and Pilots with their marks. Returns
    /// what it saw, where it looked and changed nothing.
    fn ensure(&mut self, rules: &ModelRules) -> Option<ModelView> {
        let revision = self.revision;
        for (pool, wanted) in self.pools.iter_mut().zip(self.wanted) {
            let held =
                |node: &NodeState| node.volume == VolumeState::Data || node.pod != PodState::Absent;
            let kept = pool.nodes.iter().rposition(held).map_or(0, |last| last + 1);
            if wanted.is_some() && pool.replicas.is_none() {
                pool.replicas = Some(u8::try_from(kept).unwrap());
                pool.template = pod_of(revision);
            }
        }
        // Most states have nothing to pin, and are spared the pins.
        let newest = self.newest(self.secure);
        let differs = |at: usize, node: &NodeState| {
            let made = node.pod != PodState::Absent && node.made != pod_of(revision);
            node.known && (made || node.told != newest[at] || node.pinned.is_some())
        };
        let is_plain = !self
            .pools
            .iter()
            .enumerate()
            .any(|(at, pool)| pool.nodes.iter().any(|node| differs(at, node)));
        let view = (!is_plain).then(|| self.view(rules));
        let before = view.is_some().then(|| self.pools.clone());
        for (at, pool) in self.pools.iter_mut().enumerate() {
            if pool.nodes.iter().any(|node| differs(at, node)) {
                continue;
            }
            pool.template = pod_of(revision);
            let told = view.as_ref().map_or(newest[at], |view| view.newest[at]);
            for node in &mut pool.nodes[..usize::from(pool.replicas.unwrap_or_default())] {
                if !node.known {
                    (node.known, node.told, node.intent) = (true, told, IntentState::Running);
                }
            }
        }
        let view = view?;
        let (desired, observed) = (&view.desired, &view.observed);
        for found in &observed.pools {
            let Some(wanted) = desired.pool(&found.name) else { continue };
            let at = usize::from(found.name == "b");
            let (pool, newest) = (&mut self.pools[at], view.newest[at]);
            pool.template = pinned(desired, observed, found).map_or(pod_of(revision), number);
            let birth = newborn(desired, observed, found);
            let replicas = pool.replicas.unwrap_or_default();
            for ordinal in 0..3 {
                let node = &mut pool.nodes[usize::from(ordinal)];
                let member = found.members.get(&u32::from(ordinal));
                if ordinal >= replicas && !(desired.round.all_stopped && node.known) {
                    continue;
                }
                if !node.known {
                    let hash = birth.and_then(|birth| birth.pilot.config_hash.as_deref());
                    node.told = hash.map_or(newest, NodeSpec::of_hash);
                    node.pinned = birth.map(|birth| number(birth.template));
                    (node.known, node.intent) = (true, IntentState::Running);
                } else if let Some(member) = member {
                    node.pinned = pinned_to(desired, found, member, wanted).map(number);
                }
                if node.pod == PodState::Absent && node.pinned.is_none() {
                    node.ordered &= node.told == newest;
                    node.told = newest;
                }
            }
        }
        (before.as_ref() == Some(&self.pools)).then_some(view)
    }

    /// Carries out a step of the plan.
    pub(super) fn execute(&mut self, rules: &ModelRules, step: &PlannedStep) {
        self.carry_out(rules, step);
        self.settle(rules);
    }

    /// Lets the database take notice of a change.
    fn settle(&mut self, rules: &ModelRules) {
        self.vote();
        self.heal(rules);
        let is_gone = |node: &NodeState| {
            node.pod == PodState::Absent && !node.known && node.volume == VolumeState::None
        };
        let nodes = self.pools.iter_mut().flat_map(|pool| &mut pool.nodes);
        for node in nodes.filter(|node| is_gone(node)) {
            *node = NOTHING;
        }
    }

    /// Tells a node the newest spec, and whether its pilot restarts the database for it.
    fn tell(&mut self, rules: &ModelRules, id: NodeId, ordered: bool) {
        let newest = if rules.varies(EditKind::Security) {
            self.view(rules).newest
        } else {
            self.newest(false)
        };
        let node = self.node_mut(id);
        (node.told, node.pinned, node.ordered) = (newest[id.0], None, ordered);
    }

    fn carry_out(&mut self, rules: &ModelRules, step: &PlannedStep) {
        let pool_of = |name: &str| usize::from(name == "b");
        match step {
            PlannedStep::Raise { pool, to }
            | PlannedStep::Return { pool, to }
            | PlannedStep::Remove { pool, to, .. } => {
                self.pools[pool_of(pool)].replicas = Some(u8::try_from(*to).unwrap());
                drop(self.ensure(rules));
            }
            PlannedStep::Empty { pool } => self.pools[pool_of(pool)].replicas = Some(0),
            PlannedStep::DeletePool { pool, .. } => self.pools[pool_of(pool)].replicas = None,
            PlannedStep::Stop { pilots } => {
                for name in pilots {
                    self.named(name).intent = IntentState::Stopped;
                }
            }
            PlannedStep::Start { pilots } => {
                for name in pilots {
                    self.named(name).intent = IntentState::Running;
                }
            }
            PlannedStep::Keep { pilot } => self.named(pilot).intent = IntentState::Running,
            PlannedStep::Decommission { pilot } => self.named(pilot).intent = IntentState::Leaving,
            PlannedStep::Configure { pilot } => self.tell(rules, id_of(pilot), false),
            PlannedStep::RestartInPlace { pilot } => self.tell(rules, id_of(pilot), true),
            PlannedStep::Replace { pilot, .. } | PlannedStep::Restart { pilot, .. } => {
                let id = id_of(pilot);
                self.pools[id.0].template = pod_of(self.revision);
                self.tell(rules, id, false);
                end_pod(self.node_mut(id));
            }
            PlannedStep::Recreate { pilot, .. } => end_pod(self.named(pilot)),
            PlannedStep::Renew { pilot, claim, .. } => {
                let node = self.named(pilot);
                end_pod(node);
                if claim.is_some() {
                    node.lose_volume();
                }
            }
            PlannedStep::DeleteClaim { pilot, .. } => {
                let node = self.named(pilot);
                node.lose_volume();
            }
            PlannedStep::DeletePilot { pilot, .. } => {
                let node = self.named(pilot);
                (node.known, node.intent, node.given_up) = (false, IntentState::Running, false);
                (node.asked, node.left, node.member) = (false, false, false);
                (node.word, node.request) = (None, None);
            }
            PlannedStep::Vacate { pilot, .. } => {
                let node = self.named(pilot);
                node.asked = false;
                node.left = true;
                end_pod(node);
            }
            PlannedStep::ResizeClaim { pilot, .. } => self.named(pilot).large = true,
            PlannedStep::BeginAnew { pilot, .. } => {
                let node = self.named(pilot);
                node.request = Some(node.era);
            }
            PlannedStep::TakeWordBack { pilot, request } => {
                let node = self.named(pilot);
                (node.word, node.request) = (None, node.request.filter(|_| !request));
            }
            PlannedStep::KeepData { pilot } => self.named(pilot).given_up = false,
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
                let mut told = self.clone();
                told.tell(rules, id_of(pilot), false);
                let mut made = told.clone();
                made.pools[id_of(pilot).0].template = pod_of(self.revision);
                cuts.extend([told, made]);
            }
            PlannedStep::Renew { pilot, claim: Some(_), .. } => {
                let mut cut = self.clone();
                let node = cut.named(pilot);
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
                let at = usize::from(pool == "b");
                let told = self.newest(self.secure)[at];
                let nodes = &mut cut.pools[at].nodes;
                for node in nodes[..*to as usize].iter_mut().filter(|node| !node.known) {
                    (node.known, node.told) = (true, told);
                }
                cuts.push(cut);
            }
            PlannedStep::Stop { pilots } | PlannedStep::Start { pilots } if pilots.len() > 1 => {
                let stops = matches!(step, PlannedStep::Stop { .. });
                let mut cut = self.clone();
                cut.named(&pilots[0]).intent =
                    if stops { IntentState::Stopped } else { IntentState::Running };
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

    /// Writes what `ensure` decided by an earlier state of the pods, of which `earlier` came.
    pub(super) fn ensured_late(&self, earlier: &Self) -> Self {
        let mut late = self.clone();
        for (pool, decided) in late.pools.iter_mut().zip(&earlier.pools) {
            if pool.replicas != decided.replicas {
                continue;
            }
            pool.template = decided.template;
            for (node, decided) in pool.nodes.iter_mut().zip(&decided.nodes) {
                (node.known, node.told, node.pinned) =
                    (decided.known, decided.told, decided.pinned);
                node.ordered &= decided.ordered;
            }
        }
        late
    }

    /// Lets Kubernetes or the pilot of one node do its next move; `None` where there is none.
    pub(super) fn moved(&self, rules: &ModelRules, id: NodeId) -> Option<Self> {
        let mut next = self.membership(id).or_else(|| self.moved_itself(rules, id))?;
        // A node that leaves gives its vote away before.
        if next.node(id).volume == VolumeState::Left {
            next.voters.remove(&id);
            next.node_mut(id).member = false;
        }
        // No data are left anywhere, so the cluster is founded again, on a person's word.
        if !self.voters.is_empty() && self.is_bare() && next.is_live(id) {
            next.voters = BTreeSet::from([id]);
        }
        next.settle(rules);
        Some(next)
    }

    /// Lets the vendor's tool change the membership of a node that runs.
    fn membership(&self, id: NodeId) -> Option<Self> {
        let node = self.node(id);
        let runs = node.pod == PodState::Ready && node.volume == VolumeState::Data;
        if self.voters.is_empty() {
            return None;
        }
        let mut next = self.clone();
        if runs && node.request == Some(node.era) && node.era == self.era && !self.is_led() {
            next.era += 1;
            (next.node_mut(id).era, next.voters) = (next.era, BTreeSet::from([id]));
            return Some(next);
        }
        let detached = runs && node.era < self.era && self.is_led();
        next.node_mut(id).era = self.era;
        detached.then_some(next)
    }

    fn moved_itself(&self, rules: &ModelRules, id: NodeId) -> Option<Self> {
        let runs = self.runs(id);
        let mut next = self.clone();
        let refused = self.refuses(rules, id);
        let template = self.pools[id.0].template;
        let refuses = self.refuses;
        let others_down = self.misses(id);
        let bound = matches!(self.node(id).volume, VolumeState::Data | VolumeState::Left);
        let barred = self.cordoned && self.is_shared(rules, id) && bound;
        let (led, era) = (self.is_led() || self.is_bare(), self.era);
        let roles = self.roles_at_start(id);
        // Nodes of two minds about encryption do not meet.
        let strange = |other: NodeId| {
            self.is_live(other) && self.node(other).runs.secure != self.node(id).told.secure
        };
        let estranged = ids().any(strange);
        let node = next.node_mut(id);
        match node.pod {
            PodState::Pending if runs && !node.lost && !barred => {
                (node.pod, node.left) = (PodState::Starting, false);
            }
            PodState::Absent if runs && node.known && !refuses => {
                node.pod = if node.lost || barred { PodState::Pending } else { PodState::Starting };
                let waits = node.pod == PodState::Pending;
                (node.left, node.asked) = (waits && (node.left || node.asked), false);
                node.made = template;
                node.in_pod = rules.in_pods && id.0 == 1;
                if node.volume == VolumeState::None {
                    node.volume = VolumeState::Empty;
                }
            }
            PodState::Starting | PodState::Deaf | PodState::Ready | PodState::Pending if !runs => {
                end_pod(node);
            }
            PodState::Ending => node.lose_pod(),
            PodState::Starting => {
                // A node that is asked to leave starts for that; one that never joined need not.
                let leaves = !matches!(node.intent, IntentState::Stopped | IntentState::Fenced);
                let starts = node.intent == IntentState::Running
                    || leaves && (node.volume == VolumeState::Data || rules.votes && node.member);
                let waits = (rules.ring && others_down) || !led;
                let joins = node.volume == VolumeState::Empty && waits;
                if !starts || node.volume == VolumeState::Left || node.fails() || joins || estranged
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
                let stops = matches!(node.intent, IntentState::Stopped | IntentState::Fenced);
                let stays =
                    node.runs.revision == DEAF && !(node.ordered && node.told.revision != BAD);
                if stays && !stops {
                    return None;
                }
                (node.pod, node.overdue) = (PodState::Starting, false);
            }
            PodState::Ready => match node.intent {
                IntentState::Stopped | IntentState::Fenced => node.pod = PodState::Starting,
                IntentState::Leaving | IntentState::LeavingByPerson if !refused && led => {
                    (node.pod, node.volume) = (PodState::Starting, VolumeState::Left);
                }
                _ if node.is_about_to_restart() => node.pod = PodState::Starting,
                _ => return None,
            },
            PodState::Absent | PodState::Stuck | PodState::Pending => return None,
        }
        Some(next)
    }

    /// Returns the roles that a node starts with: the wanted ones, and those that its pilot keeps for it
    /// while it has a vote or data.
    fn roles_at_start(&self, id: NodeId) -> NodeRoles {
        let NodeSpec { roles, .. } = self.node(id).told;
        let keeps_data = self.node(id).runs.roles.data && self.holds(id);
        NodeRoles { master: roles.master || self.keeps_vote(id), data: roles.data || keeps_data }
    }

    /// Lets the deadline of a pod pass that has what is wanted of it. One that is to get something else gets
    /// it before.
    pub(super) fn late(&self) -> Option<(NodeId, Self)> {
        let late = |id: &NodeId| {
            let node = self.node(*id);
            let newest = node.told.revision == self.revision || !self.wants(*id);
            node.pod == PodState::Deaf && !node.overdue && newest
        };
        let id = ids().find(late)?;
        let mut next = self.clone();
        next.node_mut(id).overdue = true;
        Some((id, next))
    }

    /// Lets the pilots report late what an event since `before` changed for them.
    #[must_use]
    pub(super) fn reporting_late(mut self, before: &Self, rules: &ModelRules) -> Self {
        for id in ids().filter(|_| rules.late) {
            let (was, is) = (before.report(rules, id), self.report(rules, id));
            let same_pod = |pod: PodState| {
                matches!(pod, PodState::Starting | PodState::Deaf | PodState::Ready)
            };
            let speaks = self.node(id).known && same_pod(was.pod) && same_pod(is.pod);
            let late = match before.node(id).report {
                Some(LateReport { of, age }) if age < LATEST && of != is => Some((of, age + 1)),
                None if was != is => Some((was, 1)),
                _ => None,
            };
            let late = late.filter(|_| speaks).map(|(of, age)| LateReport { of, age });
            let returns = self.is_live(id) && !before.is_live(id);
            let node = self.node_mut(id);
            (node.report, node.back) = (late, node.back || returns);
        }
        self.forgetting_returns()
    }

    /// Once all pilots have reported, it does not count who came back.
    fn forgetting_returns(mut self) -> Self {
        if ids().all(|id| self.node(id).report.is_none()) {
            self.pools
                .iter_mut()
                .flat_map(|pool| &mut pool.nodes)
                .for_each(|node| node.back = false);
        }
        self
    }

    /// Lets the pilot of a node report; `None` where it has reported what is.
    pub(super) fn reported(&self, id: NodeId) -> Option<Self> {
        self.node(id).report?;
        let mut next = self.clone();
        next.node_mut(id).report = None;
        Some(next.forgetting_returns())
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
