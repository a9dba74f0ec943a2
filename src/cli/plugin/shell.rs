//! The command `shell`: becomes `kubectl exec` with the database's own client.

use std::{
    ffi::{CString, OsString},
    io::{IsTerminal, stdin, stdout},
    os::unix::ffi::OsStrExt,
};

use super::args::{CommonArgs, ShellArgs};
use crate::{
    api::picture::NodePicture,
    plugin::{
        error::Error,
        lookup::{PluginSession, name_of, node},
    },
};

/// Returns the command line of the program that this process becomes.
pub(super) async fn program(
    common: &CommonArgs,
    session: &PluginSession,
    args: &ShellArgs,
) -> Result<Vec<OsString>, Error> {
    let found = session.cluster(&args.name).await?;
    let pilots = session.pilots(&found).await?;
    let pilot = match &args.node {
        Some(name) => node(found.name(), &pilots, name)?,
        None => pilots.iter().find(|pilot| NodePicture::new(pilot).serves()).ok_or_else(|| {
            Error::Held(format!("no node of {} is ready; name one", found.reference()))
        })?,
    };
    let Some(database) = session.database(found.kind) else {
        return Err(Error::Usage(format!("{} has no client", found.kind.kind())));
    };
    let mut words: Vec<OsString> = vec!["kubectl".into()];
    let mut flag = |name: &str, value: OsString| words.extend([OsString::from(name), value]);
    if let Some(file) = &common.kubeconfig {
        flag("--kubeconfig", file.into());
    }
    if let Some(context) = &common.context {
        flag("--context", context.into());
    }
    flag("--namespace", found.namespace().into());
    let terminal = stdin().is_terminal() && stdout().is_terminal();
    words.extend(["exec", if terminal { "-it" } else { "-i" }].map(OsString::from));
    words.extend([name_of(pilot), "-c", database.names.container, "--"].map(OsString::from));
    words.extend(database.shell.iter().map(OsString::from));
    words.extend(args.words.iter().cloned());
    Ok(words)
}

/// Replaces this process by the program; returns only on failure.
pub(super) fn become_it(words: &[OsString]) -> Result<u8, Error> {
    let arguments: Result<Vec<CString>, _> =
        words.iter().map(|word| CString::new(word.as_bytes())).collect();
    let arguments =
        arguments.map_err(|_| Error::Usage("an argument holds a zero byte".to_owned()))?;
    let failed = nix::unistd::execvp(&arguments[0], &arguments).unwrap_err();
    Err(match failed {
        nix::Error::ENOENT => Error::Usage("kubectl is not on the PATH".to_owned()),
        failed => Error::Usage(format!("failed to run kubectl: {failed}")),
    })
}
