//! On how many machines the keys of a User stand, by what the agents say.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

use super::{digest, sorted_out, stands};
use crate::{
    api::containership::{AgentReport, User, UserMachines, UserStatus},
    engine::conditions::{ObjectVerdict, conditions},
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
    fn is_silent(&self, followed: bool, changed: Timestamp, now: Timestamp) -> bool {
        let passed = |since: Timestamp, minutes| {
            now.duration_since(since) >= SignedDuration::from_mins(minutes)
        };
        let word = self.report.as_ref().map_or(self.created, |report| report.at.0);
        passed(word, WORD_MINUTES) || !followed && passed(changed.max(self.created), CHANGE_MINUTES)
    }
}

/// Returns the status of a User. `hash` is that of the key file as all Users make it.
pub fn standing(user: &User, hash: &str, machines: &[MachineWord], now: Timestamp) -> UserStatus {
    let (accepted, refused_keys) = sorted_out(&user.spec);
    let name = user.metadata.name.as_deref().unwrap_or_default();
    let digest = digest(name, accepted.keys());
    let before = user.status.clone().unwrap_or_default();
    let same = before.digest.as_ref() == Some(&digest);
    let changed = before.changed_at.filter(|_| same).map_or(now, |time| time.0);
    let (mut written, mut silent, mut awaited) = (0, Vec::new(), 0);
    for machine in machines {
        let followed = machine.report.as_ref().is_some_and(|one| stands(one, &digest, hash));
        let is_silent = machine.is_silent(followed, changed, now);
        written += usize::from(followed);
        awaited += usize::from(!followed && !is_silent);
        if is_silent {
            silent.push(machine.name.clone());
        }
    }
    silent.sort();
    let silent_text = (!silent.is_empty()).then(|| {
        let more = silent.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        format!("{}{more}", silent[..silent.len().min(SHOWN)].join(", "))
    });
    let progress = format!("{written}/{}", machines.len());
    let stalled = match (&silent_text, refused_keys.first()) {
        (Some(silent), _) => {
            Some(("MachinesSilent".into(), format!("nothing new is heard of {silent}")))
        }
        (None, Some(refused)) => {
            Some(("KeysRefused".into(), format!("{}: {}", refused.key, refused.message)))
        }
        (None, None) => None,
    };
    let stand = written == machines.len();
    let verdict = ObjectVerdict {
        ready: stand && refused_keys.is_empty(),
        reconciling: awaited > 0,
        reason: if stand { "Written" } else { "Writing" }.into(),
        message: format!("the keys stand on {progress} machines"),
        stalled,
    };
    let generation = user.metadata.generation;
    let conditions = conditions(&before.conditions, generation, verdict, now);
    silent.truncate(NAMED);
    UserStatus {
        observed_generation: generation,
        keys: figure(accepted.len()),
        refused_keys,
        machines: Some(UserMachines {
            wanted: figure(machines.len()),
            written: figure(written),
            silent,
        }),
        progress: Some(progress),
        silent_text,
        digest: Some(digest),
        changed_at: Some(Time(changed)),
        conditions,
    }
}

fn figure(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
