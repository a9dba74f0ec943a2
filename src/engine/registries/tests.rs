use k8s_openapi::{
    api::core::v1::{Secret, ServiceAccount},
    jiff::Timestamp,
};
use serde_json::{Value, json};

use super::*;
use crate::api::containership::Registry;

fn spec(more: &Value) -> RegistrySpec {
    let mut spec = json!({"serveraddress": "quay.io", "credentialsSecretRef": {"name": "source"}});
    json_patch::merge(&mut spec, more);
    serde_json::from_value(spec).unwrap()
}

fn namespaces() -> BTreeMap<String, NamespaceFacts> {
    let facts = |meta: Value| NamespaceFacts::new(&serde_json::from_value(meta).unwrap());
    [
        ("default", json!({})),
        ("kube-system", json!({})),
        ("shop", json!({"labels": {"team": "a"}})),
        ("out", json!({"annotations": {"containership.io/registry-sync": "disabled"}})),
        ("in", json!({"annotations": {"containership.io/registry-sync": "enabled"}})),
        ("going", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})),
    ]
    .into_iter()
    .map(|(name, meta)| (name.to_owned(), facts(meta)))
    .collect()
}

fn wish(name: &str, namespaces: Option<&[&str]>, digest: Option<&str>) -> RegistryWish {
    RegistryWish {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        namespaces: namespaces.map(|all| all.iter().map(|one| (*one).to_owned()).collect()),
        digest: digest.map(str::to_owned),
        accounts: vec!["containership".to_owned(), "default".to_owned()],
    }
}

fn held(all: &[(&str, &str, &str, bool)]) -> BTreeMap<String, PullSecret> {
    let secret = |(key, uid, digest, edited): &(&str, &str, &str, bool)| {
        let secret = PullSecret {
            registry: (*uid).to_owned(),
            digest: (*digest).to_owned(),
            version: "7".to_owned(),
            edited: *edited,
        };
        ((*key).to_owned(), secret)
    };
    all.iter().map(secret).collect()
}

fn told(steps: &[SecretStep]) -> Vec<String> {
    let line = |step: &SecretStep| match step {
        SecretStep::Create { namespace, registry } => format!("+{namespace}/{registry}"),
        SecretStep::Replace { namespace, registry, .. } => format!("~{namespace}/{registry}"),
        SecretStep::Delete { namespace, secret, .. } => format!("-{namespace}/{secret}"),
    };
    steps.iter().map(line).collect()
}

#[test]
fn a_registry_is_meant_for_all_namespaces_but_those_that_are_left_out() {
    for (more, names) in [
        (json!({}), "default in shop"),
        (json!({"excludedNamespaces": ["shop"]}), "default in kube-system"),
        (json!({"namespaceSelector": {"matchLabels": {"team": "a"}}}), "shop"),
        (
            json!({"namespaceSelector": {"matchExpressions": [
                {"key": "team", "operator": "DoesNotExist"},
            ]}}),
            "default in",
        ),
    ] {
        let meant = selected_namespaces(&spec(&more), &namespaces()).unwrap();
        assert_eq!(meant.into_iter().collect::<Vec<_>>().join(" "), names, "{more}");
    }
    let bad =
        json!({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}});
    let error = selected_namespaces(&spec(&bad), &namespaces()).unwrap_err();
    assert!(error.starts_with("namespaceSelector cannot be read"), "{error}");
}

#[test]
fn secrets_are_made_mended_and_taken_away_and_else_left() {
    let both: &[&str] = &["default", "shop"];
    for (wishes, there, steps) in [
        (
            vec![wish("a", Some(both), Some("1")), wish("b", Some(&["shop"]), Some("2"))],
            vec![("shop/a", "uid-a", "1", false)],
            "+default/a +shop/b",
        ),
        (vec![wish("a", Some(&["shop"]), Some("1"))], vec![("shop/a", "uid-a", "1", false)], ""),
        // Edited, of older credentials, of a Registry of the same name that is gone.
        (
            vec![wish("a", Some(&["shop"]), Some("1"))],
            vec![("shop/a", "uid-a", "1", true)],
            "~shop/a",
        ),
        (
            vec![wish("a", Some(&["shop"]), Some("1"))],
            vec![("shop/a", "uid-a", "0", false)],
            "~shop/a",
        ),
        (
            vec![wish("a", Some(&["shop"]), Some("1"))],
            vec![("shop/a", "uid-x", "1", false)],
            "~shop/a",
        ),
        // Not meant any more; of no Registry.
        (
            vec![wish("a", Some(&["shop"]), Some("1"))],
            vec![
                ("default/a", "uid-a", "1", false),
                ("shop/a", "uid-a", "1", false),
                ("shop/b", "uid-b", "1", false),
            ],
            "-default/a -shop/b",
        ),
        // Where credentials or selector cannot be read, what stands stays.
        (vec![wish("a", Some(both), None)], vec![("shop/a", "uid-a", "1", true)], ""),
        (vec![wish("a", None, Some("1"))], vec![("shop/a", "uid-a", "1", false)], ""),
    ] {
        let steps_now = secret_steps(&wishes, &held(&there));
        assert_eq!(told(&steps_now).join(" "), steps, "{wishes:?} {there:?}");
    }
}

#[test]
fn accounts_name_the_secrets_that_stand_and_keep_those_of_others() {
    let account = |version: &str, ours: &str, pulls: &[&str]| {
        let pulls: Vec<_> = pulls.iter().map(|name| json!({"name": name})).collect();
        let account: ServiceAccount = serde_json::from_value(json!({
            "metadata": {
                "resourceVersion": version,
                "annotations": {"containership.io/registry-secrets": ours},
            },
            "imagePullSecrets": pulls,
        }))
        .unwrap();
        AccountFacts::new(&account)
    };
    let wishes = [wish("a", Some(&["shop"]), Some("1")), wish("b", Some(&["shop"]), Some("1"))];
    let secrets = held(&[("shop/a", "uid-a", "1", false), ("shop/b", "uid-b", "1", false)]);
    let steps = |held: &BTreeMap<_, _>, accounts: &[(&str, AccountFacts)]| {
        let accounts = accounts.iter().cloned().map(|(key, one)| (key.to_owned(), one)).collect();
        let line = |step: AccountStep| {
            let version = step.version.unwrap_or_else(|| "new".to_owned());
            let pulls = step.pulls.join(" ");
            format!("{}/{} {version}: {} of {pulls}", step.namespace, step.name, step.ours)
        };
        account_steps(&wishes, held, &accounts).into_iter().map(line).collect::<Vec<_>>()
    };
    // Only `containership` is made.
    assert_eq!(steps(&secrets, &[]), ["shop/containership new: a,b of a b"]);
    // A Secret that is foreign or not there yet is not named.
    let one = held(&[("shop/a", "uid-a", "1", false), ("shop/b", "uid-x", "1", false)]);
    assert_eq!(steps(&one, &[]), ["shop/containership new: a of a"]);
    let there = |ours: &str, pulls: &[&str]| {
        [
            ("shop/containership", account("6", "a,b", &["a", "b"])),
            ("shop/default", account("7", ours, pulls)),
        ]
    };
    assert_eq!(steps(&secrets, &there("a,b", &["a", "mine", "b"])), [""; 0]);
    assert_eq!(steps(&secrets, &there("", &["mine"])), ["shop/default 7: a,b of mine a b"]);
    assert_eq!(steps(&secrets, &there("", &["b"])), ["shop/default 7: a,b of b a"]);
    assert_eq!(steps(&secrets, &there("a,b", &["a"])), ["shop/default 7: a,b of a b"]);
    assert_eq!(steps(&secrets, &there("a,b,c", &["c", "a", "b"])), ["shop/default 7: a,b of a b"]);
    // Where no Registry is meant any more, ours go.
    let mut left = there("a,b", &["a", "b"]).to_vec();
    left.push(("default/default", account("8", "a", &["a", "mine"])));
    left.push(("default/other", account("9", "", &["a"])));
    assert_eq!(steps(&secrets, &left), ["default/default 8:  of mine"]);
}

fn source(type_: &str, data: &Value) -> Secret {
    let data: BTreeMap<String, String> = serde_json::from_value(data.clone()).unwrap();
    let secret = json!({"metadata": {"name": "source"}, "type": type_});
    let mut secret: Secret = serde_json::from_value(secret).unwrap();
    let bytes = |(key, value): (String, String)| (key, k8s_openapi::ByteString(value.into_bytes()));
    secret.data = Some(data.into_iter().map(bytes).collect());
    secret
}

fn content(spec: &RegistrySpec, source: &Secret) -> Result<Value, RegistryTrouble> {
    let config = pull_config(spec, "uid", Some(source))?;
    let secret = config.build_secret("a", "uid", "shop", None);
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/dockerconfigjson"));
    assert_eq!(secret.metadata.labels.unwrap()["containership.io/registry"], "uid");
    Ok(serde_json::from_slice(&secret.data.unwrap()[".dockerconfigjson"].0).unwrap())
}

#[test]
fn credentials_of_each_form_become_what_kubelets_read() {
    let pair = json!({"username": "u", "password": "p"});
    for type_ in [MOVED_CREDENTIALS, "kubernetes.io/basic-auth"] {
        let config = content(&spec(&json!({"email": "a@b.c"})), &source(type_, &pair)).unwrap();
        assert_eq!(config, json!({"auths": {"quay.io": {"auth": "dTpw", "email": "a@b.c"}}}));
    }
    let token = json!({"token": "dTpw", "endpoint": "https://old.example"});
    let config = content(&spec(&json!({})), &source(MOVED_CREDENTIALS, &token)).unwrap();
    assert_eq!(config, json!({"auths": {"quay.io": {"auth": "dTpw"}}}));
    let config =
        content(&spec(&json!({"serveraddress": ""})), &source(MOVED_CREDENTIALS, &token)).unwrap();
    assert_eq!(config, json!({"auths": {"https://old.example": {"auth": "dTpw"}}}));
    let whole = json!({".dockerconfigjson": r#"{"auths":{"x":{}}}"#});
    let config =
        content(&spec(&json!({})), &source("kubernetes.io/dockerconfigjson", &whole)).unwrap();
    assert_eq!(config, json!({"auths": {"x": {}}}));

    for (more, secret, says) in [
        (json!({}), source("Opaque", &pair), "must be of kubernetes.io/basic-auth"),
        (
            json!({}),
            source(MOVED_CREDENTIALS, &json!({"username": "u"})),
            "no username and password",
        ),
        (
            json!({"serveraddress": null}),
            source(MOVED_CREDENTIALS, &pair),
            "serveraddress is missing",
        ),
        (
            json!({"provider": "amazon_ec2_registry"}),
            source(MOVED_CREDENTIALS, &pair),
            "not renewed",
        ),
        (json!({}), source("kubernetes.io/dockerconfigjson", &json!({})), "is empty"),
    ] {
        let trouble = format!("{:?}", content(&spec(&more), &secret).unwrap_err());
        assert!(trouble.contains(says), "{more}: {trouble}");
    }
    for (more, says) in [
        (json!({}), "Secret \\\"source\\\" is not there"),
        (json!({"credentialsSecretRef": null}), "neither credentials nor credentialsSecretRef"),
    ] {
        let trouble = format!("{:?}", pull_config(&spec(&more), "uid", None).unwrap_err());
        assert!(trouble.contains(says), "{more}: {trouble}");
    }
    // Neither the digest nor what is logged shows anything of them.
    let config =
        |uid: &str| pull_config(&spec(&json!({})), uid, Some(&source(MOVED_CREDENTIALS, &pair)));
    let (one, other) = (config("1").unwrap(), config("2").unwrap());
    assert_ne!(one.digest, other.digest);
    assert_eq!(format!("{one:?}"), format!("PullConfig({})", one.digest));
}

#[test]
fn an_edit_of_a_secret_is_seen_by_the_managers_of_its_fields() {
    let secret = |managers: Value| {
        let meta = json!({
            "labels": {"containership.io/registry": "u"}, "resourceVersion": "7",
            "annotations": {"containership.io/registry-digest": "d"}, "managedFields": managers,
        });
        PullSecret::new(&serde_json::from_value(meta).unwrap(), "ours")
    };
    let entry = |manager: &str, fields: Value| json!({"manager": manager, "fieldsV1": fields});
    let data = json!({"f:data": {"f:.dockerconfigjson": {}}});
    let ours = entry("ours", data.clone());
    let note = entry("kubectl-annotate", json!({"f:metadata": {}}));
    assert_eq!(secret(json!([ours, note])).version, "7");
    for (managers, edited) in [
        (json!([]), false),
        (json!([ours, note]), false),
        (json!([ours, entry("kubectl-edit", data.clone())]), true),
        (json!([entry("kubectl-edit", data)]), true),
    ] {
        assert_eq!(secret(managers.clone()).edited, edited, "{managers}");
    }
}

#[test]
fn the_status_counts_namespaces_and_says_what_a_person_has_to_mend() {
    let registry: Registry = serde_json::from_value(json!({
        "apiVersion": "containership.io/v3", "kind": "Registry",
        "metadata": {"name": "a", "generation": 3}, "spec": {},
    }))
    .unwrap();
    let wish = wish("a", Some(&["default", "shop"]), Some("1"));
    let told = |there: &[(&str, &str, &str, bool)], progress: &RegistryProgress| {
        let held = held(there);
        let secret = |namespace: &str| held.get(&format!("{namespace}/a"));
        let status = build_registry_status(&registry, &wish, secret, progress, Timestamp::MIN);
        assert_eq!(status.observed_generation, Some(3));
        let holds = status.conditions.iter().filter(|one| one.status == "True");
        let holds: Vec<_> =
            holds.map(|one| format!("{} {}: {}", one.type_, one.reason, one.message)).collect();
        format!("{} {}", status.progress.unwrap(), holds.join("; "))
    };
    let all = [("default/a", "uid-a", "1", false), ("shop/a", "uid-a", "1", false)];
    let fine = RegistryProgress::default();
    assert_eq!(told(&all, &fine), "2/2 Ready Synced: the credentials are in 2/2 namespaces");
    assert_eq!(
        told(&all[..1], &fine),
        "1/2 Reconciling Syncing: the credentials are in 1/2 namespaces"
    );
    let foreign = RegistryProgress {
        foreign: vec!["shop".to_owned(), "default".to_owned()],
        ..RegistryProgress::default()
    };
    assert_eq!(
        told(&[], &foreign),
        "0/2 Stalled ForeignSecret: a Secret \"a\" that is not Navigator's stays as it is in default \
         (and 1 more)"
    );
    let failed = RegistryProgress {
        failures: vec!["shop: quota exceeded".to_owned()],
        ..RegistryProgress::default()
    };
    assert_eq!(told(&all[..1], &failed), "1/2 Stalled WriteFailed: shop: quota exceeded");
    let trouble = Some(RegistryTrouble::Credentials("no such Secret".to_owned()));
    let missing = RegistryProgress { trouble, ..RegistryProgress::default() };
    assert_eq!(told(&all, &missing), "2/2 Stalled CredentialsMissing: no such Secret");
}
