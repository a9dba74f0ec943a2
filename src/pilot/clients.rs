//! Clients of the management interfaces that databases have, for their drivers. They know no
//! database.

pub mod jolokia;
