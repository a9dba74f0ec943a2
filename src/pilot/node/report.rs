//! What a pilot says about its node: facts in, `Pilot.status` out. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{
    api::v1beta1::{
        Blocker, Decommission, Identity, Instance, PilotPhase, PilotStatus, PilotStorage, Process,
        Termination,
    },
    pilot::{
        database::{DrivenDatabase, Preparation},
        driver::{FailedCheck, JOIN_FAILED, Observation, OwnCondition},
        kube::peers::VOLUME_HOLDS_DATA,
        node::machine::{Held, Life, State, Want},
        process::takeover::Successor,
    },
    runtime::build,
};

/// The bound of the message of a condition and of a blocker.
const MESSAGE: usize = 1024;

/// A node is Failed and no longer Starting after so many crashes in a row.
const HOPELESS: u32 = 3;
/// Ends that another start alone does not repair.
const KNOWN_ENDS: &[&str] = &[
    "AwayTooLong",
    "ConfigRejected",
    "DiskFailed",
    "DiskFull",
    "IdentityMismatch",
    "OutOfMemory",
    "PreflightFailed",
];
/// Ends after which a node begins anew with its next start, and is on its way.
const PASSING_ENDS: &[&str] = &[JOIN_FAILED, "JoinWaits"];

/// All that the runner knows.
#[derive(Clone, Debug, Default)]
pub struct Facts {
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
    /// Hash of the wanted configuration, and of the one that the process was started with.
    pub wanted_hash: Option<String>,
    pub running_hash: Option<String>,
    pub observation: Observation,
    /// What speaks against a stop, as the database said last.
    pub blockers: Vec<Blocker>,
    pub process: Option<Process>,
    pub termination: Option<Termination>,
    pub storage: Option<PilotStorage>,
    pub identity: Option<Identity>,
    pub instance: Option<Instance>,
    pub decommission: Option<Decommission>,
    /// Why a decommission does not go on.
    pub refused: Option<String>,
    /// Why the volume counts as full, and since when that speaks against a stop.
    pub full: Option<String>,
    pub headroom: Vec<Blocker>,
    /// Which installation of the pilot's program runs, and what lies in its place now.
    pub program: Option<String>,
    pub successor: Option<Successor>,
}

/// The status as it should stand. A condition that did not change keeps its time.
pub fn status(
    database: &DrivenDatabase,
    state: &State,
    facts: &Facts,
    before: &[Condition],
    now: &Time,
) -> PilotStatus {
    let Facts {
        generation,
        preflight: _,
        holds: _,
        waiting: _,
        rejected: _,
        preparation: _,
        wanted_hash: _,
        running_hash,
        observation,
        blockers,
        process,
        termination,
        storage,
        identity,
        instance,
        decommission,
        refused: _,
        full: _,
        headroom,
        program,
        successor: _,
    } = facts;
    let up = matches!(state.life, Life::Up(_));
    let mut status = PilotStatus {
        observed_generation: *generation,
        phase: Some(phase(state, facts)),
        // The reporter writes heartbeats on their own, so that they never drag conditions along.
        last_heartbeat_time: None,
        pilot_version: Some(format!("v{}", build::VERSION)),
        pilot_program: program.clone(),
        config_hash: running_hash.clone(),
        version: observation.version.clone(),
        health: observation.health.clone().filter(|_| up),
        blockers: if up {
            let all = blockers.iter().chain(headroom).cloned();
            all.map(|blocker| Blocker { message: bounded(blocker.message), ..blocker }).collect()
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
        parts: observation.detail.clone(),
        conditions: conditions(database, state, facts),
    };
    for condition in &mut status.conditions {
        condition.observed_generation = *generation;
        let old = before.iter().find(|old| old.type_ == condition.type_);
        let same = old.filter(|old| old.status == condition.status);
        condition.last_transition_time = same.map_or(now, |old| &old.last_transition_time).clone();
    }
    status
}

/// Where the node is in its life.
pub fn phase(state: &State, facts: &Facts) -> PilotPhase {
    match &state.life {
        Life::Waiting | Life::Turn => PilotPhase::Pending,
        Life::Preflight => PilotPhase::Preflight,
        // The configuration waits for other nodes, which will come.
        Life::Rejected if facts.rejected.is_none() => PilotPhase::Pending,
        Life::Refused | Life::Rejected | Life::Unprepared => PilotPhase::Failed,
        Life::Backoff if ended_as(facts, PASSING_ENDS).is_some() => PilotPhase::Starting,
        Life::Backoff if state.failures() >= HOPELESS || ended_as(facts, KNOWN_ENDS).is_some() => {
            PilotPhase::Failed
        }
        Life::Up(up) if up.decommissioning.is_some() => PilotPhase::Decommissioning,
        Life::Up(up) if up.serving => PilotPhase::Running,
        Life::Configuring
        | Life::Preparing { .. }
        | Life::Spawning
        | Life::Backoff
        | Life::Up(_) => PilotPhase::Starting,
        Life::Stopping { .. } | Life::Exited(_) => PilotPhase::Stopping,
        Life::Held(Held::Stopped) => PilotPhase::Stopped,
        Life::Held(Held::Fenced) => PilotPhase::Fenced,
        Life::Held(Held::Decommissioned) => PilotPhase::Decommissioned,
    }
}

/// Is the node ready for clients?
pub fn is_ready(state: &State) -> bool {
    matches!(&state.life, Life::Up(up) if up.serving)
}

/// What a condition says: status, reason, message.
type Reading = (bool, &'static str, String);

fn conditions(database: &DrivenDatabase, state: &State, facts: &Facts) -> Vec<Condition> {
    let mut all = vec![
        condition("Ready", ready(database, state, facts)),
        condition("Started", started(database, state)),
        condition("Stopped", stopped(database, state)),
        condition("Decommissioned", decommissioned(state, facts)),
    ];
    all.extend(preflight(state, facts).map(|reading| condition("PreflightPassed", reading)));
    all.extend(holds(facts).map(|reading| condition(VOLUME_HOLDS_DATA, reading)));
    all.extend(config(facts).map(|reading| condition("ConfigApplied", reading)));
    if let Some(told) = &database.preparation {
        all.extend(prepared(told, facts).map(|reading| condition(told.condition, reading)));
    }
    all.extend(facts.observation.conditions.iter().map(own));
    all.extend(saved(state, facts).map(|reading| condition("StateSaved", reading)));
    all.extend(writable(state, facts).map(|reading| condition("Writable", reading)));
    all.extend(successor(facts).map(|reading| condition("ProgramCurrent", reading)));
    all
}

/// Bounds a message, so that no report is too long for the API server.
fn bounded(mut message: String) -> String {
    let mut end = message.len().min(MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    message
}

fn condition(type_: &str, (status, reason, message): Reading) -> Condition {
    let message = bounded(message);
    Condition {
        type_: type_.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: None,
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    }
}

fn own(told: &OwnCondition) -> Condition {
    let reading = (told.status == Some(true), "", told.message.clone());
    let mut condition = condition(told.type_, reading);
    condition.reason = told.reason.to_string();
    if told.status.is_none() {
        "Unknown".clone_into(&mut condition.status);
    }
    condition
}

fn ready(database: &DrivenDatabase, state: &State, facts: &Facts) -> Reading {
    let title = database.names.title;
    let waiting = || facts.waiting.clone().unwrap_or_default();
    match &state.life {
        Life::Waiting => {
            let waiting = facts.waiting.clone();
            (false, "Starting", waiting.unwrap_or_else(|| "waits for its Pilot object".into()))
        }
        Life::Preflight => (false, "Starting", "the host is being checked".into()),
        Life::Refused => {
            let failed = facts.preflight.iter().flatten();
            let reason = failed.clone().next().map_or("PreflightFailed", |check| check.reason);
            (false, reason, joined(failed))
        }
        Life::Turn => (false, "Starting", waiting()),
        Life::Configuring | Life::Spawning => (false, "Starting", format!("{title} is started")),
        Life::Preparing { .. } => {
            let waiting = facts.waiting.clone();
            (false, "Starting", waiting.unwrap_or_else(|| format!("{title} is prepared")))
        }
        Life::Unprepared => {
            let reason =
                database.preparation.as_ref().map_or("PreflightFailed", |told| told.failed);
            let why = facts.preparation.clone().and_then(Result::err);
            (false, reason, why.unwrap_or_default())
        }
        Life::Rejected => match &facts.rejected {
            Some(why) => (false, "ConfigRejected", why.clone()),
            None => (false, "Starting", waiting()),
        },
        Life::Up(up) if up.suspected => {
            let asked = state.limits().dump.map_or("", |_| "; asked for a thread dump");
            (false, "ProcessHung", format!("{title} stopped answering{asked}"))
        }
        Life::Up(up) if up.serving => {
            let role = facts.observation.role.map(|role| format!(" and is a {}", role.name()));
            let role = role.unwrap_or_default();
            (true, database.started, format!("{title} serves clients{role}"))
        }
        Life::Up(up) if up.served && facts.full.is_some() => {
            (false, "DiskFull", facts.full.clone().unwrap_or_default())
        }
        Life::Up(up) => {
            let reason = facts.observation.reason.unwrap_or(if up.decommissioning.is_some() {
                "NodeDecommissioning"
            } else {
                "Starting"
            });
            let message = facts.observation.message.clone();
            (false, reason, message.unwrap_or_else(|| format!("{title} does not serve yet")))
        }
        Life::Stopping { .. } | Life::Exited(_) => {
            (false, "Stopped", format!("{title} is stopped"))
        }
        Life::Backoff => {
            let ended = facts.termination.as_ref();
            let message = ended.and_then(|ended| ended.message.clone()).unwrap_or_default();
            let known = ended_as(facts, KNOWN_ENDS).or_else(|| ended_as(facts, PASSING_ENDS));
            (false, known.unwrap_or("ProcessExited"), message)
        }
        Life::Held(Held::Stopped) => (false, "Stopped", format!("{title} was stopped on request")),
        Life::Held(Held::Fenced) => (false, "Fenced", format!("{title} is kept down for repair")),
        Life::Held(Held::Decommissioned) => {
            (false, "NodeDecommissioned", "the node left its database cluster".into())
        }
    }
}

fn started(database: &DrivenDatabase, state: &State) -> Reading {
    let title = database.names.title;
    match &state.life {
        Life::Up(up) if up.answered => {
            (true, database.started, format!("{title} process has started"))
        }
        Life::Stopping { .. } | Life::Held(_) | Life::Exited(_) => {
            (false, "Stopped", format!("{title} is not running"))
        }
        _ => (false, "Starting", format!("{title} does not answer yet")),
    }
}

fn stopped(database: &DrivenDatabase, state: &State) -> Reading {
    let title = database.names.title;
    match state.life {
        Life::Held(Held::Fenced) => (true, "Fenced", format!("{title} is stopped")),
        Life::Held(_) => (true, "Stopped", format!("{title} is stopped")),
        _ => (false, "NotRequested", String::new()),
    }
}

/// Once true the condition stays true, through the end of this pilot and the start of the next: the
/// controller would take a node that is no longer decommissioned for one that has data.
fn decommissioned(state: &State, facts: &Facts) -> Reading {
    if state.is_gone() {
        (true, "NodeDecommissioned", "the node left its database cluster".into())
    } else if state.want() == Some(Want::Decommissioned) || state.is_decommissioning() {
        let progress = facts.decommission.as_ref().and_then(|moving| moving.message.clone());
        let message = facts.refused.clone().or(progress);
        (false, "NodeDecommissioning", message.unwrap_or_else(|| "data are moved away".into()))
    } else {
        (false, "NotRequested", String::new())
    }
}

/// The one of these reasons for which the last process ended.
fn ended_as(facts: &Facts, ends: &[&'static str]) -> Option<&'static str> {
    let reason = facts.termination.as_ref()?.reason.as_deref()?;
    ends.iter().find(|known| **known == reason).copied()
}

fn preflight(state: &State, facts: &Facts) -> Option<Reading> {
    if let (Life::Up(_), Some(full)) = (&state.life, &facts.full) {
        return Some((false, "DiskFull", full.clone()));
    }
    let failed = facts.preflight.as_ref()?;
    Some(match failed.first() {
        None => (true, "PreflightPassed", "every check passed".into()),
        Some(first) => (false, first.reason, joined(failed.iter())),
    })
}

/// Other pilots wait for this condition before one of them founds a new database cluster.
fn holds(facts: &Facts) -> Option<Reading> {
    Some(if facts.holds? {
        (true, "HoldsData", "data of a database lie on the volume".into())
    } else {
        (false, "Empty", "no data of a database lie on the volume".into())
    })
}

fn config(facts: &Facts) -> Option<Reading> {
    if let Some(why) = &facts.rejected {
        return Some((false, "ConfigRejected", why.clone()));
    }
    let running = facts.running_hash.as_ref()?;
    Some(match &facts.wanted_hash {
        Some(wanted) if wanted != running => {
            (false, "RestartPending", "a restart will apply the new configuration".into())
        }
        _ => (true, "ConfigCurrent", "the process runs with the wanted configuration".into()),
    })
}

fn prepared(told: &Preparation, facts: &Facts) -> Option<Reading> {
    Some(match facts.preparation.as_ref()? {
        Ok(()) => (true, told.current, "everything that the spec lists is in place".into()),
        Err(why) => (false, told.failed, why.clone()),
    })
}

/// Only while the pilot's own state files cannot be read or written.
fn saved(state: &State, facts: &Facts) -> Option<Reading> {
    let why = facts.observation.unsaved.as_ref().filter(|_| matches!(state.life, Life::Up(_)))?;
    Some((false, "StateNotSaved", format!("{why}; the database is left alone")))
}

/// Only while the database refuses writes for want of room. A database whose volume is nearly full
/// still takes them, and `PreflightPassed` says so.
fn writable(state: &State, facts: &Facts) -> Option<Reading> {
    let why = facts.observation.refuses_writes.clone().filter(|_| is_ready(state))?;
    Some((false, "DiskFull", why))
}

/// Only while another program lies in the place of the pilot's own.
fn successor(facts: &Facts) -> Option<Reading> {
    Some(match facts.successor.as_ref()? {
        Successor::Pending(what) => (false, "TakeoverPending", what.clone()),
        Successor::Refused(why) => {
            (false, "TakeoverRefused", format!("the new program cannot take over: {why}"))
        }
        Successor::LeftAside => {
            (false, "TakeoverForbidden", "pilotUpdate is Never: a new program is left aside".into())
        }
    })
}

/// What every one of these checks found.
pub fn joined<'a>(failed: impl Iterator<Item = &'a FailedCheck>) -> String {
    failed.map(|check| check.message.as_str()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pilot::{
        database::EXAMPLE,
        driver::{Role, StopPlan},
        node::machine::{Event, Limits},
    };

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn limits() -> Limits {
        let [grace, silence] = [30, 90].map(Duration::from_secs);
        Limits { grace, silence, stop: StopPlan::DEFAULT, dump: None }
    }

    fn fresh() -> State {
        State::new(limits(), false)
    }

    fn find<'a>(status: &'a PilotStatus, type_: &str) -> (&'a str, &'a str, i64) {
        let found = status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
        (&found.status, &found.reason, found.last_transition_time.0.as_second())
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let facts = Facts::default();
        let first = status(&EXAMPLE, &fresh(), &facts, &[], &at(1));
        let second = status(&EXAMPLE, &fresh(), &facts, &first.conditions, &at(2));
        assert_eq!(find(&second, "Ready"), ("False", "Starting", 1));
        let mut state = fresh();
        for event in [
            Event::Intent { want: Want::Running, restart: None, changed: false },
            Event::PreflightPassed(1),
            Event::Turn { attempt: 1, may_found: false },
            Event::Configured(1),
            Event::Prepared(1),
            Event::Spawned { pid: 7 },
            Event::Observed { alive: true, serving: true },
        ] {
            state = state.step(event).0;
        }
        let third = status(&EXAMPLE, &state, &facts, &second.conditions, &at(3));
        assert_eq!(find(&third, "Ready"), ("True", "ExampleStarted", 3));
        assert_eq!(third.phase, Some(PilotPhase::Running));
    }

    #[test]
    fn a_node_that_left_says_so_while_its_pilot_starts_and_ends() {
        let mut state = State::new(limits(), true);
        let told = |state: &State| status(&EXAMPLE, state, &Facts::default(), &[], &at(1));
        assert_eq!(find(&told(&state), "Decommissioned"), ("True", "NodeDecommissioned", 1));
        for event in [
            Event::Intent { want: Want::Decommissioned, restart: None, changed: false },
            Event::Signal(nix::sys::signal::Signal::SIGTERM as i32),
        ] {
            state = state.step(event).0;
            assert_eq!(find(&told(&state), "Decommissioned"), ("True", "NodeDecommissioned", 1));
        }
    }

    #[test]
    fn a_failed_check_is_named_by_ready_and_by_preflight_passed() {
        let mut state = fresh();
        for event in [
            Event::Intent { want: Want::Running, restart: None, changed: false },
            Event::PreflightFailed(1),
        ] {
            state = state.step(event).0;
        }
        let check = FailedCheck { reason: "DiskFull", message: "grow it".into() };
        let facts = Facts { preflight: Some(vec![check]), ..Facts::default() };
        let told = status(&EXAMPLE, &state, &facts, &[], &at(1));
        assert_eq!(find(&told, "Ready"), ("False", "DiskFull", 1));
        assert_eq!(find(&told, "PreflightPassed"), ("False", "DiskFull", 1));
        assert_eq!(told.phase, Some(PilotPhase::Failed));
    }

    fn up() -> State {
        let events = [
            Event::Intent { want: Want::Running, restart: None, changed: false },
            Event::PreflightPassed(1),
            Event::Turn { attempt: 1, may_found: false },
            Event::Configured(1),
            Event::Prepared(1),
            Event::Spawned { pid: 7 },
            Event::Observed { alive: true, serving: true },
        ];
        events.into_iter().fold(fresh(), |state, event| state.step(event).0)
    }

    #[test]
    fn a_full_volume_of_a_running_database_is_told_and_speaks_against_a_stop() {
        let blocker = Blocker {
            predicate: "DiskHeadroom".into(),
            message: "full".into(),
            since: None,
            observed_time: None,
        };
        let full = Some("volume has 1 MiB left".to_owned());
        let facts = Facts { full, headroom: vec![blocker], ..Facts::default() };
        let told = status(&EXAMPLE, &up(), &facts, &[], &at(1));
        assert_eq!(find(&told, "Ready").0, "True", "it serves on");
        assert_eq!(find(&told, "PreflightPassed"), ("False", "DiskFull", 1));
        assert_eq!(told.blockers[0].predicate, "DiskHeadroom");
        let silent = up().step(Event::Observed { alive: true, serving: false }).0;
        let told = status(&EXAMPLE, &silent, &facts, &[], &at(1));
        assert_eq!(find(&told, "Ready"), ("False", "DiskFull", 1));
    }

    #[test]
    fn a_node_that_serves_says_which_role_it_has() {
        let message = |role: Option<Role>| {
            let observation = Observation { role, ..Observation::default() };
            let facts = Facts { observation, ..Facts::default() };
            let told = status(&EXAMPLE, &up(), &facts, &[], &at(1));
            let ready = told.conditions.into_iter().find(|found| found.type_ == "Ready").unwrap();
            ready.message
        };
        assert_eq!(message(None), "Example serves clients");
        assert_eq!(message(Some(Role::Replica)), "Example serves clients and is a replica");
    }

    #[test]
    fn a_database_that_refuses_writes_serves_and_says_so() {
        let refusing = |refuses_writes: Option<String>| {
            let observation = Observation { refuses_writes, ..Observation::default() };
            let facts = Facts { observation, ..Facts::default() };
            let told = status(&EXAMPLE, &up(), &facts, &[], &at(1));
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
        let crashed = up().step(Event::Exited(crate::pilot::process::supervisor::Exit {
            code: Some(3),
            signal: None,
        }));
        let ended = |reason: &str| {
            let termination = Termination { reason: Some(reason.into()), ..Termination::default() };
            let facts = Facts { termination: Some(termination), ..Facts::default() };
            let told = status(&EXAMPLE, &crashed.0, &facts, &[], &at(1));
            (told.phase.clone(), find(&told, "Ready").1.to_owned())
        };
        assert_eq!(ended("ProcessExited"), (Some(PilotPhase::Starting), "ProcessExited".into()));
        assert_eq!(ended("ConfigRejected"), (Some(PilotPhase::Failed), "ConfigRejected".into()));
    }

    #[test]
    fn a_condition_of_one_database_is_true_false_or_unknown() {
        for (status, word) in [(Some(true), "True"), (Some(false), "False"), (None, "Unknown")] {
            let (reason, message) = ("Why".into(), String::new());
            let own = OwnCondition { type_: "CleanupDue", status, reason, message };
            let observation = Observation { conditions: vec![own], ..Observation::default() };
            let facts = Facts { observation, ..Facts::default() };
            let told = status_of(&facts);
            assert_eq!(find(&told, "CleanupDue"), (word, "Why", 1));
        }
    }

    fn status_of(facts: &Facts) -> PilotStatus {
        status(&EXAMPLE, &up(), facts, &[], &at(1))
    }

    #[test]
    fn a_configuration_that_waits_for_a_restart_is_told() {
        let facts = Facts {
            wanted_hash: Some("b".into()),
            running_hash: Some("a".into()),
            ..Facts::default()
        };
        let told = status(&EXAMPLE, &fresh(), &facts, &[], &at(1));
        assert_eq!(find(&told, "ConfigApplied"), ("False", "RestartPending", 1));
    }

    #[test]
    fn a_program_that_lies_in_the_place_of_the_running_one_is_told_until_it_runs() {
        let told = |successor: Option<Successor>| {
            let facts = Facts { successor, program: Some("1-2".into()), ..Facts::default() };
            let told = status(&EXAMPLE, &up(), &facts, &[], &at(1));
            assert_eq!(told.pilot_program.as_deref(), Some("1-2"));
            let found = told.conditions.iter().find(|found| found.type_ == "ProgramCurrent");
            found.map(|found| (found.reason.clone(), found.message.clone()))
        };
        assert_eq!(told(None), None);
        let (reason, message) = told(Some(Successor::Refused("no token".into()))).unwrap();
        assert_eq!(reason, "TakeoverRefused");
        assert!(message.ends_with("no token"), "{message}");
        let pending = told(Some(Successor::Pending("version 1 waits".into())));
        assert_eq!(pending, Some(("TakeoverPending".into(), "version 1 waits".into())));
        assert_eq!(told(Some(Successor::LeftAside)).unwrap().0, "TakeoverForbidden");
    }
}
