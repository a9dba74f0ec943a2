//! Is the address this machine's, are its ports free, and do names resolve?

use std::{io, net::TcpListener, time::Duration};

use futures::future::join_all;
use tokio::{net::lookup_host, time::timeout};

use super::{PreflightContext, failed_check};
use crate::pilot::driver::{DatabaseNode, FailedCheck};

/// How long a resolver may take; one that takes longer counts as not answering.
const RESOLVE: Duration = Duration::from_secs(10);

pub(super) fn check_address(
    node: &DatabaseNode,
    host: &PreflightContext,
) -> Result<(), FailedCheck> {
    let address = node.address;
    let problem = |message| failed_check("PreflightFailed", message);
    for port in [0].iter().chain(&host.ports) {
        match TcpListener::bind((address, *port)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let message =
                    format!("port {port} of {address} is in use; stop what listens there");
                return Err(problem(message));
            }
            Err(error) => {
                return Err(problem(format!("address {address} is not this machine's: {error}")));
            }
        }
    }
    Ok(())
}

/// Returns those of `names`, each `host` or `host:port`, that do not resolve now.
pub async fn find_unresolved(names: &[String]) -> Vec<String> {
    find_failing(names, |name| async move {
        let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
        lookup_host((host, 0)).await.is_ok_and(|mut addresses| addresses.next().is_some())
    })
    .await
}

/// Looks up all `names` at once and returns those that do not resolve: many slow lookups then take
/// no longer than one, and a visit to the volume may not last as long as twenty in a row.
async fn find_failing<'a, F: Future<Output = bool>>(
    names: &'a [String],
    resolve: impl Fn(&'a str) -> F,
) -> Vec<String> {
    let lookups = names.iter().map(|name| timeout(RESOLVE, resolve(name)));
    let results = join_all(lookups).await;
    let unresolved_names =
        names.iter().zip(results).filter(|(_, result)| !matches!(result, Ok(true)));
    unresolved_names.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_that_do_not_resolve_are_found() {
        let names = ["127.0.0.1:7000", "no-such-host.invalid", "localhost"].map(str::to_owned);
        assert_eq!(find_unresolved(&names).await, ["no-such-host.invalid"]);
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_nobody_answers_for_take_no_longer_than_one() {
        let names: Vec<String> = (0..20).map(|number| format!("seed-{number}")).collect();
        let begun = tokio::time::Instant::now();
        let missing = find_failing(&names, |name| async move {
            if name != "seed-7" {
                std::future::pending::<()>().await;
            }
            true
        });
        assert_eq!(missing.await.len(), 19);
        assert_eq!(begun.elapsed(), RESOLVE);
    }
}
