//! `logs`: what the nodes of a cluster say, of all of them at once where no one is named.

pub mod pretty;

use std::time::Duration;

use futures::{AsyncBufReadExt, FutureExt, TryStreamExt, future::join_all};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{Api, api::LogParams};
use tokio::{sync::mpsc, time::sleep};

use super::find::{Found, Session, name_of};
use crate::{api::v1beta1::Pilot, error::chain};

/// Lines that wait for a reader: of a few nodes, a burst of a second.
const QUEUE: usize = 1000;
/// A pod that restarts is away for longer than this only where nobody follows it any more.
const AGAIN: Duration = Duration::from_secs(2);

/// What is read of a log.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    pub follow: bool,
    /// The last lines only.
    pub tail: Option<i64>,
    /// Of the process before the one that runs.
    pub previous: bool,
    pub since: Option<Duration>,
}

/// Something that is said while logs are read.
#[derive(Debug)]
pub enum Said {
    /// A line of this node's log, without its end.
    Line { node: String, line: String },
    /// A node's log cannot be read, or cannot be read any more.
    Trouble { node: String, why: String },
}

/// The words of a cluster's nodes before the pool: the same in front of every line, so left out.
pub fn short_name<'a>(cluster: &str, node: &'a str) -> &'a str {
    let middle = format!("-{cluster}-");
    node.split_once(&middle).map_or(node, |(_, rest)| rest)
}

impl Session {
    /// What these nodes say, and the work that reads it side by side. It ends when all logs have
    /// ended; with `follow`, when nobody listens any more.
    pub fn logs(
        &self,
        found: &Found,
        pilots: &[Pilot],
        extent: &Extent,
    ) -> (mpsc::Receiver<Said>, impl Future<Output = ()>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let container = self.database(found.kind).map(|database| database.names.container);
        let readers: Vec<_> = pilots
            .iter()
            .map(|pilot| Reader {
                pods: Api::namespaced(self.client.clone(), found.namespace()),
                container: container.map(str::to_owned),
                node: name_of(pilot).to_owned(),
                extent: extent.clone(),
                sender: sender.clone(),
            })
            .collect();
        (receiver, join_all(readers.into_iter().map(Reader::run)).map(drop))
    }
}

struct Reader {
    pods: Api<Pod>,
    container: Option<String>,
    node: String,
    extent: Extent,
    sender: mpsc::Sender<Said>,
}

impl Reader {
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
        let mut told = false;
        while !self.sender.is_closed() {
            let why = match self.read(&params).await {
                Ok(()) if self.extent.follow => None,
                Ok(()) => return,
                Err(why) => Some(why),
            };
            if let Some(why) = why {
                // A pod that comes back is not told of each time that it is looked for.
                if !std::mem::replace(&mut told, true) {
                    let trouble = Said::Trouble { node: self.node.clone(), why };
                    drop(self.sender.send(trouble).await);
                }
                if !self.extent.follow {
                    return;
                }
            } else {
                told = false;
            }
            // What was read already is not read again.
            params.tail_lines = None;
            params.since_seconds = None;
            params.since_time = Some(Timestamp::now());
            tokio::select! {
                () = sleep(AGAIN) => {}
                () = self.sender.closed() => return,
            }
        }
    }

    async fn read(&self, params: &LogParams) -> Result<(), String> {
        let stream = self.pods.log_stream(&self.node, params).await;
        let stream = stream.map_err(|error| super::error::said(&error))?;
        let mut lines = stream.lines();
        while let Some(line) = lines.try_next().await.map_err(|error| chain(&error).to_string())? {
            let line = Said::Line { node: self.node.clone(), line };
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
