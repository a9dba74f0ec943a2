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
pub(super) fn report_blockers(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let blockers: Vec<_> = world
        .desired
        .round
        .held
        .iter()
        .map(|(predicate, reason)| StepBlocker {
            predicate: (*predicate).into(),
            step: "RestartPilot".to_owned(),
            message: reason.clone(),
            remedy: match *predicate {
                name if name == ROLES_REPLICATED.name => Remedy::Wait,
                name if [CLIENTS_ENCRYPTED.name, CLIENTS_PLAIN.name].contains(&name) => {
                    Remedy::Skip(name.to_owned())
                }
                predicate => Remedy::Confirm { predicate },
            },
        })
        .collect();
    if blockers.is_empty() {
        return Vec::new();
    }
    vec![Candidate::from_blockers(OperationType::Secure, blockers)]
}

/// Is a node that runs not where this round leads?
pub(super) fn changes_modes(world: World<'_>) -> bool {
    let desired_modes = &world.desired.round.rungs;
    let is_different = |member: &Member| {
        let Some(pilot) = &member.pilot else { return false };
        let spec_modes =
            pilot.spec.security.as_ref().map(PilotSecurity::security_modes).unwrap_or_default();
        let observed_modes = pilot.security.as_ref().and_then(|status| status.rungs.clone());
        spec_modes != *desired_modes || observed_modes.unwrap_or_default() != *desired_modes
    };
    world.running_nodes().filter_map(|(_, _, member)| member).any(is_different)
}
