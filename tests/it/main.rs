//! One linked test binary of what needs no cluster. `tests/README.md` says what its rooms claim.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod agent;
mod api;
mod architecture;
mod cache;
mod cli;
mod coordinator;
mod engine;
mod example;
mod golden;
mod history;
mod install;
mod local;
mod manual;
mod monitoring;
mod page;
mod pilot;
mod plugin;
mod registries;
mod rooms;
mod runner;
mod serve;
mod storage;
#[path = "../support/lib.rs"]
mod support;
mod surface;

/// What the program serves.
fn scheme() -> &'static navigator::api::scheme::Scheme {
    use std::sync::LazyLock;

    use navigator::{api::scheme::Scheme, database, databases};

    static SCHEME: LazyLock<&Scheme> = LazyLock::new(|| database::build_scheme(databases::ALL));
    &SCHEME
}
