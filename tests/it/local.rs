//! Everything on one host: the API, with the real kubectl.

mod api;
mod host;
