//! What the status of a Registry says.

use k8s_openapi::jiff::Timestamp;

use super::{PullSecret, RegistryWish, is_current};
use crate::{
    api::containership::{Registry, RegistryStatus},
    engine::conditions::{ObjectVerdict, build_conditions},
};

/// Namespaces that the status names, at most.
const NAMED: usize = 20;

/// What keeps a Registry from its work as a whole, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryTrouble {
    /// Of a provider that Navigator does not know how to ask.
    Unsupported(String),
    /// Its credentials are missing, or are none.
    Credentials(String),
    /// Its selector cannot be read.
    Selector(String),
}

/// How far a Registry is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryProgress {
    pub trouble: Option<RegistryTrouble>,
    /// Namespaces with a Secret of its name that is not ours.
    pub foreign: Vec<String>,
    /// Writes that failed, as `namespace: why`.
    pub failures: Vec<String>,
}

/// Returns the status of a Registry. `secret` finds the Secret of ours in a namespace.
pub fn build_registry_status<'a>(
    registry: &Registry,
    wish: &RegistryWish,
    secret: impl Fn(&str) -> Option<&'a PullSecret>,
    progress: &RegistryProgress,
    now: Timestamp,
) -> RegistryStatus {
    let last_status = registry.status.clone().unwrap_or_default();
    let namespaces = wish.namespaces.iter().flatten();
    let desired_count = namespaces.clone().count();
    let synced_count = namespaces.filter(|namespace| is_current(wish, secret(namespace))).count();
    let progress_text = format!("{synced_count}/{desired_count}");
    let mut foreign = progress.foreign.clone();
    foreign.sort();
    let (first_foreign, other_count) = (foreign.first(), foreign.len().saturating_sub(1));
    let suffix = |more: usize| if more > 0 { format!(" (and {more} more)") } else { String::new() };
    let stalled = match (&progress.trouble, first_foreign, progress.failures.first()) {
        (Some(RegistryTrouble::Unsupported(message)), ..) => Some(("Unsupported", message.clone())),
        (Some(RegistryTrouble::Credentials(message)), ..) => {
            Some(("CredentialsMissing", message.clone()))
        }
        (Some(RegistryTrouble::Selector(message)), ..) => {
            Some(("SelectorInvalid", message.clone()))
        }
        (None, Some(namespace), _) => Some((
            "ForeignSecret",
            format!(
                "a Secret {:?} that is not Navigator's stays as it is in {namespace}{}",
                wish.name,
                suffix(other_count)
            ),
        )),
        (None, None, Some(failure)) => {
            Some(("WriteFailed", format!("{failure}{}", suffix(progress.failures.len() - 1))))
        }
        (None, None, None) => None,
    };
    foreign.truncate(NAMED);
    let generation = registry.metadata.generation;
    let reason = if synced_count == desired_count { "Synced" } else { "Syncing" };
    let message = format!("the credentials are in {progress_text} namespaces");
    let verdict = ObjectVerdict::new(synced_count == desired_count, reason, message, stalled);
    RegistryStatus {
        observed_generation: generation,
        wanted: to_i32(desired_count),
        synced: to_i32(synced_count),
        progress: Some(progress_text),
        foreign_secrets: foreign,
        conditions: build_conditions(&last_status.conditions, generation, verdict, now),
    }
}

fn to_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
