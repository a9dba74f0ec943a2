//! Credentials, certificates and the shell of secured clusters over our real API server; the test plays
//! Kubernetes, the controller and the pilots.

use std::{fs, path::Path, process::Stdio};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::answers::{Ended, Person, output};
use crate::support::executable;

const SECRETS: &str = "/api/v1/namespaces/db/secrets";
const PASSWORD: &str = "it's \"so\" \\ secret";
const TRUST: &str = "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n";

fn secret(values: &Value) -> Value {
    let values = values.as_object().unwrap().iter();
    let encoded = values.map(|(key, value)| {
        (key.clone(), Value::from(BASE64_STANDARD.encode(value.as_str().unwrap())))
    });
    json!({"data": encoded.collect::<serde_json::Map<_, _>>()})
}

/// A secured cluster `search` of one node, and an open one `open`.
async fn person() -> Person {
    let person = Person::new().await;
    let users = json!([
        {"name": "app", "roles": ["viewer"]},
        {"name": "given", "passwordSecret": {"name": "mine", "key": "word"}},
    ]);
    for (name, security) in
        [("search", json!({"mode": "Secure", "users": users})), ("open", json!({"mode": "Open"}))]
    {
        let cluster = json!({
            "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "ElasticsearchCluster",
            "metadata": {"name": name},
            "spec": {
                "version": "7.17.29", "security": security,
                "nodePools": [{"name": "m", "replicas": 1, "roles": ["master", "data"]}],
            },
        });
        let api = person.api("ElasticsearchCluster", "elasticsearchclusters");
        let cluster = serde_json::from_value(cluster).unwrap();
        api.create(&PostParams::default(), &cluster).await.unwrap();
        let pilot = format!("es-{name}-m-0");
        let told = (name == "search").then(
            || json!({"internode": "Required", "client": "Required", "authentication": "Password"}),
        );
        let object = json!({
            "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
            "metadata": {"name": pilot},
            "spec": {"clusterRef": {"kind": "ElasticsearchCluster", "name": name},
                     "nodePool": "m", "security": told},
        });
        let object = serde_json::from_value(object).unwrap();
        person.bed.pilots().create(&PostParams::default(), &object).await.unwrap();
        let ready = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "reason": "ElasticsearchStarted", "message": "",
             "lastTransitionTime": "2026-11-22T12:00:00Z"}]}});
        let (pilots, patch) = (person.bed.pilots(), Patch::Merge(ready));
        pilots.patch_status(&pilot, &PatchParams::default(), &patch).await.unwrap();
    }
    let kube = &person.bed.world.kube;
    let connection = json!({
        "username": "elastic", "password": PASSWORD, "type": "elasticsearch",
        "host": "es-search.db.svc", "port": "9200", "uri": "https://es-search.db.svc:9200",
        "ca.crt": TRUST,
    });
    kube.put(SECRETS, "es-search-admin", secret(&connection));
    let mut of_app = connection;
    of_app["username"] = json!("app");
    of_app["password"] = json!("of-app");
    kube.put(SECRETS, "es-search-user-app", secret(&of_app));
    kube.put(SECRETS, "mine", secret(&json!({"word": "given-word"})));
    let config_maps = "/api/v1/namespaces/db/configmaps";
    kube.put(config_maps, "es-search-ca", json!({"data": {"ca.crt": "of the ConfigMap"}}));
    person
}

#[tokio::test]
async fn credentials_are_those_of_the_secret() {
    let person = person().await;
    let admin = person.says(&["get-credentials", "search"]).await;
    assert_eq!(
        admin.with(0, "", "").out,
        "ELASTICSEARCH_USERNAME=elastic\n\
         ELASTICSEARCH_PASSWORD='it'\\''s \"so\" \\ secret'\n\
         ELASTICSEARCH_HOST=es-search.db.svc\n\
         ELASTICSEARCH_PORT=9200\n\
         ELASTICSEARCH_URI=https://es-search.db.svc:9200\n"
    );
    let app = ["get-credentials", "search", "--user", "app", "--ca", "ca.pem"];
    let app = person.says(&app).await.with(0, "ELASTICSEARCH_CA_FILE=ca.pem\n", "");
    assert!(app.out.contains("USERNAME=app\n") && app.out.contains("PASSWORD=of-app\n"), "{app:?}");
    assert_eq!(fs::read_to_string(person.folder().join("ca.pem")).unwrap(), TRUST);
    let json = person.says(&["get-credentials", "search", "-o", "json"]).await.with(0, "", "");
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&json["password"], &json["ca.crt"]), (&json!(PASSWORD), &json!(TRUST)));
    // A person's own Secret holds a password alone: the rest follows from the cluster.
    let given = ["get-credentials", "search", "--user", "given", "--ca", "given.pem", "-o", "json"];
    let given = person.says(&given).await.with(0, "", "");
    let expected = json!({
        "type": "elasticsearch", "username": "given", "password": "given-word",
        "host": "es-search.db.svc", "port": "9200", "uri": "https://es-search.db.svc:9200",
        "ca.crt": "of the ConfigMap",
    });
    assert_eq!(serde_json::from_str::<Value>(&given.out).unwrap(), expected);
}

#[tokio::test]
async fn credentials_that_cannot_be_had_are_told_in_a_sentence() {
    let person = person().await;
    let kube = &person.bed.world.kube;
    let open = "error: elasticsearchcluster.navigator.jetstack.io/open asks nobody for a password \
                (spec.security)\n";
    let says = async |words: &[&str], talk: &str| {
        let ended = person.says(words).await.with(1, "", talk);
        assert!(ended.out.is_empty() && ended.talk.lines().count() == 1, "{ended:?}");
    };
    says(&["get-credentials", "open"], open).await;
    says(
        &["get-credentials", "search", "--user", "eve"],
        "cluster \"search\" declares no user \"eve\"; it has app, given, and its administrator",
    )
    .await;
    says(&["certificates", "open"], "encrypts nothing (spec.security)").await;
    says(&["get-credentials", "search", "--ca", "/nowhere/ca"], "failed to write \"/nowhere/ca\"")
        .await;
    kube.put(SECRETS, "mine", secret(&json!({"password": "x"})));
    let given = ["get-credentials", "search", "--user", "given"];
    says(&given, "Secret mine has no key word: put a password there").await;
    kube.put(SECRETS, "mine", secret(&json!({"word": ""})));
    says(&given, "Secret mine, key word: ").await;
    kube.delete(&format!("{SECRETS}/mine"));
    says(&given, "error: Secret mine in namespace db is not there\n").await;
    kube.hide(&format!("{SECRETS}/es-search-admin"));
    let hidden = "error: you may not read Secret es-search-admin in namespace db\n";
    says(&["get-credentials", "search"], hidden).await;
    person.says(&["get-credentials", "search", "-o", "yaml"]).await.with(64, "", "invalid value");
}

#[tokio::test]
async fn certificates_that_were_not_shown_yet_end_with_3() {
    let person = person().await;
    let shown = person.says(&["certificates", "search"]).await.with(3, "", "");
    for usage in ["internode", "client"] {
        let row = shown.out.lines().find(|line| line.starts_with("m-0") && line.contains(usage));
        assert!(row.is_some_and(|row| row.ends_with("not signed yet")), "{shown:?}");
    }
    let json = person.says(&["certificates", "search", "-o", "json"]).await.with(3, "", "");
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["certificates"][1]["use"], "client");
    assert_eq!(json["certificates"][1]["current"], false);
    person.says(&["certificates", "search", "-o", "name"]).await.with(64, "", "no form name");
}

/// A kubectl that runs what it would run in a container here, where the folder of the configuration is
/// another one, and writes its arguments down.
fn stand_in(person: &Person) -> std::path::PathBuf {
    let (bin, config) = (person.folder().join("bin"), person.folder().join("config"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&config).unwrap();
    let kubectl = format!(
        r#"#!/bin/sh
export PATH="$PATH:/usr/bin:/bin"
printf '%s\n' "$@" 'END' >>"{folder}/arguments"
while [ "$1" != -- ]; do shift; done
shift
for word; do
  shift
  set -- "$@" "$(printf %s "$word" | sed 's|/etc/navigator|{config}|g')"
done
exec "$@"
"#,
        folder = person.folder().display(),
        config = config.display(),
    );
    // It says what it was told, and which login it read.
    let curl = "#!/bin/sh\nprintf '%s\\n' \"$@\"\nwhile [ $# -gt 0 ]; do\n  if [ \"$1\" = -K ]; then cat \"$2\"; fi\n  shift\ndone\n";
    for (name, text) in [("kubectl", kubectl.as_str()), ("curl", curl)] {
        executable::write(&bin.join(name), text);
    }
    bin
}

#[expect(clippy::disallowed_methods, reason = "a test runs the built binary")]
async fn shell(person: &Person, bin: &Path, words: &[&str]) -> Ended {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_navigator"));
    command.arg0("kubectl-navigator").args(words).env_clear();
    // No kubectl of this machine: the stand-in adds its folders by itself.
    command.env("PATH", bin);
    command.env("KUBECONFIG", &person.kubeconfig).stdin(Stdio::null());
    output(command).await.into()
}

#[tokio::test]
async fn a_shell_of_a_secured_node_logs_in_and_its_password_is_in_no_argument() {
    let person = person().await;
    let bin = stand_in(&person);
    let config = person.folder().join("config");
    let asked = ["shell", "search", "--", "_cat/nodes?v"];
    let told =
        shell(&person, &bin, &asked).await.with(0, "https://127.0.0.1:9200/_cat/nodes?v", "");
    let login = "user = \"elastic:it's \\\"so\\\" \\\\ secret\"\ncacert = \"";
    assert!(told.out.contains(login), "{told:?}");
    let arguments = fs::read_to_string(person.folder().join("arguments")).unwrap();
    assert_eq!(arguments.matches("END\n").count(), 2, "{arguments}");
    assert!(!arguments.contains("secret") && !arguments.contains("elastic:"), "{arguments}");
    assert_eq!(fs::read_dir(&config).unwrap().count(), 0, "the login is still there");
    let of_app = ["shell", "search", "--as", "app", "--", "_cat/nodes"];
    shell(&person, &bin, &of_app).await.with(0, "user = \"app:of-app\"", "");
    // An open node is asked as ever, by one exec.
    fs::write(person.folder().join("arguments"), "").unwrap();
    let open = shell(&person, &bin, &["shell", "open", "--", "/"]).await;
    let open = open.with(0, "http://127.0.0.1:9200/\n", "");
    assert!(!open.out.contains("-K"), "{open:?}");
    let arguments = fs::read_to_string(person.folder().join("arguments")).unwrap();
    assert_eq!(arguments.matches("END\n").count(), 1, "{arguments}");
    shell(&person, &bin, &["shell", "open", "--as", "app"]).await.with(1, "", "asks nobody");

    person.bed.world.kube.hide(&format!("{SECRETS}/es-search-admin"));
    shell(&person, &bin, &["shell", "search"]).await.with(
        1,
        "",
        "you may not read Secret es-search-admin in namespace db; a login of your own is asked for by \
         kubectl --namespace db exec -it es-search-m-0 -c elasticsearch -- \
         curl --cacert /etc/navigator/tls/client/ca.crt --user NAME https://127.0.0.1:9200",
    );
    // A node whose folder cannot be written is no node to log in to.
    fs::remove_dir(&config).unwrap();
    shell(&person, &bin, &of_app).await.with(1, "", "the login was not passed on to the node");
    fs::remove_file(bin.join("kubectl")).unwrap();
    shell(&person, &bin, &of_app).await.with(64, "", "kubectl is not on the PATH");
}
