//! Navigator with one database more: Redis, from outside of `src`.

pub(crate) mod configure;
pub(crate) mod controller;
pub(crate) mod kind;
pub(crate) mod pilot;
pub(crate) mod security;
pub(crate) mod shown;
pub(crate) mod succession;
pub(crate) mod view;

use std::process::ExitCode;

use navigator::database::Database;

const ALL: &[Database] = &[
    navigator::databases::ALL[0],
    navigator::databases::ALL[1],
    Database {
        api: &kind::DATABASE,
        controller: &controller::DATABASE,
        pilot: &pilot::DATABASE,
        shown: &shown::DATABASE,
    },
];

pub(crate) fn main() -> ExitCode {
    // Two TLS providers in one process panic at the first handshake; name ours before any.
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("nothing installed a TLS provider before main");
    navigator::cli::main(std::env::args_os(), ALL)
}
