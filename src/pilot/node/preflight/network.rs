//! Is the address this machine's, are its ports free, and do names resolve?

use std::{io, net::TcpListener, time::Duration};

use tokio::{net::lookup_host, time::timeout};

use super::{Host, failed};
use crate::pilot::driver::{FailedCheck, Node};

/// A resolver that takes longer does not answer.
const RESOLVE: Duration = Duration::from_secs(10);

pub(super) fn address(node: &Node, host: &Host) -> Result<(), FailedCheck> {
    let address = node.address;
    let problem = |message| failed("PreflightFailed", message);
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

/// The names, as `host` or `host:port`, that do not resolve now.
pub async fn unresolved(names: &[String]) -> Vec<String> {
    let mut missing = Vec::new();
    for name in names {
        let host = name.rsplit_once(':').map_or(name.as_str(), |(host, _)| host);
        let found = timeout(RESOLVE, lookup_host((host, 0))).await;
        if !found.is_ok_and(|found| found.is_ok_and(|mut all| all.next().is_some())) {
            missing.push(name.clone());
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_that_do_not_resolve_are_found() {
        let names = ["127.0.0.1:7000", "no-such-host.invalid", "localhost"].map(str::to_owned);
        assert_eq!(unresolved(&names).await, ["no-such-host.invalid"]);
    }
}
