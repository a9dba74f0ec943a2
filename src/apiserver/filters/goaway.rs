//! Which answer is the last of its HTTP/2 connection.
//!
//! An unknown client gets one answer for each connection, even if it resets the stream before
//! (kube-apiserver's `UnauthenticatedHTTP2DOSMitigation`, after CVE-2023-44487). Connections of
//! other clients last as long as they like, which keeps all clients at the replica that started
//! first; so some may be ended by chance (`--goaway-chance`). Requests that are under way are
//! answered.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use rand::Rng;
use tokio::{sync::Notify, time::Instant};

/// Time for a client to hear that its connection ends. A later request shows that it ignores it.
const HEARD: Duration = Duration::from_secs(5);

/// The end of an HTTP/2 connection, in the extensions of its requests. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct ConnectionFarewell(Arc<FarewellState>);

#[derive(Debug, Default)]
struct FarewellState {
    at: OnceLock<Instant>,
    waiting: Notify,
    ignored: Notify,
}

impl ConnectionFarewell {
    /// Asks the client to end the connection.
    pub fn say(&self) {
        if self.0.at.set(Instant::now()).is_ok() {
            self.0.waiting.notify_one();
        }
    }

    /// Waits until farewell is said. Cancel-safe, for a single waiter.
    pub async fn said(&self) {
        self.0.waiting.notified().await;
    }

    /// A request begins.
    pub fn another_request(&self) {
        if self.0.at.get().is_some_and(|at| at.elapsed() > HEARD) {
            self.0.ignored.notify_one();
        }
    }

    /// Waits until a client that should have heard sends a request. Cancel-safe, for a single
    /// waiter.
    pub async fn ignored(&self) {
        self.0.ignored.notified().await;
    }
}

/// Says farewell when it is dropped, unless the request's user became known.
pub(super) struct StrangerFarewell(Option<ConnectionFarewell>);

impl StrangerFarewell {
    pub(super) fn new(farewell: Option<ConnectionFarewell>) -> Self {
        Self(farewell)
    }

    /// The request's client may send more requests on this connection.
    pub(super) fn known(&mut self) {
        self.0 = None;
    }
}

impl Drop for StrangerFarewell {
    fn drop(&mut self) {
        if let Some(farewell) = &self.0 {
            farewell.say();
        }
    }
}

/// The part of all requests after which a connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GoawayChance(f64);

impl GoawayChance {
    /// At most one request of fifty.
    pub const MOST: f64 = 0.02;

    /// Fails unless `chance` is from 0 to [`Goaway::MOST`].
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
