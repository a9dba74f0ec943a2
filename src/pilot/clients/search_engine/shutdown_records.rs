//! The node shutdown API: records of nodes that are away on purpose, where the server has them.

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{PATIENCE, SearchClient};
use crate::pilot::{
    driver::Error,
    query_answer::{QueryAnswer, UnansweredQuery},
};

const RECORDS: &str = "/_nodes/shutdown";

/// A record of the node shutdown API.
#[derive(Clone, Debug, Deserialize)]
pub struct ShutdownRecord {
    pub node_id: String,
    #[serde(default)]
    pub reason: String,
}

#[derive(Debug, Deserialize)]
struct ShutdownAnswer {
    nodes: Value,
}

impl ShutdownAnswer {
    /// Returns the records; `None` where the server has no node shutdown API: it then takes the
    /// request for one about nodes with the id `shutdown`, of which there are none.
    fn into_records(self) -> QueryAnswer<Option<Vec<ShutdownRecord>>> {
        match self.nodes {
            Value::Object(_) => QueryAnswer::Said(None),
            list => match Vec::deserialize(list) {
                Ok(records) => QueryAnswer::Said(Some(records)),
                Err(error) => QueryAnswer::Not(UnansweredQuery::new(RECORDS, error.to_string())),
            },
        }
    }
}

impl SearchClient {
    /// Returns the shutdown records; `None` where the server has no node shutdown API.
    pub async fn shutdown_records(&self) -> Result<Option<Vec<ShutdownRecord>>, Error> {
        Ok(self.query(RECORDS).await.and_then(ShutdownAnswer::into_records).or_fail()?)
    }

    /// Records that a node restarts, and for how long its shard copies are waited for.
    pub async fn record_restart(&self, id: &str, reason: &str, delay: &str) -> Result<(), Error> {
        let body = json!({"type": "restart", "reason": reason, "allocation_delay": delay});
        let path = format!("/_nodes/{id}/shutdown");
        self.send_change(Method::PUT, &path, Some(&body), PATIENCE).await.map(drop)
    }

    pub async fn remove_record(&self, id: &str) -> Result<(), Error> {
        let path = format!("/_nodes/{id}/shutdown");
        self.send_change(Method::DELETE, &path, None, PATIENCE).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_no_records_is_told_from_who_has_none() {
        let read = |text: &str| {
            let answer = serde_json::from_str::<ShutdownAnswer>(text).unwrap();
            answer.into_records().or_fail().map(|records| records.map(|records| records.len()))
        };
        assert_eq!(read(r#"{"nodes": []}"#), Ok(Some(0)));
        let other = r#"{"_nodes": {"total": 0}, "cluster_name": "x", "nodes": {}}"#;
        assert_eq!(read(other), Ok(None));
        let one = r#"{"nodes": [{"node_id": "n", "type": "RESTART", "reason": "mine"}]}"#;
        assert_eq!(read(one), Ok(Some(1)));
        assert!(read(r#"{"nodes": [{"type": "RESTART"}]}"#).is_err());
        assert!(read(r#"{"nodes": null}"#).is_err());
        assert!(serde_json::from_str::<ShutdownAnswer>("{}").is_err());
    }
}
