//! Which answer is the last of its HTTP/2 connection.
//!
//! Whoever is not known gets one answer for each connection (kube-apiserver's
//! `UnauthenticatedHTTP2DOSMitigation`, after CVE-2023-44487). Connections of others last as long as
//! they like, which keeps all clients at the replica that started first; so some may be ended by
//! chance (`--goaway-chance`). Requests that are under way on such a connection are answered.

use rand::Rng;

/// In the extensions of a response: the connection ends after it.
#[derive(Clone, Copy, Debug)]
pub struct LastAnswer;

/// The part of all requests after which a connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Goaway(f64);

impl Goaway {
    /// At most one request of fifty.
    pub const MOST: f64 = 0.02;

    /// Fails unless it is from 0 to [`Goaway::MOST`].
    pub fn new(chance: f64) -> Result<Self, String> {
        if (0.0..=Self::MOST).contains(&chance) {
            return Ok(Self(chance));
        }
        Err(format!("{chance} is not from 0 to {}", Self::MOST))
    }

    pub(super) fn strikes(self) -> bool {
        self.0 > 0.0 && rand::rng().random_bool(self.0)
    }
}
