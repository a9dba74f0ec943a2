//! Which states are as wanted, which steps break a law, and where the remedies lead.

use super::*;
use crate::api::predicate;

const DATA_OUTLIVES_POD: &str = predicate::DATA_OUTLIVES_POD.name;

impl ModelState {
    /// Do all nodes that are wanted serve, as they are wanted, and no others?
    pub(super) fn is_wanted(&self) -> bool {
        let newest = self.newest(self.secure);
        ids().all(|id| {
            let node = self.node(id);
            if self.stopped {
                // A pool that left the spec is drained when the cluster is started again.
                let departs = self.wanted[id.0].is_none() || node.in_pod;
                return node.pod == PodState::Absent || departs && !node.is_running();
            }
            if !self.wants(id) {
                return node.pod == PodState::Absent && !node.known;
            }
            let current = node.made == pod_of(self.revision)
                && node.runs == newest[id.0]
                && (node.large >= self.large || node.in_pod);
            let serves = self.is_led() && node.era == self.era;
            node.pod == PodState::Ready && serves && current
        })
    }

    /// Does what a remedy says; `None` where it changes nothing.
    ///
    /// # Errors
    /// Where the remedy has data given up that are not lost.
    fn follow(&self, remedy: &Remedy) -> Result<Option<Self>, String> {
        let mut next = self.clone();
        match remedy {
            Remedy::Skip(predicate) => drop(next.skipped.insert(predicate.clone())),
            Remedy::DoOrSkip { .. } => next.single = true,
            Remedy::Confirm { predicate } => drop(next.skipped.insert((*predicate).to_owned())),
            // Its machine is cordoned, as the scheduler says.
            Remedy::Correct if ids().any(|id| self.is_barred(id)) => next.cordoned = false,
            // A node ran the newer version before the older one was wanted again.
            Remedy::Correct | Remedy::MendVolume { .. }
                if next.revision == OLD && ids().any(|id| self.node(id).newer) =>
            {
                next.revision = NEW;
            }
            // There is no later release that would start, only the one from before, which
            // validation refuses where the newer version opened data.
            Remedy::Correct | Remedy::MendVolume { .. } if matches!(next.revision, BAD | DEAF) => {
                let ran = ids().any(|id| !matches!(self.node(id).runs.revision, OLD | BAD));
                if ids().any(|id| self.node(id).newer) && !ran {
                    return Ok(None);
                }
                next.revision = if ran { NEW } else { OLD };
            }
            // Puts back the roles that the nodes have.
            Remedy::RevertSpec => {
                for (pool, roles) in next.pools.iter().zip(&mut next.roles) {
                    if let Some(node) = pool.nodes.iter().find(|node| node.is_running()) {
                        *roles = node.runs.roles;
                    }
                }
            }
            Remedy::MoveData { .. } => next.wanted = [Some(3), None],
            Remedy::WantPool { node, .. } if !self.node(id_of(node)).lost => {
                next.want(id_of(node));
            }
            Remedy::GiveUp { node, .. }
            | Remedy::WantPool { node, .. }
            | Remedy::MendVolume { node, data: Some(_) } => {
                let given = next.named(node);
                if given.keeps_data() {
                    return Err(format!("{remedy:?} gives data up that are not lost"));
                }
                given.given_up = true;
            }
            Remedy::BeginAnew { node, .. } => {
                let node = next.named(node);
                node.word = Some(node.era);
            }
            Remedy::TakeWordBack { node } => next.named(node).word = None,
            Remedy::EndPod { node } => next.named(node).lose_pod(),
            Remedy::ReleasePhase { node } | Remedy::RenewByPhase { node } => {
                next.named(node).intent = IntentState::Running;
            }
            Remedy::AllowMoreDown => next.more_down = true,
            Remedy::EndCanary => next.canary = false,
            Remedy::Uncordon { .. } => next.cordoned = false,
            Remedy::RaiseQuota => next.refuses = false,
            Remedy::PutSizeBack { .. } => next.large = false,
            Remedy::WantNode { node } => {
                let id = id_of(node);
                next.want(id);
                if next.node(id).intent == IntentState::LeavingByPerson {
                    next.node_mut(id).intent = IntentState::Running;
                }
            }
            Remedy::KeepNode => next.wanted[0] = Some(next.wanted[0].unwrap_or_default().max(1)),
            _ => return Ok(None),
        }
        Ok((next != *self).then_some(next))
    }

    /// Waits the pod of the node for a machine that is cordoned?
    fn is_barred(&self, id: NodeId) -> bool {
        self.cordoned && self.node(id).pod == PodState::Pending && !self.node(id).lost
    }

    /// Wants a node, and those before it in its pool.
    fn want(&mut self, (pool, node): NodeId) {
        let least = u8::try_from(node + 1).unwrap();
        self.wanted[pool] = Some(self.wanted[pool].unwrap_or_default().max(least));
    }

    /// Runs the controller, Kubernetes and the pilots until nothing moves. The nodes move in turn.
    ///
    /// # Errors
    /// Where a step breaks a law, or the cluster never comes to rest.
    fn rest(mut self, rules: &ModelRules) -> Result<(Self, Plan), String> {
        // What a person did may let copies go elsewhere.
        self.heal(rules);
        let mut turns: VecDeque<NodeId> = ids().collect();
        for _ in 0..400 {
            let planned = self.look(rules).plan();
            if let Some(step) = &planned.step {
                if let Some(broken) = self.breaks(rules, step) {
                    return Err(format!("{broken}\nof:\n{self}"));
                }
                self.execute(rules, step);
                continue;
            }
            let moves = |(at, id): (usize, &NodeId)| Some((at, self.moved(rules, *id)?));
            self = if let Some((at, next)) = turns.iter().enumerate().find_map(moves) {
                turns.rotate_left(at + 1);
                next
            } else if let Some((_, next)) = self.late() {
                next
            } else {
                return Ok((self, planned));
            };
        }
        Err(format!("never comes to rest:\n{self}"))
    }

    /// Returns a broken law, where carrying out `step` breaks one.
    pub(super) fn breaks(&self, rules: &ModelRules, step: &PlannedStep) -> Option<String> {
        if matches!(step, PlannedStep::BeginAnew { .. }) && self.is_led() {
            return Some(format!("{step:?} while there is a leader"));
        }
        let id = ids().find(|id| step.pilot() == Some(name_of(*id).as_str()))?;
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
        if ends_pod && self.is_last_copy(id) && !self.risks(rules, DATA_OUTLIVES_POD) {
            return Some(format!("{step:?} takes the last copy of data"));
        }
        self.disturbs(rules, step, id).map(|what| format!("{step:?} {what}"))
    }

    /// Does a person skip the predicate, and bear what comes of it?
    fn risks(&self, rules: &ModelRules, predicate: &str) -> bool {
        let rule = rules.database.names.predicate(predicate);
        rule.is_some_and(|rule| rule.skip.is_skipped(predicate, |name| self.skipped.contains(name)))
    }

    /// Is a piece of data in the pod of the node, and on no other volume?
    fn is_last_copy(&self, id: NodeId) -> bool {
        let node = self.node(id);
        let elsewhere = |holders: &u8| {
            ids().any(|other| {
                other != id && holders & bit(other) != 0 && self.node(other).keeps_data()
            })
        };
        let mut held = self.copies.iter().filter(|holders| *holders & bit(id) != 0);
        node.in_pod && node.keeps_data() && !node.given_up && held.any(|all| !elsewhere(all))
    }

    /// Says whom a step disturbs that it may not disturb.
    fn disturbs(&self, rules: &ModelRules, step: &PlannedStep, id: NodeId) -> Option<String> {
        let node = self.node(id);
        let vacates = matches!(step, PlannedStep::Vacate { .. });
        let restarts =
            matches!(step, PlannedStep::Restart { .. } | PlannedStep::RestartInPlace { .. });
        let leaves = matches!(step, PlannedStep::Decommission { .. });
        let stops = (restarts || vacates) && node.pod == PodState::Ready;
        if !stops && !leaves {
            return None;
        }
        if restarts && self.rules(rules, id) & rules::OF_ROLES != 0 {
            return Some("restarts a node that keeps its role".to_owned());
        }
        // Whoever is told to restart is down in a moment.
        let mut soon = self.clone();
        for other in ids().filter(|other| *other != id && self.node(*other).is_about_to_restart()) {
            soon.node_mut(other).pod = PodState::Starting;
        }
        if self.is_live(id) {
            if rules.ring && soon.starves(rules, id) && !self.risks(rules, "RangesKeepQuorum") {
                return Some("takes the quorum of data".to_owned());
            }
            let alone = !rules.ring && self.wanted_copies(rules) > 1 && soon.holds_alone(id);
            if stops && alone && !self.risks(rules, "ShardCopyElsewhere") {
                return Some("takes the only copy that serves".to_owned());
            }
            if stops && soon.outvotes(id) && !self.risks(rules, "QuorumKept") {
                return Some("takes the majority of the voters".to_owned());
            }
        }
        let together = |other: &NodeId| {
            let node = self.node(*other);
            let left = node.pod == PodState::Pending && node.left && !node.lost;
            vacates && left && [id, *other].iter().all(|one| self.is_shared(rules, *one))
        };
        let down = ids().find(|other| {
            let node = soon.node(*other);
            *other != id
                && !together(other)
                && !node.given_up
                && node.volume == VolumeState::Data
                && node.pod != PodState::Ready
        });
        // Without a leader no node serves.
        let down = down.filter(|_| !self.more_down && (leaves || self.is_led()))?;
        Some(format!("while {} is down", name_of(down)))
    }
}

/// Returns the ways out that a plan names.
pub(super) fn remedies(planned: &Plan) -> Vec<Remedy> {
    let waits = planned.waiting.iter().map(|awaited| awaited.remedy.clone());
    waits.chain(planned.blocked.iter().map(|block| block.remedy.clone())).collect()
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
    pub(super) fn judge(&mut self, state: &ModelState, rules: &ModelRules) -> Result<(), String> {
        let (rested, planned) = state.clone().rest(rules)?;
        let mut path = vec![(rested.clone(), planned, None)];
        let mut leads = self.is_out(&rested);
        for remedy in named(&path)? {
            let way = self.follow(&mut path, &remedy, rules)?;
            leads |= way == Some(true) && is_free(&remedy);
        }
        if !leads {
            return Err(tell("no remedy leads out", &path));
        }
        self.known.insert(rested);
        Ok(())
    }

    fn is_out(&self, rested: &ModelState) -> bool {
        rested.is_wanted() || self.known.contains(rested)
    }

    /// Says whether a remedy that is named at the end of the path leads out, or back to a rest before;
    /// `None` where it changes nothing.
    fn follow(
        &mut self,
        path: &mut Vec<FollowedRest>,
        remedy: &Remedy,
        rules: &ModelRules,
    ) -> Result<Option<bool>, String> {
        let (rested, ..) = path.last().expect("a path begins somewhere");
        let followed = rested.follow(remedy).map_err(|why| tell(&why, path))?;
        let Some(next) = followed else { return Ok(None) };
        let after = |why: String| tell(&format!("after {remedy:?}: {why}"), path);
        let (next, planned) = next.rest(rules).map_err(after)?;
        if self.is_out(&next) {
            return Ok(Some(true));
        }
        if path.iter().any(|(rest, ..)| *rest == next) {
            return Ok(Some(false));
        }
        path.push((next.clone(), planned, Some(remedy.clone())));
        let mut leads_back = false;
        for remedy in named(path)? {
            match self.follow(path, &remedy, rules)? {
                Some(true) if is_free(&remedy) => {
                    self.known.insert(next);
                    path.pop();
                    return Ok(Some(true));
                }
                way => leads_back |= way == Some(false),
            }
        }
        if !leads_back {
            return Err(tell("no remedy leads out", path));
        }
        path.pop();
        Ok(Some(false))
    }
}

/// Returns the remedies that are named at the end of the path; a rule is skipped only where nothing else
/// helps.
fn named(path: &[FollowedRest]) -> Result<Vec<Remedy>, String> {
    let (rested, planned, _) = path.last().expect("a path begins somewhere");
    let mut named: Vec<Remedy> = Vec::new();
    for remedy in remedies(planned) {
        if !named.contains(&remedy) {
            named.push(remedy);
        }
    }
    named.sort_by_key(|remedy| matches!(remedy, Remedy::Skip(_)));
    if named.is_empty() && !rested.is_wanted() {
        return Err(tell("waits without a word", path));
    }
    if path.len() > MOST_REMEDIES {
        return Err(tell("too many remedies in a row", path));
    }
    Ok(named)
}

/// Says what is wrong at the end of a path, with the remedies that led there.
fn tell(why: &str, path: &[FollowedRest]) -> String {
    let remedies = path.iter().filter_map(|(.., remedy)| remedy.as_ref());
    let remedies: Vec<String> = remedies.map(|remedy| format!("\nafter {remedy:?}")).collect();
    let remedies = remedies.concat();
    let (rested, planned, _) = path.last().expect("a path begins somewhere");
    format!("{why}{remedies}\n{planned:#?}\nof:\n{rested}")
}

/// Does a remedy lead out without a price? To skip what keeps data readable has one: clients find them
/// away meanwhile. Where that is the only way, the wait never ends by itself.
fn is_free(remedy: &Remedy) -> bool {
    const PRICED: [&str; 4] =
        ["HealthNotRed", "QuorumKept", "RangesKeepQuorum", "ShardCopyElsewhere"];
    !matches!(remedy, Remedy::Skip(predicate) if PRICED.contains(&predicate.as_str()))
}
