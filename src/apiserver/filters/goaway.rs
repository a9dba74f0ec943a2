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

/// Time for a client to learn that its connection ends. A request after it shows that the client
/// ignores the GOAWAY.
const HEARD: Duration = Duration::from_secs(5);

/// Ends an HTTP/2 connection; kept in the extensions of the connection's requests. Clones act on
/// the same connection.
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
    pub fn request_close(&self) {
        if self.0.at.set(Instant::now()).is_ok() {
            self.0.waiting.notify_one();
        }
    }

    /// Waits until [`ConnectionFarewell::request_close`] was called. Cancel-safe, for a single waiter.
    pub async fn wait_until_requested(&self) {
        self.0.waiting.notified().await;
    }

    /// Records that another request began on the connection.
    pub fn another_request(&self) {
        if self.0.at.get().is_some_and(|time| time.elapsed() > HEARD) {
            self.0.ignored.notify_one();
        }
    }

    /// Waits until a client sends a request although it had time to learn that its connection ends.
    /// Cancel-safe, for a single waiter.
    pub async fn wait_until_ignored(&self) {
        self.0.ignored.notified().await;
    }
}

/// Asks the client to end its connection when it is dropped, unless the request's user became
/// known.
pub(super) struct StrangerFarewell(Option<ConnectionFarewell>);

impl StrangerFarewell {
    pub(super) fn new(farewell: Option<ConnectionFarewell>) -> Self {
        Self(farewell)
    }

    /// Lets the request's client send more requests on its connection.
    pub(super) fn keep_connection(&mut self) {
        self.0 = None;
    }
}

impl Drop for StrangerFarewell {
    fn drop(&mut self) {
        if let Some(farewell) = &self.0 {
            farewell.request_close();
        }
    }
}

/// Probability that a connection ends after a request, from 0 to [`GoawayChance::MOST`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GoawayChance(f64);

impl GoawayChance {
    /// Highest probability: one request of fifty.
    pub const MOST: f64 = 0.02;

    /// Fails unless `chance` is from 0 to [`GoawayChance::MOST`].
    pub fn new(chance: f64) -> Result<Self, String> {
        if (0.0..=Self::MOST).contains(&chance) {
            return Ok(Self(chance));
        }
        Err(format!("{chance} is not from 0 to {}", Self::MOST))
    }

    pub(super) fn is_goaway_due(self) -> bool {
        self.0 > 0.0 && rand::rng().random_bool(self.0)
    }
}
