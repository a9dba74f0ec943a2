//! Clients for kube-apiserver, and for other servers that a kubeconfig describes. They try a
//! request once, and their callers decide when to try again.
//!
//! A client of kube tries a refused request again by itself, up to fifteen times, with pauses of
//! minutes, or of as long as the answer says, and logs nothing. Tasks that wait for kube-apiserver
//! here must notice within seconds that it is back, so each caller decides when to ask again.

use std::{path::Path, time::Duration};

use kube::{Client, Config, runtime::utils::Backoff};
use rand::Rng;

use crate::runtime::kubeconfig;

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct KubeClientError(Box<dyn std::error::Error + Send + Sync>);

impl KubeClientError {
    fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// Makes a client for kube-apiserver, with in-cluster credentials when there is no `kubeconfig`.
pub async fn build_client(kubeconfig: Option<&Path>) -> Result<Client, KubeClientError> {
    let config = match kubeconfig {
        Some(path) => load_config(path).await?,
        None => Config::incluster().map_err(KubeClientError::new)?,
    };
    client_of(config)
}

/// Reads the current context of a kubeconfig.
pub async fn load_config(path: &Path) -> Result<Config, KubeClientError> {
    kubeconfig::load_config(path).await.map_err(KubeClientError::new)
}

/// Makes a client that tries each request once.
pub fn client_of(mut config: Config) -> Result<Client, KubeClientError> {
    config.default_retry = false;
    if config.cluster_url.scheme_str() == Some("http") {
        // Plain HTTP checks no certificate, so the CAs that the system trusts, in hundreds of
        // files, need not be read.
        config.root_cert.get_or_insert_default();
    }
    Client::try_from(config).map_err(KubeClientError::new)
}

/// First pause between tries to watch objects. All these pauses are shorter than the time that a
/// write waits for a watch.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Iterates over the pauses between tries to watch objects.
pub(super) struct WatchBackoff(Duration);

impl WatchBackoff {
    pub(super) fn new() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = LONGEST_PAUSE.min(pause * 2);
        Some(rand::rng().random_range(pause / 2..=pause))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0 = FIRST_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_three_seconds_and_begin_anew_after_a_success() {
        let mut pauses = WatchBackoff::new();
        let within = |pause: Option<Duration>, longest| {
            let pause = pause.expect("there is always another try");
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
        };
        for longest in [200, 400, 800, 1600, 3000, 3000] {
            within(pauses.next(), Duration::from_millis(longest));
        }
        pauses.reset();
        within(pauses.next(), FIRST_PAUSE);
    }
}
