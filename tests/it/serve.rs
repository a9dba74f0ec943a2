//! The API server's door: who gets in, what is checked, how the process starts and ends.

mod authn;
mod client;
mod filters;
mod kube;
mod migrate_storage;
mod pki;
mod process;
mod server;
