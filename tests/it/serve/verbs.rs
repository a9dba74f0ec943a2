//! A verb is named in many places, and nothing but this makes them agree: what the server does is
//! what discovery and OpenAPI tell, what is counted, and what the install lets people do.

use std::{collections::BTreeSet, fs, path::Path};

use http::HeaderMap;
use http_body_util::BodyExt as _;
use navigator::{
    api::V1BETA1,
    apiserver::{filters::InflightLimits, request_info::RequestInfo},
    machinery::openapi,
};
use serde_json::{Value, json};

use super::whole::{BETA, UNANSWERED, Whole};

const PLURAL: &str = "cassandraclusters";
/// Below [`BETA`]. `{…}` stands in the URL as it stands in OpenAPI's path.
const PATHS: [&str; 4] = [
    "/cassandraclusters",
    "/namespaces/{namespace}/cassandraclusters",
    "/namespaces/{namespace}/cassandraclusters/{name}",
    "/namespaces/{namespace}/cassandraclusters/{name}/status",
];
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

type Words = BTreeSet<String>;

/// Something that the server did not refuse as 405.
struct Served {
    path: &'static str,
    method: &'static str,
    url: String,
    verb: String,
}

fn cluster() -> Value {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster",
        "metadata": {"name": "a"},
        "spec": {
            "version": "5.0.6",
            "nodePools": [{"name": "a", "replicas": 1, "persistence": {"size": "1Gi"}}],
        },
    })
}

/// Makes an apply of a patch.
const APPLY: &str = "?fieldManager=me&force=true";

fn body(method: &str, url: &str) -> String {
    match method {
        "POST" | "PUT" => cluster().to_string(),
        "PATCH" if url.contains(APPLY) => cluster().to_string(),
        "PATCH" => "{}".into(),
        _ => String::new(),
    }
}

/// Tries each method on each path, while there is an object.
async fn served(whole: &Whole) -> Vec<Served> {
    let mut served = Vec::new();
    for path in PATHS {
        let url = format!("{BETA}{}", path.replace("{namespace}", "db").replace("{name}", "a"));
        for method in METHODS {
            for query in ["", "?watch=true&timeoutSeconds=1", APPLY] {
                if query == APPLY && method != "PATCH" {
                    continue;
                }
                let collection = format!("{BETA}/namespaces/db/{PLURAL}");
                drop(whole.send("jane", "POST", &collection, cluster().to_string()).await);
                let url = format!("{url}{query}");
                let code = whole.send("jane", method, &url, body(method, &url)).await.status();
                assert_ne!(code, 404, "{method} {url}");
                if code != 405 {
                    let verb = verb(method, &url);
                    served.push(Served { path, method, url, verb });
                }
            }
        }
    }
    served
}

fn verb(method: &str, url: &str) -> String {
    RequestInfo::parse(&method.parse().unwrap(), &url.parse().unwrap(), &HeaderMap::new()).verb()
}

async fn get(whole: &Whole, path: &str) -> String {
    let response = whole.send("jane", "GET", path, String::new()).await;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// `path method verb` of each operation that OpenAPI has.
fn told() -> Words {
    let document = openapi::build_v3(crate::scheme(), V1BETA1);
    let mut told = Words::new();
    for path in PATHS {
        for (method, operation) in document["paths"][format!("{BETA}{path}")].as_object().unwrap() {
            let Some(action) = operation["x-kubernetes-action"].as_str() else { continue };
            let verb = match action {
                "post" => "create",
                "put" => "update",
                own => own,
            };
            let mut tell = |verb| told.insert(format!("{path} {} {verb}", method.to_uppercase()));
            tell(verb);
            let mut parameters = operation["parameters"].as_array().into_iter().flatten();
            if parameters.any(|parameter| parameter["name"] == "watch") {
                tell("watch");
            }
        }
    }
    told
}

/// Verbs that a ClusterRole of the manifest gives for our clusters.
fn granted(role: &str) -> Words {
    let all = read("deploy/navigator.yaml");
    let objects = all.split("\n---\n").map(|text| serde_yaml::from_str::<Value>(text).unwrap());
    let role = objects
        .filter(|object| object["kind"] == "ClusterRole")
        .find(|object| object["metadata"]["name"] == role)
        .unwrap_or_else(|| panic!("the manifest has no {role}"));
    let rules = role["rules"].as_array().unwrap().iter();
    rules
        .filter(|rule| rule["resources"].as_array().unwrap().contains(&json!(PLURAL)))
        .flat_map(|rule| words(&rule["verbs"]))
        .collect()
}

/// Words of the row of the table of rights that begins like this.
fn row(head: &str) -> Words {
    let page = read("docs/install.md");
    let row = page.lines().find(|line| line.starts_with(head));
    let row = row.unwrap_or_else(|| panic!("no row {head}"));
    row.split(|c: char| !c.is_ascii_alphabetic()).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn words(list: &Value) -> Words {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Values of the label `verb` of a metric, without what was refused as 405.
fn labels(page: &str, metric: &str) -> Words {
    page.lines()
        .filter(|line| line.starts_with(metric) && !line.contains("code=\"405\""))
        .map(|line| line.split_once("verb=\"").unwrap().1.split_once('"').unwrap().0.to_owned())
        .collect()
}

/// A name in the words of kube-apiserver's metrics.
fn label(verb: &str) -> String {
    match verb {
        "create" => "POST".into(),
        "update" => "PUT".into(),
        own => own.to_uppercase(),
    }
}

#[tokio::test]
async fn a_verb_that_is_served_is_told_counted_and_granted() {
    let whole = Whole::start(|_, _| true, InflightLimits::default()).await;
    let served = served(&whole).await;
    let counted = labels(&get(&whole, "/metrics").await, "apiserver_request_total{");
    let verbs_of = |status: bool| -> Words {
        let of = served.iter().filter(|one| one.path.ends_with("/status") == status);
        of.map(|one| one.verb.clone()).collect()
    };
    let (main, status) = (verbs_of(false), verbs_of(true));
    let mut places: Vec<(&str, Words, Words)> = Vec::new();

    let list: Value = serde_json::from_str(&get(&whole, BETA).await).unwrap();
    let discovered = |name: &str| {
        let mut resources = list["resources"].as_array().unwrap().iter();
        words(&resources.find(|resource| resource["name"] == name).unwrap()["verbs"])
    };
    places.push(("discovery", discovered(PLURAL), main.clone()));
    places.push(("discovery of status", discovered(&format!("{PLURAL}/status")), status));

    let operations = served.iter().map(|one| format!("{} {} {}", one.path, one.method, one.verb));
    places.push(("OpenAPI", told(), operations.collect()));

    // Only here an apply has a name of its own.
    assert!(served.iter().any(|one| one.url.contains(APPLY)));
    let labelled = main.iter().map(|verb| label(verb)).chain(["APPLY".to_owned()]).collect();
    places.push(("apiserver_request_total", counted, labelled));

    let mut ending = Words::new();
    // A watch has no deadline.
    for one in served.iter().filter(|one| one.verb != "watch") {
        let and = if one.url.contains('?') { '&' } else { '?' };
        let url = format!("{}{and}timeout=10ms", one.url);
        assert_eq!(
            whole.send(UNANSWERED, one.method, &url, body(one.method, &url)).await.status(),
            504
        );
        let applied = one.url.contains(APPLY);
        ending.insert(if applied { "APPLY".to_owned() } else { label(&one.verb) });
    }
    let ended = labels(&get(&whole, "/metrics").await, "apiserver_request_terminations_total{");
    places.push(("apiserver_request_terminations_total", ended, ending));

    let (view, edit) = (granted("navigator-view"), granted("navigator-edit"));
    places.push(("rights of people in the manifest", &view | &edit, main));
    for (head, granted) in [("| people with `view`", view), ("| people with `edit`", edit)] {
        places.push(("docs/install.md", &row(head) & &granted, granted));
    }

    let wrong: Vec<String> = places
        .iter()
        .filter(|(_, has, expected)| has != expected)
        .map(|(place, has, expected)| {
            format!("{place}: lacks {:?}, has beside {:?}", expected - has, has - expected)
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn who_applies_needs_the_right_to_patch_and_to_create_what_there_is_not() {
    let whole = Whole::start(
        |user, request| user == "maker" || request.verb() != "create",
        InflightLimits::default(),
    )
    .await;
    let url = format!("{BETA}/namespaces/db/{PLURAL}/a{APPLY}");
    let mut expected = Vec::new();
    for (user, code) in [("patcher", 403), ("maker", 201), ("patcher", 200)] {
        let answer = whole.send(user, "PATCH", &url, cluster().to_string()).await;
        assert_eq!(answer.status(), code, "{user}");
        expected.push(format!("{user} patch {url} {code}"));
    }
    assert_eq!(whole.trail(3).await, expected);
    let counted = get(&whole, "/metrics").await;
    for code in [403, 201, 200] {
        let line = counted.lines().find(|line| {
            line.starts_with("apiserver_request_total{")
                && line.contains("verb=\"APPLY\"")
                && line.contains(&format!("code=\"{code}\""))
        });
        assert!(line.is_some_and(|line| line.ends_with(" 1")), "{code}: {line:?}");
    }
}
