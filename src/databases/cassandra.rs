//! Apache Cassandra.

pub mod pilot;
