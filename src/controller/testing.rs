//! For tests only: an example database, sample clusters of it, and a simulation of what runs them.

pub(crate) mod example;
pub(crate) mod sample;
pub(crate) mod simulation;
