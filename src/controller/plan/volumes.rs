//! Volumes that must grow: claims are enlarged, their file systems are waited for, and the template
//! of new claims follows.
//!
//! Claim templates of a StatefulSet cannot be changed. So the set is deleted without its pods, and
//! `ensure` makes it again around them; a pod is made of the same template before and after.

use std::collections::BTreeMap;

use super::{
    AwaitedStep, Candidate, ClaimRef, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World,
    absence, pinned,
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
pub(super) fn grow(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    world.wanted().flat_map(|(pool, wanted)| of_pool(world, pool, wanted)).collect()
}

fn of_pool(world: World<'_>, pool: &ObservedPool, wanted: &DesiredPool) -> Vec<Candidate> {
    let Some(size) = wanted.volume_size() else { return Vec::new() };
    let claims: Vec<_> =
        pool.running().filter_map(|(_, member)| Some((member?, member?.claim.as_ref()?))).collect();
    let short: Vec<_> =
        claims.iter().copied().filter(|(_, claim)| claim.is_short_of(size)).collect();
    // No claim of a pool grows before it is known that all can.
    let refused = short.iter().find_map(|(member, claim)| match &claim.expansion {
        Some(Err(why)) => Some((member, claim, why)),
        _ => None,
    });
    if let Some((member, claim, why)) = refused {
        let block = refusal(&claims, pool, (member, claim), why);
        return vec![Candidate::hold(OperationType::Resize, [block])];
    }
    if let Some((member, claim)) = short.iter().find(|(_, claim)| claim.expansion.is_none()) {
        let message = format!("the API server is asked whether claim {} can grow", claim.name);
        let awaited = AwaitedStep::new(RESIZE, &member.name, message);
        return vec![Candidate::wait(OperationType::Resize, awaited)];
    }
    let mut candidates: Vec<Candidate> = short
        .iter()
        .map(|(member, claim)| {
            let step = PlannedStep::ResizeClaim {
                pilot: member.name.clone(),
                claim: ClaimRef { name: claim.name.clone(), uid: claim.uid.clone() },
                size: size.to_owned(),
            };
            Candidate::step(OperationType::Resize, step)
        })
        .collect();
    if candidates.is_empty() {
        candidates.extend(made_anew(world, pool, wanted));
    }
    let grow = claims.iter().filter(|(_, claim)| claim.grows_to(size));
    candidates.extend(grow.map(|(member, claim)| growing(member, claim, size)));
    candidates
}

/// Returns the block of a pool whose volumes cannot grow, with the size that can be put back.
fn refusal(
    claims: &[(&Member, &ClaimFacts)],
    pool: &ObservedPool,
    (member, claim): (&Member, &ClaimFacts),
    why: &str,
) -> StepBlocker {
    let asked = claims.iter().filter_map(|(_, claim)| claim.requested.clone());
    let size = asked.min_by_key(|size| quantity::nanos(size)).unwrap_or_default();
    StepBlocker {
        predicate: predicate::VOLUME_EXPANDS.name.into(),
        step: format!("{RESIZE}/{}", member.name),
        message: format!("claim {} cannot grow: {why}", claim.name),
        remedy: Remedy::PutSizeBack { pool: pool.name.clone(), size },
    }
}

/// Waits for the volume of a claim, and its file system, to grow.
fn growing(member: &Member, claim: &ClaimFacts, size: &str) -> Candidate {
    let has = claim.capacity.as_deref().unwrap_or("no size yet");
    let words = claim.resize.as_ref().map(|report| format!(" ({})", report.words));
    let message = format!(
        "the volume of claim {} has {has} and grows to {size}{}",
        claim.name,
        words.unwrap_or_default()
    );
    let restart = claim.resize.as_ref().is_some_and(|report| report.needs_restart);
    let node = member.name.clone();
    let remedy = if restart { Remedy::RestartNode { node } } else { Remedy::Wait };
    let awaited = AwaitedStep { remedy, ..AwaitedStep::new(RESIZE, &member.name, message) };
    Candidate::wait(OperationType::Resize, awaited)
}

/// Waits where a wanted pool has pods and no StatefulSet: it is made anew, and until then no pod
/// that ends is replaced.
pub(super) fn without_set(world: World<'_>) -> Option<Candidate> {
    let lives = |member: &Member| member.pod.as_ref().is_some_and(|pod| !pod.terminating);
    let bare = |(pool, _): &(&ObservedPool, &DesiredPool)| {
        let lacks = pool.set.as_ref().is_none_or(|set| set.terminating);
        lacks && pool.members.values().any(lives)
    };
    let (pool, _) = world.wanted().find(bare)?;
    let first = pool.members.values().next().map_or_else(String::new, |found| found.name.clone());
    let message = format!("StatefulSet {} is made anew around its pods", pool.set_name);
    let awaited = AwaitedStep::new("RenewSet", &first, message);
    Some(Candidate::wait(OperationType::Resize, awaited))
}

/// Has the StatefulSet made anew where its template of claims is not the wanted one. Not while it
/// keeps an older template of pods, which a new set would not have.
fn made_anew(world: World<'_>, pool: &ObservedPool, wanted: &DesiredPool) -> Option<Candidate> {
    let set = pool.set.as_ref()?;
    if pinned(world.desired, world.observed, pool).is_some() {
        return None;
    }
    let all_serve = absence::absent(world).next().is_none();
    if !all_serve || !differs(world, set.claim.as_ref()?, wanted) || !is_whole(pool) {
        return None;
    }
    let asked = hash(&claim_templates(world.desired, wanted));
    if set.claim_asked.as_ref() == Some(&asked) {
        return Some(Candidate::hold(OperationType::Resize, [in_vain(pool)]));
    }
    let step = PlannedStep::RenewSet { set: pool.set_name.clone(), uid: set.uid.clone() };
    Some(Candidate::step(OperationType::Resize, step))
}

/// Says that another StatefulSet would be changed on its way as this one was.
fn in_vain(pool: &ObservedPool) -> StepBlocker {
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
    let lives = |member: Option<&Member>| {
        member.and_then(|member| member.pod.as_ref()).is_some_and(|pod| !pod.terminating)
    };
    let mut beyond = pool.members.range(pool.replicas()..);
    pool.running().all(|(_, member)| lives(member))
        && beyond.all(|(_, member)| member.pod.is_none())
        && pool.initial() == pool.replicas()
}

/// Would new claims differ from the wanted ones? Of the labels only those that the spec names count.
fn differs(world: World<'_>, template: &ClaimTemplate, wanted: &DesiredPool) -> bool {
    let claims = claim_templates(world.desired, wanted);
    let (Some(made), Some(persistence)) = (claims.first(), &wanted.persistence) else {
        return false;
    };
    let ClaimTemplate { size, class, labels, annotations } = ClaimTemplate::of(made);
    let nanos = |size: &Option<String>| size.as_deref().and_then(quantity::nanos);
    let lacks = |have: &BTreeMap<String, String>, want: &BTreeMap<String, String>, key: &String| {
        have.get(key) != want.get(key)
    };
    nanos(&template.size) != nanos(&size)
        || (class.is_some() && class != template.class)
        || persistence.labels.keys().any(|key| lacks(&template.labels, &labels, key))
        || annotations.keys().any(|key| lacks(&template.annotations, &annotations, key))
}
