//! The API server: owns the types' storage, versions, validation and audit trail. Runs no
//! control logic.

pub mod status;
pub mod storage;
