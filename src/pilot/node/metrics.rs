//! The pilot's own metrics.

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry, core::Collector};

use crate::{
    pilot::driver::ReplicationRole,
    runtime::{
        build_info,
        metric_catalogue::{MetricDescription, described},
    },
};

/// The metrics of every pilot, whatever database it runs.
pub fn catalogue() -> Vec<MetricDescription> {
    let mut collectors = Metrics::new().collectors();
    collectors.push(build_info::collector());
    described(&collectors)
}

#[derive(Clone, Debug)]
pub struct Metrics {
    pub ready: IntGauge,
    role: IntGaugeVec,
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
            Box::new(crate::runtime::log::dropped()),
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
        Self {
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

    /// Sets the metric of the node's role. Without a role, where all nodes are alike, it has no
    /// series.
    pub fn set_role(&self, role: Option<ReplicationRole>) {
        if role.is_none() {
            self.role.reset();
            return;
        }
        for one in ReplicationRole::ALL {
            self.role.with_label_values(&[one.name()]).set((role == Some(one)).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
