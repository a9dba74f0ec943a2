//! Pure facts about each database that the controller and the pilot both need: ports, files,
//! configuration, version rules. No I/O.

pub mod ending;
pub mod heap;
pub mod rbac;
pub mod revision;
pub mod settings;
pub mod stored_object;
