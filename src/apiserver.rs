//! The API server: owns the types' storage, versions, validation and audit trail. Runs no
//! control logic.

pub mod authn;
pub mod request_info;
pub mod status;
pub mod storage;
pub mod url;
