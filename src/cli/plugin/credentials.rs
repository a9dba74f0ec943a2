//! The command `get-credentials`: prints them, and writes the CAs to a file.

use super::{
    args::{CredentialsArgs, CredentialsFormat},
    output::{print_object, print_output},
};
use crate::{
    cli::plugin::args::OutputFormat,
    error::exit,
    plugin::{credentials::CA, error::Error, lookup::PluginSession},
};

/// The answer is the same on a terminal and in a pipe.
pub(super) async fn print_credentials(
    session: &PluginSession,
    args: &CredentialsArgs,
) -> Result<u8, Error> {
    let cluster = session.find_cluster(&args.name).await?;
    let credentials = session.read_credentials(&cluster, args.user.as_deref()).await?;
    let mut json = credentials.json();
    let mut ca_file = None;
    if let Some(path) = &args.ca {
        let trust = session.client_trust(&cluster, &credentials).await?;
        std::fs::write(path, &trust)
            .map_err(|source| Error::WriteFile { path: path.clone(), source })?;
        json[CA] = trust.into();
        ca_file = Some(path.display().to_string());
    }
    match args.output {
        CredentialsFormat::Json => print_object(OutputFormat::Json, &json)?,
        CredentialsFormat::Env => {
            let word = cluster.names.map_or("database", |names| names.word);
            print_output(&credentials.format_env(word, ca_file.as_deref())?)?;
        }
    }
    Ok(exit::OK)
}
