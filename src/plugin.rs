//! `kubectl navigator`: what people ask of clusters, and the few things that they change, through
//! the API alone.
//!
//! Owns how people name clusters and nodes, what is read for each question, and how answers look.
//! Leaves flags, the kubeconfig and other programs to `cli`. Screens are rendered from objects
//! and a time that are handed in, and so the same objects always give the same screen.

pub mod bundle;
pub mod change;
pub mod check;
pub mod error;
pub mod find;
pub mod logs;
pub mod predicates;
pub mod status;
pub mod text;

use crate::api::{database_names::DatabaseNames, v1beta1::PilotStatus};

/// A database, as users ask for it.
#[derive(Debug)]
pub struct ShownDatabase {
    pub names: &'static DatabaseNames,
    /// The database's own client: a program in its container and its first arguments. The user's
    /// arguments follow.
    pub shell: &'static [&'static str],
    /// How much a node holds, as the database itself counts.
    pub load: fn(&PilotStatus) -> Option<NodeLoad>,
    /// A node keeps rows that it gave away until it is told to remove them.
    pub cleans_up: bool,
    /// What sets a node apart from the others just now, in a word or two.
    pub remark: fn(&PilotStatus) -> Option<String>,
    /// Rules that its pilots report as reasons not to stop a node.
    pub predicates: &'static [Predicate],
}

/// How much a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeLoad {
    Bytes(i64),
    Documents(i64),
}

impl std::fmt::Display for NodeLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => f.write_str(&text::bytes(*bytes)),
            Self::Documents(1) => f.write_str("1 doc"),
            Self::Documents(documents) => write!(f, "{documents} docs"),
        }
    }
}

/// A rule that makes a step wait while it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predicate {
    /// Its name in `status.operation.blockedBy` and `spec.updateStrategy.skipPredicates`.
    pub name: &'static str,
    /// Completes the sentence: a step waits while …
    pub sentence: &'static str,
}
