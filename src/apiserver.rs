//! The API server: owns the types' storage, versions, validation and audit trail. Runs no
//! control logic.

pub mod admission;
pub mod authn;
pub mod cache;
pub mod negotiate;
pub mod options;
pub mod request_info;
pub mod selector;
pub mod status;
pub mod storage;
pub mod url;
pub mod view;
