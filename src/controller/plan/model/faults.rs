//! What people edit, and what fails.

use super::*;

impl ModelState {
    /// Returns each edit that a person may make, of the kinds that the search varies.
    pub(super) fn possible_edits(&self, rules: &ModelRules) -> Vec<(String, Self)> {
        let mut edits = Vec::new();
        let mut edit = |kind: EditKind, label: String, change: &dyn Fn(&mut Self)| {
            if rules.has_edit_kind(kind) {
                let mut next_state = self.clone();
                change(&mut next_state);
                // Clients need no apply.
                next_state.edits += u8::from(kind != EditKind::Index);
                edits.push((label, next_state));
            }
        };
        for size in 1..=3 {
            edit(EditKind::Sizes, format!("a: {size}"), &|s| s.wanted[0] = Some(size));
        }
        for size in [None, Some(1), Some(2), Some(3)] {
            // Two searches in one: those with roles need three masters of a new pool.
            if size != Some(3) || rules.has_edit_kind(EditKind::Roles) {
                edit(EditKind::Sizes, format!("b: {size:?}"), &|s| s.wanted[1] = size);
            }
        }
        // Validation refuses an older version than a node ran.
        let min_revision = u8::from(node_ids().any(|id| self.node(id).newer));
        for revision in rules.revisions.iter().filter(|revision| **revision >= min_revision) {
            let label = format!("revision {}", REVISIONS[usize::from(*revision)]);
            edit(EditKind::Revisions, label, &|s| s.revision = *revision);
        }
        for (pool, roles) in
            [0, 1].into_iter().flat_map(|pool| [BOTH, MASTER, HOLDER].map(|r| (pool, r)))
        {
            let label = format!("{}: {roles:?}", POOLS[pool]);
            edit(EditKind::Roles, label, &|s| s.roles[pool] = roles);
        }
        edit(EditKind::Security, format!("secure: {}", !self.secure), &|s| s.secure = !s.secure);
        edit(EditKind::Stop, format!("stopped: {}", !self.stopped), &|s| s.stopped = !s.stopped);
        edit(EditKind::Canary, format!("canary: {}", !self.canary), &|s| s.canary = !s.canary);
        edit(EditKind::Volumes, "larger volumes".into(), &|s| s.large = true);
        edit(EditKind::MoreDown, "more may be down".into(), &|s| s.more_down = true);
        for name in rules.skips {
            edit(EditKind::Skips, format!("skips {name}"), &|s| {
                s.skipped.insert((*name).to_owned());
            });
        }
        for id in node_ids().filter(|id| self.node(*id).pod == PodState::Ready) {
            for intent in [IntentState::LeavingByPerson, IntentState::Fenced] {
                let label = format!("{} {intent:?}", name_of(id));
                edit(EditKind::Phases, label, &|s| s.node_mut(id).intent = intent);
            }
        }
        if self.cordoned {
            edit(EditKind::Drain, "uncordon".into(), &|s| s.cordoned = false);
        } else {
            // As `kubectl navigator drain` does.
            edit(EditKind::Drain, "drain".into(), &|s| {
                s.cordoned = true;
                for id in rules.shared.into_iter().filter(|id| self.is_shared(rules, *id)) {
                    let node = s.node_mut(id);
                    node.asked = node.pod == PodState::Ready;
                }
            });
        }
        if let Some(id) = self.newest_node().filter(|_| !self.newer_data) {
            edit(EditKind::Index, format!("an index on {}", name_of(id)), &|s| {
                s.newer_data = true;
                s.copies[DATA - 1] = node_bit(id);
            });
        }
        let has_role = |state: &Self, role: fn(NodeRoles) -> bool| {
            let mut pools = state.wanted.iter().zip(state.roles);
            pools.any(|(size, roles)| size.is_some() && role(roles))
        };
        // Validation asks for a node of each role.
        edits.retain(|(_, next_state)| {
            has_role(next_state, |r| r.master) && has_role(next_state, |r| r.data)
        });
        let unchanged_state = Self { edits: self.edits + 1, ..self.clone() };
        edits.retain(|(_, next_state)| *next_state != unchanged_state);
        edits
    }

    /// Returns a node that serves with the newer version and may hold data.
    fn newest_node(&self) -> Option<NodeId> {
        node_ids().find(|id| {
            let NodeSpec { revision, roles, .. } = self.node(*id).runs;
            self.is_live(*id) && revision != OLD && roles.data
        })
    }

    /// Returns each fault that may befall the cluster, of the kinds that the search varies.
    pub(super) fn possible_faults(&self, rules: &ModelRules) -> Vec<(String, Self)> {
        let mut faults = Vec::new();
        if rules.has_fault_kind(FaultKind::Quota) && !self.refuses {
            let next_state = Self { refuses: true, faults: self.faults + 1, ..self.clone() };
            faults.push(("a quota refuses new pods".to_owned(), next_state));
        }
        for id in node_ids().filter(|id| self.node(*id).pod == PodState::Ready) {
            for (kind, label, pod, is_lost) in [
                (FaultKind::Ports, "closes its ports", PodState::Deaf, false),
                (FaultKind::Eviction, "is evicted", PodState::Ending, false),
                (FaultKind::Machine, "loses its machine", PodState::Stuck, true),
                (FaultKind::Machine, "loses its machine's Node", PodState::Pending, true),
            ] {
                if !rules.has_fault_kind(kind) {
                    continue;
                }
                let mut next_state = self.clone();
                next_state.faults += 1;
                let node = next_state.node_mut(id);
                (node.pod, node.lost) = (pod, is_lost);
                if pod == PodState::Pending {
                    (node.left, node.asked) = (node.left || node.asked, false);
                    if node.doomed || node.in_pod {
                        node.lose_pod();
                    }
                }
                next_state.restore_copies(rules);
                faults.push((format!("{} {label}", name_of(id)), next_state));
            }
        }
        faults
    }
}
