//! Pure facts about each database that the controller and the pilot both need: ports, files,
//! configuration, version rules. No I/O.

pub mod config_hash;
pub mod exit_explanation;
pub mod heap;
pub mod rbac;
pub mod settings;
pub mod stored_object;
