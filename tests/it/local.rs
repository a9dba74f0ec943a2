//! Everything on one host: the API, with the real kubectl.

mod host;
mod kubectl;
