//! Pure rules that several roles need and that name no database: the heap, merged settings, config
//! hashes, explained exits, RBAC tables, the kind in which objects are stored in Kubernetes, the
//! upgrade of machines, and the SSH keys on them. No I/O.

pub mod config_hash;
pub mod exit_explanation;
pub mod heap;
pub mod keys;
pub mod machines;
pub mod rbac;
pub mod settings;
pub mod stored_object;
