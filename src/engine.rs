//! Pure rules that several roles need and that name no database: the heap, merged settings, config
//! hashes, explained exits, RBAC tables, the kind in which objects are stored in Kubernetes, the
//! upgrade and the labels of machines, the SSH keys on them, the copies of registries' credentials,
//! certificates of database nodes and how security is switched on, passwords of users, seals of Secrets, what
//! a hub wants, and the end of the cluster manager. No I/O.

pub mod conditions;
pub mod config_hash;
pub mod exit_explanation;
pub mod heap;
pub mod hub;
pub mod keys;
pub mod ladder;
pub mod machines;
pub mod password;
pub mod pki;
pub mod plugins;
pub mod rbac;
pub mod registries;
pub mod roles;
pub mod seal;
pub mod settings;
pub mod stored_object;
pub mod terminate;
pub mod users;
