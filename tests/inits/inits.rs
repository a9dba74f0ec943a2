//! The inits that are compared, each with the flags that its own pages recommend.

#![expect(clippy::disallowed_methods, reason = "asks programs for their versions")]

use std::{process::Command, time::Duration};

use super::process::Mode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Init {
    Ours,
    Tini,
    /// Signals go to the child's whole group.
    TiniGroup,
    Dumb,
    /// Signals go to the child alone.
    DumbSingle,
    /// The program itself is PID 1.
    None,
}

pub(crate) const ALL: [Init; 6] =
    [Init::Ours, Init::Tini, Init::TiniGroup, Init::Dumb, Init::DumbSingle, Init::None];

impl Init {
    /// Heading of its column.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Ours => "navigator pilot exec",
            Self::Tini => "tini",
            Self::TiniGroup => "tini -g",
            Self::Dumb => "dumb-init",
            Self::DumbSingle => "dumb-init -c",
            Self::None => "no init",
        }
    }

    pub(crate) fn argv(self, mode: Mode, flags: &[&str], command: &[&str]) -> Vec<String> {
        let own: &[&str] = match (self, mode) {
            (Self::Ours, _) => &[env!("CARGO_BIN_EXE_navigator"), "pilot", "exec"],
            // "-s" is for a tini that is not PID 1.
            (Self::Tini, Mode::Pid1) => &["tini", "--"],
            (Self::Tini, Mode::Subreaper) => &["tini", "-s", "--"],
            (Self::TiniGroup, Mode::Pid1) => &["tini", "-g", "--"],
            (Self::TiniGroup, Mode::Subreaper) => &["tini", "-s", "-g", "--"],
            (Self::Dumb, _) => &["dumb-init", "--"],
            (Self::DumbSingle, _) => &["dumb-init", "--single-child", "--"],
            (Self::None, _) => &[],
        };
        let mut argv = own.to_vec();
        if self == Self::Ours {
            argv.extend(flags);
            argv.push("--");
        }
        argv.extend(command);
        argv.into_iter().map(str::to_owned).collect()
    }

    /// How long a case waits. Our init must pass on a busy machine, too; what another init does not
    /// do costs this time in every case.
    pub(crate) fn patience(self) -> Duration {
        match self {
            Self::Ours => Duration::from_secs(60),
            _ => Duration::from_secs(5),
        }
    }

    /// As the program says it.
    pub(crate) fn version(self) -> Option<String> {
        let (program, argument) = match self {
            Self::Ours => (env!("CARGO_BIN_EXE_navigator"), "version"),
            Self::Tini => ("tini", "--version"),
            Self::Dumb => ("dumb-init", "--version"),
            _ => return None,
        };
        let output = Command::new(program)
            .arg(argument)
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}; install Debian's {program}"));
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        text.lines().next().map(str::to_owned)
    }
}
