//! Asks Cassandra for its keyspaces, and for each keyspace something about it.

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
pub(super) async fn all(jolokia: &JolokiaClient) -> Result<Vec<String>, Error> {
    jolokia.attribute(STORAGE_SERVICE, "NonLocalStrategyKeyspaces").await
}

/// Returns the keyspaces that users made.
pub(super) async fn of_users(jolokia: &JolokiaClient) -> Result<Vec<String>, Error> {
    let mut keyspaces = all(jolokia).await?;
    keyspaces.retain(|keyspace| is_users(keyspace));
    Ok(keyspaces)
}

pub(super) fn is_users(keyspace: &str) -> bool {
    !SYSTEM_KEYSPACES.contains(&keyspace)
}

const RANGES: &str = "getRangeToEndpointMap";

/// Asks for the replicas of each range of each of the keyspaces.
pub(super) async fn replicas(
    jolokia: &JolokiaClient,
    keyspaces: Vec<String>,
) -> Result<Vec<(String, QueryAnswer<Value>)>, Error> {
    about(jolokia, RANGES, keyspaces).await
}

/// The open question after an answer to [`replicas`] that is not understood.
pub(super) fn unclear_replicas(keyspace: &str) -> UnansweredQuery {
    UnansweredQuery::new(&format!("{RANGES}({keyspace})"), "answered what is not understood")
}

/// Calls an operation of `StorageService` for each keyspace.
pub(super) async fn about(
    jolokia: &JolokiaClient,
    operation: &str,
    keyspaces: Vec<String>,
) -> Result<Vec<(String, QueryAnswer<Value>)>, Error> {
    let operation = format!("{operation}(java.lang.String)");
    let calls: Vec<_> = keyspaces.iter().map(|one| (&*operation, one.clone())).collect();
    let answers = jolokia.call_each(STORAGE_SERVICE, &calls).await?;
    Ok(keyspaces.into_iter().zip(answers).collect())
}
