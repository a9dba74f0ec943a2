//! Metrics of clusters, read from the status of each cluster in the caches at each scrape.
//!
//! Only the leader exports them, so that each cluster is counted once. Users choose the names of
//! clusters, and Prometheus keeps a series for each name. So the number of clusters with series is
//! bounded, and clusters that are not Ready come first.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use prometheus::{
    IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::fleet_snapshot::{CachedCluster, FleetSnapshot, SnapshotSource};
use crate::api::picture::ClusterPicture;

/// Limit of clusters that have series of their own: with ten series each at most, they are well
/// below what Prometheus notices.
const CLUSTERS: usize = 500;

/// Conditions that have a series for each cluster.
const CONDITIONS: [&str; 4] = ["Ready", "Available", "Stalled", "PilotsCurrent"];

/// Conditions that have a series if a cluster has them: it encrypts, or requires passwords.
const SECURITY_CONDITIONS: [&str; 2] = ["CertificatesValid", "UsersReady"];

const CLUSTER: [&str; 3] = ["kind", "namespace", "name"];

/// Registers the metrics of clusters in addition to those of the process.
pub(super) fn register_collector(registry: &Registry, source: SnapshotSource) {
    registry
        .register(fleet_collector(source))
        .expect("the registry holds no metric of these names");
}

pub(super) fn fleet_collector(source: SnapshotSource) -> Box<dyn Collector> {
    Box::new(FleetCollector { source, gauges: FleetGauges::new() })
}

struct FleetCollector {
    source: SnapshotSource,
    /// Describes the metrics and holds no series: each scrape fills gauges of its own.
    gauges: FleetGauges,
}

struct FleetGauges {
    clusters: IntGaugeVec,
    left_out: IntGaugeVec,
    condition: IntGaugeVec,
    on_hold: IntGaugeVec,
    wanted: IntGaugeVec,
    ready: IntGaugeVec,
    silent: IntGaugeVec,
    operation: IntGaugeVec,
    blocked: IntGaugeVec,
    certificate_expiry: IntGaugeVec,
}

fn build_gauge(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    IntGaugeVec::new(Opts::new(name, help), labels).expect("the metric's name and labels are valid")
}

impl FleetGauges {
    fn new() -> Self {
        let of_cluster = |name, help| build_gauge(name, help, &CLUSTER);
        Self {
            clusters: build_gauge("navigator_clusters", "Clusters that there are.", &["kind"]),
            left_out: build_gauge(
                "navigator_clusters_left_out",
                "Clusters without figures of their own, because 500 have some.",
                &[],
            ),
            condition: build_gauge(
                "navigator_cluster_condition",
                "1 while the condition of the cluster is True.",
                &["kind", "namespace", "name", "condition"],
            ),
            on_hold: of_cluster(
                "navigator_cluster_on_hold",
                "1 while the cluster is paused, stopped or being deleted on request.",
            ),
            wanted: of_cluster("navigator_cluster_nodes_wanted", "Nodes that the spec asks for."),
            ready: of_cluster("navigator_cluster_nodes_ready", "Nodes that serve."),
            silent: of_cluster(
                "navigator_cluster_pilots_silent",
                "Pilots that were not heard for 90 s and should be.",
            ),
            operation: build_gauge(
                "navigator_cluster_operation_start_timestamp_seconds",
                "When the operation that is under way began, as Unix time.",
                &["kind", "namespace", "name", "operation"],
            ),
            blocked: of_cluster(
                "navigator_cluster_blocked_timestamp_seconds",
                "Since when a predicate holds the operation up, as Unix time.",
            ),
            certificate_expiry: of_cluster(
                "navigator_cluster_certificate_expiry_timestamp_seconds",
                "When the first certificate ends of those that the cluster's nodes show, as Unix time.",
            ),
        }
    }

    fn all_gauges(&self) -> [&IntGaugeVec; 10] {
        let Self {
            clusters,
            left_out,
            condition,
            on_hold,
            wanted,
            ready,
            silent,
            operation,
            blocked,
            certificate_expiry,
        } = self;
        [
            clusters,
            left_out,
            condition,
            on_hold,
            wanted,
            ready,
            silent,
            operation,
            blocked,
            certificate_expiry,
        ]
    }

    fn fill_gauges(&self, snapshot: &FleetSnapshot) {
        let mut clusters: Vec<(&CachedCluster, ClusterPicture<'_>)> =
            snapshot.clusters.iter().map(|cluster| (cluster, cluster.summary())).collect();
        clusters.sort_by_cached_key(|(cluster, summary)| {
            (summary.is_true("Ready"), cluster.key().map(str::to_owned))
        });
        for (cluster, _) in &clusters {
            self.clusters.with_label_values(&[&cluster.kind]).inc();
        }
        let left_out = clusters.len().saturating_sub(CLUSTERS);
        self.left_out.with_label_values::<&str>(&[]).set(gauge_value(left_out));
        let mut silent_counts: HashMap<[&str; 3], usize> = HashMap::new();
        for pilot in snapshot.pilots.iter().filter(|pilot| pilot.summary().is_silent()) {
            if let Some(key) = pilot.key() {
                *silent_counts.entry(key).or_default() += 1;
            }
        }
        for (cluster, summary) in clusters.into_iter().take(CLUSTERS) {
            let silent_count = silent_counts.get(&cluster.key()).copied().unwrap_or_default();
            self.add_cluster(cluster.key(), &summary, silent_count);
            if let Some(end) = certificate_expiry(&cluster.object) {
                self.certificate_expiry.with_label_values(&cluster.key()).set(end);
            }
        }
    }

    fn add_cluster(&self, labels: [&str; 3], cluster: &ClusterPicture<'_>, silent_count: usize) {
        let labels_with = |last_label| [labels[0], labels[1], labels[2], last_label];
        let security_conditions =
            SECURITY_CONDITIONS.into_iter().filter(|type_| cluster.find_condition(type_).is_some());
        for type_ in CONDITIONS.into_iter().chain(security_conditions) {
            let is_true = cluster.is_true(type_);
            self.condition.with_label_values(&labels_with(type_)).set(is_true.into());
        }
        let on_hold = cluster.is_paused() || cluster.is_stopped() || cluster.is_deleted;
        self.on_hold.with_label_values(&labels).set(on_hold.into());
        self.ready.with_label_values(&labels).set(cluster.ready_nodes);
        self.wanted.with_label_values(&labels).set(cluster.wanted_nodes());
        self.silent.with_label_values(&labels).set(gauge_value(silent_count));
        let Some(operation) = &cluster.operation else { return };
        if let Some(started_at) = operation.started {
            let gauge = self.operation.with_label_values(&labels_with(operation.type_));
            gauge.set(started_at.as_second());
        }
        let blocker_times = operation.blockers.iter().filter_map(|blocker| blocker.since);
        if let Some(since) = blocker_times.map(Timestamp::as_second).min() {
            self.blocked.with_label_values(&labels).set(since);
        }
    }
}

impl Collector for FleetCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.all_gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let gauges = FleetGauges::new();
        let snapshot = (self.source)();
        if snapshot.leads {
            gauges.fill_gauges(&snapshot);
        }
        gauges.all_gauges().into_iter().flat_map(Collector::collect).collect()
    }
}

/// When the first certificate ends that nodes of a cluster show, in Unix seconds.
fn certificate_expiry(cluster: &DynamicObject) -> Option<i64> {
    let end = cluster.data["status"]["security"]["nextExpiry"]["notAfter"].as_str()?;
    end.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

fn gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::{api::v1beta1::Pilot, controller::fleet_snapshot::CachedPilot};

    fn cluster(name: &str, spec: &Value, status: &Value) -> CachedCluster {
        let mut object = json!({"metadata": {"namespace": "n", "name": name}, "spec": spec});
        object["status"] = status.clone();
        let object = Arc::new(serde_json::from_value(object).unwrap());
        CachedCluster { kind: "ExampleCluster".into(), object }
    }

    fn ready(status: &str) -> Value {
        json!({"conditions": [{
            "type": "Ready", "status": status, "reason": "R", "message": "",
            "lastTransitionTime": "2026-11-22T12:00:00Z",
        }]})
    }

    /// Returns what a scrape gives for `seen`, without comments.
    fn scraped(seen: &FleetSnapshot) -> Vec<String> {
        let registry = Registry::new();
        let seen = seen.clone();
        register_collector(&registry, Arc::new(move || seen.clone()));
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn the_leader_tells_what_a_status_says_and_nobody_else_does() {
        let mut status = ready("False");
        status["readyReplicas"] = json!(2);
        status["operation"] = json!({
            "type": "Upgrade", "startTime": "1970-01-01T00:01:40Z",
            "blockedBy": [
                {"predicate": "P", "since": "1970-01-01T00:03:20Z"},
                {"predicate": "Q", "since": "1970-01-01T00:02:30Z"},
                {"predicate": "R"},
            ],
        });
        let spec = json!({"paused": true, "nodePools": [{"replicas": 3}, {}]});
        let silent: Pilot = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p"},
            "spec": {"clusterRef": {"kind": "ExampleCluster", "name": "shop"}},
            "status": {"conditions": [{
                "type": "Ready", "status": "Unknown", "reason": "PilotSilent", "message": "",
                "lastTransitionTime": "2026-11-22T12:00:00Z",
            }]},
        }))
        .unwrap();
        let heard = std::time::Duration::from_secs(100);
        let mut seen = FleetSnapshot {
            leads: true,
            clusters: vec![cluster("shop", &spec, &status)],
            pilots: vec![CachedPilot { pilot: Arc::new(silent), heard }],
            ..FleetSnapshot::empty(Vec::new())
        };
        let of = r#"kind="ExampleCluster",name="shop",namespace="n""#;
        let mut wanted: Vec<String> = ["Available", "PilotsCurrent", "Ready", "Stalled"]
            .map(|type_| format!("navigator_cluster_condition{{condition=\"{type_}\",{of}}} 0"))
            .into();
        for (name, value) in [
            ("blocked_timestamp_seconds", 150),
            ("nodes_ready", 2),
            ("nodes_wanted", 4),
            ("on_hold", 1),
            ("pilots_silent", 1),
        ] {
            wanted.push(format!("navigator_cluster_{name}{{{of}}} {value}"));
        }
        let began = r#"kind="ExampleCluster",name="shop",namespace="n",operation="Upgrade""#;
        let began = format!("navigator_cluster_operation_start_timestamp_seconds{{{began}}} 100");
        wanted.push(began);
        wanted.push("navigator_clusters{kind=\"ExampleCluster\"} 1".into());
        wanted.push("navigator_clusters_left_out 0".into());
        let mut told = scraped(&seen);
        told.sort();
        wanted.sort();
        assert_eq!(told, wanted);
        seen.leads = false;
        assert_eq!(scraped(&seen), [""; 0]);
    }

    #[test]
    fn a_secured_cluster_tells_of_its_certificates_and_an_open_one_does_not() {
        let condition = |type_: &str, status: &str| {
            json!({
                "type": type_, "status": status, "reason": "R", "message": "",
                "lastTransitionTime": "2026-11-22T12:00:00Z",
            })
        };
        let status = json!({
            "conditions": [condition("CertificatesValid", "False"), condition("UsersReady", "True")],
            "security": {"nextExpiry": {"pilot": "p", "notAfter": "1970-01-01T00:01:40Z"}},
        });
        let seen = FleetSnapshot {
            leads: true,
            clusters: vec![
                cluster("safe", &json!({}), &status),
                cluster("open", &json!({}), &ready("True")),
            ],
            ..FleetSnapshot::empty(Vec::new())
        };
        let told = scraped(&seen);
        let security = |line: &&String| {
            ["CertificatesValid", "UsersReady", "certificate_expiry"]
                .iter()
                .any(|word| line.contains(word))
        };
        let told: Vec<_> = told.iter().filter(security).collect();
        let of = r#"kind="ExampleCluster",name="safe",namespace="n""#;
        assert_eq!(
            told,
            [
                &format!("navigator_cluster_certificate_expiry_timestamp_seconds{{{of}}} 100"),
                &format!("navigator_cluster_condition{{condition=\"CertificatesValid\",{of}}} 0"),
                &format!("navigator_cluster_condition{{condition=\"UsersReady\",{of}}} 1"),
            ]
        );
    }

    #[test]
    fn of_too_many_clusters_those_that_are_not_ready_have_figures() {
        let clusters = (0..CLUSTERS + 50).map(|number| {
            let status = if number >= CLUSTERS { ready("False") } else { ready("True") };
            cluster(&format!("c{number:04}"), &json!({}), &status)
        });
        let seen = FleetSnapshot {
            leads: true,
            clusters: clusters.collect(),
            ..FleetSnapshot::empty(Vec::new())
        };
        let told = scraped(&seen);
        assert!(told.contains(&"navigator_clusters_left_out 50".to_owned()));
        let ready = told.iter().filter(|line| line.contains("condition=\"Ready\""));
        assert_eq!(ready.clone().count(), CLUSTERS);
        assert_eq!(ready.filter(|line| line.ends_with(" 0")).count(), 50);
        assert!(!told.iter().any(|line| line.contains("c0499")), "the last of those that are well");
    }
}
