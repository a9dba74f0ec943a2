//! Elasticsearch.

pub mod facts;
pub mod pilot;
