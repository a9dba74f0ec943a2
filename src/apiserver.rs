//! The API server: owns the types' storage, versions, validation and audit trail. Runs no
//! control logic.

pub mod account;
pub mod admission;
pub mod audit;
pub mod authn;
pub mod authz;
mod body;
pub mod cache;
pub mod capacity;
pub mod certs;
pub mod delegate;
mod discovery;
pub mod filters;
pub mod handlers;
mod health;
pub mod identity;
pub mod kubernetes;
mod latency;
pub mod load;
pub mod metrics;
pub mod migrate_storage;
pub mod negotiate;
pub mod operation;
pub mod options;
pub mod peer;
mod pieces;
mod protobuf;
pub mod registry;
pub mod request_info;
pub mod run;
pub mod selector;
pub mod serve;
pub mod status;
pub mod storage;
pub mod store_tools;
pub mod url;
pub mod view;

use crate::{
    api::scheme::Scheme,
    runtime::{
        build,
        catalogue::{MetricDescription, described},
        process::ProcessMetrics,
    },
};

/// What the API server tells Prometheus.
pub fn metrics_catalogue(scheme: &'static Scheme) -> Vec<MetricDescription> {
    let mut collectors = metrics::Metrics::new().collectors();
    collectors.extend(storage::timed::StoreMetrics::new().of_etcd().collectors());
    collectors.extend(health::collectors());
    collectors.push(Box::new(handlers::objects::CacheMetrics::new(Vec::new())));
    collectors.extend(admission::webhook::AdmissionMetrics::new().collectors());
    collectors.push(build::collector());
    collectors.push(Box::new(ProcessMetrics::new()));
    collectors.push(Box::new(account::MemoryAccountMetrics::default()));
    let capacity = capacity::Capacity::new(capacity::CapacityBounds::own());
    collectors.push(Box::new(capacity::CapacityMetrics::new(capacity)));
    let mut all = handlers::metrics::catalogue(scheme);
    all.extend(described(&collectors));
    all
}
