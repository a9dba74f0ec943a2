//! On how many machines the keys of a User stand, by what the agents say.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

use super::{is_installed, partition_keys, user_digest};
use crate::{
    api::containership::{AgentReport, User, UserMachines, UserStatus},
    engine::conditions::{ObjectVerdict, build_conditions},
};

/// Minutes without a word after which a machine is silent; agents speak every five.
const WORD_MINUTES: i64 = 15;
/// Minutes in which a machine must have followed a change.
const CHANGE_MINUTES: i64 = 5;
/// Silent machines that the status names, at most.
const NAMED: usize = 100;
/// Silent machines that the line for people names, at most.
const SHOWN: usize = 3;

/// A machine that should have the keys, and what its agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineWord {
    pub name: String,
    /// When the Node was made.
    pub created: Timestamp,
    pub report: Option<AgentReport>,
}

impl MachineWord {
    /// Is the machine silent, by a change at this time that it has followed or not?
    fn is_silent(&self, is_current: bool, changed_at: Timestamp, now: Timestamp) -> bool {
        let has_passed = |since: Timestamp, minutes| {
            now.duration_since(since) >= SignedDuration::from_mins(minutes)
        };
        let last_report = self.report.as_ref().map_or(self.created, |report| report.at.0);
        has_passed(last_report, WORD_MINUTES)
            || !is_current && has_passed(changed_at.max(self.created), CHANGE_MINUTES)
    }
}

/// Returns the status of a User. `hash` is that of the key file as all Users make it.
pub fn build_user_status(
    user: &User,
    hash: &str,
    machines: &[MachineWord],
    now: Timestamp,
) -> UserStatus {
    let (accepted_keys, refused_keys) = partition_keys(&user.spec);
    let name = user.metadata.name.as_deref().unwrap_or_default();
    let digest = user_digest(name, accepted_keys.keys());
    let last_status = user.status.clone().unwrap_or_default();
    let is_unchanged = last_status.digest.as_ref() == Some(&digest);
    let changed_at = last_status.changed_at.filter(|_| is_unchanged).map_or(now, |time| time.0);
    let (mut written_count, mut silent, mut awaited_count) = (0, Vec::new(), 0);
    for machine in machines {
        let is_current =
            machine.report.as_ref().is_some_and(|report| is_installed(report, &digest, hash));
        let is_silent = machine.is_silent(is_current, changed_at, now);
        written_count += usize::from(is_current);
        awaited_count += usize::from(!is_current && !is_silent);
        if is_silent {
            silent.push(machine.name.clone());
        }
    }
    silent.sort();
    let silent_text = (!silent.is_empty()).then(|| {
        let hidden_count = silent.len().saturating_sub(SHOWN);
        let suffix =
            if hidden_count > 0 { format!(" (and {hidden_count} more)") } else { String::new() };
        format!("{}{suffix}", silent[..silent.len().min(SHOWN)].join(", "))
    });
    let progress = format!("{written_count}/{}", machines.len());
    let stalled = match (&silent_text, refused_keys.first()) {
        (Some(silent_names), _) => {
            Some(("MachinesSilent".into(), format!("nothing new is heard of {silent_names}")))
        }
        (None, Some(refused_key)) => {
            Some(("KeysRefused".into(), format!("{}: {}", refused_key.key, refused_key.message)))
        }
        (None, None) => None,
    };
    let is_complete = written_count == machines.len();
    let verdict = ObjectVerdict {
        ready: is_complete && refused_keys.is_empty(),
        reconciling: awaited_count > 0,
        reason: if is_complete { "Written" } else { "Writing" }.into(),
        message: format!("the keys stand on {progress} machines"),
        stalled,
    };
    let generation = user.metadata.generation;
    let conditions = build_conditions(&last_status.conditions, generation, verdict, now);
    silent.truncate(NAMED);
    UserStatus {
        observed_generation: generation,
        keys: to_i32(accepted_keys.len()),
        refused_keys,
        machines: Some(UserMachines {
            wanted: to_i32(machines.len()),
            written: to_i32(written_count),
            silent,
        }),
        progress: Some(progress),
        silent_text,
        digest: Some(digest),
        changed_at: Some(Time(changed_at)),
        conditions,
    }
}

fn to_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
