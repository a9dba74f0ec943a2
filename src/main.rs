//! One binary, several faces; see [`navigator::cli`].

use std::process::ExitCode;

/// The API server makes and drops trees of small values in several threads at once; with the C
/// library's allocator it spends a fifth of its time on that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Two TLS providers in one process panic at the first handshake; name ours before any.
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("nothing installed a TLS provider before main");
    navigator::cli::main(std::env::args_os(), navigator::databases::ALL)
}
