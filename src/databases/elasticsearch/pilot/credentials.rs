//! Ends the API keys and tokens of users who are gone: Elasticsearch does not ask whether the user still
//! exists who made them.
//!
//! Each pilot does so once its own node has read users whom it was not to let in before, and after each
//! start: a key can be made through the node that reads them last, so what any one pilot sees before that
//! proves nothing. Keys can be listed, and tell who made them. Tokens cannot: the pilot keeps on the
//! volume whom its node was to let in, until those who are gone have no tokens.
//!
//! Users of other realms are not Navigator's, nor are keys that a user made in the name of another.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::{Instant, sleep};
use tracing::info;

use crate::{
    databases::elasticsearch::facts::{FILE_REALM, removed},
    engine::users::UsersDocument,
    error::chain,
    pilot::{clients::search_engine::SearchClient, driver::Error},
};

/// After how long a key or token is found that was made without waiting for that: Elasticsearch searches
/// what was written a second ago (measured on 7.17: a key made with `refresh=false` was not listed).
pub(super) const SETTLED: Duration = Duration::from_secs(2);
/// Pause between two lists of all keys while some cannot be ended.
const LIST_EVERY: Duration = Duration::from_secs(60);

/// What was found when keys were listed last and could not all be ended.
#[derive(Clone, Debug, Default)]
pub(super) struct CredentialsLook {
    failed: Option<(Instant, String)>,
}

impl CredentialsLook {
    /// Ends the API keys and tokens of users who are not in `users`. `known` are names of those who may
    /// have tokens. Fails with [`Error::NotYet`] while some may let in.
    pub(super) async fn end_of_removed(
        &mut self,
        api: &SearchClient,
        users: &UsersDocument,
        known: &BTreeSet<String>,
        settled: Duration,
    ) -> Result<(), Error> {
        if let Some((when, why)) = &self.failed
            && when.elapsed() < LIST_EVERY
        {
            return Err(Error::NotYet(why.clone()));
        }
        self.failed = None;
        if !api.has_cluster_state().await.map_err(|error| open(&error))? {
            return Err(open(&Error::NotYet("the node follows no elected master".to_owned())));
        }
        let owners = api.owners_of_api_keys(FILE_REALM).await.map_err(|error| open(&error))?;
        let listed = Instant::now();
        let gone: BTreeSet<_> = owners.union(known).cloned().collect();
        let gone = removed(&gone, users);
        let ended = end(api, users, &gone, settled).await.map_err(|error| open(&error));
        self.failed = ended.as_ref().err().map(|error| (listed, error.to_string()));
        ended
    }
}

/// Ends what users who are gone have. Tokens come first: keys can be made with them.
async fn end(
    api: &SearchClient,
    users: &UsersDocument,
    gone: &BTreeSet<String>,
    settled: Duration,
) -> Result<(), Error> {
    if gone.is_empty() {
        return Ok(());
    }
    sleep(settled).await;
    for user in gone {
        api.invalidate_tokens(FILE_REALM, user).await?;
    }
    sleep(settled).await;
    for user in gone {
        api.invalidate_api_keys(FILE_REALM, user).await?;
    }
    let left = removed(&api.owners_of_api_keys(FILE_REALM).await?, users);
    if !left.is_empty() {
        return Err(Error::NotYet(format!("{} have valid keys", names(&left))));
    }
    info!(users = names(gone), "API keys and tokens of users who are gone let nobody in");
    Ok(())
}

fn open(error: &Error) -> Error {
    let why = chain(error);
    Error::NotYet(format!("users who are gone may get in by API keys or tokens: {why}"))
}

fn names(users: &BTreeSet<String>) -> String {
    users.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
