//! The command line of `navigator apiserver migrate-storage`.

use std::io::Write;

use tracing::error;

use super::store;
use crate::{
    apiserver::{migrate_storage, registry::MigrationReport},
    cli::{complain, logging},
    database::{DatabaseList, scheme},
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

pub(super) fn run(args: Args, databases: DatabaseList) -> u8 {
    let Args { store, logging } = args;
    let store = match logging.init().and_then(|()| store.config()) {
        Ok(store) => store,
        Err(text) => {
            complain(&text);
            return exit::USAGE;
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("failed to start threads: {error}"));
            return exit::FAILURE;
        }
    };
    match runtime.block_on(migrate_storage::run(&store, scheme(databases))) {
        Ok(found) => report(&found),
        Err(failure) => {
            error!(error = %chain(&failure), "The migration failed");
            exit::FAILURE
        }
    }
}

fn report(found: &[(&str, MigrationReport)]) -> u8 {
    let written = writeln!(std::io::stdout(), "{}", summary(found));
    let complete = found.iter().all(|(_, migrated)| migrated.failed.is_empty());
    if written.is_ok() && complete { exit::OK } else { exit::FAILURE }
}

fn summary(found: &[(&str, MigrationReport)]) -> String {
    let parts = found.iter().map(|(resource, migrated)| {
        let MigrationReport { rewritten, current, failed } = migrated;
        let failed = failed.len();
        format!("{resource}: {rewritten} rewritten, {current} already current, {failed} failed")
    });
    parts.collect::<Vec<_>>().join("; ")
}
