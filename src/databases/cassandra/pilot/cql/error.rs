//! Why Cassandra gave no answer, or not the one that was asked for.

use std::{io, time::Duration};

/// Longest body that is read, in bytes: rows about users and keyspaces come to kilobytes.
pub(super) const LARGEST_BODY: usize = 16 << 20;

/// Why a statement was not answered.
#[derive(Debug, thiserror::Error)]
pub enum CqlError {
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("the connection failed")]
    Transport(#[source] io::Error),
    #[error("TLS could not be agreed upon")]
    Tls(#[source] io::Error),
    /// An error of the database, by its code: 0x0100 for a wrong name or password, 0x2100 for a
    /// missing right, 0x1000 when too few replicas are there.
    #[error("the database answers: {message} (0x{code:04x})")]
    Database { code: i32, message: String },
    #[error("the database asks for a login ({0})")]
    LoginNeeded(String),
    #[error("{0} bytes are too many: at most {LARGEST_BODY} are read")]
    Long(usize),
    #[error("{0}")]
    Malformed(&'static str),
    #[error("an earlier statement left the connection unusable")]
    Unusable,
}

impl CqlError {
    /// The error's code, where the database gave one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Database { code, .. } => Some(*code),
            _ => None,
        }
    }
}
