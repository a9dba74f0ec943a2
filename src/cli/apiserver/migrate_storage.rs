//! The command line of `navigator apiserver migrate-storage`.

use std::io::Write;

use tracing::error;

use super::store;
use crate::{
    apiserver::{migrate_storage, registry::MigrationReport},
    cli::{logging, print_error},
    database::{DatabaseList, build_scheme},
    error::{chain, exit},
};

/// Rewrites every stored object that is in an older form, so that later releases can read it.
///
/// Safe to repeat, and safe beside servers that use the same etcd. An embedded store belongs to
/// one process: stop its server first. The last line, on standard output, counts the objects of
/// each resource.
///
/// Exit codes: 0 every object is in the current form, 1 failed or objects were left as they are,
/// 64 unusable arguments or settings.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  navigator apiserver migrate-storage --store-path /var/lib/navigator
  navigator apiserver migrate-storage --store etcd --etcd-servers https://etcd-0:2379 \\
    --etcd-cafile ca.crt --etcd-certfile tls.crt --etcd-keyfile tls.key")]
pub(super) struct Args {
    #[command(flatten)]
    store: store::Args,
    #[command(flatten)]
    logging: logging::Args,
}

pub(super) fn run_migration(args: Args, databases: DatabaseList) -> u8 {
    let Args { store, logging } = args;
    let store = match logging.init().and_then(|()| store.build_config()) {
        Ok(store) => store,
        Err(text) => {
            print_error(&text);
            return exit::USAGE;
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&format!("failed to start threads: {error}"));
            return exit::FAILURE;
        }
    };
    match runtime.block_on(migrate_storage::migrate_kinds(&store, build_scheme(databases))) {
        Ok(reports) => print_report(&reports),
        Err(failure) => {
            error!(error = %chain(&failure), "The migration failed");
            exit::FAILURE
        }
    }
}

fn print_report(reports: &[(&str, MigrationReport)]) -> u8 {
    let write_result = writeln!(std::io::stdout(), "{}", format_summary(reports));
    let is_complete = reports.iter().all(|(_, report)| report.failed.is_empty());
    if write_result.is_ok() && is_complete { exit::OK } else { exit::FAILURE }
}

fn format_summary(reports: &[(&str, MigrationReport)]) -> String {
    let parts = reports.iter().map(|(resource, report)| {
        let MigrationReport { rewritten, current, failed } = report;
        let failed = failed.len();
        format!("{resource}: {rewritten} rewritten, {current} already current, {failed} failed")
    });
    parts.collect::<Vec<_>>().join("; ")
}
