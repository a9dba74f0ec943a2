//! Asks Cassandra for its keyspaces, and for each keyspace something about it.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::node_view::STORAGE_SERVICE;
use crate::{
    databases::cassandra::facts::SYSTEM_KEYSPACES,
    pilot::{
        clients::jolokia::JolokiaClient,
        driver::Error,
        query_answer::{QueryAnswer, UnansweredQuery},
    },
};

/// Returns the keyspaces that the nodes of the ring share, Cassandra's own among them.
pub(super) async fn list_keyspaces(jolokia: &JolokiaClient) -> Result<Vec<String>, Error> {
    jolokia.read_attribute(STORAGE_SERVICE, "NonLocalStrategyKeyspaces").await
}

/// Returns the keyspaces that users made.
pub(super) async fn list_user_keyspaces(jolokia: &JolokiaClient) -> Result<Vec<String>, Error> {
    let mut keyspaces = list_keyspaces(jolokia).await?;
    keyspaces.retain(|keyspace| is_users(keyspace));
    Ok(keyspaces)
}

pub(super) fn is_users(keyspace: &str) -> bool {
    !SYSTEM_KEYSPACES.contains(&keyspace)
}

const RANGES: &str = "getRangeToEndpointMap";

/// The operation that describes how a keyspace is replicated: its strategy and the options.
pub(super) const REPLICATION: &str = "getKeyspaceReplicationInfo";

/// Asks for the replicas of each range, for each group of keyspaces that are replicated alike: a
/// strategy places the replicas by its options and the tokens of the ring alone
/// (`AbstractReplicationStrategy.calculateNaturalReplicas`). The map of one keyspace has a line for each
/// token of the ring, and many keyspaces would exceed what an answer may hold.
pub(super) async fn read_replicas(
    jolokia: &JolokiaClient,
    keyspaces: Vec<String>,
) -> Result<Vec<KeyspaceReplicas>, Error> {
    let mut groups: Vec<(Vec<String>, BTreeMap<String, usize>)> = Vec::new();
    let mut group_indexes = HashMap::new();
    for (keyspace, info) in call_for_keyspaces(jolokia, REPLICATION, keyspaces).await? {
        // A keyspace whose replication is not known is asked for by itself.
        let info = info.into_option();
        let info = info.as_ref().and_then(Value::as_str);
        let factors = info.map(replication_factors).unwrap_or_default();
        match info.filter(|_| !factors.is_empty()) {
            Some(info) => {
                let group = *group_indexes.entry(info.to_owned()).or_insert(groups.len());
                if group == groups.len() {
                    groups.push((Vec::new(), factors));
                }
                groups[group].0.push(keyspace);
            }
            None => groups.push((vec![keyspace], factors)),
        }
    }
    let first_keyspaces = groups.iter().map(|(group, _)| group[0].clone()).collect();
    let answers = call_for_keyspaces(jolokia, RANGES, first_keyspaces).await?;
    let answered_groups = groups.into_iter().zip(answers);
    Ok(answered_groups
        .map(|((keyspaces, factors), (_, ranges))| KeyspaceReplicas { keyspaces, factors, ranges })
        .collect())
}

/// The replicas of keyspaces that are replicated alike.
#[derive(Debug)]
pub(super) struct KeyspaceReplicas {
    pub(super) keyspaces: Vec<String>,
    /// See [`replication_factors`]; empty where these are not known.
    pub(super) factors: BTreeMap<String, usize>,
    /// The nodes that have each range.
    pub(super) ranges: QueryAnswer<Value>,
}

/// Returns the replication factors in `…{class=…, replication_factor=3}` or `{eu=3/1, us=2}`, by
/// name.
pub(super) fn replication_factors(info: &str) -> BTreeMap<String, usize> {
    info.split(|c: char| c.is_whitespace() || "{},()[]\"'".contains(c))
        .filter_map(|part| part.split_once(['=', ':']))
        .filter_map(|(name, value)| {
            let digits = value.split('/').next().unwrap_or(value);
            Some((name.to_owned(), digits.parse().ok()?))
        })
        .collect()
}

/// The open question after an answer to [`read_replicas`] that is not understood.
pub(super) fn unclear_replicas(keyspace: &str) -> UnansweredQuery {
    UnansweredQuery::new(&format!("{RANGES}({keyspace})"), "answered what is not understood")
}

/// Calls an operation of `StorageService` for each keyspace.
pub(super) async fn call_for_keyspaces(
    jolokia: &JolokiaClient,
    operation: &str,
    keyspaces: Vec<String>,
) -> Result<Vec<(String, QueryAnswer<Value>)>, Error> {
    let operation = format!("{operation}(java.lang.String)");
    let calls: Vec<_> = keyspaces.iter().map(|keyspace| (&*operation, keyspace.clone())).collect();
    let answers = jolokia.call_each(STORAGE_SERVICE, &calls).await?;
    Ok(keyspaces.into_iter().zip(answers).collect())
}
