//! The data directory: its lock, whose data lie there, and the pilot's own files on it.

pub mod files;
pub mod folder;
pub mod lock;
pub mod memory;
pub mod ownership;
pub mod ring;
