//! Reports on the agent's `Node`: the state of the key file, at changes and every five minutes, and
//! an event when another program changed it.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, warn};

use super::own_node::OwnNode;
use crate::{
    api::containership::{AgentReport, name},
    error::chain,
    runtime::{Shutdown, events::EventNotice},
};

/// Time in which the agent collects changes before it reports them.
const BREATH: Duration = Duration::from_secs(1);
/// Time after which the agent speaks though nothing changed, so that its silence means something.
const HEARTBEAT: Duration = Duration::from_secs(5 * 60);
/// Pause after a first failure, doubled by each further one, up to the longest.
const RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// How the key file stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Hash of what was seen in the file; `None` until it is known what should be in it.
    pub(crate) hash: Option<String>,
    pub(crate) users: String,
    pub(crate) trouble: Option<String>,
    /// Id of the cluster at whose end our keys were taken out of the file.
    pub(crate) cleaned: Option<String>,
    /// How often the agent restored the file.
    pub(crate) drifts: u64,
}

/// Speaks on this machine's Node.
pub(crate) struct NodeReporter(OwnNode);

impl NodeReporter {
    pub(crate) fn new(node: OwnNode) -> Self {
        Self(node)
    }

    pub(crate) async fn run(self, status_receiver: watch::Receiver<Standing>, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.triggered() => {}
            () = self.report_changes(status_receiver) => {}
        }
    }

    /// Reports until the sender of the state is gone. Can be dropped at any point.
    async fn report_changes(self, mut status_receiver: watch::Receiver<Standing>) {
        // The last report, and when the agent repeats it.
        let (mut last_report, mut next_heartbeat): (Option<AgentReport>, _) =
            (None, Instant::now() + HEARTBEAT);
        let (mut retry, mut drifts) = (RETRY, 0);
        loop {
            tokio::select! {
                change = status_receiver.changed() => if change.is_err() { return },
                () = sleep_until(next_heartbeat) => {}
            }
            sleep(BREATH).await;
            let status = status_receiver.borrow_and_update().clone();
            if status.drifts > drifts {
                self.report_drift(status.drifts - drifts).await;
                drifts = status.drifts;
            }
            let now = Timestamp::now();
            let Some(keys) = status.hash else {
                next_heartbeat = Instant::now() + HEARTBEAT;
                continue;
            };
            let report = AgentReport {
                at: Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
                keys,
                users: status.users,
                cleaned: status.cleaned,
                trouble: status.trouble,
            };
            let is_same = |previous_report: &AgentReport| {
                AgentReport { at: previous_report.at.clone(), ..report.clone() } == *previous_report
            };
            if last_report.as_ref().is_some_and(is_same) && Instant::now() < next_heartbeat {
                continue;
            }
            match self.0.set_annotation(name::AGENT, &json!(report).to_string()).await {
                Ok(()) => {
                    debug!(keys = report.keys, "Said how the keys stand");
                    (last_report, retry) = (Some(report), RETRY);
                    next_heartbeat = Instant::now() + HEARTBEAT;
                }
                Err(error) => {
                    warn!(error = %chain(&error), "Failed to say on the node how the keys stand");
                    last_report = None;
                    next_heartbeat = Instant::now() + retry;
                    retry = LONGEST_RETRY.min(2 * retry);
                }
            }
        }
    }

    async fn report_drift(&self, times: u64) {
        let times = if times == 1 { String::new() } else { format!(" {times} times") };
        let note = format!("somebody else changed the file of SSH keys{times}; it is mended");
        self.0.publish_event(&EventNotice::warning("AuthorizedKeysDrift", note)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::{Client, client::Body};
    use serde_json::Value;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_agent_speaks_at_changes_and_every_five_minutes() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, away) = (Arc::clone(&asked), Arc::new(Mutex::new(false)));
        let is_away = Arc::clone(&away);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (seen, away) = (Arc::clone(&seen), *is_away.lock().unwrap());
            async move {
                let what = format!("{} {}", request.method(), request.uri().path());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let read: Value = serde_json::from_slice(&body).unwrap();
                seen.lock().unwrap().push((what, read));
                let code = if away { 500 } else { 200 };
                let answer = if away { "{}".into() } else { body };
                let answer = Response::builder().status(code).body(Body::from(answer.to_vec()));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        let reporter =
            NodeReporter::new(OwnNode::new(Client::new(service, "default"), "m1".to_owned()));
        let (standing, told) = watch::channel(Standing::default());
        let shutdown = Shutdown::new();
        let tasks = crate::runtime::TaskGroup::new(shutdown.clone());
        tasks.spawn("report", reporter.run(told, shutdown.clone()));
        let after = async |seconds| {
            sleep(Duration::from_secs(seconds)).await;
            let asked = std::mem::take(&mut *asked.lock().unwrap());
            let said = asked.iter().map(|(what, body)| {
                let text = body["metadata"]["annotations"]["containership.io/agent"].as_str();
                let report: Option<AgentReport> =
                    text.map(|text| serde_json::from_str(text).unwrap());
                match report {
                    Some(AgentReport { keys, trouble: Some(trouble), .. }) => {
                        format!("{what} {keys} {trouble}")
                    }
                    Some(AgentReport { keys, .. }) => format!("{what} {keys}"),
                    None => format!("{what} {}", body["note"].as_str().unwrap()),
                }
            });
            said.collect::<Vec<_>>()
        };
        let node = "PATCH /api/v1/nodes/m1";
        assert_eq!(after(600).await, [""; 0], "nothing is known yet");
        let set = |hash: &str| standing.send_modify(|now| now.hash = Some(hash.to_owned()));
        set("a");
        set("b");
        assert_eq!(after(2).await, [format!("{node} b")]);
        assert_eq!(after(290).await, [""; 0]);
        assert_eq!(after(20).await, [format!("{node} b")]);
        standing.send_modify(|now| now.drifts += 3);
        let events = "POST /apis/events.k8s.io/v1/namespaces/default/events";
        let note = "somebody else changed the file of SSH keys 3 times; it is mended";
        assert_eq!(after(2).await, [format!("{events} {note}")]);
        *away.lock().unwrap() = true;
        standing.send_modify(|now| now.trouble = Some("t".to_owned()));
        assert!(after(60).await.len() >= 3, "it tries again");
        *away.lock().unwrap() = false;
        assert_eq!(after(70).await, [format!("{node} b t")]);
        shutdown.trigger();
        tasks.join().await;
    }
}
