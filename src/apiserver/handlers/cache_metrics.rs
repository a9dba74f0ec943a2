//! Metrics of the caches: their objects, changes and reads, computed when Prometheus scrapes.

use std::sync::Arc;

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::{LabelPair, Metric, MetricFamily},
};

use crate::apiserver::{
    cache::{CacheStatistics, ConsistentReadOutcome, ListCounts, ReadTally, WAITS},
    registry::Registry,
};

const WAITED: &str = "apiserver_watch_cache_read_wait_seconds";

/// Metrics of the caches, under upstream's names.
pub(in crate::apiserver) struct CacheMetrics {
    registries: Vec<Arc<Registry>>,
    descriptions: Vec<Desc>,
}

struct CacheSeries {
    objects: IntGaugeVec,
    by_resource: IntGaugeVec,
    revision: IntGaugeVec,
    lists: IntCounterVec,
    changes: IntCounterVec,
    dispatched: IntCounterVec,
    cached: [IntCounterVec; 3],
    stored: [IntCounterVec; 4],
    consistent: IntCounterVec,
    waits: HistogramVec,
}

impl CacheMetrics {
    pub(in crate::apiserver) fn new(registries: Vec<Arc<Registry>>) -> Self {
        let families = CacheSeries::new();
        let collectors = families.collectors();
        let descriptions = collectors.iter().flat_map(|collector| collector.desc());
        let descriptions = descriptions.cloned().collect();
        Self { registries, descriptions }
    }
}

impl CacheSeries {
    fn new() -> Self {
        let kind = &["group", "resource"];
        let build_gauges = |name: &str, help: &str, labels: &[&str]| {
            IntGaugeVec::new(Opts::new(name, help), labels)
                .expect("the metric's name and labels are valid")
        };
        let build_counters = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, help), labels)
                .expect("the metric's name and labels are valid")
        };
        let kind_counters = |name: &str, help: &str| build_counters(name, help, kind);
        let waits = HistogramOpts::new(
            WAITED,
            "Seconds that reads waited until the cache had reached their revision.",
        );
        let with_index = &["group", "resource", "index"];
        Self {
            objects: build_gauges("apiserver_resource_objects", "Objects of a kind.", kind),
            by_resource: build_gauges(
                "apiserver_storage_objects",
                "Objects of a kind: the older name of apiserver_resource_objects.",
                &["resource"],
            ),
            revision: build_gauges(
                "apiserver_watch_cache_resource_version",
                "Revision that reads and watches of a kind have reached.",
                kind,
            ),
            lists: kind_counters(
                "apiserver_watch_cache_initializations_total",
                "Times that all objects of a kind were read from the store.",
            ),
            changes: kind_counters(
                "apiserver_watch_cache_events_received_total",
                "Changes of a kind that came from the store.",
            ),
            dispatched: kind_counters(
                "apiserver_watch_cache_events_dispatched_total",
                "Changes of a kind that were shown to watchers, once for all of them.",
            ),
            cached: [
                build_counters(
                    "apiserver_cache_list_total",
                    "Lists that the cache served. There are no indexes.",
                    with_index,
                ),
                build_counters(
                    "apiserver_cache_list_fetched_objects_total",
                    "Objects that were read from the cache for lists.",
                    with_index,
                ),
                kind_counters(
                    "apiserver_cache_list_returned_objects_total",
                    "Objects of lists that the cache served.",
                ),
            ],
            stored: [
                kind_counters("apiserver_storage_list_total", "Lists that the store served."),
                kind_counters(
                    "apiserver_storage_list_fetched_objects_total",
                    "Objects that were read from the store for lists.",
                ),
                kind_counters(
                    "apiserver_storage_list_evaluated_objects_total",
                    "Objects from the store that were put to the selector of a list.",
                ),
                kind_counters(
                    "apiserver_storage_list_returned_objects_total",
                    "Objects of lists that the store served.",
                ),
            ],
            consistent: build_counters(
                "apiserver_watch_cache_consistent_read_total",
                "Lists of the latest state, by success, and by whether the store had to answer.",
                &["group", "resource", "success", "fallback"],
            ),
            waits: HistogramVec::new(waits.buckets(WAITS.to_vec()), kind)
                .expect("the metric's name and labels are valid"),
        }
    }

    fn collectors(&self) -> Vec<&dyn Collector> {
        let Self {
            objects,
            by_resource,
            revision,
            lists,
            changes,
            dispatched,
            cached,
            stored,
            consistent,
            waits,
        } = self;
        let mut collectors: Vec<&dyn Collector> =
            vec![objects, by_resource, revision, lists, changes, dispatched, consistent, waits];
        collectors.extend(cached.iter().map(|counter| counter as &dyn Collector));
        collectors.extend(stored.iter().map(|counter| counter as &dyn Collector));
        collectors
    }

    fn set_statistics(&self, group: &str, resource: &str, statistics: CacheStatistics) {
        let CacheStatistics { objects, revision, lists, changes } = statistics;
        let kind = [group, resource];
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.objects.with_label_values(&kind).set(objects);
        let name =
            if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        self.by_resource.with_label_values(&[name]).set(objects);
        self.revision.with_label_values(&kind).set(i64::try_from(revision).unwrap_or(i64::MAX));
        self.lists.with_label_values(&kind).inc_by(lists);
        self.changes.with_label_values(&kind).inc_by(changes);
        self.dispatched.with_label_values(&kind).inc_by(changes);
    }

    fn set_reads(&self, kind: [&str; 2], tally: &ReadTally) {
        let [group, resource] = kind;
        let ListCounts { lists, fetched, returned, .. } = tally.cached.so_far();
        let [cached_lists, cached_fetched, cached_returned] = &self.cached;
        cached_lists.with_label_values(&[group, resource, ""]).inc_by(lists);
        cached_fetched.with_label_values(&[group, resource, ""]).inc_by(fetched);
        cached_returned.with_label_values(&kind).inc_by(returned);
        let ListCounts { lists, fetched, evaluated, returned } = tally.stored.so_far();
        for (counter, count) in self.stored.iter().zip([lists, fetched, evaluated, returned]) {
            counter.with_label_values(&kind).inc_by(count);
        }
        for outcome in ConsistentReadOutcome::ALL {
            let [success, fallback] = outcome.labels();
            let labels = [group, resource, success, fallback];
            self.consistent.with_label_values(&labels).inc_by(tally.consistent_reads(outcome));
        }
    }
}

impl Collector for CacheMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let series = CacheSeries::new();
        let mut waits = Vec::new();
        for registry in &self.registries {
            let (kind, cache) = (registry.kind(), registry.cache());
            series.set_statistics(kind.group(), kind.plural(), cache.statistics());
            series.set_reads([kind.group(), kind.plural()], cache.tally());
            waits.extend(waits_of(kind.group(), kind.plural(), cache.tally()));
        }
        let collectors = series.collectors();
        let mut families: Vec<_> =
            collectors.iter().flat_map(|collector| collector.collect()).collect();
        if let Some(family) = families.iter_mut().find(|family| family.name() == WAITED) {
            family.set_metric(waits);
        }
        families
    }
}

/// Returns the histogram of one cache's waits under the labels of its kind.
fn waits_of(group: &str, resource: &str, tally: &ReadTally) -> Vec<Metric> {
    let mut families = tally.waits.collect();
    let metrics = families.iter_mut().flat_map(MetricFamily::take_metric);
    let labelled_metrics = metrics.map(|mut metric| {
        let labels = [("group", group), ("resource", resource)].map(|(name, value)| {
            let mut label = LabelPair::default();
            label.set_name(name.to_owned());
            label.set_value(value.to_owned());
            label
        });
        metric.set_label(labels.into());
        metric
    });
    labelled_metrics.collect()
}
