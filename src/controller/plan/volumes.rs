//! Volumes that must grow: claims are enlarged, their file systems are waited for, and the template
//! of new claims follows.
//!
//! Claim templates of a StatefulSet cannot be changed. So the set is deleted without its pods, and
//! `ensure` makes it again around them; a pod is made of the same template before and after.

use std::collections::BTreeMap;

use super::{
    AwaitedStep, Candidate, ClaimRef, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World,
    absence, pinned_template,
};
use crate::{
    api::predicate,
    controller::{
        desired_state::{DesiredPool, hash},
        observe::{ClaimFacts, ClaimTemplate, Member, ObservedPool},
        resources::claim_templates,
    },
    machinery::quantity,
};

/// The step that enlarges a claim, and the wait for its volume.
pub(super) const RESIZE: &str = "ResizeClaim";

/// Enlarges the claims of each pool, then has its StatefulSet made anew.
pub(super) fn grow_volumes(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    world
        .desired_pools()
        .flat_map(|(pool, desired_pool)| grow_pool(world, pool, desired_pool))
        .collect()
}

fn grow_pool(world: World<'_>, pool: &ObservedPool, desired_pool: &DesiredPool) -> Vec<Candidate> {
    let Some(size) = desired_pool.volume_size() else { return Vec::new() };
    let claims: Vec<_> =
        pool.nodes().filter_map(|(_, member)| Some((member?, member?.claim.as_ref()?))).collect();
    let small_claims: Vec<_> =
        claims.iter().copied().filter(|(_, claim)| claim.is_short_of(size)).collect();
    // No claim of a pool grows before it is known that all can.
    let refused_claim = small_claims.iter().find_map(|(member, claim)| match &claim.expansion {
        Some(Err(reason)) => Some((member, claim, reason)),
        _ => None,
    });
    if let Some((member, claim, reason)) = refused_claim {
        let blocker = expansion_blocker(&claims, pool, (member, claim), reason);
        return vec![Candidate::from_blockers(OperationType::Resize, [blocker])];
    }
    if let Some((member, claim)) = small_claims.iter().find(|(_, claim)| claim.expansion.is_none())
    {
        let message = format!("the API server is asked whether claim {} can grow", claim.name);
        let awaited_step = AwaitedStep::new(RESIZE, &member.name, message);
        return vec![Candidate::from_wait(OperationType::Resize, awaited_step)];
    }
    let mut candidates: Vec<Candidate> = small_claims
        .iter()
        .map(|(member, claim)| {
            let step = PlannedStep::ResizeClaim {
                pilot: member.name.clone(),
                claim: ClaimRef { name: claim.name.clone(), uid: claim.uid.clone() },
                size: size.to_owned(),
            };
            Candidate::from_step(OperationType::Resize, step)
        })
        .collect();
    if candidates.is_empty() {
        candidates.extend(recreate_stateful_set(world, pool, desired_pool));
    }
    let growing_claims = claims.iter().filter(|(_, claim)| claim.is_growing_to(size));
    candidates.extend(growing_claims.map(|(member, claim)| await_growth(member, claim, size)));
    candidates
}

/// Returns the block of a pool whose volumes cannot grow, with the size that can be put back.
fn expansion_blocker(
    claims: &[(&Member, &ClaimFacts)],
    pool: &ObservedPool,
    (member, claim): (&Member, &ClaimFacts),
    reason: &str,
) -> StepBlocker {
    let requested_sizes = claims.iter().filter_map(|(_, claim)| claim.requested.clone());
    let size = requested_sizes.min_by_key(|size| quantity::parse_nanos(size)).unwrap_or_default();
    StepBlocker {
        predicate: predicate::VOLUME_EXPANDS.name.into(),
        step: format!("{RESIZE}/{}", member.name),
        message: format!("claim {} cannot grow: {reason}", claim.name),
        remedy: Remedy::PutSizeBack { pool: pool.name.clone(), size },
    }
}

/// Waits for the volume of a claim, and its file system, to grow.
fn await_growth(member: &Member, claim: &ClaimFacts, size: &str) -> Candidate {
    let capacity = claim.capacity.as_deref().unwrap_or("no size yet");
    let resize_note = claim.resize.as_ref().map(|report| format!(" ({})", report.words));
    let message = format!(
        "the volume of claim {} has {capacity} and grows to {size}{}",
        claim.name,
        resize_note.unwrap_or_default()
    );
    let needs_restart = claim.resize.as_ref().is_some_and(|report| report.needs_restart);
    let node = member.name.clone();
    let remedy = if needs_restart { Remedy::RestartNode { node } } else { Remedy::Wait };
    let awaited_step = AwaitedStep { remedy, ..AwaitedStep::new(RESIZE, &member.name, message) };
    Candidate::from_wait(OperationType::Resize, awaited_step)
}

/// Waits where a wanted pool has pods and no StatefulSet: it is made anew, and until then no pod
/// that ends is replaced.
pub(super) fn without_set(world: World<'_>) -> Option<Candidate> {
    let has_living_pod = |member: &Member| member.pod.as_ref().is_some_and(|pod| !pod.terminating);
    let has_no_set = |(pool, _): &(&ObservedPool, &DesiredPool)| {
        let is_set_missing = pool.set.as_ref().is_none_or(|set| set.terminating);
        is_set_missing && pool.members.values().any(has_living_pod)
    };
    let (pool, _) = world.desired_pools().find(has_no_set)?;
    let first_name =
        pool.members.values().next().map_or_else(String::new, |member| member.name.clone());
    let message = format!("StatefulSet {} is made anew around its pods", pool.set_name);
    let awaited_step = AwaitedStep::new("RenewSet", &first_name, message);
    Some(Candidate::from_wait(OperationType::Resize, awaited_step))
}

/// Has the StatefulSet made anew where its template of claims is not the wanted one. Not while it
/// keeps an older template of pods, which a new set would not have.
fn recreate_stateful_set(
    world: World<'_>,
    pool: &ObservedPool,
    desired_pool: &DesiredPool,
) -> Option<Candidate> {
    let set = pool.set.as_ref()?;
    if pinned_template(world.desired, world.observed, pool).is_some() {
        return None;
    }
    let is_all_serving = absence::unavailable_nodes(world).next().is_none();
    if !is_all_serving
        || !needs_new_template(world, set.claim.as_ref()?, desired_pool)
        || !is_whole(pool)
    {
        return None;
    }
    let desired_hash = hash(&claim_templates(world.desired, desired_pool));
    if set.claim_asked.as_ref() == Some(&desired_hash) {
        return Some(Candidate::from_blockers(
            OperationType::Resize,
            [futile_recreate_blocker(pool)],
        ));
    }
    let step = PlannedStep::RenewSet { set: pool.set_name.clone(), uid: set.uid.clone() };
    Some(Candidate::from_step(OperationType::Resize, step))
}

/// Says that another StatefulSet would be changed on its way as this one was.
fn futile_recreate_blocker(pool: &ObservedPool) -> StepBlocker {
    StepBlocker {
        predicate: predicate::VOLUME_EXPANDS.name.into(),
        step: format!("RenewSet/{}", pool.set_name),
        message: format!(
            "StatefulSet {} was made with the wanted claim template and has another one: new \
             claims get that",
            pool.set_name
        ),
        remedy: Remedy::MendSetPolicy { set: pool.set_name.clone() },
    }
}

/// Would the StatefulSet get back just the nodes that it has, if it were made anew from what is
/// left when it is gone? If not, its template stays: claims of new nodes grow after their birth.
fn is_whole(pool: &ObservedPool) -> bool {
    let is_living = |member: Option<&Member>| {
        member.and_then(|member| member.pod.as_ref()).is_some_and(|pod| !pod.terminating)
    };
    let mut surplus_members = pool.members.range(pool.replicas()..);
    pool.nodes().all(|(_, member)| is_living(member))
        && surplus_members.all(|(_, member)| member.pod.is_none())
        && pool.initial_replicas() == pool.replicas()
}

/// Would new claims differ from the wanted ones? Of the labels only those that the spec names count.
fn needs_new_template(
    world: World<'_>,
    template: &ClaimTemplate,
    desired_pool: &DesiredPool,
) -> bool {
    let claims = claim_templates(world.desired, desired_pool);
    let (Some(desired_claim), Some(persistence)) = (claims.first(), &desired_pool.persistence)
    else {
        return false;
    };
    let ClaimTemplate { size, class, labels, annotations } =
        ClaimTemplate::from_claim(desired_claim);
    let nanos = |size: &Option<String>| size.as_deref().and_then(quantity::parse_nanos);
    let has_other_value =
        |existing: &BTreeMap<String, String>, desired: &BTreeMap<String, String>, key: &String| {
            existing.get(key) != desired.get(key)
        };
    nanos(&template.size) != nanos(&size)
        || (class.is_some() && class != template.class)
        || persistence.labels.keys().any(|key| has_other_value(&template.labels, &labels, key))
        || annotations.keys().any(|key| has_other_value(&template.annotations, &annotations, key))
}
