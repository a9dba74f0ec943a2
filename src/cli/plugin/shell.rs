//! The command `shell`: becomes `kubectl exec` with the database's own client.

use std::{
    ffi::{CString, OsString},
    io::{IsTerminal, Write as _, stdin, stdout},
    os::unix::ffi::OsStrExt,
    process::Stdio,
};

use super::args::{CommonArgs, ShellArgs};
use crate::{
    api::{
        picture::NodePicture,
        v1beta1::{Authentication, Pilot},
    },
    plugin::{
        console::{ConsoleAccess, ConsoleLogin, KEEP_LOGIN},
        error::Error,
        lookup::{ClusterObject, PluginSession, name_of, node},
    },
};

/// A client of a database that is about to be opened.
pub(super) struct ConsoleProcess {
    /// What is run first, and its standard input, where the client logs in.
    login: Option<(Vec<OsString>, String)>,
    /// The command line of the program that this process becomes.
    client: Vec<OsString>,
}

/// Returns what opens the client.
pub(super) async fn console(
    common: &CommonArgs,
    session: &PluginSession,
    args: &ShellArgs,
) -> Result<ConsoleProcess, Error> {
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
    let told = pilot.spec.security.as_ref();
    let asks = told.is_some_and(|told| told.authentication == Authentication::Password);
    if args.user.is_some() && !asks {
        return Err(Error::NoLogin(found.reference()));
    }
    let exec = ExecCommand { common, found: &found, pilot, container: database.names.container };
    let terminal = stdin().is_terminal() && stdout().is_terminal();
    let Some(access) = ConsoleAccess::new(told, number()?) else {
        let open = database.console.open.iter().map(OsString::from);
        let client = exec.words(terminal, open.chain(args.words.iter().cloned()));
        return Ok(ConsoleProcess { login: None, client });
    };
    let Some(secured) = &database.console.secured else {
        return Err(Error::Usage(format!("{} has no client that logs in", found.kind.kind())));
    };
    let mut login = None;
    if let Some(path) = &access.login {
        let by_hand = || {
            let words = exec.words(true, std::iter::once((secured.by_hand)(&access).into()));
            let words = words.iter().map(|word| word.display().to_string());
            words.collect::<Vec<_>>().join(" ")
        };
        let credentials = session.credentials(&found, args.user.as_deref()).await;
        let credentials = credentials.map_err(|error| match error {
            Error::NotAllowed { object } => Error::NoLoginToRead { object, by_hand: by_hand() },
            error => error,
        })?;
        let of_file =
            ConsoleLogin { username: &credentials.username, password: &credentials.password };
        let text = (secured.login_file)(&access, &of_file).map_err(|why| {
            Error::Unusable(format!("Secret {}: {why}; type: {}", credentials.secret, by_hand()))
        })?;
        let keep = ["sh", "-c", KEEP_LOGIN, "login", path].map(OsString::from);
        login = Some((exec.words(false, keep.into_iter()), text));
    }
    let command = (secured.command)(&access).into_iter().map(OsString::from);
    let client = exec.words(terminal, command.chain(args.words.iter().cloned()));
    Ok(ConsoleProcess { login, client })
}

/// Returns a number that no other console has.
fn number() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| Error::Write(error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// `kubectl exec` into the database's container of a node.
struct ExecCommand<'a> {
    common: &'a CommonArgs,
    found: &'a ClusterObject,
    pilot: &'a Pilot,
    container: &'a str,
}

impl ExecCommand<'_> {
    fn words(&self, terminal: bool, program: impl Iterator<Item = OsString>) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["kubectl".into()];
        let mut flag = |name: &str, value: OsString| words.extend([OsString::from(name), value]);
        if let Some(file) = &self.common.kubeconfig {
            flag("--kubeconfig", file.into());
        }
        if let Some(context) = &self.common.context {
            flag("--context", context.into());
        }
        flag("--namespace", self.found.namespace().into());
        words.extend(["exec", if terminal { "-it" } else { "-i" }].map(OsString::from));
        words.extend([name_of(self.pilot), "-c", self.container, "--"].map(OsString::from));
        words.extend(program);
        words
    }
}

impl ConsoleProcess {
    /// Passes the login on, and replaces this process by the client; returns only on failure.
    pub(super) fn begin(&self) -> Result<u8, Error> {
        if let Some((words, text)) = &self.login {
            pass_on(words, text)?;
        }
        become_it(&self.client)
    }
}

/// Runs a program to its end, with a login as its standard input.
fn pass_on(words: &[OsString], login: &str) -> Result<(), Error> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::Usage("kubectl is not on the PATH".to_owned()),
        _ => Error::Usage(format!("failed to run kubectl: {error}")),
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "the plugin is nobody's init, and waits here for its one child"
    )]
    let mut command = std::process::Command::new(&words[0]);
    // What it has to say is no answer.
    let child = command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut child = child.map_err(failed)?;
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(login.as_bytes()));
    let ended = child.wait().map_err(failed)?;
    if ended.success() && written.is_ok() {
        return Ok(());
    }
    Err(Error::Unusable("the login was not passed on to the node; kubectl said why".to_owned()))
}

/// Replaces this process by the program; returns only on failure.
fn become_it(words: &[OsString]) -> Result<u8, Error> {
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
