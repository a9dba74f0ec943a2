//! What the plan sees of a state: the desired cluster, and the observed one.

use std::time::Duration;

use super::*;

/// What the plan sees, and what the nodes of each pool are to be told next.
pub(super) struct ModelView {
    pub(super) desired: DesiredCluster,
    pub(super) observed: ObservedCluster,
    pub(super) newest: [NodeSpec; 2],
}

impl ModelView {
    pub(super) fn build_plan(&self) -> Plan {
        plan_next_step(&self.desired, &self.observed)
    }
}

impl ModelState {
    pub(super) fn build_view(&self, rules: &ModelRules) -> ModelView {
        let (mut desired, observed) = (self.build_desired(rules), self.build_observed(rules));
        if rules.has_edit_kind(EditKind::Security) {
            let mode = if self.secure { SecurityMode::Secure } else { SecurityMode::Open };
            let security = ClusterSecurity { mode: Some(mode), ..ClusterSecurity::default() };
            desired.security = Some(security);
            desired.round = security_round::next_security_round(&desired, &observed);
            desired.stopped |= desired.round.stops_all;
        }
        let newest_specs = self.newest_specs(!desired.round.rungs.is_open());
        for pool in &mut desired.pools {
            pool.pilot.config_hash = Some(newest_specs[usize::from(pool.name == "b")].hash());
            pool.pilot.security = PilotSecurity::from_modes(&desired.round.rungs);
        }
        ModelView { desired, observed, newest: newest_specs }
    }

    /// Returns what the nodes of each pool are to be told.
    pub(super) fn newest_specs(&self, secure: bool) -> [NodeSpec; 2] {
        self.roles.map(|roles| NodeSpec { revision: self.revision, roles, secure })
    }

    fn build_desired(&self, rules: &ModelRules) -> DesiredCluster {
        let sizes: Vec<(&str, u32)> = POOLS
            .into_iter()
            .zip(self.wanted)
            .filter_map(|(name, size)| Some((name, u32::from(size?))))
            .collect();
        let mut desired = sample::desired(&sizes, REVISIONS[usize::from(self.revision)]);
        desired.database = rules.database;
        desired.stopped = self.stopped;
        rules.versions[version_of(self.revision)].clone_into(&mut desired.version);
        for pool in &mut desired.pools {
            let index = usize::from(pool.name == "b");
            pool.pilot.version = Some(desired.version.clone());
            REVISIONS[usize::from(pod_of(self.revision))].clone_into(&mut pool.pod_hash);
            pool.eligible = rules.votes && self.roles[index].master;
            if rules.in_pods && index == 1 {
                pool.persistence = None;
            } else if self.large {
                pool.persistence.as_mut().unwrap().size = Some(Quantity(SIZES[1].into()));
            }
        }
        desired.strategy.canary = self.canary.then(|| (BTreeSet::new(), 1));
        desired.strategy.skip_predicates.clone_from(&self.skipped);
        if self.more_down {
            desired.strategy.unavailable = IntOrString::Int(3);
        }
        desired.status.conditions = vec![sample::initialized()];
        desired
    }

    fn build_observed(&self, rules: &ModelRules) -> ObservedCluster {
        let mut observed = sample::observed(&[("a", 0), ("b", 0)], "old");
        // Until all pilots have judged what is, time has not passed.
        let is_settled = node_ids().all(|id| self.node(id).report.is_none());
        for (index, pool) in observed.pools.iter_mut().enumerate() {
            let state = &self.pools[index];
            match state.replicas {
                Some(replicas) => {
                    let set = pool.set.as_mut().unwrap();
                    set.replicas = u32::from(replicas);
                    set.template = REVISIONS[usize::from(state.template)].to_owned();
                }
                None => pool.set = None,
            }
            pool.orphan = state.replicas.is_none() && self.wanted[index].is_none();
            for (ordinal, node) in (0..).zip(&state.nodes) {
                if *node == NOTHING {
                    continue;
                }
                let id = (index, ordinal as usize);
                let mut member = sample::serving(&pool.set_name, ordinal, "old");
                fill_pod(&mut member, node);
                fill_claim(&mut member, node, rules);
                if node.known {
                    self.fill_pilot(&mut member, id, rules, is_settled);
                } else {
                    member.pilot = None;
                }
                place_on_machine(&mut member, node, self.is_shared(rules, id));
                if self.refuses && node.pod == PodState::Absent && self.is_in_set(id) {
                    member.refused = Some(PodFailure {
                        reason: "QuotaExceeded",
                        message: format!("pod {} is not created: a quota", member.name),
                        lasts: true,
                    });
                }
                pool.members.insert(ordinal, member);
            }
        }
        // Pools that neither the spec nor Kubernetes knows are not seen.
        let is_in_spec = |name: &str| self.wanted[usize::from(name == "b")].is_some();
        observed.pools.retain(|pool| {
            is_in_spec(&pool.name) || pool.set.is_some() || !pool.members.is_empty()
        });
        observed.pools.sort_by_key(|pool| !is_in_spec(&pool.name));
        observed
    }

    /// Makes the facts of a Pilot: what the controller wrote is of now, what the pilot reports of when it
    /// reported last.
    fn fill_pilot(&self, member: &mut Member, id: NodeId, rules: &ModelRules, is_settled: bool) {
        let node = self.node(id);
        let report = node.report.map_or_else(|| self.pilot_report(rules, id), |late| late.of);
        let reported_state = NodeState {
            pod: report.pod,
            volume: report.volume,
            runs: report.runs,
            started: report.started,
            ..*node
        };
        let data = member.data_uid();
        let pilot = member.pilot.as_mut().unwrap();
        let is_ready = reported_state.pod == PodState::Ready;
        pilot.given_up = data.filter(|_| node.given_up);
        pilot.ready = is_ready;
        pilot.spec.config_hash = Some(node.told.hash());
        pilot.running_hash = Some(reported_state.runs.hash());
        pilot.started_for = rules.in_place.then(|| reported_state.started.hash());
        pilot.spec.restart_for = node.ordered.then(|| node.told.hash());
        let has_joined = matches!(reported_state.volume, VolumeState::Data | VolumeState::Left);
        (pilot.identity, pilot.answered, pilot.idle) =
            (has_joined, has_joined, !reported_state.is_running());
        let is_deaf = reported_state.pod == PodState::Deaf;
        pilot.not_ready = is_deaf.then(|| "does not serve clients".to_owned());
        pilot.decommissioned = reported_state.volume == VolumeState::Left;
        pilot.pinned = node.pinned.map(|revision| REVISIONS[usize::from(revision)].to_owned());
        pilot.spec.version = Some(node.told.version(rules));
        pilot.version = Some(reported_state.runs.version(rules));
        pilot.failed = reported_state.pod == PodState::Starting && node.is_failing();
        let validation = if node.told.revision == BAD { Err("bad".to_owned()) } else { Ok(()) };
        pilot.validated = reported_state.is_running().then_some(validation);
        pilot.stopped = node.intent == IntentState::Stopped && !reported_state.is_running();
        pilot.spec.phase = match node.intent {
            IntentState::Running => None,
            IntentState::Leaving | IntentState::LeavingByPerson => {
                Some(PilotIntent::Decommissioned)
            }
            IntentState::Stopped => Some(PilotIntent::Stopped),
            IntentState::Fenced => Some(PilotIntent::Fenced),
        };
        pilot.phase_ours = matches!(node.intent, IntentState::Leaving | IntentState::Stopped);
        pilot.keeps_data = node.told.roles.data;
        pilot.blockers = rules::build_blockers(rules.database, report.rules);
        let is_gone = matches!(node.pod, PodState::Stuck | PodState::Pending) || node.lost;
        let moment = Duration::from_secs(1);
        if is_gone {
            pilot.hearing.ago = Duration::from_secs(600);
        } else if !is_settled {
            // Each reports just now, by a judgement of before.
            pilot.hearing.ago = moment;
        }
        if !is_settled || node.is_about_to_restart() {
            pilot.hearing.gone = moment;
        }
        if node.back {
            pilot.hearing.returned = moment;
        }
        if rules.has_edit_kind(EditKind::Security) {
            pilot.spec.security = PilotSecurity::from_modes(&security_modes(node.told.secure));
            let stored = pilot.spec.security.as_ref().map(PilotSecurity::revision);
            let rungs = Some(security_modes(reported_state.runs.secure));
            let security_status =
                PilotSecurityStatus { stored, rungs, ..PilotSecurityStatus::default() };
            pilot.security = Some(security_status);
        }
        if rules.votes {
            self.fill_voter(member, &reported_state);
        }
    }

    /// Makes a member look as a voter whose node follows a leader, or follows none.
    fn fill_voter(&self, member: &mut Member, reported_state: &NodeState) {
        let is_led = self.is_led() && reported_state.era == self.era;
        let Member { pod, pilot: Some(pilot), .. } = member else { return };
        let is_up = reported_state.pod == PodState::Ready;
        if let Some(pod) = pod.as_mut().filter(|_| is_up) {
            pod.ready &= is_led;
        }
        (pilot.ready, pilot.joins_in_vain) =
            (is_up && is_led, reported_state.pod == PodState::Deaf || is_up && !is_led);
        let id = |era: u8| format!("era-{era}");
        pilot.eligible = reported_state.told.roles.master;
        pilot.identity = pilot.identity || reported_state.member;
        pilot.cluster_id = reported_state.member.then(|| id(reported_state.era));
        pilot.emptied =
            reported_state.pod == PodState::Starting && reported_state.volume == VolumeState::Empty;
        pilot.unsafe_bootstrap = reported_state.word.map(id);
        pilot.spec.unsafe_bootstrap = reported_state.request.map(id);
        if reported_state.lost {
            pilot.instance = Some("earlier".to_owned());
        }
    }
}

fn security_modes(secure: bool) -> SecurityRungs {
    let mode = if secure { SecurityMode::Secure } else { SecurityMode::Open };
    ClusterSecurity { mode: Some(mode), ..ClusterSecurity::default() }.desired_modes()
}

fn fill_pod(member: &mut Member, node: &NodeState) {
    if node.pod == PodState::Absent {
        member.pod = None;
        return;
    }
    let trouble = |reason, message: &str| {
        Some(PodFailure { reason, message: format!("{}: {message}", member.name), lasts: true })
    };
    let is_held = !matches!(node.intent, IntentState::Running | IntentState::Leaving);
    let trouble = match node.pod {
        PodState::Pending => {
            trouble("Unschedulable", "1 node(s) had volume node affinity conflict")
        }
        _ if node.overdue && !is_held => {
            trouble("ProgressDeadlineExceeded", "it has not become ready in time")
        }
        _ => None,
    };
    let pod = member.pod.as_mut().unwrap();
    pod.ready = node.pod == PodState::Ready;
    pod.hash = REVISIONS[usize::from(node.made)].to_owned();
    pod.terminating = matches!(node.pod, PodState::Ending | PodState::Stuck);
    pod.overdue = node.pod == PodState::Stuck;
    pod.started = node.pod != PodState::Pending;
    pod.holds_data = node.in_pod;
    pod.mounts_users = node.told.secure;
    pod.trouble = trouble;
}

fn fill_claim(member: &mut Member, node: &NodeState, rules: &ModelRules) {
    if node.volume == VolumeState::None || node.in_pod {
        member.claim = None;
    }
    let Some(claim) = &mut member.claim else { return };
    claim.uid.clone_from(&member.name);
    claim.terminating = node.doomed;
    claim.holds_data &= !node.doomed;
    let size = Some(SIZES[usize::from(node.large)].to_owned());
    (claim.requested, claim.capacity) = (size.clone(), size);
    let refusal = Err("its class does not".to_owned());
    claim.expansion = Some(if rules.expands { Ok(()) } else { refusal });
}

/// Gives a member a machine, and a request to leave it.
fn place_on_machine(member: &mut Member, node: &NodeState, is_shared: bool) {
    let machine = if is_shared { "m-shared".to_owned() } else { format!("m-{}", member.name) };
    let Member { pod, pilot: Some(pilot), .. } = member else { return };
    let mut current_pod = "pod".to_owned();
    if let Some(pod) = pod {
        let is_pending = node.pod == PodState::Pending;
        pod.machine = (!is_pending).then(|| machine.clone());
        pod.trouble.iter_mut().filter(|_| is_pending && !node.lost).for_each(|trouble| {
            trouble.message = "0/1 nodes are available: 1 node(s) were unschedulable.".to_owned();
        });
        current_pod.clone_from(&pod.uid);
    }
    pilot.machine = Some(machine);
    if node.asked {
        pilot.leave = Some(LeaveRequest { pod: current_pod, by: String::new() });
    } else if node.left {
        pilot.instance = Some("earlier".to_owned());
        pilot.leave = Some(LeaveRequest { pod: "earlier".to_owned(), by: String::new() });
    }
}
