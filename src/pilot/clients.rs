//! Clients of the interfaces that databases have, for their drivers. They know no database: the
//! driver says what an answer means for its node.

pub mod jolokia;
pub mod resp;
pub mod search_engine;
