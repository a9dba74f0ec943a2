//! Forgets old history of an etcd that no other process compacts.
//!
//! Follows upstream's protocol (storage/etcd3/compact.go), so our servers, and a kube-apiserver on
//! the same etcd, take turns: the server that is first to move `compact_rev_key` on compacts to the
//! revision that it saw one interval ago.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::{
    super::{Result, Revision, Storage},
    ANSWER_WITHIN, EtcdStore, header_revision, with_timeout,
};
use crate::{error::chain, runtime::Shutdown};

/// Upstream's `--etcd-compaction-interval`.
pub const COMPACTION_INTERVAL: Duration = Duration::from_secs(300);

const KEY: &str = "compact_rev_key";

/// What this server saw of `compact_rev_key` one interval ago.
#[derive(Clone, Copy, Debug, Default)]
struct CompactionTurn {
    /// Version of `compact_rev_key`: how often the key was written.
    version: i64,
    revision: Revision,
}

impl EtcdStore {
    /// Compacts once an interval, until shutdown, as long as `is_ours` holds: nothing is written
    /// into a foreign store. History reaches back one to two intervals.
    pub async fn compact_periodically(
        &self,
        interval: Duration,
        is_ours: impl Fn() -> bool + Send,
        shutdown: Shutdown,
    ) {
        let mut last_turn = CompactionTurn::default();
        loop {
            tokio::select! {
                () = sleep(interval) => {}
                () = shutdown.triggered() => return,
            }
            if !is_ours() {
                last_turn = CompactionTurn::default();
                continue;
            }
            match self.take_turn(last_turn).await {
                Ok(turn) => last_turn = turn,
                Err(error) => warn!(error = %chain(&error), "Failed to compact etcd"),
            }
        }
    }

    async fn take_turn(&self, last_turn: CompactionTurn) -> Result<CompactionTurn> {
        let transaction = Txn::new()
            .when(vec![Compare::version(KEY, CompareOp::Equal, last_turn.version)])
            .and_then(vec![TxnOp::put(KEY, last_turn.revision.to_string(), None)])
            .or_else(vec![TxnOp::get(KEY, None)]);
        let answer = with_timeout(ANSWER_WITHIN, self.kv().txn(transaction)).await?;
        let revision = header_revision(answer.header())?;
        if !answer.succeeded() {
            let version = answer.op_responses().into_iter().find_map(|response| match response {
                TxnOpResponse::Get(get_response) => {
                    get_response.kvs().first().map(etcd_client::KeyValue::version)
                }
                TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
            });
            return Ok(CompactionTurn { version: version.unwrap_or_default(), revision });
        }
        let next_turn = CompactionTurn { version: last_turn.version + 1, revision };
        // A server that has just begun knows of no older revision.
        if last_turn.revision > Revision(0) {
            self.compact(last_turn.revision).await?;
            debug!(revision = last_turn.revision.0, "Compacted etcd");
        }
        Ok(next_turn)
    }
}
