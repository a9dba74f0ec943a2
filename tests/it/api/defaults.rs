//! Few defaults are written, and each as promised.

use std::{fs, path::Path};

use navigator::{
    api::{NAVIGATOR, V1ALPHA1, V1BETA1, VERSIONS},
    machinery::{
        decode::ParsedBody,
        served_kind::{ServedKind, ServedVersion},
    },
};
use serde_json::{Value, json};

use crate::scheme;

/// The spec as it is stored, written over `stored`.
fn defaulted(spec: &Value, stored: Option<&Value>) -> Value {
    let kind = scheme().by_kind("CassandraCluster").unwrap();
    let decode = |spec: &Value| {
        let body = json!({
            "apiVersion": NAVIGATOR.api_version(V1BETA1), "kind": kind.kind(),
            "metadata": {"name": "c"}, "spec": spec,
        });
        kind.decode(V1BETA1, ParsedBody::from(body), stored).unwrap().hub
    };
    let once = decode(spec);
    assert_eq!(decode(&once["spec"]), once, "defaulting twice equals once");
    once["spec"].clone()
}

#[test]
fn only_the_promised_defaults_are_written() {
    assert_eq!(
        defaulted(
            &json!({"version": "5.0.6", "image": {"repository": "r", "tag": ""}, "jvm": {},
                "services": {}, "updateStrategy": {}, "securityContext": {},
                "security": {"internode": {}, "client": {"altNames": []}, "users": [],
                    "certificates": {}, "network": {}},
                "podTemplate": {"metadata": {}, "spec": {"nodeSelector": {}, "schedulerName": ""}},
                "nodePools": [{"name": "a", "resources": {}, "persistence": {"retention": {}}}]}),
            None
        ),
        json!({"version": "5.0.6", "image": {"repository": "r", "pullPolicy": "IfNotPresent"},
            "security": {"mode": "Secure"},
            "nodePools": [{"name": "a", "replicas": 1, "rack": "a", "persistence": {},
                "datacenter": "navigator-default-datacenter"}]})
    );
}

#[test]
fn what_is_said_of_security_stays_as_it_was_written() {
    for security in [
        json!({"mode": "Open"}),
        json!({"mode": "Secure", "client": {"tls": "Off"}}),
        json!({"internode": {"tls": "Off"}, "client": {"tls": "Off"}, "authentication": "Off"}),
        json!({"mode": "Open", "adminSecret": {"name": ""}, "users": [{"name": "a", "superuser": false}]}),
    ] {
        let spec = defaulted(&json!({"nodePools": [], "security": security}), None);
        assert_eq!(spec["security"], security);
    }
}

#[test]
fn what_is_not_said_of_security_is_secure_in_a_new_cluster() {
    for said in [
        json!({"internode": {"tls": "Off"}}),
        json!({"client": {"tls": "Required", "altNames": ["a"]}}),
        json!({"authentication": "Password"}),
        json!({"client": {"tls": "Off"}, "authentication": "Off"}),
    ] {
        let mut expected = said.clone();
        expected["mode"] = json!("Secure");
        let spec = json!({"version": "5.0.6", "security": said});
        assert_eq!(made("CassandraCluster", V1BETA1, &spec), (expected, vec![]));
        let stored = scheme().by_kind("CassandraCluster").unwrap();
        let written = json!({"apiVersion": NAVIGATOR.api_version(V1BETA1), "metadata": {"name": "c"},
            "kind": stored.kind(), "spec": {"version": "5.0.6", "security": said}});
        let hub = stored.decode_stored(written).unwrap();
        let mut open = said.clone();
        open["mode"] = json!("Open");
        assert_eq!(hub["spec"]["security"], open, "what is stored stays as it is");
        for version in VERSIONS {
            let dump = ParsedBody::from(stored.encode(version, &hub));
            let again = stored.decode(version, dump, None).unwrap().hub;
            assert_eq!(again["spec"]["security"], open, "a dump in {version} is put back");
        }
    }
    // Where Secure cannot be, the rest is as before, and that is told.
    let spec = json!({"version": "5.0.6", "additionalSeeds": ["a"],
        "security": {"internode": {"tls": "Allow"}}});
    let (security, told) = made("CassandraCluster", V1BETA1, &spec);
    assert_eq!(security, json!({"mode": "Open", "internode": {"tls": "Allow"}}));
    assert!(told[0].starts_with("spec.security.mode: Open is written in place of Secure"));
    // Whoever brings logins of their own has TLS.
    let spec = json!({"version": "5.0.6", "config": {"authenticator": {"class_name": "A"}},
        "security": {"authentication": "Off"}});
    let (security, _) = made("CassandraCluster", V1BETA1, &spec);
    assert_eq!(security, json!({"mode": "Secure", "authentication": "Off"}));
}

#[test]
fn what_cannot_be_without_the_rest_is_refused_and_not_left_open() {
    let kind = scheme().by_kind("ElasticsearchCluster").unwrap();
    for said in [json!({"internode": {"tls": "Off"}}), json!({"authentication": "Off"})] {
        let body = json!({"metadata": {"name": "c"}, "spec": {"version": "8.19.4",
            "security": said, "nodePools": [{"name": "a", "replicas": 3,
                "roles": ["master", "data"], "persistence": {"size": "10Gi"}}]}});
        let hub = kind.decode(V1BETA1, ParsedBody::from(body), None).unwrap().hub;
        let errors = kind.validate_create(V1BETA1, &hub).errors;
        let text = format!("{errors:?}");
        assert!(text.contains("set internode.tls and authentication together"), "{text}");
    }
}

/// What is written of security in a new cluster that says `spec`, and what its client is told.
fn made(kind: &str, version: ServedVersion, spec: &Value) -> (Value, Vec<String>) {
    let kind = scheme().by_kind(kind).unwrap();
    let body = json!({"metadata": {"name": "c"}, "spec": spec});
    let decoded = kind.decode(version, ParsedBody::from(body), None).unwrap();
    (decoded.hub["spec"]["security"].clone(), decoded.warnings)
}

#[test]
fn a_new_cluster_is_secured_where_it_can_be() {
    let (secure, open) = (json!({"mode": "Secure"}), json!({"mode": "Open"}));
    let seeds = "the nodes behind additionalSeeds do not trust certificates of this cluster yet";
    for (kind, spec, expected, why) in [
        ("CassandraCluster", json!({"version": "4.1.10"}), &secure, ""),
        (
            "CassandraCluster",
            json!({"version": "5.0.6", "config": {"concurrent_reads": 9}}),
            &secure,
            "",
        ),
        ("CassandraCluster", json!({"version": "4.0.19"}), &open, "needs Cassandra 4.1 or later"),
        ("CassandraCluster", json!({"version": "5.0.6", "additionalSeeds": ["a"]}), &open, seeds),
        (
            "CassandraCluster",
            json!({"version": "5.0.6", "config": {"authenticator": {"class_name": "A"}}}),
            &open,
            "config.authenticator.class_name is not yours to set in a secured cluster",
        ),
        (
            "CassandraCluster",
            json!({"version": "5.0.6", "nodePools": [{"name": "a", "config": {"role_manager": "R"}}]}),
            &open,
            "config.role_manager is not yours to set in a secured cluster",
        ),
        ("ElasticsearchCluster", json!({"version": "7.17.29"}), &secure, ""),
        (
            "ElasticsearchCluster",
            json!({"version": "7.16.3"}),
            &open,
            "needs Elasticsearch 7.17 or later",
        ),
        (
            "ElasticsearchCluster",
            json!({"version": "8.19.4", "config": {"xpack.security.audit.enabled": true}}),
            &secure,
            "",
        ),
    ] {
        let told = match why {
            "" => vec![],
            why => vec![format!("spec.security.mode: Open is written in place of Secure: {why}")],
        };
        assert_eq!(made(kind, V1BETA1, &spec), (expected.clone(), told), "{spec}");
        assert_eq!(made(kind, V1ALPHA1, &json!({"version": "7.17.29"})), (open.clone(), vec![]));
    }
}

#[test]
fn other_fields_of_security_stay_beside_the_default() {
    let said = json!({"users": [{"name": "app"}], "client": {"altNames": ["db.example.org"]}});
    let spec = json!({"version": "5.0.6", "security": said});
    let (security, _) = made("CassandraCluster", V1BETA1, &spec);
    let mut expected = said.clone();
    expected["mode"] = json!("Secure");
    assert_eq!(security, expected);
}

/// Whatever an object says beside, it is as valid with the default as with `Open`.
#[test]
fn the_default_refuses_nothing() {
    let (mut tried, mut secured) = (0, 0);
    for (kind, body) in new_clusters() {
        let errors = |body: &Value| {
            let decoded = kind.decode(V1BETA1, ParsedBody::from(body.clone()), None).ok()?;
            let errors = kind.validate_create(V1BETA1, &decoded.hub).errors;
            Some((errors, decoded.hub["spec"]["security"]["mode"] == "Secure"))
        };
        let mut open = body.clone();
        open["spec"]["security"]["mode"] = json!("Open");
        let Some((without, _)) = errors(&open) else { continue };
        let (found, is_secured) = errors(&body).expect("one word does not make it unreadable");
        tried += 1;
        secured += usize::from(is_secured);
        let more = found.iter().filter(|error| !without.contains(error)).collect::<Vec<_>>();
        assert!(more.is_empty(), "{more:?} of {body}");
    }
    assert!(tried > 100 && secured > 50, "{secured} of {tried}");
}

/// Clusters of v1beta1 in the manifests of `tests/data/api`, good and bad, that say nothing of
/// encryption and logins.
fn new_clusters() -> Vec<(&'static dyn ServedKind, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/api");
    let mut found = Vec::new();
    for folder in ["invalid", "v1beta1/cassandraclusters", "v1beta1/elasticsearchclusters"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            for document in text.split("\n---\n") {
                let body: Value = serde_yaml::from_str(document).unwrap();
                let kind = body["kind"].as_str().unwrap();
                let kind = scheme().cluster_kinds().find(|cluster| cluster.kind() == kind);
                let is_new = body["apiVersion"] == NAVIGATOR.api_version(V1BETA1);
                let security = &body["spec"]["security"];
                let says = ["/mode", "/internode/tls", "/client/tls", "/authentication"]
                    .iter()
                    .any(|path| security.pointer(path).is_some());
                if let Some(kind) = kind.filter(|_| is_new && !says) {
                    found.push((kind, body));
                }
            }
        }
    }
    found
}

#[test]
fn what_is_stored_without_a_word_is_open() {
    let kind = scheme().by_kind("CassandraCluster").unwrap();
    for version in VERSIONS {
        let stored = json!({
            "apiVersion": NAVIGATOR.api_version(version), "kind": kind.kind(),
            "metadata": {"name": "c"}, "spec": {"version": "5.0.6", "nodePools": []}});
        let hub = kind.decode_stored(stored).unwrap();
        assert_eq!(hub["spec"]["security"], json!({"mode": "Open"}));
        let shown = kind.encode(V1ALPHA1, &hub);
        assert_eq!(shown["metadata"], json!({"name": "c"}), "v1alpha1 is silent about it");
        let dump = ParsedBody::from(kind.encode(V1BETA1, &hub));
        assert_eq!(kind.decode(V1BETA1, dump, None).unwrap().hub, hub, "put back, it is the same");
    }
}

#[test]
fn an_update_without_a_word_keeps_what_is_stored() {
    let nothing = json!({"version": "5.0.6", "nodePools": []});
    let names = json!({"version": "5.0.6", "nodePools": [],
        "security": {"client": {"altNames": ["a"]}}});
    for stored in [
        json!({"mode": "Secure"}),
        json!({"mode": "Open"}),
        json!({"mode": "Secure", "client": {"tls": "Off"}}),
        json!({"internode": {"tls": "Required"}, "authentication": "Password"}),
        json!({"authentication": "Password", "client": {"tls": "Optional"}}),
    ] {
        let object = json!({"metadata": {"name": "c"}, "spec": {"security": stored}});
        assert_eq!(defaulted(&nothing, Some(&object))["security"], stored);
        let mut expected = stored.clone();
        expected["client"]["altNames"] = json!(["a"]);
        assert_eq!(defaulted(&names, Some(&object))["security"], expected);
        // What is said of one of them says nothing of the others.
        let mut said = nothing.clone();
        said["security"] = json!({"authentication": "Off"});
        let mut expected = stored.clone();
        expected["authentication"] = json!("Off");
        assert_eq!(defaulted(&said, Some(&object))["security"], expected);
        for mode in ["Open", "Secure"] {
            said["security"] = json!({"mode": mode});
            let all = &defaulted(&said, Some(&object))["security"];
            assert_eq!(*all, said["security"], "the mode says all");
        }
    }
}

#[test]
fn absent_replicas_keep_the_stored_value_by_pool_name() {
    let stored = json!({"metadata": {"name": "c"}, "spec": {"nodePools": [
        {"name": "a", "replicas": 5}, {"name": "b", "replicas": 0}]}});
    let spec = defaulted(
        &json!({"nodePools": [{"name": "b"}, {"name": "new"}, {"name": "a"}]}),
        Some(&stored),
    );
    let replicas = |i: usize| spec["nodePools"][i]["replicas"].clone();
    assert_eq!([replicas(0), replicas(1), replicas(2)], [json!(0), json!(1), json!(5)]);
}
