//! The API as one pilot uses it: what is wanted, what is reported, whose turn it is, who leads.

pub mod backoff;
pub mod cluster;
pub mod election;
pub mod gate;
pub mod intent;
pub mod leader;
pub mod namesake;
pub mod news;
pub mod peers;
pub mod registration;
pub mod reporter;
