//! One binary, several faces; see [`navigator::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    // Two TLS providers in one process panic at the first handshake; name ours before any.
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("nothing installed a TLS provider before main");
    navigator::cli::main(std::env::args_os(), navigator::databases::ALL)
}
