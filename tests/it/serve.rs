//! The API server's door: who gets in, what is checked, how the process starts and ends.

mod audit;
mod authn;
mod certs;
mod filters;
mod impersonation;
mod leases;
mod load;
mod metrics;
mod outage;
mod process;
mod reviews;
mod rolling;
mod seats;
mod store;
mod store_docs;
mod store_kubernetes;
mod store_migration;
mod store_tools;
mod trail;
mod verbs;
mod watch_prefix;
mod webhooks;
mod whole;
