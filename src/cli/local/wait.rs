//! Shows how clusters come up, until they are ready: a table that is drawn again on a terminal,
//! and a line for each change elsewhere.

use std::{collections::HashMap, io::IsTerminal, time::Duration};

use kube::Client;
use tokio::time::{Instant, sleep, timeout};

use super::{
    ANSWER, CommandFailure,
    cluster_table::{ClusterSummary, read_clusters, text_of},
    daemon_pid, print_text,
};
use crate::{database::DatabaseList, local::state_folder::StateFolder};

const EVERY: Duration = Duration::from_millis(500);
/// How long a cluster must be stalled for a person before the wait ends.
const STALLED: Duration = Duration::from_secs(10);
/// Reasons of the condition Stalled that time may mend: a machine that is busy with something else
/// starves a node for as long, and then the node starts.
const PASSING_REASONS: [&str; 3] = ["NodesNotReady", "SyncFailed", "ProgressDeadlineExceeded"];

/// Waits until the named clusters are ready, or all clusters where none is named.
pub(super) async fn wait_until_ready(
    client: &Client,
    databases: DatabaseList,
    folder: &StateFolder,
    cluster_keys: &[(String, String, String)],
    limit: Duration,
) -> Result<(), CommandFailure> {
    let started_at = Instant::now();
    let mut display = ProgressDisplay::default();
    let mut stalled_since = None;
    loop {
        let response = timeout(ANSWER, read_clusters(client, databases, folder)).await;
        let mut clusters = match response.unwrap_or_else(|_| Err(CommandFailure::new("no answer")))
        {
            Ok(clusters) => clusters,
            // A daemon that runs answers again.
            Err(failure) if started_at.elapsed() > limit || daemon_pid(folder)?.is_none() => {
                return Err(failure);
            }
            Err(_) => {
                sleep(EVERY).await;
                continue;
            }
        };
        clusters.retain(|cluster| {
            let key = (cluster.kind.clone(), cluster.namespace.clone(), cluster.name.clone());
            cluster_keys.is_empty() || cluster_keys.contains(&key)
        });
        display.show(&clusters)?;
        if clusters.len() >= cluster_keys.len() && clusters.iter().all(|cluster| cluster.ready) {
            return Ok(());
        }
        let stalled_cluster = clusters.iter().find(|cluster| needs_person(cluster));
        stalled_since = stalled_cluster.and(stalled_since.or_else(|| Some(Instant::now())));
        if let Some(cluster) =
            stalled_cluster.filter(|_| stalled_since.is_some_and(|since| since.elapsed() > STALLED))
        {
            let reason = cluster.condition.as_deref().unwrap_or_default();
            let ClusterSummary { kind, namespace, name, .. } = cluster;
            return Err(CommandFailure::new(format!(
                "{kind} {namespace}/{name} does not go on: {reason}"
            )));
        }
        if started_at.elapsed() > limit {
            let seconds = limit.as_secs();
            let reason = clusters.iter().find_map(|cluster| cluster.condition.as_deref());
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            return Err(CommandFailure::new(format!(
                "not ready after {seconds} s{reason}; it goes on: look with `navigator local status`"
            )));
        }
        sleep(EVERY).await;
    }
}

/// Is the cluster stalled for a reason that only a person can end?
fn needs_person(cluster: &ClusterSummary) -> bool {
    cluster.condition.is_some() && !PASSING_REASONS.contains(&cluster.stall_reason.as_str())
}

#[derive(Default)]
struct ProgressDisplay {
    /// Number of lines of the table that was drawn last.
    lines: usize,
    table: String,
    told: HashMap<String, String>,
}

impl ProgressDisplay {
    fn show(&mut self, clusters: &[ClusterSummary]) -> Result<(), CommandFailure> {
        if std::io::stdout().is_terminal() {
            let table = text_of(clusters);
            if table == self.table {
                return Ok(());
            }
            // Moves up to the table's first line, and clears the screen from there.
            let cursor_up =
                if self.lines > 0 { format!("\x1b[{}A\x1b[J", self.lines) } else { String::new() };
            print_text(&format!("{cursor_up}{table}"))?;
            self.lines = table.lines().count();
            self.table = table;
            return Ok(());
        }
        for line in self.changed_lines(clusters) {
            print_text(&format!("{line}\n"))?;
        }
        Ok(())
    }

    /// Returns a line for each cluster or node that changed since the last call.
    fn changed_lines(&mut self, clusters: &[ClusterSummary]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut push_change = |key: String, text: String| {
            if self.told.get(&key) != Some(&text) {
                lines.push(format!("{key}: {text}"));
                self.told.insert(key, text);
            }
        };
        for cluster in clusters {
            for member in &cluster.members {
                let ready = if member.ready { ", ready" } else { "" };
                let separator = if member.address.is_empty() { "" } else { " at " };
                let text = format!("{}{ready}{separator}{}", member.state, member.address);
                push_change(format!("{}/{}", cluster.namespace, member.pod), text);
            }
            let ClusterSummary { kind, namespace, name, nodes, .. } = cluster;
            let ready = if cluster.ready { "ready" } else { "not ready" };
            push_change(format!("{kind} {namespace}/{name}"), format!("{ready}, {nodes} nodes"));
        }
        for cluster in clusters {
            let ClusterSummary { kind, namespace, name, stall_reason, .. } = cluster;
            // Once for each reason: a crash loop has another message with each try.
            let key = format!("stall of {kind} {namespace}/{name}");
            let last_reason = self.told.insert(key, stall_reason.clone());
            if let Some(message) = &cluster.condition
                && last_reason.as_ref() != Some(stall_reason)
            {
                lines.push(format!("{kind} {namespace}/{name}: {stall_reason}: {message}"));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;

    use super::*;
    use crate::cli::local::cluster_table::MemberSummary;

    static TRIES: AtomicUsize = AtomicUsize::new(0);

    #[tokio::test]
    async fn a_lost_answer_ends_the_wait_only_where_no_daemon_runs() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(place.path().to_owned());
        let service = tower::service_fn(async |_: http::Request<Body>| {
            if TRIES.fetch_add(1, Ordering::Relaxed) < 2 {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
            }
            let list = r#"{"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []}"#;
            Ok(http::Response::new(Body::from(list.as_bytes().to_vec())))
        });
        let client = Client::new(service, "default");
        let limit = Duration::from_secs(60);
        let ended = wait_until_ready(&client, &[], &folder, &[], limit).await.unwrap_err();
        assert!(ended.text.contains("connection reset"), "{}", ended.text);
        let _daemon = folder.lock().unwrap();
        wait_until_ready(&client, &[], &folder, &[], limit).await.unwrap();
        assert!(TRIES.load(Ordering::Relaxed) > 2);
    }

    /// Returns a cluster of one node that is on its way.
    fn coming_cluster() -> ClusterSummary {
        let member = MemberSummary {
            pod: "a-0".to_owned(),
            address: String::new(),
            pid: None,
            ready: false,
            dismissed: false,
            state: "Pending".to_owned(),
            restarts: 0,
            version: String::new(),
            message: String::new(),
        };
        ClusterSummary {
            kind: "ExampleCluster".to_owned(),
            namespace: "default".to_owned(),
            name: "demo".to_owned(),
            ready: false,
            health: String::new(),
            nodes: "0/1".to_owned(),
            version: String::new(),
            phase: String::new(),
            message: String::new(),
            condition: None,
            stall_reason: String::new(),
            advice: Vec::new(),
            members: vec![member],
        }
    }

    fn stalled_cluster(reason: &str) -> ClusterSummary {
        let stalled = Some("a-0 crashes again and again".to_owned());
        ClusterSummary { condition: stalled, stall_reason: reason.to_owned(), ..coming_cluster() }
    }

    #[test]
    fn only_what_needs_a_person_ends_the_wait() {
        assert!(!needs_person(&coming_cluster()));
        for passing in ["NodesNotReady", "SyncFailed", "ProgressDeadlineExceeded"] {
            assert!(!needs_person(&stalled_cluster(passing)), "{passing}");
        }
        for lasting in ["UnsupportedVersion", "ImagePullFailed", "PredicateBlocked"] {
            assert!(needs_person(&stalled_cluster(lasting)), "{lasting}");
        }
    }

    #[test]
    fn a_stall_is_told_once_for_each_reason() {
        let mut shown = ProgressDisplay::default();
        let mut cluster = stalled_cluster("NodesNotReady");
        let first = shown.changed_lines(std::slice::from_ref(&cluster));
        assert_eq!(
            first.last().unwrap(),
            "ExampleCluster default/demo: NodesNotReady: a-0 crashes again and again"
        );
        cluster.condition = Some("a-0 crashes for the ninth time".to_owned());
        assert!(shown.changed_lines(&[cluster]).is_empty());
        assert!(shown.changed_lines(&[coming_cluster()]).is_empty());
        assert_eq!(shown.changed_lines(&[stalled_cluster("NodesNotReady")]), first[2..]);
    }

    #[test]
    fn only_what_changed_is_told() {
        let mut cluster = coming_cluster();
        let mut shown = ProgressDisplay::default();
        assert_eq!(
            shown.changed_lines(std::slice::from_ref(&cluster)),
            ["default/a-0: Pending", "ExampleCluster default/demo: not ready, 0/1 nodes"]
        );
        assert!(shown.changed_lines(std::slice::from_ref(&cluster)).is_empty());
        cluster.members[0].address = "127.30.1.1".to_owned();
        assert_eq!(shown.changed_lines(&[cluster]), ["default/a-0: Pending at 127.30.1.1"]);
    }
}
