//! The pilot's own metrics.

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry, core::Collector};

use crate::{
    pilot::{driver::ReplicationRole, security::SecurityReport},
    runtime::{
        build_info,
        metric_catalogue::{MetricDescription, describe_collectors},
    },
};

/// The metrics of every pilot, whatever database it runs.
pub fn describe_metrics() -> Vec<MetricDescription> {
    let mut collectors = Metrics::new().collectors();
    collectors.push(build_info::collector());
    describe_collectors(&collectors)
}

#[derive(Clone, Debug)]
pub struct Metrics {
    pub ready: IntGauge,
    role: IntGaugeVec,
    certificate_expiry: IntGaugeVec,
    client_connections: IntGaugeVec,
    pub up: IntGauge,
    pub heartbeat: IntGauge,
    pub starts: IntCounter,
    pub crashes: IntCounter,
    pub preflight_failures: IntCounter,
    pub hangs: IntCounter,
    pub storage_capacity: IntGauge,
    pub storage_used: IntGauge,
    pub leader: IntGauge,
    pub leader_changes: IntCounter,
    pub events_dropped: IntCounter,
}

impl Metrics {
    pub fn register(registry: &Registry) -> Self {
        let metrics = Self::new();
        for collector in metrics.collectors() {
            registry.register(collector).expect("the registry is new");
        }
        metrics
    }

    pub(super) fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self {
            ready,
            role,
            certificate_expiry,
            client_connections,
            up,
            heartbeat,
            starts,
            crashes,
            preflight_failures,
            hangs,
            storage_capacity,
            storage_used,
            leader,
            leader_changes,
            events_dropped,
        } = self;
        vec![
            Box::new(ready.clone()),
            Box::new(role.clone()),
            Box::new(certificate_expiry.clone()),
            Box::new(client_connections.clone()),
            Box::new(up.clone()),
            Box::new(heartbeat.clone()),
            Box::new(starts.clone()),
            Box::new(crashes.clone()),
            Box::new(hangs.clone()),
            Box::new(preflight_failures.clone()),
            Box::new(storage_capacity.clone()),
            Box::new(storage_used.clone()),
            Box::new(leader.clone()),
            Box::new(leader_changes.clone()),
            Box::new(events_dropped.clone()),
            Box::new(crate::runtime::log::dropped_counter()),
        ]
    }

    pub(super) fn new() -> Self {
        let gauge = |name: &str, help: &str| IntGauge::new(name, help).expect("the name is valid");
        let counter =
            |name: &str, help: &str| IntCounter::new(name, help).expect("the name is valid");
        let role = Opts::new(
            "navigator_pilot_role",
            "1 for the role of the node among those that hold the same data.",
        );
        let certificate_expiry = Opts::new(
            "navigator_pilot_certificate_expiry_timestamp_seconds",
            "When the certificate ends that the node's port shows, as Unix time.",
        );
        let client_connections = Opts::new(
            "navigator_pilot_client_connections",
            "Connections of clients, with TLS (`true`) and without, while the node takes both.",
        );
        Self {
            client_connections: IntGaugeVec::new(client_connections, &["tls"])
                .expect("the name is valid"),
            certificate_expiry: IntGaugeVec::new(certificate_expiry, &["use"])
                .expect("the name is valid"),
            ready: gauge("navigator_pilot_ready", "1 while the node serves clients."),
            role: IntGaugeVec::new(role, &["role"]).expect("the name is valid"),
            up: gauge("navigator_pilot_process_up", "1 while the database's process runs."),
            heartbeat: gauge(
                "navigator_pilot_heartbeat_timestamp_seconds",
                "When the API last took what the pilot reports, as Unix time; 0 before the first \
                 report.",
            ),
            starts: counter("navigator_pilot_process_starts_total", "Starts of the database."),
            crashes: counter(
                "navigator_pilot_process_crashes_total",
                "Ends of the database that were not asked for.",
            ),
            preflight_failures: counter(
                "navigator_pilot_preflight_failures_total",
                "Preflights that did not pass.",
            ),
            hangs: counter(
                "navigator_pilot_process_hangs_total",
                "Times that the database fell silent.",
            ),
            storage_capacity: gauge(
                "navigator_pilot_storage_capacity_bytes",
                "Size of the data volume.",
            ),
            storage_used: gauge("navigator_pilot_storage_used_bytes", "Use of the data volume."),
            leader: gauge(
                "navigator_pilot_leader",
                "1 while this pilot leads those of its cluster.",
            ),
            leader_changes: counter(
                "navigator_pilot_leader_changes_total",
                "Times that this pilot began or ceased to lead.",
            ),
            events_dropped: counter(
                "navigator_pilot_events_dropped_total",
                "Events that could not be written.",
            ),
        }
    }

    /// Sets when certificates end, and how clients are connected. A port that shows no certificate
    /// has no series, and a node that does not take both kinds of connections none of those.
    pub fn set_security(&self, report: Option<&SecurityReport>) {
        let ports =
            report.map(|report| [("internode", &report.internode), ("client", &report.client)]);
        for (usage, certificate) in ports.unwrap_or([("internode", &None), ("client", &None)]) {
            match certificate.as_ref().and_then(|certificate| certificate.not_after.as_ref()) {
                Some(end) => {
                    self.certificate_expiry.with_label_values(&[usage]).set(end.0.as_second());
                }
                // Fails where there is no series.
                None => drop(self.certificate_expiry.remove_label_values(&[usage])),
            }
        }
        match report.and_then(|report| report.clients.as_ref()) {
            Some(clients) => {
                for (tls, number) in [("true", clients.tls), ("false", clients.plain)] {
                    self.client_connections.with_label_values(&[tls]).set(number.into());
                }
            }
            None => self.client_connections.reset(),
        }
    }

    /// Sets the metric of the node's role. Without a role, where all nodes are alike, it has no
    /// series.
    pub fn set_role(&self, role: Option<ReplicationRole>) {
        if role.is_none() {
            self.role.reset();
            return;
        }
        for replication_role in ReplicationRole::ALL {
            self.role
                .with_label_values(&[replication_role.name()])
                .set((role == Some(replication_role)).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::{ClientConnections, ServedCertificate};

    #[test]
    fn a_port_that_shows_a_certificate_has_a_series_for_its_end() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry);
        let series = || {
            let families = registry.gather();
            let mut all = families.iter().filter(|family| family.name().contains("certificate"));
            all.next().map_or(Vec::new(), |family| {
                family.get_metric().iter().map(|one| one.get_gauge().get_value()).collect()
            })
        };
        metrics.set_security(None);
        assert_eq!(series(), [0.0; 0]);
        let not_after = jiff::Timestamp::from_second(1_800_000_000).ok();
        let internode = ServedCertificate {
            not_after: not_after.map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time),
            ..ServedCertificate::default()
        };
        let shown = SecurityReport { internode: Some(internode), ..SecurityReport::default() };
        metrics.set_security(Some(&shown));
        assert_eq!(series(), [1_800_000_000.0]);
        metrics.set_security(None);
        assert_eq!(series(), [0.0; 0]);
    }

    #[test]
    fn connections_of_clients_are_told_while_a_node_takes_both_kinds() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry);
        let told = || {
            let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            let lines = text.lines().filter(|line| line.contains("client_connections{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let clients = ClientConnections { tls: 3, plain: 1, ..ClientConnections::default() };
        let report = SecurityReport { clients: Some(clients), ..SecurityReport::default() };
        metrics.set_security(Some(&report));
        let name = "navigator_pilot_client_connections";
        assert_eq!(
            told(),
            [format!("{name}{{tls=\"false\"}} 1"), format!("{name}{{tls=\"true\"}} 3")]
        );
        metrics.set_security(Some(&SecurityReport::default()));
        assert_eq!(told(), [""; 0]);
    }

    #[test]
    fn a_role_is_told_by_one_series_for_each_and_by_none_where_there_are_no_roles() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry);
        let told = || {
            let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            let lines = text.lines().filter(|line| line.starts_with("navigator_pilot_role"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(told(), [""; 0]);
        metrics.set_role(Some(ReplicationRole::Replica));
        let [primary, replica] =
            ["primary", "replica"].map(|role| format!("navigator_pilot_role{{role=\"{role}\"}}"));
        assert_eq!(told(), [format!("{primary} 0"), format!("{replica} 1")]);
        metrics.set_role(Some(ReplicationRole::Primary));
        assert_eq!(told(), [format!("{primary} 1"), format!("{replica} 0")]);
        metrics.set_role(None);
        assert_eq!(told(), [""; 0]);
    }
}
