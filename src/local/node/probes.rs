//! Runs a container's probes, at the intervals and with the thresholds of its spec.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Container, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::{sleep, timeout},
};

/// The results of the probes of a running container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerHealth {
    pub(crate) started: bool,
    pub(crate) ready: bool,
    /// Why the readiness probe last failed; empty when it did not.
    pub(crate) unready: String,
    /// Why the container must be restarted; `None` when it must not.
    pub(crate) dead: Option<String>,
}

/// Settings of one HTTP probe.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HttpProbe {
    port: u16,
    path: String,
    delay: Duration,
    period: Duration,
    timeout: Duration,
    successes: u32,
    failures: u32,
}

/// Number of successes or failures of a probe in a row.
#[derive(Clone, Copy, Debug, Default)]
struct ProbeStreak {
    good: u32,
    bad: u32,
}

impl ProbeStreak {
    /// Counts one result. Returns whether the probe passes or fails by its thresholds; `None` while
    /// its result stays as before.
    fn count(&mut self, good: bool, probe: &HttpProbe) -> Option<bool> {
        if good {
            (self.good, self.bad) = (self.good + 1, 0);
            (self.good >= probe.successes).then_some(true)
        } else {
            (self.good, self.bad) = (0, self.bad + 1);
            (self.bad >= probe.failures).then_some(false)
        }
    }
}

/// Runs the probes until the startup or liveness probe has failed. Cancel-safe; the caller boxes
/// the future.
pub(crate) async fn run_probes(
    container: Container,
    address: Ipv4Addr,
    health: watch::Sender<ContainerHealth>,
) {
    let probe_target = |probe: &Option<Probe>| parse_probe(&container, probe.as_ref()?, address);
    if let Some((startup, host)) = probe_target(&container.startup_probe) {
        let mut streak = ProbeStreak::default();
        sleep(startup.delay).await;
        loop {
            let result = send_probe(&startup, host).await;
            match streak.count(result.is_ok(), &startup) {
                Some(true) => break,
                Some(false) => {
                    let reason = result.err().unwrap_or_default();
                    let text = format!("startup probe failed: {reason}");
                    health.send_modify(|health| health.dead = Some(text));
                    return;
                }
                None => sleep(startup.period).await,
            }
        }
    }
    health.send_modify(|health| health.started = true);
    let liveness = async {
        let Some((liveness, host)) = probe_target(&container.liveness_probe) else {
            return std::future::pending().await;
        };
        let mut streak = ProbeStreak::default();
        sleep(liveness.delay).await;
        loop {
            let result = send_probe(&liveness, host).await;
            if streak.count(result.is_ok(), &liveness) == Some(false) {
                let reason = result.err().unwrap_or_default();
                let text = format!("liveness probe failed: {reason}");
                health.send_modify(|health| health.dead = Some(text));
                return;
            }
            sleep(liveness.period).await;
        }
    };
    let readiness = async {
        let Some((readiness, host)) = probe_target(&container.readiness_probe) else {
            health.send_modify(|health| health.ready = true);
            return std::future::pending().await;
        };
        let mut streak = ProbeStreak::default();
        sleep(readiness.delay).await;
        loop {
            let result = send_probe(&readiness, host).await;
            if let Some(ready) = streak.count(result.is_ok(), &readiness) {
                let unready = result.err().unwrap_or_default();
                health.send_if_modified(|health| {
                    let is_changed = (health.ready, &health.unready) != (ready, &unready);
                    (health.ready, health.unready) = (ready, unready);
                    is_changed
                });
            }
            sleep(readiness.period).await;
        }
    };
    tokio::select! {
        () = liveness => {}
        () = readiness => {}
    }
}

/// Returns the settings of an HTTP probe; `None` for a probe of another kind, which counts as
/// passed.
fn parse_probe(container: &Container, probe: &Probe, pod: Ipv4Addr) -> Option<(HttpProbe, IpAddr)> {
    let http = probe.http_get.as_ref()?;
    let port = match &http.port {
        IntOrString::Int(port) => u16::try_from(*port).ok()?,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let port = ports.find(|port| port.name.as_ref() == Some(name))?;
            u16::try_from(port.container_port).ok()?
        }
    };
    let seconds = |value: Option<i32>, default: u64| {
        let value = value.and_then(|value| u64::try_from(value).ok());
        Duration::from_secs(value.filter(|value| *value > 0).unwrap_or(default))
    };
    let count = |value: Option<i32>, default: u32| {
        value
            .and_then(|value| u32::try_from(value).ok())
            .filter(|value| *value > 0)
            .unwrap_or(default)
    };
    let host = http.host.as_ref().and_then(|host| host.parse().ok()).unwrap_or(pod.into());
    let settings = HttpProbe {
        port,
        path: http.path.clone().unwrap_or_else(|| "/".to_owned()),
        delay: seconds(probe.initial_delay_seconds, 0),
        period: seconds(probe.period_seconds, 10),
        timeout: seconds(probe.timeout_seconds, 1),
        successes: count(probe.success_threshold, 1),
        failures: count(probe.failure_threshold, 3),
    };
    Some((settings, host))
}

/// Sends one probe request. A status code from 200 to 399 is a success.
async fn send_probe(probe: &HttpProbe, host: IpAddr) -> Result<(), String> {
    let HttpProbe { port, path, .. } = probe;
    let exchange = async {
        let mut stream = TcpStream::connect((host, *port)).await?;
        let text =
            format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).await?;
        let mut response = Vec::new();
        stream.take(8 * 1024).read_to_end(&mut response).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&response).into_owned())
    };
    let text = match timeout(probe.timeout, exchange).await {
        Err(_) => return Err(format!("no answer within {:?}", probe.timeout)),
        Ok(Err(error)) => return Err(error.to_string()),
        Ok(Ok(text)) => text,
    };
    let code: u16 = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    if (200..400).contains(&code) {
        return Ok(());
    }
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).trim();
    Err(format!("HTTP {code}: {body}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;

    fn container(port: u16) -> Container {
        let probe = |failures: u32| json!({"httpGet": {"port": port, "path": "/"}, "periodSeconds": 1, "failureThreshold": failures});
        serde_json::from_value(json!({
            "name": "x", "startupProbe": probe(30), "livenessProbe": probe(2), "readinessProbe": probe(1),
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_container_starts_is_ready_and_dies_by_what_its_probes_say() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, mut health) = watch::channel(ContainerHealth::default());
        let codes = [503, 200, 200, 503, 500, 500, 500, 500];
        let serve = async {
            // Liveness and readiness ask at once; each gets the next code.
            for code in codes.into_iter().chain(std::iter::repeat(500)) {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut asked = [0; 512];
                assert!(client.read(&mut asked).await.unwrap() > 0);
                let text = format!("HTTP/1.1 {code} X\r\nContent-Length: 4\r\n\r\nword");
                client.write_all(text.as_bytes()).await.unwrap();
            }
        };
        let watched = async {
            let patience = Duration::from_secs(60);
            let seen = timeout(patience, health.wait_for(|health| health.started)).await;
            assert!(!seen.unwrap().unwrap().ready);
            let seen = timeout(patience, health.wait_for(|health| health.dead.is_some())).await;
            let dead = seen.unwrap().unwrap().dead.clone().unwrap();
            assert_eq!(dead, "liveness probe failed: HTTP 500: word");
        };
        tokio::select! {
            () = async { tokio::join!(run_probes(container(port), Ipv4Addr::LOCALHOST, sender), watched); } => {}
            () = serve => unreachable!("it serves for ever"),
        }
    }

    #[test]
    fn thresholds_count_answers_in_a_row() {
        let (mut question, _) = parse_probe(
            &container(1),
            container(1).readiness_probe.as_ref().unwrap(),
            Ipv4Addr::LOCALHOST,
        )
        .unwrap();
        (question.successes, question.failures) = (2, 3);
        let mut run = ProbeStreak::default();
        let told: Vec<_> = [false, false, true, false, false, false, true, true]
            .map(|good| run.count(good, &question))
            .into();
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(told, [None, None, None, None, None, no, None, yes]);
    }
}
