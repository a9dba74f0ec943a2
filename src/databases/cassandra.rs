//! Apache Cassandra.

pub mod facts;
pub mod pilot;
