//! The command line of `navigator apiserver store export|import|identity|forget`.

use std::io::{self, BufReader, BufWriter, Write};

use tracing::{error, info, warn};

use super::store;
use crate::{
    api::scheme::Scheme,
    apiserver::{
        run::StoreConfig,
        store_tools::{self, Error},
    },
    cli::{logging, print_error},
    database::{DatabaseList, build_scheme},
    error::{chain, exit},
};

/// Reads, writes and mends a store beside serving it.
///
/// An embedded store belongs to one process: stop its server first. With etcd the tasks run
/// beside the servers.
///
/// Exit codes: 0 done, 1 failed, 64 unusable arguments or settings.
#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, disable_help_subcommand = true)]
#[command(after_help = "Examples:
  navigator apiserver store export --store-path /var/lib/navigator > backup.jsonl
  navigator apiserver store import --store-path /var/lib/navigator < backup.jsonl
  navigator apiserver store identity --store-path /var/lib/navigator
  navigator apiserver store forget pilots/db/a --store-path /var/lib/navigator")]
pub(super) struct Args {
    #[command(subcommand)]
    task: StoreCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StoreCommand {
    /// Writes every object to standard output, as JSON lines, all as of one moment.
    Export(StoreCommandArgs),
    /// Fills an empty store with the export on standard input. The store gets the id that the
    /// exported one has; a person accepts it before it is served.
    Import {
        /// Leave out, and name, what this release cannot read.
        #[arg(long)]
        skip_unreadable: bool,
        #[command(flatten)]
        flags: StoreCommandArgs,
    },
    /// Shows the store's id and revision, how many objects it holds, and which cannot be read.
    Identity(StoreCommandArgs),
    /// Removes objects that cannot be read and writes what they were to standard output.
    Forget {
        /// RESOURCE/NAMESPACE/NAME, for example pilots/db/a.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Also those that can be read: of a store that holds too much for a server to start. What
        /// belongs to them stays behind.
        #[arg(long)]
        even_readable: bool,
        #[command(flatten)]
        flags: StoreCommandArgs,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct StoreCommandArgs {
    #[command(flatten)]
    store: store::Args,
    #[command(flatten)]
    logging: logging::Args,
}

pub(super) fn run_store_command(args: Args, databases: DatabaseList) -> u8 {
    let Args { task } = args;
    let (StoreCommand::Export(flags)
    | StoreCommand::Import { flags, .. }
    | StoreCommand::Identity(flags)
    | StoreCommand::Forget { flags, .. }) = &task;
    let StoreCommandArgs { store, logging } = flags.clone();
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
    match runtime.block_on(run_task(&task, &store, build_scheme(databases))) {
        Ok(()) => exit::OK,
        Err(failure @ Error::Name(_)) => {
            print_error(&chain(&failure).to_string());
            exit::USAGE
        }
        Err(failure) => {
            error!(error = %chain(&failure), "The task failed");
            exit::FAILURE
        }
    }
}

async fn run_task(task: &StoreCommand, store: &StoreConfig, scheme: &Scheme) -> Result<(), Error> {
    let print_line = |text: String| writeln!(io::stdout(), "{text}").map_err(Error::Write);
    match task {
        StoreCommand::Export(_) => {
            let exported =
                store_tools::export_store(store, scheme, &mut BufWriter::new(io::stdout())).await?;
            for (key, why) in exported.unreadable {
                warn!(key, why, "Exported an object that this release cannot read");
            }
            info!(objects = exported.objects, "Exported the store");
            Ok(())
        }
        StoreCommand::Import { skip_unreadable, .. } => {
            let input = BufReader::new(io::stdin());
            let imported =
                store_tools::import_store(store, scheme, input, *skip_unreadable).await?;
            for (key, why) in imported.skipped {
                warn!(key, why, "Left out an object that this release cannot read");
            }
            print_line(format!("imported {} objects into store {}", imported.objects, imported.id))
        }
        StoreCommand::Identity(_) => {
            let identity = store_tools::read_identity(store, scheme).await?;
            print_line(format!("id: {}", identity.id))?;
            print_line(format!("revision: {}", identity.revision))?;
            print_line(format!("objects: {}", identity.objects))?;
            for (key, reason) in identity.unreadable {
                print_line(format!("unreadable: {key} ({reason})"))?;
            }
            Ok(())
        }
        StoreCommand::Forget { names, even_readable, .. } => {
            let removed_objects =
                store_tools::remove_objects(store, scheme, names, *even_readable).await?;
            removed_objects.into_iter().try_for_each(print_line)
        }
    }
}
