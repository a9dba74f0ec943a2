//! What people edit, and what fails.

use super::*;

impl ModelState {
    /// Returns each edit that a person may make, of the kinds that the search varies.
    pub(super) fn edits(&self, rules: &ModelRules) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        let mut edit = |kind: EditKind, what: String, change: &dyn Fn(&mut Self)| {
            if rules.varies(kind) {
                let mut next = self.clone();
                change(&mut next);
                // Clients need no apply.
                next.edits += u8::from(kind != EditKind::Index);
                all.push((what, next));
            }
        };
        for size in 1..=3 {
            edit(EditKind::Sizes, format!("a: {size}"), &|s| s.wanted[0] = Some(size));
        }
        for size in [None, Some(1), Some(2), Some(3)] {
            // Two searches in one: those with roles need three masters of a new pool.
            if size != Some(3) || rules.varies(EditKind::Roles) {
                edit(EditKind::Sizes, format!("b: {size:?}"), &|s| s.wanted[1] = size);
            }
        }
        // Validation refuses an older version than a node ran.
        let least = u8::from(ids().any(|id| self.node(id).newer));
        for revision in rules.revisions.iter().filter(|revision| **revision >= least) {
            let what = format!("revision {}", REVISIONS[usize::from(*revision)]);
            edit(EditKind::Revisions, what, &|s| s.revision = *revision);
        }
        for (pool, roles) in
            [0, 1].into_iter().flat_map(|at| [BOTH, MASTER, HOLDER].map(|r| (at, r)))
        {
            let what = format!("{}: {roles:?}", POOLS[pool]);
            edit(EditKind::Roles, what, &|s| s.roles[pool] = roles);
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
        for id in ids().filter(|id| self.node(*id).pod == PodState::Ready) {
            for intent in [IntentState::LeavingByPerson, IntentState::Fenced] {
                let what = format!("{} {intent:?}", name_of(id));
                edit(EditKind::Phases, what, &|s| s.node_mut(id).intent = intent);
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
                s.copies[DATA - 1] = bit(id);
            });
        }
        let wants = |next: &Self, role: fn(NodeRoles) -> bool| {
            let mut pools = next.wanted.iter().zip(next.roles);
            pools.any(|(size, roles)| size.is_some() && role(roles))
        };
        // Validation asks for a node of each role.
        all.retain(|(_, next)| wants(next, |r| r.master) && wants(next, |r| r.data));
        let same = Self { edits: self.edits + 1, ..self.clone() };
        all.retain(|(_, next)| *next != same);
        all
    }

    /// Returns a node that serves with the newer version and may hold data.
    fn newest_node(&self) -> Option<NodeId> {
        ids().find(|id| {
            let NodeSpec { revision, roles, .. } = self.node(*id).runs;
            self.is_live(*id) && revision != OLD && roles.data
        })
    }

    /// Returns each fault that may befall the cluster, of the kinds that the search varies.
    pub(super) fn faults(&self, rules: &ModelRules) -> Vec<(String, Self)> {
        let mut all = Vec::new();
        if rules.fails(FaultKind::Quota) && !self.refuses {
            let next = Self { refuses: true, faults: self.faults + 1, ..self.clone() };
            all.push(("a quota refuses new pods".to_owned(), next));
        }
        for id in ids().filter(|id| self.node(*id).pod == PodState::Ready) {
            for (kind, what, pod, lost) in [
                (FaultKind::Ports, "closes its ports", PodState::Deaf, false),
                (FaultKind::Eviction, "is evicted", PodState::Ending, false),
                (FaultKind::Machine, "loses its machine", PodState::Stuck, true),
                (FaultKind::Machine, "loses its machine's Node", PodState::Pending, true),
            ] {
                if !rules.fails(kind) {
                    continue;
                }
                let mut next = self.clone();
                next.faults += 1;
                let node = next.node_mut(id);
                (node.pod, node.lost) = (pod, lost);
                if pod == PodState::Pending {
                    (node.left, node.asked) = (node.left || node.asked, false);
                    if node.doomed || node.in_pod {
                        node.lose_pod();
                    }
                }
                next.heal(rules);
                all.push((format!("{} {what}", name_of(id)), next));
            }
        }
        all
    }
}
