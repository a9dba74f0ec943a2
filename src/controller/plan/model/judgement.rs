//! Which states are as wanted, which steps break a law, and where the remedies lead.

use super::*;
use crate::api::predicate;

const DATA_OUTLIVES_POD: &str = predicate::DATA_OUTLIVES_POD.name;

impl ModelState {
    /// Do all nodes that are wanted serve, as they are wanted, and no others?
    pub(super) fn is_wanted(&self) -> bool {
        let newest_specs = self.newest_specs(self.secure);
        node_ids().all(|id| {
            let node = self.node(id);
            if self.stopped {
                // A pool that left the spec is drained when the cluster is started again.
                let is_surplus = self.wanted[id.0].is_none() || node.in_pod;
                return node.pod == PodState::Absent || is_surplus && !node.is_running();
            }
            if !self.is_node_desired(id) {
                return node.pod == PodState::Absent && !node.known;
            }
            let is_current = node.made == pod_of(self.revision)
                && node.runs == newest_specs[id.0]
                && (node.large >= self.large || node.in_pod);
            let is_serving = self.is_led() && node.era == self.era;
            node.pod == PodState::Ready && is_serving && is_current
        })
    }

    /// Does what a remedy says; `None` where it changes nothing.
    ///
    /// # Errors
    /// Where the remedy has data given up that are not lost.
    fn apply_remedy(&self, remedy: &Remedy) -> Result<Option<Self>, String> {
        let mut next_state = self.clone();
        match remedy {
            Remedy::Skip(predicate) => drop(next_state.skipped.insert(predicate.clone())),
            Remedy::DoOrSkip { .. } => next_state.single = true,
            Remedy::Confirm { predicate } => {
                next_state.skipped.insert((*predicate).to_owned());
            }
            // Its machine is cordoned, as the scheduler says.
            Remedy::Correct if node_ids().any(|id| self.is_barred(id)) => {
                next_state.cordoned = false;
            }
            // A node ran the newer version before the older one was wanted again.
            Remedy::Correct | Remedy::MendVolume { .. }
                if next_state.revision == OLD && node_ids().any(|id| self.node(id).newer) =>
            {
                next_state.revision = NEW;
            }
            // There is no later release that would start, only the one from before, which
            // validation refuses where the newer version opened data.
            Remedy::Correct | Remedy::MendVolume { .. }
                if matches!(next_state.revision, BAD | DEAF) =>
            {
                let has_run =
                    node_ids().any(|id| !matches!(self.node(id).runs.revision, OLD | BAD));
                if node_ids().any(|id| self.node(id).newer) && !has_run {
                    return Ok(None);
                }
                next_state.revision = if has_run { NEW } else { OLD };
            }
            // Puts back the roles that the nodes have.
            Remedy::RevertSpec => {
                for (pool, roles) in next_state.pools.iter().zip(&mut next_state.roles) {
                    if let Some(node) = pool.nodes.iter().find(|node| node.is_running()) {
                        *roles = node.runs.roles;
                    }
                }
            }
            Remedy::MoveData { .. } => next_state.wanted = [Some(3), None],
            Remedy::WantPool { node, .. } if !self.node(id_of(node)).lost => {
                next_state.add_desired_node(id_of(node));
            }
            Remedy::GiveUp { node, .. }
            | Remedy::WantPool { node, .. }
            | Remedy::MendVolume { node, data: Some(_) } => {
                let lost_node = next_state.find_node_mut(node);
                if lost_node.keeps_data() {
                    return Err(format!("{remedy:?} gives data up that are not lost"));
                }
                lost_node.given_up = true;
            }
            Remedy::BeginAnew { node, .. } => {
                let node = next_state.find_node_mut(node);
                node.word = Some(node.era);
            }
            Remedy::TakeWordBack { node } => next_state.find_node_mut(node).word = None,
            Remedy::EndPod { node } => next_state.find_node_mut(node).lose_pod(),
            Remedy::ReleasePhase { node } | Remedy::RenewByPhase { node } => {
                next_state.find_node_mut(node).intent = IntentState::Running;
            }
            Remedy::AllowMoreDown => next_state.more_down = true,
            Remedy::EndCanary => next_state.canary = false,
            Remedy::Uncordon { .. } => next_state.cordoned = false,
            Remedy::RaiseQuota => next_state.refuses = false,
            Remedy::PutSizeBack { .. } => next_state.large = false,
            Remedy::WantNode { node } => {
                let id = id_of(node);
                next_state.add_desired_node(id);
                if next_state.node(id).intent == IntentState::LeavingByPerson {
                    next_state.node_mut(id).intent = IntentState::Running;
                }
            }
            Remedy::KeepNode => {
                next_state.wanted[0] = Some(next_state.wanted[0].unwrap_or_default().max(1));
            }
            _ => return Ok(None),
        }
        Ok((next_state != *self).then_some(next_state))
    }

    /// Waits the pod of the node for a machine that is cordoned?
    fn is_barred(&self, id: NodeId) -> bool {
        self.cordoned && self.node(id).pod == PodState::Pending && !self.node(id).lost
    }

    /// Wants a node, and those before it in its pool.
    fn add_desired_node(&mut self, (pool, node): NodeId) {
        let min_size = u8::try_from(node + 1).unwrap();
        self.wanted[pool] = Some(self.wanted[pool].unwrap_or_default().max(min_size));
    }

    /// Runs the controller, Kubernetes and the pilots until nothing moves. The nodes move in turn.
    ///
    /// # Errors
    /// Where a step breaks a law, or the cluster never comes to rest.
    fn run_to_rest(mut self, rules: &ModelRules) -> Result<(Self, Plan), String> {
        // What a person did may let copies go elsewhere.
        self.restore_copies(rules);
        let mut turns: VecDeque<NodeId> = node_ids().collect();
        for _ in 0..400 {
            let plan = self.reconcile(rules).build_plan();
            if let Some(step) = &plan.step {
                if let Some(violation) = self.find_violation(rules, step) {
                    return Err(format!("{violation}\nof:\n{self}"));
                }
                self.execute_step(rules, step);
                continue;
            }
            let next_move =
                |(position, id): (usize, &NodeId)| Some((position, self.advance_node(rules, *id)?));
            self = if let Some((position, next_state)) =
                turns.iter().enumerate().find_map(next_move)
            {
                turns.rotate_left(position + 1);
                next_state
            } else if let Some((_, next_state)) = self.expire_deadline() {
                next_state
            } else {
                return Ok((self, plan));
            };
        }
        Err(format!("never comes to rest:\n{self}"))
    }

    /// Returns a broken law, where carrying out `step` breaks one.
    pub(super) fn find_violation(&self, rules: &ModelRules, step: &PlannedStep) -> Option<String> {
        if matches!(step, PlannedStep::BeginAnew { .. }) && self.is_led() {
            return Some(format!("{step:?} while there is a leader"));
        }
        let id = node_ids().find(|id| step.pilot() == Some(name_of(*id).as_str()))?;
        let node = self.node(id);
        let takes_data = matches!(
            step,
            PlannedStep::DeleteClaim { .. }
                | PlannedStep::Renew { .. }
                | PlannedStep::Remove { .. }
                | PlannedStep::DeletePilot { .. }
        );
        if takes_data && node.volume == VolumeState::Data && !node.given_up {
            return Some(format!("{step:?} takes data away"));
        }
        let ends_pod = matches!(
            step,
            PlannedStep::Restart { .. }
                | PlannedStep::Replace { .. }
                | PlannedStep::Recreate { .. }
                | PlannedStep::Vacate { .. }
        );
        if ends_pod && self.is_last_copy(id) && !self.is_skipped(rules, DATA_OUTLIVES_POD) {
            return Some(format!("{step:?} takes the last copy of data"));
        }
        self.find_disturbance(rules, step, id).map(|disturbance| format!("{step:?} {disturbance}"))
    }

    /// Does a person skip the predicate, and bear what comes of it?
    fn is_skipped(&self, rules: &ModelRules, predicate: &str) -> bool {
        let rule = rules.database.names.find_predicate(predicate);
        rule.is_some_and(|rule| rule.skip.is_skipped(predicate, |name| self.skipped.contains(name)))
    }

    /// Is a piece of data in the pod of the node, and on no other volume?
    fn is_last_copy(&self, id: NodeId) -> bool {
        let node = self.node(id);
        let is_elsewhere = |holders: &u8| {
            node_ids().any(|other| {
                other != id && holders & node_bit(other) != 0 && self.node(other).keeps_data()
            })
        };
        let mut held_pieces = self.copies.iter().filter(|holders| *holders & node_bit(id) != 0);
        node.in_pod
            && node.keeps_data()
            && !node.given_up
            && held_pieces.any(|holders| !is_elsewhere(holders))
    }

    /// Says whom a step disturbs that it may not disturb.
    fn find_disturbance(
        &self,
        rules: &ModelRules,
        step: &PlannedStep,
        id: NodeId,
    ) -> Option<String> {
        let node = self.node(id);
        let is_eviction = matches!(step, PlannedStep::Vacate { .. });
        let is_restart =
            matches!(step, PlannedStep::Restart { .. } | PlannedStep::RestartInPlace { .. });
        let is_decommission = matches!(step, PlannedStep::Decommission { .. });
        let is_stop = (is_restart || is_eviction) && node.pod == PodState::Ready;
        if !is_stop && !is_decommission {
            return None;
        }
        if is_restart && self.rule_bits(rules, id) & rules::OF_ROLES != 0 {
            return Some("restarts a node that keeps its role".to_owned());
        }
        // Whoever is told to restart is down in a moment.
        let mut next_state = self.clone();
        for other in
            node_ids().filter(|other| *other != id && self.node(*other).is_about_to_restart())
        {
            next_state.node_mut(other).pod = PodState::Starting;
        }
        if self.is_live(id) {
            if rules.ring
                && next_state.breaks_data_quorum(rules, id)
                && !self.is_skipped(rules, "RangesKeepQuorum")
            {
                return Some("takes the quorum of data".to_owned());
            }
            let is_only_copy =
                !rules.ring && self.wanted_copies(rules) > 1 && next_state.holds_alone(id);
            if is_stop && is_only_copy && !self.is_skipped(rules, "ShardCopyElsewhere") {
                return Some("takes the only copy that serves".to_owned());
            }
            if is_stop
                && next_state.breaks_voter_quorum(id)
                && !self.is_skipped(rules, "QuorumKept")
            {
                return Some("takes the majority of the voters".to_owned());
            }
        }
        let can_be_down_together = |other: &NodeId| {
            let node = self.node(*other);
            let has_left = node.pod == PodState::Pending && node.left && !node.lost;
            is_eviction
                && has_left
                && [id, *other].iter().all(|node_id| self.is_shared(rules, *node_id))
        };
        let down_node = node_ids().find(|other| {
            let node = next_state.node(*other);
            *other != id
                && !can_be_down_together(other)
                && !node.given_up
                && node.volume == VolumeState::Data
                && node.pod != PodState::Ready
        });
        // Without a leader no node serves.
        let down_node =
            down_node.filter(|_| !self.more_down && (is_decommission || self.is_led()))?;
        Some(format!("while {} is down", name_of(down_node)))
    }
}

/// Returns the ways out that a plan names.
pub(super) fn plan_remedies(plan: &Plan) -> Vec<Remedy> {
    let awaited_remedies = plan.waiting.iter().map(|awaited_step| awaited_step.remedy.clone());
    awaited_remedies.chain(plan.blocked.iter().map(|block| block.remedy.clone())).collect()
}

/// Most remedies that a person follows one after the other.
const MOST_REMEDIES: usize = 12;

/// Rests from which remedies lead to a cluster as wanted.
#[derive(Default)]
pub(super) struct WaysOut {
    known: HashSet<ModelState>,
}

/// A rest, what is planned there, and the remedy that led to it.
type FollowedRest = (ModelState, Plan, Option<Remedy>);

impl WaysOut {
    /// Follows each remedy that is named in a state at rest; and from where it leads, the named ones until
    /// one leads to a cluster as wanted.
    ///
    /// # Errors
    /// Where a remedy costs data that are not lost, a step on its way breaks a law, or no remedy leads
    /// on; and where the only way out has a price.
    pub(super) fn check_state(
        &mut self,
        state: &ModelState,
        rules: &ModelRules,
    ) -> Result<(), String> {
        let (resting_state, plan) = state.clone().run_to_rest(rules)?;
        let mut path = vec![(resting_state.clone(), plan, None)];
        let mut has_way_out = self.is_out(&resting_state);
        for remedy in ordered_remedies(&path)? {
            let outcome = self.follow_remedy(&mut path, &remedy, rules)?;
            has_way_out |= outcome == Some(true) && is_free(&remedy);
        }
        if !has_way_out {
            return Err(describe_path("no remedy leads out", &path));
        }
        self.known.insert(resting_state);
        Ok(())
    }

    fn is_out(&self, resting_state: &ModelState) -> bool {
        resting_state.is_wanted() || self.known.contains(resting_state)
    }

    /// Says whether a remedy that is named at the end of the path leads out, or back to a rest before;
    /// `None` where it changes nothing.
    fn follow_remedy(
        &mut self,
        path: &mut Vec<FollowedRest>,
        remedy: &Remedy,
        rules: &ModelRules,
    ) -> Result<Option<bool>, String> {
        let (resting_state, ..) = path.last().expect("a path begins somewhere");
        let followed_state =
            resting_state.apply_remedy(remedy).map_err(|reason| describe_path(&reason, path))?;
        let Some(next_state) = followed_state else { return Ok(None) };
        let describe_failure =
            |reason: String| describe_path(&format!("after {remedy:?}: {reason}"), path);
        let (next_state, plan) = next_state.run_to_rest(rules).map_err(describe_failure)?;
        if self.is_out(&next_state) {
            return Ok(Some(true));
        }
        if path.iter().any(|(rest, ..)| *rest == next_state) {
            return Ok(Some(false));
        }
        path.push((next_state.clone(), plan, Some(remedy.clone())));
        let mut leads_back = false;
        for remedy in ordered_remedies(path)? {
            match self.follow_remedy(path, &remedy, rules)? {
                Some(true) if is_free(&remedy) => {
                    self.known.insert(next_state);
                    path.pop();
                    return Ok(Some(true));
                }
                outcome => leads_back |= outcome == Some(false),
            }
        }
        if !leads_back {
            return Err(describe_path("no remedy leads out", path));
        }
        path.pop();
        Ok(Some(false))
    }
}

/// Returns the remedies that are named at the end of the path; a rule is skipped only where nothing else
/// helps.
fn ordered_remedies(path: &[FollowedRest]) -> Result<Vec<Remedy>, String> {
    let (resting_state, plan, _) = path.last().expect("a path begins somewhere");
    let mut unique_remedies: Vec<Remedy> = Vec::new();
    for remedy in plan_remedies(plan) {
        if !unique_remedies.contains(&remedy) {
            unique_remedies.push(remedy);
        }
    }
    unique_remedies.sort_by_key(|remedy| matches!(remedy, Remedy::Skip(_)));
    if unique_remedies.is_empty() && !resting_state.is_wanted() {
        return Err(describe_path("waits without a word", path));
    }
    if path.len() > MOST_REMEDIES {
        return Err(describe_path("too many remedies in a row", path));
    }
    Ok(unique_remedies)
}

/// Says what is wrong at the end of a path, with the remedies that led there.
fn describe_path(problem: &str, path: &[FollowedRest]) -> String {
    let remedies = path.iter().filter_map(|(.., remedy)| remedy.as_ref());
    let remedies: Vec<String> = remedies.map(|remedy| format!("\nafter {remedy:?}")).collect();
    let remedies = remedies.concat();
    let (resting_state, plan, _) = path.last().expect("a path begins somewhere");
    format!("{problem}{remedies}\n{plan:#?}\nof:\n{resting_state}")
}

/// Does a remedy lead out without a price? To skip what keeps data readable has one: clients find them
/// away meanwhile. Where that is the only way, the wait never ends by itself.
fn is_free(remedy: &Remedy) -> bool {
    const PRICED: [&str; 4] =
        ["HealthNotRed", "QuorumKept", "RangesKeepQuorum", "ShardCopyElsewhere"];
    !matches!(remedy, Remedy::Skip(predicate) if PRICED.contains(&predicate.as_str()))
}
