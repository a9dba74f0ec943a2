//! Plugins are installed before the node starts, listed, kept, refused and removed.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{process::Command, rc::Rc};

use http::Method;
use navigator::databases::elasticsearch::v1beta1::ElasticsearchNode;
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use super::{
    demo,
    ensemble::{Ensemble, START},
};
use crate::{
    report::Told,
    support::{
        seat::{USER, give},
        wait::until,
    },
};

pub(crate) async fn plugins_come_and_go(version: &'static str, told: &Told) {
    let mut ensemble = Ensemble::new(version, 1).await;
    // Plugins are installed into the home, so this node has one of its own.
    let home = ensemble.seat(0).place.join("home");
    let source = std::mem::replace(&mut ensemble.all[0].seat.home, home.clone());
    let copied = Command::new("cp").arg("-a").arg(source.join(".")).arg(&home).status().unwrap();
    assert!(copied.success());
    let archive = demo::pack(&ensemble.seat(0).place, version);
    let name = format!("file://{}", archive.display());
    if nix::unistd::geteuid().is_root() {
        give(&home, USER);
    }
    let (bed, pilot) = (Rc::clone(&ensemble.bed), ensemble.name(0).to_owned());
    let mut restarts = 0;
    let mut want = async |plugins: Value| {
        restarts += 1;
        let restart = format!("2026-01-01T00:00:{restarts:02}Z");
        let change = json!({"elasticsearch": {"plugins": plugins}, "restartedAt": restart});
        bed.change(&pilot, change).await;
    };
    let of_pilot = async |status: &str, part: &str| {
        let what = format!("plugin {status} {part:?}");
        bed.shows(&pilot, &what, START, |pilot| {
            let plugins = pilot.status.part::<ElasticsearchNode>()?.plugins;
            let plugin = plugins.first()?;
            let message = plugin.message.clone().unwrap_or_default();
            let same = plugin.status.as_deref() == Some(status) && message.contains(part);
            same.then(|| plugin.clone())
        })
        .await
    };

    want(json!([{"name": name, "sha512": "00".repeat(64)}])).await;
    ensemble.start(0);
    ensemble
        .told(0, "PluginsInstalled", "False", "PluginInstallFailed", "not that of the spec")
        .await;
    of_pilot("Failed", "not that of the spec").await;
    assert_eq!(ensemble.database(0), None);
    told.claim(format!("{version}: an archive that is not the one of sha512 is not installed"));

    let sha512 = format!("{:x}", Sha512::digest(std::fs::read(&archive).unwrap()));
    want(json!([{"name": name, "sha512": sha512}])).await;
    ensemble.settled(&[0]).await;
    ensemble.told(0, "PluginsInstalled", "True", "PluginsCurrent", "").await;
    let plugin = of_pilot("Installed", "").await;
    assert_eq!((&plugin.name, plugin.version.as_deref()), (&name, Some("1.2.3")));
    let runs = "/_nodes/_local/plugins?filter_path=nodes.*.plugins.name";
    let plugins = ensemble.ask(0, Method::GET, runs, None).await.to_string();
    assert!(plugins.contains("\"demo\""), "{plugins}");
    told.claim(format!(
        "{version}: a local archive is installed before the node starts, and listed"
    ));

    let database = ensemble.database(0);
    want(json!([{"name": name, "sha512": sha512}])).await;
    until("another process", START, async || {
        let now = ensemble.database(0);
        if now.is_some() && now != database { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    ensemble.settled(&[0]).await;
    let log = ensemble.running(0).log();
    assert_eq!(log.matches("Preparing the database").count(), 1, "it was installed again");
    told.claim(format!("{version}: a restart leaves it alone"));

    // An installation that hangs, and is no longer wanted.
    let pipe = ensemble.seat(0).place.join("hangs.zip");
    mkfifo(&pipe, Mode::from_bits_truncate(0o666)).unwrap();
    want(json!([{"name": format!("file://{}", pipe.display())}])).await;
    of_pilot("Pending", "").await;
    want(json!([{"name": "file:///nonexistent/x.zip"}])).await;
    ensemble
        .told(
            0,
            "Ready",
            "False",
            "PluginInstallFailed",
            "install plugin file:///nonexistent/x.zip",
        )
        .await;
    of_pilot("Failed", "").await;
    told.claim(format!(
        "{version}: an installation that hangs is ended when it is no longer wanted"
    ));

    want(json!([])).await;
    ensemble.settled(&[0]).await;
    let plugins = ensemble.ask(0, Method::GET, runs, None).await.to_string();
    assert!(!plugins.contains("demo"), "{plugins}");
    let left = std::fs::read_dir(home.join("plugins")).unwrap().count();
    assert_eq!(left, 0, "something is left in plugins/");
    told.claim(format!("{version}: taken from the spec, it is removed"));
    ensemble.stop(0).await;
}
