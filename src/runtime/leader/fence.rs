//! A client for the writes of a leader.
//!
//! Invariant: nothing is sent, and no answer is waited for, once the claim has ended. A request
//! that is under way then is given up; should it be heard all the same, it carries the version
//! of what was read. Each request names the reign, so that an audit trail tells them apart.

use http::{HeaderValue, Request, header};
use kube::{Client, client::Body};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tower::BoxError;

use super::LeaderClaim;

/// This process leads no more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this process does not lead any more")]
pub struct DeposedError;

/// Returns a client that sends requests by `client` for as long as the claim is held, with `agent`
/// and the number of the reign as `User-Agent`.
pub fn fence_client(
    client: Client,
    claim: watch::Receiver<LeaderClaim>,
    agent: &'static str,
) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (client, mut claim) = (client.clone(), claim.clone());
        async move {
            let LeaderClaim::Held { transition, .. } = *claim.borrow() else {
                return Err(BoxError::from(DeposedError));
            };
            let agent = format!("{agent} reign/{transition}");
            if let Ok(agent) = HeaderValue::from_str(&agent) {
                request.headers_mut().insert(header::USER_AGENT, agent);
            }
            tokio::select! {
                biased;
                () = wait_for_end(&mut claim) => Err(DeposedError.into()),
                answer = client.send(request) => Ok(answer?),
            }
        }
    });
    Client::new(service, namespace)
}

/// Waits until the claim has ended; a renewal moves its end. Cancel-safe.
pub async fn wait_for_end(claim: &mut watch::Receiver<LeaderClaim>) {
    loop {
        let until = match *claim.borrow_and_update() {
            LeaderClaim::Held { until, .. } if Instant::now() < until => until,
            _ => return,
        };
        tokio::select! {
            () = sleep_until(until) => {}
            change = claim.changed() => if change.is_err() {
                // The elector is gone: the claim is not renewed any more.
                sleep_until(until).await;
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::pending,
        sync::{Arc, Mutex},
        time::Duration,
    };

    use http::Response;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;

    use super::*;

    fn held(seconds: u64) -> LeaderClaim {
        LeaderClaim::Held { until: Instant::now() + Duration::from_secs(seconds), transition: 7 }
    }

    /// A server that never answers, and the agents that it heard of.
    fn silent() -> (Client, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let agents = Arc::clone(&heard);
        let service = tower::service_fn(move |request: Request<Body>| {
            let agent = request.headers()[header::USER_AGENT].to_str().unwrap().to_owned();
            agents.lock().unwrap().push(agent);
            pending::<Result<Response<Body>, Infallible>>()
        });
        (Client::new(service, "default"), heard)
    }

    async fn written(client: &Client) -> kube::Error {
        let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
        api.delete("a", &kube::api::DeleteParams::default()).await.unwrap_err()
    }

    fn is_deposed(error: &kube::Error) -> bool {
        matches!(error, kube::Error::Service(error) if error.is::<DeposedError>())
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_given_up_when_the_claim_ends_and_none_is_begun_after() {
        let (server, heard) = silent();
        let (lead, claim) = watch::channel(held(10));
        let client = fence_client(server, claim, "test/1");
        let begun = Instant::now();
        let writing = written(&client);
        tokio::pin!(writing);
        // The claim is renewed meanwhile, once.
        let early = tokio::time::timeout(Duration::from_secs(5), &mut writing).await;
        assert!(early.is_err(), "it is held still");
        lead.send_replace(held(10));
        assert!(is_deposed(&writing.await));
        assert_eq!(begun.elapsed().as_secs(), 15);
        assert_eq!(*heard.lock().unwrap(), ["test/1 reign/7"]);

        lead.send_replace(LeaderClaim::Lost);
        assert!(is_deposed(&written(&client).await));
        assert_eq!(heard.lock().unwrap().len(), 1, "nothing was sent");
    }

    #[tokio::test(start_paused = true)]
    async fn losing_the_lead_ends_a_write_before_the_claim_would() {
        let (server, _heard) = silent();
        let (lead, claim) = watch::channel(held(3600));
        let client = fence_client(server, claim, "test/1");
        let begun = Instant::now();
        let writing = written(&client);
        tokio::pin!(writing);
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut writing).await.is_err());
        lead.send_replace(LeaderClaim::Lost);
        assert!(is_deposed(&writing.await));
        assert_eq!(begun.elapsed().as_secs(), 1);
    }
}
