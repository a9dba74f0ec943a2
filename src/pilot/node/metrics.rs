//! The pilot's own figures.

use prometheus::{IntCounter, IntGauge, Registry};

#[derive(Clone, Debug)]
pub struct Metrics {
    pub ready: IntGauge,
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
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help).expect("the name is valid");
            registry.register(Box::new(gauge.clone())).expect("the registry is new");
            gauge
        };
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help).expect("the name is valid");
            registry.register(Box::new(counter.clone())).expect("the registry is new");
            counter
        };
        let dropped = crate::runtime::log::dropped();
        registry.register(Box::new(dropped)).expect("the registry is new");
        Self {
            ready: gauge("navigator_pilot_ready", "1 while the node serves clients."),
            starts: counter("navigator_pilot_process_starts_total", "Starts of the database."),
            crashes: counter(
                "navigator_pilot_process_crashes_total",
                "Ends of the database that nobody asked for.",
            ),
            preflight_failures: counter(
                "navigator_pilot_preflight_failures_total",
                "Preflights that did not pass.",
            ),
            hangs: counter(
                "navigator_pilot_process_hangs_total",
                "Times that the database fell silent and was asked for a thread dump.",
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
}
