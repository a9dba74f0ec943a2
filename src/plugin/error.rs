//! The errors of the plugin's commands, in words for the user.

use std::{io, path::PathBuf, time::Duration};

use crate::error::{chain, exit};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line cannot be parsed.
    #[error("{0}")]
    Usage(String),
    #[error("there is no cluster {name:?} in namespace {namespace:?}")]
    NoCluster { name: String, namespace: String },
    #[error("{name:?} is the name of several clusters: say {}", .known.join(" or "))]
    Ambiguous { name: String, known: Vec<String> },
    #[error("{kind:?} is no kind of cluster; there are {}", .known.join(", "))]
    UnknownKind { kind: String, known: Vec<String> },
    #[error("cluster {cluster:?} has no node {node:?}; it has {}", join_or_none(.nodes))]
    NoNode { cluster: String, node: String, nodes: Vec<String> },
    #[error("{node:?} may be each of {}: say more of its name", .nodes.join(", "))]
    AmbiguousNode { node: String, nodes: Vec<String> },
    #[error("cluster {cluster:?} has no node pool {pool:?}; it has {}", join_or_none(.pools))]
    NoPool { cluster: String, pool: String, pools: Vec<String> },
    #[error("{0} asks nobody for a password (spec.security)")]
    NoLogin(String),
    #[error("{0} serves its clients without TLS (spec.security)")]
    NoClientTls(String),
    #[error("{0} encrypts nothing (spec.security)")]
    NoTls(String),
    #[error(
        "cluster {cluster:?} declares no user {user:?}; it has {}, and its administrator where none \
         is named",
        join_or_none(.users)
    )]
    NoUser { cluster: String, user: String, users: Vec<String> },
    #[error("you may not read {object}")]
    NotAllowed { object: String },
    #[error("{object} is not there")]
    NotThere { object: String },
    /// What was read cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The login of a node's client may not be read.
    #[error("you may not read {object}; a login of your own is asked for by {by_hand}")]
    NoLoginToRead { object: String, by_hand: String },
    #[error("there is no machine {0:?}; kubectl get nodes lists them")]
    NoMachine(String),
    #[error(
        "Kubernetes does not serve navigator.jetstack.io; `kubectl navigator install check` says why"
    )]
    NotInstalled,
    #[error(
        "Kubernetes does not serve ClusterUpgrades: `navigator manifest --cluster-manager` installs \
         what does"
    )]
    NoClusterManager,
    /// A rule forbids the step now, and may allow it later.
    #[error("{0}")]
    Held(String),
    #[error("no answer within {} s (--timeout)", .0.as_secs())]
    Timeout(Duration),
    #[error("{}", server_message(.0))]
    Server(#[source] kube::Error),
    #[error("failed to write {path:?}")]
    WriteFile { path: PathBuf, source: io::Error },
    #[error("failed to write to standard output")]
    Write(#[source] io::Error),
    #[error("failed to read the log of {pod}")]
    ReadLog { pod: String, source: io::Error },
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Server(error)
    }
}

impl Error {
    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::UnknownKind { .. } => exit::USAGE,
            Self::Held(_) => exit::NOT_READY,
            _ => exit::FAILURE,
        }
    }

    /// Returns the error as it is shown, with its causes.
    pub fn full_message(&self) -> String {
        match self {
            // The text of this error has its causes already.
            Self::Server(_) => self.to_string(),
            error => chain(error).to_string(),
        }
    }
}

fn join_or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns a server's error message, as kubectl words it.
pub fn server_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.reason.is_empty() => {
            format!("from server: {}", status.message)
        }
        kube::Error::Api(status) => format!("from server ({}): {}", status.reason, status.message),
        error => format!("failed to ask Kubernetes: {}", chain(error)),
    }
}
