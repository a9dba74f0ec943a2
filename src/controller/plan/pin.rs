//! Pins: of which template the pods of a pool are made.
//!
//! A StatefulSet has one template for all its pods, so a pod that is evicted while an upgrade is
//! held would come back upgraded. Therefore the template stays the one of the pods that are still
//! to be changed. It is the newest one only between a step that made a node's turn come and the
//! birth of that node's next pod.

use super::{World, roll};
use crate::{
    api::v1beta1::PilotSpec,
    controller::{
        desired_state::{DesiredCluster, DesiredPool},
        observe::{Member, ObservedCluster, ObservedPool, PodFacts},
    },
};

/// What a node is made of instead of the newest inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BirthSpec<'a> {
    /// Config hash of the template.
    pub(crate) template: &'a str,
    pub(crate) pilot: &'a PilotSpec,
}

/// Returns the config hash of the template that the pool's StatefulSet is to have, unless that is
/// the newest template.
pub(crate) fn pinned_template<'a>(
    desired: &DesiredCluster,
    observed: &'a ObservedCluster,
    pool: &'a ObservedPool,
) -> Option<&'a str> {
    let desired_pool = desired.pool(&pool.name)?;
    let has_no_pod =
        |member: Option<&Member>| member.is_none_or(|member| living_pod(member).is_none());
    let find_pin = |member: Option<&'a Member>| {
        let hash = match member {
            Some(member) if living_pod(member).is_some() || member.pilot.is_some() => {
                pinned_to(desired, pool, member, desired_pool)
            }
            Some(_) | None => {
                revision_for_new_pod(desired, observed, pool).map(|revision| revision.template)
            }
        };
        hash.filter(|hash| !desired_pool.matches_pod_hash(hash))
    };
    // A node whose pod neither ends nor comes would hold up another that has its turn, for ever.
    let can_start = |member: Option<&Member>| member.is_none_or(|member| !is_stuck(member));
    let members = || pool.nodes().map(|(_, member)| member);
    let next_members = || members().filter(|member| has_no_pod(*member));
    if next_members().any(can_start) {
        next_members().filter(|member| can_start(*member)).find_map(find_pin)
    } else if next_members().next().is_some() {
        let is_free = next_members().any(|member| find_pin(member).is_none());
        next_members().find_map(find_pin).filter(|_| !is_free)
    } else {
        members().find_map(find_pin)
    }
}

/// Does the pod not end, or is a new one refused?
fn is_stuck(member: &Member) -> bool {
    match &member.pod {
        Some(pod) => pod.terminating && pod.overdue,
        None => is_refused(member),
    }
}

/// Has Kubernetes been refused a pod for the node for some time?
pub(super) fn is_refused(member: &Member) -> bool {
    member.refused.as_ref().is_some_and(|refusal| refusal.lasts)
}

/// Returns the config hash of the template that the node's next pod is made of, unless that is
/// whichever is the newest then.
pub(crate) fn pinned_to<'a>(
    desired: &DesiredCluster,
    pool: &'a ObservedPool,
    member: &'a Member,
    desired_pool: &DesiredPool,
) -> Option<&'a str> {
    // Where people delete pods to change them, a new pod is the newest. Where all nodes come back
    // together, each has its turn.
    if desired.strategy.on_delete || desired.round.all_stopped {
        return None;
    }
    let mark = member.pilot.as_ref().and_then(|pilot| pilot.pinned.as_deref());
    let Some(pod) = living_pod(member) else {
        return mark.or_else(|| missed_template(pool, member, desired_pool));
    };
    if roll::needs_change(member, desired_pool) && !is_leaked(member, desired_pool) {
        return Some(pod.hash.as_str()).filter(|hash| !hash.is_empty());
    }
    mark.filter(|_| is_leaked(member, desired_pool))
}

/// Returns the template that the set still has, for a node that has no pod since before another
/// version was wanted: the node ran what its Pilot names.
fn missed_template<'a>(
    pool: &'a ObservedPool,
    member: &Member,
    desired_pool: &DesiredPool,
) -> Option<&'a str> {
    let pilot = member.pilot.as_ref()?;
    let is_other_version = pilot.spec.version != desired_pool.pilot.version;
    let has_run = pilot.version.is_some() && pilot.version == pilot.spec.version;
    let template = pool.set.as_ref().map(|set| set.template.as_str())?;
    let is_older = !template.is_empty() && !desired_pool.matches_pod_hash(template);
    (is_other_version && has_run && is_older).then_some(template)
}

/// Is the pod of the newest version, while its Pilot is of another one and has not had its turn?
/// So it is after an eviction at the moment in which another node was to be made anew.
pub(super) fn is_leaked(member: &Member, desired_pool: &DesiredPool) -> bool {
    let is_newest = living_pod(member).is_some_and(|pod| desired_pool.matches_pod_hash(&pod.hash));
    let is_other_version = |pilot: &PilotSpec| pilot.version != desired_pool.pilot.version;
    let pilot = member.pilot.as_ref();
    is_newest && pilot.is_some_and(|pilot| pilot.pinned.is_some() && is_other_version(&pilot.spec))
}

/// Returns what a node that is made now gets instead of the newest inputs: where the canary is
/// held, what a node beside it has.
pub(crate) fn revision_for_new_pod<'a>(
    desired: &DesiredCluster,
    observed: &'a ObservedCluster,
    pool: &'a ObservedPool,
) -> Option<BirthSpec<'a>> {
    let desired_pool = desired.pool(&pool.name)?;
    let world = World { desired, observed };
    if !roll::canary_is_full(world, &pool.name) {
        return None;
    }
    pool.nodes().find_map(|(_, member)| {
        let template = pinned_to(desired, pool, member?, desired_pool)?;
        Some(BirthSpec { template, pilot: &member?.pilot.as_ref()?.spec })
    })
}

fn living_pod(member: &Member) -> Option<&PodFacts> {
    member.pod.as_ref().filter(|pod| !pod.terminating)
}
