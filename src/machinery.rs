//! What any API server in Kubernetes' manner needs to know of objects: how bodies are read, what a
//! schema says of a value, who owns which field, how kinds are described; and what its certificates say.
//!
//! Pure: no I/O, no async. Knows no kind, no group and no name of Navigator's: `api` has those, and
//! describes each kind by [`served_kind::ServedKind`]. Decision 15 says why this is a line within one
//! crate.

pub mod decode;
pub mod field_error;
pub mod go_duration;
pub mod openapi;
pub mod ownership;
pub mod protobuf_wire;
pub mod quantity;
pub mod schema;
pub mod served_kind;
pub mod served_kinds;
pub mod strict_decoding;
pub mod unknown_fields;
pub mod x509;
