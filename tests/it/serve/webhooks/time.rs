//! The time that webhooks take is theirs: figures of the server leave it out, and the trail names it.

use std::time::Duration;

use serde_json::json;

use super::{Bed, PILOTS, pilot, put};
use crate::support::{
    hooks::{Hooks, Say},
    server::{PATIENCE, World, json_lines},
    wait::until,
};

const SLOW: Duration = Duration::from_millis(600);

#[tokio::test]
async fn time_in_webhooks_is_not_the_servers() {
    let hooks = Hooks::start(|_, _| Say::Late(SLOW, json!({"allowed": true}))).await;
    let world = World::new().await;
    for sort in ["mutating", "validating"] {
        put(&world.kube, sort, sort, &[hooks.webhook(sort, &json!({}))]);
    }
    let trail = world.path("audit.log");
    let bed = Bed::in_world(world, &["--audit-log-path", &trail]).await;
    bed.write("POST", PILOTS, &pilot("a")).await;

    let page = bed.metrics().await;
    let seconds = |metric: &str| {
        let name = format!("apiserver_request_{metric}_seconds_sum{{");
        let of_create = |line: &&str| line.starts_with(&name) && line.contains("verb=\"POST\"");
        let line = page.lines().find(of_create).unwrap_or_else(|| panic!("{name}: {page}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let (all, own) = (seconds("duration"), seconds("sli_duration"));
    let of_hooks = 2.0 * SLOW.as_secs_f64();
    assert!(all >= of_hooks && own <= all - of_hooks, "all {all} s, without webhooks {own} s");

    let line = until("the line of the create", PATIENCE, async || {
        let lines = json_lines(&trail);
        let found = lines.iter().find(|line| line["verb"] == "create");
        found.cloned().ok_or_else(|| format!("{lines:#?}"))
    })
    .await;
    for layer in ["mutating-webhook", "validating-webhook", "etcd", "authorization", "total"] {
        let told = &line["annotations"][format!("apiserver.latency.k8s.io/{layer}")];
        assert!(told.as_str().is_some_and(|text| text.ends_with('s')), "{layer}: {line:#}");
    }
}
