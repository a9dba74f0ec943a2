//! Numbers about what is stored, taken from the caches when somebody scrapes.

use std::sync::Arc;

use prometheus::{
    IntCounterVec, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::apiserver::{cache::Figures, registry::Registry};

/// Upstream's names.
pub(in crate::apiserver) struct Objects {
    registries: Vec<Arc<Registry>>,
    descriptions: Vec<Desc>,
}

struct Series {
    objects: IntGaugeVec,
    by_resource: IntGaugeVec,
    revision: IntGaugeVec,
    lists: IntCounterVec,
    changes: IntCounterVec,
}

impl Objects {
    pub(in crate::apiserver) fn new(registries: Vec<Arc<Registry>>) -> Self {
        let families = Series::new();
        let collectors = families.collectors();
        let descriptions = collectors.iter().flat_map(|collector| collector.desc());
        let descriptions = descriptions.cloned().collect();
        Self { registries, descriptions }
    }
}

impl Series {
    fn new() -> Self {
        let kind = &["group", "resource"];
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            IntGaugeVec::new(Opts::new(name, help), labels)
                .expect("the metric's name and labels are valid")
        };
        let counters = |name: &str, help: &str| {
            IntCounterVec::new(Opts::new(name, help), kind)
                .expect("the metric's name and labels are valid")
        };
        Self {
            objects: gauges("apiserver_resource_objects", "Objects of a kind.", kind),
            by_resource: gauges(
                "apiserver_storage_objects",
                "Objects of a kind: the older name of apiserver_resource_objects.",
                &["resource"],
            ),
            revision: gauges(
                "apiserver_watch_cache_resource_version",
                "Revision that reads and watches of a kind have reached.",
                kind,
            ),
            lists: counters(
                "apiserver_watch_cache_initializations_total",
                "Times that all objects of a kind were read from the store.",
            ),
            changes: counters(
                "apiserver_watch_cache_events_received_total",
                "Changes of a kind that came from the store.",
            ),
        }
    }

    fn collectors(&self) -> [&dyn Collector; 5] {
        let Self { objects, by_resource, revision, lists, changes } = self;
        [objects, by_resource, revision, lists, changes]
    }

    fn set(&self, group: &str, resource: &str, figures: Figures) {
        let Figures { objects, revision, lists, changes } = figures;
        let kind = [group, resource];
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.objects.with_label_values(&kind).set(objects);
        let name =
            if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        self.by_resource.with_label_values(&[name]).set(objects);
        self.revision.with_label_values(&kind).set(i64::try_from(revision).unwrap_or(i64::MAX));
        self.lists.with_label_values(&kind).inc_by(lists);
        self.changes.with_label_values(&kind).inc_by(changes);
    }
}

impl Collector for Objects {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let series = Series::new();
        for registry in &self.registries {
            let (kind, figures) = (registry.kind(), registry.cache().figures());
            series.set(kind.group(), kind.plural(), figures);
        }
        series.collectors().iter().flat_map(|collector| collector.collect()).collect()
    }
}
