//! `kubectl navigator`: answers users' questions about clusters, and makes a few changes, through
//! the API alone.
//!
//! Owns how users name clusters and nodes, what is read for each question, and how answers look.
//! Leaves flags, the kubeconfig and other programs to `cli`. Screens are rendered from given
//! objects and a given time, so the same objects always give the same screen.

pub mod bundle;
pub mod certificates;
pub mod change;
pub mod console;
pub mod credentials;
pub mod drain;
pub mod error;
pub mod install_check;
pub mod logs;
pub mod lookup;
pub mod machines;
pub mod predicates;
pub mod status;
pub mod text;

use self::console::DatabaseConsole;
use crate::api::{database_names::DatabaseNames, v1beta1::PilotStatus};

/// What the plugin knows of a database.
#[derive(Debug)]
pub struct ShownDatabase {
    pub names: &'static DatabaseNames,
    /// The database's own client, as `shell` opens it.
    pub console: DatabaseConsole,
    /// Where clients connect.
    pub client: ClientEndpoint,
    /// How much data a node holds, as the database itself counts.
    pub load: fn(&PilotStatus) -> Option<NodeLoad>,
    /// Nodes keep rows that they gave away until they are told to remove them.
    pub cleans_up: bool,
    /// What is lost when a node begins its cluster anew without a quorum of the others; `None` where
    /// the nodes elect no leader.
    pub lost_with_quorum: Option<&'static str>,
    /// Remark about a node's present state in a word or two, where that differs from the usual.
    pub remark: fn(&PilotStatus) -> Option<String>,
}

/// Where and as whom clients connect to a cluster, as far as its Secrets do not say.
#[derive(Debug)]
pub struct ClientEndpoint {
    /// Returns the name of the Service for clients, from the cluster's name.
    pub service: fn(&str) -> String,
    pub port: u16,
    /// Schemes of a client's URI, with TLS and without; `None` where clients use none.
    pub schemes: Option<[&'static str; 2]>,
    /// Name of the administrator.
    pub admin: &'static str,
}

/// How much data a node holds, in the database's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeLoad {
    Bytes(i64),
    Documents(i64),
}

impl std::fmt::Display for NodeLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&text::format_bytes(*bytes)),
            Self::Documents(1) => f.write_str("1 doc"),
            Self::Documents(documents) => write!(f, "{documents} docs"),
        }
    }
}
