//! API keys and tokens, by which users get in without a password. They outlive the user who made them.
//!
//! An engine that has them switched off, or whose license does not allow them, lets nobody in by them:
//! then there are none.

use std::{collections::BTreeSet, time::Duration};

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::SearchClient;
use crate::pilot::{driver::Error, http::HttpAnswer};

const API_KEYS: &str = "/_security/api_key";
const TOKENS: &str = "/_security/oauth2/token";
const NODE_STATE: &str = "/_cluster/state/master_node,blocks?local=true\
                          &filter_path=master_node,blocks.global.1";
/// Limit for an answer about all keys, or about all that one user has.
const ALL: Duration = Duration::from_secs(20);

#[derive(Debug, Deserialize)]
struct NodeStateAnswer {
    master_node: Option<String>,
    /// Why requests are refused, by the number of the reason.
    #[serde(default)]
    blocks: Value,
}

/// The API keys. Of an empty list nothing is left once the answer is filtered.
#[derive(Debug, Deserialize)]
struct ApiKeysAnswer {
    #[serde(default)]
    api_keys: Vec<ApiKey>,
}

#[derive(Debug, Deserialize)]
struct ApiKey {
    /// Who made it.
    username: String,
    #[serde(default)]
    invalidated: bool,
}

#[derive(Debug, Deserialize)]
struct InvalidationAnswer {
    error_count: usize,
}

impl SearchClient {
    /// Returns whether the node follows a master and has the state of the cluster. Before that it knows
    /// of no index, and says that there are no API keys.
    pub async fn has_cluster_state(&self) -> Result<bool, Error> {
        let NodeStateAnswer { master_node, blocks } = self.query(NODE_STATE).await.or_fail()?;
        // Block 1: the state is not recovered.
        Ok(master_node.is_some() && blocks["global"]["1"].is_null())
    }

    /// Returns the users of a realm who have API keys that let in.
    pub async fn owners_of_api_keys(&self, realm: &str) -> Result<BTreeSet<String>, Error> {
        let path = format!(
            "{API_KEYS}?realm_name={realm}&filter_path=api_keys.username,api_keys.invalidated"
        );
        let answer = self.send(Method::GET, &path, None, ALL).await?;
        if is_off(&answer) {
            return Ok(BTreeSet::new());
        }
        let ApiKeysAnswer { api_keys } = answer.parse_body(API_KEYS).or_fail()?;
        let valid_keys = api_keys.into_iter().filter(|key| !key.invalidated);
        Ok(valid_keys.map(|key| key.username).collect())
    }

    /// Invalidates all API keys of a user.
    pub async fn invalidate_api_keys(&self, realm: &str, user: &str) -> Result<(), Error> {
        self.invalidate_credentials(API_KEYS, realm, user).await
    }

    /// Invalidates all tokens of a user, also those by which it gets others.
    pub async fn invalidate_tokens(&self, realm: &str, user: &str) -> Result<(), Error> {
        self.invalidate_credentials(TOKENS, realm, user).await
    }

    async fn invalidate_credentials(
        &self,
        path: &str,
        realm: &str,
        user: &str,
    ) -> Result<(), Error> {
        let owner_filter = json!({"realm_name": realm, "username": user});
        let mut answer = self.send(Method::DELETE, path, Some(&owner_filter), ALL).await?;
        if is_off(&answer) {
            return Ok(());
        }
        if answer.status == http::StatusCode::NOT_FOUND && answer.body["error_count"] == 0 {
            // From 8.0 on a user without tokens is answered so.
            answer.status = http::StatusCode::OK;
        }
        let InvalidationAnswer { error_count } = answer.parse_body(path).or_fail()?;
        if error_count > 0 {
            return Err(Error::NotYet(format!("{path}: {error_count} of {user} remain")));
        }
        Ok(())
    }
}

/// Does the engine say that it has this switched off, or has no license for it? A lack of rights is
/// answered with the same status and without these fields.
fn is_off(answer: &HttpAnswer) -> bool {
    let error = &answer.body["error"];
    answer.status.is_client_error()
        && (error["disabled.feature"].is_string() || error["license.expired.feature"].is_string())
}
