//! The API as one pilot uses it: intent, report, the turn to start, the lead.

pub mod backoff;
pub mod breaker;
pub mod events;
pub mod founding;
pub mod intent;
pub mod leader;
pub mod name_holder;
pub mod peer_addresses;
pub mod peers;
pub mod pilot_api;
pub mod registration;
pub mod reporter;
