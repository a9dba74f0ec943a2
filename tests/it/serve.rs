//! The API server's front: authentication, filters, admission; and how the process starts and ends.

mod audit;
mod authn;
mod certs;
mod filters;
mod impersonation;
mod leases;
mod load;
mod metrics;
mod names;
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
