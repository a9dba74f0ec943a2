//! One linked test binary: HTTP surface, storage conformance, process tests, architecture.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod api;
mod architecture;
mod cache;
mod cli;
mod engine;
mod golden;
mod pilot;
mod serve;
mod storage;
#[path = "../support/lib.rs"]
mod support;
mod surface;
