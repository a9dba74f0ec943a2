//! What is recorded: operations of clients and streams of watchers, one JSON object a line.

use serde::{Deserialize, Serialize};

/// Microseconds since the run began.
pub(crate) type Moment = u64;

/// An object as a client or watcher saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) revision: u64,
    /// The write that the object says it comes from. Every write has a word of its own.
    pub(crate) main: String,
    /// The write that its status comes from; empty when the status was never written.
    pub(crate) status: String,
    /// The label that selectors look at.
    pub(crate) lane: String,
    /// Hash of the whole object without its revision.
    pub(crate) hash: String,
}

/// Which state a read may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum At {
    Latest,
    Any,
    NotOlderThan(u64),
    Exact(u64),
}

/// What is listed or watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Filter {
    Everything,
    Lane(String),
    Name(String),
}

impl Filter {
    pub(crate) fn selects(&self, key: &str, version: &Version) -> bool {
        match self {
            Self::Everything => true,
            Self::Lane(lane) => *lane == version.lane,
            Self::Name(name) => name == key,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Asked {
    Create {
        key: String,
        main: String,
    },
    /// A whole object at this revision.
    Update {
        key: String,
        main: String,
        expected: u64,
    },
    Status {
        key: String,
        status: String,
        expected: u64,
    },
    /// A merge patch, whatever the object's revision.
    Patch {
        key: String,
        main: String,
    },
    Delete {
        key: String,
        expected: Option<u64>,
    },
    Get {
        key: String,
        at: At,
    },
    List {
        filter: Filter,
        at: At,
        limit: usize,
    },
    /// By the scheduler of faults: history up to here may be forgotten from now on.
    Compact {
        revision: u64,
    },
    /// The store is emptied.
    Wipe,
}

impl Asked {
    pub(crate) fn key(&self) -> Option<&str> {
        match self {
            Self::Create { key, .. }
            | Self::Update { key, .. }
            | Self::Status { key, .. }
            | Self::Patch { key, .. }
            | Self::Delete { key, .. }
            | Self::Get { key, .. } => Some(key),
            Self::List { .. } | Self::Compact { .. } | Self::Wipe => None,
        }
    }

    /// The word that this writes into the object or its status.
    pub(crate) fn word(&self) -> Option<&str> {
        match self {
            Self::Create { main, .. } | Self::Update { main, .. } | Self::Patch { main, .. } => {
                Some(main)
            }
            Self::Status { status, .. } => Some(status),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Written(Version),
    Deleted,
    Found(Version),
    /// The items of all pages together; the revision of each page.
    Listed {
        revisions: Vec<u64>,
        items: Vec<(String, Version)>,
    },
    Absent,
    Exists,
    Conflict,
    /// 410 for a revision that was asked for, in the request or in a token.
    Expired {
        asked: u64,
    },
    /// The server said that it did nothing.
    Refused(u16),
    /// The connection ended, the time was over, or the server does not know.
    Unknown(String),
    Done,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) client: usize,
    pub(crate) begin: Moment,
    pub(crate) end: Moment,
    pub(crate) asked: Asked,
    pub(crate) outcome: Outcome,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Start {
    From(u64),
    /// With the state first, ended by a bookmark.
    State(At),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Seen {
    Added(String, Version),
    Modified(String, Version),
    Deleted(String, Version),
    Bookmark {
        revision: u64,
        ends_state: bool,
    },
    /// The code of the status that ended the watch.
    Error(u16),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at: Moment,
    pub(crate) seen: Seen,
}

/// How a watch ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    /// The server closed it in order.
    Closed,
    Lost,
    /// The watch never began: the code of the status.
    Refused(u16),
    /// The run was over and everything had been seen.
    Content,
}

/// One watch, from its request to its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stream {
    pub(crate) watcher: usize,
    pub(crate) begin: Moment,
    pub(crate) end: Moment,
    pub(crate) filter: Filter,
    pub(crate) start: Start,
    pub(crate) lines: Vec<Line>,
    pub(crate) ended: Ended,
}

/// A line of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Record {
    Operation(Operation),
    Stream(Stream),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
    pub(crate) streams: Vec<Stream>,
}

impl History {
    pub(crate) fn add(&mut self, record: Record) {
        match record {
            Record::Operation(operation) => self.operations.push(operation),
            Record::Stream(stream) => self.streams.push(stream),
        }
    }
}
