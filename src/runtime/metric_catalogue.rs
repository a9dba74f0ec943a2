//! The metrics that a role exposes, with or without series: for the reference in the docs, and for
//! tests that the names in alerts and dashboards exist.

use prometheus::{core::Collector, proto::MetricType};

/// A metric, as a scraper sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricDescription {
    pub name: String,
    pub type_: &'static str,
    pub labels: Vec<String>,
    pub help: String,
}

/// Describes the metrics of `collectors`, in their order.
pub fn describe_collectors(collectors: &[Box<dyn Collector>]) -> Vec<MetricDescription> {
    collectors.iter().flat_map(|collector| describe_collector(collector.as_ref())).collect()
}

fn describe_collector(collector: &dyn Collector) -> Vec<MetricDescription> {
    let families = collector.collect();
    let type_of = |name: &str| {
        let family = families.iter().find(|family| family.name() == name);
        match family.map(prometheus::proto::MetricFamily::get_field_type) {
            Some(MetricType::COUNTER) => "counter",
            Some(MetricType::GAUGE) => "gauge",
            Some(MetricType::HISTOGRAM) => "histogram",
            Some(MetricType::SUMMARY) => "summary",
            Some(MetricType::UNTYPED) | None => "untyped",
        }
    };
    let describe = |desc: &prometheus::core::Desc| MetricDescription {
        name: desc.fq_name.clone(),
        type_: type_of(&desc.fq_name),
        labels: desc.variable_labels.clone(),
        help: desc.help.clone(),
    };
    collector.desc().into_iter().map(describe).collect()
}
