//! What a read shows for each `resourceVersion`: the table of Kubernetes' documentation, a row for
//! each of its cells.

use serde_json::{Value, json};

use super::{Server, pilots, revision};

/// Three Pilots and the revisions that they came with.
async fn three() -> (Server, [u64; 3]) {
    let server = Server::start().await;
    let mut revisions = [0; 3];
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        revisions[at] = revision(&server.pilot(name).await);
    }
    // Revision 0 means what the cache has; now it has everything.
    server.get(&pilots()).await.expect(200);
    (server, revisions)
}

/// `R1` to `R3` are the revisions of the Pilots, `LATER` is one that nothing has reached.
fn with_revisions(query: &str, revisions: [u64; 3]) -> String {
    let mut query = query.replace("LATER", &(revisions[2] + 1000).to_string());
    for (at, revision) in revisions.into_iter().enumerate() {
        query = query.replace(&format!("R{}", at + 1), &revision.to_string());
    }
    query
}

/// A revision that is not there yet: wait or go back.
fn too_large(status: &Value) {
    assert_eq!(status["reason"], "Timeout", "{status}");
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge", "{status}");
    assert_eq!(status["details"]["retryAfterSeconds"], 1, "{status}");
}

#[tokio::test]
async fn a_get_follows_its_revision() {
    let (server, revisions) = three().await;
    for (query, code) in [
        ("", 200),
        ("resourceVersion=", 200),
        ("resourceVersion=0", 200),
        ("resourceVersion=R1", 200),
        ("resourceVersion=R3", 200),
        ("resourceVersion=LATER", 504),
        ("resourceVersion=-1", 400),
        ("resourceVersion=soon", 400),
    ] {
        let query = with_revisions(query, revisions);
        let answer = server.get(&format!("{}/b?{query}", pilots())).await;
        let body = answer.expect(code);
        match code {
            200 => assert_eq!(revision(&body), revisions[1], "{query}"),
            504 => too_large(&body),
            _ => {
                let message = body["message"].as_str().unwrap();
                assert!(message.starts_with("invalid resource version"), "{query}: {message}");
            }
        }
    }
}

/// What a list shows: names, whether a page follows, and as of which revision.
enum Shown {
    /// Of the latest revision.
    Now(&'static str, bool),
    /// Of the revision of the first, second or third Pilot.
    At(usize, &'static str, bool),
    Code(u16),
}

use Shown::{At, Code, Now};

#[tokio::test]
async fn a_list_follows_revision_match_limit_and_continue() {
    let (server, revisions) = three().await;
    let rows = [
        // As it is now.
        ("", Now("abc", false)),
        ("limit=2", Now("ab", true)),
        ("limit=3", Now("abc", false)),
        // Whatever is at hand, in one piece.
        ("resourceVersion=0", Now("abc", false)),
        ("resourceVersion=0&limit=2", Now("abc", false)),
        // At least.
        ("resourceVersion=R1", Now("abc", false)),
        ("resourceVersion=R3", Now("abc", false)),
        ("resourceVersion=LATER", Code(504)),
        // With a limit, a revision has always meant exactly this one.
        ("resourceVersion=R1&limit=2", At(0, "a", false)),
        ("resourceVersion=R3&limit=2", At(2, "ab", true)),
        ("resourceVersion=LATER&limit=2", Code(504)),
        // At least, in words.
        ("resourceVersionMatch=NotOlderThan", Code(422)),
        ("resourceVersionMatch=NotOlderThan&limit=2", Code(422)),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=0", Now("abc", false)),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=R1", Now("abc", false)),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=R1&limit=2", Now("ab", true)),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=LATER", Code(504)),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=LATER&limit=2", Code(504)),
        // Exactly, in words.
        ("resourceVersionMatch=Exact", Code(422)),
        ("resourceVersionMatch=Exact&resourceVersion=0", Code(422)),
        ("resourceVersionMatch=Exact&resourceVersion=R2", At(1, "ab", false)),
        ("resourceVersionMatch=Exact&resourceVersion=R2&limit=1", At(1, "a", true)),
        ("resourceVersionMatch=Exact&resourceVersion=LATER", Code(504)),
        // Neither.
        ("resourceVersion=R1&resourceVersionMatch=Newest", Code(422)),
        ("resourceVersion=soon", Code(400)),
        // The next page is of the first one's revision.
        ("limit=1&continue=TOKEN", At(1, "b", false)),
        ("limit=1&continue=TOKEN&resourceVersion=0", At(1, "b", false)),
        ("limit=1&continue=TOKEN&resourceVersion=R1", Code(400)),
        ("limit=1&continue=TOKEN&resourceVersionMatch=NotOlderThan&resourceVersion=0", Code(422)),
        ("limit=1&continue=TOKEN&resourceVersionMatch=Exact&resourceVersion=R2", Code(422)),
    ];
    let first = format!("{}?resourceVersionMatch=Exact&limit=1&resourceVersion=R2", pilots());
    let first = server.get(&with_revisions(&first, revisions)).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    for (query, shown) in rows {
        let told = with_revisions(query, revisions).replace("TOKEN", token);
        let answer = server.get(&format!("{}?{told}", pilots())).await;
        let (at, names, more) = match shown {
            Now(names, more) => (revisions[2], names, more),
            At(index, names, more) => (revisions[index], names, more),
            Code(code) => {
                assert_eq!(answer.code, code, "{query}: {}", answer.text());
                if code == 504 {
                    too_large(&answer.json());
                }
                continue;
            }
        };
        assert_eq!(answer.code, 200, "{query}: {}", answer.text());
        let list = answer.json();
        let items = list["items"].as_array().unwrap();
        let found: String =
            items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
        let found = (found.as_str(), list["metadata"]["continue"].is_string(), revision(&list));
        assert_eq!(found, (names, more, at), "{query}: names, more, revision");
    }
}

#[tokio::test]
async fn a_watch_begins_where_its_revision_says() {
    let (server, revisions) = three().await;
    const FIRST: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    const NONE: &str = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let rows = [
        // The state, then what comes.
        (String::new(), "abcd"),
        ("resourceVersion=".into(), "abcd"),
        ("resourceVersion=0".into(), "abcd"),
        ("allowWatchBookmarks=true".into(), "abc.d"),
        ("allowWatchBookmarks=true&resourceVersion=0".into(), "abc.d"),
        // Events after the revision.
        ("resourceVersion=R1".into(), "bcd"),
        ("resourceVersion=R3".into(), "d"),
        // Asked for in words; with bookmarks one of them ends the state.
        (format!("{FIRST}&allowWatchBookmarks=true"), "abc.d"),
        (format!("{FIRST}&allowWatchBookmarks=true&resourceVersion=0"), "abc.d"),
        (format!("{FIRST}&allowWatchBookmarks=true&resourceVersion=R1"), "abc.d"),
        (format!("{FIRST}&allowWatchBookmarks=true&resourceVersion=R3"), "abc.d"),
        (FIRST.into(), "abcd"),
        (format!("{NONE}&resourceVersion=R3"), "d"),
        (format!("{NONE}&resourceVersion=R2"), "cd"),
        (NONE.into(), "d"),
    ];
    let mut watches = Vec::new();
    for (query, _) in &rows {
        let path = format!("{}?watch=1&{}", pilots(), with_revisions(query, revisions));
        watches.push(server.watch(&path, "").await);
    }
    server.pilot("d").await;
    for (lines, (query, expected)) in watches.iter_mut().zip(&rows) {
        let mut found = String::new();
        while !found.ends_with('d') {
            let event = lines.next().await.unwrap_or_else(|| panic!("{query}: ends after {found}"));
            let object = &event["object"];
            if event["type"] == "BOOKMARK" {
                let ends = &object["metadata"]["annotations"]["k8s.io/initial-events-end"];
                assert_eq!(ends, "true", "{query}: {event}");
                assert_eq!(revision(object), revisions[2], "{query}");
                found.push('.');
            } else {
                assert_eq!(event["type"], "ADDED", "{query}: {event}");
                found.push_str(object["metadata"]["name"].as_str().unwrap());
            }
        }
        assert_eq!(found, *expected, "{query}");
    }
    for (query, code) in [
        ("resourceVersion=soon", 400),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=R1", 422),
        ("sendInitialEvents=true&resourceVersion=R1", 422),
        ("sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=R1", 422),
    ] {
        let path = format!("{}?watch=1&{}", pilots(), with_revisions(query, revisions));
        assert_eq!(server.get(&path).await.code, code, "{query}");
    }
}

/// Such a revision is of another life of the store: a client that knows it has to list again.
#[tokio::test]
async fn a_watch_from_a_revision_that_never_was_is_an_event_of_410() {
    let (server, revisions) = three().await;
    let path = with_revisions(&format!("{}?watch=1&resourceVersion=LATER", pilots()), revisions);
    let mut lines = server.watch(&path, "").await;
    let event = lines.next().await.unwrap();
    let status = &event["object"];
    let found = json!([event["type"], status["code"], status["reason"]]);
    assert_eq!(found, json!(["ERROR", 410, "Expired"]));
    assert_eq!(lines.next().await, None);
}
