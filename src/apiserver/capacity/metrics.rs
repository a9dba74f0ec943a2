//! Metrics of what is stored, taken when Prometheus scrapes.

use std::sync::{Arc, atomic::Ordering};

use prometheus::{
    IntCounterVec, IntGauge, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{Capacity, CapacityBounds, CapacityScope};

/// Collector of the capacity's metrics: bytes stored, bounds, writes refused.
pub struct CapacityMetrics {
    capacity: Arc<Capacity>,
    bytes: IntGauge,
    limit: IntGauge,
    fullest: IntGauge,
    namespace_limit: IntGauge,
    refused: IntCounterVec,
}

fn build_gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect("the metric's name is valid")
}

impl CapacityMetrics {
    pub fn new(capacity: Arc<Capacity>) -> Self {
        let options = Opts::new(
            "navigator_apiserver_stored_refused_total",
            "Writes that were refused because as much is stored as may be, by what is full: all, \
             namespace.",
        );
        Self {
            capacity,
            bytes: build_gauge(
                "navigator_apiserver_stored_bytes",
                "Bytes of all stored objects, with 1 KiB more for each.",
            ),
            limit: build_gauge(
                "navigator_apiserver_stored_limit_bytes",
                "Bytes that may be stored in all, a share of the memory limit.",
            ),
            fullest: build_gauge(
                "navigator_apiserver_stored_fullest_namespace_bytes",
                "Bytes of the stored objects of the namespace that has most of them.",
            ),
            namespace_limit: build_gauge(
                "navigator_apiserver_stored_namespace_limit_bytes",
                "Bytes that may be stored in one namespace.",
            ),
            refused: IntCounterVec::new(options, &["scope"])
                .expect("the metric's name and labels are valid"),
        }
    }

    fn collectors(&self) -> [&dyn Collector; 5] {
        let Self { capacity: _, bytes, limit, fullest, namespace_limit, refused } = self;
        [bytes, limit, fullest, namespace_limit, refused]
    }
}

impl Collector for CapacityMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let to_gauge = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        let CapacityBounds { all, namespace, .. } = self.capacity.bounds;
        let sums = self.capacity.cached_bytes();
        self.bytes.set(to_gauge(sums.all));
        self.limit.set(to_gauge(all));
        self.namespace_limit.set(to_gauge(namespace));
        // A series for each namespace would be unbounded.
        self.fullest.set(to_gauge(sums.namespaces.values().copied().max().unwrap_or_default()));
        self.refused.reset();
        for scope in CapacityScope::EACH {
            let refusals = self.capacity.refused[scope as usize].load(Ordering::Relaxed);
            self.refused.with_label_values(&[scope.name()]).inc_by(refusals);
        }
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}
