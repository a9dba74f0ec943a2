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
    databases::elasticsearch::facts::{FILE_REALM, removed_users},
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
    /// Ends the API keys and tokens of users who are not in `users`. `known_users` are names of
    /// those who may have tokens. Fails with [`Error::NotYet`] while some may let in.
    pub(super) async fn revoke_removed(
        &mut self,
        api: &SearchClient,
        users: &UsersDocument,
        known_users: &BTreeSet<String>,
        settle_time: Duration,
    ) -> Result<(), Error> {
        if let Some((failed_at, message)) = &self.failed
            && failed_at.elapsed() < LIST_EVERY
        {
            return Err(Error::NotYet(message.clone()));
        }
        self.failed = None;
        if !api.has_cluster_state().await.map_err(|error| revoke_error(&error))? {
            return Err(revoke_error(&Error::NotYet(
                "the node follows no elected master".to_owned(),
            )));
        }
        let owners =
            api.owners_of_api_keys(FILE_REALM).await.map_err(|error| revoke_error(&error))?;
        let listed_at = Instant::now();
        let candidates: BTreeSet<_> = owners.union(known_users).cloned().collect();
        let removed_names = removed_users(&candidates, users);
        let result = revoke_credentials(api, users, &removed_names, settle_time)
            .await
            .map_err(|error| revoke_error(&error));
        self.failed = result.as_ref().err().map(|error| (listed_at, error.to_string()));
        result
    }
}

/// Ends what users who are gone have. Tokens come first: keys can be made with them.
async fn revoke_credentials(
    api: &SearchClient,
    users: &UsersDocument,
    removed_names: &BTreeSet<String>,
    settle_time: Duration,
) -> Result<(), Error> {
    if removed_names.is_empty() {
        return Ok(());
    }
    sleep(settle_time).await;
    for user in removed_names {
        api.invalidate_tokens(FILE_REALM, user).await?;
    }
    sleep(settle_time).await;
    for user in removed_names {
        api.invalidate_api_keys(FILE_REALM, user).await?;
    }
    let remaining = removed_users(&api.owners_of_api_keys(FILE_REALM).await?, users);
    if !remaining.is_empty() {
        return Err(Error::NotYet(format!("{} have valid keys", join_names(&remaining))));
    }
    info!(
        users = join_names(removed_names),
        "API keys and tokens of users who are gone let nobody in"
    );
    Ok(())
}

fn revoke_error(error: &Error) -> Error {
    let cause = chain(error);
    Error::NotYet(format!("users who are gone may get in by API keys or tokens: {cause}"))
}

fn join_names(users: &BTreeSet<String>) -> String {
    users.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
