//! Runs everything on one host, without Kubernetes.
//!
//! Owns what replaces Kubernetes there. The API server's machinery, the controller and the pilots
//! are those of a Kubernetes install.

pub mod api;
pub mod daemon;
pub mod homes;
pub mod log_retention;
pub mod node;
pub mod state_folder;
