//! List: order, revisions, pages, selectors.

use std::{io::Read as _, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use navigator::apiserver::storage::Revision;
use serde_json::{Value, json};

use super::{BETA, Server, pilot, pilots, revision};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_empty_list_has_items_and_a_revision() {
    let server = Server::start().await;
    let list = server.get(&pilots()).await.expect(200);
    assert_eq!(list["kind"], "PilotList");
    assert_eq!(list["apiVersion"], "navigator.jetstack.io/v1beta1");
    assert_eq!(list["items"], json!([]));
    assert!(list["metadata"]["resourceVersion"].is_string());
    server.pilot("a").await;
    let list = server.get(&pilots()).await.expect(200);
    assert!(revision(&list) > 0, "{list}");
}

#[tokio::test]
async fn a_list_shows_what_was_acknowledged_in_order_of_keys() {
    let server = Server::start().await;
    for name in ["b", "a", "c"] {
        server.pilot(name).await;
        let list = server.get(&pilots()).await.expect(200);
        assert!(names(&list).contains(&name.to_owned()), "a list right after the write");
    }
    let other = format!("{BETA}/namespaces/aa/pilots");
    server.post(&other, &pilot("z")).await.expect(201);
    assert_eq!(names(&server.get(&pilots()).await.expect(200)), ["a", "b", "c"]);
    let all = server.get(&format!("{BETA}/pilots")).await.expect(200);
    assert_eq!(names(&all), ["z", "a", "b", "c"]);
}

#[tokio::test]
async fn a_list_is_as_fresh_as_was_asked_for() {
    let server = Server::start().await;
    let first = revision(&server.pilot("a").await);
    let second = revision(&server.pilot("b").await);
    let get = async |query: String| server.get(&format!("{}?{query}", pilots())).await;
    let exact = format!("resourceVersion={first}&resourceVersionMatch=Exact");
    let list = get(exact).await.expect(200);
    assert_eq!((names(&list), revision(&list)), (vec!["a".to_owned()], first));
    let legacy = get(format!("resourceVersion={first}&limit=10")).await.expect(200);
    assert_eq!(names(&legacy), ["a"]);
    let newer = get(format!("resourceVersion={second}")).await.expect(200);
    assert_eq!(names(&newer), ["a", "b"]);
    assert_eq!(names(&get("resourceVersion=0&limit=1".into()).await.expect(200)).len(), 2);

    let status = get(format!("resourceVersion={}", second + 1000)).await.refusal(504, "Timeout");
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    get("resourceVersion=abc".into()).await.refusal(400, "BadRequest");
    let status = get("resourceVersionMatch=Exact".into()).await.refusal(422, "Invalid");
    assert_eq!(status["details"]["kind"], "ListOptions");
}

#[tokio::test]
async fn pages_show_one_revision_while_others_write() {
    let server = Arc::new(Server::start().await);
    for number in 0..23 {
        server.pilot(&format!("p{number:02}")).await;
    }
    let mut seen = Vec::new();
    let mut token = String::new();
    let mut revisions = Vec::new();
    loop {
        let path = format!("{}?limit=5&continue={token}", pilots());
        let page = server.get(&path).await.expect(200);
        assert!(names(&page).len() <= 5);
        seen.extend(names(&page));
        revisions.push(revision(&page));
        // Between the pages: one goes, one comes.
        let round = revisions.len();
        server.delete(&format!("{}/p{:02}", pilots(), 22 - round), &json!({})).await.expect(200);
        server.pilot(&format!("p{:02}x", 20 - round)).await;
        match page["metadata"]["continue"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    let expected: Vec<_> = (0..23).map(|number| format!("p{number:02}")).collect();
    assert_eq!(seen, expected);
    revisions.dedup();
    assert_eq!(revisions.len(), 1, "{revisions:?}");
}

/// As kube-apiserver's typed lists say it: neither field when there is nothing to say, and no
/// count with a selector, since the server has not looked at what follows.
#[tokio::test]
async fn a_page_says_how_many_follow() {
    let server = Server::start().await;
    for number in 0..7 {
        server.pilot(&format!("p{number}")).await;
    }
    let rv = revision(&server.pilot("p7").await).to_string();
    let meta = async |query: &str| {
        let page = server.get(&format!("{}?{query}", pilots())).await.expect(200);
        let mut meta = page["metadata"].clone();
        let token = meta["continue"].take();
        (meta, token.as_str().map(str::to_owned))
    };
    let (first, token) = meta("limit=3").await;
    let expected = json!({"resourceVersion": rv, "continue": null, "remainingItemCount": 5});
    assert_eq!(first, expected);
    let token = token.unwrap();
    // Others write between the pages; later pages still show the first one's moment.
    server.delete(&format!("{}/p5", pilots()), &json!({})).await.expect(200);
    server.pilot("p9").await;
    let (second, token) = meta(&format!("limit=3&continue={token}")).await;
    let expected = json!({"resourceVersion": rv, "continue": null, "remainingItemCount": 2});
    assert_eq!(second, expected);
    let last = server.get(&format!("{}?limit=3&continue={}", pilots(), token.unwrap())).await;
    assert_eq!(last.expect(200)["metadata"], json!({"resourceVersion": rv}));
    let (selected, token) = meta("limit=3&fieldSelector=metadata.namespace%3Ddb").await;
    assert!(token.is_some() && selected.get("remainingItemCount").is_none(), "{selected}");
    let whole = server.get(&pilots()).await.expect(200);
    let keys: Vec<_> = whole["metadata"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["resourceVersion"]);
    for (kind, view) in
        [("Table", "Table"), ("PartialObjectMetadataList", "PartialObjectMetadataList")]
    {
        let accept = format!("application/json;as={view};v=v1;g=meta.k8s.io");
        let page = server.get_as(&format!("{}?limit=3", pilots()), &accept).await.expect(200);
        assert_eq!(page["kind"], kind);
        assert_eq!(page["metadata"]["remainingItemCount"], 5, "{kind}");
    }
}

#[tokio::test]
async fn pages_of_a_selection_are_filled() {
    let server = Server::start().await;
    for number in 0..12 {
        let mut body = pilot(&format!("p{number:02}"));
        body["metadata"]["labels"] = json!({"odd": (number % 2 == 1).to_string()});
        server.post(&pilots(), &body).await.expect(201);
    }
    let path = format!("{}?limit=4&labelSelector=odd%3Dtrue", pilots());
    let page = server.get(&path).await.expect(200);
    assert_eq!(names(&page), ["p01", "p03", "p05", "p07"]);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let page = server.get(&format!("{path}&continue={token}")).await.expect(200);
    assert_eq!(names(&page), ["p09", "p11"]);
}

#[tokio::test]
async fn an_expired_token_comes_with_one_to_go_on_with() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        server.pilot(name).await;
    }
    let page = server.get(&format!("{}?limit=1", pilots())).await.expect(200);
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    let old = revision(&page);
    let latest = revision(&server.pilot("bb").await);
    // A cache that has not seen a revision when it is compacted begins anew, so it catches up
    // first.
    server.get(&format!("{}?resourceVersion={latest}", pilots())).await.expect(200);
    server.store.compact(Revision(latest)).await.unwrap();
    // A server still remembers what the store has compacted; a restarted server does not.
    let path = format!("{}?limit=1&continue={token}", pilots());
    assert_eq!(names(&server.get(&path).await.expect(200)), ["b"]);
    let server = server.restarted().await;
    let status = server.get(&path).await.refusal(410, "Expired");
    let fresh = status["metadata"]["continue"].as_str().unwrap();
    let rest = server.get(&format!("{}?continue={fresh}", pilots())).await.expect(200);
    assert_eq!(names(&rest), ["b", "bb", "c"]);
    let exact = format!("{}?resourceVersion={old}&resourceVersionMatch=Exact", pilots());
    let status = server.get(&exact).await.refusal(410, "Expired");
    assert_eq!(status["message"], "The resourceVersion for the provided list is too old.");
}

#[tokio::test]
async fn forged_tokens_are_refused() {
    let server = Server::start().await;
    server.pilot("a").await;
    let token = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    for bad in [
        "???".to_owned(),
        token(json!({"v": "meta.k8s.io/v1", "rv": 1, "start": "../../x\u{0}"})),
        token(json!({"v": "v9", "rv": 1, "start": "a\u{0}"})),
        token(json!({"v": "meta.k8s.io/v1", "rv": 0, "start": "a\u{0}"})),
    ] {
        let path = format!("{}?continue={}", pilots(), bad.replace('?', "%3F"));
        let status = server.get(&path).await.refusal(400, "BadRequest");
        assert!(
            status["message"].as_str().unwrap().starts_with("invalid continue token"),
            "{status}"
        );
    }
    let path = format!("{}?continue=x&resourceVersion=5", pilots());
    let status = server.get(&path).await.refusal(400, "BadRequest");
    assert_eq!(status["message"], "specifying resource version is not allowed when using continue");
}

#[tokio::test]
async fn selectors_choose() {
    let server = Server::start().await;
    for (name, pool, labels) in [
        ("a", "x", json!({"app": "web", "tier": "front"})),
        ("b", "x", json!({"app": "db"})),
        ("c", "y", json!({})),
    ] {
        let mut body = pilot(name);
        body["metadata"]["labels"] = labels;
        body["spec"]["nodePool"] = json!(pool);
        server.post(&pilots(), &body).await.expect(201);
    }
    for (query, expected) in [
        ("labelSelector=app%3Dweb", &["a"][..]),
        ("labelSelector=app+in+(web,db)", &["a", "b"]),
        ("labelSelector=app+notin+(web)", &["b", "c"]),
        ("labelSelector=!app", &["c"]),
        ("labelSelector=app,tier!=front", &["b"]),
        ("fieldSelector=metadata.name%3Db", &["b"]),
        ("fieldSelector=metadata.name!=b,metadata.namespace=db", &["a", "c"]),
        ("fieldSelector=spec.nodePool=x&labelSelector=app=db", &["b"]),
        ("fieldSelector=spec.phase=Running", &["a", "b", "c"]),
    ] {
        let list = server.get(&format!("{}?{query}", pilots())).await.expect(200);
        assert_eq!(names(&list), expected, "{query}");
        let page = server.get(&format!("{}?{query}&limit=50", pilots())).await.expect(200);
        assert_eq!(names(&page), expected, "{query} from the store");
    }
    for query in
        ["labelSelector=a%3Db%3Dc", "fieldSelector=spec.nope%3Dx", "fieldSelector=x", "limit=x"]
    {
        server.get(&format!("{}?{query}", pilots())).await.refusal(400, "BadRequest");
    }
    let unread = server.get(&format!("{}?limit=x", pilots())).await.refusal(400, "BadRequest");
    assert_eq!(unread["message"], "strconv.ParseInt: parsing \"x\": invalid syntax");
}

/// Written item by item, a long list is what it would be as one tree.
#[tokio::test]
async fn a_long_list_is_the_same_in_every_form() {
    let server = Server::start().await;
    let text = "a:\n  - \"b\"\n\n".repeat(80);
    for at in 0..150 {
        let mut one = pilot(&format!("p{at:03}"));
        one["metadata"]["annotations"] = json!({"text": text, "empty": ""});
        server.post(&pilots(), &one).await.expect(201);
    }
    let whole = server.get(&pilots()).await.expect(200);
    let pretty = server.get(&format!("{}?pretty=true", pilots())).await;
    assert_eq!(pretty.text(), format!("{}\n", serde_json::to_string_pretty(&whole).unwrap()));
    let packed = [("accept-encoding", "gzip")];
    let packed = server.send("GET", &format!("{}?pretty=1", pilots()), &packed, "").await;
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(&packed.body[..]).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked, pretty.text());
    let yaml = server.get_as(&pilots(), "application/yaml").await.text();
    assert_eq!(yaml, serde_yaml::to_string(&whole).unwrap());

    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let long = server.get_as(&pilots(), table).await.expect(200);
    let short = server.get_as(&format!("{}?limit=1", pilots()), table).await.expect(200);
    assert_eq!(long["columnDefinitions"], short["columnDefinitions"]);
    assert_eq!(long["rows"].as_array().unwrap().len(), 150);
    assert_eq!(long["rows"][0]["object"], short["rows"][0]["object"]);
    assert_eq!(long["rows"][149]["cells"][0], "p149");
    let older = server.get_as(&pilots(), &table.replace("v=v1;", "v=v1beta1;")).await.expect(200);
    assert_eq!(older["apiVersion"], "meta.k8s.io/v1beta1");
}
