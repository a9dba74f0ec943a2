//! The API server: owns the types' storage, versions, validation and audit trail. Runs no
//! control logic.

pub mod admission;
pub mod authn;
pub mod authz;
mod body;
pub mod cache;
pub mod certs;
pub mod delegate;
mod discovery;
pub mod filters;
pub mod handlers;
mod health;
pub mod identity;
pub mod load;
pub mod metrics;
pub mod migrate_storage;
pub mod negotiate;
pub mod options;
pub mod peer;
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
