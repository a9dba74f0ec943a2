//! A volume that fills: Cassandra refuses the writes of users, the pilot says what fills it, and a
//! database that ended for want of room waits until there is some.

use navigator::{api::v1beta1::VolumeShare, pilot::volume::contents::describe_shares};
use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    VERSION,
    client::{every_write_is_synced, make_shop, try_fill},
    ring::{Ring, SOON, START},
    tmpfs::Tmpfs,
};
use crate::{
    cql::Cql,
    report::Told,
    support::{bed::condition, seat::signal, wait::until},
};

/// Mebibytes of the volume, and those that stay free on it: more than a start needs.
const VOLUME: u32 = 900;
const LEFT: u64 = 68;
/// Rows of 256 KiB: with so many data the free part is less than Cassandra's guard leaves.
const BULK: i32 = 1300;

pub(crate) async fn a_full_disk_is_told_and_waited_for(told: &Told) {
    let mut spec = every_write_is_synced();
    // Cassandra guards against users only, and without a login there are none.
    spec["config"]["authenticator"] = json!("PasswordAuthenticator");
    let mut ring = Ring::new(VERSION, 25, spec).await;
    ring.add().await;
    let volume = Tmpfs::mount(ring.seat(0).data(), VOLUME);
    ring.start(0);
    ring.serves(0, START).await;
    let mut owner = until("the first role is there", SOON, async || {
        Cql::log_in(ring.address(0), "cassandra", "cassandra").map_err(|error| error.to_string())
    })
    .await;
    make_shop(&mut owner, 1).await;
    owner.run("CREATE ROLE app WITH LOGIN = true AND PASSWORD = 'app'");
    for (key, value) in [("warn", "71"), ("fail", "81")] {
        let name = format!("data_disk_usage_percentage_{key}_threshold");
        let asked = format!("SELECT value FROM system_views.settings WHERE name = '{name}'");
        let set = owner.run(&asked)[0][0].clone().unwrap();
        assert_eq!(String::from_utf8_lossy(&set), value, "{name}");
    }
    told.claim("a node on a small volume refuses writes of users from 81 % of data on");

    let mut app = Cql::log_in(ring.address(0), "app", "app").unwrap();
    try_fill(&mut app, 0, BULK).unwrap();
    volume.fill_up_to(LEFT);
    refuses_users(&mut app).await;
    told.claim("with less room than that a user's write is refused, and Cassandra lives");
    try_fill(&mut owner, BULK, BULK + 1).unwrap();
    let storage = ring
        .shows(0, "what fills the volume", SOON, |pilot| {
            pilot.status.storage.clone().filter(|storage| !storage.contents.is_empty())
        })
        .await;
    let of = |what: &str| -> i64 {
        let share = storage.contents.iter().find(|share: &&VolumeShare| share.what == what);
        share.map_or(0, |share| share.bytes >> 20)
    };
    assert!(of("data") > 200 && of("commit log") > 30 && of("other files") > 1, "{storage:?}");
    told.note(&describe_shares(&storage.contents));
    told.claim("the pilot says what fills it: data, the commit log, other files");

    ended_and_waited(&ring, &volume, told).await;
    let mut owner = until("the role is known again", SOON, async || {
        Cql::log_in(ring.address(0), "cassandra", "cassandra").map_err(|error| error.to_string())
    })
    .await;
    // One by one: all of them at once do not fit the heap.
    for id in 0..=BULK {
        let asked = format!("SELECT id FROM shop.bulk WHERE id = {id}");
        assert_eq!(owner.run(&asked).len(), 1, "row {id}");
    }
    told.claim("with room again it starts by itself, with every acknowledged row");
}

async fn refuses_users(app: &mut Cql) {
    let mut more = 1_000_000;
    until("a user's write is refused", SOON, async || {
        more += 1;
        let statement = format!("INSERT INTO shop.orders (id, body) VALUES ({more}, 'x')");
        match app.query(&statement, crate::cql::Consistency::One) {
            Err(error) if error.to_string().contains("disk usage") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn ended_and_waited(ring: &Ring, volume: &Tmpfs, told: &Told) {
    volume.fill();
    ring.shows(0, "the volume is full", SOON, |pilot| {
        let (status, reason, _) = condition(pilot, "PreflightPassed")?;
        (status == "False" && reason == "DiskFull").then_some(())
    })
    .await;
    // A database that has no room to write down why it ends: nothing else explains this end.
    signal(ring.database(0).unwrap(), Signal::SIGKILL);
    let why = ring.says(0, "Ready", ("False", "DiskFull"), SOON).await;
    let ended = ring.pilot(0).await.status.last_termination.unwrap();
    assert_eq!(ended.reason.as_deref(), Some("DiskFull"), "{ended:?}");
    ring.bed.two_reports(ring.name(0)).await;
    assert_eq!(ring.database(0), None, "it is not started again");
    told.note(&format!("Ready: DiskFull: {why}"));
    told.claim("ended for want of room, it is not started again: Ready is False, DiskFull");
    volume.free();
    ring.serves(0, SOON + START).await;
}
