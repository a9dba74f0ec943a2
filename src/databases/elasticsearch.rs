//! Elasticsearch.

pub mod pilot;
