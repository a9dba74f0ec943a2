//! `logs`: reads the logs of a cluster's nodes, of all nodes at once where none is named.

pub mod pretty;

use std::time::Duration;

use futures::{AsyncBufReadExt, FutureExt, TryStreamExt, future::join_all};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{Api, api::LogParams};
use tokio::{sync::mpsc, time::sleep};

use super::lookup::{ClusterObject, PluginSession, name_of};
use crate::{api::v1beta1::Pilot, error::chain};

/// Capacity of the queue of lines to print: a second's burst from a few nodes.
const QUEUE: usize = 1000;
/// Pause before a log that ended, as at a restart of its pod, is followed again.
const AGAIN: Duration = Duration::from_secs(2);

/// Selects what is read of a log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    pub follow: bool,
    /// Number of lines from the end; the whole log when absent.
    pub tail: Option<i64>,
    /// Read the log of the container that ran before the present one.
    pub previous: bool,
    pub since: Option<Duration>,
}

/// A line of a log, or a failure to read a log.
#[derive(Debug)]
pub enum LogOutput {
    /// A line of this node's log, without its line end.
    Line { node: String, line: String },
    /// A node's log cannot be read, or cannot be read any more.
    Trouble { node: String, why: String },
}

/// Returns a node's name without the words before the pool, which are the same for all nodes.
pub fn short_name<'a>(cluster: &str, node: &'a str) -> &'a str {
    let middle = format!("-{cluster}-");
    node.split_once(&middle).map_or(node, |(_, rest)| rest)
}

impl PluginSession {
    /// Returns a receiver of the lines that these nodes log, and a future that reads their logs in
    /// parallel. The future ends when all logs have ended; with `follow`, when the receiver is
    /// dropped.
    pub fn stream_logs(
        &self,
        cluster: &ClusterObject,
        pilots: &[Pilot],
        extent: &LogOptions,
    ) -> (mpsc::Receiver<LogOutput>, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let container = self.database(cluster.kind).map(|database| database.names.container);
        let readers: Vec<_> = pilots
            .iter()
            .map(|pilot| LogReader {
                pods: Api::namespaced(self.client.clone(), cluster.namespace()),
                container: container.map(str::to_owned),
                node: name_of(pilot).to_owned(),
                extent: extent.clone(),
                sender: sender.clone(),
            })
            .collect();
        (receiver, join_all(readers.into_iter().map(LogReader::run)).map(drop))
    }
}

struct LogReader {
    pods: Api<Pod>,
    container: Option<String>,
    node: String,
    extent: LogOptions,
    sender: mpsc::Sender<LogOutput>,
}

impl LogReader {
    async fn run(self) {
        let mut params = LogParams {
            container: self.container.clone(),
            follow: self.extent.follow,
            tail_lines: self.extent.tail,
            previous: self.extent.previous,
            since_seconds: self
                .extent
                .since
                .map(|since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX)),
            ..LogParams::default()
        };
        let mut is_reported = false;
        while !self.sender.is_closed() {
            let reason = match self.read_log(&params).await {
                Ok(()) if self.extent.follow => None,
                Ok(()) => return,
                Err(message) => Some(message),
            };
            if let Some(reason) = reason {
                // Repeated failures to find a pod that restarts are reported once.
                if !std::mem::replace(&mut is_reported, true) {
                    let trouble = LogOutput::Trouble { node: self.node.clone(), why: reason };
                    drop(self.sender.send(trouble).await);
                }
                if !self.extent.follow {
                    return;
                }
            } else {
                is_reported = false;
            }
            // Lines that were read already are not read again.
            params.tail_lines = None;
            params.since_seconds = None;
            params.since_time = Some(Timestamp::now());
            tokio::select! {
                () = sleep(AGAIN) => {}
                () = self.sender.closed() => return,
            }
        }
    }

    async fn read_log(&self, params: &LogParams) -> Result<(), String> {
        let stream = self.pods.log_stream(&self.node, params).await;
        let stream = stream.map_err(|error| super::error::server_message(&error))?;
        let mut lines = stream.lines();
        while let Some(line) = lines.try_next().await.map_err(|error| chain(&error).to_string())? {
            let line = LogOutput::Line { node: self.node.clone(), line };
            if self.sender.send(line).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_begins_with_the_pool() {
        assert_eq!(short_name("demo", "ex-demo-ring-0"), "ring-0");
        assert_eq!(short_name("demo", "other"), "other");
    }
}
