//! The controller: turns clusters into objects of the orchestrator, one leader at a time. It
//! decides when; it knows no database protocol.
