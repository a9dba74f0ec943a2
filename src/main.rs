//! The navigator binary, which contains every role; see [`navigator::cli`].

use std::process::ExitCode;

/// Allocator of the process. The API server makes and drops trees of small JSON values in several
/// threads at once; with the C library's allocator it would spend a fifth of its time on that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Two TLS providers in one process panic at the first handshake, so ours is installed before
    // any.
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("nothing installed a TLS provider before main");
    navigator::cli::main(std::env::args_os(), navigator::databases::ALL)
}
