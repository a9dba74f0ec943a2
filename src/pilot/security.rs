//! How a node's database is kept from those who are not meant to read it: the node's key, the
//! certificates that were signed for it, and who may log in.
//!
//! Knows no database. What a certificate must be to be used is decided in `findings`, which does no
//! I/O; [`NodeSecurity`] has it in place before a start, and [`SecurityKeeper`] exchanges it while the
//! database runs. A database takes part by
//! [`SecuredDatabase`](super::driver::SecuredDatabase). Nothing that is refused touches a
//! database that runs.

mod findings;
mod keeper;
mod node_key;
mod node_security;
mod recorded_access;
mod report;
mod users_mount;

pub use self::{
    keeper::SecurityKeeper,
    node_security::{NodeSecurity, StartSecurity},
    recorded_access::RecordedAccess,
    report::{SecurityReading, SecurityReport},
};
