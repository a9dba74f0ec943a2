//! Renders a node's `redis.conf`.

use std::{net::IpAddr, path::Path};

use navigator::{api::v1beta1::PilotSpec, pilot::driver::Error};
use serde_json::Value;

use super::{
    kind::{MANAGED, unsupported},
    security,
    view::{NOWHERE, Released, SAYS, written},
};

/// The file for a node that is to be started. The node follows no primary and takes no writes until
/// its pilot has heard the others: another node may be primary by now.
pub(crate) fn render(
    spec: &PilotSpec,
    (address, folder, config): (IpAddr, &str, &Path),
    memory_limit: Option<u64>,
    released: Released,
) -> Result<String, Error> {
    let rejected = |why: String| Err(Error::ConfigRejected(why));
    if let Some(why) = unsupported(spec.version.as_deref().unwrap_or_default()) {
        return rejected(why);
    }
    let port = security::rung(security::wanted(spec.security.as_ref())?, config);
    // A quarter is left for pages that are copied while a fork writes, and for the clients'
    // buffers.
    let maxmemory = memory_limit.map_or(0, |limit| limit / 4 * 3);
    let mut text = format!(
        "maxmemory {maxmemory}\nsave \"\"\nrepl-diskless-sync-delay 1\n\
         bind {address}\n{port}protected-mode no\nreplica-announce-ip {address}\n\
         replicaof {address} {NOWHERE}\nrepl-ping-replica-period 1\ndir \"{folder}\"\n\
         appendonly yes\nappendfsync always\n{SAYS} '{}'\n",
        written(&released)
    );
    for (name, value) in &spec.config {
        if MANAGED.iter().any(|managed| managed.eq_ignore_ascii_case(name)) {
            return rejected(format!("config {name:?} is Navigator's to set"));
        }
        let one = std::slice::from_ref(value);
        for value in value.as_array().map_or(one, Vec::as_slice) {
            let value = match value {
                Value::Null => continue,
                Value::Bool(on) => if *on { "yes" } else { "no" }.to_owned(),
                Value::String(text) if text.is_empty() => "\"\"".to_owned(),
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
            if !name.chars().all(plain) || value.contains(char::is_control) {
                return rejected(format!("config {name:?} is no line of redis.conf"));
            }
            // A later line wins over an earlier one.
            text += &[name, " ", &value, "\n"].concat();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_starts_fenced_with_all_settings_but_those_that_are_navigators() {
        let rendered = |config: Value| {
            let version = Some("7.0.15".to_owned());
            let config = serde_json::from_value(config).unwrap();
            let spec = PilotSpec { version, config, ..PilotSpec::default() };
            render(
                &spec,
                ([10, 0, 0, 1].into(), "/data", Path::new("/config")),
                None,
                Released::default(),
            )
        };
        let config = json!({"save": ["900 1", "60 9"], "latency-tracking": false});
        let text = rendered(config).unwrap();
        for line in ["replicaof 10.0.0.1 1", "save 60 9", "latency-tracking no"] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        for (config, word) in [
            (json!({"Port": 1}), "Port"),
            (json!({"requirepass": "x"}), "requirepass"),
            (json!({"save": "1 1\nport 2"}), "save"),
            (json!({"a b": 1}), "a b"),
        ] {
            let why = rendered(config).unwrap_err();
            assert!(matches!(&why, Error::ConfigRejected(why) if why.contains(word)), "{why}");
        }
    }
}
