//! Encryption and logins are turned on or off round by round; each round is a roll, or a stop of all
//! nodes. Says what the next round waits for.

use super::{Candidate, OperationType, Plan, Remedy, StepBlocker, World};
use crate::{
    api::{
        predicate::{CLIENTS_ENCRYPTED, CLIENTS_PLAIN, ROLES_REPLICATED},
        v1beta1::PilotSecurity,
    },
    controller::observe::Member,
};

/// Tells what holds the next round.
pub(super) fn hold(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let blocks: Vec<_> = world
        .desired
        .round
        .held
        .iter()
        .map(|(predicate, why)| StepBlocker {
            predicate: (*predicate).into(),
            step: "RestartPilot".to_owned(),
            message: why.clone(),
            remedy: match *predicate {
                name if name == ROLES_REPLICATED.name => Remedy::Wait,
                name if [CLIENTS_ENCRYPTED.name, CLIENTS_PLAIN.name].contains(&name) => {
                    Remedy::Skip(name.to_owned())
                }
                predicate => Remedy::Confirm { predicate },
            },
        })
        .collect();
    if blocks.is_empty() {
        return Vec::new();
    }
    vec![Candidate::hold(OperationType::Secure, blocks)]
}

/// Is a node that runs not where this round leads?
pub(super) fn changes_rungs(world: World<'_>) -> bool {
    let wanted = &world.desired.round.rungs;
    let differs = |member: &Member| {
        let Some(pilot) = &member.pilot else { return false };
        let told = pilot.spec.security.as_ref().map(PilotSecurity::rungs).unwrap_or_default();
        let shown = pilot.security.as_ref().and_then(|shown| shown.rungs.clone());
        told != *wanted || shown.unwrap_or_default() != *wanted
    };
    world.running().filter_map(|(_, _, member)| member).any(differs)
}
