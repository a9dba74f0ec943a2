//! The API server: owns the types' storage, versions, validation and audit trail. Runs no
//! control logic.

pub mod account;
pub mod admission;
pub mod audit;
pub mod authn;
pub mod authz;
pub mod cache;
pub mod capacity;
pub mod certs;
pub mod delegate;
mod discovery;
pub mod filters;
pub mod handlers;
mod health;
pub mod installation;
pub mod kube_client;
mod latency;
pub mod metrics;
pub mod migrate_storage;
pub mod negotiate;
pub mod operation;
pub mod options;
pub mod peer;
mod protobuf;
pub mod registry;
pub mod request_cost;
pub mod request_info;
mod response_body;
pub mod role;
pub mod run;
pub mod selector;
pub mod serve;
pub mod status;
pub mod storage;
pub mod store_identity;
pub mod store_tools;
mod streamed_body;
pub mod url;
pub mod view;

use crate::{
    machinery::served_kinds::ServedKinds,
    runtime::{
        build_info,
        metric_catalogue::{MetricDescription, describe_collectors},
        process_metrics::ProcessMetrics,
    },
};

/// What the API server tells Prometheus.
pub fn metrics_catalogue(scheme: &'static ServedKinds) -> Vec<MetricDescription> {
    let mut collectors = metrics::Metrics::new().collectors();
    collectors.extend(storage::timed_store::StoreMetrics::new().of_etcd().collectors());
    collectors.extend(health::collectors());
    collectors.push(Box::new(handlers::cache_metrics::CacheMetrics::new(Vec::new())));
    collectors.extend(admission::webhook::AdmissionMetrics::new().collectors());
    collectors.push(build_info::collector());
    collectors.push(Box::new(ProcessMetrics::default()));
    collectors.push(Box::new(account::MemoryAccountMetrics::default()));
    let capacity = capacity::Capacity::new(capacity::CapacityBounds::for_process());
    collectors.push(Box::new(capacity::CapacityMetrics::new(capacity)));
    let mut descriptions = handlers::metrics::describe_metrics(scheme);
    descriptions.extend(describe_collectors(&collectors));
    descriptions
}
