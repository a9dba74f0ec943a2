//! What a pilot says about its node: facts in, `Pilot.status` out. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{
    api::v1beta1::{
        Blocker, Decommission, ForgottenNode, Identity, Instance, PilotPhase, PilotSecurityStatus,
        PilotStatus, PilotStorage, Process, SecurityRungs, Termination,
    },
    pilot::{
        database::{DrivenDatabase, PreparationCondition},
        driver::{
            DatabaseCondition, ENDINGS, FailedCheck, JOIN_FAILED, NEXT_LIFE, NodeObservation,
        },
        kube::peers::VOLUME_HOLDS_DATA,
        node::machine::{HoldReason, NodeIntent, NodeMachine, NodePhase},
        process::takeover::SuccessorState,
        security::{SecurityReading, SecurityReport},
    },
    runtime::build_info,
};

/// Most bytes of the message of a condition or a blocker.
const MESSAGE: usize = 1024;

/// Failures in a row after which a node that waits for its restart is Failed, and no longer
/// Starting.
const HOPELESS: u32 = 3;
/// Reasons of ends that another start alone does not repair.
const KNOWN_ENDS: &[&str] = &[
    "AwayTooLong",
    "CommitLogUnreadable",
    "ConfigRejected",
    "DiskFailed",
    "DiskFull",
    "IdentityMismatch",
    "OutOfMemory",
    "PreflightFailed",
];
/// Reasons of ends after which a node begins anew with its next start, and counts as Starting.
const PASSING_ENDS: &[&str] = &[JOIN_FAILED, NEXT_LIFE, "JoinWaits"];

/// What the runner knows of the node beside the state of the machine.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    pub generation: Option<i64>,
    /// Checks that failed last; `None` before the first preflight.
    pub preflight: Option<Vec<FailedCheck>>,
    /// Do data of a database lie on the volume, or may they? `None` until the volume was looked at.
    pub holds: Option<bool>,
    /// What a start waits for: another node, or a configuration that is not possible yet.
    pub waiting: Option<String>,
    /// Why the wanted configuration is not the running one.
    pub rejected: Option<String>,
    /// How the programs that come before the database ended last.
    pub preparation: Option<Result<(), String>>,
    /// Hash of the wanted configuration; `running_hash` is that of the configuration with which the
    /// process was started.
    pub wanted_hash: Option<String>,
    pub running_hash: Option<String>,
    /// `spec.configHash` as it was when the process was started.
    pub started_for: Option<String>,
    pub observation: NodeObservation,
    /// Blockers as the database named them last; `departure` has why it does not let the node
    /// leave.
    pub blockers: Vec<Blocker>,
    pub departure: Vec<Blocker>,
    pub process: Option<Process>,
    pub termination: Option<Termination>,
    pub storage: Option<PilotStorage>,
    pub identity: Option<Identity>,
    pub instance: Option<Instance>,
    pub decommission: Option<Decommission>,
    /// Why a decommission does not go on.
    pub refused: Option<String>,
    /// How far the database is with the nodes that it is to forget.
    pub forgotten: Vec<ForgottenNode>,
    /// Why the volume counts as full; `headroom` is the blocker that forbids a stop for it.
    pub full: Option<String>,
    pub headroom: Vec<Blocker>,
    /// Which installation of the pilot's program runs; `successor` is the state of another one that
    /// lies in its place.
    pub program: Option<String>,
    pub successor: Option<SuccessorState>,
    /// What is told of a node that is to be secured, and the revision of `spec.security` that lies
    /// on the volume.
    pub security: Option<Box<SecurityReport>>,
    pub security_stored: Option<String>,
    /// What a start would encrypt and ask for; `running_rungs` is what the process does.
    pub rungs: SecurityRungs,
    pub running_rungs: SecurityRungs,
}

/// Returns the status as it should stand. A condition whose status did not change keeps its
/// transition time.
pub fn build_status(
    database: &DrivenDatabase,
    state: &NodeMachine,
    facts: &NodeFacts,
    old_conditions: &[Condition],
    now: &Time,
) -> PilotStatus {
    let NodeFacts {
        generation,
        preflight: _,
        holds: _,
        waiting: _,
        rejected: _,
        preparation: _,
        wanted_hash: _,
        running_hash,
        started_for,
        observation,
        blockers,
        departure,
        process,
        termination,
        storage,
        identity,
        instance,
        decommission,
        refused: _,
        forgotten,
        full: _,
        headroom,
        program,
        successor: _,
        security,
        security_stored: stored,
        rungs,
        running_rungs,
    } = facts;
    let is_up = matches!(state.life, NodePhase::Up(_));
    let mut status = PilotStatus {
        observed_generation: *generation,
        phase: Some(pilot_phase(state, facts)),
        // The reporter writes heartbeats on their own, so that they never drag conditions along.
        last_heartbeat_time: None,
        pilot_version: Some(format!("v{}", build_info::VERSION)),
        pilot_program: program.clone(),
        config_hash: running_hash.clone(),
        started_for: started_for.clone(),
        version: observation.version.clone(),
        health: observation.health.clone().filter(|_| is_up),
        blockers: if is_up {
            // A request that was taken back is refused no more.
            let is_decommission_desired =
                state.desired_intent() == Some(NodeIntent::Decommissioned);
            let refusals = departure.iter().filter(|_| is_decommission_desired);
            let all_blockers = blockers.iter().chain(headroom).chain(refusals).cloned();
            all_blockers
                .map(|blocker| Blocker { message: truncate_message(blocker.message), ..blocker })
                .collect()
        } else {
            vec![]
        },
        identity: identity.clone(),
        instance: instance.clone(),
        endpoints: observation.endpoints.clone(),
        process: process.clone(),
        last_termination: termination.clone(),
        storage: storage.clone(),
        decommission: decommission.clone(),
        forgotten: forgotten.clone(),
        security: {
            let has_process = matches!(state.life, NodePhase::Up(_) | NodePhase::Stopping { .. });
            let rungs = if has_process { running_rungs } else { rungs };
            let stored = stored.clone();
            let security_status = match security {
                Some(report) => report.build_status(stored, is_up),
                None => PilotSecurityStatus { stored, ..PilotSecurityStatus::default() },
            };
            let is_told = security_status != PilotSecurityStatus::default();
            let rungs = Some(rungs.clone()).filter(|rungs| is_told || !rungs.is_open());
            let security_status = PilotSecurityStatus { rungs, ..security_status };
            Some(security_status).filter(|status| *status != PilotSecurityStatus::default())
        },
        parts: observation.detail.clone(),
        conditions: build_conditions(database, state, facts),
    };
    for condition in &mut status.conditions {
        condition.observed_generation = *generation;
        let old_condition = old_conditions.iter().find(|old| old.type_ == condition.type_);
        let unchanged = old_condition.filter(|old| old.status == condition.status);
        condition.last_transition_time =
            unchanged.map_or(now, |old| &old.last_transition_time).clone();
    }
    status
}

/// Returns the phase of the node's life, as its Pilot reports it.
pub fn pilot_phase(state: &NodeMachine, facts: &NodeFacts) -> PilotPhase {
    match reported_phase(state, facts) {
        NodePhase::Waiting | NodePhase::Turn => PilotPhase::Pending,
        NodePhase::Preflight => PilotPhase::Preflight,
        // The configuration waits for other nodes, which will come.
        NodePhase::Rejected if facts.rejected.is_none() => PilotPhase::Pending,
        NodePhase::Refused | NodePhase::Rejected | NodePhase::Unprepared => PilotPhase::Failed,
        NodePhase::Backoff if ended_as(facts, PASSING_ENDS).is_some() => PilotPhase::Starting,
        NodePhase::Backoff
            if state.failure_count() >= HOPELESS || ended_as(facts, KNOWN_ENDS).is_some() =>
        {
            PilotPhase::Failed
        }
        NodePhase::Up(up) if up.decommissioning.is_some() => PilotPhase::Decommissioning,
        NodePhase::Up(up) if up.serving => PilotPhase::Running,
        NodePhase::Configuring
        | NodePhase::Preparing { .. }
        | NodePhase::Spawning
        | NodePhase::Backoff
        | NodePhase::Up(_) => PilotPhase::Starting,
        NodePhase::Stopping { .. } | NodePhase::Exited(_) => PilotPhase::Stopping,
        NodePhase::Held(HoldReason::Stopped) => PilotPhase::Stopped,
        NodePhase::Held(HoldReason::Fenced) => PilotPhase::Fenced,
        NodePhase::Held(HoldReason::Decommissioned) => PilotPhase::Decommissioned,
    }
}

/// What the node is at; a turn that lets it wait is told as that.
fn reported_phase<'a>(state: &'a NodeMachine, facts: &NodeFacts) -> &'a NodePhase {
    let is_waiting = state.life == NodePhase::Turn && facts.waiting.is_some();
    if is_waiting { &state.life } else { state.reported_phase() }
}

/// Is the node ready for clients?
pub fn is_ready(state: &NodeMachine) -> bool {
    matches!(&state.life, NodePhase::Up(up) if up.serving)
}

/// What a condition says: status, reason, message.
type ConditionReading = (bool, &'static str, String);

fn build_conditions(
    database: &DrivenDatabase,
    state: &NodeMachine,
    facts: &NodeFacts,
) -> Vec<Condition> {
    let mut conditions = vec![
        build_condition("Ready", ready_condition(database, state, facts)),
        build_condition("Started", started_condition(database, state)),
        build_condition("Stopped", stopped_condition(database, state)),
        build_condition("Decommissioned", decommissioned_condition(state, facts)),
    ];
    conditions.extend(
        preflight_condition(state, facts)
            .map(|reading| build_condition("PreflightPassed", reading)),
    );
    conditions
        .extend(data_condition(facts).map(|reading| build_condition(VOLUME_HOLDS_DATA, reading)));
    conditions
        .extend(config_condition(facts).map(|reading| build_condition("ConfigApplied", reading)));
    if let Some(preparation) = &database.preparation {
        conditions.extend(
            preparation_condition(preparation, facts)
                .map(|reading| build_condition(preparation.condition, reading)),
        );
    }
    conditions.extend(facts.observation.conditions.iter().map(database_condition));
    conditions.extend(security_conditions(state, facts));
    conditions.extend(
        state_saved_condition(state, facts).map(|reading| build_condition("StateSaved", reading)),
    );
    conditions.extend(
        writable_condition(state, facts).map(|reading| build_condition("Writable", reading)),
    );
    conditions
        .extend(program_condition(facts).map(|reading| build_condition("ProgramCurrent", reading)));
    conditions
}

/// Bounds a message, so that no report is too long for the API server.
fn truncate_message(mut message: String) -> String {
    let mut end = message.len().min(MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message
}

fn build_condition(type_: &str, (status, reason, message): ConditionReading) -> Condition {
    let message = truncate_message(message);
    Condition {
        type_: type_.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: None,
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    }
}

/// Reads the conditions of a node that is to be secured. Whom a database has that does not run is
/// nothing to tell.
fn security_conditions(state: &NodeMachine, facts: &NodeFacts) -> impl Iterator<Item = Condition> {
    let report = facts.security.as_deref();
    let is_up = matches!(state.life, NodePhase::Up(_));
    let certificates = report.and_then(|report| report.certificates.clone());
    let users = report.and_then(|report| report.users_applied.clone()).filter(|_| is_up);
    let readings = [("CertificatesValid", certificates), ("UsersApplied", users)];
    readings.into_iter().filter_map(|(type_, reading)| {
        let SecurityReading { good, reason, message } = reading?;
        Some(build_condition(type_, (good, reason, message)))
    })
}

fn database_condition(observed_condition: &DatabaseCondition) -> Condition {
    let reading = (observed_condition.status == Some(true), "", observed_condition.message.clone());
    let mut condition = build_condition(observed_condition.type_, reading);
    condition.reason = observed_condition.reason.to_string();
    if observed_condition.status.is_none() {
        "Unknown".clone_into(&mut condition.status);
    }
    condition
}

fn ready_condition(
    database: &DrivenDatabase,
    state: &NodeMachine,
    facts: &NodeFacts,
) -> ConditionReading {
    let title = database.names.title;
    let wait_reason = || facts.waiting.clone().unwrap_or_default();
    match reported_phase(state, facts) {
        NodePhase::Waiting => {
            let wait_reason = facts.waiting.clone();
            (false, "Starting", wait_reason.unwrap_or_else(|| "waits for its Pilot object".into()))
        }
        NodePhase::Preflight => (false, "Starting", "the host is being checked".into()),
        NodePhase::Refused => {
            let failed_checks = facts.preflight.iter().flatten();
            let reason =
                failed_checks.clone().next().map_or("PreflightFailed", |check| check.reason);
            (false, reason, join_messages(failed_checks))
        }
        NodePhase::Turn => (false, "Starting", wait_reason()),
        NodePhase::Configuring | NodePhase::Spawning => {
            (false, "Starting", format!("{title} is started"))
        }
        NodePhase::Preparing { .. } => {
            let wait_reason = facts.waiting.clone();
            (false, "Starting", wait_reason.unwrap_or_else(|| format!("{title} is prepared")))
        }
        NodePhase::Unprepared => {
            let reason = database
                .preparation
                .as_ref()
                .map_or("PreflightFailed", |preparation| preparation.failed);
            let message = facts.preparation.clone().and_then(Result::err);
            (false, reason, message.unwrap_or_default())
        }
        NodePhase::Rejected => match &facts.rejected {
            Some(reason) => (false, "ConfigRejected", reason.clone()),
            None => (false, "Starting", wait_reason()),
        },
        NodePhase::Up(up) if up.suspected => {
            let dump_note = state.limits().dump.map_or("", |_| "; asked for a thread dump");
            (false, "ProcessHung", format!("{title} stopped answering{dump_note}"))
        }
        NodePhase::Up(up) if up.serving => {
            let role = facts.observation.role.map(|role| format!(" and is a {}", role.name()));
            let role = role.unwrap_or_default();
            (true, database.started, format!("{title} serves clients{role}"))
        }
        NodePhase::Up(up) if up.served && facts.full.is_some() => {
            (false, "DiskFull", facts.full.clone().unwrap_or_default())
        }
        NodePhase::Up(up) => {
            let reason = facts.observation.reason.unwrap_or(if up.decommissioning.is_some() {
                "NodeDecommissioning"
            } else {
                "Starting"
            });
            let message = facts.observation.message.clone();
            (false, reason, message.unwrap_or_else(|| format!("{title} does not serve yet")))
        }
        NodePhase::Stopping { .. } | NodePhase::Exited(_) => {
            (false, "Stopped", format!("{title} is stopped"))
        }
        NodePhase::Backoff => {
            let termination = facts.termination.as_ref();
            let message =
                termination.and_then(|termination| termination.message.clone()).unwrap_or_default();
            let end_reason = [KNOWN_ENDS, PASSING_ENDS, ENDINGS]
                .into_iter()
                .find_map(|ends| ended_as(facts, ends));
            (false, end_reason.unwrap_or("ProcessExited"), message)
        }
        NodePhase::Held(HoldReason::Stopped) => {
            (false, "Stopped", format!("{title} was stopped on request"))
        }
        NodePhase::Held(HoldReason::Fenced) => {
            (false, "Fenced", format!("{title} is kept down for repair"))
        }
        NodePhase::Held(HoldReason::Decommissioned) => {
            (false, "NodeDecommissioned", "the node left its database cluster".into())
        }
    }
}

fn started_condition(database: &DrivenDatabase, state: &NodeMachine) -> ConditionReading {
    let title = database.names.title;
    match &state.life {
        NodePhase::Up(up) if up.answered => {
            (true, database.started, format!("{title} process has started"))
        }
        NodePhase::Stopping { .. } | NodePhase::Held(_) | NodePhase::Exited(_) => {
            (false, "Stopped", format!("{title} is not running"))
        }
        _ => (false, "Starting", format!("{title} does not answer yet")),
    }
}

fn stopped_condition(database: &DrivenDatabase, state: &NodeMachine) -> ConditionReading {
    let title = database.names.title;
    match state.life {
        NodePhase::Held(HoldReason::Fenced) => (true, "Fenced", format!("{title} is stopped")),
        NodePhase::Held(_) => (true, "Stopped", format!("{title} is stopped")),
        _ => (false, "NotRequested", String::new()),
    }
}

/// Reads the condition Decommissioned. Once true it stays true, through the end of this pilot and
/// the start of the next: the controller would take a node that is no longer decommissioned for one
/// that has data.
fn decommissioned_condition(state: &NodeMachine, facts: &NodeFacts) -> ConditionReading {
    if state.is_gone() {
        (true, "NodeDecommissioned", "the node left its database cluster".into())
    } else if state.desired_intent() == Some(NodeIntent::Decommissioned)
        || state.is_decommissioning()
    {
        let progress = facts.decommission.as_ref().and_then(|moving| moving.message.clone());
        let message = facts.refused.clone().or(progress);
        (false, "NodeDecommissioning", message.unwrap_or_else(|| "data are moved away".into()))
    } else {
        (false, "NotRequested", String::new())
    }
}

/// Returns the reason for which the last process ended, where it is one of `ends`.
fn ended_as(facts: &NodeFacts, ends: &[&'static str]) -> Option<&'static str> {
    let reason = facts.termination.as_ref()?.reason.as_deref()?;
    ends.iter().find(|end| **end == reason).copied()
}

fn preflight_condition(state: &NodeMachine, facts: &NodeFacts) -> Option<ConditionReading> {
    if let (NodePhase::Up(_), Some(full)) = (&state.life, &facts.full) {
        return Some((false, "DiskFull", full.clone()));
    }
    let failed_checks = facts.preflight.as_ref()?;
    Some(match failed_checks.first() {
        None => (true, "PreflightPassed", "every check passed".into()),
        Some(check) => (false, check.reason, join_messages(failed_checks.iter())),
    })
}

/// Reads the condition VolumeHoldsData, for which other pilots wait before one of them founds a new
/// database cluster.
fn data_condition(facts: &NodeFacts) -> Option<ConditionReading> {
    Some(if facts.holds? {
        (true, "HoldsData", "data of a database lie on the volume".into())
    } else {
        (false, "Empty", "no data of a database lie on the volume".into())
    })
}

fn config_condition(facts: &NodeFacts) -> Option<ConditionReading> {
    if let Some(reason) = &facts.rejected {
        return Some((false, "ConfigRejected", reason.clone()));
    }
    let running_hash = facts.running_hash.as_ref()?;
    Some(match &facts.wanted_hash {
        Some(desired_hash) if desired_hash != running_hash => {
            (false, "RestartPending", "a restart will apply the new configuration".into())
        }
        _ => (true, "ConfigCurrent", "the process runs with the wanted configuration".into()),
    })
}

fn preparation_condition(
    preparation: &PreparationCondition,
    facts: &NodeFacts,
) -> Option<ConditionReading> {
    Some(match facts.preparation.as_ref()? {
        Ok(()) => (true, preparation.current, "everything that the spec lists is in place".into()),
        Err(reason) => (false, preparation.failed, reason.clone()),
    })
}

/// Reads the condition StateSaved, which stands only while the pilot's own state files cannot be
/// read or written.
fn state_saved_condition(state: &NodeMachine, facts: &NodeFacts) -> Option<ConditionReading> {
    let reason =
        facts.observation.unsaved.as_ref().filter(|_| matches!(state.life, NodePhase::Up(_)))?;
    Some((false, "StateNotSaved", format!("{reason}; the database is left alone")))
}

/// Reads the condition Writable, which stands only while the database refuses writes for want of
/// room. A database whose volume is nearly full still takes them: there `PreflightPassed` tells of
/// the volume.
fn writable_condition(state: &NodeMachine, facts: &NodeFacts) -> Option<ConditionReading> {
    let reason = facts.observation.refuses_writes.clone().filter(|_| is_ready(state))?;
    Some((false, "DiskFull", reason))
}

/// Reads the condition ProgramCurrent, which stands only while another program lies in the place of
/// the pilot's own.
fn program_condition(facts: &NodeFacts) -> Option<ConditionReading> {
    Some(match facts.successor.as_ref()? {
        SuccessorState::Pending(reason) => (false, "TakeoverPending", reason.clone()),
        SuccessorState::Refused(reason) => {
            (false, "TakeoverRefused", format!("the new program cannot take over: {reason}"))
        }
        SuccessorState::LeftAside => {
            (false, "TakeoverForbidden", "pilotUpdate is Never: a new program is left aside".into())
        }
    })
}

/// Joins the messages of the checks in `failed`.
pub fn join_messages<'a>(checks: impl Iterator<Item = &'a FailedCheck>) -> String {
    checks.map(|check| check.message.as_str()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        api::v1beta1::NodeChange,
        pilot::{
            database::EXAMPLE,
            driver::{ReplicationRole, StopPlan},
            node::machine::{MachineEvent, MachineTimer, TimeLimits},
            process::supervisor::ChildExit,
        },
    };

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn limits() -> TimeLimits {
        let [grace, silence] = [30, 90].map(Duration::from_secs);
        TimeLimits { grace, silence, stop: StopPlan::DEFAULT, dump: None }
    }

    fn fresh() -> NodeMachine {
        NodeMachine::new(limits(), false)
    }

    fn find<'a>(status: &'a PilotStatus, type_: &str) -> (&'a str, &'a str, i64) {
        let found = status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
        (&found.status, &found.reason, found.last_transition_time.0.as_second())
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let facts = NodeFacts::default();
        let first = build_status(&EXAMPLE, &fresh(), &facts, &[], &at(1));
        let second = build_status(&EXAMPLE, &fresh(), &facts, &first.conditions, &at(2));
        assert_eq!(find(&second, "Ready"), ("False", "Starting", 1));
        let mut state = fresh();
        for event in [
            MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: false },
            MachineEvent::PreflightPassed(1),
            MachineEvent::Turn { attempt: 1, may_found: false },
            MachineEvent::Configured(1),
            MachineEvent::Prepared(1),
            MachineEvent::Spawned { pid: 7 },
            MachineEvent::Observed { alive: true, serving: true },
        ] {
            state = state.step(event).0;
        }
        let third = build_status(&EXAMPLE, &state, &facts, &second.conditions, &at(3));
        assert_eq!(find(&third, "Ready"), ("True", "ExampleStarted", 3));
        assert_eq!(third.phase, Some(PilotPhase::Running));
    }

    #[test]
    fn node_that_stopped_serving_is_reported_until_its_restart() {
        let mut state = fresh();
        for event in [
            MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: false },
            MachineEvent::PreflightPassed(1),
            MachineEvent::Turn { attempt: 1, may_found: false },
            MachineEvent::Configured(1),
            MachineEvent::Prepared(1),
            MachineEvent::Spawned { pid: 7 },
            MachineEvent::Observed { alive: true, serving: true },
            MachineEvent::Observed { alive: true, serving: false },
            MachineEvent::StoppedServing,
            MachineEvent::Exited(ChildExit { code: Some(143), signal: None }),
        ] {
            state = state.step(event).0;
        }
        let reason = Some("TransportsStopped".to_owned());
        let termination = Some(Termination { reason, ..Termination::default() });
        let facts = NodeFacts { termination, ..NodeFacts::default() };
        let reported = build_status(&EXAMPLE, &state, &facts, &[], &at(1));
        assert_eq!(find(&reported, "Ready"), ("False", "TransportsStopped", 1));
        assert_eq!(reported.phase, Some(PilotPhase::Starting));
    }

    #[test]
    fn a_node_that_left_says_so_while_its_pilot_starts_and_ends() {
        let mut state = NodeMachine::new(limits(), true);
        let told =
            |state: &NodeMachine| build_status(&EXAMPLE, state, &NodeFacts::default(), &[], &at(1));
        assert_eq!(find(&told(&state), "Decommissioned"), ("True", "NodeDecommissioned", 1));
        for event in [
            MachineEvent::Intent {
                want: NodeIntent::Decommissioned,
                restart: None,
                changed: false,
            },
            MachineEvent::Signal(nix::sys::signal::Signal::SIGTERM as i32),
        ] {
            state = state.step(event).0;
            assert_eq!(find(&told(&state), "Decommissioned"), ("True", "NodeDecommissioned", 1));
        }
    }

    #[test]
    fn a_failed_check_is_named_by_ready_and_by_preflight_passed() {
        let mut state = fresh();
        for event in [
            MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: false },
            MachineEvent::PreflightFailed(1),
        ] {
            state = state.step(event).0;
        }
        let check = FailedCheck { reason: "DiskFull", message: "grow it".into() };
        let facts = NodeFacts { preflight: Some(vec![check]), ..NodeFacts::default() };
        let told = build_status(&EXAMPLE, &state, &facts, &[], &at(1));
        assert_eq!(find(&told, "Ready"), ("False", "DiskFull", 1));
        assert_eq!(find(&told, "PreflightPassed"), ("False", "DiskFull", 1));
        assert_eq!(told.phase, Some(PilotPhase::Failed));
    }

    #[test]
    fn a_check_that_is_repeated_is_told_as_it_failed_until_it_passes() {
        let check = FailedCheck { reason: "DiskFull", message: "grow it".into() };
        let facts = NodeFacts { preflight: Some(vec![check]), ..NodeFacts::default() };
        let intent =
            |changed| MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed };
        let failed = [intent(false), MachineEvent::PreflightFailed(1)];
        let failed = failed.into_iter().fold(fresh(), |state, event| state.step(event).0);
        let seen = |state: &NodeMachine, facts: &NodeFacts| {
            let told = build_status(&EXAMPLE, state, facts, &[], &at(1));
            (told.phase.clone().unwrap(), find(&told, "Ready").1.to_owned())
        };
        let full = (PilotPhase::Failed, "DiskFull".to_owned());
        let again = failed.clone().step(MachineEvent::Timer(MachineTimer::Recheck)).0;
        assert_eq!((again.life.clone(), seen(&again, &facts)), (NodePhase::Preflight, full));
        let anew = failed.step(intent(true)).0;
        assert_eq!(seen(&anew, &facts).0, PilotPhase::Preflight, "another spec is judged anew");
        let passed = again.step(MachineEvent::PreflightPassed(2)).0;
        let facts = NodeFacts { preflight: Some(vec![]), ..NodeFacts::default() };
        assert_eq!(seen(&passed, &facts).0, PilotPhase::Pending);

        let rejects = |attempt| {
            [
                MachineEvent::PreflightPassed(attempt),
                MachineEvent::Turn { attempt, may_found: false },
                MachineEvent::NotConfigured(attempt),
            ]
        };
        let mut state = fresh().step(intent(false)).0;
        let facts = NodeFacts { rejected: Some("mend it".into()), ..facts };
        let bad = (PilotPhase::Failed, "ConfigRejected".to_owned());
        for attempt in [1, 2] {
            for event in rejects(attempt) {
                state = state.step(event).0;
                if attempt == 2 {
                    assert_eq!(seen(&state, &facts), bad, "{:?}", state.life);
                }
            }
            state = state.step(MachineEvent::Timer(MachineTimer::Recheck)).0;
        }
    }

    fn up() -> NodeMachine {
        let events = [
            MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: false },
            MachineEvent::PreflightPassed(1),
            MachineEvent::Turn { attempt: 1, may_found: false },
            MachineEvent::Configured(1),
            MachineEvent::Prepared(1),
            MachineEvent::Spawned { pid: 7 },
            MachineEvent::Observed { alive: true, serving: true },
        ];
        events.into_iter().fold(fresh(), |state, event| state.step(event).0)
    }

    #[test]
    fn a_full_volume_of_a_running_database_is_told_and_speaks_against_a_stop() {
        let blocker = Blocker {
            predicate: "DiskHeadroom".into(),
            against: Vec::new(),
            message: "full".into(),
            since: None,
            observed_time: None,
        };
        let full = Some("volume has 1 MiB left".to_owned());
        let facts = NodeFacts { full, headroom: vec![blocker], ..NodeFacts::default() };
        let told = build_status(&EXAMPLE, &up(), &facts, &[], &at(1));
        assert_eq!(find(&told, "Ready").0, "True", "it serves on");
        assert_eq!(find(&told, "PreflightPassed"), ("False", "DiskFull", 1));
        assert_eq!(told.blockers[0].predicate, "DiskHeadroom");
        let silent = up().step(MachineEvent::Observed { alive: true, serving: false }).0;
        let told = build_status(&EXAMPLE, &silent, &facts, &[], &at(1));
        assert_eq!(find(&told, "Ready"), ("False", "DiskFull", 1));
    }

    #[test]
    fn a_refused_departure_is_a_blocker_until_the_request_is_taken_back() {
        let refused = Blocker {
            predicate: "SpaceElsewhere".into(),
            against: vec![NodeChange::Leave],
            message: "no room".into(),
            since: None,
            observed_time: None,
        };
        let facts = NodeFacts { departure: vec![refused.clone()], ..NodeFacts::default() };
        let intent = |want| MachineEvent::Intent { want, restart: None, changed: false };
        let leaves = up().step(intent(NodeIntent::Decommissioned)).0;
        assert_eq!(build_status(&EXAMPLE, &leaves, &facts, &[], &at(1)).blockers, [refused]);
        let stays = leaves.step(intent(NodeIntent::Running)).0;
        assert_eq!(build_status(&EXAMPLE, &stays, &facts, &[], &at(1)).blockers, []);
    }

    #[test]
    fn a_node_that_serves_says_which_role_it_has() {
        let message = |role: Option<ReplicationRole>| {
            let observation = NodeObservation { role, ..NodeObservation::default() };
            let facts = NodeFacts { observation, ..NodeFacts::default() };
            let told = build_status(&EXAMPLE, &up(), &facts, &[], &at(1));
            let ready = told.conditions.into_iter().find(|found| found.type_ == "Ready").unwrap();
            ready.message
        };
        assert_eq!(message(None), "Example serves clients");
        assert_eq!(
            message(Some(ReplicationRole::Replica)),
            "Example serves clients and is a replica"
        );
    }

    #[test]
    fn a_database_that_refuses_writes_serves_and_says_so() {
        let refusing = |refuses_writes: Option<String>| {
            let observation = NodeObservation { refuses_writes, ..NodeObservation::default() };
            let facts = NodeFacts { observation, ..NodeFacts::default() };
            let told = build_status(&EXAMPLE, &up(), &facts, &[], &at(1));
            assert_eq!(find(&told, "Ready").0, "True");
            told.conditions.into_iter().find(|found| found.type_ == "Writable")
        };
        assert_eq!(refusing(None), None);
        let told = refusing(Some("flood stage".into())).unwrap();
        assert_eq!((&*told.status, &*told.reason), ("False", "DiskFull"));
        assert_eq!(told.message, "flood stage");
    }

    #[test]
    fn a_database_that_cannot_be_run_has_failed_and_one_that_crashed_starts() {
        let crashed =
            up().step(MachineEvent::Exited(crate::pilot::process::supervisor::ChildExit {
                code: Some(3),
                signal: None,
            }));
        let ended = |reason: &str| {
            let termination = Termination { reason: Some(reason.into()), ..Termination::default() };
            let facts = NodeFacts { termination: Some(termination), ..NodeFacts::default() };
            let told = build_status(&EXAMPLE, &crashed.0, &facts, &[], &at(1));
            (told.phase.clone(), find(&told, "Ready").1.to_owned())
        };
        assert_eq!(ended("ProcessExited"), (Some(PilotPhase::Starting), "ProcessExited".into()));
        assert_eq!(ended("ConfigRejected"), (Some(PilotPhase::Failed), "ConfigRejected".into()));
    }

    #[test]
    fn a_condition_of_one_database_is_true_false_or_unknown() {
        for (status, word) in [(Some(true), "True"), (Some(false), "False"), (None, "Unknown")] {
            let (reason, message) = ("Why".into(), String::new());
            let own = DatabaseCondition { type_: "CleanupDue", status, reason, message };
            let observation =
                NodeObservation { conditions: vec![own], ..NodeObservation::default() };
            let facts = NodeFacts { observation, ..NodeFacts::default() };
            let told = status_of(&facts);
            assert_eq!(find(&told, "CleanupDue"), (word, "Why", 1));
        }
    }

    fn status_of(facts: &NodeFacts) -> PilotStatus {
        build_status(&EXAMPLE, &up(), facts, &[], &at(1))
    }

    #[test]
    fn a_configuration_that_waits_for_a_restart_is_told() {
        let facts = NodeFacts {
            wanted_hash: Some("b".into()),
            running_hash: Some("a".into()),
            ..NodeFacts::default()
        };
        let told = build_status(&EXAMPLE, &fresh(), &facts, &[], &at(1));
        assert_eq!(find(&told, "ConfigApplied"), ("False", "RestartPending", 1));
    }

    #[test]
    fn a_program_that_lies_in_the_place_of_the_running_one_is_told_until_it_runs() {
        let told = |successor: Option<SuccessorState>| {
            let facts =
                NodeFacts { successor, program: Some("1-2".into()), ..NodeFacts::default() };
            let told = build_status(&EXAMPLE, &up(), &facts, &[], &at(1));
            assert_eq!(told.pilot_program.as_deref(), Some("1-2"));
            let found = told.conditions.iter().find(|found| found.type_ == "ProgramCurrent");
            found.map(|found| (found.reason.clone(), found.message.clone()))
        };
        assert_eq!(told(None), None);
        let (reason, message) = told(Some(SuccessorState::Refused("no token".into()))).unwrap();
        assert_eq!(reason, "TakeoverRefused");
        assert!(message.ends_with("no token"), "{message}");
        let pending = told(Some(SuccessorState::Pending("version 1 waits".into())));
        assert_eq!(pending, Some(("TakeoverPending".into(), "version 1 waits".into())));
        assert_eq!(told(Some(SuccessorState::LeftAside)).unwrap().0, "TakeoverForbidden");
    }
}
