//! Webhooks that do not answer as they should.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::StatusCode;
use serde_json::{Value, json};

use super::{Bed, PILOTS, labelled, number, pilot};
use crate::support::{
    hooks::{Hooks, Say, allow},
    pki::Ca,
    server::brief,
};

/// How each fails, and what the client reads then.
const CASES: [(&str, &str); 13] = [
    ("hangs", "context deadline exceeded"),
    ("ca", "invalid peer certificate"),
    ("uid", "expected response.uid="),
    (
        "redirect",
        "failed to call webhook: the server answered 302 Found, and redirects are not followed",
    ),
    ("long", "failed to call webhook: the answer has more than"),
    ("broken", "failed to call webhook: the server answered 500 Internal Server Error"),
    ("garbage", "failed to call webhook: couldn't decode the answer"),
    ("empty", "received invalid webhook response: webhook response was absent"),
    ("patch", "received undecodable patch in webhook response"),
    ("untyped", "webhook returned response.patch but not response.patchType"),
    ("old", "webhook does not accept known AdmissionReview versions (v1)"),
    ("gone", "failed to call webhook: Post "),
    ("http", "could not get REST client: "),
];

fn answer(path: &str) -> Say {
    let of = |response: Value| Say::Response(response);
    match path {
        "hangs" => Say::Nothing,
        "uid" => of(json!({"uid": "another", "allowed": true})),
        "redirect" => Say::Other(StatusCode::FOUND, Vec::new()),
        "long" => Say::Other(StatusCode::OK, vec![b' '; 10 << 20]),
        "broken" => Say::Other(StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
        "garbage" => Say::Other(StatusCode::OK, b"fine".to_vec()),
        "empty" => {
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"});
            Say::Other(StatusCode::OK, review.to_string().into_bytes())
        }
        "patch" => {
            let patch = BASE64_STANDARD.encode("[{\"op\": \"dance\"}]");
            of(json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}))
        }
        "untyped" => of(json!({"allowed": true, "patch": BASE64_STANDARD.encode("[1]")})),
        _ => allow(),
    }
}

/// Each case with either policy.
async fn bed(hooks: &Hooks) -> Bed {
    let strange = Ca::new("strange").pem;
    let mut webhooks = Vec::new();
    for policy in ["Fail", "Ignore"] {
        for (case, _) in CASES {
            let mut more = json!({
                "name": format!("{case}.{policy}.example.org").to_lowercase(),
                "failurePolicy": policy, "timeoutSeconds": if case == "hangs" { 1 } else { 20 },
                "objectSelector": {"matchLabels": {"case": case, "policy": policy}},
            });
            match case {
                "ca" => {
                    more["clientConfig"] = json!({"caBundle": BASE64_STANDARD.encode(&strange)});
                }
                "old" => more["admissionReviewVersions"] = json!(["v1beta1"]),
                // No server listens on port 9, whose protocol is out of use.
                "gone" => more["clientConfig"] = json!({"url": "https://127.0.0.1:9/gone"}),
                "http" => more["clientConfig"] = json!({"url": "http://127.0.0.1:9/http"}),
                _ => {}
            }
            webhooks.push(hooks.webhook(case, &more));
        }
    }
    Bed::new(&webhooks, &[]).await
}

#[tokio::test]
async fn a_failed_call_refuses_the_request_or_counts_for_nothing_by_its_policy() {
    let hooks = Hooks::start(|path, _| answer(path)).await;
    let bed = bed(&hooks).await;
    for (case, expected) in CASES {
        let object = labelled(case, &json!({"case": case, "policy": "Fail"}));
        let (code, message) = bed.refused("POST", PILOTS, &object).await;
        let start = format!(
            "Internal error occurred: failed calling webhook \"{case}.fail.example.org\": "
        );
        assert!(code == 500 && message.starts_with(&start), "{case}: {code} {message}");
        assert!(message.contains(expected), "{case}: {message}");
        let object = labelled(case, &json!({"case": case, "policy": "Ignore"}));
        let reply = bed.send("POST", PILOTS, &object).await;
        assert_eq!(reply.status, 201, "{case}: {}", brief(&reply));
    }
    assert!(hooks.seen_at("elsewhere").is_empty(), "a redirect was followed");
    assert!(hooks.seen_at("ca").is_empty(), "a stranger was asked");
    let metrics = bed.metrics().await;
    let failed_open = "apiserver_admission_webhook_fail_open_count";
    let rejected = "apiserver_admission_webhook_rejection_count";
    for (case, _) in CASES {
        let name = |policy: &str| format!("name=\"{case}.{policy}.example.org\"");
        assert_eq!(number(&metrics, failed_open, &[&name("ignore")]), 1, "{case}: {metrics}");
        assert_eq!(number(&metrics, failed_open, &[&name("fail")]), 0, "{case}: {metrics}");
        let labels = [&*name("fail"), "error_type=\"calling_webhook_error\""];
        assert_eq!(number(&metrics, rejected, &labels), 1, "{case}: {metrics}");
        assert_eq!(number(&metrics, rejected, &[&name("ignore")]), 0, "{case}: {metrics}");
    }
}

#[tokio::test]
async fn a_webhook_that_hangs_holds_nobody_else() {
    /// Calls of one endpoint at one time; more wait for them, and for no longer than they may.
    const CALLS: usize = 64;
    let hooks = Hooks::start(|path, _| if path == "hangs" { Say::Nothing } else { allow() }).await;
    let of = |path: &str| {
        let selector = json!({"matchLabels": {"case": path}});
        hooks.webhook(path, &json!({"timeoutSeconds": 30, "objectSelector": selector}))
    };
    let bed = Bed::new(&[], &[of("hangs"), of("fine")]).await;
    let names: Vec<String> = (0..CALLS + 8).map(|number| format!("held-{number}")).collect();
    let ended = AtomicUsize::new(0);
    let held = names.iter().map(async |name| {
        let object = labelled(name, &json!({"case": "hangs"}));
        let (code, _) = bed.refused("POST", PILOTS, &object).await;
        ended.fetch_add(1, Ordering::Relaxed);
        code
    });
    let others = async {
        hooks.until_called("hangs", CALLS).await;
        bed.write("POST", PILOTS, &labelled("a", &json!({"case": "fine"}))).await;
        bed.write("POST", PILOTS, &pilot("b")).await;
        assert_eq!(ended.load(Ordering::Relaxed), 0, "those who hang were waited for");
        assert_eq!(hooks.seen_at("hangs").len(), CALLS);
    };
    let (held, ()) = tokio::join!(futures::future::join_all(held), others);
    // The webhook's time is over, or that of the request, which is four seconds more.
    assert!(held.iter().all(|code| matches!(code, 500 | 504)), "{held:?}");
}

/// All webhooks are asked, at one time; the first refusal is the answer.
#[tokio::test]
async fn validating_webhooks_are_asked_together() {
    let hooks = Hooks::start(|path, _| {
        let deny = |text: &str| json!({"allowed": false, "status": {"message": text}});
        let (late, at_once) = (Duration::from_secs(3), Duration::ZERO);
        match path {
            "slow" => Say::Together(4, late, deny("slow")),
            "quick" => Say::Together(4, at_once, deny("quick")),
            _ => Say::Together(4, at_once, json!({"allowed": true})),
        }
    })
    .await;
    let of = |path: &str| hooks.webhook(path, &json!({}));
    let bed = Bed::new(&[], &[of("slow"), of("quick"), of("other"), of("third")]).await;
    let (code, message) = bed.refused("POST", PILOTS, &pilot("a")).await;
    let text = "admission webhook \"quick.example.org\" denied the request: quick";
    assert_eq!((code, message.as_str()), (400, text));
    assert_eq!(hooks.seen().len(), 4);
}
