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
        lookup::{ClusterObject, PluginSession, find_node, name_of},
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
pub(super) async fn prepare_console(
    common: &CommonArgs,
    session: &PluginSession,
    args: &ShellArgs,
) -> Result<ConsoleProcess, Error> {
    let cluster = session.find_cluster(&args.name).await?;
    let pilots = session.list_pilots(&cluster).await?;
    let pilot =
        match &args.node {
            Some(name) => find_node(cluster.name(), &pilots, name)?,
            None => pilots.iter().find(|pilot| NodePicture::new(pilot).is_serving()).ok_or_else(
                || Error::Held(format!("no node of {} is ready; name one", cluster.reference())),
            )?,
        };
    let Some(database) = session.database(cluster.kind) else {
        return Err(Error::Usage(format!("{} has no client", cluster.kind.kind())));
    };
    let security = pilot.spec.security.as_ref();
    let requires_password =
        security.is_some_and(|security| security.authentication == Authentication::Password);
    if args.user.is_some() && !requires_password {
        return Err(Error::NoLogin(cluster.reference()));
    }
    let exec = ExecCommand { common, found: &cluster, pilot, container: database.names.container };
    let is_terminal = stdin().is_terminal() && stdout().is_terminal();
    let Some(access) = ConsoleAccess::new(security, random_number()?) else {
        let arguments = database.console.open.iter().map(OsString::from);
        let client = exec.command_line(is_terminal, arguments.chain(args.words.iter().cloned()));
        return Ok(ConsoleProcess { login: None, client });
    };
    let Some(secured_console) = &database.console.secured else {
        return Err(Error::Usage(format!("{} has no client that logs in", cluster.kind.kind())));
    };
    let mut login = None;
    if let Some(path) = &access.login {
        let manual_command = || {
            let words =
                exec.command_line(true, std::iter::once((secured_console.by_hand)(&access).into()));
            let words = words.iter().map(|word| word.display().to_string());
            words.collect::<Vec<_>>().join(" ")
        };
        let credentials = session.read_credentials(&cluster, args.user.as_deref()).await;
        let credentials = credentials.map_err(|error| match error {
            Error::NotAllowed { object } => {
                Error::NoLoginToRead { object, by_hand: manual_command() }
            }
            error => error,
        })?;
        let file_login =
            ConsoleLogin { username: &credentials.username, password: &credentials.password };
        let text = (secured_console.login_file)(&access, &file_login).map_err(|reason| {
            Error::Unusable(format!(
                "Secret {}: {reason}; type: {}",
                credentials.secret,
                manual_command()
            ))
        })?;
        let keep_command = ["sh", "-c", KEEP_LOGIN, "login", path].map(OsString::from);
        login = Some((exec.command_line(false, keep_command.into_iter()), text));
    }
    let command = (secured_console.command)(&access).into_iter().map(OsString::from);
    let client = exec.command_line(is_terminal, command.chain(args.words.iter().cloned()));
    Ok(ConsoleProcess { login, client })
}

/// Returns a number that no other console has.
fn random_number() -> Result<u64, Error> {
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
    fn command_line(
        &self,
        terminal: bool,
        program: impl Iterator<Item = OsString>,
    ) -> Vec<OsString> {
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
    pub(super) fn exec_client(&self) -> Result<u8, Error> {
        if let Some((words, text)) = &self.login {
            pass_login(words, text)?;
        }
        exec_program(&self.client)
    }
}

/// Runs a program to its end, with a login as its standard input.
fn pass_login(words: &[OsString], login: &str) -> Result<(), Error> {
    let to_error = |error: std::io::Error| match error.kind() {
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
    let mut child = child.map_err(to_error)?;
    let write_result =
        child.stdin.take().map_or(Ok(()), |mut input| input.write_all(login.as_bytes()));
    let exit_status = child.wait().map_err(to_error)?;
    if exit_status.success() && write_result.is_ok() {
        return Ok(());
    }
    Err(Error::Unusable("the login was not passed on to the node; kubectl said why".to_owned()))
}

/// Replaces this process by the program; returns only on failure.
fn exec_program(words: &[OsString]) -> Result<u8, Error> {
    let arguments: Result<Vec<CString>, _> =
        words.iter().map(|word| CString::new(word.as_bytes())).collect();
    let arguments =
        arguments.map_err(|_| Error::Usage("an argument holds a zero byte".to_owned()))?;
    let error = nix::unistd::execvp(&arguments[0], &arguments).unwrap_err();
    Err(match error {
        nix::Error::ENOENT => Error::Usage("kubectl is not on the PATH".to_owned()),
        error => Error::Usage(format!("failed to run kubectl: {error}")),
    })
}
