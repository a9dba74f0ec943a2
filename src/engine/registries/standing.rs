//! What the status of a Registry says.

use k8s_openapi::jiff::Timestamp;

use super::{PullSecret, RegistryWish, stands};
use crate::{
    api::containership::{Registry, RegistryStatus},
    engine::conditions::{ObjectVerdict, conditions},
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
pub fn standing<'a>(
    registry: &Registry,
    wish: &RegistryWish,
    secret: impl Fn(&str) -> Option<&'a PullSecret>,
    progress: &RegistryProgress,
    now: Timestamp,
) -> RegistryStatus {
    let before = registry.status.clone().unwrap_or_default();
    let namespaces = wish.namespaces.iter().flatten();
    let wanted = namespaces.clone().count();
    let synced = namespaces.filter(|namespace| stands(wish, secret(namespace))).count();
    let counted = format!("{synced}/{wanted}");
    let mut foreign = progress.foreign.clone();
    foreign.sort();
    let (named, more) = (foreign.first(), foreign.len().saturating_sub(1));
    let others = |more: usize| if more > 0 { format!(" (and {more} more)") } else { String::new() };
    let stalled = match (&progress.trouble, named, progress.failures.first()) {
        (Some(RegistryTrouble::Unsupported(why)), ..) => Some(("Unsupported", why.clone())),
        (Some(RegistryTrouble::Credentials(why)), ..) => Some(("CredentialsMissing", why.clone())),
        (Some(RegistryTrouble::Selector(why)), ..) => Some(("SelectorInvalid", why.clone())),
        (None, Some(namespace), _) => Some((
            "ForeignSecret",
            format!(
                "a Secret {:?} that is not Navigator's stays as it is in {namespace}{}",
                wish.name,
                others(more)
            ),
        )),
        (None, None, Some(why)) => {
            Some(("WriteFailed", format!("{why}{}", others(progress.failures.len() - 1))))
        }
        (None, None, None) => None,
    };
    foreign.truncate(NAMED);
    let generation = registry.metadata.generation;
    let reason = if synced == wanted { "Synced" } else { "Syncing" };
    let message = format!("the credentials are in {counted} namespaces");
    let verdict = ObjectVerdict::new(synced == wanted, reason, message, stalled);
    RegistryStatus {
        observed_generation: generation,
        wanted: figure(wanted),
        synced: figure(synced),
        progress: Some(counted),
        foreign_secrets: foreign,
        conditions: conditions(&before.conditions, generation, verdict, now),
    }
}

fn figure(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
