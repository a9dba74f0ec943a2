//! The file of `--tracing-config-file`: TracingConfiguration of `apiserver.config.k8s.io`.
//!
//! The rules are kube-apiserver's (`component-base/tracing/api/v1`). Of the endpoints that it takes, those of
//! sockets in the file system are not served.

use std::{fs, io, path::Path};

use http::uri::Authority;
use opentelemetry_sdk::trace::Sampler;
use serde::Deserialize;

/// Versions that all say the same.
const VERSIONS: [&str; 3] = [
    "apiserver.config.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1alpha1",
];
const KIND: &str = "TracingConfiguration";
const MILLION: i32 = 1_000_000;

/// Where spans go, and whose are recorded.
#[derive(Debug)]
pub(super) struct Config {
    /// A URL; OpenTelemetry's default, `localhost:4317`, when absent.
    pub(super) endpoint: Option<String>,
    pub(super) sampler: Sampler,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("failed to read it")]
    Read(#[source] io::Error),
    #[error("failed to decode it: {0}")]
    Decode(#[from] serde_yaml::Error),
    #[error("no kind {kind:?} is registered for version {api_version:?}: it must be {KIND} of {}", VERSIONS[0])]
    Kind { kind: String, api_version: String },
    #[error("endpoint: Invalid value: {endpoint:?}: {why}")]
    Endpoint { endpoint: String, why: &'static str },
    #[error("samplingRatePerMillion: Invalid value: {rate}: {why}")]
    Rate { rate: i32, why: &'static str },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i32>,
}

impl Config {
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&fs::read_to_string(path).map_err(ConfigError::Read)?)
    }

    fn parse(text: &str) -> Result<Self, ConfigError> {
        let File { api_version, kind, endpoint, sampling_rate_per_million } =
            serde_yaml::from_str(text)?;
        if kind != KIND || !VERSIONS.contains(&api_version.as_str()) {
            return Err(ConfigError::Kind { kind, api_version });
        }
        let rate = sampling_rate_per_million.unwrap_or_default();
        let wrong = |why| Err(ConfigError::Rate { rate, why });
        if rate < 0 {
            return wrong("sampling rate must be positive");
        }
        if rate > MILLION {
            return wrong("sampling rate per million must be less than or equal to one million");
        }
        let own = match rate {
            0 => Sampler::AlwaysOff,
            rate => Sampler::TraceIdRatioBased(f64::from(rate) / f64::from(MILLION)),
        };
        Ok(Self {
            endpoint: endpoint.as_deref().map(url).transpose()?,
            sampler: Sampler::ParentBased(Box::new(own)),
        })
    }
}

fn url(endpoint: &str) -> Result<String, ConfigError> {
    let wrong = |why| Err(ConfigError::Endpoint { endpoint: endpoint.to_owned(), why });
    // (`dns://resolver/host:port` names a resolver of its own.)
    let target = endpoint.strip_prefix("dns:///").unwrap_or(endpoint);
    if target.contains('/') {
        return wrong("must be host:port; unix sockets and TLS are not supported");
    }
    match target.parse::<Authority>() {
        Ok(authority) if authority.port_u16().is_some() && !authority.host().is_empty() => {
            Ok(format!("http://{authority}"))
        }
        _ => wrong("must be host:port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::chain;

    fn parse(fields: &str) -> Result<Config, String> {
        let head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n";
        Config::parse(&format!("{head}{fields}")).map_err(|error| chain(&error).to_string())
    }

    #[test]
    fn what_is_left_out_has_upstreams_defaults() {
        let Config { endpoint, sampler } = parse("").unwrap();
        assert_eq!(endpoint, None);
        assert_eq!(format!("{sampler:?}"), "ParentBased(AlwaysOff)");
        let zero = parse("samplingRatePerMillion: 0").unwrap().sampler;
        assert_eq!(format!("{zero:?}"), "ParentBased(AlwaysOff)");
        let some = parse("samplingRatePerMillion: 100").unwrap().sampler;
        assert_eq!(format!("{some:?}"), "ParentBased(TraceIdRatioBased(0.0001))");
    }

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        for (endpoint, expected) in [
            ("localhost:4317", Some("http://localhost:4317")),
            (
                "dns:///collector.observability.svc:4317",
                Some("http://collector.observability.svc:4317"),
            ),
            ("[::1]:4317", Some("http://[::1]:4317")),
            ("collector", None),
            (":4317", None),
            ("", None),
            ("http://collector:4317", None),
            ("https://collector:4317", None),
            ("unix:///run/collector.sock", None),
            ("dns://8.8.8.8/collector:4317", None),
            ("a b:4317", None),
        ] {
            let found = parse(&format!("endpoint: {endpoint:?}")).map(|config| config.endpoint);
            if let Some(url) = expected {
                assert_eq!(found, Ok(Some(url.to_owned())), "{endpoint}");
            } else {
                let why = found.unwrap_err();
                assert!(why.starts_with("endpoint: Invalid value"), "{endpoint}: {why}");
            }
        }
    }

    #[test]
    fn what_upstream_refuses_is_refused_in_its_words() {
        for (fields, expected) in [
            ("samplingRatePerMillion: -1", "Invalid value: -1: sampling rate must be positive"),
            ("samplingRatePerMillion: 1000001", "must be less than or equal to one million"),
            ("samplingRatePerMillion: many", "invalid type"),
            ("sampleRate: 1", "unknown field `sampleRate`"),
            ("endpoint: a:1\nendpoint: b:1", "duplicate"),
        ] {
            let why = parse(fields).unwrap_err();
            assert!(why.contains(expected), "{fields}: {why}");
        }
        for head in [
            "",
            "{}",
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration",
            "apiVersion: apiserver.config.k8s.io/v2\nkind: TracingConfiguration",
            "apiVersion: apiserver.k8s.io/v1alpha1\nkind: TracingConfiguration",
            "kind: TracingConfiguration",
        ] {
            assert!(Config::parse(head).is_err(), "{head}");
        }
        for version in VERSIONS {
            let text = format!("{{apiVersion: {version}, kind: {KIND}}}");
            assert!(Config::parse(&text).is_ok(), "{version}");
        }
    }
}
