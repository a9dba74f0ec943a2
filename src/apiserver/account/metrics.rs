//! Metrics of the memory budget of requests, read when Prometheus scrapes.

use prometheus::{
    IntCounterVec, IntGauge, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{ACCOUNT, MemoryUse};

/// Collector of the memory budget's metrics: bytes held, requests that wait, requests refused.
pub struct MemoryAccountMetrics {
    bytes: IntGaugeVec,
    limit: IntGauge,
    waiting: IntGaugeVec,
    refused: IntCounterVec,
}

impl Default for MemoryAccountMetrics {
    fn default() -> Self {
        let labels = &["use"];
        let gauges = |name: &str, help: &str| {
            IntGaugeVec::new(Opts::new(name, help), labels)
                .expect("the metric's name and labels are valid")
        };
        Self {
            bytes: gauges(
                "navigator_apiserver_account_bytes",
                "Memory that requests hold, by what it is used for.",
            ),
            limit: IntGauge::new(
                "navigator_apiserver_account_limit_bytes",
                "Memory that requests may hold together, a share of the memory limit.",
            )
            .expect("the metric's name is valid"),
            waiting: gauges(
                "navigator_apiserver_account_waiting",
                "Requests that wait for memory, by what it is to be used for.",
            ),
            refused: IntCounterVec::new(
                Opts::new(
                    "navigator_apiserver_account_refused_total",
                    "Requests that found no memory in time, or need more than one may have.",
                ),
                labels,
            )
            .expect("the metric's name and labels are valid"),
        }
    }
}

impl MemoryAccountMetrics {
    fn collectors(&self) -> [&dyn Collector; 4] {
        let Self { bytes, limit, waiting, refused } = self;
        [bytes, limit, waiting, refused]
    }
}

impl Collector for MemoryAccountMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let to_gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.limit.set(to_gauge(ACCOUNT.total_bytes()));
        let state = ACCOUNT.state();
        self.refused.reset();
        for purpose in MemoryUse::ALL {
            let (index, label) = (purpose as usize, [purpose.name()]);
            self.bytes.with_label_values(&label).set(to_gauge(state.used[index]));
            self.waiting.with_label_values(&label).set(to_gauge(state.waiting[index].len()));
            self.refused.with_label_values(&label).inc_by(state.refused[index]);
        }
        drop(state);
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}
